"""What tracing makes of a module: names, roles, order, workspaces; and what it refuses."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers.nets import NETS, Net, OwnState
from helpers.pace import with_slow
from helpers.reference import run_graph
from torch import Tensor, nn

from poet.errors import ModelError, UnsupportedOperator
from poet.frontend.trace import TrainingStep, trace_training_step
from poet.ir.graph import Graph, Op
from poet.ir.kernel_facts import KernelFacts
from poet.ir.optimizer import OptimizerSpec
from poet.runtime import kernels, native
from poet.runtime.trials.measure import measured


@functools.cache
def _step(name: str, optimizer: OptimizerSpec | None = None, *, measure: bool = False) -> TrainingStep:
    net = NETS[name]
    torch.manual_seed(1)
    return trace_training_step(
        net.build(), net.inputs(), loss=net.loss, optimizer=optimizer, train=net.train, targets=net.targets(),
        measure=measure,
    )  # fmt: skip


def _op(graph: Graph, target: str) -> Op:
    return next(op for op in graph.ops if op.call.target == target)


def _targets(graph: Graph) -> list[str]:
    return [op.call.target for op in graph.ops]


# --- structure --------------------------------------------------------------------------------


def test_a_linear_layer_as_a_person_reads_it() -> None:
    step = trace_training_step(nn.Linear(3, 2), torch.ones(4, 3), loss="mse", measure=False)
    assert step.graph.to_text() == (
        "graph Linear\n"
        "  %weight: float32[2,3] = parameter @weight (24 B)\n"
        "  %bias: float32[2] = parameter @bias (8 B)\n"
        "  %input: float32[4,3] = input @input (48 B)\n"
        "  %targets: float32[4,2] = input @targets (32 B)\n"
        "  %t: float32[3,2] = parameter @weight (24 B)\n"
        "  %addmm: float32[4,2] = aten.addmm.default(%bias, %input, %t)\n"
        "  %mse_loss: float32[] = aten.mse_loss.default(%addmm, %targets)\n"
        "  %ones_like: float32[] = poet.full([], [], float32, 1)\n"
        "  %mse_loss_backward: float32[4,2] = "
        "aten.mse_loss_backward.default(%ones_like, %addmm, %targets, 1)\n"
        "    %t_1: float32[2,4] views @mse_loss_backward\n"
        "  %weight.grad: float32[2,3] = aten.mm.default(%t_1, %input)\n"
        "  _ = poet.sgd(%weight, %weight.grad, lr, 0.0)    # updates @weight; never recomputed\n"
        "  %sum_1: float32[1,2] = aten.sum.dim_IntList(%mse_loss_backward, [0], True)\n"
        "    %bias.grad: float32[2] views @sum_1\n"
        "  _ = poet.sgd(%bias, %bias.grad, lr, 0.0)    # updates @bias; never recomputed\n"
        "  loss %mse_loss; predictions %addmm\n"
    )


@pytest.mark.parametrize("name", with_slow(NETS, NETS.keys() - {"cnn", "tied", "frozen", "sums"}))
def test_an_update_follows_its_gradient_and_the_last_reader_of_the_old_parameter(name: str) -> None:
    graph = _step(name, OptimizerSpec("adamw")).graph
    for parameter in graph.parameters:
        if parameter.gradient is None:
            continue
        at = next(i for i, op in enumerate(graph.ops) if parameter.value in op.updates)
        touching = [
            index
            for index, op in enumerate(graph.ops)
            if parameter.value in graph.reads(op.call)
            or graph.buffer_of(parameter.gradient) in graph.writes(op)
        ]
        assert max(touching) == at
        before = max(index for index in touching if index != at)
        assert all(not op.outputs for op in graph.ops[before + 1 : at]), "only other updates between"


def test_frozen_parameters_prune_the_backward() -> None:
    whole, part = _step("cnn").graph, _step("frozen").graph
    assert len(part.ops) < len(whole.ops)
    trained = [parameter.name for parameter in part.parameters if parameter.gradient is not None]
    assert trained == ["4.weight", "4.bias", "9.weight", "9.bias"]
    assert _targets(part).count("aten.convolution_backward.default") == 1


def test_convolution_gradients_are_two_ops_and_read_no_more_than_they_need() -> None:
    graph = _step("cnn").graph
    weight, inputs = [op for op in graph.ops if op.call.target == "aten.convolution_backward.default"][:2]
    assert "4.weight" not in graph.reads(weight.call)
    assert graph.reads(inputs.call)[1:] == ("4.weight",)


def test_views_are_values_and_not_ops() -> None:
    graph = _step("gpt").graph
    assert not any(
        target.startswith(("aten.t.", "aten.view.", "aten.transpose.", "aten.expand.", "aten.detach."))
        for target in _targets(graph)
    )
    assert len(graph.values) > len(graph.buffers)


@pytest.mark.slow
def test_nothing_is_written_in_place_but_what_lives_across_steps() -> None:
    for name in NETS:
        graph = _step(name).graph
        assert not any(target.split(".")[1].endswith("_") for target in _targets(graph))
        made_once = {item for op in graph.ops for item in op.updates} - graph.persistent()
        assert all("statistics" in item for item in made_once), name  # instance norm's repeated ones


def test_in_place_activations_need_no_copies() -> None:
    """Eager clones what ReLU6 overwrites before it saves it; without overwriting nothing is copied."""
    assert "aten.clone.default" not in _targets(_step("mobile").graph)


def test_dropout_is_recomputed_from_the_generators_state() -> None:
    graph = _step("dropout").graph
    drawn = [op for op in graph.ops if op.call.target == "poet.bernoulli"]
    assert len(drawn) == 3
    for op in drawn:
        assert op.random
        assert op.recall is not None
        assert op.recall.target == "poet.with_rng_state"
        before = graph.ops[graph.ops.index(op) - 1]
        assert before.call.target == "poet.rng_state"
        assert before.recall is None


def test_a_small_mask_is_kept_rather_than_the_state() -> None:
    net = nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5))
    graph = trace_training_step(net, torch.ones(2, 6), loss="output", measure=False).graph
    op = _op(graph, "poet.bernoulli")
    assert op.random
    assert not op.repeatable
    assert "poet.rng_state" not in _targets(graph)


def test_an_unused_parameter_is_not_updated() -> None:
    net = Net(lambda parts, x: parts[0](x), nn.Linear(6, 4), nn.Linear(3, 3))
    graph = trace_training_step(net, torch.ones(2, 6), measure=False).graph
    gradients = {parameter.name: parameter.gradient for parameter in graph.parameters}
    assert gradients["parts.1.weight"] is None
    assert not any("parts.1.weight" in op.updates for op in graph.ops)


def test_predictions_are_all_outputs_and_never_a_parameter_itself() -> None:
    net = Net(lambda parts, x: {"a": parts[0](x), "b": (parts[0].weight, None)}, nn.Linear(6, 4))
    graph = trace_training_step(net, torch.ones(2, 6), measure=False).graph
    assert len(graph.predictions) == 2
    assert not {graph.buffer_of(name) for name in graph.predictions} & graph.persistent()


def test_inputs_have_the_names_of_forward() -> None:
    assert _step("bags").graph.inputs == ("input0", "input1", "targets")
    graph = trace_training_step(
        OwnState(), torch.ones(2, 6), loss="mse", input_names=["pixels"], measure=False
    ).graph
    assert graph.inputs == ("pixels", "targets")
    assert graph.targets == 1


def test_the_module_is_left_as_it_was() -> None:
    torch.manual_seed(1)
    module = NETS["cnn"].build()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    generator = torch.get_rng_state()
    trace_training_step(module, torch.randn(4, 3, 12, 12), optimizer=OptimizerSpec("adamw"))
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert all(parameter.grad is None for parameter in module.parameters())
    torch.set_rng_state(generator)


def test_targets_follow_from_the_loss() -> None:
    def shape(output: tuple[int, ...], loss: str) -> tuple[int, ...]:
        net = Net(
            lambda parts, x: parts[0](x.sum()[None]).view(output), nn.Linear(1, torch.Size(output).numel())
        )
        graph = trace_training_step(net, torch.ones(3), loss=loss, measure=False).graph
        return next(value.type.shape for value in graph.values if value.name == "targets")

    assert shape((4, 10), "cross-entropy") == (4,)
    assert shape((4, 7, 10), "cross-entropy") == (4, 10)
    assert shape((4, 7, 10), "cross-entropy:dim=-1") == (4, 7)
    assert shape((10,), "cross-entropy") == ()
    assert shape((4, 10, 5, 6), "cross-entropy") == (4, 5, 6)
    assert shape((4, 3), "bce-with-logits") == (4, 3)
    assert shape((4, 3), "mse") == (4, 3)


# --- measuring --------------------------------------------------------------------------------


SCALARS_BYTES = 256
"""What a kernel's own numbers, wrapped as tensors, may take."""
MEASURED = ("mobile", "lstm", "transformer", "unet")


