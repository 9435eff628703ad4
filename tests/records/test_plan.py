"""The plan: consistent or not made; its file: whole, of this version, or one clear line."""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Callable
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import hand_net
from helpers.schedules import keep_everything, random_schedule
from safetensors import safe_open

from poet.errors import PlanError, ReplayError
from poet.graph import Graph
from poet.kernel_facts import KernelFacts, OpFacts
from poet.memory.layout import lay_out
from poet.plans.lasting_values import stored_values
from poet.plans.page_slots import SLOT_ALIGNMENT_BYTES, least_page_buffer_bytes
from poet.plans.plan_file import PlanFile, read_plan, write_plan
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
from poet.report.data import plan_data
from poet.runtime import Trainer
from poet.schedule import Compute
from poet.search_record import Advance, Phase, Rejected, SearchRecord
from poet.solution import ClassBound


def paging_plan(seed: int = 3) -> Plan:
    what = hand_net.graph()
    of = hand_net.problem(what)
    return hand_net.plan(of, what, random_schedule(of, seed))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "net.poet"
    write_plan(path, paging_plan(), hand_net.stored(hand_net.net()), structure=b"\x08\x07structure")
    return path


# --- the record -------------------------------------------------------------------------------


def test_json_round_trip() -> None:
    plan = paging_plan()
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


def test_the_answers_proof_and_the_bound_of_its_class_are_kept(path: Path) -> None:
    plan = paging_plan()
    outcome = replace(plan.outcome, proof="Proven in exact arithmetic.", class_bound=ClassBound(0.5, 12))
    write_plan(path, replace(plan, outcome=outcome), hand_net.stored(hand_net.net()))
    read = read_plan(path)
    assert read.outcome == outcome
    said = plan_data(read)
    assert said["proof"] == "Proven in exact arithmetic."
    assert said["class_bound_joules"] == 0.5
    assert said["class_bound_scope"] == "plans that recompute only at the 12 moments searched"
    assert said["class_overhead_gap"] is not None


def test_the_record_of_the_search_is_kept(path: Path) -> None:
    plan = paging_plan()
    record = SearchRecord(
        (Phase("greedy plans", 0.0, 0.5, 1),),
        (Advance(0.25, 1.5, "greedy"),),
        (Advance(0.0, 1.0, "running every op once"), Advance(0.375, 1.25, "an engine")),
        (Rejected("memory", 3, 1),),
    )
    write_plan(
        path, replace(plan, outcome=replace(plan.outcome, record=record)), hand_net.stored(hand_net.net())
    )
    read = read_plan(path)
    assert read.outcome.record == record
    assert plan_data(read)["record"] == {
        "phases": [{"name": "greedy plans", "begin_seconds": 0.0, "end_seconds": 0.5, "plans": 1}],
        "plans": [{"seconds": 0.25, "amount": 1.5, "by": "greedy"}],
        "bounds": [
            {"seconds": 0.0, "amount": 1.0, "by": "running every op once"},
            {"seconds": 0.375, "amount": 1.25, "by": "an engine"},
        ],
        "rejected": [{"rule": "memory", "schedules": 3, "faults": 1}],
    }


@pytest.mark.parametrize(
    "record", [Plan, Model, Request, Limits, Pins, Device, SearchOutcome, ClassBound, SearchRecord, Phase,
               Advance, Rejected, Prediction, PriceRange, PageSlot, Arena,
               Graph, KernelFacts, OpFacts],
)  # fmt: skip
def test_the_format_page_names_every_field(record: type) -> None:
    page = (Path(__file__).parents[2] / "docs" / "plan-format.md").read_text()
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
    "unknown op": (
        lambda plan: replace(plan, schedule=(Compute("nothing"),)),
        "rule 'unknown'",
    ),
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


def test_measured_ops_are_read_back() -> None:
    plan = _with_measured(paging_plan(), 0)
    assert Plan.from_json(plan.to_json()) == plan


# --- the file ---------------------------------------------------------------------------------


