"""Tracing: an ordinary module, a loss and an optimizer become one graph of a training step.

The module runs once over fake tensors, with its loss and `torch.autograd.grad`, under `make_fx`;
no real arithmetic is done. The trace is lowered (`poet.frontend.lower`), completed with the
optimizer's updates (`poet.frontend.assemble`), and each kernel is measured (`poet.runtime.measure`).
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import inspect
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree

from poet.brief import shortened, told
from poet.errors import ModelError, PoetError, nearest, one_of
from poet.frontend.assemble import StepNames, assemble
from poet.frontend.eager import original, without_short_cuts
from poet.frontend.exporting import as_exporters_do, line_of
from poet.frontend.layouts import compact, dense_like, tensor_type
from poet.frontend.losses import Loss, loss_named
from poet.frontend.lower import lower
from poet.frontend.recurrent import OneOpPerLayer
from poet.frontend.strips import with_strips
from poet.graph import Graph
from poet.kernel_facts import KernelFacts
from poet.loss import LossSpec
from poet.optimizer import OptimizerSpec
from poet.runtime import kernels
from poet.runtime.measure import measured
from poet.runtime.process import check_computes
from poet.strips import Gradients


@dataclass(frozen=True, slots=True, eq=False)
class TrainingStep:
    """A traced training step and the tensors it starts from.

    Attributes:
        graph: the step.
        kernels: what torch's kernels need and take for it, on this machine.
        tensors: by value name: parameters, module state, constants, optimizer state. Those of the
            module are not copied: whoever trains with them copies first.
        optimizer: what makes the hyperparameters of each step.
        loss: its name and options, see `poet.loss`.
        digest: SHA-256 of the graph as traced; machines that run it in other strips agree on it.
    """

    graph: Graph
    kernels: KernelFacts
    tensors: Mapping[str, Tensor]
    optimizer: OptimizerSpec
    loss: str
    digest: str

    def __repr__(self) -> str:
        parameters = self.graph.parameters
        trained = sum(parameter.gradient is not None for parameter in parameters)
        parts = f"{len(self.graph.ops)} ops, {trained} of {len(parameters)} parameters trained"
        return told(self, f"of {shortened(self.graph.name)}: {parts}, {self.loss}, {self.optimizer.name}")


def trace_training_step(
    module: nn.Module,
    example_inputs: Tensor | Sequence[Tensor],
    *,
    loss: str = "cross-entropy",
    optimizer: OptimizerSpec | None = None,
    train: Iterable[str] | None = None,
    targets: Tensor | None = None,
    name: str | None = None,
    input_names: Sequence[str] | None = None,
    gradients: Gradients | str = Gradients.STREAM,
    measure: bool = True,
) -> TrainingStep:
    """Trace one training step of ``module``, in the mode (train or eval) it is in.

    The loss is that of the model's first output; all tensors it returns are predictions.

    Args:
        module: an ordinary module on the CPU; it is not changed. Of a compiled one, what it was made from.
        example_inputs: tensors of the types that every step will be given; contents do not matter.
        loss: its name and options, as `poet.loss` reads them.
        optimizer: `OptimizerSpec()` where not given.
        train: patterns of parameter names (``layer4.*``) to train; not given: those that require a
            gradient.
        targets: an example of the loss's targets, where they do not follow from the output.
        name: of the model; not given: the module's class.
        input_names: of the inputs; not given: those of ``forward``'s arguments.
        gradients: ``stream``: weight gradients are made and used block by block where that gives the same
            bits here (see `poet.frontend.strips`); ``keep``: each exists whole.
        measure: run each distinct kernel once to find its workspace and its time. Without, nothing is run, so
            that all gradients are kept.

    Raises:
        ModelError: the module cannot be traced, or nothing of it can be trained.
        UnsupportedOperator: it uses an operator that poet does not run.
    """
    check_computes()
    streamed = one_of(Gradients, gradients, "gradients") is Gradients.STREAM
    module, optimizer = original(module), optimizer or OptimizerSpec()
    inputs = [example_inputs] if isinstance(example_inputs, Tensor) else list(example_inputs)
    for index, item in enumerate(inputs):
        if not isinstance(item, Tensor):
            raise ModelError(f"input {index} is of type {type(item).__name__}; a step is given tensors")
    parameters, states = _own_tensors(module)
    trained = _chosen(module, train)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    step = _Functional(_Step(module, trained, loss_named(loss)), (*parameters, *states))
    own, fake_inputs = _fakes(mode, (parameters | states).values()), _fakes(mode, inputs)
    step.step.is_exported = looks_at_contents(module, inputs)
    if targets is None:
        with mode:
            found_targets = step(own, fake_inputs, None)
    else:
        found_targets = [targets]
    fake_targets = _fakes(mode, [item for item in found_targets if item is not None])
    traced = _trace(step, (own, fake_inputs, fake_targets))
    constants = _constants(traced, parameters | states)
    wanted = [*_input_names(module, len(inputs), input_names), *(["targets"] if fake_targets else [])]
    names = _free(wanted, {*parameters, *states, *constants.values()})
    lowered = lower(traced, (*parameters, *states, *names), constants)
    (found, *made), predictions = (
        lowered.outputs[: len(trained) + 1],
        lowered.outputs[len(trained) + 1 :],
    )
    unsaved = [key for key in states if key in _unsaved(module) and key not in lowered.written]
    graph = assemble(
        lowered,
        StepNames(
            model=name or type(module).__name__,
            parameters=tuple(parameters),
            states=tuple(key for key in states if key not in unsaved),
            constants=(*unsaved, *constants.values()),
            inputs=names,
            targets=len(fake_targets),
            loss=str(found),
            predictions=tuple(item for item in predictions if item is not None),
            gradients=dict(zip(trained, made, strict=True)),
        ),
        optimizer,
    )
    graph = replace(graph, states=(*graph.states, *_tied(module, parameters | states)))
    tensors = {key: compact(tensor) for key, tensor in (parameters | states).items()}
    tensors |= {value: compact(getattr(traced, attribute)) for attribute, value in constants.items()}
    tensors |= _optimizer_state(graph, optimizer, parameters)
    digest = _digest(graph)
    if measure and streamed:
        graph = with_strips(graph)
    graph, kernel_facts = measured(graph, times=measure)
    return TrainingStep(graph, kernel_facts, tensors, optimizer, str(LossSpec.parse(loss)), digest)


def _digest(graph: Graph) -> str:
    """Of what is computed: without the weights, and before what this machine's kernels make of it."""
    return hashlib.sha256(json.dumps(graph.to_json(), sort_keys=True).encode()).hexdigest()


