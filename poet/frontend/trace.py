"""Tracing: an ordinary module, a loss and an optimizer become one graph of a training step.

The module runs once over fake tensors, with its loss and `torch.autograd.grad`, under `make_fx`;
no real arithmetic is done. The trace is lowered (`poet.frontend.lower`), completed with the
optimizer's updates (`poet.frontend.assemble`), and each kernel is measured (`poet.runtime.trials.measure`).
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from poet.errors import ModelError, nearest, one_of
from poet.frontend.assemble import StepNames, assemble, beside
from poet.frontend.eager import original
from poet.frontend.functional import Functional, Step, TrueLayouts, fakes, trace_step
from poet.frontend.losses import Loss, LossFunction, as_loss
from poet.frontend.lower import Lowered, lower
from poet.frontend.module_tensors import (
    free_names,
    gradient_hooks,
    input_names_of,
    looks_at_contents,
    named_constants,
    own_tensors,
    tied_names,
    trained_parameters,
    unsaved_states,
)
from poet.frontend.repeated_pass import listed
from poet.frontend.traced_operators import small_operators
from poet.ir.graph import Graph
from poet.ir.kernel_facts import KernelFacts
from poet.ir.loss import LossSpec
from poet.ir.micro import MicroBatches
from poet.ir.named import trained_in_words
from poet.ir.optimizer import OptimizerSpec, with_driven_numbers
from poet.ir.strips import Gradients
from poet.passes.forms import Forms, Passes
from poet.passes.fused import HasKernel
from poet.passes.in_place import Overwrites
from poet.passes.layouts import WantsDense, compact
from poet.passes.parts import in_parts_of
from poet.runtime.system.process import check_computes
from poet.util.brief import shortened, told


@dataclass(frozen=True, slots=True)
class AccumulatingStep:
    """A step that sums gradients and updates no parameter: its graph, and what torch's kernels need."""

    graph: Graph
    kernels: KernelFacts


@dataclass(frozen=True, slots=True, eq=False)
class TrainingStep:
    """A traced training step and the tensors it starts from.

    Attributes:
        graph: the step.
        kernels: what torch's kernels need and take for it, on this machine.
        tensors: by value name: parameters, module state, constants, optimizer state. Those of the
            module are not copied: whoever trains with them copies first.
        optimizer: what makes the hyperparameters of each step.
        loss: its name and options, see `poet.ir.loss`.
        objective: what computes it; ``None``: that of this name.
        accumulation: what all micro-batches of a step but the last do; ``None``: there are none.
        digest: SHA-256 of the graph as traced; machines that run it in other strips agree on it.
        has_small_operators: see `trace_training_step`.
        forms: of its ops; ``graph`` has all that backward reads compressed where it can be, and none in more
            blocks than its time allows. ``None``: there is one form.
    """

    graph: Graph
    kernels: KernelFacts
    tensors: Mapping[str, Tensor]
    optimizer: OptimizerSpec
    loss: str
    digest: str
    objective: Loss | None = None
    accumulation: AccumulatingStep | None = None
    has_small_operators: bool = False
    forms: Forms | None = None

    def __repr__(self) -> str:
        parts = f"{len(self.graph.ops)} ops, {trained_in_words(self.graph)} trained"
        return told(self, f"of {shortened(self.graph.name)}: {parts}, {self.loss}, {self.optimizer.name}")


