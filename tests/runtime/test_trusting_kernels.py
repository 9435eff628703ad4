"""Each kernel of the allow-list is called wrongly: all is refused, nothing outside of tensors is touched.

The calls of all kernels are made in processes whose tensors lie between pages that nobody may touch.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers import kernel_calls
from helpers.pace import few_or_many
from torch import nn

from poet.errors import PlanError
from poet.frontend.trace import trace_training_step
from poet.ir.graph import Argument, Buffer, Call, Graph, Link, Op, Ref, Role, Strip, TensorType, Value
from poet.ir.operators import ATEN, OWN, RANDOM, WRITES
from poet.runtime import kernels
from poet.runtime.kernels.guards import check_calls
from poet.runtime.kernels.signatures import MADE_BY, NUMBERS, SIGNATURES, looked_at

ALL = sorted({*ATEN, *OWN})
SOME = [
    "aten.nll_loss2d_backward.default", "aten._weight_norm_interface.default", "aten.gelu_backward.default",
    "aten.native_group_norm.default", "poet.relu_backward", "aten.gather.default",
]  # fmt: skip
PURE = sorted(set(SIGNATURES) - set(WRITES) - RANDOM - kernel_calls.WITHOUT_KERNEL)
BAD_ENDS = {"signal", "outside", "hung", "traceback"}


def _counts(tmp_path: Path, way: str, count: int, targets: Sequence[str]) -> Counter[str]:
    """Of all ``targets`` together; nothing ended badly, and each right call is taken."""
    library = kernel_calls.built(tmp_path)
    own = {"LD_PRELOAD": str(library), "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    environment = {**os.environ, **own}
    command = [sys.executable, kernel_calls.__file__, way, str(count), *targets]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))
    assert found.keys() == set(targets)
    bad = {target: counts for target, counts in found.items() if any(_is_bad(end) for end in counts)}
    assert not bad
    total: Counter[str] = Counter()
    for counts in found.values():
        total.update(counts)
    print(f"{len(targets)} kernels, {total.total()} wrong {way}: {dict(total)}")
    return total


def _is_bad(end: str) -> bool:
    return end in BAD_ENDS or end.startswith("right call")


def test_a_right_call_of_every_kernel_is_known() -> None:
    assert sorted(kernel_calls.known()) == ALL
    assert {*SIGNATURES, *MADE_BY, *NUMBERS} <= {*ALL}
    assert {*MADE_BY} <= {*SIGNATURES}


@few_or_many("few", True, False)
def test_wrong_calls_are_refused_and_touch_nothing(few: bool, tmp_path: Path) -> None:
    total = _counts(tmp_path, "calls", 6 if few else 60, SOME if few else ALL)
    assert total["opening"] > 0
    assert total["kernel"] > 0


@pytest.mark.slow
def test_plan_files_with_wrong_calls_are_refused_and_touch_nothing(tmp_path: Path) -> None:
    assert _counts(tmp_path, "plans", 12, PURE)["opening"] > 0


def test_what_a_kernel_trusts_is_made_by_one_operator_alone() -> None:
    for target in MADE_BY:
        with pytest.raises(PlanError, match="without what"):
            check_calls(kernel_calls.graph_of(kernel_calls.known()[target][0]))


def _never(*_: object) -> None:
    """In a kernel's place, which a process that goes on must not give such numbers."""


def test_numbers_are_looked_at_wherever_a_kernel_is_called() -> None:
    for target in NUMBERS:
        found = kernels.kernel(target)
        assert isinstance(found, functools.partial)
        assert found.func is looked_at


@pytest.mark.parametrize("number", [5, -1, 1 << 40])
def test_numbers_out_of_range_are_refused(number: int) -> None:
    gradient, numbers = torch.ones(2, 3), torch.tensor([0, number])
    with pytest.raises(IndexError, match="a number that is not from 0 up to 5"):
        looked_at("aten.embedding_dense_backward.default", _never, gradient, numbers, 5, -1, False)
    classes = (torch.ones(1, 1, 2), torch.rand(1, 5, 1, 2), numbers.view(1, 1, 2), None, 0)
    with pytest.raises(IndexError, match="a number that is not from 0 up to 5"):
        looked_at("aten.nll_loss2d_backward.default", _never, *classes, -100, torch.tensor(1.0))
    looked_at("aten.nll_loss2d_backward.default", _never, *classes, number, torch.tensor(1.0))


