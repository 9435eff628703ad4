"""The evaluation of a traced model: its forward pass and loss in evaluation mode, as a graph of its own.

Its schedule is auxiliary to the training step: it has the same inputs, and the same tensors across steps,
those of the optimizer included, under the same names. Nothing that lives across steps is written. A
table whose rows training reads where it lies in storage is read there as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, fx, nn

from poet.errors import ModelError
from poet.frontend.assemble import StepNames, assemble
from poet.frontend.assemble import beside as with_lasting
from poet.frontend.eager import evaluating, original
from poet.frontend.functional import Functional, Step, TrueLayouts, fakes, trace_step
from poet.frontend.losses import loss_named
from poet.frontend.lower import lower
from poet.frontend.module_tensors import looks_at_contents, named_constants, own_tensors
from poet.frontend.trace import TrainingStep
from poet.frontend.traced_operators import small_operators
from poet.ir.graph import Graph
from poet.ir.kernel_facts import KernelFacts
from poet.ir.named import named_parameters
from poet.passes.parts import in_parts_of
from poet.passes.rewrite import rewritten
from poet.passes.stored_rows import row_reads
from poet.runtime.kernels import arguments
from poet.runtime.trials.measure import measured


@dataclass(frozen=True, slots=True)
class EvaluationStep:
    """A traced evaluation: its graph, and what torch's kernels need for it on this machine."""

    graph: Graph
    kernels: KernelFacts


def trace_evaluation(
    module: nn.Module,
    example_inputs: Tensor | Sequence[Tensor],
    training: TrainingStep,
    *,
    measure: bool = True,
) -> EvaluationStep:
    """Trace ``module`` as ``module.eval()`` runs it, without gradients.

    Args:
        module: of which ``training`` was traced; it is not changed.
        example_inputs: as for the training step.
        training: the step beside which the evaluation stands.
        measure: run each distinct kernel once to find its workspace.

    Raises:
        ModelError: evaluation cannot be traced, writes what lives across steps, or reads a constant that
            training has not.
        UnsupportedOperator: it uses an operator that poet does not run.
    """
    module = original(module)
    inputs = [example_inputs] if isinstance(example_inputs, Tensor) else list(example_inputs)
    beside = training.graph
    parameters, states = own_tensors(module)
    types = {value.name: value.type for value in beside.values}
    mode = TrueLayouts()
    with mode:
        targets = [
            torch.empty_strided(kind.shape, kind.strides, dtype=arguments.dtype(kind.dtype))
            for kind in (types[name] for name in beside.inputs[len(inputs) :])
        ]
    with evaluating(module), small_operators(are_wanted=training.has_small_operators):
        trained = (item.name for item in named_parameters(beside) if item.is_trained)
        objective = training.objective or loss_named(training.loss)
        step = Functional(Step(module, trained, objective, has_backward=False), (*parameters, *states))
        step.step.is_exported = looks_at_contents(module, inputs)
        own = fakes(mode, (parameters | states).values())
        traced = trace_step(step, (own, fakes(mode, inputs), targets))
    constants = _shared_constants(traced, parameters | states, training)
    lowered = lower(traced, (*parameters, *states, *beside.inputs), constants)
    saved = {value for _, value in beside.states}
    found, *predictions = lowered.outputs
    graph = assemble(
        lowered,
        StepNames(
            model=beside.name,
            parameters=tuple(parameters),
            states=tuple(name for name in states if name in saved),
            constants=(*(name for name in states if name not in saved), *constants.values()),
            inputs=beside.inputs,
            targets=beside.targets,
            loss=str(found),
            predictions=tuple(item for item in predictions if item is not None),
            gradients={},
        ),
        training.optimizer,
    )
    written = [name for op in graph.ops for name in op.updates]
    if written:
        raise ModelError(f"in evaluation mode the model writes {written[0]}")
    graph = in_parts_of(beside, graph)
    return by_row(EvaluationStep(*measured(with_lasting(graph, beside), times=measure)), beside)


def by_row(step: EvaluationStep, training: Graph) -> EvaluationStep:
    """``step`` with look-ups by row in the tables of which ``training`` reads rows in storage."""
    tables = {op.stored for op in training.ops if op.stored}
    found = row_reads(step.graph, step.kernels).values() if tables else ()
    rewrites = [each for each in found if any(op.stored in tables for op in each.made)]
    if not rewrites:
        return step
    graph = rewritten(step.graph, rewrites)
    own = {name: facts for each in rewrites for name, facts in each.facts.items()}
    facts = tuple(own.get(op.name) or step.kernels.of(op.name) for op in graph.ops)
    return EvaluationStep(graph, replace(step.kernels, ops=facts))


def _shared_constants(
    traced: fx.GraphModule, own: Mapping[str, Tensor], training: TrainingStep
) -> dict[str, str]:
    """By attribute of the trace, the training step's name of a constant of the same content.

    Raises:
        ModelError: training has none.
    """
    known = {name: training.tensors[name] for name, _ in training.graph.constants if name not in own}
    names = {}
    for attribute in named_constants(traced, own):
        tensor: Tensor = getattr(traced, attribute)
        alike = (name for name, other in known.items() if _is_same(tensor, other))
        name = next(alike, None)
        if name is None:
            raise ModelError(
                "in evaluation mode the model uses a constant that it does not use in training; "
                "register it with register_buffer"
            )
        names[attribute] = name
        del known[name]  # each of the trace's constants has a storage of its own
    return names


def _is_same(one: Tensor, other: Tensor) -> bool:
    return (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride()) and torch.equal(
        one, other
    )
