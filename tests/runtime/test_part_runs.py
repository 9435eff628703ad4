"""Parameters in parts: the bits of plain PyTorch under any schedule, whole again for who asks for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers.part_nets import Products, layers, needs_equal_sums, tiny_parts, write
from safetensors.torch import load_file
from torch import Tensor, nn

from poet.errors import GraphError, ModelError, ReplayError
from poet.files.tensorfile import TensorFile
from poet.frontend.evaluation import trace_evaluation
from poet.frontend.trace import TrainingStep, trace_training_step
from poet.ir.calls import Blank, Call, TensorType, blanked, contiguous
from poet.ir.graph import Graph
from poet.ir.micro import MicroBatches
from poet.ir.named import Joined, named_parameters, trained_in_words
from poet.ir.optimizer import OptimizerSpec
from poet.ir.wholes import Axis, PartedCall, Whole, check_whole, cuts_of
from poet.passes.parts import in_parts_of, with_parts
from poet.planning.exported import export_state
from poet.report.check import part_lines, parts_data
from poet.runtime import Trainer
from poet.runtime.data.random_batches import random_batch
from poet.runtime.steps.lasting import joined
from poet.runtime.trials import forms, trial
from poet.runtime.trials.forms import is_exact_in_parts


@pytest.fixture(autouse=True)
def _tiny_ones_too(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with tiny_parts(monkeypatch, least_bytes=2048, steps=(8, 16)):
        yield


NETS: dict[str, tuple[Callable[[], nn.Module], int]] = {"layers": (layers, 12), "products": (Products, 40)}
"""Per name a net and its input's features."""


def module_of(name: str) -> nn.Module:
    torch.manual_seed(0)
    return NETS[name][0]()


def traced(
    name: str, optimizer: str = "sgd", *, micro: MicroBatches | None = None, train: list[str] | None = None
) -> TrainingStep:
    spec = OptimizerSpec(optimizer, lr=0.05, weight_decay=0.01)
    inputs = torch.zeros(3, NETS[name][1])
    return trace_training_step(
        module_of(name), inputs, optimizer=spec, in_parts=True, micro=micro, train=train
    )


def in_parts(graph: Graph) -> dict[str, int]:
    return {item.name: len(item.parts) for item in named_parameters(graph) if item.content.bounds}


EXPECTED = {
    "layers": {"0.weight": 3, "3.weight": 5, "5.weight": 3},
    "products": {"there": 5, "last.weight": 6},  # the gradient of the weight that is used twice is a sum
}


def test_what_comes_back_is_whole(tmp_path: Path) -> None:
    step = traced("layers", "momentum")
    plan = write(tmp_path / "p", step, seed=3)
    module, gradients = module_of("layers"), dict[str, Tensor]()
    names = [name for name, _ in module.named_parameters()]
    with Trainer.open(tmp_path / "p", seed=1) as trainer:
        begun = trainer.state_dict()
        assert [*begun] == names
        assert all(torch.equal(begun[name], item) for name, item in module.named_parameters())
        inputs, targets = random_batch(plan, 0)
        assert targets is not None
        trainer.step(inputs, targets, on_gradient=lambda name, item: gradients.update({name: item.clone()}))
        trained, momenta = trainer.state_dict(), trainer.optimizer_state()
        trainer.save(tmp_path / "s")
    assert {name: item.shape for name, item in gradients.items()} == {
        name: item.shape for name, item in begun.items()
    }
    assert [*momenta] == names
    file = TensorFile(tmp_path / "s")
    assert {name for name in file.entries if "[" in name} == set()
    file.close()
    module.load_state_dict(trained, strict=True)
    with Trainer.open(tmp_path / "p", resume=tmp_path / "s") as again:
        found = again.state_dict()
        assert all(torch.equal(found[name], item) for name, item in trained.items())
        found = {name: states["momentum_buffer"] for name, states in again.optimizer_state().items()}
        assert all(torch.equal(found[name], states["momentum_buffer"]) for name, states in momenta.items())
    assert export_state(tmp_path / "p", tmp_path / "e", state=tmp_path / "s").tensors == len(names)
    exported = TensorFile(tmp_path / "e")
    assert exported.read("3.weight") == trained["3.weight"].numpy().tobytes()
    exported.close()


