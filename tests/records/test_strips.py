"""Strips as records: what a graph refuses, and that JSON gives them back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from poet.errors import GraphError
from poet.ir.calls import Blank, Call, Ref, TensorType, Value
from poet.ir.graph import Buffer, Graph, Link, Op, Parameter, Role, Strip

ROWS, COLUMNS, BATCH = 50, 4, 3


def float32(*shape: int) -> TensorType:
    strides = tuple(int(_product(shape[place + 1 :])) for place in range(len(shape)))
    return TensorType("float32", shape, strides)


def _product(sizes: tuple[int, ...]) -> int:
    result = 1
    for size in sizes:
        result *= size
    return result


def strip(blocks: int = 8) -> Strip:
    """The gradient of a product and the update that reads it."""
    return Strip(
        links=(
            Link(Call("aten.mm.default", (Ref("g"), Ref("x"))), ("w.grad",), ((0, 0),), ((0, 0),)),
            Link(Call("poet.sgd", (Ref("w"), Ref("w.grad"), 0.1, 0.0)), (), ((0, 0), (1, 0))),
        ),
        inner=(Value("w.grad", "w.grad", float32(ROWS, COLUMNS)),),
        size=ROWS,
        blocks=blocks,
    )


def graph_with(
    given: Strip, *, outputs: tuple[str | None, ...] = (), updates: tuple[str, ...] = ("w",)
) -> Graph:
    types = {
        "x": float32(BATCH, COLUMNS),
        "w": float32(ROWS, COLUMNS),
        "g": float32(ROWS, BATCH),
        "loss": float32(),
    }
    roles = {"x": Role.INPUT, "w": Role.PARAMETER, "g": Role.INPUT, "loss": Role.ACTIVATION}
    return Graph(
        name="net",
        buffers=tuple(Buffer(name, type_.extent_bytes, roles[name]) for name, type_ in types.items()),
        values=tuple(Value(name, name, type_) for name, type_ in types.items()),
        ops=(
            Op("op_loss", Call("aten.sum.default", (Ref("w"),)), ("loss",)),
            Op("w.update", given.call, outputs, updates=updates, repeatable=not updates, strip=given),
        ),
        inputs=("x", "g"),
        targets=0,
        loss="loss",
        predictions=(),
        parameters=(Parameter("w", "w", "w.grad"),),
    )


def test_blocks_cover_everything_once() -> None:
    for blocks in (2, 3, 7, 8, 16, 50):
        bounds = strip(blocks).bounds
        assert [start for start, _ in bounds] == [0, *(stop for _, stop in bounds[:-1])]
        assert bounds[-1][1] == ROWS
        assert len(bounds) <= blocks
    assert strip(2).bounds == ((0, 32), (32, 50))  # a multiple of 16
    assert strip(8).bounds[0] == (0, 7)


def test_what_a_strip_saves() -> None:
    assert strip(8).whole_bytes == ROWS * COLUMNS * 4
    assert strip(8).block_bytes == 7 * COLUMNS * 4


def test_json_gives_the_graph_back() -> None:
    graph = graph_with(strip())
    assert Graph.from_json(graph.to_json()) == graph
    assert "in 8 blocks: aten.mm.default(%g, %x); poet.sgd(%w, %w.grad, 0.1, 0.0)" in graph.to_text()
    assert graph.reads(graph.ops[1].call) == ("g", "x", "w")


def link(number: int, **changes: object) -> Callable[[Strip], Strip]:
    def change(given: Strip) -> Strip:
        links = list(given.links)
        links[number] = replace(links[number], **changes)  # type: ignore[arg-type]
        return replace(given, links=tuple(links))

    return change


def view(type_: TensorType) -> Callable[[Strip], Strip]:
    """The update reads the gradient as a view of another type."""

    def change(given: Strip) -> Strip:
        call = Call("poet.sgd", (Ref("w"), Ref("view"), 0.1, 0.0))
        inner = (*given.inner, Value("view", "w.grad", type_))
        return replace(link(1, call=call)(given), inner=inner)

    return change


def mm(*args: object) -> Call:
    return Call("aten.mm.default", args)  # type: ignore[arg-type]


WRONG: dict[str, tuple[Callable[[Strip], Strip], str]] = {
    "one block": (lambda given: replace(given, blocks=1), "1 blocks of 50"),
    "more blocks than rows": (lambda given: replace(given, blocks=51), "51 blocks of 50"),
    "no calls": (lambda given: replace(given, links=()), "0 calls"),
    "another size": (lambda given: replace(given, size=49), "has no 49 elements"),
    "no argument there": (link(0, cuts=((5, 0),)), "no argument 5"),
    "a negative place": (link(0, cuts=((-1, 0),)), "no argument -1"),
    "no such dimension": (link(0, cuts=((0, 2),)), "no 50 elements along 2"),
    "nothing is cut": (link(0, cuts=()), "given no block"),
    "cut twice": (link(0, cuts=((0, 0), (0, 0))), "two of one argument"),
    "a number that counts nothing": (link(1, cuts=((0, 0), (1, 0), (2, 0))), "no 50 elements along 0"),
    "the update reads the gradient whole": (link(1, cuts=((0, 0),)), "given w.grad whole"),
    "the update writes all of it": (
        link(1, call=Call("poet.sgd", (Ref("w"), Ref("w.grad"), 0.1, 0.0)), cuts=((1, 0),)),
        "does not update blocks",
    ),
    "the update writes a blank": (
        link(1, call=Call("poet.sgd", (Blank(float32(ROWS, COLUMNS)), Ref("w.grad"), 0.1, 0.0))),
        "does not update blocks",
    ),
    "another block than was made": (link(1, cuts=((0, 0), (1, 1))), "not given the block of w.grad"),
    "a random call": (link(0, call=Call("aten.bernoulli.default", (Ref("g"),))), "cannot run in blocks"),
    "a strip in a strip": (link(0, call=Call(Strip.TARGET, (Ref("g"),))), "cannot run in blocks"),
    "an unknown value": (link(0, call=mm(Ref("g"), Ref("nobody"))), "no value 'nobody'"),
    "an output that is nobody's": (link(0, outputs=("other",)), "'other', which is not an output"),
    "an output without blocks": (link(0, made=()), "in no blocks of its 50"),
    "blocks of no output": (link(0, made=((0, 0), (1, 0))), "fewer outputs"),
    "a sum of what flows between": (link(0, made=(), sums=(0,)), "sums up w.grad"),
    "a sum of no output": (link(1, sums=(0,)), "fewer outputs"),
    "made twice": (lambda given: replace(given, links=(given.links[0], *given.links)), "is one already"),
    "read before it is made": (
        lambda given: replace(given, links=given.links[::-1]),
        "not given the block of w.grad",
    ),
    "never made": (
        lambda given: replace(given, inner=(*given.inner, Value("h", "h", float32(ROWS)))),
        "no call makes blocks of h",
    ),
    "a view whose blocks lie apart": (
        view(TensorType("float32", (COLUMNS, ROWS), (1, COLUMNS))),
        "not given the block of view",
    ),
    "an update of another buffer": (
        link(1, call=Call("poet.sgd", (Ref("g"), Ref("w.grad"), 0.1, 0.0))),
        "updates other buffers",
    ),
    "a name of the graph's": (
        lambda given: replace(given, inner=(replace(given.inner[0], name="w", buffer="w"),)),
        "two values are called 'w'",
    ),
}


def sum_over_batch(**changes: object) -> Graph:
    """A product, as the sum over blocks of what is summed over; ``changes`` of its link."""
    link = Link(Call("aten.mm.default", (Ref("g"), Ref("x"))), ("y",), ((0, 1), (1, 0)), (), (0,))
    given = Strip((replace(link, **changes),), (), BATCH, 3)  # type: ignore[arg-type]
    types = {"g": float32(ROWS, BATCH), "x": float32(BATCH, COLUMNS), "y": float32(ROWS, COLUMNS)}
    return Graph(
        name="net",
        buffers=tuple(Buffer(name, type_.extent_bytes, Role.INPUT) for name, type_ in types.items()),
        values=tuple(Value(name, name, type_) for name, type_ in types.items()),
        ops=(Op("product", given.call, ("y",), strip=given),),
        inputs=("g", "x"),
        targets=0,
        loss="y",
        predictions=(),
    )


def test_an_output_may_be_a_sum_over_blocks() -> None:
    graph = sum_over_batch()
    assert Graph.from_json(graph.to_json()) == graph
    with pytest.raises(GraphError, match="in no blocks of its 3"):
        sum_over_batch(sums=())
    with pytest.raises(GraphError, match="sums up y, of which there are blocks"):
        sum_over_batch(made=((0, 0),))
    with pytest.raises(GraphError, match="or twice"):
        sum_over_batch(sums=(0, 0))


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_run_in_blocks_is_refused(what: str) -> None:
    change, message = WRONG[what]
    with pytest.raises(GraphError, match=message):
        graph_with(change(strip()))


def test_an_op_is_what_its_strip_is() -> None:
    graph = graph_with(strip())
    with pytest.raises(GraphError, match="its calls give other values than its outputs"):
        graph_with(strip(), outputs=("loss",))
    with pytest.raises(GraphError, match="its call is not that of its strip"):
        replace(graph, ops=(graph.ops[0], replace(graph.ops[1], call=Call(Strip.TARGET, (Ref("g"),)))))
    parameters = (Parameter("w", "w"),)
    with pytest.raises(GraphError, match="has no strip"):
        replace(graph, ops=(graph.ops[0], replace(graph.ops[1], strip=None)), parameters=parameters)
