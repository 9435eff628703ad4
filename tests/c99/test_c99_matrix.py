"""Nets, kinds of plans, fused or not, optimizers, compilers, levels, watched or not: all have the same bits.

Each two values of different columns occur together in some case (pairwise covering); every case must end in
the bits of the plan of the same net and optimizer that keeps everything, compiled as it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from helpers import sequence_nets
from helpers.c_nets import Text
from helpers.c_plans import CNet, traced
from helpers.c_watched import alive_at_rows, can_watch, said_by
from helpers.pairwise import covering
from mlperf_tiny import NETS
from torch import Tensor, nn

from poet.c99 import project as projects
from poet.ir.optimizer import OptimizerSpec
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


def _decoder() -> nn.Module:
    layers = [nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Mish(), nn.ConvTranspose2d(4, 3, 3, stride=2)]
    return nn.Sequential(*layers, nn.Tanh(), nn.ConvTranspose2d(3, 2, 1), nn.Flatten(), nn.Linear(162, 3))


OTHERS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "text": (Text, lambda: torch.randint(11, (5, 4))),
    "decoder": (_decoder, lambda: torch.randn(2, 2, 6, 6)),
} | {name: (net.build, partial(torch.randn, net.shape)) for name, net in sequence_nets.NETS.items()}
KINDS = {
    "keep": {},
    "recompute": {"seed": 3},
    "page": {"seed": 4, "pages": True, "repeats": False},
    "recompute and page": {"seed": 5, "pages": True},
    "moved": {"seed": 6, "pages": True, "moves": True, "moved_share": 0.01},
}
AXES: dict[str, Sequence[str | bool]] = {
    "net": (*NETS, *OTHERS),
    "kind": tuple(KINDS),
    "optimizer": ("sgd", "momentum", "adamw"),
    "level": ("-O0", "-O2", "-O3"),
    "compiler": ("gcc", "clang") if can_watch("clang") else ("gcc",),
    "is_fused": (False, True),
    "is_watched": (False, True),
}
CASES = [Case(**case) for case in covering(AXES)]
NetOf = Callable[[str, str], CNet]


@pytest.fixture(scope="module")
def net_of() -> NetOf:
    """Nets, each traced once with each optimizer."""

    @cache
    def of(name: str, optimizer: str) -> CNet:
        torch.manual_seed(0)
        spec = OptimizerSpec(optimizer, lr=0.02, weight_decay=0.01)
        if name in NETS:
            module, inputs = NETS[name].smaller(), torch.randn(NETS[name].smaller_shape)
            return traced(module, inputs, loss=NETS[name].loss, optimizer=spec)
        build, given = OTHERS[name]
        return traced(build(), given(), optimizer=spec)

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
@pytest.mark.parametrize("name", AXES["net"])
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
    counts = [len(values) for values in AXES.values()]
    assert len(seen) == sum(one * other for one, other in combinations(counts, 2))
    assert len(CASES) < 100


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
