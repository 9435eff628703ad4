"""What importing an ONNX model makes of it, beside onnxruntime and the original module; what it refuses."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from helpers.onnx_tools import (  # fmt: skip
    BATCH,
    LOSSES,
    in_evaluation,
    make_model,
    run_onnxruntime,
    save,
    zoo_batch,
    zoo_export,
    zoo_module,
)
from helpers.pace import with_slow
from onnx import helper
from torch import Tensor, nn
from torch.nn import functional as F
from zoo import EXPORTERS, NETS, export

from poet.errors import ModelError, UnsupportedOperator
from poet.frontend.onnx.importer import ImportedModel, load_onnx, load_onnx_structure, strip_weights
from poet.frontend.onnx.module import state_names

QUICK_DYNAMO = {("gpt", True)}
"""The dynamo exporter takes seconds for a net: all others are left to the slow tests."""

EXPORTS = [
    pytest.param(
        name,
        exporter,
        mode,
        marks=[pytest.mark.slow] if exporter == "dynamo" and (name, mode) not in QUICK_DYNAMO else [],
    )
    for name in NETS
    for exporter in EXPORTERS
    for mode in (True, False)
]
FOLDED = {"resnet18", "mobilenet_v2", "unet"}
"""Nets with batch norm: the legacy exporter folds it into the convolutions in evaluation mode."""


def _load(name: str, exporter: str, training: bool) -> ImportedModel:
    return load_onnx(zoo_export(name, exporter, training), bind={"N": BATCH})


@pytest.mark.parametrize(("name", "exporter", "training"), EXPORTS)
@pytest.mark.slow
def test_forward_is_that_of_onnxruntime(name: str, exporter: str, training: bool) -> None:
    inputs, _ = zoo_batch(name)
    model = _load(name, exporter, training)
    with torch.no_grad():
        ours = model.module.eval()(*inputs)
    file = in_evaluation(onnx.load(zoo_export(name, exporter, training)))
    torch.testing.assert_close(ours, run_onnxruntime(file, inputs)[0], rtol=0, atol=1e-5)


def _without_dropout(module: nn.Module) -> nn.Module:
    for child in module.modules():
        if isinstance(child, nn.Dropout):
            child.p = 0.0
    return module


def _gradients(name: str, module: nn.Module) -> dict[str, Tensor]:
    inputs, targets = zoo_batch(name)
    module.train()
    torch.manual_seed(2)
    loss = LOSSES[NETS[name].loss](module(*inputs), targets)
    torch.autograd.backward(loss)
    return {key: p.grad for key, p in module.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(("name", "exporter", "training"), EXPORTS)
def test_gradients_are_bitwise_those_of_the_original(name: str, exporter: str, training: bool) -> None:
    if exporter == "legacy" and not training and name in FOLDED:
        pytest.skip("the exporter folded batch norm: the file is another net")
    original = copy.deepcopy(zoo_module(name))
    if not training:  # exporters leave dropout out then
        original = _without_dropout(original)
    model = _load(name, exporter, training)
    model.module.load_state_dict(original.state_dict(), strict=False)
    expected, found = _gradients(name, original), _gradients(name, model.module)
    # the legacy exporter in evaluation mode packs recurrent weights and renames reshaped ones
    shared = [key for key in expected if key in found]
    packed = exporter == "legacy" and not training and name in ("lstm", "convnext")
    assert packed or len(shared) == len(expected) == len(found)
    assert len(shared) >= 3
    for key in shared:
        assert torch.equal(found[key], expected[key]), key


@pytest.mark.parametrize(
    ("name", "exporter"),
    [
        ("resnet18", "legacy"),
        pytest.param("resnet18", "dynamo", marks=pytest.mark.slow),
        pytest.param("mobilenet_v2", "dynamo", marks=pytest.mark.slow),
    ],
)
def test_running_statistics_are_updated_as_by_torch(name: str, exporter: str) -> None:
    original = copy.deepcopy(zoo_module(name))
    model = _load(name, exporter, True)
    model.module.load_state_dict(original.state_dict(), strict=False)
    for module in (original, model.module):
        _gradients(name, module)
    expected = dict(original.named_buffers())
    found = {key: buffer for key, buffer in model.module.named_buffers() if key in expected}
    assert len(found) == sum(not key.endswith("num_batches_tracked") for key in expected)
    for key, buffer in found.items():
        assert torch.equal(buffer, expected[key]), key


@pytest.mark.parametrize("name", with_slow(NETS, {name for name in NETS if (name, True) not in QUICK_DYNAMO}))
def test_parameters_keep_their_names(name: str) -> None:
    model = _load(name, "dynamo", True)
    original = zoo_module(name)
    assert {k: tuple(p.shape) for k, p in model.module.named_parameters()} == {
        k: tuple(p.shape) for k, p in original.named_parameters()
    }


def test_a_head_that_shares_the_embedding_still_does() -> None:
    """The legacy exporter stores a transposed copy for the head in evaluation mode."""
    model = _load("gpt", "legacy", False)
    assert "words.weight" in dict(model.module.named_parameters())
    assert len(list(model.module.parameters())) == len(list(zoo_module("gpt").parameters()))


@pytest.mark.parametrize(("name", "exporter", "training"), EXPORTS[::3])
def test_structure_and_weights_make_the_same_module(name: str, exporter: str, training: bool) -> None:
    model = _load(name, exporter, training)
    structure = strip_weights(model)
    assert structure == strip_weights(zoo_export(name, exporter, training), bind={"N": BATCH})
    again = load_onnx_structure(structure, model.module.state_dict())
    inputs, _ = zoo_batch(name)
    assert torch.equal(again.module.eval()(*inputs), model.module.eval()(*inputs))
    assert again.inputs == model.inputs
    assert [k for k, _ in again.module.named_parameters()] == [k for k, _ in model.module.named_parameters()]
    weights = sum(p.numel() * p.itemsize for p in model.module.parameters())
    assert len(structure) < zoo_export(name, exporter, training).stat().st_size - weights + 5000


def test_a_structure_refuses_wrong_tensors() -> None:
    model = _load("resnet18", "legacy", True)
    structure, tensors = strip_weights(model), dict(model.module.state_dict())
    with pytest.raises(ModelError, match=r"'conv1\.weight' is missing"):
        load_onnx_structure(structure, {k: v for k, v in tensors.items() if k != "conv1.weight"})
    with pytest.raises(ModelError, match=r"'fc\.bias' is \[3\].*expected \[10\]"):
        load_onnx_structure(structure, {**tensors, "fc.bias": torch.zeros(3)})
    with pytest.raises(ModelError, match="does not say how its dimensions are bound"):
        load_onnx_structure(zoo_export("resnet18", "legacy", True).read_bytes(), tensors)
    for note in ("[", '["nobody"]', "{}"):
        damaged = onnx.ModelProto.FromString(structure)
        for entry in damaged.metadata_props:
            entry.value = note if entry.key == "poet.trainable" else entry.value
        with pytest.raises(ModelError, match="does not name parameters of the model"):
            load_onnx_structure(damaged.SerializeToString(), tensors)


# -- dimensions -------------------------------------------------------------------------------------


def test_open_dimensions_are_named() -> None:
    path = zoo_export("resnet18", "legacy", True)
    with pytest.raises(ModelError, match=r"'input0' \(N x 3 x 16 x 16\); bind them, for example --bind N=8"):
        load_onnx(path)
    with pytest.raises(ModelError, match=r"'n' is not an open dimension.*open are: N"):
        load_onnx(path, bind={"N": 2, "n": 2})
    with pytest.raises(ModelError, match="bound to 0, expected at least 1"):
        load_onnx(path, bind={"N": 0})


def test_a_dimension_without_a_name_goes_by_its_place(tmp_path: Path) -> None:
    file = make_model([helper.make_node("Relu", ["x"], ["y"])], {"x": ["", 4]}, ["y"])
    path = save(file, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=r"--bind x\.0=8"):
        load_onnx(path)
    assert load_onnx(path, bind={"x.0": 5}).inputs[0].shape == (5, 4)


class _Patches(nn.Module):
    """A class token and reshapes with the batch written out, as many exports have them."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 6))
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        patches = x.reshape(x.shape[0], 4, 6)
        tokens = torch.cat([self.token.expand(x.shape[0], -1, -1), patches], 1)
        mixed = self.linear(tokens).reshape(x.shape[0] * 5, 6).reshape(x.shape[0], 5, 2, 3)
        result: Tensor = mixed.permute(0, 2, 1, 3).reshape(x.shape[0], -1)
        return result


