"""Tracing: an ordinary module, a loss and an optimizer become one graph of a training step.

The module runs once over fake tensors, with its loss and `torch.autograd.grad`, under `make_fx`;
no real arithmetic is done. The trace is lowered (`poet.frontend.lower`), completed with the
optimizer's updates (`poet.frontend.assemble`), and each kernel is measured (`poet.passes.forms`).
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, fx, nn

from poet.errors import ModelError, nearest, one_of
from poet.frontend.assemble import Assembly, StepNames, with_persistent_of
from poet.frontend.eager import line_in, original
from poet.frontend.functional import Step, TrueLayouts, fakes, trace_step
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
    trained_blocks,
    trained_parameters,
    unsaved_states,
)
from poet.frontend.repeated_pass import listed
from poet.frontend.traced_operators import small_operators
from poet.ir.graph import Graph, TensorType
from poet.ir.kernel_facts import KernelFacts
from poet.ir.loss import LossSpec
from poet.ir.micro import MicroBatches
from poet.ir.named import block_of, row_blocks, trained_in_words
from poet.ir.optimizer import OptimizerSpec, with_driven_numbers
from poet.ir.packed import BaseSpec
from poet.ir.strips import Gradients
from poet.passes.base import Weights, base_of, with_base
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
        lines: of the model's own source, by the buffer that each fills; of the forward pass alone.
        forms: of its ops; ``graph`` has all that backward reads compressed where it can be, and none in more
            blocks than its time allows. ``None``: there is one form.
        source: what it was made from.
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
    lines: Mapping[str, str] = field(default_factory=dict)
    source: LoweredStep | None = None

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
    base: BaseSpec | None = None,
    weights: Weights | None = None,
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
        base: the format of frozen weights (see `poet.passes.base`); ``None``: they stay as they are.
        weights: contents of parameters in place of the module's, float32 or packed already.

    Raises:
        ModelError: the module cannot be traced, or nothing of it can be trained.
        UnsupportedOperator: it uses an operator that poet does not run.
    """
    check_computes()
    wanted = one_of(Gradients, gradients, "gradients")
    if wanted is Gradients.LOGITS and (uses_elements is not None or not in_short_forms):
        raise ModelError("logits are made in strips by PyTorch's kernels, for batches of one shape")
    module, optimizer = original(module), optimizer or OptimizerSpec()
    inputs = as_list(example_inputs)
    for index, item in enumerate(inputs):
        if not isinstance(item, Tensor):
            raise ModelError(f"input {index} is of type {type(item).__name__}; a step is given tensors")
    train = None if train is None else tuple(train)
    trained = trained_parameters(module, train)
    blocks = trained_blocks(trained, train)
    _check_groups(optimizer, trained)
    objective = as_loss(loss)
    with small_operators(are_wanted=has_small_operators):
        step = Step(module, trained, objective, divisor=1 if micro is None else micro.divisor)
        tracing = Tracing(step, inputs)
        found_targets = tracing.alone() if targets is None else as_list(targets)
        tracing.run([item for item in found_targets if item is not None])
    lowered, names = _named(tracing, name or type(module).__name__, len(inputs), input_names)
    passes = Passes(
        wanted, uses_elements, overwrites, wants_dense, measure, in_parts, in_short_forms,
        has_choice=micro is None, base=base,
    )  # fmt: skip
    made = LoweredStep(
        tracing, lowered, names, blocks, optimizer, objective, passes, micro, has_small_operators,
        weights or {},
    )  # fmt: skip
    _warn_of_state(made)
    return made.step()


def _warn_of_state(made: LoweredStep) -> None:
    """Say that the module changes its state dict, where it does."""
    module, names = made.tracing.step.module, (key for key, _ in made.saved())
    if other := sorted({*module.state_dict()} ^ {*made.tracing.parameters, *names}):
        warnings.warn(
            f"{type(module).__name__} changes its state dict by code of its own ({listed(other)}); that of a "
            "plan has parameters and buffers, by their names",
            stacklevel=3,
        )


