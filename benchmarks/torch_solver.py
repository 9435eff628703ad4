"""`poet.torch_solver` beside torch's own solvers of the partitioner: measured peak and time of steps.

    python -m benchmarks torch-solver [NET:SIZE:BATCH ...] [--budgets 10] [--steps 5] [--write]

Each net is compiled by ``aot_eager`` for budgets in bytes between the least that the pool of sets reaches and
what it takes unlimited, and with torch's solvers at as many fractions. The peak is what torch's allocator
handed out at most in a step, parameters and the batch included; the time is the median of the steps, of
processor time. What was measured stands in build/torch-solver and is not measured again as long as the
solver's code, torch and the questions are the same. Ends with an error where a peak of poet's rises as the
budget falls.
"""

from __future__ import annotations

import argparse
import copy
import functools
import hashlib
import inspect
import itertools
import json
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from result_file import RESULTS, write
from torch import Tensor, nn
from torch._functorch import config as functorch_config
from torch.nn import functional
from zoo import NETS, Size

import poet
from poet.integrations import partitioner
from poet.runtime import native
from poet.util.units import format_bytes, format_seconds

ROOT = Path(__file__).parents[1]
PAGE = RESULTS / "torch-solver.json"
KEPT = ROOT / "build" / "torch-solver"
ROWS = (
    "resnet18:medium:4", "mobilenet_v2:medium:4", "bert:medium:8", "vit:small:16", "unet:small:8",
    "convnext:small:16",
)  # fmt: skip
PEERS = ("dp", "greedy")
_RISE = 1.005  # of a peak, by which the heap's blocks may differ
_TEXT = """# In torch.compile, beside torch's own solvers

Made by `python -m benchmarks torch-solver --write`
with torch {torch}, {threads} thread, {steps} steps each: {nets} nets x {budgets}
budgets. `poet.torch_solver` (`docs/training-loops.md`) is given bytes, from what the net takes down
to the least of its pool of saved sets; torch's solvers are given fractions, from 1 down. *Peak* is what
torch's allocator handed out at most in a step of forward, loss and backward, parameters and the batch
included; *time* is the median of the steps, of processor time on a machine with other work. Under torch's
solvers a mask of dropout may be drawn a second time in backward; poet's saves it.

Of the {pairs} times that poet's budget fell, its measured peak rose {rises}; of torch's solvers it rose
{theirs} as their fraction fell.

| net | parameters and batch | unlimited | least peak: poet | dp | greedy | time there: poet | dp | greedy |
|---|---|---|---|---|---|---|---|---|
"""


@dataclass(frozen=True, slots=True)
class Question:
    """What is measured of a net and how.

    Attributes:
        net: and its size and batch, as ``resnet18:medium:4``.
        budgets: how many, of each solver.
        steps: that are timed.
        threads: of torch.
    """

    net: str
    budgets: int
    steps: int
    threads: int

    @property
    def key(self) -> str:
        """Changes with whatever changes the answer."""
        measures: tuple[Any, ...] = (partitioner, measured, step, answer)
        code = "".join(map(inspect.getsource, measures))
        text = json.dumps([asdict(self), torch.__version__, code])
        return f"{self.net.replace(':', '-')}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


