"""A frozen base in fewer bits: formats, bits, files that bring packed weights, what is refused."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn
from zoo.decoder import ADAPTERS, Decoder

import poet
from poet.errors import InputError, ModelError, PlanError
from poet.files.gguf import GgufFile
from poet.frontend.gguf_weights import _as_llama_cpp
from poet.frontend.trace import trace_training_step
from poet.ir.graph import Graph
from poet.ir.named import bounds_of
from poet.ir.packed import BLOCK_BYTES, DEQUANTISE, FORMATS, BaseSpec, Packed
from poet.passes.base import base_of, packed_rows
from poet.planning.exported import export_state
from poet.problem.schedule import PageOut
from poet.runtime import Trainer, native
from poet.runtime.kernels.dequantised import as_used, dequantise
from poet.verification import verify

LOSS = "cross-entropy:dim=-1"
TYPES = {"q4_0": gguf.GGMLQuantizationType.Q4_0, "q8_0": gguf.GGMLQuantizationType.Q8_0}
Net = Callable[[], tuple[nn.Module, Tensor, tuple[str, ...]]]
CaseOf = Callable[[str], tuple[poet.Planned, nn.Module, Path]]


def random_weight(*shape: int) -> Tensor:
    weight = torch.randn(*shape, generator=torch.Generator().manual_seed(0))
    weight[0] = 0.0
    return weight


# --- formats ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BLOCK_BYTES)
def test_rows_are_those_of_the_gguf_package(name: str) -> None:
    weight = random_weight(40, 96)
    rows = packed_rows(weight, Packed(name, (40, 96)))
    theirs = gguf.quants.quantize(weight.numpy(), TYPES[name])
    assert np.array_equal(rows.numpy(), theirs)
    given = torch.randint(0, 256, rows.shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    given.view(40, -1, BLOCK_BYTES[name])[:, :, 1] &= 0xBB  # a scale that is a number
    for packed in (rows, given):
        expected = gguf.quants.dequantize(packed.numpy(), TYPES[name])
        assert np.array_equal(dequantise(packed, name, (40, 96)).numpy(), expected)


@pytest.mark.parametrize("name", FORMATS)
def test_compiled_kernel_and_numpy_give_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    how = Packed(name, (9, 2, 32))
    rows = torch.randint(
        0, 256, how.packed_shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(2)
    )
    compiled = as_used(rows, how)
    monkeypatch.setattr(native, "load", lambda: None)
    assert np.array_equal(compiled.numpy(), as_used(rows, how).numpy(), equal_nan=True)


@pytest.mark.parametrize("name", FORMATS)
def test_compiled_kernel_and_torch_pack_alike(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    weight, how = random_weight(40, 96), Packed(name, (40, 96))
    weight[3:6] = torch.randint(-9, 9, (3, 96)).float() / 2  # ties
    weight[6] = 0
    weight[7] *= 1e-9
    compiled = packed_rows(weight, how)
    monkeypatch.setattr(native, "load", lambda: None)
    assert torch.equal(compiled, packed_rows(weight, how))


def test_int8_is_symmetric_by_row() -> None:
    weight = random_weight(6, 5)
    rows = packed_rows(weight, Packed("int8", (6, 5)))
    scales = weight.abs().amax(1, keepdim=True) / 127
    expected = (weight / scales).nan_to_num().round() * scales
    torch.testing.assert_close(as_used(rows, Packed("int8", (6, 5))), expected)


@pytest.mark.parametrize(
    ("shape", "name", "asked"),
    [((3, 18), "q4_0", (3, 33)), ((3, 18), "q4_0", (2, 32)), ((3, 17), "q4_0", (3, 32)),
     ((3, 4), "int8", (3, 0)), ((0, 18), "q4_0", (0, 32)), ((3, 18), "q5", (3, 32))],
)  # fmt: skip
def test_rows_that_are_no_such_weight_are_refused(
    shape: tuple[int, ...], name: str, asked: tuple[int, ...]
) -> None:
    with pytest.raises(PlanError, match="packed as"):
        dequantise(torch.zeros(shape, dtype=torch.uint8), name, asked)


@pytest.mark.parametrize("text", ["q4", "q4_0:lm_head", "q4_0:except=", ""])
def test_a_base_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        BaseSpec.parse(text)


# --- bits -------------------------------------------------------------------------------------


def decoder() -> tuple[nn.Module, Tensor, tuple[str, ...]]:
    torch.manual_seed(0)
    net = Decoder(layers=1, width=64, heads=2, shared_heads=1, inner=96, words=300, length=16, rank=2)
    return net, torch.zeros(1, 16, dtype=torch.long), ADAPTERS


def convolutions() -> tuple[nn.Module, Tensor, tuple[str, ...]]:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 8, 1), nn.ReLU(), nn.Flatten(), nn.Linear(288, 5)
    )
    return net, torch.randn(2, 3, 8, 8), ("5.*", "0.bias", "2.bias")


class Gated(nn.Module):
    """Words, a norm and two layers that are frozen, and one that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(300, 64), nn.LayerNorm(64)
        self.gate, self.expand = nn.Linear(64, 96, bias=False), nn.Linear(96, 64)
        self.out = nn.Linear(64, 5)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.out(self.expand(self.gate(self.norm(self.words(x)))).mean(1))
        return scores


