"""What a schedule asks for: tensors over their residencies, workspaces, second copies, allocations."""

from __future__ import annotations

import dataclasses

import pytest
from helpers import hand_net

from poet.errors import KernelFactsError
from poet.ir.kernel_facts import KernelAllocation, KernelFacts, OpFacts, peak_bytes
from poet.memory.demand import BEFORE, demand_of
from poet.memory.layout import check_layout, lay_out
from poet.problem import Place, Problem, ProblemOp, Tensor, Transfer
from poet.problem.schedule import Compute, Free, PageIn, PageOut
from poet.problem.simulator import simulate


def _paged_parameter() -> Problem:
    cost = Transfer(1e-3, 1e-3)
    return Problem(
        name="paged-parameter",
        tensors=(
            Tensor("p", 100, cost, cost, initially=Place.RAM, finally_=Place.RAM),
            Tensor("a", 300, cost, cost),
            Tensor("b", 200, cost, cost),
        ),
        ops=(
            ProblemOp("first", ("p",), ("a",), 1.0, 1.0, workspace_bytes=70),
            ProblemOp("second", ("a",), ("b",), 1.0, 1.0),
            ProblemOp("update", ("p", "b"), (), 1.0, 1.0, updates=("p",)),
        ),
        alignment_bytes=64,
    )


def test_a_parameter_that_leaves_and_returns_comes_back_to_its_place() -> None:
    problem = _paged_parameter()
    schedule = (
        Compute("first"), PageOut("p"), Free("p"), Compute("second"), Free("a"),
        PageIn("p"), Compute("update"), Free("b"),
    )  # fmt: skip
    trace = simulate(problem, schedule)
    blocks = demand_of(problem, schedule).blocks
    tied = [block for block in blocks if block.tensor == "p"]
    assert [block.spans for block in tied] == [((0, 3), (6, 9))]
    layout = lay_out(blocks)
    check_layout(layout)
    assert layout.lower_bound_bytes == trace.peak_ram_bytes


def test_a_second_copy_and_a_workspace_are_blocks_of_one_step() -> None:
    problem = _paged_parameter()
    schedule = (Compute("first"), Compute("first"), Compute("second"), Free("a"), Compute("update"))
    blocks = demand_of(problem, schedule).blocks
    transient = [(block.owner, block.size_bytes, block.spans) for block in blocks if block.tensor is None]
    assert transient == [("first", 128, ((1, 1),)), ("first", 128, ((2, 2),)), ("a", 320, ((2, 2),))]
    assert lay_out(blocks).lower_bound_bytes == simulate(problem, schedule).peak_ram_bytes


def test_requests_come_in_order_and_name_their_blocks() -> None:
    problem = _paged_parameter()
    schedule = (
        Compute("first"), PageOut("p"), Free("p"), Compute("second"), Free("a"),
        PageIn("p"), Compute("update"), Free("b"),
    )  # fmt: skip
    demand = demand_of(problem, schedule)
    asked = [(item.step, item.size_bytes, demand.blocks[item.block].tensor) for item in demand.requests]
    assert asked == [(BEFORE, 100, "p"), (0, 300, "a"), (3, 200, "b"), (5, 100, "p")]
    assert demand.standing == ()
    kept = demand_of(problem, (Compute("first"), Compute("second"), Compute("update")))
    assert [kept.blocks[number].owner for number in kept.standing] == ["p"]


def _making_a(*allocations: KernelAllocation) -> KernelFacts:
    """Kernels whose ``allocations`` are known of the op that makes ``a``, of 2048 bytes, in the hand net."""
    workspace_bytes = max(0, peak_bytes(allocations, alignment_bytes=64) - 2048)
    op = OpFacts("op_a", workspace_bytes, allocations=allocations)
    return KernelFacts("somebody's", (op,), alignment_bytes=64)


def test_a_temporary_may_lie_where_the_output_will() -> None:
    """2,000 bytes that are gone before the output of 2,048 is asked for, then 100 beside it."""
    runs = KernelAllocation(2000, 0, 1), KernelAllocation(2048, 2, None, 0), KernelAllocation(100, 3, 4)
    kernels = _making_a(*runs)
    problem = dataclasses.replace(hand_net.problem(hand_net.graph(), kernels=kernels), alignment_bytes=64)
    schedule = tuple(Compute(op.name) for op in problem.ops)
    demand = demand_of(problem, schedule, kernels)
    early, output, late = (demand.blocks[item.block] for item in demand.requests if item.step == 0)
    assert (early.owner, output.owner, late.owner) == ("op_a", "b_a", "op_a")
    assert early.spans[0][1] < output.spans[0][0] < late.spans[0][0] < output.spans[0][1]
    layout = lay_out(demand.blocks)
    check_layout(layout)
    assert layout.arena_bytes == layout.lower_bound_bytes == simulate(problem, schedule).peak_ram_bytes


@pytest.mark.parametrize("allocation", [KernelAllocation(64, 0, None, 0), KernelAllocation(2048, 0, None, 1)])
def test_allocations_that_are_not_the_outputs_are_not_believed(allocation: KernelAllocation) -> None:
    demand = demand_of(hand_net.problem(hand_net.graph()), (Compute("op_a"),), _making_a(allocation))
    assert [item.size_bytes for item in demand.requests if item.step == 0] == [2048]


def test_a_recomputation_has_allocations_of_its_own() -> None:
    """The first run has a temporary of 128 bytes, later ones one of 64, or the same if nothing is said."""
    output = KernelAllocation(2048, 1, None, 0)
    first, again = ((KernelAllocation(size_bytes, 0, 2), output) for size_bytes in (128, 64))
    schedule = (Compute("op_a"), Free("b_a"), Compute("op_a"), Free("b_a"), Compute("op_a"))
    problem = hand_net.problem(hand_net.graph())
    for repeat, expected in ((again, [128, 64, 64]), (None, [128, 128, 128])):
        kernels = KernelFacts("somebody's", (OpFacts("op_a", 128, None, first, repeat),))
        demand = demand_of(problem, schedule, kernels)
        temporaries = [demand.blocks[item.block] for item in demand.requests if item.size_bytes != 2048]
        assert [block.size_bytes for block in temporaries if block.owner == "op_a"] == expected


@pytest.mark.parametrize(
    "piece", [(0, 0, -1, -1), (8, -1, -1, -1), (8, 3, 3, -1), (8, 0, 1, 0), (8, 0, 1 << 40, -1), (8, 0, 1)]
)
def test_an_allocation_that_cannot_be(piece: tuple[int, ...]) -> None:
    with pytest.raises(KernelFactsError):
        KernelAllocation.from_data(list(piece), "here")
    good = KernelAllocation(8, 1, 2)
    assert KernelAllocation.from_data(good.to_data(), "here") == good


def test_crowding_is_of_what_is_there_at_each_birth() -> None:
    """Parameter, result and workspace of the first op: 1 alone, 3 with both; later 2, and 1 to bring back."""
    problem = _paged_parameter()
    schedule = (Compute("first"), Compute("second"), Free("a"), Compute("update"), Free("b"))
    demand = demand_of(problem, schedule)
    spans = [
        span
        for number, block in enumerate(demand.blocks)
        for span in block.spans
        if number not in demand.standing
    ]
    assert demand.standing
    expected = sum(sum(first <= born <= last for first, last in spans) ** 2 for born, _ in spans)
    assert demand.crowding() == expected > 0
    assert dataclasses.replace(demand, blocks=(), standing=()).crowding() == 0
