from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.onnx_tools import make_model, save, zoo_export, zoo_module
from onnx import TensorProto, helper
from zoo import NETS

from poet.errors import ModelError
from poet.frontend.onnx.check import OperatorCheck, check_model


@pytest.mark.parametrize("name", list(NETS))
def test_every_node_and_parameter_of_the_zoo_trains(name: str) -> None:
    report = check_model(zoo_export(name, "legacy", True))
    assert report.can_train
    assert report.exit_code == 0
    assert report.not_imported == report.not_checked == ()
    assert {p.name: p.shape for p in report.parameters} == {
        key: tuple(p.shape) for key, p in zoo_module(name).named_parameters()
    }
    assert all(parameter.trainable for parameter in report.parameters)
    assert (report.open_dims, report.assumed, report.bind_hint) == (("N",), {"N": 2}, "--bind N=8")


def test_operators_are_counted() -> None:
    report = check_model(zoo_export("resnet18", "legacy", True))
    rows = {row.op: row for row in report.operators}
    assert rows["Conv"] == OperatorCheck("Conv", count=6, imported=6, constant=0, with_gradient=6)
    assert rows["Gemm"].count == 1
    assert [row.count for row in report.operators] == sorted(
        (r.count for r in report.operators), reverse=True
    )


def test_shape_arithmetic_counts_as_constant() -> None:
    rows = {row.op: row for row in check_model(zoo_export("vit", "legacy", True)).operators}
    assert rows["Shape"].constant == rows["Shape"].count > 0
    assert rows["Shape"].with_gradient == 0


def _broken(tmp_path: Path) -> Path:
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["a"], name="first"),
        helper.make_node("Celu2", ["a"], ["b"], name="odd", domain="acme"),
        helper.make_node("Relu", ["b"], ["c"], name="behind"),
        helper.make_node("MatMul", ["x", "w2"], ["d"], name="aside"),
        helper.make_node("Unique", ["d"], ["e"], name="unique"),
        helper.make_node("ArgMax", ["d"], ["f"], name="top"),
        helper.make_node("Identity", ["d"], ["out"], name="end"),
    ]
    weights = {name: np.ones((4, 4), np.float32) for name in ("w1", "w2")}
    model = make_model(nodes, {"x": [2, 4]}, ["c", "e", "f", "out"], weights)
    return save(model, tmp_path / "broken.onnx")


def test_the_rest_is_checked_behind_an_unsupported_operator(tmp_path: Path) -> None:
    report = check_model(_broken(tmp_path))
    assert report.exit_code == 2
    assert report.obstacles == ("2 of 7 nodes cannot be imported",)
    assert [(remark.op, remark.node) for remark in report.not_imported] == [
        ("acme::Celu2", "node 'odd' (acme::Celu2)"),
        ("Unique", "node 'unique' (Unique)"),
    ]
    assert [remark.node for remark in report.not_checked] == ["node 'behind' (Relu)"]
    assert [remark.reason for remark in report.gradient_stops] == [
        "its result is int64, which has no gradient"
    ]
    rows = {row.op: row for row in report.operators}
    assert rows["MatMul"].imported == 2
    assert all(parameter.trainable for parameter in report.parameters)


def test_declared_shapes_lead_past_an_unsupported_operator(tmp_path: Path) -> None:
    path = _broken(tmp_path)
    model = onnx.load(path)
    model.graph.value_info.append(helper.make_tensor_value_info("b", TensorProto.FLOAT, [2, 4]))
    report = check_model(save(model, path))
    assert report.not_checked == ()
    assert {row.op: row.imported for row in report.operators}["Relu"] == 1


def test_a_model_without_a_gradient_cannot_train(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["a"]),
        helper.make_node("ArgMax", ["a"], ["b"], keepdims=0),
        helper.make_node("Cast", ["b"], ["y"], to=TensorProto.FLOAT),
    ]
    model = make_model(nodes, {"x": [3, 3]}, ["y"], {"w": np.ones((3, 3), np.float32)})
    report = check_model(save(model, tmp_path / "m.onnx"))
    assert report.obstacles == ("no parameter reaches an output by differentiable operators",)
    assert [parameter.trainable for parameter in report.parameters] == [False]
    bare = make_model([helper.make_node("Relu", ["x"], ["y"])], {"x": [2]}, ["y"])
    assert check_model(save(bare, tmp_path / "m.onnx")).obstacles == ("the model has no parameters",)


def test_a_fixed_batch_can_be_bound(tmp_path: Path) -> None:
    weights = {"w": np.ones(3, np.float32)}
    model = make_model([helper.make_node("Add", ["x", "w"], ["y"])], {"x": [1, 3]}, ["y"], weights)
    path = save(model, tmp_path / "m.onnx")
    report = check_model(path)
    assert (report.open_dims, report.bind_hint) == ((), "--bind N=8")
    assert check_model(path, {"N": 4}).can_train
    with pytest.raises(ModelError, match="'M' is not an open dimension"):
        check_model(path, {"M": 4})


def test_the_report_is_json() -> None:
    report = check_model(zoo_export("lstm", "legacy", True))
    data = json.loads(json.dumps(report.to_json()))
    assert data["can_train"] is True
    assert data["inputs"] == [{"name": "input0", "dtype": "int64", "dims": ["N", 6]}]
    assert data["parameters"][0]["size_bytes"] > 0
