"""Ends `poet run` by SIGTERM, SIGHUP and SIGKILL at random instants, resumes it, and compares every byte.

    PYTHONPATH=tests:tests/tools python tests/helpers/run_kills.py --kills 200

The command saves after every step. After each signal the exit code must be the signal's, the page file must
be gone unless it was SIGKILL, no step that was saved may be lost, and the state must be, byte for byte, the
one that an undisturbed run saves after as many steps. One run is resumed from kill to kill.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import faults
import numpy as np
import torch

from helpers import hand_net
from poet.plans.run_request import Epoch
from poet.runtime import Trainer
from poet.runtime.runs.fit import fit, load_samples

POET = Path(sys.executable).with_name("poet")
SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
CODES = {signal.SIGTERM: 143, signal.SIGHUP: 129, signal.SIGKILL: -signal.SIGKILL}
LOADING_SHARE = 0.1
LONGEST_LOADING_SECONDS, LONGEST_TRAINING_SECONDS = 4.0, 0.4
BATCHES = 5
KINDS = (False, True)  # parameters in RAM and blocking transfers; in storage and in the background


@dataclass
class Outcome:
    """How many kills by signal, steps saved, how many kills struck the loading, and what was wrong."""

    kills: Counter[str] = field(default_factory=Counter)
    steps: int = 0
    loading: int = 0
    wrong: list[str] = field(default_factory=list)


class _Truth:
    """The digest of the file that an undisturbed training saves after each step."""

    def __init__(self, folder: Path, plan: Path, data: Path) -> None:
        self._path = folder / "undisturbed"
        self._trainer = Trainer.open(plan, seed=0)
        self._digests = [""]
        save = self._trainer.save

        def noted(path: str | Path, *, keep_previous: bool = False) -> None:
            if self._trainer.steps == len(self._digests):
                save(path, keep_previous=keep_previous)
                self._digests.append(digest(self._path))

        self._trainer.save = noted  # type: ignore[method-assign]
        samples = load_samples(data, self._trainer.plan)
        self._epochs = fit(self._trainer, samples, epochs=10**6, save_path=self._path, save_every=1)

    def after(self, steps: int) -> str:
        """Of the state after so many steps."""
        while len(self._digests) <= steps:
            epoch: Epoch = next(self._epochs)
            assert epoch.is_complete
        return self._digests[steps]


def digest(path: Path) -> str:
    """Of all bytes of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def end_runs(folder: Path, kills: int, *, seed: int, in_storage: bool) -> Outcome:
    """Make so many kills, one after the other."""
    plan, data, state, pages = (folder / name for name in ("plan.poet", "data.npz", "state", "pages"))
    faults.write_net(plan, background=in_storage, in_storage=in_storage)
    inputs, targets = zip(*(hand_net.batch(number) for number in range(BATCHES)), strict=True)
    np.savez(data, x=torch.cat(inputs).numpy(), y=torch.cat(targets).numpy())
    truth, outcome, rng = _Truth(folder, plan, data), Outcome(), random.Random(seed)
    for number in range(kills):
        sent = SIGNALS[number % len(SIGNALS)]
        before = outcome.steps
        code, was_loading = _killed(plan, data, state, pages, sent, rng)
        outcome.kills[sent.name] += 1
        outcome.loading += was_loading
        outcome.wrong += _faults_of(f"kill {number}, {sent.name}", code, sent, pages, was_loading=was_loading)
        pages.unlink(missing_ok=True)
        if not state.exists():
            continue
        with Trainer.open(plan, resume=state) as trainer:
            outcome.steps = trainer.steps
        if outcome.steps < before:
            outcome.wrong.append(f"kill {number}: step {before} was saved, step {outcome.steps} was found")
        if digest(state) != truth.after(outcome.steps):
            outcome.wrong.append(f"kill {number}: other bytes than after step {outcome.steps}")
    return outcome


def _killed(
    plan: Path, data: Path, state: Path, pages: Path, sent: signal.Signals, rng: random.Random
) -> tuple[int, bool]:
    """The exit code of a run that got the signal, and whether it had not saved anything by then."""
    command = [POET, "run", plan, "--data", data, "--threads", "1", "--epochs", "1000000", "--seed", "0"]
    command += ["--page-file", pages, "-o", state, "--save-every", "1"]
    command += ["--resume", state] if state.exists() else []
    before = state.stat().st_mtime_ns if state.exists() else 0
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [str(word) for word in command],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment,
    ) as process:  # fmt: skip
        if rng.random() < LOADING_SHARE:
            time.sleep(rng.uniform(0.0, LONGEST_LOADING_SECONDS))
        else:
            while process.poll() is None and not _is_newer(state, before):
                time.sleep(0.005)
            time.sleep(rng.uniform(0.0, LONGEST_TRAINING_SECONDS))
        was_loading = not _is_newer(state, before)
        process.send_signal(sent)
        return process.wait(), was_loading


def _is_newer(state: Path, before: int) -> bool:
    try:
        return state.stat().st_mtime_ns > before
    except FileNotFoundError:
        return False


def _faults_of(name: str, code: int, sent: signal.Signals, pages: Path, *, was_loading: bool) -> list[str]:
    wrong = []
    killed_at_once = was_loading and code == -sent  # before the interpreter had come to poet
    if code != CODES[sent] and not killed_at_once:
        wrong.append(f"{name}: exit code {code}")
    if sent != signal.SIGKILL and pages.exists():
        wrong.append(f"{name}: the page file is there")
    return wrong


def main() -> int:
    """Make the kills, half of them with each kind of plan."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    wrong = 0
    for number, in_storage in enumerate(KINDS):
        kills = given.kills // len(KINDS) + (number < given.kills % len(KINDS))
        with tempfile.TemporaryDirectory() as folder:
            outcome = end_runs(Path(folder), kills, seed=given.seed + number, in_storage=in_storage)
        told = json.dumps(dict(sorted(outcome.kills.items())))
        print(f"parameters in {'storage' if in_storage else 'RAM'}: {told}, {outcome.loading} while loading, "
              f"{outcome.steps} steps saved, {len(outcome.wrong)} wrong", flush=True)  # fmt: skip
        print(*outcome.wrong, sep="\n", end="\n" if outcome.wrong else "")
        wrong += len(outcome.wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
