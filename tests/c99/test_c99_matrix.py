"""Nets, kinds of plans, fused or not, optimizers, compilers, levels, watched or not: all have the same bits.

Each two values of different columns occur together in some case (pairwise covering); every case must end in
the bits of the plan of the same net and optimizer that keeps everything, compiled as it is written.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from helpers import sequence_nets
from helpers.c_plans import CNet, traced
from helpers.c_watched import alive_at_rows, can_watch, said_by
from mlperf_tiny import NETS
from torch import Tensor, nn

from poet.c99 import project as projects
from poet.optimizer import OptimizerSpec
from poet.plans.plan_file import PlanFile
from poet.plans.training_plan import Plan


class Case(NamedTuple):
    """One way to plan, write and build a net."""

    net: str
    kind: str
    optimizer: str
    level: str
    compiler: str
    is_fused: bool
    is_watched: bool


SEQUENCES = ("mlp", "tcn", "lstm", "transformer")
KINDS = {
    "keep": {},
    "recompute": {"seed": 3},
    "page": {"seed": 4, "pages": True, "repeats": False},
    "recompute and page": {"seed": 5, "pages": True},
    "moved": {"seed": 6, "pages": True, "moves": True, "moved_share": 0.01},
}
COLUMNS: tuple[Sequence[str | bool], ...] = (
    (*NETS, *SEQUENCES),
    tuple(KINDS),
    ("sgd", "momentum", "adamw"),
    ("-O0", "-O2", "-O3"),
    ("gcc", "clang") if can_watch("clang") else ("gcc",),
    (False, True),
    (False, True),
)


def covering(columns: Sequence[Sequence[str | bool]], seed: int = 0) -> Iterator[Case]:
    """Cases in which every two values of different columns occur together, greedily few."""
    rng = random.Random(seed)
    pairs = {
        ((one, a), (other, b))
        for one, other in combinations(range(len(columns)), 2)
        for a in columns[one]
        for b in columns[other]
    }

    def of(case: Sequence[str | bool]) -> set[tuple[tuple[int, str | bool], tuple[int, str | bool]]]:
        return set(combinations(enumerate(case), 2)) & pairs

    while pairs:
        (one, a), (other, b) = min(pairs, key=str)
        drawn = ([rng.choice(column) for column in columns] for _ in range(200))
        tried = [
            [a if at == one else b if at == other else it for at, it in enumerate(case)] for case in drawn
        ]
        best = max(tried, key=lambda case: len(of(case)))
        pairs -= of(best)
        yield Case(*best)  # type: ignore[arg-type]  # the columns are its fields


CASES = tuple(covering(COLUMNS))
NetOf = Callable[[str, str], CNet]


@pytest.fixture(scope="module")
def net_of() -> NetOf:
    """Nets, each traced once with each optimizer."""

    @cache
    def of(name: str, optimizer: str) -> CNet:
        torch.manual_seed(0)
        spec = OptimizerSpec(optimizer, lr=0.02, weight_decay=0.01)
        module: nn.Module
        inputs: Tensor
        if name in NETS:
            module, inputs = NETS[name].smaller(), torch.randn(NETS[name].smaller_shape)
            return traced(module, inputs, loss=NETS[name].loss, optimizer=spec)
        module, inputs = sequence_nets.NETS[name].build(), torch.randn(sequence_nets.NETS[name].shape)
        return traced(module, inputs, optimizer=spec)

    return of


def _planned(net: CNet, kind: str, folder: Path) -> tuple[projects.CProject, Plan]:
    plan = net.plan(**KINDS[kind])  # type: ignore[arg-type]  # of one kind each
    with PlanFile(net.write(folder.with_suffix(".poet"), plan)) as file:
        project = projects.c_project(file)
    project.write(folder)
    return project, plan


def _said(net: CNet, case: Case, folder: Path) -> list[str]:
    project, plan = _planned(net.fused_everywhere() if case.is_fused else net, case.kind, folder)
    runs = [item.op for item in project.statements.statements]
    assert ("page" in case.kind or case.kind == "moved") == (project.statements.page_bytes > 0)
    assert case.kind != "recompute" or len(runs) > len(set(runs))
    assert (case.kind == "moved") == bool(plan.arena and plan.arena.moves)
    rows = alive_at_rows(plan, project) if case.is_watched else None
    return said_by(folder, project, case.level, compiler=case.compiler, rows=rows)


@pytest.mark.slow
@pytest.mark.parametrize("name", COLUMNS[0])
def test_all_ways_to_plan_and_build_a_net_give_the_same_bits(
    name: str, net_of: NetOf, tmp_path: Path
) -> None:
    found: dict[str, list[str]] = {}
    for number, case in enumerate(item for item in CASES if item.net == name):
        net = net_of(name, case.optimizer)
        if case.optimizer not in found:
            kept = case._replace(kind="keep", level="-O0", compiler="gcc", is_fused=False, is_watched=False)
            found[case.optimizer] = _said(net, kept, tmp_path / case.optimizer)
            assert len(found[case.optimizer]) == 5, "three losses, the state, passed"
        assert _said(net, case, tmp_path / f"c{number}") == found[case.optimizer], case


def test_every_pair_occurs() -> None:
    seen = {pair for case in CASES for pair in combinations(enumerate(case), 2)}
    counts = [len(column) for column in COLUMNS]
    assert len(seen) == sum(one * other for one, other in combinations(counts, 2))
    assert len(CASES) < 60


@pytest.mark.slow
def test_a_tensor_that_the_plan_has_dead_cannot_be_touched(net_of: NetOf, tmp_path: Path) -> None:
    """Of a watched step one block less is alive at one row, and the sanitizer ends the program there."""
    net = net_of("mlp", "sgd")
    project, plan = _planned(net, "recompute", tmp_path / "c")
    rows = alive_at_rows(plan, project)
    assert len(rows) == sum(bool(item.calls) for item in project.statements.statements)
    assert len(said_by(tmp_path / "c", project, "-O0", rows=rows)) == 5
    made = next(row for row in rows if any(block.is_new for block in row))
    made.remove(next(block for block in made if block.is_new))
    with pytest.raises(AssertionError, match="use-after-poison"):
        said_by(tmp_path / "c", project, "-O0", rows=rows)
