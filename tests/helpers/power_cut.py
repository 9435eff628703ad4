"""Kills a process that trains and saves after every step, at random instants, and looks at what is left.

    python tests/power_cut.py --trials 60

One trial: a child opens the plan, resuming where there is a saved state, and tells of each step once its save
has returned. SIGKILL comes at a random instant, mostly of the training, sometimes of the opening. Then the
state on disk must open, must be of the last step that was told or the one after it, and must hold,
bit for bit, what an undisturbed run has after so many steps.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import faults
import torch
from torch import Tensor

from helpers import hand_net
from poet.runtime import Trainer

LONGEST_SECONDS = 0.15
TRAINING_SHARE = 0.8
BATCHES = 5


@dataclass
class Outcome:
    """What became of the trials.

    Attributes:
        trials: that were made.
        steps: committed over all of them.
        cut: trials by what the child was doing when it was killed.
        lost: descriptions of what should not have been.
    """

    trials: int = 0
    steps: int = 0
    cut: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)


def cut_power(folder: Path, trials: int, *, seed: int, background: bool, in_storage: bool) -> Outcome:
    """Make ``trials`` trials one after the other, each going on from what the one before left."""
    plan, state = folder / "plan.poet", folder / "state.safetensors"
    faults.write_net(plan, background=background, in_storage=in_storage)
    truth, rng, outcome = _Truth(plan), random.Random(seed), Outcome()
    for number in range(trials):
        in_training = rng.random() < TRAINING_SHARE
        told = _killed(plan, state, rng.uniform(0, LONGEST_SECONDS), in_training=in_training)
        doing = told[-1] if told and not told[-1].isdigit() else "between"
        committed = max([outcome.steps, *(int(word) for word in told if word.isdigit())])
        outcome.trials += 1
        outcome.cut[doing] += 1
        if not state.exists():
            outcome.lost += [f"trial {number}: no state after step {committed}"] if committed else []
            continue
        with Trainer.open(plan, resume=state) as trainer:
            found, parameters = trainer.steps, trainer.parameters()
        if not committed <= found <= committed + 1:
            outcome.lost.append(f"trial {number}: step {committed} was committed, step {found} was found")
        if not _same(parameters, truth.after(found)):
            outcome.lost.append(f"trial {number}: the bits are not those of step {found}")
        outcome.steps = found
    return outcome


class _Truth:
    """An undisturbed run, as far as it was asked for."""

    def __init__(self, plan: Path) -> None:
        self._trainer = Trainer.open(plan)
        self._after = [self._trainer.parameters()]

    def after(self, steps: int) -> dict[str, Tensor]:
        """The parameters after so many steps."""
        while len(self._after) <= steps:
            self._trainer.step(*hand_net.batch(len(self._after) % BATCHES))
            self._after.append(self._trainer.parameters())
        return self._after[steps]


def _killed(plan: Path, state: Path, seconds: float, *, in_training: bool) -> list[str]:
    """Words of a child that was killed ``seconds`` after its start, or after that of its first step.

    They are what it was doing, in order, and the number of each committed step.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _train(plan, state, writer)
    os.close(writer)
    with os.fdopen(reader, "rb", buffering=0) as told:
        heard = b""
        while in_training and b"computing" not in heard:
            heard += told.read(64)
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return (heard + told.readall()).decode().split()


def _train(plan: Path, state: Path, writer: int) -> None:
    """Train and save for ever; never returns."""
    os.write(writer, b"opening\n")
    with Trainer.open(plan, resume=state if state.exists() else None) as trainer:
        while True:
            os.write(writer, b"computing\n")
            trainer.step(*hand_net.batch((trainer.steps + 1) % BATCHES))
            os.write(writer, b"saving\n")
            trainer.save(state)
            os.write(writer, f"{trainer.steps}\n".encode())
    os._exit(1)


def _same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    return all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def main() -> int:
    """Run the trials for parameters in RAM and in storage, blocking and in the background."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--trials", type=int, default=60, help="of each of the four kinds")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    lost = 0
    for background in (False, True):
        for in_storage in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                outcome = cut_power(
                    Path(folder), given.trials, seed=given.seed, background=background, in_storage=in_storage
                )
            kind = f"parameters in {'storage' if in_storage else 'RAM'}, "
            kind += f"{'background' if background else 'blocking'} transfers"
            cut = ", ".join(f"{count} {doing}" for doing, count in sorted(outcome.cut.items()))
            print(f"{kind}: killed {outcome.trials} times ({cut}), {outcome.steps} steps committed, "
                  f"{len(outcome.lost)} lost")  # fmt: skip
            print(*outcome.lost, sep="\n", end="")
            lost += len(outcome.lost)
    return 1 if lost else 0


if __name__ == "__main__":
    raise SystemExit(main())