@pytest.mark.parametrize("begins", [[1, 2], [0, 4], [0, -1], [0, 3, 2]])
def test_bags_begin_one_after_the_other(begins: list[int]) -> None:
    with pytest.raises(IndexError, match="a number that is not"):
        looked_at(
            "aten._embedding_bag.default", _never, torch.ones(5, 2), *map(torch.tensor, ([0, 4, 1], begins))
        )


def test_a_grid_that_is_reflected_is_finite() -> None:
    grid = torch.zeros(1, 2, 2, 2)
    grid[0, 0, 0, 0] = torch.nan
    given = (
        "aten.grid_sampler_2d_backward.default",
        _never,
        torch.ones(1, 1, 2, 2),
        torch.ones(1, 1, 3, 3),
        grid,
    )
    with pytest.raises(IndexError, match="a number that is not"):
        looked_at(*given, 0, 2, False, [True, True])
    looked_at(*given, 0, 0, False, [True, True])


# --- of a traced net --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def graph() -> Graph:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 5),
    )  # fmt: skip
    return trace_training_step(net.train(), torch.zeros(6, 2, 8, 8), measure=False).graph


def _with_argument(graph: Graph, target: str, place: int, argument: Argument) -> Graph:
    def changed(op: Op) -> Op:
        if op.call.target != target:
            return op
        args = (*op.call.args[:place], argument, *op.call.args[place + 1 :])
        return replace(op, call=replace(op.call, args=args))

    return replace(graph, ops=tuple(changed(op) for op in graph.ops))


def test_what_tracing_makes_passes(graph: Graph) -> None:
    targets = {op.call.target for op in graph.ops}
    assert {target for target, _ in BAD} <= targets
    check_calls(graph)


BAD: dict[tuple[str, str], tuple[int, Argument]] = {
    ("aten.native_batch_norm_backward.default", "no statistics"): (5, None),
    ("aten.native_batch_norm_backward.default", "no mode to match"): (7, False),
    ("aten.native_batch_norm_backward.default", "other channels"): (2, Ref("5.bias")),
    ("aten.native_batch_norm.default", "other channels"): (1, Ref("5.bias")),
    ("aten.max_pool2d_with_indices_backward.default", "other indices"): (7, Ref("5.weight")),
}


@pytest.mark.parametrize(("target", "what"), BAD)
def test_a_call_that_torch_would_not_survive_is_refused(graph: Graph, target: str, what: str) -> None:
    place, argument = BAD[target, what]
    with pytest.raises(PlanError, match=f"calls {target} with"):
        check_calls(_with_argument(graph, target, place, argument))


def test_what_is_written_must_not_overlap_itself(graph: Graph) -> None:
    """Of a stranger's plan: a kernel that asks for no strides would write beyond it."""
    kind = TensorType("float32", (4, 8), (0, 0))
    values = (
        *graph.values,
        Value("wide", "5.bias", kind),
        Value("made", "made", replace(kind, strides=(8, 1))),
    )
    buffers = (*graph.buffers, Buffer("made", 128, Role.ACTIVATION))
    neg = Op("neg", Call("aten.neg.default", (Ref("wide"),)), ("made",))
    strip = Strip(
        (
            Link(Call("aten.neg.default", (Ref("wide"),)), ("r",), ()),
            Link(Call("poet.assign", (Ref("wide"), Ref("r"))), (), ()),
        ),
        (Value("r", "r", kind),), 1, 1,
    )  # fmt: skip
    over = Op("over", strip.call, (), updates=("5.bias",), repeatable=False, strip=strip)
    assign = Call("poet.assign", (Ref("wide"), Ref("made")))
    plain = Op("plain", assign, (), updates=("5.bias",), repeatable=False)
    check_calls(replace(graph, values=values, buffers=buffers, ops=(*graph.ops, neg)))
    for op in (over, plain):
        bad = replace(graph, values=values, buffers=buffers, ops=(*graph.ops, neg, op))
        with pytest.raises(PlanError, match=f"op {op.name} writes wide, .* its elements overlap"):
            check_calls(bad)