def looks_at_contents(module: nn.Module, inputs: Sequence[Tensor]) -> bool:
    """Whether the model takes a way that depends on what its tensors contain.

    It is then run as exporters run it, where such shortcuts are left out: for planning and for comparing.
    """
    own = dict((*module.named_parameters(), *module.named_buffers()))
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        fakes = dict(zip(own, _fakes(mode, own.values()), strict=True))
        with mode, torch.no_grad(), OneOpPerLayer():
            torch.func.functional_call(module, fakes, tuple(_fakes(mode, inputs)))
    except DataDependentOutputException:
        return True
    except Exception:
        return False  # whatever it is, tracing meets it again, and says it
    return False


# --- what the module has ----------------------------------------------------------------------


def _own_tensors(module: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The module's parameters and buffers by name, shared ones once.

    Raises:
        ModelError: one has no shape yet, is not on the CPU, of an unsupported type, or overlaps another.
    """
    for key, item in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(item):
            raise ModelError(f"{key} has no shape yet; run the model once on real inputs")
    parameters: dict[str, Tensor] = {key: item.detach() for key, item in module.named_parameters()}
    states: dict[str, Tensor] = {key: item.detach() for key, item in module.named_buffers()}
    spans = []
    for key, tensor in (parameters | states).items():
        if tensor.device.type != "cpu":
            raise ModelError(f"{key} is on device {tensor.device}; move the model to the CPU to plan it")
        size_bytes = tensor_type(tensor, key).extent_bytes - tensor.storage_offset() * tensor.element_size()
        if size_bytes > 0:
            spans.append((tensor.data_ptr(), tensor.data_ptr() + size_bytes, key))
    spans.sort()
    for (_, end, key), (start, _, other) in itertools.pairwise(spans):
        if start < end:
            raise ModelError(
                f"{key} and {other} share memory; give each its own, or tie them as one Parameter"
            )
    return parameters, states


def _unsaved(module: nn.Module) -> set[str]:
    """Names of the buffers that the module's state dict leaves out."""
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, part in module.named_modules(remove_duplicate=False)
        for name in part._non_persistent_buffers_set
    }


