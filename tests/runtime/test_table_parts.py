"""Tables in parts: looked up, their gradients made and summed, and heads that share them, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from helpers.part_nets import needs_equal_sums, tiny_parts, write
from torch import Tensor, nn
from torch.nn import functional as F
from zoo.decoder import ADAPTERS, Decoder

from poet.errors import GraphError, InputError, ReplayError
from poet.frontend.evaluation import trace_evaluation
from poet.frontend.trace import TrainingStep, trace_training_step
from poet.ir.calls import Blank, Call, contiguous
from poet.ir.optimizer import OptimizerSpec
from poet.ir.wholes import Axis, PartedCall, Whole, cuts_of
from poet.passes.parts import with_parts
from poet.plans.plan_file import read_plan
from poet.runtime import Trainer
from poet.runtime.kernels import tables
from poet.runtime.storage.page_file import PageFile
from poet.runtime.trials import forms
from poet.runtime.trials.forms import is_exact_in_parts


@pytest.fixture(autouse=True)
def _tiny_ones_too(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with tiny_parts(monkeypatch):
        yield


class Tied(nn.Module):
    """A table that numbers are looked up in twice, with a padded row, and a head that shares it."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(500, 64, padding_idx=3)
        self.mix = nn.Linear(64, 64)

    def forward(self, tokens: Tensor) -> Tensor:
        x = torch.tanh(self.mix(self.words(tokens))) + self.words(tokens.flip(1))
        return F.linear(x, self.words.weight)


NETS: dict[str, Callable[[], nn.Module]] = {
    "tied": Tied,
    "decoder": partial(
        Decoder, layers=1, width=64, heads=4, shared_heads=2, inner=96, words=500, length=12, rank=2
    ),
}


def module_of(name: str) -> nn.Module:
    torch.manual_seed(0)
    return NETS[name]()


@cache
def traced(
    name: str, optimizer: str = "sgd", *, train: tuple[str, ...] | None = None, in_parts: bool = True
) -> TrainingStep:
    return trace_training_step(
        module_of(name),
        torch.zeros(2, 12, dtype=torch.long),
        loss="cross-entropy:dim=-1",
        optimizer=OptimizerSpec(optimizer, lr=0.05, weight_decay=0.01),
        train=train,
        in_parts=in_parts,
        measure=in_parts,
    )


def axes(step: TrainingStep) -> dict[str, list[str]]:
    return {whole.name: [parted.axis.value for parted in whole.calls] for whole in step.graph.wholes}


FROZEN = ["look-up", "columns", "sum"]


@needs_equal_sums
def test_nothing_of_a_tied_table_in_parts_is_as_large_as_the_table(tmp_path: Path) -> None:
    step = traced("tied")
    assert axes(step) == {"words.weight": [*FROZEN, "rows", "table", "rows", "elements"]}
    ops = [op.name for op in step.graph.ops if "[192:384]" in op.name]
    assert ops[-1] == "words.weight.update[192:384]"
    buffers = {item.name: item.size_bytes for item in step.graph.buffers}
    assert max(buffers.values()) < 500 * 64 * 4
    plan = write(tmp_path / "p", step, seed=1)
    assert read_plan(tmp_path / "p") == plan


@needs_equal_sums
def test_a_frozen_table_is_read_part_by_part_and_never_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = traced("decoder", train=ADAPTERS)
    assert axes(step)["words.weight"] == FROZEN
    parts = {name for whole in step.graph.wholes for name in whole.parts}
    assert parts.isdisjoint(name for op in step.graph.ops for name in op.updates)
    plan = write(tmp_path / "p", step, seed=None)
    written, write_page = set[str](), PageFile.write

    def noted(pages: PageFile, tensor: str, data: memoryview) -> None:
        written.add(tensor)
        write_page(pages, tensor, data)

    monkeypatch.setattr(PageFile, "write", noted)
    with Trainer.open(tmp_path / "p", seed=1) as trainer:
        frozen = {item.value for item in plan.graph.parameters if item.gradient is None}
        assert frozen
        assert frozen.isdisjoint(written)  # they are read as they lie in the plan file
        with pytest.raises(InputError, match=r"holds 500; the rows of its table are 0 to 499"):
            trainer.step(torch.full((2, 12), 500), torch.zeros(2, 12, dtype=torch.long))
        weight = trainer.state_dict()["words.weight"]
    assert torch.equal(weight, module_of("decoder").get_parameter("words.weight"))
    assert plan.graph.wholes[0].type == contiguous("float32", (500, 64))


