"""What must hold between the parts of a plan: graph, kernels, costs, predictions."""

from __future__ import annotations

import math

from poet.errors import PlanError
from poet.graph import Graph
from poet.kernel_facts import KernelFacts
from poet.plans.plan_parts import Prediction, PriceEnds, SearchOutcome
from poet.problem import Place, Problem
from poet.simulator import Trace

LARGEST_BYTES = 1 << 48
"""No buffer, and nothing in one, is larger."""

_ROUNDING = 1e-6  # of a plan's joules, that a bound may be above them


def check_problem(graph: Graph, problem: Problem, kernels: KernelFacts) -> None:
    """The problem's tensors are the graph's buffers, its ops the graph's ops, with the same effects."""
    sizes = {buffer.name: buffer.size_bytes for buffer in graph.buffers}
    if sizes != {tensor.name: tensor.bytes for tensor in problem.tensors}:
        raise PlanError("the problem's tensors are not the graph's buffers")
    if any(size > LARGEST_BYTES for size in sizes.values()):
        raise PlanError(f"a buffer is larger than {LARGEST_BYTES} bytes")
    for value in graph.values:
        if max((*value.type.shape, *value.type.strides, value.type.offset)) > LARGEST_BYTES:
            raise PlanError(f"value {value.name} has a size, stride or offset above {LARGEST_BYTES}")
    if [op.name for op in graph.ops] != [op.name for op in problem.ops]:
        raise PlanError("the problem's ops are not the graph's ops")
    for op, costed in zip(graph.ops, problem.ops, strict=True):
        recall = op.recall
        agree = (
            set(costed.inputs) == set(graph.reads(op.call))
            and costed.outputs == graph.writes(op)
            and {*costed.updates, *costed.stored_updates} == set(op.updates)
            and (recall is not None or not costed.recomputable)
            and (recall is None or set(costed.rerun_inputs) >= set(graph.reads(recall)))
            and costed.random == op.random
            and costed.stored == op.stored
            and set(costed.stored_updates) == {*op.updates} & {*op.stored}
        )
        if not agree:
            raise PlanError(f"op {op.name} of the problem contradicts the graph")
        if costed.workspace_bytes < kernels.of(op.name).workspace_bytes:
            raise PlanError(f"op {op.name} of the problem has a smaller workspace than its kernel")
    if problem.kernels != kernels.library:
        raise PlanError(f"the problem counts kernels {problem.kernels!r}, the plan's are {kernels.library!r}")


def check_kernels(graph: Graph, kernels: KernelFacts) -> None:
    """What is said about kernels is about ops of the graph and the buffers that they allocate."""
    ops = {op.name: op for op in graph.ops}
    for facts in kernels.ops:
        if facts.name not in ops:
            raise PlanError(f"kernels {kernels.library}: there is no op {facts.name!r}")
        if facts.outputs > len(graph.writes(ops[facts.name])):
            raise PlanError(f"op {facts.name}: its kernel's allocations do not become its outputs")


def check_ends(graph: Graph, problem: Problem) -> None:
    """Every step can follow the one before, and its results are there to be handed over."""
    tensors = {tensor.name: tensor for tensor in problem.tensors}
    loss = next(value.type for value in graph.values if value.name == graph.loss)
    if loss.elements != 1:
        raise PlanError(f"the loss {graph.loss} is {loss}; a step minimises a single number")
    produced = {name for op in graph.ops for name in graph.writes(op)}
    inputs = {graph.buffer_of(name) for name in graph.inputs}
    updated = {name for op in graph.ops for name in op.updates}
    persistent = graph.persistent()
    for name in (graph.loss, *graph.predictions):
        if tensors[graph.buffer_of(name)].finally_ is not Place.RAM:
            raise PlanError(f"{name} is handed to the caller but need not end in RAM")
    for name, tensor in tensors.items():
        if name in produced:
            continue
        if (name in inputs) == (name in persistent):
            raise PlanError(f"buffer {name} must be either an input or live across steps")
        if name in inputs and tensor.initially not in (None, Place.RAM):
            raise PlanError(f"input {name} must begin in RAM")
        if name in inputs:
            continue
        ends = {
            Place.STORAGE: name not in updated or tensor.finally_ is Place.STORAGE,
            Place.BOTH: name not in updated and tensor.finally_ is Place.RAM,
        }
        if not ends.get(tensor.initially or Place.RAM, tensor.finally_ is Place.RAM):
            raise PlanError(f"buffer {name} lives across steps but does not end where it begins")


def check_prediction(prediction: Prediction, graph: Graph, trace: Trace) -> None:
    """Of a step it says what the simulator says; of measured ops, what can be true of the graph."""
    said = (prediction.seconds, prediction.joules)
    judged = (trace.seconds, trace.joules)
    close = all(math.isclose(a, b, rel_tol=1e-9) for a, b in zip(said, judged, strict=True))
    if not close or prediction.peak_ram_bytes != trace.peak_ram_bytes:
        raise PlanError("the predictions are not what the simulator says about the schedule")
    measured = prediction.measured
    if measured is not None:
        names, others = {op.name for op in graph.ops}, set(measured.extrapolated)
        counted = len(measured.extrapolated) == len(others) == len(names) - measured.ops
        if not counted or not others <= names or not 0.0 <= measured.seconds_share <= 1 + _ROUNDING:
            raise PlanError("what it says of measured ops is not of its graph")
    ends = prediction.range
    if ends is not None:
        _check_between(ends, trace)
        if ends.likely is not None:
            _check_between(ends.likely, trace)


def _check_between(ends: PriceEnds, trace: Trace) -> None:
    for good, stated, bad in (
        (ends.good_seconds, trace.seconds, ends.bad_seconds),
        (ends.good_joules, trace.joules, ends.bad_joules),
    ):
        if not 0.0 <= good <= (1 + _ROUNDING) * stated or not stated <= (1 + _ROUNDING) * bad < math.inf:
            raise PlanError("the range of the predictions does not contain them")


def check_outcome(outcome: SearchOutcome, trace: Trace) -> None:
    """What is said of all other plans does not contradict this one."""
    if outcome.bound_joules > (1 + _ROUNDING) * trace.joules:
        raise PlanError(
            f"its bound of {outcome.bound_joules:g} J is above the {trace.joules:g} J of its own schedule"
        )
