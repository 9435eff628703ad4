"""A stream of batches of mixed lengths, of which a plan file has three: results/stream-of-shapes.json.

    python -m benchmarks stream [--steps 500] [--peace 3] [--write]

Every other length is planned between steps. Losses of all steps are compared bit for bit with plain PyTorch.
Then the same batches are trained once more, with nothing left to plan, while the peak of tensor memory is
counted. Some of the plans are held against longer searches.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from result_file import RESULTS, write
from torch import Tensor, nn

import poet
from poet.frontend.plain import PlainTrainer
from poet.planning.shape_planner import ShapePlanner
from poet.runtime import Trainer
from poet.util.units import format_bytes, format_share

PAGE = RESULTS / "stream-of-shapes.json"
OPTIMIZER = poet.OptimizerSpec("adamw", lr=1e-3)
BATCH, LONGEST, PLANNED = 4, 64, (64, 40, 20)
WORDS, CLASSES = 1000, 5
COMPARED = 5


class Encoder(nn.Module):
    """A BERT of two layers: 64 wide, four heads, learned places."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, 64), nn.Parameter(torch.randn(128, 64) * 0.02)
        layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.1, batch_first=True, activation="gelu")
        self.layers, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(64, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores [N,C] of tokens [N,L]."""
        scores: Tensor = self.head(self.layers(self.words(tokens) + self.places[: tokens.shape[1]])[:, 0])
        return scores


class Reader(nn.Module):
    """An LSTM of one layer, 64 wide."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.rows = nn.Embedding(WORDS, 64), nn.LSTM(64, 64, batch_first=True)
        self.head = nn.Linear(64, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores [N,C] of tokens [N,L]."""
        scores: Tensor = self.head(self.rows(self.words(tokens))[0][:, -1])
        return scores


@dataclass(frozen=True, slots=True)
class Found:
    """What a stream gave; seconds are wall clock on this machine."""

    name: str
    budget_bytes: int
    plain_bytes: int
    shapes: int
    seconds: tuple[float, ...]
    searched: int
    hits: float
    are_equal: bool
    peak_bytes: int | None
    excess: tuple[float, ...]


def batch(length: int, number: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    tokens = torch.randint(WORDS, (BATCH, length), generator=generator)
    return tokens, torch.randint(CLASSES, (BATCH,), generator=generator)


def lengths_of(steps: int) -> list[int]:
    """Most texts are short: lengths of a log-normal distribution, the longest cut off."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.empty(steps).log_normal_(3.0, 0.5, generator=generator)
    return [int(length) for length in drawn.round().clamp(4, LONGEST)]


def stream(name: str, make: Callable[[], nn.Module], share: float, steps: int, peace_seconds: float) -> Found:
    """Train ``steps`` batches inside ``share`` of what training takes that keeps everything."""

    def planned(ram: int | None) -> poet.Planned:
        torch.manual_seed(0)
        longest, *others = (torch.zeros(BATCH, length, dtype=torch.int64) for length in PLANNED)
        return poet.plan(
            make().train(), longest, device="x86-host", ram=ram, optimizer=OPTIMIZER, shapes=others,
            evaluation=False, time_limit_seconds=4.0,
        )  # fmt: skip

    plain_bytes = planned(None).plan.held_bytes
    made = planned(round(share * plain_bytes))
    net = made.prepared.module[0] if made.prepared.module else make()
    lengths, planner = lengths_of(steps), ShapePlanner()
    with tempfile.TemporaryDirectory() as folder:
        made.save(Path(folder) / "p.poet")
        plain = PlainTrainer(
            net, loss="cross-entropy", optimizer=OPTIMIZER, trained=[key for key, _ in net.named_parameters()]
        )
        with Trainer.open(Path(folder) / "p.poet", seed=1) as trainer:
            trainer.shape_planner = planner
            torch.manual_seed(1)
            are_equal = True
            for number, length in enumerate(lengths):
                inputs, targets = batch(length, number)
                loss = trainer.step(inputs, targets).loss
                are_equal &= loss == float(plain.step([inputs], targets)[0])
            state = net.state_dict()
            are_equal &= all(torch.equal(item, state[key]) for key, item in trainer.state_dict().items())
            with trainer.peak_meter() as meter:
                for number, length in enumerate(lengths):
                    trainer.step(*batch(length, number))
            new = trainer.plan.shapes[len(PLANNED) - 1 :]
            plan = trainer.plan
    hasty = [item for item in new if item.step.outcome.gap > 0.0]
    excess = []
    for item in sorted(hasty, key=lambda each: -each.step.outcome.gap)[:COMPARED]:
        peaceful = ShapePlanner().improve(replace(plan, shapes=(item,)), time_limit_seconds=peace_seconds)
        best = item.step.step_joules if peaceful is None else peaceful.step.step_joules
        excess.append(item.step.step_joules / best - 1.0)
    return Found(
        name, made.plan.request.limits.ram_budget_bytes or 0, plain_bytes, len(new),
        tuple(planner.timed), len(hasty), 1 - len(new) / steps, are_equal,
        meter.peak.bytes, tuple(excess),
    )  # fmt: skip


def row(found: Found) -> str:
    worst, median = max(found.seconds, default=0.0), statistics.median(found.seconds or [0.0])
    peak = "not measured" if found.peak_bytes is None else format_bytes(found.peak_bytes)
    if found.excess:
        excess = f"{format_share(statistics.median(found.excess))}, {format_share(max(found.excess))}"
    else:
        excess = "none was searched"
    cells = (
        found.name,
        f"{format_bytes(found.budget_bytes)} of {format_bytes(found.plain_bytes)}",
        str(found.shapes),
        f"{median:.3f} s, {worst:.3f} s",
        format_share(found.hits),
        peak,
        str(found.searched),
        excess,
        "yes" if found.are_equal else "NO",
    )
    return f"| {' | '.join(cells)} |"


def page(rows: Sequence[str], steps: int, peace_seconds: float) -> str:
    planned = ", ".join(map(str, PLANNED))
    columns = (
        "net", "budget, of keeping everything", "new shapes", "first plan: median, worst",
        "steps with a plan at hand", "measured peak", "had to be searched",
        "energy above a longer search: median, worst", "bits of plain PyTorch",
    )  # fmt: skip
    lines = [
        "# A stream of shapes",
        "",
        f"{steps} steps on batches of {BATCH} sequences with lengths from 4 to {LONGEST} as they come",
        f"(log-normal), by a plan file that has the lengths {planned}. Every other length is planned between",
        "two steps when it first comes (`docs/training-loops.md`).",
        "`python -m benchmarks stream --write` writes this page; one thread, on a machine of "
        f"{os.cpu_count()} processors with a load average of {os.getloadavg()[1]:.0f} meanwhile.",
        "",
        f"| {' | '.join(columns)} |",
        "|---" * len(columns) + "|",
        *rows,
        "",
        "**First plan**: from the batch to a plan that may run; wall clock, other programs included.",
        "**Measured peak**: all that torch was given, counted by the allocator, and the whole arena, while",
        "the same steps were made once more, with no shape left to plan "
        "(the kernel's mark of resident memory has",
        "objects of the interpreter beside it). **Had to be searched**: shapes that do not fit as they are;",
        f"{COMPARED} of these at most, furthest from their bounds, were searched {peace_seconds:g} s more.",
        "**Bits**: the losses of all steps, and all tensors after the last.",
        "",
        "What a shape takes is predicted from the planned shapes, before any graph is re-shaped: the",
        "sizes of tensors by their formulas, kernels' workspaces fitted (after Mimose).",
        "`ShapePlanner.largest` finds the largest length that fits so; `shape-bytes` has how far off it is.",
        "",
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Measure both nets; an error where a bit differs."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--peace", type=float, default=2.0)
    parser.add_argument("--write", action="store_true")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rows = []
    nets = (("encoder, 2 layers, 64 wide", Encoder, 0.8), ("LSTM, 64 wide", Reader, 0.97))
    for name, make, share in nets:
        rows.append(row(stream(name, make, share, chosen.steps, chosen.peace)))
        print(rows[-1], flush=True)
    if chosen.write:
        write(PAGE, page(rows, chosen.steps, chosen.peace))
    return 0 if all(line.endswith("yes |") for line in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
