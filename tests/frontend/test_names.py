"""Names, layouts and frozen flags of a given module; random operators; models that look at contents."""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from helpers.onnx_tools import make_model, save
from helpers.pace import with_slow
from onnx import TensorProto, helper
from torch import Tensor, nn
from torch.jit._trace import is_tracing
from torch.nn import functional as F
from usual_nets import Encoder, LoRA, MaskedAttention

from poet import api
from poet.errors import ModelError, UnsupportedOperator
from poet.frontend.onnx.check import check_model
from poet.frontend.onnx.importer import load_onnx, load_onnx_structure, strip_weights
from poet.frontend.onnx.names import NAMES_KEY
from poet.frontend.plain import PlainTrainer
from poet.frontend.trace import trace_training_step
from poet.ir.optimizer import OptimizerSpec
from poet.problem import Limits
from poet.runtime import Trainer
from poet.verification import verify

TRAINING = {"dynamo": False, "training": torch.onnx.TrainingMode.TRAINING}
LEGACY = {"dynamo": False}


def _export(module: nn.Module, x: Tensor, path: Path, options: dict[str, Any]) -> Path:
    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (x,), str(path), verbose=False, **options)
    return path


class Normed(nn.Module):
    """Group norm, whose weights an exporter gives more dimensions, and batch norm, which counts."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.group, self.batch = nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 3)
        nn.init.normal_(self.group.weight)
        nn.init.normal_(self.group.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.batch(self.group(self.convolution(x))).mean((2, 3)))  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    """Two kinds of layers, each of two numbers, whose weights an exporter stacks by direction and gate."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.GRU(5, 4, num_layers=2, bidirectional=True)
        self.second = nn.LSTM(8, 3, bias=False)
        self.third = nn.RNN(3, 3, num_layers=2)
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):  # equal layers are told by their order
            self.third.get_parameter(f"{name}_l1").data.copy_(self.third.get_parameter(f"{name}_l0").data)
        self.fourth = copy.deepcopy(self.third).requires_grad_(False)  # and equal modules by their place
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.first, self.second, self.third, self.fourth):
            x, _ = layer(x)
        return self.head(x.mean(0))  # type: ignore[no-any-return]


class Tied(nn.Module):
    """A head that is the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(12, 8), nn.Linear(8, 12, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.embedding(words).mean(1))  # type: ignore[no-any-return]


NETS: dict[str, tuple[type[nn.Module], Tensor, dict[str, Any]]] = {
    "attention": (MaskedAttention, torch.randn(2, 6, 16), LEGACY),
    "equal layers": (Encoder, torch.randn(2, 6, 16), TRAINING),
    "norms": (Normed, torch.randn(2, 3, 6, 6), TRAINING),
    "lora": (LoRA, torch.randn(4, 12), LEGACY),
    "recurrent": (Recurrent, torch.randn(6, 2, 5), TRAINING),
    "recurrent, operators of 2019": (Recurrent, torch.randn(6, 2, 5), {**TRAINING, "opset_version": 11}),
    "tied": (Tied, torch.randint(12, (2, 5)), TRAINING),
}


@pytest.mark.parametrize("name", NETS)
def test_a_renamed_model_gets_its_names_back(name: str, tmp_path: Path) -> None:
    build, x, options = NETS[name]
    torch.manual_seed(0)
    module = build().train()
    path = _export(module, x, tmp_path / "m.onnx", options)
    with pytest.raises(RuntimeError, match=r"Missing key|Unexpected key"):
        module.load_state_dict(load_onnx(path).module.state_dict())
    state = {key: value.clone() for key, value in module.state_dict().items()}
    found = load_onnx(path, names=module)
    assert found.remark == ""
    module.load_state_dict(found.module.state_dict())
    for key, value in module.state_dict().items():
        assert torch.equal(value, state[key]), key
    frozen = {key for key, item in module.named_parameters() if not item.requires_grad}
    assert frozen == {key for key, item in found.module.named_parameters() if not item.requires_grad}
    again = load_onnx_structure(strip_weights(found), found.module.state_dict()).module
    assert again.state_dict().keys() == state.keys()
    assert frozen == {key for key, item in again.named_parameters() if not item.requires_grad}


def test_what_is_trained_loads_strictly_and_frozen_stays_frozen(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, x = LoRA().train(), torch.randn(4, 12)
    path = _export(module, x, tmp_path / "m.onnx", LEGACY)
    torch.save(module.state_dict(keep_vars=True), tmp_path / "m.pt")
    prepared = api.prepare(path, device="rpi4b", names=tmp_path / "m.pt")
    assert prepared.names_remark == ""
    api.plan_step(prepared, Limits()).save(tmp_path / "p.poet")
    before = {key: value.clone() for key, value in module.state_dict().items()}
    with Trainer.open(tmp_path / "p.poet", arena=False) as trainer:
        trainer.step(x, torch.randint(5, (4,)))
        module.load_state_dict(trainer.state_dict())
    changed = {key for key, value in module.state_dict().items() if not torch.equal(value, before[key])}
    assert changed == {key for key, item in module.named_parameters() if item.requires_grad}


def test_batches_are_counted_as_torch_counts_them(tmp_path: Path) -> None:
    module, x = Normed().train(), torch.randn(2, 3, 6, 6)
    found = load_onnx(_export(module, x, tmp_path / "m.onnx", TRAINING), names=module).module
    found(x)
    found(x)
    found.eval()(x)
    assert found.get_buffer("batch.num_batches_tracked") == module.get_buffer("batch.num_batches_tracked") + 2


def test_what_cannot_be_matched_is_counted(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()
    path = _export(module, torch.randn(1, 3, 5, 5), tmp_path / "m.onnx", LEGACY)  # folds the norm
    remark = load_onnx(path, names=module).remark
    assert "tensors were not found in the model (0.weight" in remark
    assert "2 of the model's 2 parameters keep the file's names" in remark
    assert "does not say which parameters are frozen" in load_onnx(path, names=module.state_dict()).remark


def test_names_are_never_unpickled(tmp_path: Path) -> None:
    module, x = LoRA(), torch.randn(4, 12)
    path = _export(module, x, tmp_path / "m.onnx", LEGACY)
    torch.save(module, tmp_path / "whole.pt")
    with pytest.raises(ModelError, match=r"whole\.pt: not tensors alone .*state_dict"):
        load_onnx(path, names=tmp_path / "whole.pt")
    with pytest.raises(ModelError, match=r"none\.pt: No such file"):
        load_onnx(path, names=tmp_path / "none.pt")


def test_a_damaged_note_of_names_is_refused(tmp_path: Path) -> None:
    node = helper.make_node("Gemm", ["x", "w"], ["y"])
    model = make_model([node], {"x": [2, 3]}, ["y"], {"w": torch.randn(3, 4).numpy()})
    for note in ("[", "[]", '{"names": {"v": "a"}}', "[" * 100_000):
        del model.metadata_props[:]
        model.metadata_props.add(key=NAMES_KEY, value=note)
        with pytest.raises(ModelError, match=r"note 'poet\.names' is damaged"):
            load_onnx(save(model, tmp_path / "m.onnx"))


class Buffered(nn.Module):
    """A buffer that is not saved, and a tensor under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.register_buffer("scale", torch.full((4,), 2.0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x) * self.scale)  # type: ignore[no-any-return]