@needs_equal_sums
def test_a_state_is_saved_part_by_part(tmp_path: Path) -> None:
    """A budget has no room for all of a weight in parts."""
    graph = write(tmp_path / "p", traced("layers", "momentum"), seed=None).graph
    sizes_bytes = list[int]()
    with Trainer.open(tmp_path / "p", arena=False) as trainer:
        for parameter in graph.parameters:
            sizes_bytes += (piece.nbytes for piece in trainer._pieces(parameter.value))
        trainer.save(tmp_path / "s")
        assert 0 < max(sizes_bytes) < min(whole.type.extent_bytes for whole in graph.wholes)
        states = trainer.state_dict()
    saved = load_file(tmp_path / "s")
    assert all(torch.equal(saved[name], item) for name, item in states.items())
    huge = contiguous("float32", (1 << 27, 1 << 27))
    with pytest.raises(ReplayError, match="no memory for a buffer"):
        joined(Joined("w", huge, ("a", "b"), ((0, 1), (1, 1 << 27))), dict[str, Tensor]().__getitem__)


def test_a_state_goes_from_parts_to_a_plan_without(tmp_path: Path) -> None:
    step = traced("layers", "momentum")
    whole = trace_training_step(module_of("layers"), torch.zeros(3, 12), optimizer=step.optimizer)
    assert step.digest == whole.digest
    assert not whole.graph.wholes
    write(tmp_path / "p", step, seed=None)
    write(tmp_path / "q", whole, seed=None)
    with Trainer.open(tmp_path / "p", seed=1) as trainer:
        trainer.step(torch.randn(3, 12), torch.tensor([1, 2, 3]))
        trainer.save(tmp_path / "s")
        trained = trainer.state_dict()
    with Trainer.open(tmp_path / "q", resume=tmp_path / "s") as other:
        assert all(torch.equal(item, trained[name]) for name, item in other.state_dict().items())


def test_frozen_weights_and_sums_over_micro_batches_too(tmp_path: Path) -> None:
    step = traced("layers", train=["5.*"])
    assert in_parts(step.graph).keys() == EXPECTED["layers"].keys()
    assert trained_in_words(step.graph) == "2 of 6 parameters"
    summing = traced("layers", "adamw", micro=MicroBatches(2))
    assert summing.accumulation is not None
    assert summing.accumulation.graph.wholes
    assert summing.accumulation.graph.persistent() == summing.graph.persistent()


@needs_equal_sums
def test_the_evaluation_reads_the_same_parts() -> None:
    step = traced("layers")
    module, inputs = module_of("layers"), torch.zeros(3, 12)
    evaluation = trace_evaluation(module, inputs, step).graph
    assert evaluation.persistent() == step.graph.persistent()
    assert not any(op.name.endswith(".joined") for op in evaluation.ops)
    plain = trace_training_step(module, inputs, measure=False).graph
    joined = in_parts_of(step.graph, plain, lambda parted, bounds: False)
    assert [op.name for op in joined.ops if op.name.endswith(".joined")] == [
        f"{name}.joined" for name in EXPECTED["layers"]
    ]


def test_what_is_not_exact_stays_whole() -> None:
    graph = trace_training_step(module_of("layers"), torch.zeros(3, 12), measure=False).graph
    assert with_parts(graph, lambda parted, bounds: parted.axis is not Axis.SUM).wholes == tuple(
        whole for whole in with_parts(graph, lambda parted, bounds: True).wholes if whole.name == "0.weight"
    )
    assert with_parts(graph, lambda parted, bounds: False) == graph
    clipped = OptimizerSpec("sgd", clip_norm=1.0)
    whole = trace_training_step(module_of("layers"), torch.zeros(3, 12), optimizer=clipped, in_parts=True)
    assert not whole.graph.wholes


@needs_equal_sums
def test_a_machine_with_other_bits_refuses_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "p", traced("layers"), seed=None)
    monkeypatch.setattr(trial, "_exact", {})
    monkeypatch.setattr(forms, "same_bits", lambda one, other: False)
    with pytest.raises(ReplayError, match=r"parameter 3\.weight in \d parts gives other bits here"):
        Trainer.open(tmp_path / "p")
    monkeypatch.setattr(trial, "available_bytes", lambda: 0.0)
    monkeypatch.setattr(trial, "_exact", {})
    Trainer.open(tmp_path / "p").close()  # nothing to try it with


def test_a_sum_whose_parts_end_elsewhere_is_found_out() -> None:
    graph = trace_training_step(nn.Linear(4096, 8), torch.zeros(16, 4096), measure=False).graph
    call = next(op.call for op in graph.ops if op.call.target == "aten.addmm.default")
    parted = PartedCall(blanked(call, {value.name: value.type for value in graph.values}), Axis.SUM)
    bounds = tuple((start, min(start + 7, 4096)) for start in range(0, 4096, 7))
    assert not is_exact_in_parts(parted, bounds)


