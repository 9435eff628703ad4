"""Tracing a module for a loop that computes the loss itself and updates the parameters itself.

In place of the loss stands one op, ``poet.callers_loss``: it is given the module's outputs and allocates
their gradients, which the caller will give. So the planner sees from when on these take memory, and a replay
stops there. Outputs and gradients of parameters are results and end the step in RAM.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from poet.errors import InputError, ModelError
from poet.frontend.assemble import Assembly, StepNames
from poet.frontend.eager import original
from poet.frontend.functional import Step
from poet.frontend.losses import Loss
from poet.frontend.lower import Lowered
from poet.frontend.module_tensors import free_names, input_names_of
from poet.frontend.trace import Tracing, TrainingStep, digest_of
from poet.ir.graph import Call, Graph, Op, Ref
from poet.ir.optimizer import OptimizerSpec
from poet.passes.layouts import contiguous, layout_arguments
from poet.runtime.system.process import check_computes
from poet.runtime.trials.measure import measured


@dataclass(frozen=True, slots=True, eq=False)
class Structure:
    """A tree of containers: its shape, and what of its leaves is no tensor.

    Attributes:
        spec: torch's record of the containers.
        leaves: in order; ``None`` in the places of tensors.
        places: of the tensors among the leaves.
    """

    spec: pytree.TreeSpec
    leaves: tuple[object, ...]
    places: tuple[int, ...]

    @staticmethod
    def of(tree: object) -> Structure:
        """The structure of ``tree``."""
        leaves, spec = pytree.tree_flatten(tree)
        places = tuple(place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor))
        kept = (None if isinstance(leaf, Tensor) else leaf for leaf in leaves)
        return Structure(spec, tuple(kept), places)

    def tensors(self, tree: object, what: str) -> list[Tensor]:
        """The tensors of a tree of this structure.

        Raises:
            InputError: it has another structure, or another leaf that is no tensor; ``what`` names it.
        """
        leaves, spec = pytree.tree_flatten(tree)
        same = spec == self.spec and all(
            isinstance(leaf, Tensor) if place in self.places else _is_same(leaf, self.leaves[place])
            for place, leaf in enumerate(leaves)
        )
        if not same:
            raise InputError(
                f"{what} {_shown(leaves)} where the example inputs had {self._shown()}; wrap the module "
                "again for other arguments"
            )
        return [leaves[place] for place in self.places]

    def filled(self, tensors: Sequence[object]) -> Any:
        """The tree with these tensors in their places."""
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        return pytree.tree_unflatten(leaves, self.spec)

    def _shown(self) -> str:
        tensor = torch.empty(0)
        return _shown([tensor if place in self.places else leaf for place, leaf in enumerate(self.leaves)])


def check_leaves(structure: Structure, what: str) -> None:
    """Refuse what may hold tensors that a plan would not see; ``what`` says who gives it.

    Raises:
        InputError: a leaf is neither a tensor nor a plain value.
    """
    for leaf in structure.leaves:
        if not isinstance(leaf, _PLAIN):
            raise InputError(
                f"{what} a {type(leaf).__name__}, and a plan sees only tensors, numbers and text in tuples, "
                "lists and mappings; give its parts, or leave it out (a cache of keys and values: "
                "use_cache=False)"
            )


_PLAIN = (type(None), int, float, complex, str, bytes, Enum, torch.dtype, torch.device, torch.Size)


def arguments_of(example_inputs: object) -> tuple[tuple[object, ...], dict[str, object]]:
    """Positional and keyword arguments of a call: of a tensor, a sequence, or a mapping of names."""
    if isinstance(example_inputs, Mapping):
        return (), {str(name): item for name, item in example_inputs.items()}
    if isinstance(example_inputs, Sequence):
        return tuple(example_inputs), {}
    return (example_inputs,), {}


def _is_same(one: object, other: object) -> bool:
    return type(one) is type(other) and bool(one == other)


def _shown(leaves: Sequence[object]) -> str:
    words = ["a tensor" if isinstance(leaf, Tensor) else repr(leaf)[:40] for leaf in leaves]
    return f"({', '.join(words)})"


CALLERS_LOSS = "poet.callers_loss"
_LOSS = "python:the_caller"


@dataclass(frozen=True, slots=True, eq=False)
class WrappedStep:
    """A traced module without loss and update.

    Attributes:
        step: its graph and the tensors it starts from. Predictions are the outputs, then the gradients of
            the trained parameters that have one, then those of ``input_gradients``.
        called: positional and keyword arguments of a call.
        returned: what a call returns.
        differentiated: numbers of the outputs whose gradients the caller gives.
        trained: names of the parameters that require a gradient, in the module's order.
        input_gradients: numbers of the inputs whose gradients are made.
    """

    step: TrainingStep
    called: Structure
    returned: Structure
    differentiated: tuple[int, ...]
    trained: tuple[str, ...]
    input_gradients: tuple[int, ...]

    @property
    def reached(self) -> tuple[str, ...]:
        """Of ``trained``, those that have a gradient; plain PyTorch calls no hook of the others."""
        found = {item.name for item in self.step.graph.parameters if item.gradient is not None}
        return tuple(name for name in self.trained if name in found)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Values of the graph: what a call returns."""
        return self.step.graph.predictions[: len(self.returned.places)]