def test_workspaces_show_hidden_temporaries() -> None:
    """oneDNN reorders a convolution's operands, and batch norm's backward makes a second gradient."""
    step = _step("mobile", measure=True)
    sizes = {buffer.name: buffer.size_bytes for buffer in step.graph.buffers}
    backward = _op(step.graph, "aten.native_batch_norm_backward.default")
    facts = {op.name: step.kernels.of(op.name) for op in step.graph.ops}
    assert facts[backward.name].workspace_bytes >= sizes[backward.outputs[0] or ""]
    assert any(
        facts[op.name].workspace_bytes > 0
        for op in step.graph.ops
        if op.call.target == "aten.convolution_backward.default"
    )
    assert facts[_op(step.graph, "aten.hardtanh.default").name].workspace_bytes <= SCALARS_BYTES
    assert all(item.seconds is not None and item.seconds > 0 for item in facts.values())
    assert [item.name for item in step.kernels.ops] == [op.name for op in step.graph.ops]
    assert (step.kernels.library, step.kernels.threads) == ("pytorch-cpu", torch.get_num_threads())
    assert KernelFacts.from_json(json.loads(json.dumps(step.kernels.to_json()))) == step.kernels


def test_without_measuring_nothing_is_known_of_kernels() -> None:
    step = _step("mobile")
    assert step.kernels == KernelFacts("pytorch-cpu", alignment_bytes=64)


