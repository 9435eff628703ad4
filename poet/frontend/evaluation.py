"""The evaluation of a model: its forward pass and loss in evaluation mode, as a graph of its own.

Its schedule is auxiliary to the training step: it has the same inputs, and the same tensors across steps,
those of the optimizer included, under the same names. Nothing that lives across steps is written. A table
whose rows training reads where it lies in storage is read there as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from poet.errors import ModelError
from poet.frontend.assemble import Assembly, with_persistent_of
from poet.frontend.eager import evaluating, original
from poet.frontend.functional import Step
from poet.frontend.losses import loss_named
from poet.frontend.trace import Tracing, TrainingStep, as_list
from poet.frontend.traced_operators import small_operators
from poet.ir.graph import Graph
from poet.ir.kernel_facts import KernelFacts
from poet.ir.named import named_parameters
from poet.passes.base import base_of, with_base
from poet.passes.parts import in_parts_of
from poet.passes.rewrite import rewritten
from poet.passes.stored_rows import row_reads
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
    module, inputs, beside = original(module), as_list(example_inputs), training.graph
    types = {value.name: value.type for value in beside.values}
    trained = (item.name for item in named_parameters(beside) if item.is_trained)
    objective = training.objective or loss_named(training.loss)
    with evaluating(module), small_operators(are_wanted=training.has_small_operators):
        tracing = Tracing(Step(module, trained, objective, has_backward=False), inputs)
        tracing.run(types[name] for name in beside.inputs[len(inputs) :])
    tracing.constants = _shared_constants(tracing, training)
    lowered = tracing.lowered(beside.inputs)
    saved = {value for _, value in beside.states}
    unsaved = [name for name in tracing.states if name not in saved]
    loss, *predictions = lowered.outputs
    names = tracing.step_names(
        beside.name, beside.inputs, unsaved, predictions, {}, targets=beside.targets, loss=str(loss)
    )
    graph = Assembly(lowered, names, training.optimizer).graph()
    if written := [name for op in graph.ops for name in op.updates]:
        raise ModelError(f"in evaluation mode the model writes {written[0]}")
    graph = with_base(in_parts_of(beside, graph), base_of(beside))
    return by_row(EvaluationStep(*measured(with_persistent_of(graph, beside), times=measure)), beside)


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


def _shared_constants(tracing: Tracing, training: TrainingStep) -> dict[str, str]:
    """By attribute of the trace, the training step's name of a constant of the same content.

    Raises:
        ModelError: training has none.
    """
    known = {name: training.tensors[name] for name, _ in training.graph.constants if name not in tracing.own}
    names = {}
    for attribute in tracing.constants:
        tensor: Tensor = getattr(tracing.trace, attribute)
        name = next((name for name, other in known.items() if _is_same(tensor, other)), None)
        if name is None:
            raise ModelError(
                "in evaluation mode the model uses a constant that it does not use in training; "
                "register it with register_buffer"
            )
        names[attribute] = name
        del known[name]  # each of the trace's constants has a storage of its own
    return names


def _is_same(one: Tensor, other: Tensor) -> bool:
    kinds = ((item.dtype, item.shape, item.stride()) for item in (one, other))
    return len({*kinds}) == 1 and torch.equal(one, other)