WORDS = torch.zeros(2, 16, dtype=torch.long)


def planned(net: Net, path: Path, **more: object) -> tuple[poet.Planned, nn.Module]:
    module, inputs, train = net()
    loss = LOSS if net is decoder else "cross-entropy"
    given: dict[str, object] = {"ram": None, "home": "storage", "evaluation": False, "time_limit_seconds": 5}
    made = poet.plan(module, inputs, device="rpi4b", loss=loss, train=train, **(given | more))  # type: ignore[arg-type]
    made.save(path)
    return made, module


CASES: dict[str, tuple[Net, dict[str, Any]]] = {
    "q4_0, logits": (decoder, {"base": "q4_0", "gradients": "logits"}),
    "q8_0": (decoder, {"base": "q8_0"}),
    "int8, convolutions": (convolutions, {"base": "int8", "home": "ram", "evaluation": True}),
}


@pytest.fixture(scope="module")
def case_of(tmp_path_factory: pytest.TempPathFactory) -> CaseOf:
    """Each case, planned once for all tests."""

    @cache
    def of(case: str) -> tuple[poet.Planned, nn.Module, Path]:
        net, more = CASES[case]
        path = tmp_path_factory.mktemp("base") / "plan.poet"
        return *planned(net, path, **more), path

    return of


@pytest.mark.parametrize("case", CASES)
def test_a_step_has_the_bits_of_plain_pytorch(case: str, case_of: CaseOf) -> None:
    made, module, path = case_of(case)
    graph = made.plan.graph
    packed = base_of(graph)
    assert packed
    weights = {name: item.detach().clone() for name, item in module.named_parameters()}
    assert verify(path, module=module, threads=(1, 2), steps=1)
    with Trainer.open(path) as trainer:  # held against the weights that were given, not what it says itself
        for name, how in packed.items():
            expected = as_used(packed_rows(weights[name], how), how)
            assert torch.equal(trainer.parameters()[name], expected), name
    if CASES[case][0] is decoder:
        assert {op.call.target for op in graph.ops} >= {DEQUANTISE, "aten.embedding.default"}
        assert graph.buffer_of("words.weight.q4_0" if "q4_0" in case else "words.weight.q8_0")


def test_a_tight_budget_dequantises_again(tmp_path: Path, case_of: CaseOf) -> None:
    ram = int(0.8 * case_of("q4_0, logits")[0].plan.prediction.peak_ram_bytes)
    tight, module = planned(
        decoder, tmp_path / "tight.poet", base="q4_0", gradients="logits", ram=ram, time_limit_seconds=1.0
    )
    report = verify(tmp_path / "tight.poet", module=module, threads=(1, 2), steps=1)
    assert report
    assert report.recomputed_runs > 0
    frozen = {item.value for item in tight.plan.graph.parameters if item.packed}
    assert not {step.tensor for step in tight.plan.schedule if isinstance(step, PageOut)} & frozen


def test_parts_are_packed_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poet.passes.parts.LEAST_BYTES", 1)
    monkeypatch.setattr("poet.passes.parts._LEAST_PART_BYTES", 1)
    monkeypatch.setattr("poet.passes.parts._STEPS", (64,))
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 256), nn.Linear(256, 4))
    step = trace_training_step(net, torch.randn(3, 64), train=["1.*"], base=BaseSpec("q4_0"), measure=True)
    (whole,) = step.graph.wholes
    assert bounds_of(step.graph, whole)[-1][1] == 256
    rows = packed_rows(net[0].weight, Packed("q4_0", (256, 64)))  # type: ignore[arg-type]
    parts = torch.cat([step.tensors[f"0.weight[{a}:{b}].q4_0"] for a, b in bounds_of(step.graph, whole)])
    assert torch.equal(rows, parts)
    assert base_of(step.graph) == {"0.weight": Packed("q4_0", (256, 64))}
    assert Graph.from_json(step.graph.to_json()) == step.graph