class _CallersStep(Step):
    """Forward and backward of a module, whose outputs' gradients are given."""

    is_callers = True

    def __init__(
        self,
        module: nn.Module,
        trained: Sequence[str],
        called: Structure,
        wanted: Sequence[int],
        backward_from: Sequence[int] | str | None,
    ) -> None:
        super().__init__(module, trained, Loss(_LOSS, _no_loss, lambda output: None))
        self.called, self.wanted, self.backward_from = called, tuple(wanted), backward_from
        self.returns = called  # until it was called
        self.differentiated: tuple[int, ...] = ()

    def forward(self, inputs: list[Tensor], targets: list[Tensor] | None) -> list[Tensor | None]:
        """Outputs, then the gradients of the trained parameters and of the wanted inputs.

        Without ``targets``, which are the gradients of outputs: the outputs alone.
        """
        with torch.enable_grad():
            given = [
                item.detach().requires_grad_() if place in self.wanted else item
                for place, item in enumerate(inputs)
            ]
            args, kwargs = self.called.filled(given)
            returned = self.run(*args, **kwargs)
        self.returns = Structure.of(returned)
        outputs = self.returns.tensors(returned, "the module returns")
        if not outputs:
            raise ModelError(f"{type(self.module).__name__} returns no tensor")
        check_leaves(self.returns, f"{type(self.module).__name__} returns")
        self.differentiated = self._chosen(returned, outputs)
        if targets is None:
            return [*outputs]
        parameters = dict(self.module.named_parameters())
        sources = [*(parameters[name] for name in self.trained), *(given[place] for place in self.wanted)]
        differentiated = [outputs[number] for number in self.differentiated]
        gradients = torch.autograd.grad(differentiated, sources, targets, allow_unused=True)
        self.write_replaced()
        return [*outputs, *gradients]

    def _chosen(self, returned: object, outputs: Sequence[Tensor]) -> tuple[int, ...]:
        able = [number for number, output in enumerate(outputs) if output.requires_grad]
        if not able:
            raise ModelError(f"no output of {type(self.module).__name__} depends on what is to be trained")
        if self.backward_from is None:
            return tuple(able)
        if isinstance(self.backward_from, str):
            named = returned.get(self.backward_from) if isinstance(returned, Mapping) else None
            return tuple(number for number in able if outputs[number] is named) or tuple(able)
        for number in self.backward_from:
            if number not in able:
                raise InputError(
                    f"backward_from: output {number} has no gradient; those that have one are {able}"
                )
        return tuple(sorted(set(self.backward_from)))


def _no_loss(output: object, targets: object) -> Tensor:
    raise ModelError("a wrapped module's loss is its caller's")


class _Called(nn.Module):
    """The module as a function of the tensors it is called with."""

    def __init__(self, module: nn.Module, called: Structure) -> None:
        super().__init__()
        self.module, self.called = module, called

    def forward(self, *tensors: Tensor) -> object:
        args, kwargs = self.called.filled(tensors)
        return self.module(*args, **kwargs)


def check_hooks_for_all() -> None:
    """Refuse hooks of the process that every module calls."""
    if torch.nn.modules.module._has_any_global_hook():  # type: ignore[no-untyped-call]
        raise InputError(
            "a hook for all modules (register_module_forward_hook, ...) would be called for the wrapped "
            "module and not for its parts; remove it, or register it on the parts before they are wrapped"
        )