def test_an_lstms_workspace_is_an_output_of_its_true_size() -> None:
    step = _step("lstm")
    op = _op(step.graph, "aten.mkldnn_rnn_layer.default")
    workspace = op.outputs[3]
    assert workspace is not None
    size_bytes = next(item.size_bytes for item in step.graph.buffers if item.name == workspace)
    assert size_bytes > 1000


@pytest.mark.parametrize(
    "name", with_slow(["mobile", "lstm", "transformer", "unet"], {"transformer", "unet"})
)
def test_workspaces_cover_what_the_allocator_hands_out(name: str) -> None:
    """The native allocator sees every request; one thread, as the profiler sees the calling one only."""
    allocator = native.load()
    if allocator is None:
        pytest.skip(native.why_unavailable())
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    step, net = _step(name, measure=True), NETS[name]
    targets = net.targets()
    given = dict(
        zip(step.graph.inputs, (*net.inputs(), *([] if targets is None else [targets])), strict=True)
    )
    present = run_graph(step.graph, step.tensors, given, {"lr": 0.1})
    sizes = {buffer.name: buffer.size_bytes for buffer in step.graph.buffers}
    with torch.no_grad():
        for op in step.graph.ops:
            with allocator.tracking() as tracked:
                kernels.run(op.call, present.__getitem__, {"lr": 0.1}.__getitem__)
            made_bytes = sum(-(-sizes[item] // 64) * 64 for item in step.graph.writes(op))
            assert tracked.peak_bytes <= made_bytes + step.kernels.of(op.name).workspace_bytes
    torch.set_num_threads(before)


def test_measuring_leaves_the_generator_alone() -> None:
    graph = _step("dropout").graph
    before = torch.get_rng_state()
    measured(graph)
    assert torch.equal(before, torch.get_rng_state())


# --- refusals ---------------------------------------------------------------------------------


def _refused(module: nn.Module, message: str, *inputs: Tensor, **options: object) -> None:
    with pytest.raises(ModelError, match=re.escape(message)) as caught:
        trace_training_step(module, inputs or (torch.ones(2, 6),), **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def _linear() -> nn.Module:
    return nn.Linear(6, 4)


def test_nothing_to_train() -> None:
    _refused(_linear().requires_grad_(False), "no parameter of Linear requires a gradient")
    _refused(_linear(), "no parameter is called 'wieght'; did you mean 'weight'", train=["wieght"])
    _refused(nn.ReLU(), "nothing to train")
    net = Net(lambda parts, x: parts[0](x).detach(), _linear())
    _refused(net, "the loss does not depend on any parameter")


def test_unknown_loss() -> None:
    _refused(_linear(), "loss 'cross_entropy' is not one of", loss="cross_entropy")
    _refused(Net(lambda parts, x: parts[0](x).sum(), _linear()), "needs scores of classes")


def test_a_model_that_looks_at_its_data() -> None:
    def branch(parts: nn.ModuleList, x: Tensor) -> object:
        y = parts[0](x)
        return y if y.sum() > 0 else -y

    _refused(Net(branch, _linear()), "reads a tensor's contents")
    _refused(Net(lambda parts, x: parts[0](x)[x[:, 0] > 0], _linear()), "depends on data")


def test_a_mask_that_torch_would_look_into() -> None:
    mask = nn.Transformer.generate_square_subsequent_mask(2)
    layer = nn.TransformerEncoder(nn.TransformerEncoderLayer(6, 2, 8, batch_first=True), 1)
    net = Net(lambda parts, x: parts[0](x.unsqueeze(0), mask=mask)[0], layer)
    _refused(net, "say beside the mask whether it is causal (is_causal=True")
    said = Net(lambda parts, x: parts[0](x.unsqueeze(0), mask=mask, is_causal=True)[0], layer)
    trace_training_step(said, (torch.ones(2, 6),), measure=False)


def test_a_model_that_fails() -> None:
    _refused(_linear(), "Linear fails on the example inputs: RuntimeError", torch.ones(2, 5))
    _refused(Net(lambda parts, x: "nothing", _linear()), "returns no tensor")


def test_operators_without_a_row() -> None:
    net = Net(lambda parts, x: torch.linalg.inv(parts[0](x)), nn.Linear(6, 2))
    with pytest.raises(UnsupportedOperator, match=r"aten\.linalg_inv_ex"):
        trace_training_step(net, torch.ones(2, 6), loss="output")
    with pytest.raises(UnsupportedOperator, match=r"aten\.prod"):
        trace_training_step(
            Net(lambda parts, x: parts[0](x).prod(1), _linear()), torch.ones(2, 6), loss="output"
        )


SPARSE = torch.eye(2).to_sparse()
NOT_DENSE: dict[str, tuple[str, Callable[[Any, Tensor], Tensor]]] = {
    "an embedding": (
        "has sparse=True",
        lambda part, x: F.embedding(x[:, 0].long(), part.weight, sparse=True),
    ),
    "a bag": ("has sparse=True", lambda part, x: F.embedding_bag(x.long(), part.weight, sparse=True)),
    "a constant": ("layout sparse_coo", lambda part, x: torch.sparse.mm(SPARSE, part(x))),
    "made inside": ("gives a sparse tensor", lambda part, x: torch.sparse.mm(x.to_sparse(), part.weight.t())),
}


@pytest.mark.parametrize("what", NOT_DENSE)
def test_what_is_not_dense_is_named(what: str) -> None:
    message, run = NOT_DENSE[what]
    _refused(Net(lambda parts, x: run(parts[0], x), _linear()), message)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_an_input_that_is_not_dense_is_named() -> None:
    _refused(_linear(), "layout sparse_coo", torch.ones(3, 6).to_sparse())
    _refused(_linear(), "layout nested", torch.nested.nested_tensor([torch.ones(3, 6)]))


CONTROL: dict[str, Callable[[Tensor], Tensor]] = {
    "cond": lambda y: torch.cond(y.sum() > 0, lambda v: v * 2, lambda v: v + 1, (y,)),
    "while_loop": lambda y: torch.while_loop(  # type: ignore[no-untyped-call]
        lambda v: v.sum() < 9, lambda v: (v + 1,), (y,)
    )[0],
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CONTROL)
def test_control_flow_is_refused_by_its_name(name: str) -> None:
    net = Net(lambda parts, x: CONTROL[name](parts[0](x)), _linear())
    with pytest.raises(
        ModelError, match=rf"control flow that data steers \({name}.*\) at test_trace.py.*torch.where"
    ):
        trace_training_step(net, torch.ones(3, 6), measure=False)


def test_memory_that_two_tensors_share() -> None:
    net = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    whole = torch.randn(6, 6)
    for layer in net:
        layer.weight = nn.Parameter(whole[:4] if layer is net[0] else whole[2:])
    _refused(net, "0.weight and 1.weight share memory")


def test_tensors_that_are_not_the_modules_own() -> None:
    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(6, 4)
            self.held = [self.inner.weight]
            self.count = torch.zeros(1)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.inner(x) + F.linear(x, self.held[0])
            return y

    class Counting(Hidden):
        def forward(self, x: Tensor) -> Tensor:
            self.count += 1
            y: Tensor = self.inner(x) * self.count
            return y

    _refused(Hidden(), "uses inner.weight through a reference of its own")
    _refused(Counting(), "register it with register_buffer")


def test_a_model_that_writes_a_trained_parameter() -> None:
    def run(parts: nn.ModuleList, x: Tensor) -> object:
        with torch.no_grad():
            torch.as_tensor(parts[0].weight).clamp_(-1, 1)
        return parts[0](x)

    _refused(Net(run, _linear()), "the model writes its parameter parts.0.weight itself")


def test_types_without_a_row() -> None:
    _refused(Net(lambda parts, x: parts[0](x), nn.Linear(6, 4, dtype=torch.complex64)), "complex64")


def test_inputs_and_parameters_that_are_no_tensors_yet() -> None:
    _refused(nn.LazyLinear(4), "weight has no shape yet")
    with pytest.raises(ModelError, match="input 1 is of type int"):
        trace_training_step(_linear(), [torch.ones(2, 6), 3])  # type: ignore[list-item]


def test_a_parameter_may_be_called_as_the_targets_are() -> None:
    module = nn.Module()
    module.register_parameter("targets", nn.Parameter(torch.ones(6, 4)))
    module.forward = lambda x: x @ module.targets
    graph = trace_training_step(module, torch.ones(2, 6), measure=False).graph
    assert graph.inputs == ("x", "targets_")


def test_what_is_not_on_the_cpu() -> None:
    _refused(nn.Linear(6, 4, device="meta"), "move the model to the CPU")


# --- names ------------------------------------------------------------------------------------


def test_ops_are_named_after_the_modules_they_belong_to() -> None:
    graph = _step("cnn").graph
    names = {op.name for op in graph.ops}
    assert {"0.convolution", "1.native_batch_norm", "4.convolution_backward.weight", "9.addmm"} <= names
    assert {buffer.name for buffer in graph.buffers} >= {
        "0.convolution",
        "1.native_batch_norm.1",
        "9.weight.grad",
    }


def test_a_module_that_runs_twice_has_two_ops() -> None:
    names = {op.name for op in _step("shared-norm").graph.ops}
    assert {"parts.1.native_batch_norm", "parts.1.native_batch_norm_1"} <= names
