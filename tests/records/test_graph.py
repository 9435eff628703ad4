"""The intermediate representation: well formed or refused, readable, and equal after a round trip."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest

from poet.errors import GraphError
from poet.ir.graph import Argument, Buffer, Call, Graph, Op, Parameter, Ref, Role, Symbol, TensorType, Value

VECTOR = TensorType("float32", (4,), (1,))
UPDATE = Call("poet.sgd", (Ref("w"), Ref("g"), Symbol("hyperparameter", "lr")))


def graph(**fields: Any) -> Graph:
    """y = x·w with a view of y, its square as the loss, and an update of w in place."""
    made: dict[str, Any] = {
        "name": "tiny",
        "buffers": (
            Buffer("x", 16, Role.INPUT), Buffer("w", 16, Role.PARAMETER), Buffer("y", 16, Role.SAVED),
            Buffer("loss", 4, Role.ACTIVATION), Buffer("g", 16, Role.GRADIENT),
        ),
        "values": (
            Value("x", "x", VECTOR), Value("w", "w", VECTOR), Value("y", "y", VECTOR),
            Value("y.view", "y", TensorType("float32", (2, 2), (2, 1))),
            Value("loss", "loss", TensorType("float32", (), ())), Value("g", "g", VECTOR),
        ),
        "ops": (
            Op("mul", Call("aten.mul.Tensor", (Ref("x"), Ref("w"))), ("y",)),
            Op("sum", Call("aten.sum.default", (Ref("y.view"),)), ("loss",)),
            Op("grad", Call("aten.mul.Tensor", (Ref("x"), Ref("y"))), ("g",)),
            Op("step", UPDATE, (), ("w",), repeatable=False),
        ),
        "inputs": ("x",),
        "targets": 0,
        "loss": "loss",
        "predictions": ("y",),
        "parameters": (Parameter("layer.weight", "w", "g"),),
    }  # fmt: skip
    return Graph(**(made | fields))


def replaced_op(name: str, **fields: Any) -> tuple[Op, ...]:
    return tuple(dataclasses.replace(op, **fields) if op.name == name else op for op in graph().ops)


def test_text_form() -> None:
    assert graph().to_text({"sum": "workspace 64 B"}) == (
        "graph tiny\n"
        "  %x: float32[4] = input @x (16 B)\n"
        "  %w: float32[4] = parameter @w (16 B)\n"
        "  %y: float32[4] = aten.mul.Tensor(%x, %w)\n"
        "    %y.view: float32[2,2] views @y\n"
        "  %loss: float32[] = aten.sum.default(%y.view)    # workspace 64 B\n"
        "  %g: float32[4] = aten.mul.Tensor(%x, %y)\n"
        "  _ = poet.sgd(%w, %g, lr)    # updates @w; never recomputed\n"
        "  loss %loss; predictions %y\n"
    )


def test_json_round_trip() -> None:
    of = graph()
    again = Graph.from_json(json.loads(json.dumps(of.to_json())))
    assert again == of
    assert again.to_text() == of.to_text()


@pytest.mark.parametrize(
    "argument",
    [
        None, True, 3, -0.5, "mean", math.inf, -math.inf, Ref("x"), (), (1, (2.5, None), Ref("w")),
        Symbol("dtype", "float32"), Symbol("memory_format", "channels_last"),
    ],
)  # fmt: skip
def test_arguments_round_trip(argument: Argument) -> None:
    call = Call("aten.any.default", (argument,), (("key", argument),))
    text = json.dumps(call.to_data(), allow_nan=False)
    assert Call.from_data(json.loads(text), "op") == call


def test_nan_round_trips() -> None:
    back = Call.from_data(
        json.loads(json.dumps(Call("aten.full", (math.nan,)).to_data(), allow_nan=False)), "op"
    )
    assert isinstance(back.args[0], float)
    assert math.isnan(back.args[0])


def deep(levels: int) -> Any:
    data: Any = 1
    for _ in range(levels):
        data = [data]
    return data


@pytest.mark.parametrize(
    "data",
    [
        None, [], {"target": "aten.x"}, {"target": 3, "args": []}, {"target": "a", "args": {}},
        {"target": "a", "args": [], "kwargs": []}, {"target": "a", "args": [], "extra": 1},
        {"target": "a", "args": [{"value": 3}]}, {"target": "a", "args": [{"device": "cpu", "value": "x"}]},
        {"target": "a", "args": [{"code": "import os"}]}, {"target": "a", "args": [{"float": "12"}]},
        {"target": "a", "args": [deep(9)]},
    ],
)  # fmt: skip
def test_what_is_no_call(data: object) -> None:
    with pytest.raises(GraphError, match=r"^op: "):
        Call.from_data(data, "op")


def test_extent_and_elements() -> None:
    assert TensorType("float32", (2, 3), (3, 1)).extent_bytes == 24
    assert TensorType("float32", (2, 3), (1, 2), offset=5).extent_bytes == 44
    assert TensorType("int64", (3, 4), (0, 1)).extent_bytes == 32  # expanded
    assert TensorType("int8", (0, 4), (4, 1), offset=9).extent_bytes == 0
    assert TensorType("float64", (), ()).elements == 1
    assert str(TensorType("bool", (2, 3), (3, 1))) == "bool[2,3]"


@pytest.mark.parametrize(
    ("dtype", "shape", "strides", "offset"),
    [
        ("float31", (1,), (1,), 0),
        ("float32", (1, 2), (1,), 0),
        ("float32", (-1,), (1,), 0),
        ("float32", (1,), (1,), -1),
    ],
)
def test_types_that_are_none(
    dtype: str, shape: tuple[int, ...], strides: tuple[int, ...], offset: int
) -> None:
    with pytest.raises(GraphError):
        TensorType(dtype, shape, strides, offset)


def test_recall_is_the_call_without_effects() -> None:
    call, recall = Call("aten.norm", (Ref("x"), Ref("w"))), Call("aten.norm", (Ref("x"),))
    assert Op("n", call, ("y",)).recall is call
    assert Op("n", call, ("y",), ("w",), repeat_call=recall).recall is recall
    assert Op("n", call, ("y",), ("w",), repeatable=False).recall is None
    with pytest.raises(GraphError, match="needs a repeat_call"):
        Op("n", call, ("y",), ("w",))
    with pytest.raises(GraphError, match="needs a repeat_call"):
        Op("n", call, ("y",), random=True)


BUFFERS, VALUES, OPS = graph().buffers, graph().values, graph().ops


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"buffers": (*BUFFERS, BUFFERS[0])}, "two buffers are called 'x'"),
        ({"values": (*VALUES, VALUES[0])}, "two values are called 'x'"),
        ({"ops": (*OPS, OPS[3])}, "two ops are called 'step'"),
        ({"parameters": (Parameter("p", "w"), Parameter("p", "w"))}, "two parameters are called 'p'"),
        ({"values": (*VALUES, Value("z", "zz", VECTOR))}, "value z: there is no buffer 'zz'"),
        (
            {"values": (*VALUES, Value("z", "loss", VECTOR))},
            "value z reaches byte 16 of buffer loss, which has 4",
        ),
        ({"inputs": ("q",)}, "there is no value 'q'"),
        ({"loss": "q"}, "there is no value 'q'"),
        ({"predictions": ("q",)}, "there is no value 'q'"),
        ({"states": (("s", "q"),)}, "there is no value 'q'"),
        ({"parameters": (Parameter("p", "w", "q"),)}, "there is no value 'q'"),
        ({"parameters": (Parameter("p", "w", None, (("exp_avg", "q"),)),)}, "there is no value 'q'"),
        ({"targets": 2}, "2 targets among 1 inputs"),
        ({"targets": 1, "predictions": ()}, "targets, but no prediction"),
        ({"inputs": ("y",)}, "y is given from outside and produced by an op as well"),
        ({"ops": replaced_op("mul", call=Call("aten.neg", (Ref("q"),)))}, "there is no value 'q'"),
        ({"ops": replaced_op("mul", repeat_call=Call("aten.neg", (Ref("q"),)))}, "there is no value 'q'"),
        ({"ops": replaced_op("mul", outputs=("q",))}, "there is no value 'q'"),
        ({"ops": (OPS[1], OPS[0], *OPS[2:])}, "op sum reads buffer y before it is produced"),
        (
            {"ops": replaced_op("mul", repeat_call=Call("aten.neg", (Ref("g"),)))},
            "op mul reads buffer g before",
        ),
        ({"ops": replaced_op("step", updates=("x",))}, "op step updates buffer x but is not given it"),
        ({"ops": replaced_op("grad", outputs=("y",))}, "op grad produces buffer y a second time"),
    ],
)
def test_what_is_malformed_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        graph(**fields)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "x"}, "not a poet-graph"),
        ({"version": 0}, "version 0, this poet reads 2"),
        ({"colour": 1}, "'colour' is not a field"),
        ({"_buffer_of": {}}, "'_buffer_of' is not a field"),
        ({"loss": "q"}, "there is no value 'q'"),
        ({"buffers": [{"name": "x", "size_bytes": -1, "role": "input"}]}, "size -1 is negative"),
        (
            {"buffers": [{"name": "x", "size_bytes": 1, "role": "boss"}]},
            "expected one of 'input', 'parameter'",
        ),
    ],
)
def test_files_that_are_no_graph(change: dict[str, Any], message: str) -> None:
    data = json.loads(json.dumps(graph().to_json()))
    with pytest.raises(GraphError, match=message):
        Graph.from_json(data | change)


@pytest.mark.parametrize(
    ("shape", "strides", "overlaps"),
    [
        ((2, 3), (3, 1), False),
        ((2, 3), (1, 2), False),
        ((2, 3), (0, 1), True),
        ((2, 3), (2, 1), True),
        ((3,), (0,), True),
        ((1,), (0,), False),
        ((), (), False),
        ((0, 3), (0, 0), False),
        ((2, 2, 2), (1, 1, 4), True),
        ((4, 1, 8), (8, 1, 1), False),
    ],
)
def test_overlapping_elements(shape: tuple[int, ...], strides: tuple[int, ...], overlaps: bool) -> None:
    assert TensorType("float32", shape, strides).overlaps_itself is overlaps
