"""Bytes against input size, learned from a plan's shapes, beside those of problems: results/shape-bytes.json.

    python -m benchmarks shape-bytes [--write]

For each net a plan of a few shapes; what a step of other sizes takes is predicted, and held against the
problem of that step, whose kernels are run for their workspaces. Then the largest size that has a step is
looked for, once where the laws say and once by doubling and bisecting.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from unittest import mock

import stream
import torch
from result_file import RESULTS, write
from torch import Tensor, nn

import poet
from poet.devices.device_problem import build_problem, kernels_on
from poet.devices.load import load_profile
from poet.errors import InputError
from poet.ir.reshaping import Reshaping
from poet.planning.beside import at_home, limits_beside
from poet.planning.ram_survey import keep_everything_bytes
from poet.planning.shape_bytes import ShapeBytes
from poet.planning.shape_planner import Largest, ShapePlanner
from poet.plans.training_plan import Plan
from poet.runtime.trials.measure import measured
from poet.solvers import minimum_ram_bytes

PAGE = RESULTS / "shape-bytes.json"
DEVICE = "x86-host"
COLUMNS = (
    "net", "planned shapes", "budget", "sizes asked", "off, everything kept: median, worst",
    "off, least RAM: median, worst", "learned once in", "an answer", "the same exactly", "largest size",
    "tried, with the laws", "tried, without",
)  # fmt: skip


class Pictures(nn.Module):
    """Convolutions with batch norm over images of any resolution."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, width in ((3, 16), (16, 32), (32, 64)):
            layers += [nn.Conv2d(before, width, 3, stride=2, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Scores [N,10] of images [N,3,H,W]."""
        scores: Tensor = self.head(self.layers(images).mean(dim=(2, 3)))
        return scores


def words(samples: int, length: int) -> Tensor:
    return torch.zeros(samples, length, dtype=torch.int64)


def pictures(samples: int, side: int) -> Tensor:
    return torch.zeros(samples, 3, side, side)


@dataclass(frozen=True, slots=True)
class Case:
    """A net, the shapes that are planned (largest first) and those that are asked for.

    Attributes:
        name: for people.
        make: the net.
        given: inputs of two sizes.
        planned, asked: the sizes.
        dim: of the inputs, whose largest size is looked for.
        share: the budget, of what keeping everything takes.
        multiple_of: what sizes the net takes.
    """

    name: str
    make: Callable[[], nn.Module]
    given: Callable[[int, int], Tensor]
    planned: tuple[tuple[int, int], ...]
    asked: tuple[tuple[int, int], ...]
    dim: int
    share: float
    multiple_of: int = 1


CASES = (
    Case("encoder, lengths", stream.Encoder, words, ((4, 64), (4, 40), (4, 20)),
         tuple((4, length) for length in range(4, 128, 6)), 1, 0.8),
    Case("encoder, batches and lengths", stream.Encoder, words, ((8, 64), (4, 64), (8, 32), (4, 32)),
         tuple((samples, length) for samples in (2, 6, 12) for length in (16, 48, 96)), 0, 0.8),
    Case("LSTM, lengths", stream.Reader, words, ((4, 64), (4, 40), (4, 20)),
         tuple((4, length) for length in range(4, 128, 6)), 1, 0.97),
    Case("convolutions, batches and resolutions", Pictures, pictures, ((8, 64), (4, 64), (8, 32), (4, 32)),
         tuple((samples, side) for samples in (2, 6, 12) for side in (16, 48, 96)), 2, 0.8, 8),
)  # fmt: skip


def plan_of(case: Case) -> Plan:
    def made(ram: int | None) -> Plan:
        torch.manual_seed(0)
        largest, *others = (case.given(*sizes) for sizes in case.planned)
        return poet.plan(
            case.make().train(), largest, device=DEVICE, ram=ram, optimizer=stream.OPTIMIZER, shapes=others,
            evaluation=False, time_limit_seconds=4.0,
        ).plan  # fmt: skip

    return made(round(case.share * made(None).held_bytes))


def exact(plan: Plan, reshaping: Reshaping, sizes: tuple[int, ...]) -> tuple[int, int]:
    """RAM that keeping everything takes, and the least of any schedule: every kernel is run."""
    graph, facts = measured(reshaping.graph(reshaping.types(sizes)), is_timed=False)
    profile = load_profile(DEVICE)
    problem = at_home(build_problem(graph, profile, kernels_on(profile, graph, facts)), plan)
    return keep_everything_bytes(problem), minimum_ram_bytes(problem, limits_beside(plan)).bytes


def off(errors: Sequence[float]) -> str:
    return f"{statistics.median(errors):.2%}, {max(errors):.2%}"


def row(case: Case) -> str:
    """Plan, ask and compare."""
    plan = plan_of(case)
    reshaping = Reshaping([plan.graph, *(shape.step.graph for shape in plan.shapes)])
    within_bytes = plan.arena_ram_bytes
    began = time.perf_counter()
    known = ShapeBytes(reshaping, plan)
    known.least_bytes(reshaping.sizes(plan.given_types))
    learned_seconds = time.perf_counter() - began
    kept, least, foreseen_seconds, exact_seconds = [], [], [], []
    for samples, size in case.asked:
        sizes = sizes_of(reshaping, samples, size)
        began = time.perf_counter()
        foreseen = known.kept_bytes(sizes), known.least_bytes(sizes)
        foreseen_seconds.append(time.perf_counter() - began)
        began = time.perf_counter()
        try:
            most, fewest = exact(plan, reshaping, sizes)
        except InputError:  # the model's own limit
            continue
        exact_seconds.append(time.perf_counter() - began)
        kept.append(abs(foreseen[0] / most - 1.0))
        least.append(abs(foreseen[1] / fewest - 1.0))
    planner = ShapePlanner()
    began = time.perf_counter()
    found = planner.largest(plan, dim=case.dim, multiple_of=case.multiple_of)
    with_seconds = time.perf_counter() - began
    began = time.perf_counter()
    with mock.patch.object(ShapeBytes, "largest", return_value=0):  # knows what is planned alone
        other = ShapePlanner().largest(plan, dim=case.dim, multiple_of=case.multiple_of)
    cells = (
        case.name,
        ", ".join(" x ".join(map(str, sizes)) for sizes in case.planned),
        poet.util.units.format_bytes(within_bytes),
        str(len(kept)),
        off(kept),
        off(least),
        f"{learned_seconds:.2f} s",
        f"{1000 * statistics.median(foreseen_seconds):.2f} ms",
        f"{1000 * statistics.median(exact_seconds):.0f} ms",
        answer(found),
        f"{found.tried} in {with_seconds:.1f} s",
        f"{other.tried} in {time.perf_counter() - began:.1f} s (to {other.size})",
    )
    return f"| {' | '.join(cells)} |"


def answer(found: Largest) -> str:
    return f"{found.size}" + (" (the model's own limit)" if "have no step" in found.why else "")


def sizes_of(reshaping: Reshaping, samples: int, size: int) -> tuple[int, ...]:
    """In the order of ``reshaping``: batches are dim 0."""
    return tuple(samples if (0, 0) in places else size for places in reshaping.places)


def page(rows: Sequence[str]) -> str:
    lines = [
        "# Bytes against input size",
        "",
        "What a step of another shape takes, predicted from the shapes of a plan (`docs/training-loops.md`),",
        "beside what it takes: the problem of that step, whose kernels were run for their workspaces. Sizes",
        "are batch x length, or batch x resolution, inside of the planned ones and up to 1.9 times as large.",
        "`python -m benchmarks shape-bytes --write`",
        f"writes this page; one thread, on a machine of {os.cpu_count()} processors",
        f"with a load average of {os.getloadavg()[1]:.0f} meanwhile.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        "|---" * len(COLUMNS) + "|",
        *rows,
        "",
        "**Largest size**: of the length, the batch, the length and the resolution, others as in the first",
        "planned shape; it has a plan inside the budget and the next one has none. **Tried**: sizes that",
        "were planned to find it, in wall clock; without the laws by doubling and bisecting. Searches have",
        "0.1 s each, so that the two may differ by a size.",
        "",
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Measure all cases."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--write", action="store_true")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rows = []
    for case in CASES:
        rows.append(row(case))
        print(rows[-1], flush=True)
    if chosen.write:
        write(PAGE, page(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
