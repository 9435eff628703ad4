"""The plan's file: whole, of this version, or one clear line."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import hand_net
from helpers.hand_net import paging_plan
from safetensors import safe_open

from poet.errors import PlanError, ReplayError
from poet.plans.plan_file import PlanFile, read_plan, write_plan
from poet.plans.planned_step import stored_values
from poet.problem.search_record import Advance, Phase, Rejected, SearchRecord
from poet.report.plan import plan_data
from poet.runtime import Trainer


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "net.poet"
    write_plan(path, paging_plan(), hand_net.stored(hand_net.net()), structure=b"\x08\x07structure")
    return path


def test_the_answers_proof_is_kept(path: Path) -> None:
    plan = paging_plan()
    outcome = replace(plan.outcome, proof="Proven in exact arithmetic.")
    write_plan(path, replace(plan, outcome=outcome), hand_net.stored(hand_net.net()))
    read = read_plan(path)
    assert read.outcome == outcome
    said = plan_data(read)
    assert said["proof"] == "Proven in exact arithmetic."


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


@pytest.mark.parametrize("version", ["3", "5"])
def test_another_version_is_told_first_with_the_way_out(path: Path, version: str) -> None:
    def later(metadata: dict[str, str]) -> None:
        metadata.update({"poet.version": version, "poet.plan": "in a form of another time"})

    _rewritten(path, later)
    with pytest.raises(PlanError, match=f"version '{version}'") as error:
        read_plan(path)
    assert "reads version 4; plan again: poet solve MODEL.onnx --device" in str(error.value)
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