@needs_equal_sums
def test_an_evaluation_looks_the_same_parts_up() -> None:
    step = traced("tied")
    evaluation = trace_evaluation(module_of("tied"), torch.zeros(2, 12, dtype=torch.long), step).graph
    assert evaluation.persistent() == step.graph.persistent()
    looked_up = [op for op in evaluation.ops if op.call.target == "poet.look_up"]
    assert len(looked_up) == 2 * len(step.graph.wholes[0].parts)


def test_where_a_sum_of_gradients_is_not_exact_the_table_stays_whole() -> None:
    graph = traced("tied", in_parts=False).graph
    assert with_parts(graph, lambda parted, bounds: True).wholes
    for axis in (Axis.LOOK_UP, Axis.TABLE, Axis.COLUMNS, Axis.SUM):
        assert not with_parts(graph, lambda parted, bounds, axis=axis: parted.axis is not axis).wholes  # type: ignore[misc]


def test_rows_of_a_table_give_what_the_whole_gives() -> None:
    generator = torch.Generator().manual_seed(0)
    table, numbers = torch.randn(50, 8, generator=generator), torch.randint(50, (3, 7), generator=generator)
    gradient = torch.randn(3, 7, 8, generator=generator)
    found = None
    for first in range(0, 50, 15):
        found = tables.look_up(table[first : first + 15], numbers, first, 50, found)
        rows = len(table[first : first + 15])
        made = tables.look_up_backward(gradient, numbers, first, rows, 4)
        whole = torch.ops.aten.embedding_dense_backward(gradient, numbers, 50, 4, False)
        assert torch.equal(made, whole[first : first + 15])
    assert found is not None
    assert torch.equal(found, F.embedding(numbers, table))
    assert tables.look_up(table[:5], numbers[:0], 0, 50, None).shape == (0, 7, 8)
    for wrong in (-1, 50):
        with pytest.raises(IndexError, match="index out of range"):
            tables.look_up(table[:15], torch.tensor([1, wrong]), 0, 50, None)


def test_what_is_no_table_is_not_divided_as_one() -> None:
    table, numbers = Blank(contiguous("float32", (50, 8))), Blank(contiguous("int64", (4,)))
    rows = Blank(contiguous("float32", (4, 8)))
    look_up = PartedCall(Call("aten.embedding.default", (table, numbers)), Axis.LOOK_UP)
    backward = Call("aten.embedding_dense_backward.default", (rows, numbers, 50, -1, False))
    added = PartedCall(Call("aten.add.Tensor", (table, table)), Axis.ROWS)
    assert cuts_of(look_up) == ((0, 0),)
    assert cuts_of(PartedCall(backward, Axis.TABLE)) == ()
    assert cuts_of(added) == ((0, 0), (1, 0))
    bounds = ((0, 20), (20, 50))
    assert all(is_exact_in_parts(item, bounds) for item in (look_up, PartedCall(backward, Axis.TABLE), added))
    for axis, target, args in (
        (Axis.LOOK_UP, "aten.embedding.default", (table, 3)),
        (Axis.LOOK_UP, "aten.embedding.default", (numbers, numbers)),
        (Axis.LOOK_UP, "aten.mm.default", (table, numbers)),
        (Axis.TABLE, backward.target, (rows, numbers, 50, -1, True)),
        (Axis.TABLE, backward.target, (rows, numbers, 50.0, -1, False)),
        (Axis.TABLE, backward.target, (rows, numbers, numbers, -1, False)),
        (Axis.ROWS, "aten.add.Tensor", (table, rows)),
        (Axis.ROWS, "aten.add.Tensor", (table, table, table)),
    ):
        with pytest.raises(GraphError, match="is not divided along"):
            cuts_of(PartedCall(Call(target, args), axis))


@needs_equal_sums
def test_a_strangers_table_of_other_sizes_is_refused(tmp_path: Path) -> None:
    graph = traced("tied").graph
    whole = graph.wholes[0]
    assert isinstance(whole, Whole)
    backward = next(item for item in whole.calls if item.axis is Axis.TABLE)
    args = (*backward.call.args[:2], 7, *backward.call.args[3:])
    wrong = replace(backward, call=replace(backward.call, args=args))
    with pytest.raises(ReplayError, match=r"words\.weight"):
        forms.check_exact(replace(graph, wholes=(replace(whole, calls=(wrong,)),)))