def test_file_round_trip(path: Path) -> None:
    net = hand_net.net()
    with PlanFile(path) as file:
        assert file.plan == paging_plan()
        assert file.structure() == b"\x08\x07structure"
        assert file.entries.keys() == stored_values(file.plan.graph).keys()
        for name, parameter in net.named_parameters():
            target = torch.empty_like(parameter)
            file.read_into(name, target.view(torch.uint8).numpy().data.cast("B"))
            assert torch.equal(target, parameter)


def test_the_safetensors_library_reads_the_file(path: Path) -> None:
    with safe_open(path, framework="pt") as file:
        assert file.metadata()["poet.format"] == "poet-plan"
        assert torch.equal(file.get_tensor("first.weight"), hand_net.net().first.weight)


def test_writing_replaces_the_file_and_leaves_nothing_else(path: Path) -> None:
    before = path.read_bytes()
    write_plan(path, paging_plan(), hand_net.stored(hand_net.net(1)), structure=b"\x08\x07structure")
    assert path.read_bytes() != before
    assert list(path.parent.iterdir()) == [path]


def test_a_failed_write_keeps_the_old_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    before = path.read_bytes()
    monkeypatch.setattr("poet.files.tensorfile.os.fsync", full)
    with pytest.raises(Exception, match=r"net\.poet: cannot be written \(No space left on device\)"):
        write_plan(path, paging_plan(), hand_net.stored(hand_net.net(1)))
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_weights_must_be_those_of_the_plan(tmp_path: Path) -> None:
    weights = hand_net.stored(hand_net.net())
    with pytest.raises(PlanError, match=r"content of first\.bias is missing"):
        write_plan(tmp_path / "a", paging_plan(), {k: v for k, v in weights.items() if k != "first.bias"})
    with pytest.raises(PlanError, match="'other' is no value"):
        write_plan(tmp_path / "a", paging_plan(), weights | {"other": weights["first.bias"]})
    with pytest.raises(PlanError, match=r"stored as float32\[64\]"):
        write_plan(tmp_path / "a", paging_plan(), weights | {"first.weight": weights["first.bias"]})
    assert not list(tmp_path.iterdir())


def _one_line(error: pytest.ExceptionInfo[PlanError]) -> str:
    line = str(error.value)
    assert "\n" not in line
    assert len(line) < 250
    return line


@pytest.mark.parametrize("part", ["header length", "header", "weights", "last byte"])
def test_a_truncated_file(path: Path, part: str) -> None:
    content = path.read_bytes()
    header_bytes = int.from_bytes(content[:8], "little")
    end = {"header length": 5, "header": 100, "weights": header_bytes + 100, "last byte": len(content) - 1}
    path.write_bytes(content[: end[part]])
    with pytest.raises(PlanError) as error:
        read_plan(path)
    _one_line(error)


def test_any_flipped_bit_is_noticed(path: Path) -> None:
    content = path.read_bytes()
    rng = random.Random(0)
    header_bytes = 8 + int.from_bytes(content[:8], "little")
    places = [*range(64), *(rng.randrange(header_bytes * 8) for _ in range(150))]
    places += [rng.randrange(header_bytes * 8, len(content) * 8) for _ in range(40)]
    for place in places:
        damaged = bytearray(content)
        damaged[place // 8] ^= 1 << place % 8
        path.write_bytes(damaged)
        with pytest.raises(PlanError) as error:
            read_plan(path)
        _one_line(error)


def _rewritten(path: Path, change: Callable[[dict[str, str]], None]) -> None:
    """The file with other metadata."""
    content = path.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    change(header["__metadata__"])
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[end:])