def trace_training_step(
    module: nn.Module,
    example_inputs: Tensor | Sequence[Tensor],
    *,
    loss: str | LossFunction = "cross-entropy",
    optimizer: OptimizerSpec | None = None,
    train: Iterable[str] | None = None,
    targets: Tensor | Sequence[Tensor] | None = None,
    name: str | None = None,
    input_names: Sequence[str] | None = None,
    gradients: Gradients | str = Gradients.STREAM,
    uses_elements: HasKernel | None = None,
    overwrites: Overwrites | None = None,
    wants_dense: WantsDense | None = None,
    measure: bool = True,
    micro: MicroBatches | None = None,
    in_parts: bool = False,
    in_short_forms: bool = True,
    has_small_operators: bool = False,
) -> TrainingStep:
    """Trace one training step of ``module``, in the mode (train or eval) it is in.

    The loss is that of the model's first output; all tensors it returns are predictions.

    Args:
        module: an ordinary module on the CPU; it is not changed. Of a compiled one, what it was made from.
        example_inputs: tensors of the types that every step will be given; contents do not matter.
        loss: its name and options, as `poet.ir.loss` reads them, or a function or module that is given
            what the model returns, and the targets: one tensor, or a tuple of several.
        optimizer: `OptimizerSpec()` where not given.
        train: patterns of parameter names (``layer4.*``) to train; not given: those that require a
            gradient.
        targets: examples of the loss's targets, where they do not follow from the output, as those of a
            function do not.
        name: of the model; not given: the module's class.
        input_names: of the inputs; not given: those of ``forward``'s arguments.
        gradients: ``stream``: weight gradients are made and used block by block where that gives the same
            bits here (see `poet.passes.block_choice`); ``keep``: each exists whole;
            ``logits``: as ``stream``, with the last layer in strips (see `poet.passes.logits`).
        uses_elements: of the library that will run the step: which gradients it uses as it makes them; for
            ``stream``, in place of blocks (see `poet.passes.fused`). ``None``: the library is PyTorch.
        overwrites: of that library: which operands a result may be written over (`poet.passes.in_place`).
        wants_dense: likewise, which operands are to be copied side by side (`poet.passes.layouts`).
        measure: run each distinct kernel once to find its workspace and its time. Without, nothing is run, so
            that all gradients are kept.
        micro: how a batch is trained in pieces; ``example_inputs`` are of one piece. ``None``: it is trained
            as a whole.
        in_parts: whether large weights may be in parts (see `poet.passes.parts`), which serves those
            that are in storage between steps; for ``stream`` and PyTorch's kernels alone.
        in_short_forms: whether backward may read bits and bytes (see `poet.passes.compressed`), and
            gradients be written over what they are made from (see `poet.passes.in_place`); for these
            alone as well.
        has_small_operators: LSTMs, recurrent layers and attention are products, sums and copies, for a
            library that has no more (see `poet.frontend.traced_operators`).

    Raises:
        ModelError: the module cannot be traced, or nothing of it can be trained.
        UnsupportedOperator: it uses an operator that poet does not run.
    """
    check_computes()
    wanted = one_of(Gradients, gradients, "gradients")
    if wanted is Gradients.LOGITS and (uses_elements is not None or not in_short_forms):
        raise ModelError("logits are made in strips by PyTorch's kernels, for batches of one shape")
    module, optimizer = original(module), optimizer or OptimizerSpec()
    inputs = [example_inputs] if isinstance(example_inputs, Tensor) else list(example_inputs)
    for index, item in enumerate(inputs):
        if not isinstance(item, Tensor):
            raise ModelError(f"input {index} is of type {type(item).__name__}; a step is given tensors")
    parameters, states = own_tensors(module)
    trained = trained_parameters(module, train)
    _check_groups(optimizer, trained)
    objective = as_loss(loss)
    with small_operators(are_wanted=has_small_operators):
        found = _lowered(
            module,
            inputs,
            parameters,
            states,
            step=Step(module, trained, objective, divisor=1 if micro is None else micro.divisor),
            targets=targets,
            name=name or type(module).__name__,
            input_names=input_names,
        )
    graph = assemble(found.lowered, found.names, optimizer, accumulates=micro is not None)
    if all(item.gradient is None for item in graph.parameters):
        raise ModelError(f"the loss of {graph.name} gives no parameter a gradient: nothing to train")
    tied = tied_names(module, parameters | states)
    graph = replace(graph, states=(*graph.states, *tied))
    if other := sorted({*module.state_dict()} ^ {*parameters, *(name for name, _ in graph.states)}):
        warnings.warn(
            f"{type(module).__name__} changes its state dict by code of its own ({listed(other)}); that of a "
            "plan has parameters and buffers, by their names",
            stacklevel=2,
        )
    own = parameters | states | found.constants
    tensors = {key: compact(tensor) for key, tensor in own.items()}
    tensors |= _optimizer_state(graph, optimizer, parameters)
    digest = digest_of(graph)
    if not has_small_operators:  # C code has them as constants
        graph = replace(graph, ops=tuple(replace(op, call=with_driven_numbers(op.call)) for op in graph.ops))
    passes = Passes(
        wanted, uses_elements, overwrites, wants_dense, measure, in_parts, in_short_forms,
        has_choice=micro is None,
    )  # fmt: skip
    graph, tensors = passes.divided(graph, tensors)
    graph, kernel_facts, forms = passes.fitted(graph)
    accumulation = None
    if micro is not None:
        summing = assemble(found.lowered, found.names, optimizer, accumulates=True, updates=False)
        summing, summing_facts, _ = passes.fitted(in_parts_of(graph, passes.with_logits(summing)))
        accumulation = AccumulatingStep(beside(summing, graph), summing_facts)
    spec = str(LossSpec.parse(objective.name))
    return TrainingStep(
        graph, kernel_facts, tensors, optimizer, spec, digest, objective, accumulation=accumulation,
        has_small_operators=has_small_operators, forms=forms,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Lowered:
    """A step's forward and backward pass, before its updates.

    Attributes:
        lowered: the pass.
        names: of what it reads and gives.
        constants: tensors that the trace holds, by the names of their values.
    """

    lowered: Lowered
    names: StepNames
    constants: dict[str, Tensor]


def _lowered(
    module: nn.Module,
    inputs: Sequence[Tensor],
    parameters: dict[str, Tensor],
    states: dict[str, Tensor],
    *,
    step: Step,
    targets: Tensor | Sequence[Tensor] | None,
    name: str,
    input_names: Sequence[str] | None,
) -> _Lowered:
    """Run ``step`` over fake tensors, and lower what that shows; see `trace_training_step`."""
    mode = TrueLayouts()
    run = Functional(step, (*parameters, *states), gradient_hooks(module))
    own, fake_inputs = fakes(mode, (parameters | states).values()), fakes(mode, inputs)
    step.is_exported = looks_at_contents(module, inputs)
    if targets is None:
        with mode:
            found_targets = run.alone(own, fake_inputs)
    else:
        found_targets = [targets] if isinstance(targets, Tensor) else [*targets]
    fake_targets = fakes(mode, [item for item in found_targets if item is not None])
    traced = trace_step(run, (own, fake_inputs, fake_targets))
    constants = named_constants(traced, parameters | states)
    wanted = [*input_names_of(module, len(inputs), input_names), *_target_names(len(fake_targets))]
    names = free_names(wanted, {*parameters, *states, *constants.values()})
    lowered = lower(traced, (*parameters, *states, *names), constants)
    gradients = len(step.trained)
    found, *made = lowered.outputs[: gradients + 1]
    unsaved = [key for key in states if key in unsaved_states(module) and key not in lowered.written]
    step_names = StepNames(
        model=name,
        parameters=tuple(parameters),
        states=tuple(key for key in states if key not in unsaved),
        constants=(*unsaved, *constants.values()),
        inputs=names,
        targets=len(fake_targets),
        loss=str(found),
        predictions=tuple(item for item in lowered.outputs[gradients + 1 :] if item is not None),
        gradients=dict(zip(step.trained, made, strict=True)),
    )
    held = {value: getattr(traced, attribute) for attribute, value in constants.items()}
    return _Lowered(lowered, step_names, held)


def digest_of(graph: Graph) -> str:
    """Of what is computed: without the weights, and before what this machine's kernels make of it."""
    return hashlib.sha256(json.dumps(graph.to_json(), sort_keys=True).encode()).hexdigest()


def _check_groups(optimizer: OptimizerSpec, trained: Sequence[str]) -> None:
    """Refuse a parameter group that nothing is in."""
    taken = {optimizer.group_of(name) for name in trained}
    for number, group in enumerate(optimizer.groups, 1):
        if number not in taken:
            raise ModelError(
                f"parameter group {group.called!r}: no trained parameter is called that"
                f"{nearest(group.called, trained)}, or all are in a group before it"
            )


def _target_names(count: int) -> list[str]:
    return ["targets"] if count == 1 else [f"targets{index}" for index in range(count)]


def _optimizer_state(
    graph: Graph, optimizer: OptimizerSpec, parameters: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    return {
        value: torch.full_like(parameters[parameter.name], optimizer.states[state])
        for parameter in graph.parameters
        for state, value in parameter.optimizer_state
    }