@pytest.mark.parametrize("baked", [1, 2])
def test_a_baked_batch_is_rebound(tmp_path: Path, baked: int) -> None:
    module = _Patches()
    path = tmp_path / "fixed.onnx"
    with pytest.warns((DeprecationWarning, UserWarning)):
        torch.onnx.export(module, (torch.randn(baked, 24),), str(path), dynamo=False)
    for name in ("N", "batch"):
        model = load_onnx(path, bind={name: 6})
        x = torch.randn(6, 24)
        torch.testing.assert_close(model.module(x), module(x))
    assert load_onnx(path).inputs[0].shape == (baked, 24)


def test_inputs_are_checked_when_the_module_runs() -> None:
    model = _load("resnet18", "legacy", True)
    with pytest.raises(ModelError, match=r"'input0' is \[1, 3, 16, 16\].*expected \[3, 3, 16, 16\]"):
        model.module(torch.zeros(1, 3, 16, 16))
    with pytest.raises(ModelError, match="1 inputs, 0 were given"):
        model.module()


# -- what exporters take apart -----------------------------------------------------------------------


class _Attention(nn.Module):
    mask: Tensor | None

    def __init__(self, *, causal: bool = False, masked: bool = False) -> None:
        super().__init__()
        self.causal = causal
        self.register_buffer("mask", torch.randn(5, 5) if masked else None)

    def forward(self, x: Tensor) -> Tensor:
        heads = x.reshape(x.shape[0], 5, 3, 4).transpose(1, 2)
        mixed: Tensor = F.scaled_dot_product_attention(
            heads, heads * 2, heads * 3, self.mask, is_causal=self.causal
        )
        return mixed