def test_a_state_dict_has_tied_names_and_no_constants(tmp_path: Path) -> None:
    module, x = Buffered(), torch.randn(3, 4)
    prepared = api.prepare(module, x, device="rpi4b")
    api.plan_step(prepared, Limits()).save(tmp_path / "p.poet")
    with Trainer.open(tmp_path / "p.poet", arena=False) as trainer:
        trainer.step(x, torch.randint(4, (3,)))
        module.load_state_dict(trainer.state_dict())
        trainer.save(tmp_path / "s.safetensors")
    with Trainer.open(tmp_path / "p.poet", arena=False, resume=tmp_path / "s.safetensors") as again:
        assert torch.equal(again.state_dict()["second.weight"], module.first.weight)
    assert verify(tmp_path / "p.poet", module=Buffered(), steps=1, threads=(1,)).exact


# --- random operators -------------------------------------------------------------------------


def _gradient(net: nn.Module, x: Tensor) -> Tensor:
    torch.manual_seed(3)
    torch.autograd.backward(net(x).square().sum())
    gradient = net.get_parameter("0.weight").grad
    assert gradient is not None
    return gradient


@pytest.mark.parametrize(
    ("share", "optimize"),
    with_slow(
        [(0.2, True), (0.2, False), (0.9, True), (0.9, False)], {(0.2, False), (0.9, True), (0.9, False)}
    ),
)
def test_dropout_in_place_is_dropout(share: float, optimize: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Linear(4, 60), nn.Hardswish(inplace=True), nn.Dropout(share, inplace=True)
    ).train()
    x = torch.randn(5, 4)
    path = _export(module, x, tmp_path / "m.onnx", {"dynamo": True, "optimize": optimize})
    imported = load_onnx(path).module
    assert [name for name, _ in imported.named_parameters()] == ["0.weight", "0.bias"]
    assert torch.equal(*(_gradient(net, x) for net in (module, imported)))
    assert torch.equal(module.eval()(x), imported.eval()(x))


def test_a_mask_that_is_named_and_not_read_is_not_made(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 40), nn.Dropout(0.3), nn.LayerNorm(40)).train()
    x = torch.randn(5, 6)
    path = _export(module, x, tmp_path / "m.onnx", TRAINING)
    file = onnx.load(path)
    dropout = next(node for node in file.graph.node if node.op_type == "Dropout")
    assert len(dropout.output) == 2
    imported = load_onnx(path).module
    step = trace_training_step(imported, (x,), loss="mse", measure=False)
    assert "aten.native_dropout.default" not in {op.call.target for op in step.graph.ops}
    assert torch.equal(*(_gradient(net, x) for net in (module, imported)))
    mask = helper.make_tensor_value_info(dropout.output[1], TensorProto.BOOL, [5, 40])
    file.graph.output.append(mask)
    onnx.save(file, path)
    torch.manual_seed(3)
    drawn = load_onnx(path).module(x)[1]
    assert drawn.dtype == torch.bool
    assert 0 < int(drawn.sum()) < drawn.numel()