@dataclass(frozen=True, slots=True, eq=False)
class LoweredStep:
    """A step that is traced and lowered: graphs of steps that train all of it, or less, are made from it.

    Attributes:
        tracing: what was traced.
        lowered: its ops.
        names: of their sources and results.
        trained: names of what is trained: parameters, and blocks of rows of them (``w[0:16]``).
        optimizer, objective, micro, has_small_operators, weights: as `trace_training_step` is given them.
        passes: the rewrites of a graph.
    """

    tracing: Tracing
    lowered: Lowered
    names: StepNames
    trained: tuple[str, ...]
    optimizer: OptimizerSpec
    objective: Loss
    passes: Passes
    micro: MicroBatches | None
    has_small_operators: bool
    weights: Weights

    def saved(self) -> tuple[tuple[str, str], ...]:
        """Names of the state dict beside those of parameters, each with its name here."""
        own = tuple((key, key) for key in self.names.states)
        return (*own, *tied_names(self.tracing.step.module, self.tracing.own))

    def step(self, trained: Collection[str] | None = None, *, measure: bool = True) -> TrainingStep:
        """The training step.

        Args:
            trained: those of `trained` that are; ``None``: all. Forward ops stay those of a step that trains
                all.
            measure: without, no kernel of PyTorch is run where the step is for another library.

        Raises:
            ModelError: nothing of it gets a gradient; or blocks are trained in a way that poet has not.
        """
        names, tracing, optimizer = self.names, self.tracing, self.optimizer
        passes = replace(self.passes, measure=self.passes.measure and (measure or self.passes.takes_blocks))
        blocks = row_blocks(self.trained if trained is None else trained)
        gradients = {name: value for name, value in names.gradients.items() if name in blocks}
        names = replace(names, gradients=gradients)
        accumulates, has_blocks = self.micro is not None, any(blocks.values())
        if has_blocks and (accumulates or optimizer.clip_norm is not None):
            raise ModelError(
                "blocks of output channels go with no micro-batches and no clip_norm; train whole parameters"
            )
        less = has_blocks or trained is not None
        assembly = Assembly(
            self.lowered, names, optimizer, accumulates=accumulates, is_less=less, blocks=blocks
        )
        graph = assembly.graph()
        if all(item.gradient is None for item in graph.parameters):
            raise ModelError(f"the loss of {graph.name} gives no parameter a gradient: nothing to train")
        graph = tracing.with_tied_names(graph)
        tensors = tracing.tensors() | _optimizer_state(graph, optimizer, tracing.parameters)
        digest = digest_of(graph)
        if not self.has_small_operators:  # C code has them as constants
            ops = tuple(replace(op, call=with_driven_numbers(op.call)) for op in graph.ops)
            graph = replace(graph, ops=ops)
        graph, tensors = passes.divided(graph, tensors, self.weights)
        graph, kernel_facts, forms = passes.fitted(graph)
        accumulation = None
        if self.micro is not None:
            summing = Assembly(self.lowered, names, optimizer, accumulates=True, is_updating=False).graph()
            summing, summing_facts, _ = passes.fitted(
                with_base(in_parts_of(graph, passes.with_logits(summing)), base_of(graph))
            )
            accumulation = AccumulatingStep(with_persistent_of(summing, graph), summing_facts)
        spec = str(LossSpec.parse(self.objective.name))
        return TrainingStep(
            graph, kernel_facts, tensors, optimizer, spec, digest, self.objective, accumulation=accumulation,
            has_small_operators=self.has_small_operators, forms=forms, lines=tracing.lines(assembly.nodes),
            source=self,
        )  # fmt: skip


