"""The problem file: round trips, and one clear line for whatever is wrong in it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.random_problems import mixed_problem

from poet.errors import ProblemError
from poet.problem import Place, Problem, ProblemOp, Tensor, Transfer

INSTANCES = sorted((Path(__file__).parents[1] / "instances").glob("*.json"))

EXAMPLE: dict[str, Any] = {
    "format": "poet-problem", "version": 1, "name": "two", "source": "by hand",
    "tensors": [
        {"name": "x", "bytes": 5, "page_in": {"seconds": 1e-3, "joules": 3e-4}, "initially": "storage"},
        {"name": "a", "bytes": 4096, "page_in": {"seconds": 1, "joules": 2},
         "page_out": {"seconds": 3, "joules": 4}, "finally": "ram", "role": "activation",
         "stored_bytes": 8192},
        {"name": "b", "bytes": 0},
    ],
    "ops": [
        {"name": "A", "inputs": ["x"], "outputs": ["a"], "seconds": 0.01, "joules": 0.02},
        {"name": "B", "inputs": ["x", "a"], "outputs": ["b"], "seconds": 0.5, "joules": 1,
         "workspace_bytes": 7, "updates": ["x"], "recompute_inputs": ["a"], "random": True},
    ],
    "alignment_bytes": 4, "idle_watts": 2,
}  # fmt: skip


def test_reads_every_field() -> None:
    of = Problem.from_json(EXAMPLE)
    assert of.tensors[0] == Tensor("x", 5, Transfer(1e-3, 3e-4), initially=Place.STORAGE)
    assert of.tensors[1].finally_ is Place.RAM
    assert of.tensors[1].stored_bytes == 8192
    assert [tensor.storage_bytes for tensor in of.tensors[:2]] == [of.tensors[0].bytes, 8192]
    assert of.ops[0] == ProblemOp("A", ("x",), ("a",), 0.01, 0.02)
    assert of.ops[0].rerun_inputs == ("x",)
    assert of.ops[1].rerun_inputs == ("a",)
    assert (of.aligned_bytes(5), of.aligned_bytes(8), of.aligned_bytes(0)) == (8, 8, 0)
    assert of.compute_seconds == pytest.approx(0.51)
    assert of.compute_joules == pytest.approx(1.02 + 2 * 0.51)
    assert of.storage_capacity_bytes is None


def test_a_rerun_does_not_need_what_the_first_run_updates() -> None:
    op = ProblemOp("N", ("x", "mean"), ("y",), 1.0, 1.0, updates=("mean",))
    assert op.rerun_inputs == ("x",)


def test_round_trip_of_random_problems() -> None:
    for seed in range(200):
        of = mixed_problem(seed)
        assert Problem.from_json(json.loads(json.dumps(of.to_json()))) == of


@pytest.mark.parametrize("path", INSTANCES, ids=lambda path: path.stem)
def test_loads_the_published_instances(path: Path) -> None:
    of = Problem.load(path)
    assert Problem.from_json(json.loads(json.dumps(of.to_json()))) == of


def edit(path: str, value: object) -> Callable[[dict[str, Any]], None]:
    def change(data: dict[str, Any]) -> None:
        *parents, last = (int(key) if key.isdigit() else key for key in path.split("."))
        place: Any = data
        for key in parents:
            place = place[key]
        if value is ...:
            del place[last]
        else:
            place[last] = value

    return change


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("format", "poem", "not a poet-problem file"),
        ("version", 8, "version 8, this poet reads 1 to 7"),
        ("version", ..., "version None, this poet reads 1"),
        ("colour", "red", "'colour' is not a field here"),
        ("idle_wats", 1, "did you mean 'idle_watts'?"),
        ("name", ..., "'name' is missing"),
        ("name", 3, r"problem\.name: expected a string, found 3"),
        ("idle_watts", -1, "a cost is a finite number from 0 up"),
        ("idle_watts", "1", r"problem\.idle_watts: expected a finite number, found '1'"),
        ("alignment_bytes", 0, "alignment_bytes is less than 1"),
        ("tensors", {}, r"problem\.tensors: expected a list"),
        ("tensors.0.bytes", -1, r"tensor x: a negative size"),
        ("tensors.0.bytes", 1.5, r"tensors\[0\]\.bytes: expected a whole number, found 1\.5"),
        ("tensors.0.bytes", True, r"tensors\[0\]\.bytes: expected a whole number, found True"),
        ("tensors.0.name", "a", "two tensors have the same name"),
        ("tensors.0.page_in", ..., "begins in storage but has no page_in"),
        ("tensors.0.page_in.seconds", float("nan"), "expected a finite number"),
        ("tensors.0.page_in.joules", -1e-9, "a cost is a finite number"),
        ("tensors.0.initially", "disk", "expected one of 'ram', 'storage', 'both'"),
        ("tensors.1.initially", "ram", "tensor a is produced by an op and 'initially' somewhere"),
        ("tensors.1.finally", "both", "tensor a: 'finally' is ram or storage"),
        ("tensors.2.finally", "storage", "must end in storage but has no page_out"),
        ("tensors.1.finally_", "ram", "'finally_' is not a field"),
        ("ops.1.name", "A", "two ops have the same name"),
        ("ops.0.inputs", ["b"], "op A reads b before an op produces it"),
        ("ops.0.inputs", ["y"], "op A: there is no tensor 'y'"),
        ("ops.0.inputs", "x", r"ops\[0\]\.inputs: expected a list"),
        ("ops.1.outputs", ["a"], "op B produces a, which is there already"),
        ("ops.1.updates", ["b"], "op B updates b, which is not among its inputs"),
        ("ops.1.recompute_inputs", ["b"], "op B reads b before an op produces it"),
        ("ops.1.workspace_bytes", -7, "workspace_bytes is negative"),
        ("ops.1.seconds", -0.5, "op B: -0.5 seconds"),
    ],
)
def test_whatever_is_wrong_is_named(path: str, value: object, message: str) -> None:
    data = copy.deepcopy(EXAMPLE)
    edit(path, value)(data)
    with pytest.raises(ProblemError, match=message) as raised:
        Problem.from_json(data)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"[]", b"3", b'{"format": "poet-problem"}']
)
def test_files_that_are_no_problem(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    with pytest.raises(ProblemError, match=r"bad\.json: "):
        Problem.load(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ProblemError, match="not a readable JSON file"):
        Problem.load(tmp_path / "nowhere.json")
    with pytest.raises(ProblemError, match=r"nowhere\.json"):
        Problem.load(str(tmp_path / "nowhere.json"))