RANDOM: dict[str, tuple[dict[str, Any], Callable[[Tensor], Tensor]]] = {
    "RandomUniformLike": ({"low": 1.0, "high": 2.0}, lambda x: torch.empty_like(x).uniform_(1, 2)),
    "RandomNormalLike": ({"mean": 0.5, "scale": 2.0}, lambda x: torch.empty_like(x).normal_(0.5, 2)),
    "RandomUniform": ({"shape": [3, 40]}, torch.rand_like),
    "RandomNormal": ({"shape": [3, 40]}, torch.randn_like),
    "Bernoulli": ({}, torch.bernoulli),
}


@pytest.mark.parametrize("op", RANDOM)
def test_random_operators_draw_as_torch_does(op: str, tmp_path: Path) -> None:
    attributes, expected = RANDOM[op]
    node = helper.make_node(op, [] if "shape" in attributes else ["x"], ["r"], **attributes)
    nodes = [node, helper.make_node("Add", ["x", "r"], ["y"])]
    module = load_onnx(save(make_model(nodes, {"x": [3, 40]}, ["y"]), tmp_path / "m.onnx")).module
    x = torch.rand(3, 40)
    torch.manual_seed(5)
    found = module(x)
    torch.manual_seed(5)
    assert torch.equal(found, x + expected(x))


def test_random_operators_refuse_what_they_cannot_do(tmp_path: Path) -> None:
    node = helper.make_node("RandomUniformLike", ["x"], ["y"], dtype=TensorProto.INT64)
    with pytest.raises(ModelError, match=r"RandomUniformLike.*int64; expected a float type"):
        load_onnx(save(make_model([node], {"x": [2]}, ["y"]), tmp_path / "m.onnx"))


# --- what is refused, and what goes away while exporting ------------------------------------------


class Shortcut(nn.Module):
    """Leaves a mask out where it hides nothing, except while it is exported."""

    def __init__(self, told_by: str = "") -> None:
        super().__init__()
        self.linear, self.told_by = nn.Linear(4, 3), told_by

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        told = {"compiler": torch.compiler.is_exporting(), "jit": is_tracing(), "": False}  # type: ignore[no-untyped-call]
        if not told[self.told_by] and mask.all():
            return self.linear(x)  # type: ignore[no-any-return]
        return self.linear(torch.where(mask, x, 0.0) * 1.0)  # type: ignore[no-any-return]


@pytest.mark.parametrize("told_by", ["compiler", "jit"])
def test_a_shortcut_goes_away_as_while_exporting(told_by: str) -> None:
    net, inputs = Shortcut(told_by), (torch.randn(2, 4), torch.ones(2, 4, dtype=torch.bool))
    step = trace_training_step(net, inputs, measure=False)
    assert any(op.call.target.startswith("aten.where") for op in step.graph.ops)
    assert not torch.compiler.is_exporting()
    assert not is_tracing()  # type: ignore[no-untyped-call]
    names = [name for name, _ in net.named_parameters()]
    plain = PlainTrainer(net, loss="cross-entropy", optimizer=OptimizerSpec(), trained=names)
    plain.step(inputs, torch.tensor([0, 1]))  # as it was planned, not by the shortcut
    assert plain.is_exported


def test_a_refusal_names_the_line_and_the_way_out() -> None:
    inputs = (torch.randn(2, 4), torch.ones(2, 4, dtype=torch.bool))
    with pytest.raises(ModelError, match=r"contents.*at test_names\.py:\d+ \(if not told.*is_exporting"):
        trace_training_step(Shortcut(), inputs, measure=False)

    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return F.softmax(self.linear(x), 1).cumprod(1)

    with pytest.raises(
        UnsupportedOperator, match=r"cumprod.*at test_names\.py:\d+ \(return .*plan the ONNX file"
    ):
        trace_training_step(Product(), torch.randn(2, 4), measure=False)


def test_an_unknown_node_names_the_route_and_is_no_lack_of_gradients(tmp_path: Path) -> None:
    nodes = [helper.make_node("Gemm", ["x", "w"], ["h"]), helper.make_node("Multinomial", ["h"], ["y"])]
    model = make_model(nodes, {"x": [2, 3]}, ["y"], {"w": torch.randn(3, 4).numpy()})
    path = save(model, tmp_path / "m.onnx")
    with pytest.raises(UnsupportedOperator, match=r"Multinomial.*torch's other exporter.*or plan the module"):
        load_onnx(path)
    assert check_model(path).obstacles == ("1 of 2 nodes cannot be imported",)