@pytest.mark.parametrize(
    ("build", "operator", "exporter"),
    [
        (nn.GELU, "Gelu", "legacy"),
        (nn.SiLU, "Silu", "legacy"),
        pytest.param(nn.SiLU, "Silu", "dynamo", marks=pytest.mark.slow),
        (partial(nn.Linear, 12, 7), "Linear", "legacy"),
        (partial(nn.Linear, 12, 7, bias=False), "Linear", "legacy"),
        (_Attention, "Attention", "legacy"),
        (partial(_Attention, causal=True), "Attention", "legacy"),
        (partial(_Attention, masked=True), "Attention", "legacy"),
        pytest.param(partial(_Attention, masked=True), "Attention", "dynamo", marks=pytest.mark.slow),
    ],
)
def test_patterns_are_joined_and_bitwise_equal(
    tmp_path: Path, build: Callable[[], nn.Module], operator: str, exporter: str
) -> None:
    torch.manual_seed(0)
    module = build()
    x = torch.randn(2, 5, 12)
    path = tmp_path / "m.onnx"
    export(module, (x,), path, exporter=exporter)
    model = load_onnx(path, bind={"N": 2})
    assert [call.op for call in model.module.calls].count(operator) == 1
    # the legacy exporter does not tell a buffer from a parameter
    model.module.requires_grad_(False)
    trained = [model.module.get_parameter(name).requires_grad_() for name, _ in module.named_parameters()]
    results = []
    for candidate, parameters in ((module, module.parameters()), (model.module, trained)):
        inputs = x.clone().requires_grad_()
        output = candidate(inputs)
        gradient = torch.autograd.grad(output.square().sum(), [inputs, *parameters])
        results.append((output, *gradient))
    for ours, theirs in zip(*results, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("opset", [14, 16])
def test_layer_norm_is_joined(tmp_path: Path, opset: int) -> None:
    module = nn.LayerNorm(6, eps=1e-6)
    nn.init.normal_(module.weight)
    x = torch.randn(2, 5, 6)
    export(module, (x,), tmp_path / "m.onnx", exporter="legacy", opset=opset)
    model = load_onnx(tmp_path / "m.onnx", bind={"N": 2})
    assert [call.op for call in model.module.calls] == ["LayerNorm"]
    assert torch.equal(model.module(x), module(x))


def test_group_norm_is_joined(tmp_path: Path) -> None:
    module = nn.GroupNorm(2, 6)
    nn.init.normal_(module.weight)
    x = torch.randn(2, 6, 4, 4)
    export(module, (x,), tmp_path / "m.onnx", exporter="legacy")
    model = load_onnx(tmp_path / "m.onnx", bind={"N": 2})
    assert [call.op for call in model.module.calls][-1] == "GroupNorm"
    assert torch.equal(model.module(x), module(x))


def test_epsilon_and_momentum_are_the_decimals_that_were_meant(tmp_path: Path) -> None:
    """Single precision turns 1e-5 into 9.99999974e-06, and 1 - 0.9 into 0.09999999999999998."""
    module = nn.Sequential(nn.BatchNorm1d(4, eps=1e-3, momentum=0.03), nn.LayerNorm(4, eps=1e-12))
    x = torch.randn(8, 4)
    export(module, (x,), tmp_path / "m.onnx", exporter="legacy")
    model = load_onnx(tmp_path / "m.onnx", bind={"N": 8})
    module = copy.deepcopy(module)
    model.module.load_state_dict(module.state_dict(), strict=False)
    assert torch.equal(model.module(x), module(x))
    buffers = dict(model.module.named_buffers())
    for key in ("0.running_mean", "0.running_var"):
        assert torch.equal(buffers[key], dict(module.named_buffers())[key])


# -- control flow, functions, unsupported -----------------------------------------------------------


def test_an_if_with_a_known_condition_is_its_branch(tmp_path: Path) -> None:
    def branch(op: str, name: str) -> onnx.GraphProto:
        output = helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
        return helper.make_graph([helper.make_node(op, ["x"], [name])], name, [], [output])

    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Size", ["shape"], ["rank"]),
        helper.make_node("Constant", [], ["two"], value_int=2),
        helper.make_node("Equal", ["rank", "two"], ["flat"]),
        helper.make_node(
            "If", ["flat"], ["y"], then_branch=branch("Neg", "a"), else_branch=branch("Abs", "b")
        ),
    ]
    path = save(make_model(nodes, {"x": [2, 3]}, ["y"]), tmp_path / "m.onnx")
    x = torch.randn(2, 3)
    assert torch.equal(load_onnx(path).module(x), -x)