@dataclass(frozen=True, slots=True)
class Point:
    """One compilation: what was asked for, and what a step took.

    Attributes:
        asked: bytes of poet's solver, a fraction of torch's.
        walk_bytes: the peak that poet's solver expects; 0 of torch's.
        peak_bytes, seconds: as measured.
    """

    asked: float
    walk_bytes: int
    peak_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Answer:
    """What was measured of a net, by solver; ``held_bytes`` are parameters and the batch."""

    held_bytes: int
    unlimited_bytes: int
    points: dict[str, list[Point]]

    @staticmethod
    def read(path: Path) -> Answer:
        """From a file that `write` wrote."""
        data = json.loads(path.read_text())
        points = {name: [Point(**item) for item in items] for name, items in data["points"].items()}
        return Answer(data["held_bytes"], data["unlimited_bytes"], points)

    def write(self, path: Path) -> None:
        """Whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(".new")
        new.write_text(json.dumps(asdict(self)))
        os.replace(new, path)

    def rises(self, solver: str) -> int:
        """How often the peak rose as what was asked for fell."""
        peaks = [point.peak_bytes for point in self.points[solver]]
        return sum(after > _RISE * before for before, after in itertools.pairwise(peaks))

    def least(self, solver: str) -> Point:
        """Of the least peak."""
        return min(self.points[solver], key=lambda point: (point.peak_bytes, point.seconds))


def measured(
    size: Size, batch: int, steps: int, context: Callable[[], AbstractContextManager[object]]
) -> tuple[int, float]:
    """Peak bytes and seconds of a step of the net, compiled inside of ``context``."""
    torch.manual_seed(0)
    inputs, targets = size.inputs(batch), size.targets(batch)
    allocator = native.load()
    assert allocator is not None, native.why_unavailable()
    torch._dynamo.reset()
    held = sum(item.nbytes for item in (*inputs, targets))
    with context(), allocator.tracking() as tracked:
        module = copy.deepcopy(size.build().train())
        compiled = torch.compile(module, backend="aot_eager")
        seconds = []
        for number in range(steps + 1):
            began = time.thread_time()
            step(compiled, module, inputs, targets)
            if number:
                seconds.append(time.thread_time() - began)
        return tracked.peak_bytes + held, statistics.median(seconds)


def step(
    compiled: Callable[..., Tensor], module: nn.Module, inputs: Sequence[Tensor], targets: Tensor
) -> None:
    """Forward, loss and backward."""
    module.zero_grad()
    output = compiled(*inputs)
    if targets.is_floating_point():
        loss = functional.binary_cross_entropy_with_logits(output, targets)
    else:
        loss = functional.cross_entropy(output, targets)
    torch.autograd.backward(loss)


def answer(question: Question) -> Answer:
    """Measure a net, or read what was measured of it."""
    path = KEPT / f"{question.key}.json"
    if path.exists():
        return Answer.read(path)
    net, name, batch = question.net.split(":")
    size = NETS[net].sizes[name]
    unlimited = poet.torch_solver(1 << 60)
    least = unlimited.within(1)
    take = functools.partial(measured, size, int(batch), question.steps)
    most_bytes, _ = take(unlimited.used)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        take(least.used)
    least_bytes = max(choice.peak_bytes for choice in least.choices)
    above = max(choice.peak_bytes for choice in unlimited.choices)
    points: dict[str, list[Point]] = {"poet": []}
    for number in range(question.budgets):
        ram_bytes = int(above - (above - least_bytes) * number / max(question.budgets - 1, 1))
        solver = unlimited.within(ram_bytes)
        peak_bytes, seconds = take(solver.used)
        said = max(choice.peak_bytes for choice in solver.choices)
        points["poet"].append(Point(ram_bytes, said, peak_bytes, seconds))
    for peer in PEERS:
        points[peer] = []
        for number in range(question.budgets):
            fraction = 1.0 - number / question.budgets
            patched = functools.partial(
                functorch_config.patch,
                activation_memory_budget=fraction,
                activation_memory_budget_solver=peer,
            )
            points[peer].append(Point(fraction, 0, *take(patched)))
    held = sum(item.nbytes for item in (*size.inputs(int(batch)), size.targets(int(batch))))
    held += sum(item.nbytes for item in size.build().parameters())
    found = Answer(held, most_bytes, points)
    found.write(path)
    return found


def page(answers: dict[Question, Answer]) -> str:
    """What was measured, as Markdown."""
    first = next(iter(answers))
    text = _TEXT.format(
        torch=torch.__version__, threads=first.threads, steps=first.steps, nets=len(answers),
        budgets=first.budgets, pairs=len(answers) * (first.budgets - 1),
        rises=_times(sum(item.rises("poet") for item in answers.values())),
        theirs=" and ".join(
            f"{_times(sum(item.rises(peer) for item in answers.values()))} ({peer})" for peer in PEERS
        ),
    )  # fmt: skip
    solvers = ("poet", *PEERS)
    for question, found in answers.items():
        best = [found.least(solver) for solver in solvers]
        cells = [question.net, format_bytes(found.held_bytes), format_bytes(found.unlimited_bytes)]
        cells += [format_bytes(point.peak_bytes) for point in best]
        cells += [format_seconds(point.seconds) for point in best]
        text += f"| {' | '.join(cells)} |\n"
    for question, found in answers.items():
        text += f"\n## {question.net}\n\n"
        text += "| budget | expected | peak | time | fraction | dp: peak | time | greedy: peak | time |\n"
        text += "|---|---|---|---|---|---|---|---|---|\n"
        for ours, *theirs in zip(*(found.points[solver] for solver in solvers), strict=True):
            cells = [format_bytes(int(ours.asked)), format_bytes(ours.walk_bytes), *_taken(ours)]
            cells += [f"{theirs[0].asked:.1f}", *(text for point in theirs for text in _taken(point))]
            text += f"| {' | '.join(cells)} |\n"
    return text


def _taken(point: Point) -> tuple[str, str]:
    return format_bytes(point.peak_bytes), format_seconds(point.seconds)


def _times(count: int) -> str:
    return {0: "never", 1: "once"}.get(count, f"{count} times")


def main(arguments: Sequence[str]) -> int:
    """Measure what is not measured yet, and print or write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="*", default=ROWS)
    parser.add_argument("--budgets", type=int, default=10)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.relative_to(ROOT)}")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(chosen.threads)
    answers = {}
    for text in chosen.rows:
        question = Question(text, chosen.budgets, chosen.steps, chosen.threads)
        answers[question] = answer(question)
        print(f"{text}: rises {answers[question].rises('poet')}", file=sys.stderr, flush=True)
    made = page(answers)
    if chosen.write:
        write(PAGE, made)
    else:
        print(made)
    return int(any(found.rises("poet") for found in answers.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