class Tracing:
    """A step of a module over fake tensors, and what that shows, lowered.

    Attributes:
        parameters, states: the module's own tensors by name; ``own`` are both.
        trace: of ATen calls; this and the next two are there after `run`.
        target_count: how many targets it has.
        constants: names of values by attribute of the trace, which holds their tensors.
    """

    trace: fx.GraphModule
    target_count: int
    constants: dict[str, str]

    def __init__(self, step: Step, inputs: Sequence[Tensor], called: nn.Module | None = None) -> None:
        """Make fake tensors.

        Args:
            step: to be traced.
            inputs: of the types that it is given.
            called: what takes them, where that is not the step's module.

        Raises:
            ModelError: the module has tensors that no step has, or hooks that no plan calls.
        """
        self.step = step
        self.parameters, self.states = own_tensors(step.module)
        self.own = self.parameters | self.states
        has_hooks = step.has_backward and not step.is_callers
        step.names, step.hooks = tuple(self.own), gradient_hooks(step.module) if has_hooks else {}
        self._mode = TrueLayouts()
        self._given = fakes(self._mode, self.own.values()), fakes(self._mode, inputs)
        step.is_exported = looks_at_contents(called or step.module, inputs)

    def alone(self) -> list[Tensor | None]:
        """What the step gives without targets."""
        with self._mode:
            return self.step.alone(*self._given)

    def run(self, targets: Iterable[Tensor | TensorType]) -> None:
        """Trace the step with ``targets`` of these types."""
        given = fakes(self._mode, targets)
        self.target_count = len(given)
        self.trace = trace_step(self.step, (*self._given, given))
        self.constants = named_constants(self.trace, self.own)

    def free_names(self, wanted: Iterable[str]) -> tuple[str, ...]:
        """The names, with underscores where a tensor of the module or a constant has one."""
        return free_names(wanted, {*self.own, *self.constants.values()})

    def lowered(self, names: Sequence[str]) -> Lowered:
        """The trace as ops; ``names`` are those of inputs and targets."""
        return lower(self.trace, (*self.own, *names), self.constants)

    def lines(self, nodes: Mapping[str, str]) -> dict[str, str]:
        """Lines of the model's own source, by buffer; ``nodes`` names the traced node that fills each."""
        found = {node.name: line_in(node.stack_trace) for node in self.trace.graph.nodes}
        return {name: line.removeprefix(" at ") for name, node in nodes.items() if (line := found.get(node))}

    def unsaved(self, lowered: Lowered) -> list[str]:
        """Names of the buffers that stay as they are and that the module's state dict leaves out."""
        left_out = unsaved_states(self.step.module)
        return [key for key in self.states if key in left_out and key not in lowered.written]

    def step_names(
        self,
        model: str,
        inputs: tuple[str, ...],
        unsaved: Sequence[str],
        predictions: Iterable[str | None],
        gradients: Mapping[str, str | None],
        *,
        targets: int = 0,
        loss: str = "",
    ) -> StepNames:
        """Names of the step's sources and results; states that are ``unsaved`` are constants."""
        states = tuple(key for key in self.states if key not in unsaved)
        constants = (*unsaved, *self.constants.values())
        made = tuple(item for item in predictions if item is not None)
        return StepNames(
            model, tuple(self.parameters), states, constants, inputs, targets, loss, made, gradients
        )

    def with_tied_names(self, graph: Graph) -> Graph:
        """``graph`` with the further names that the module's state dict has for a tensor."""
        return replace(graph, states=(*graph.states, *tied_names(self.step.module, self.own)))

    def tensors(self) -> dict[str, Tensor]:
        """The module's tensors and the constants, by names of values."""
        held = {value: getattr(self.trace, attribute) for attribute, value in self.constants.items()}
        return {key: compact(tensor) for key, tensor in (self.own | held).items()}


def as_list(tensors: Tensor | Sequence[Tensor]) -> list[Tensor]:
    """Inputs or targets, which may be one tensor."""
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _named(
    tracing: Tracing, model: str, count: int, input_names: Sequence[str] | None
) -> tuple[Lowered, StepNames]:
    """The lowered forward and backward pass of a step with ``count`` inputs, and what it reads and gives."""
    step = tracing.step
    targets = tracing.target_count
    wanted = ["targets"] if targets == 1 else [f"targets{index}" for index in range(targets)]
    names = tracing.free_names([*input_names_of(step.module, count, input_names), *wanted])
    lowered = tracing.lowered(names)
    loss, *made = lowered.outputs
    gradients = dict(zip(step.trained, made[: len(step.trained)], strict=True))
    unsaved, predictions = tracing.unsaved(lowered), made[len(step.trained) :]
    return lowered, tracing.step_names(
        model, names, unsaved, predictions, gradients, targets=targets, loss=str(loss)
    )


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


def _optimizer_state(
    graph: Graph, optimizer: OptimizerSpec, parameters: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    found = {}
    for parameter in graph.parameters:
        _, rows = block_of(parameter.name) if parameter.name not in parameters else ("", None)
        whole = parameters[parameter.value]
        part = whole if rows is None else whole[slice(*rows)]
        for state, value in parameter.optimizer_state:
            found[value] = torch.full_like(part, optimizer.states[state])
    return found