def test_an_if_that_depends_on_data_is_refused(tmp_path: Path) -> None:
    output = helper.make_tensor_value_info("a", onnx.TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["a"])], "a", [], [output])
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["top"], keepdims=0),
        helper.make_node("Cast", ["top"], ["flag"], to=onnx.TensorProto.BOOL),
        helper.make_node("If", ["flag"], ["y"], name="choice", then_branch=graph, else_branch=graph),
    ]
    path = save(make_model(nodes, {"x": [2]}, ["y"]), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=r"node 'choice' \(If\): its condition .* depends on data"):
        load_onnx(path)


def test_local_functions_are_inlined(tmp_path: Path) -> None:
    function = helper.make_function(
        "local", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])],
        [helper.make_opsetid("", 18)],
    )  # fmt: skip
    model = make_model([helper.make_node("Twice", ["x"], ["y"], domain="local")], {"x": [3]}, ["y"])
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("local", 1))
    x = torch.randn(3)
    assert torch.equal(load_onnx(save(model, tmp_path / "m.onnx")).module(x), x + x)


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (helper.make_node("Unique", ["x"], ["y"], name="u"), r"node 'u' \(Unique\): the operator is not in"),
        (helper.make_node("Reluu", ["x"], ["y"], name="r"), "did you mean 'Relu'"),
        (helper.make_node("FusedConv", ["x"], ["y"], domain="acme"), r"node 'y' \(acme::FusedConv\)"),
        (helper.make_node("Scan", ["x"], ["y"], name="s"), "loops are not supported"),
    ],
)
def test_an_unsupported_operator_is_named_with_its_node(
    tmp_path: Path, node: onnx.NodeProto, message: str
) -> None:
    path = save(make_model([node], {"x": [3]}, ["y"]), tmp_path / "m.onnx")
    with pytest.raises(UnsupportedOperator, match=message):
        load_onnx(path)


