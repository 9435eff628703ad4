"""Kills a process that trains and saves after every step, at random instants, and looks at what is left.

    python -m benchmarks power-cut --trials 125 --folder cuts [--write]     625 kills

With --folder it goes on where it was ended, and --write puts the table into results/power-cuts.json.

One trial: a child opens the plan, resuming where there is a saved state, and tells of each step once its save
has returned. SIGKILL comes at a random instant, mostly of the training, sometimes of the opening. Then the
state on disk must open, must be of the last step that was told or the one after it, and must hold,
bit for bit, what an undisturbed run has after so many steps.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import faults
import torch
from torch import Tensor

from helpers import hand_net, part_nets, row_net
from poet.problem.schedule import Compute, Free
from poet.runtime import Trainer

RESULT = Path(__file__).parents[2] / "benchmarks" / "results" / "power-cuts.json"
HEAD = """# Power cuts

A process that saves after every step is killed at random instants
(`python -m benchmarks power-cut --write`). What is on the disk must be of the last step whose save had
returned, or of the one after it, with the bits of an undisturbed run. *Opening* is the plan, the page file
and the state; a kill while *saving* strikes inside a commit.

"""
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


KINDS: dict[str, Callable[[Path], object]] = {
    **{
        f"parameters in {'storage' if in_storage else 'RAM'}, {transfers} transfers": partial(
            faults.write_net, background="background" in transfers, in_storage=in_storage
        )
        for transfers in ("blocking", "background")
        for in_storage in (False, True)
    },
    "a table in storage, updated by row": lambda plan: part_nets.write(plan, row_net.by_row(), seed=None),
}
"""Of plans, and what writes one."""


def cut_power(folder: Path, trials: int, *, seed: int, kind: str) -> Outcome:
    """Make ``trials`` trials one after the other, each going on from what the one before left.

    What came of them stands in ``folder``; those that were made already are not made again.
    """
    plan, state = folder / "plan.poet", folder / "state.safetensors"
    record = folder / "outcome.json"
    if not plan.exists():
        KINDS[kind](plan)
    truth, outcome = _Truth(plan), _read(record)
    for number in range(outcome.trials, trials):
        rng = random.Random(f"{seed} {number}")
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
        _write(record, outcome)
    return outcome


def _read(record: Path) -> Outcome:
    if not record.exists():
        return Outcome()
    found = json.loads(record.read_text())
    return Outcome(found["trials"], found["steps"], Counter(found["cut"]), found["lost"])


def _write(record: Path, outcome: Outcome) -> None:
    new = record.with_suffix(".new")
    new.write_text(json.dumps({**vars(outcome), "cut": dict(outcome.cut)}))
    new.replace(record)


class _Truth:
    """An undisturbed run, as far as it was asked for."""

    def __init__(self, plan: Path) -> None:
        self._trainer = Trainer.open(plan)
        self._after = [self._trainer.parameters()]

    def after(self, steps: int) -> dict[str, Tensor]:
        """The parameters after so many steps."""
        while len(self._after) <= steps:
            self._trainer.step(*_batch(self._trainer, len(self._after)))
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
            batch = _batch(trainer, trainer.steps + 1)
            trainer.step(*batch, on_instruction=_Teller(trainer, writer))
            os.write(writer, b"saving\n")
            trainer.save(state)
            os.write(writer, f"{trainer.steps}\n".encode())
    os._exit(1)


def _batch(trainer: Trainer, step: int) -> tuple[Tensor, ...]:
    is_of_words = trainer.input_types[0].dtype == "int64"
    return (row_net.batch if is_of_words else hand_net.batch)(step % BATCHES)


class _Teller:
    """Tells when a step begins and ends to page, or to work in storage, so that a kill struck there."""

    def __init__(self, trainer: Trainer, writer: int) -> None:
        self._schedule, self._writer = trainer.plan.schedule, writer
        self._by_row = {op.name for op in trainer.plan.graph.ops if op.stored}
        self._is_paging = False

    def __call__(self, index: int) -> None:
        step = self._schedule[index]
        is_paging = step.op in self._by_row if isinstance(step, Compute) else not isinstance(step, Free)
        if is_paging != self._is_paging:
            os.write(self._writer, b"paging\n" if is_paging else b"computing\n")
        self._is_paging = is_paging


def _same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    return all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def main() -> int:
    """Run the trials for each of the kinds of plans."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--trials", type=int, default=60, help="of each of the kinds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="for what came of them, to go on from")
    parser.add_argument("--write", action="store_true", help="the table into results/power-cuts.json")
    given = parser.parse_args()
    torch.set_num_threads(1)
    outcomes: dict[str, Outcome] = {}
    for kind in KINDS:
        with contextlib.ExitStack() as scopes:
            if given.folder is None:
                folder = Path(scopes.enter_context(tempfile.TemporaryDirectory()))
            else:
                folder = given.folder / kind.replace(", ", "-").replace(" ", "-")
                folder.mkdir(parents=True, exist_ok=True)
            outcome = cut_power(folder, given.trials, seed=given.seed, kind=kind)
        cut = ", ".join(f"{count} {doing}" for doing, count in sorted(outcome.cut.items()))
        print(f"{kind}: killed {outcome.trials} times ({cut}), {outcome.steps} steps committed, "
              f"{len(outcome.lost)} lost", flush=True)  # fmt: skip
        print(*outcome.lost, sep="\n", end="")
        outcomes[kind] = outcome
    if given.write:
        from result_file import write

        write(RESULT, HEAD + table(outcomes))
    return 1 if any(outcome.lost for outcome in outcomes.values()) else 0


def table(outcomes: Mapping[str, Outcome]) -> str:
    """What came of the kills, as Markdown."""
    doings = sorted({doing for outcome in outcomes.values() for doing in outcome.cut})
    lines = [
        f"| plan | kills | {' | '.join(f'while {doing}' for doing in doings)} | steps committed | lost |",
        "|---|" + "---|" * (len(doings) + 3),
    ]
    for kind, outcome in outcomes.items():
        counts = " | ".join(str(outcome.cut[doing]) for doing in doings)
        lines.append(f"| {kind} | {outcome.trials} | {counts} | {outcome.steps} | {len(outcome.lost)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    raise SystemExit(main())