def test_patterns_leave_weights_as_they_are() -> None:
    base = BaseSpec.parse("q8_0:except=words.*,*gate.*")
    step = trace_training_step(Gated(), WORDS, train=["out.*"], base=base, measure=False)
    assert base_of(step.graph).keys() == {"expand.weight"}


def test_a_base_of_nothing_is_refused() -> None:
    with pytest.raises(ModelError, match="no frozen float32 weight"):
        trace_training_step(nn.Linear(32, 4), torch.zeros(2, 32), base=BaseSpec("q4_0"), measure=False)


def test_a_state_dict_is_what_the_base_stands_for(tmp_path: Path, case_of: CaseOf) -> None:
    made, module, path = case_of("q4_0, logits")
    export_state(path, tmp_path / "state.safetensors")
    from safetensors.torch import load_file

    state = load_file(tmp_path / "state.safetensors")
    for name, how in base_of(made.plan.graph).items():
        weight = dict(module.named_parameters())[name]
        assert torch.equal(state[name], as_used(packed_rows(weight, how), how))


# --- files ------------------------------------------------------------------------------------


def gguf_file(path: Path, tensors: dict[str, tuple[Tensor, str]]) -> Path:
    """As the ``gguf`` package writes it; each tensor in a format, or as it is."""
    writer = gguf.GGUFWriter(path, "test")
    writer.add_array("words", ["a", "bc"])
    for name, (tensor, kind) in tensors.items():
        if kind in TYPES:
            rows = gguf.quants.quantize(tensor.numpy(), TYPES[kind])
            writer.add_tensor(name, rows, raw_dtype=TYPES[kind])
        else:
            writer.add_tensor(name, tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_weights_of_a_gguf_file_take_the_place_of_the_models(tmp_path: Path) -> None:
    module, words, gate = Gated(), random_weight(300, 64), random_weight(96, 64)
    norm = random_weight(2, 64)[1].clone()
    path = gguf_file(
        tmp_path / "model.gguf",
        {
            "words.weight": (words, "q4_0"), "gate.weight": (gate, "q8_0"),
            "norm.weight": (norm, ""), "other": (norm, ""),
        },
    )  # fmt: skip
    told = r"the model has no other; 1 weight is stored .* base q4_0, and packed again.*gate\.weight\)"
    with pytest.warns(UserWarning, match=told):
        made = poet.plan(
            module, WORDS, device="rpi4b", ram=None, train=["out.*"], base="q4_0", weights=path,
            evaluation=False,
        )  # fmt: skip
    made.save(tmp_path / "plan.poet")
    with Trainer.open(tmp_path / "plan.poet") as trainer:
        found = trainer.parameters()
    q4, q8 = Packed("q4_0", (300, 64)), Packed("q8_0", (96, 64))
    assert torch.equal(found["words.weight"], as_used(packed_rows(words, q4), q4))
    again = Packed("q4_0", (96, 64))
    gate = as_used(packed_rows(gate, q8), q8)  # of another format than the base's: packed again
    assert torch.equal(found["gate.weight"], as_used(packed_rows(gate, again), again))
    assert torch.equal(found["norm.weight"], norm)
    assert verify(tmp_path / "plan.poet", module=module, steps=1, threads=(1,))


class _Tied(nn.Module):
    """A table that the head shares, and a norm with statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm, self.head = nn.Embedding(8, 32), nn.BatchNorm1d(32), nn.Linear(32, 8)
        self.head.weight = self.words.weight

    def forward(self, numbers: Tensor) -> Tensor:
        found: Tensor = self.head(self.norm(self.words(numbers)))
        return found


def test_a_gguf_file_fills_buffers_and_what_is_tied_by_any_of_its_names(tmp_path: Path) -> None:
    module, path = _Tied(), tmp_path / "model.gguf"
    weight, numbers = random_weight(8, 32), random_weight(2, 32)[1].clone()
    tensors = {
        "head.weight": (weight, "q8_0"),
        "norm.running_mean": (numbers, ""),
        "norm.bias": (numbers, "q8_0"),
    }
    planning: dict[str, Any] = {
        "device": "rpi4b",
        "ram": None,
        "train": ["norm.*"],
        "base": "q8_0",
        "weights": path,
    }
    gguf_file(path, tensors)
    poet.plan(module, torch.arange(6), **planning).save(tmp_path / "plan.poet")
    with Trainer.open(tmp_path / "plan.poet") as trainer:
        found = trainer.state_dict()
    how, row = Packed("q8_0", (8, 32)), Packed("q8_0", (1, 32))
    assert torch.equal(found["words.weight"], as_used(packed_rows(weight, how), how))
    assert torch.equal(found["norm.bias"], as_used(packed_rows(numbers, row), row)[0])
    assert torch.equal(found["norm.running_mean"], numbers)
    assert verify(tmp_path / "plan.poet", module=module, threads=(1,))
    gguf_file(path, {**tensors, "words.weight": (weight, "")})
    with pytest.raises(ModelError, match=r"words\.weight in the model, and the file has two contents of it"):
        poet.plan(module, torch.arange(6), **planning)


def test_names_of_llama_cpp_are_those_of_its_own_table() -> None:
    theirs = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, 2)
    names = ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"]
    names += [
        f"model.layers.1.{name}.weight"
        for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                     "self_attn.q_norm", "self_attn.k_norm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
                     "input_layernorm", "post_attention_layernorm")
    ]  # fmt: skip
    for name in names:
        assert _as_llama_cpp(name) == theirs.get_name(name, try_suffixes=(".weight",)), name


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda raw: b"GGML" + raw[4:], "does not begin with GGUF"),
        (lambda raw: raw[:4] + struct.pack("<I", 9) + raw[8:], "version"),
        (lambda raw: raw[:-1], "does not lie in it"),
        (lambda raw: raw[:40], "ends within its head"),
        (lambda raw: raw[:8] + struct.pack("<Q", 1 << 60) + raw[16:], "tensors"),
    ],
)
def test_a_damaged_gguf_file_is_refused(change: Callable[[bytes], bytes], told: str, tmp_path: Path) -> None:
    path = gguf_file(tmp_path / "model.gguf", {"w": (random_weight(4, 64), "q8_0")})
    path.write_bytes(
        change(path.read_bytes().rstrip(b"\0") if told == "does not lie in it" else path.read_bytes())
    )
    with pytest.raises(InputError, match=told):
        GgufFile(path)


def test_a_gguf_file_of_another_model_is_refused(tmp_path: Path) -> None:
    for name, shape, told in (
        ("w", (4, 64), "none of its tensors"),
        ("words.weight", (4, 64), "the model's is"),
    ):
        path = gguf_file(tmp_path / "model.gguf", {name: (random_weight(*shape), "q8_0")})
        with pytest.raises(ModelError, match=told):
            poet.plan(Gated(), WORDS, device="rpi4b", ram=None, train=["out.*"], weights=path)


@pytest.mark.parametrize("turned", [False, True])
def test_dequantised_constants_of_an_onnx_file_are_weights(turned: bool, tmp_path: Path) -> None:
    path, plan = tmp_path / "net.onnx", tmp_path / "plan.poet"
    integers, scales = dequantised_net(path, zero=0, turned=turned)
    made = poet.plan(path, device="rpi4b", ram=None, train=["head", "bias"], base="int8", evaluation=False)
    made.save(plan)
    ((name, how),) = base_of(made.plan.graph).items()
    assert how == Packed("int8", (6, 8))
    with Trainer.open(plan) as trainer:
        assert np.array_equal(
            trainer.parameters()[name].numpy(), integers.astype(np.float32) * scales[:, None]
        )
    assert verify(plan, steps=1)


def test_integers_that_the_base_has_not_are_packed_again_with_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    dequantised_net(path, zero=100)
    with pytest.warns(UserWarning, match="1 weight is stored .* base int8, and packed again"):
        poet.plan(path, device="rpi4b", ram=None, train=["head", "bias"], base="int8", evaluation=False)


def dequantised_net(path: Path, *, zero: int, turned: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Writes a net with a weight of integers, and one that is trained; the integers and their scales."""
    generator = np.random.default_rng(0)
    integers = generator.integers(-90, 90, (6, 8), dtype=np.int8)
    scales = generator.random(6, dtype=np.float32)
    node = (
        helper.make_node("MatMul", ["x", "w"], ["h"])
        if turned
        else helper.make_node("Gemm", ["x", "w"], ["h"], transB=1)
    )
    stored = integers.T.copy() if turned else integers
    graph = helper.make_graph(
        [
            helper.make_node("DequantizeLinear", ["q", "s", "z"], ["w"], axis=1 if turned else 0),
            node,
            helper.make_node("Gemm", ["h", "head", "bias"], ["y"], transB=1),
        ],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])],
        [
            numpy_helper.from_array(stored, "q"),
            numpy_helper.from_array(scales, "s"),
            numpy_helper.from_array(np.full(6, zero, np.int8), "z"),
            numpy_helper.from_array(generator.random((3, 6), dtype=np.float32), "head"),
            numpy_helper.from_array(np.zeros(3, np.float32), "bias"),
        ],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return integers, scales