def _with_plan(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """The file with another plan and a digest that fits it, as an attacker would make it."""

    def edit(metadata: dict[str, str]) -> None:
        data = json.loads(metadata["poet.plan"])
        change(data)
        metadata["poet.plan"] = json.dumps(data)
        metadata["poet.plan.sha256"] = hashlib.sha256(metadata["poet.plan"].encode()).hexdigest()

    _rewritten(path, edit)


@pytest.mark.parametrize("version", ["2", "4"])
def test_another_version_is_told_first_with_the_way_out(path: Path, version: str) -> None:
    def later(metadata: dict[str, str]) -> None:
        metadata.update({"poet.version": version, "poet.plan": "in a form of another time"})

    _rewritten(path, later)
    with pytest.raises(PlanError, match=f"version '{version}'") as error:
        read_plan(path)
    assert "reads version 3; plan again: poet solve MODEL.onnx --device" in str(error.value)
    _one_line(error)


def test_something_else_than_a_plan(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\x08\x07\x12\x07pytorch" * 9)
    with pytest.raises(PlanError, match=r"model\.onnx: this is an ONNX model, not a plan; ") as error:
        read_plan(path)
    _one_line(error)
    with pytest.raises(PlanError, match="cannot be opened"):
        read_plan(tmp_path / "nothing.poet")


def test_an_unknown_field_is_named(path: Path) -> None:
    _with_plan(path, lambda data: data["request"].update(los="mse"))
    with pytest.raises(
        PlanError, match=r"net\.poet\.request: 'los' is not a field here; did you mean 'loss'"
    ):
        read_plan(path)


def _target(data: dict[str, Any], target: str) -> None:
    data["graph"]["ops"][0]["call"]["target"] = target


@pytest.mark.parametrize("target", ["aten.from_file.default", "os.system", "poet.nothing", "aten.relu", ""])
def test_an_operator_outside_the_table_is_never_run(path: Path, target: str) -> None:
    _with_plan(path, lambda data: _target(data, target))
    with pytest.raises(PlanError, match="operator") as error:
        Trainer.open(path)
    _one_line(error)
    assert list(path.parent.iterdir()) == [path]


def test_a_view_outside_its_buffer(path: Path) -> None:
    _with_plan(path, lambda data: data["graph"]["values"][0]["type"].update(offset=1 << 40))
    with pytest.raises(PlanError, match="reaches byte"):
        read_plan(path)


def test_hostile_sizes(path: Path) -> None:
    def huge(data: dict[str, Any]) -> None:
        data["graph"]["buffers"][0]["size_bytes"] = 1 << 62
        data["problem"]["tensors"][0]["bytes"] = 1 << 62
        data["request"]["limits"] = {}

    _with_plan(path, huge)
    with pytest.raises(PlanError, match="larger than") as error:
        read_plan(path)
    _one_line(error)


def test_hostile_numbers(path: Path) -> None:
    def empty_but_endless(data: dict[str, Any]) -> None:
        data["graph"]["values"][0]["type"].update(shape=[0, 1 << 60], strides=[1, 1])

    _with_plan(path, empty_but_endless)
    with pytest.raises(PlanError, match="value x has a size, stride or offset above"):
        read_plan(path)


def _last_argument(data: dict[str, Any], op_name: str, argument: object) -> None:
    op = next(op for op in data["graph"]["ops"] if op["name"] == op_name)
    op["call"]["args"][-1] = argument


def test_an_unknown_hyperparameter(path: Path) -> None:
    _with_plan(
        path, lambda data: _last_argument(data, "update_first.bias", {"hyperparameter": "temperature"})
    )
    with pytest.raises(PlanError, match="optimizer sgd has no hyperparameter 'temperature'"):
        Trainer.open(path)


@pytest.mark.parametrize("argument", [1 << 62, "text", None, [[1]], {"dtype": "float32"}])
def test_an_argument_that_an_operator_refuses_is_one_line(path: Path, argument: object) -> None:
    _with_plan(path, lambda data: _last_argument(data, "op_loss", argument))
    with (
        Trainer.open(path) as trainer,
        pytest.raises(ReplayError, match="failed at running op_loss") as error,
    ):
        trainer.step(*hand_net.batch(0))
    assert "\n" not in str(error.value)


def test_nesting_without_end(path: Path) -> None:
    def nest(metadata: dict[str, str]) -> None:
        metadata["poet.plan"] = "[" * 200_000
        metadata["poet.plan.sha256"] = hashlib.sha256(metadata["poet.plan"].encode()).hexdigest()

    _rewritten(path, nest)
    with pytest.raises(PlanError, match="its plan is damaged"):
        read_plan(path)