def _tied(module: nn.Module, own: Mapping[str, Tensor]) -> tuple[tuple[str, str], ...]:
    """Further names that the state dict has for a tensor, each with the name that it has here."""
    first = {id(item): name for name, item in (*module.named_parameters(), *module.named_buffers())}
    every = (
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    )
    unsaved = _unsaved(module)
    return tuple((name, first[id(item)]) for name, item in every if name not in own and name not in unsaved)


def _chosen(module: nn.Module, train: Iterable[str] | None) -> tuple[str, ...]:
    """Names of the parameters to train, in the module's order.

    Raises:
        ModelError: none, or one that cannot have a gradient; or a pattern that fits no name.
    """
    parameters = dict(module.named_parameters())
    if train is None:
        chosen = {key for key, parameter in parameters.items() if parameter.requires_grad}
        if not chosen:
            raise ModelError(f"no parameter of {type(module).__name__} requires a gradient: nothing to train")
    else:
        chosen = set()
        for pattern in train:
            fitting = fnmatch.filter(parameters, pattern)
            if not fitting:
                raise ModelError(f"no parameter is called {pattern!r}{nearest(pattern, parameters)}")
            chosen |= set(fitting)
        if not chosen:
            raise ModelError("no pattern of parameters to train is given")
    for key in chosen:
        if not parameters[key].is_floating_point():
            raise ModelError(f"{key} is of type {parameters[key].dtype} and has no gradient; do not train it")
    return tuple(key for key in parameters if key in chosen)


def _input_names(module: nn.Module, count: int, given: Sequence[str] | None) -> list[str]:
    if given is None:
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        try:
            signature = list(inspect.signature(module.forward).parameters.values())
        except ValueError:  # of a module from torch.jit.trace
            signature = []
        given = [parameter.name for parameter in signature if parameter.kind in kinds]
    return [*given[:count], *(f"input{index}" for index in range(len(given), count))]


def _free(wanted: Iterable[str], taken: set[str]) -> tuple[str, ...]:
    """The names, with underscores where one is taken."""
    names: list[str] = []
    for name in wanted:
        while name in taken or name in names:
            name += "_"
        names.append(name)
    return tuple(names)


def _constants(traced: fx.GraphModule, own: Mapping[str, Tensor]) -> dict[str, str]:
    """Name for the value of each tensor that the trace holds, by its attribute.

    Raises:
        ModelError: one is a parameter or buffer of the module, which it got at some other way.
    """
    attributes = dict.fromkeys(str(node.target) for node in traced.graph.nodes if node.op == "get_attr")
    owners = {tensor.data_ptr(): name for name, tensor in own.items() if tensor.numel()}
    for attribute in attributes:
        if (owner := owners.get(getattr(traced, attribute).data_ptr())) is not None:
            raise ModelError(
                f"the model uses {owner} through a reference of its own, which hides it from tracing"
            )
    numbers = itertools.count()
    free = (name for name in map("constant{}".format, numbers) if name not in own)
    return {attribute: next(free) for attribute in attributes}


