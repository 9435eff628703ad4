"""The plan: its record, equal after a round trip, and consistent or not made."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path

import pytest
from helpers import hand_net
from helpers.hand_net import paging_plan
from helpers.schedules import keep_everything

from poet.errors import PlanError
from poet.ir.graph import Graph
from poet.ir.kernel_facts import KernelFacts, OpFacts
from poet.memory.layout import lay_out
from poet.plans.page_slots import SLOT_ALIGNMENT_BYTES, least_page_buffer_bytes
from poet.plans.plan_parts import (
    Arena,
    Device,
    MeasuredShare,
    Model,
    PageSlot,
    Prediction,
    PriceRange,
    Request,
    SearchOutcome,
)
from poet.plans.training_plan import Plan
from poet.problem import Limits, Pins, Place
from poet.problem.schedule import Compute
from poet.problem.search_record import Advance, Phase, Rejected, SearchRecord


def test_json_round_trip() -> None:
    plan = paging_plan()
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


@pytest.mark.parametrize(
    "record", [Plan, Model, Request, Limits, Pins, Device, SearchOutcome, SearchRecord, Phase,
               Advance, Rejected, Prediction, PriceRange, PageSlot, Arena,
               Graph, KernelFacts, OpFacts],
)  # fmt: skip
def test_the_format_page_names_every_field(record: type) -> None:
    page = (Path(__file__).parents[2] / "docs" / "file-formats.md").read_text()
    words = set(re.findall(r"\w+", page.partition("# The saved state")[0]))
    stored = {item.name for item in fields(record) if item.init}
    assert stored - words == set()


def test_slots_are_aligned_apart_and_hold_what_is_paged() -> None:
    plan = paging_plan()
    places = sorted((slot.offset_bytes, slot.offset_bytes + slot.size_bytes) for slot in plan.slots)
    assert all(start % SLOT_ALIGNMENT_BYTES == 0 for start, _ in places)
    assert all(end <= start for (_, end), (start, _) in pairwise(places))
    assert plan.trace.written_bytes > 0


@pytest.mark.parametrize(
    ("spare_bytes", "buffer_bytes"), [(0, 0), (131_071, 0), (140_000, 69_632), (1 << 30, 1 << 20)]
)
def test_the_page_buffer_takes_only_what_the_schedule_leaves(spare_bytes: int, buffer_bytes: int) -> None:
    plan = paging_plan()
    limits = Limits(ram_budget_bytes=plan.trace.peak_ram_bytes + spare_bytes)
    assert replace(plan, request=replace(plan.request, limits=limits)).page_buffer_bytes == buffer_bytes


def test_a_plan_without_paging_needs_no_page_buffer() -> None:
    what = hand_net.graph()
    of = hand_net.problem(what)
    assert hand_net.plan(of, what, keep_everything(of)).page_buffer_bytes == 0


def with_arena(plan: Plan) -> Plan:
    layout = lay_out(plan.demand.blocks)
    return replace(plan, arena=Arena(layout.arena_bytes, layout.offsets_bytes))


def test_with_a_layout_the_page_buffer_takes_what_the_arena_leaves() -> None:
    plan = with_arena(paging_plan())
    assert plan.layout is not None
    assert plan.layout.efficiency > 0.9
    assert plan.held_bytes == max(plan.layout.arena_bytes, plan.trace.peak_ram_bytes)
    for spare_bytes, buffer_bytes in ((0, 0), (65_536, 65_536), (140_000, 139_264), (1 << 30, 1 << 20)):
        limits = Limits(ram_budget_bytes=plan.held_bytes + spare_bytes)
        assert replace(plan, request=replace(plan.request, limits=limits)).page_buffer_bytes == buffer_bytes
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


def test_little_budgets_leave_nothing_for_a_page_buffer() -> None:
    assert least_page_buffer_bytes(1 << 20) == 0
    assert least_page_buffer_bytes(64 << 20) == 64 << 10


def test_an_arena_over_the_budget_is_known_not_to_fit() -> None:
    plan = with_arena(paging_plan())
    arena = Arena((1 << 20) + plan.held_bytes, plan.arena.offsets_bytes if plan.arena else ())
    limits = Limits(ram_budget_bytes=plan.held_bytes)
    plan = replace(plan, arena=arena, request=replace(plan.request, limits=limits))
    assert not plan.has_fitting_arena
    assert plan.held_bytes == plan.trace.peak_ram_bytes


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda arena: Arena(arena.size_bytes, arena.offsets_bytes[1:]), "places"),
        (lambda arena: Arena(1 << 60, arena.offsets_bytes), "places"),
        (lambda arena: Arena(64, arena.offsets_bytes), "leaves the arena"),
        (lambda arena: Arena(1 << 40, (1 << 60, *arena.offsets_bytes[1:])), "leaves the arena"),
        (lambda arena: Arena(arena.size_bytes, (-64, *arena.offsets_bytes[1:])), "leaves the arena"),
        (lambda arena: Arena(arena.size_bytes, (0,) * len(arena.offsets_bytes)), "overlaps"),
        (lambda arena: Arena(2 * arena.size_bytes, (1, *arena.offsets_bytes[1:])), "multiple of 64"),
    ],
)
def test_a_strangers_layout_is_judged(change: Callable[[Arena], Arena], complaint: str) -> None:
    plan = with_arena(paging_plan())
    assert plan.arena is not None
    data = json.loads(json.dumps(plan.to_json()))
    bad = change(plan.arena)
    data["arena"] = {"size_bytes": bad.size_bytes, "offsets_bytes": list(bad.offsets_bytes)}
    with pytest.raises(PlanError, match=complaint):
        Plan.from_json(data)


def _another_size(plan: Plan) -> Plan:
    first, *others = plan.problem.tensors
    return replace(plan, problem=replace(plan.problem, tensors=(replace(first, bytes=4), *others)))


def _forgotten_update(plan: Plan) -> Plan:
    ops = tuple(replace(op, updates=()) for op in plan.problem.ops)
    return replace(plan, problem=replace(plan.problem, ops=ops))


def _unread_input(plan: Plan) -> Plan:
    first, *others = plan.problem.ops
    return replace(plan, problem=replace(plan.problem, ops=(replace(first, inputs=()), *others)))


def _lost_parameter(plan: Plan) -> Plan:
    tensors = tuple(
        replace(tensor, finally_=None) if tensor.name == "b_first.weight" else tensor
        for tensor in plan.problem.tensors
    )
    return replace(plan, problem=replace(plan.problem, tensors=tensors))


def _stale_copy(plan: Plan) -> Plan:
    tensors = tuple(
        replace(tensor, initially=Place.BOTH) if tensor.name == "b_first.weight" else tensor
        for tensor in plan.problem.tensors
    )
    return replace(plan, problem=replace(plan.problem, tensors=tensors))


def _lost_loss(plan: Plan) -> Plan:
    tensors = tuple(
        replace(tensor, finally_=None) if tensor.name == "b_loss" else tensor
        for tensor in plan.problem.tensors
    )
    return replace(plan, problem=replace(plan.problem, tensors=tensors))


def _moved_slots(plan: Plan) -> Plan:
    return replace(plan, slots=tuple(replace(slot, offset_bytes=0) for slot in plan.slots))


def _huge_slot(plan: Plan) -> Plan:
    first, *others = plan.slots
    return replace(plan, slots=(PageSlot(first.tensor, 0, 1 << 60), *others))


def _far_slot(plan: Plan) -> Plan:
    first, *others = plan.slots
    return replace(plan, slots=(replace(first, offset_bytes=1 << 60), *others))


def _with_range(plan: Plan, good: float, bad: float = 2.0) -> Plan:
    """The plan with a range from ``good`` to ``bad`` times what is stated."""
    seconds, joules = plan.prediction.seconds, plan.prediction.joules
    ends = PriceRange(good * seconds, bad * seconds, good * joules, bad * joules)
    return replace(plan, prediction=replace(plan.prediction, range=ends))


def _with_measured(plan: Plan, more: int, share: float = 0.5, *, name: str | None = None) -> Plan:
    """The plan with one extrapolated op, and ``more`` measured ones than there are others."""
    ops = plan.graph.ops
    found = MeasuredShare(len(ops) - 1 + more, share, (ops[0].name if name is None else name,))
    return replace(plan, prediction=replace(plan.prediction, measured=found))


CONTRADICTIONS: dict[str, tuple[Callable[[Plan], Plan], str]] = {
    "another size": (_another_size, "not the graph's buffers"),
    "forgotten update": (_forgotten_update, "contradicts the graph"),
    "unread input": (_unread_input, "contradicts the graph"),
    "other ops": (
        lambda plan: replace(plan, problem=replace(plan.problem, ops=plan.problem.ops[:-1])),
        "not the graph's ops",
    ),
    "lost parameter": (_lost_parameter, "does not end where it begins"),
    "stale copy": (_stale_copy, "does not end where it begins"),
    "lost loss": (_lost_loss, "handed to the caller"),
    "missing step": (lambda plan: replace(plan, schedule=plan.schedule[:-1]), "rule"),
    "unknown op": (lambda plan: replace(plan, schedule=(Compute("nothing"),)), "rule 'unknown'"),
    "over budget": (
        lambda plan: replace(plan, request=replace(plan.request, limits=Limits(ram_budget_bytes=9))),
        "rule 'ram'",
    ),
    "other peak": (
        lambda plan: replace(plan, prediction=replace(plan.prediction, peak_ram_bytes=1)),
        "predictions",
    ),
    "other joules": (
        lambda plan: replace(plan, prediction=replace(plan.prediction, joules=1e3)),
        "predictions",
    ),
    "range elsewhere": (lambda plan: _with_range(plan, 1.01), "does not contain"),
    "endless range": (lambda plan: _with_range(plan, 0.5, float("inf")), "does not contain"),
    "more measured": (lambda plan: _with_measured(plan, 1), "measured ops is not of its graph"),
    "fewer measured": (lambda plan: _with_measured(plan, -100), "measured ops is not of its graph"),
    "share above all": (lambda plan: _with_measured(plan, 0, 1.5), "measured ops is not of its graph"),
    "share below none": (lambda plan: _with_measured(plan, 0, -0.5), "measured ops is not of its graph"),
    "strange extrapolated": (
        lambda plan: _with_measured(plan, 0, name="\x1b[31m"),
        "measured ops is not of its graph",
    ),
    "overlapping slots": (_moved_slots, "is at 0, not at"),
    "huge slot": (_huge_slot, "not of its size"),
    "far slot": (_far_slot, "is at [0-9]+, not at|not at 0"),
    "no slots": (lambda plan: replace(plan, slots=()), "differ"),
    "two slots": (lambda plan: replace(plan, slots=plan.slots * 2), "two page slots"),
    "unproven": (lambda plan: replace(plan, outcome=replace(plan.outcome, status="timeout")), "optimal"),
    "strange model": (lambda plan: replace(plan, model=replace(plan.model, kind="pickle")), "kind"),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_contradiction_is_no_plan(name: str) -> None:
    change, message = CONTRADICTIONS[name]
    with pytest.raises(PlanError, match=message):
        change(paging_plan())


def test_a_range_is_read_back(tmp_path: Path) -> None:
    ranged = _with_range(paging_plan(), 0.5)
    assert Plan.from_json(ranged.to_json()) == ranged
    assert paging_plan().prediction.range is None
    assert "range" not in paging_plan().to_json()["prediction"]