@needs_equal_sums
def test_reports_say_what_is_in_parts() -> None:
    graph = traced("layers").graph
    (line,) = part_lines(graph)
    assert line.startswith(
        "3 parameters are fetched, used and updated part by part; the largest, 3.weight of"
    )
    assert [item["parameter"] for item in parts_data(graph)] == [*EXPECTED["layers"]]
    assert trained_in_words(graph) == "6 of 6 parameters"


def test_damaged_parts_are_refused() -> None:
    graph = traced("layers").graph
    assert Graph.from_json(graph.to_json()) == graph
    first = graph.wholes[0]
    for wrong in (
        replace(first, parts=first.parts[1:]),
        replace(first, parts=(*first.parts, "0.bias")),
        replace(first, parts=(first.parts[0], *first.parts)),
        replace(first, name="0.bias"),
        replace(first, calls=(replace(first.calls[0], axis=Axis.ELEMENTS),)),
        replace(first, calls=(PartedCall(graph.ops[-1].call, Axis.ROWS),)),
    ):
        with pytest.raises(GraphError):
            replace(graph, wholes=(wrong, *graph.wholes[1:]))
    spec = OptimizerSpec("sgd", clip_norm=1.0)
    clipped = trace_training_step(module_of("layers"), torch.zeros(3, 12), optimizer=spec, measure=False)
    with pytest.raises(ModelError, match="cannot be in parts"):
        in_parts_of(graph, clipped.graph)
    assert cuts_of(first.calls[0])


def test_parts_that_are_no_rows_or_mixed_up_are_refused() -> None:
    """What a stranger's plan may say."""
    whole = Whole("w", contiguous("float32", (4, 2)), ("a", "b"))
    row, rows = contiguous("float32", (1, 2)), contiguous("float32", (3, 2))
    names = ("content", "m", "v")
    check_whole(whole, [[(name, row) for name in names], [(name, rows) for name in names]])
    nothing, all_rows = contiguous("float32", (0, 2)), contiguous("float32", (4, 2))
    for match, parts in (
        ("no rows", [[("content", TensorType("float32", (), ()))], [("content", rows)]]),
        ("no rows", [[("content", nothing)], [("content", all_rows)]]),
        ("twice", [[(name, type_) for name in ("content", "m", "m")] for type_ in (row, rows)]),
        (
            "not trained alike",
            [[(name, row) for name in names], [(name, rows) for name in ("content", "v", "m")]],
        ),
    ):
        with pytest.raises(GraphError, match=match):
            check_whole(whole, parts)


def test_calls_that_have_no_rows_or_do_not_run_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    line, matrix, scalar = (Blank(contiguous("float32", shape)) for shape in ((4,), (4, 4), ()))
    for axis, target, args in (
        (Axis.ROWS, "aten.mm.default", (line, line)),
        (Axis.SUM, "aten.addmm.default", (matrix, matrix, line)),
        (Axis.ELEMENTS, "poet.sgd", (1.0, 2.0, 0.1, 0.0)),
        (Axis.ELEMENTS, "poet.sgd", (scalar, scalar, 0.1, 0.0)),
        (Axis.ELEMENTS, "poet.sgd", (matrix, line, 0.1, 0.0)),
        (Axis.ELEMENTS, "poet.adamw", (matrix, matrix, matrix)),
    ):
        with pytest.raises(GraphError, match="is not divided along"):
            cuts_of(PartedCall(Call(target, args), axis))
    graph = traced("layers").graph
    wrong = PartedCall(Call("poet.sgd", (matrix, 2.0, 0.1, 0.5)), Axis.ELEMENTS)
    with pytest.raises(ReplayError, match="cannot run here"):
        forms.check_exact(replace(graph, wholes=(replace(graph.wholes[0], calls=(wrong,)),)))
    monkeypatch.setattr(trial, "available_bytes", lambda: 1 << 40)
    spread = Blank(TensorType("float32", (1, 1 << 40), (0, 0)))  # 4 bytes, of which kernels make 4 TiB
    product = Call("aten.mm.default", (spread, Blank(TensorType("float32", (1 << 40, 1), (0, 0)))))
    assert not forms.part_trial(PartedCall(product, Axis.ROWS), ((0, 1), (1, 2))).fits