def _optimizer_state(
    graph: Graph, optimizer: OptimizerSpec, parameters: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    return {
        value: torch.full_like(parameters[parameter.name], optimizer.states[state])
        for parameter in graph.parameters
        for state, value in parameter.optimizer_state
    }


# --- the traced function ----------------------------------------------------------------------


class _Step(nn.Module):
    """The whole step as a module, so that the module's tensors stay replaced until its end.

    Activation checkpointing runs parts of the module again while gradients are computed.
    """

    def __init__(self, module: nn.Module, trained: Iterable[str], loss: Loss) -> None:
        super().__init__()
        self.module = module
        self.trained = tuple(trained)
        self.loss = loss
        self.is_exported = False

    def outputs(self, inputs: list[Tensor]) -> list[Tensor]:
        """The tensors that the module returns."""
        with as_exporters_do() if self.is_exported else contextlib.nullcontext():
            returned = self.module(*inputs)
        outputs = [item for item in pytree.tree_leaves(returned) if isinstance(item, Tensor)]
        if not outputs:
            raise ModelError(f"{type(self.module).__name__} returns no tensor")
        return outputs

    def forward(self, inputs: list[Tensor], targets: list[Tensor] | None) -> list[Tensor | None]:
        """Loss, gradients of the trained parameters in the module's order, outputs.

        Without ``targets``: the targets that the loss needs for the module's first output.
        """
        outputs = self.outputs(inputs)
        if targets is None:
            return [self.loss.targets_like(outputs[0])]
        loss = self.loss.apply(outputs[0], targets[0] if targets else None)
        if not loss.requires_grad:
            raise ModelError("the loss does not depend on any parameter that is to be trained")
        parameters = dict(self.module.named_parameters())
        gradients = torch.autograd.grad(loss, [parameters[name] for name in self.trained], allow_unused=True)
        return [loss, *gradients, *outputs]


@dataclass(frozen=True, slots=True)
class _Functional:
    """The step as a function of all its tensors."""

    step: _Step
    names: tuple[str, ...]  # of parameters, then of states

    def __call__(
        self, own: list[Tensor], inputs: list[Tensor], targets: list[Tensor] | None
    ) -> list[Tensor | None]:
        """What `_Step` gives; fresh leaves stand for the parameters, so that they can have gradients."""
        trained = frozenset(self.step.trained)
        leaves = {
            f"module.{name}": tensor.detach().requires_grad_() if name in trained else tensor
            for name, tensor in zip(self.names, own, strict=True)
        }
        with _speaking(self.step.module), without_short_cuts(), torch.enable_grad(), OneOpPerLayer():
            results: list[Tensor | None] = torch.func.functional_call(self.step, leaves, (inputs, targets))
        return results


@contextlib.contextmanager
def _speaking(module: nn.Module) -> Iterator[None]:
    """What fails in here is the model's fault, and said in one line."""
    name = type(module).__name__
    try:
        yield
    except PoetError:
        raise
    except DataDependentOutputException as error:
        raise ModelError(
            f"{name} reads a tensor's contents while it runs ({error.func}){line_of(error.__traceback__)}; "
            "use tensor ops such as torch.where, or leave it out where torch.compiler.is_exporting()"
        ) from None
    except DynamicOutputShapeException as error:
        raise ModelError(
            f"{name}: the output shape of {error.func} depends on data{line_of(error.__traceback__)}; "
            "keep the shape and mask what is not wanted"
        ) from None
    except Exception as error:
        line = str(error).strip().splitlines()[0] if str(error).strip() else "no message"
        place = line_of(error.__traceback__)
        raise ModelError(
            f"{name} fails on the example inputs: {type(error).__name__}: {line}{place}"
        ) from error


def _fakes(mode: FakeTensorMode, tensors: Iterable[Tensor]) -> list[Tensor]:
    types = [dense_like(tensor_type(tensor, "an input")) for tensor in tensors]
    with mode:
        return [torch.empty_strided(t.shape, t.strides, dtype=kernels.dtype(t.dtype)) for t in types]


def _trace(step: _Functional, arguments: tuple[list[Tensor], ...]) -> fx.GraphModule:
    def function(*groups: list[Tensor]) -> object:  # make_fx miscounts a method's arguments
        return step(*groups)

    traced: fx.GraphModule = make_fx(
        function, tracing_mode="fake", _allow_non_fake_inputs=True, record_stack_traces=True
    )(*arguments)
    return traced