def test_a_shape_that_depends_on_data_is_refused(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["shape"], to=onnx.TensorProto.INT64),
        helper.make_node("Reshape", ["x", "shape"], ["y"], name="r"),
    ]
    path = save(make_model(nodes, {"x": [1]}, ["y"]), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=r"node 'r' \(Reshape\): its shape \('shape'\) depends on data"):
        load_onnx(path)


def test_constants_have_storages_of_their_own(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Constant", [], ["both"], value_floats=[1.0, 2.0, 3.0, 4.0]),
        helper.make_node("Split", ["both"], ["a", "b"], num_outputs=2),
        helper.make_node("Add", ["x", "a"], ["xa"]),
        helper.make_node("Add", ["xa", "b"], ["xab"]),
        helper.make_node("Add", ["xab", "a"], ["y"]),
    ]
    module = load_onnx(save(make_model(nodes, {"x": [2]}, ["y"]), tmp_path / "m.onnx")).module
    buffers = list(module.buffers())
    assert [buffer.tolist() for buffer in buffers] == [[1, 2], [3, 4]]
    assert len({buffer.untyped_storage().data_ptr() for buffer in buffers}) == 2
    assert module(torch.zeros(2)).tolist() == [5, 8]
    assert not module.state_dict()


# -- which initialisers are weights -----------------------------------------------------------------


def test_masks_numbers_and_statistics_are_no_parameters(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Mul", ["x", "val_3"], ["scaled"]),
        helper.make_node("Add", ["scaled", "mask"], ["masked"]),
        helper.make_node("Mul", ["masked", "temperature"], ["y"]),
    ]
    weights: dict[str, np.ndarray] = {
        "val_3": np.full((), 0.5, np.float32),
        "mask": np.where(np.tri(4) > 0, 0, -np.inf).astype(np.float32),
        "temperature": np.ones((), np.float32),
    }
    model = load_onnx(save(make_model(nodes, {"x": [4, 4]}, ["y"], weights), tmp_path / "m.onnx"))
    assert [name for name, _ in model.module.named_parameters()] == ["temperature"]


def test_names_become_safe_and_stay_unique() -> None:
    names = state_names(["a", "a.b", "gpu_0/conv1_w_0", "onnx::MatMul_7", "x.forward", "block/type", "a/b"])
    assert names["gpu_0/conv1_w_0"] == "gpu_0.conv1_w_0"
    assert names["onnx::MatMul_7"] == "onnx_MatMul_7"
    assert len(set(names.values())) == len(names)
    parts = [name.split(".") for name in names.values()]
    prefixes = {".".join(path[:depth]) for path in parts for depth in range(1, len(path))}
    assert prefixes.isdisjoint(names.values())


def test_a_weight_keeps_a_name_of_its_own_when_it_is_turned(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "dense.kernel"], ["dense"]),
        helper.make_node("MatMul", ["dense", "onnx::MatMul_7"], ["last"]),
        helper.make_node("Add", ["last", "head.bias"], ["sum"]),
        helper.make_node("Mul", ["sum", "dense.weight"], ["y"]),
    ]
    generator = np.random.default_rng(0)
    shapes = {"dense.kernel": (3, 4), "onnx::MatMul_7": (4, 5), "head.bias": (5,), "dense.weight": (5,)}
    weights = {name: generator.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    module = load_onnx(save(make_model(nodes, {"x": [2, 3]}, ["y"], weights), tmp_path / "m.onnx")).module
    assert {name: tuple(p.shape) for name, p in module.named_parameters()} == {
        "dense.kernel.transposed": (4, 3),
        "head.weight": (5, 4),
        "head.bias": (5,),
        "dense.weight": (5,),
    }
    x = torch.randn(2, 3)
    a, b, c, d = (torch.from_numpy(content) for content in weights.values())
    torch.testing.assert_close(module(x), (x @ a @ b + c) * d)


def test_a_weight_that_is_one_number_has_its_size_checked(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("ConstantOfShape", ["w__SHAPE"], ["w"]),
        helper.make_node("Add", ["x", "w"], ["y"]),
    ]
    shape = {"w__SHAPE": np.array([1 << 20, 1 << 20], np.int64)}
    with pytest.raises(ModelError, match=r"node 'w' .*a weight of shape \[1048576, 1048576\]"):
        load_onnx(save(make_model(nodes, {"x": [1]}, ["y"], shape), tmp_path / "m.onnx"))