def trace_wrapped(
    module: nn.Module,
    example_inputs: object,
    *,
    backward_from: Sequence[int] | str | None = None,
    measure: bool = True,
) -> WrappedStep:
    """Trace forward and backward of ``module``, in the mode in which it and its parts are.

    Args:
        module: on the CPU; it is not changed.
        example_inputs: a tensor, a sequence of positional or a mapping of keyword arguments. Gradients are
            made of the tensors among them that require one, beside those of the parameters that do.
        backward_from: numbers of the outputs whose gradients the caller will give, in the order of the
            tensors that the module returns, or the name of one in a mapping; not given, or no such name: all
            that depend on what is to be trained.
        measure: run each distinct kernel once to find its workspace and its time.

    Raises:
        ModelError: the module cannot be traced, or nothing of it can be trained.
        InputError: an output in ``backward_from`` has no gradient.
        UnsupportedOperator: it uses an operator that poet does not run.
    """
    check_computes()
    module = original(module)
    check_hooks_for_all()
    arguments = arguments_of(example_inputs)
    called = Structure.of(arguments)
    check_leaves(called, "the module is called with")
    inputs = called.tensors(arguments, "the module is called with")
    trained = tuple(name for name, item in module.named_parameters() if item.requires_grad)
    wanted = [place for place, item in enumerate(inputs) if item.requires_grad]
    if not trained and not wanted:
        raise ModelError(f"no parameter of {type(module).__name__} requires a gradient: nothing to train")
    step = _CallersStep(module, trained, called, wanted, backward_from)
    tracing = Tracing(step, inputs, _Called(module, called))
    found = tracing.alone()
    tracing.run(item for number in step.differentiated if (item := found[number]) is not None)
    names = tracing.free_names(
        [*_argument_names(module, called, arguments), *(f"output{n}.grad" for n in step.differentiated)]
    )
    lowered = tracing.lowered(names)
    own, given = names[: len(inputs)], names[len(inputs) :]
    if changed := [name for name in own if name in lowered.written]:
        raise ModelError(
            f"{type(module).__name__} writes its input {changed[0]} in place, which its caller would not see "
            f"of a replayed pass; write {changed[0]} = {changed[0]}.clone() before that"
        )
    outputs, gradients = lowered.outputs[: len(found)], lowered.outputs[len(found) :]
    of_inputs = dict(zip(wanted, gradients[len(trained) :], strict=True))
    of_trained = dict(zip(trained, gradients, strict=False))
    sources = tracing.step_names(type(module).__name__, own, tracing.unsaved(lowered), outputs, of_trained)
    input_gradients = {names[place]: gradient for place, gradient in of_inputs.items()}
    assembly = _CallersAssembly(lowered, sources, given=given, input_gradients=input_gradients)
    graph = tracing.with_tied_names(assembly.graph())
    digest = digest_of(graph)
    graph, kernel_facts = measured(graph, times=measure)
    made = TrainingStep(graph, kernel_facts, tracing.tensors(), OptimizerSpec(), _LOSS, digest)
    reached = tuple(place for place, gradient in of_inputs.items() if gradient is not None)
    return WrappedStep(made, called, step.returns, step.differentiated, trained, reached)


def _argument_names(
    module: nn.Module, called: Structure, arguments: tuple[tuple[object, ...], dict[str, object]]
) -> list[str]:
    """A name for each tensor of a call: of the argument that it is, or is part of."""
    args, kwargs = arguments
    names: list[str] = []
    for name, item in (*zip(input_names_of(module, len(args), None), args, strict=True), *kwargs.items()):
        count = len(Structure.of(item).places)
        names += [name] if count == 1 else [f"{name}.{number}" for number in range(count)]
    return names


class _CallersAssembly(Assembly):
    """Puts the caller's loss between forward and backward."""

    def __init__(
        self,
        lowered: Lowered,
        names: StepNames,
        *,
        given: Sequence[str],
        input_gradients: Mapping[str, str | None],
    ) -> None:
        super().__init__(lowered, names, OptimizerSpec())
        self.given, self.input_gradients = tuple(given), input_gradients
        self._handed: set[str] = set()

    @property
    def taken(self) -> set[str]:
        """See `Assembly`; an output and two gradients are three tensors to the caller."""
        return {*super().taken, *self.given, *self._handed}

    def graph(self) -> Graph:
        """The graph, with the writes of module state in their places."""
        reads_given = (
            number
            for number, op in enumerate(self.ops)
            if {self.buffer(name) for name in op.call.refs()} & {*self.given}
        )
        boundary = next(reads_given, len(self.ops))
        backward = self.ops[boundary:]
        del self.ops[boundary:]
        outputs = [self.own_result(name) for name in self.names.predictions]
        loss = self._callers_loss(outputs)
        forward = {op.name for op in self.ops}
        self._handed = {self.buffer(name) for name in outputs}
        self.ops += backward
        gradients = {}
        for name, gradient in (*self.names.gradients.items(), *self.input_gradients.items()):
            if gradient is not None:
                gradients[name] = self.own_gradient(name, gradient)
                self._handed.add(self.buffer(gradients[name]))
        results = (*outputs, *gradients.values())
        return self.finished(forward, loss, results, gradients, self.state_updates())

    def _callers_loss(self, outputs: Sequence[str]) -> str:
        """The op that stands for what the caller does with the outputs; the name of its loss."""
        loss = self.add_value(free_names(["callers_loss"], {*self.values})[0], contiguous("float32", ()))
        types = tuple(layout_arguments(self.values[name].type) for name in self.given)
        call = Call(CALLERS_LOSS, (tuple(Ref(name) for name in dict.fromkeys(outputs)), types))
        self.ops.append(Op(loss, call, (loss, *self.given), repeatable=False))
        return loss
