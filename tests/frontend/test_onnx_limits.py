"""A few hundred bytes of a stranger's model: import takes no minutes, no memory, and never the process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from helpers.onnx_tools import save
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from poet.errors import ModelError
from poet.frontend.onnx.check import check_model
from poet.frontend.onnx.importer import load_onnx

ONE_PIXEL = np.ones((1, 1, 1, 1), np.float32)


def _node(op: str, inputs: list[str], output: str, **attributes: Any) -> NodeProto:
    return helper.make_node(op, inputs, [output], **attributes)


def _model(nodes: list[NodeProto], stored: dict[str, np.ndarray]) -> ModelProto:
    """``nodes`` give ``q``, whose sum is added to a layer's input."""
    ends = [
        _node("Cast", ["q"], "float", to=TensorProto.FLOAT), _node("ReduceSum", ["float"], "sum", keepdims=0),
        _node("Add", ["x", "sum"], "z"), _node("MatMul", ["z", "weight"], "y"),
    ]  # fmt: skip
    stored = {"weight": np.ones((3, 4), np.float32), **stored}
    graph = helper.make_graph(
        [*nodes, *ends], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(content, name) for name, content in stored.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def _whole(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def _folded(op: str, left: np.ndarray, right: np.ndarray, path: Path) -> torch.Tensor:
    """What ``op`` gives at import."""
    graph = helper.make_graph(
        [_node(op, ["a", "b"], "y")], "g", [], [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(left, "a"), numpy_helper.from_array(right, "b")],
    )  # fmt: skip
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    found = load_onnx(path).module()
    assert isinstance(found, torch.Tensor)
    return found


@pytest.mark.parametrize("kind", [np.int8, np.int16, np.int32, np.int64])
@pytest.mark.parametrize(("op", "expected"), [("Div", None), ("Mod", 0)])
def test_the_least_whole_number_by_minus_one_ends_nothing(
    op: str, expected: int | None, kind: type, tmp_path: Path
) -> None:
    least = np.iinfo(kind).min
    left: np.ndarray = np.array([least, 7, -7], kind)
    right: np.ndarray = np.array([-1, -2, 2], kind)
    found = _folded(op, left, right, tmp_path / "m.onnx")
    assert found.tolist() == ([least, -3, -3] if op == "Div" else [expected, -1, 1])


@pytest.mark.parametrize("op", ["Div", "Mod"])
def test_whole_numbers_by_zero_are_refused(op: str, tmp_path: Path) -> None:
    path = save(_model([_node(op, ["a", "b"], "q")], {"a": _whole(5), "b": _whole(0)}), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=rf"node 'q' \({op}\): .*ZeroDivisionError"):
        load_onnx(path)


@pytest.mark.parametrize(
    ("nodes", "stored", "words"),
    [
        ([_node("ConstantOfShape", ["s"], "q")], {"s": _whole(1 << 20, 1 << 20)}, "a constant of"),
        ([_node("Expand", ["a", "s"], "q")], {"a": _whole(1), "s": _whole(1 << 40)}, "a constant of"),
        ([_node("Tile", ["a", "s"], "q")], {"a": _whole(1), "s": _whole(1 << 40)}, "a constant of"),
        (
            [_node("Range", ["a", "b", "c"], "q")],
            {"a": np.array(0), "b": np.array(1 << 40), "c": np.array(1)},
            "a table of 1099511627776 entries",
        ),
        (
            [_node("Pad", ["a", "s"], "q", mode="edge")],
            {"a": _whole(1), "s": _whole(0, 1 << 40)},
            "a table of 1099511627777 entries",
        ),
        (
            [_node("Resize", ["a", "", "", "s"], "q")],
            {"a": ONE_PIXEL, "s": _whole(1, 1, 1 << 30, 1 << 30)},
            "a table of 1073741824 entries",
        ),
        (
            [_node("OneHot", ["a", "s", "b"], "q")],
            {"a": np.array(1), "s": _whole(1 << 40), "b": _whole(0, 1)},
            "a constant of",
        ),
        (
            [_node("ConstantOfShape", ["s"], "a"), _node("EyeLike", ["a"], "q")],
            {"s": _whole(1 << 14, 1 << 14)},
            "a table of 268435456 entries",
        ),
        (
            [_node("MaxPool", ["a"], "q", kernel_shape=[1 << 40], pads=[1 << 40, 0])],
            {"a": np.ones((1, 1, 4), np.float32)},
            "a table of",
        ),
        (
            [
                _node("ConstantOfShape", ["s"], "c0", value=numpy_helper.from_array(np.ones(1, np.int8))),
                *(_node("Neg", [f"c{n}"], f"c{n + 1}") for n in range(40)),
                _node("ReduceMax", ["c40"], "q"),
            ],
            {"s": _whole(1 << 14, 1 << 12)},
            "elements up to here; the limit is",
        ),
    ],
    ids=lambda value: "" if isinstance(value, dict) else None,
)  # fmt: skip
def test_what_would_take_memory_or_minutes_is_refused(
    nodes: list[NodeProto], stored: dict[str, np.ndarray], words: str, tmp_path: Path
) -> None:
    path = save(_model(nodes, stored), tmp_path / "m.onnx")
    assert path.stat().st_size < 2000
    (remark,) = check_model(path).not_imported
    assert words in remark.reason
    assert "\n" not in remark.reason


def test_a_large_product_of_constants_is_left_to_the_step(tmp_path: Path) -> None:
    nodes = [_node("ConstantOfShape", ["s"], "c"), _node("MatMul", ["c", "c"], "q")]
    report = check_model(save(_model(nodes, {"s": _whole(1 << 13, 1 << 13)}), tmp_path / "m.onnx"))
    assert report.can_train
    assert {row.op: row.constant for row in report.operators}["MatMul"] == 0


def test_functions_that_call_each_other_twice_are_counted_before_they_are_inlined(tmp_path: Path) -> None:
    functions = []
    for depth in range(40):
        op, domain = (f"f{depth - 1}", "twice") if depth else ("Relu", "")
        inner = [
            helper.make_node(op, ["x"], ["t"], domain=domain),
            helper.make_node(op, ["t"], ["y"], domain=domain),
        ]
        opsets = [helper.make_opsetid("", 18), helper.make_opsetid("twice", 1)]
        functions.append(helper.make_function("twice", f"f{depth}", ["x"], ["y"], inner, opsets))
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    node = helper.make_node("f39", ["x"], ["y"], domain="twice")
    graph = helper.make_graph([node], "g", [info], [onnx.ValueInfoProto(name="y")])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("twice", 1)]
    path = tmp_path / "m.onnx"
    save(helper.make_model(graph, functions=functions, opset_imports=opsets, ir_version=9), path)
    with pytest.raises(ModelError, match="inlined are 1099511627776 nodes; the limit is 1048576"):
        load_onnx(path)
