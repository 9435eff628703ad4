"""A plan as JSON-ready objects, and its auxiliary schedules as rows: micro-batches, shapes, budgets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from poet.ir.graph import Graph
from poet.ir.named import named_parameters
from poet.plans.training_plan import Plan, shape_words
from poet.problem.homes import DecidedProblem
from poet.problem.schedule import Schedule
from poet.problem.simulator import Trace
from poet.problem.solution import SAYS_FILE, Solution, Status, solution_to_json
from poet.report.schedule_rows import op_runs, peak, tensor_fates
from poet.util import codec
from poet.util.units import format_bytes, format_joules, format_seconds

if TYPE_CHECKING:  # a run shows plans without what planning needs
    from poet.planning.pipeline import Candidate

Lines = Iterator[tuple[str, str]]
"""Title and text of each row."""


def solution_of(plan: Plan, *, says: str = SAYS_FILE) -> Solution:
    """The answer that a plan carries, as the search gave it; ``says`` as of `Solution`."""
    outcome = plan.outcome
    return Solution(
        status=Status[outcome.status.upper()],
        schedule=plan.schedule,
        trace=plan.trace,
        bound_joules=outcome.bound_joules,
        baseline_joules=plan.problem.compute_joules,
        solve_seconds=outcome.solve_seconds,
        solver=outcome.solver,
        bound_scope=outcome.bound_scope,
        objective=outcome.objective,
        objective_bound=outcome.objective_bound,
        proof=outcome.proof,
        record=outcome.record,
        says=says,
    )


def plan_data(plan: Plan) -> dict[str, Any]:
    """The plan's model, request and device, its answer as ``poet solve --json`` gives it, and its rows."""
    layout = plan.layout
    return {
        "model": codec.encode(plan.model),
        "request": codec.encode(plan.request),
        "device": codec.encode(plan.device),
        "optimizer": codec.encode(plan.optimizer),
        "prediction": codec.encode(plan.prediction),
        "strips": strips_data(plan.graph),
        "parts": parts_data(plan.graph),
        "micro_batches": _micro_data(plan),
        "shapes": shape_rows(plan) or None,
        "budgets": budget_rows(plan) or None,
        "arena": None
        if layout is None
        else {
            "size_bytes": layout.arena_bytes,
            "lower_bound_bytes": layout.lower_bound_bytes,
            "efficiency": layout.efficiency,
            "fits": plan.has_fitting_arena,
            "page_buffer_bytes": plan.page_buffer_bytes,
        },
        **solution_to_json(plan.problem, solution_of(plan)),
        "says": SAYS_FILE.partition(":")[0],
        **schedule_data(plan.problem, plan.schedule, plan.trace),
    }


def strips_data(graph: Graph) -> list[dict[str, Any]]:
    """Per op that runs block by block: into how many, and the bytes of what never exists whole."""
    return [
        {
            "op": op.name,
            "blocks": len(op.strip.bounds),
            "whole_bytes": op.strip.whole_bytes,
            "block_bytes": op.strip.block_bytes,
            "saved_bytes": op.strip.whole_bytes - op.strip.block_bytes,
        }
        for op in graph.ops
        if op.strip is not None and op.strip.overwritten is None
    ]


def parts_data(graph: Graph) -> list[dict[str, Any]]:
    """Per parameter in parts: its name and bytes, and the rows at which its parts begin."""
    return [
        {
            "parameter": item.name,
            "bytes": item.content.type.extent_bytes,
            "begin": [start for start, _ in item.content.bounds],
        }
        for item in named_parameters(graph)
        if item.content.bounds
    ]


def schedule_data(problem: DecidedProblem, schedule: Schedule, trace: Trace) -> dict[str, Any]:
    """Who holds the RAM at the peak, and a row per tensor and per op."""
    fullest = peak(problem, schedule, trace)
    return {
        "peak": {**codec.encode(fullest), "by_role": dict(fullest.by_role), "tensors": dict(fullest.tensors)},
        "tensors": codec.encode(tensor_fates(problem, schedule, trace)),
        "ops": codec.encode(op_runs(problem, schedule)),
        "ram_over_time": [
            [moment.start_seconds, moment.end_seconds, moment.ram_bytes] for moment in trace.moments
        ],
    }


# --- auxiliary schedules ----------------------------------------------------------------------

_FIGURES = ("joules", "seconds", "peak_ram_bytes", "recomputed_runs", "read_bytes", "written_bytes")


def _figures(trace: Trace) -> dict[str, Any]:
    return {name: getattr(trace, name) for name in _FIGURES}


def _figures_text(row: dict[str, Any]) -> str:
    """What a step takes."""
    paged = f"{format_bytes(row['written_bytes'])} out"
    paged += f", {format_bytes(row['read_bytes'])} in" if "read_bytes" in row else ""
    return (
        f"{format_joules(row['joules'])}, {format_seconds(row['seconds'])}, "
        f"{format_bytes(row['peak_ram_bytes'])} at the peak, {row['recomputed_runs']} recomputed runs, "
        f"{paged}"
    )


def auxiliary_lines(plan: Plan, says: str = "") -> Lines:
    """What micro-batches make of a step, other shapes and other budgets; none where a plan has none."""
    yield from _micro_lines(plan)
    shapes = shape_rows(plan)
    if shapes:
        yield "shapes", f"{shape_words(plan.graph, plan.model)}: the figures below; {len(shapes)} beside it"
    for row in shapes:
        lacks = "" if row["has_evaluation"] or plan.evaluation is None else "; no evaluation"
        yield row["shape"], f"{_figures_text(row)}{lacks}"
    for row in budget_rows(plan):
        title = f"in {format_bytes(row['ram_budget_bytes'] or 0)}"
        yield title, f"{_figures_text(row)}, {says}{row['status']}"


def shape_rows(plan: Plan) -> list[dict[str, Any]]:
    """The other shapes that a plan has steps for."""
    return [
        {
            "shape": shape_words(shape.step.graph, shape.step.model),
            **_figures(shape.step.trace),
            "has_evaluation": shape.evaluation is not None,
        }
        for shape in plan.shapes
    ]


def budget_rows(plan: Plan) -> list[dict[str, Any]]:
    """The other budgets that a plan file has plans for."""
    return [
        {
            "ram_budget_bytes": other.request.limits.ram_budget_bytes,
            "joules": other.step_joules,
            "seconds": other.step_seconds,
            "peak_ram_bytes": other.step_peak_ram_bytes,
            "recomputed_runs": other.trace.recomputed_runs,
            "written_bytes": other.step_written_bytes,
            "status": other.outcome.status,
        }
        for other in plan.budgets
    ]


def _micro_data(plan: Plan) -> dict[str, Any] | None:
    """What micro-batches make of a step."""
    micro, accumulation = plan.request.micro, plan.accumulation
    if micro is None or accumulation is None:
        return None
    return {
        "count": micro.count,
        "loss": micro.loss,
        "step_joules": plan.step_joules,
        "step_seconds": plan.step_seconds,
        "step_written_bytes": plan.step_written_bytes,
        **{f"accumulating_{name}": amount for name, amount in _figures(accumulation.trace).items()},
    }


def _micro_lines(plan: Plan) -> Lines:
    micro, accumulation = plan.request.micro, plan.accumulation
    if micro is None or accumulation is None:
        return
    types = {value.name: value.type for value in plan.graph.values}
    shape = types[plan.graph.inputs[0]].shape
    samples = f" of {shape[0]} samples" if shape else ""
    loss = f"loss divided by {micro.divisor}" if micro.divisor > 1 else "loss as it is"
    norm = any("batch_norm" in op.call.target for op in plan.graph.ops)
    statistics = "; batch norm uses the statistics of each" if norm else ""
    yield "micro-batches", f"{micro.count}{samples} each, {loss}{statistics}"
    yield "accumulating", f"{micro.count - 1} times {_figures_text(_figures(accumulation.trace))}"
    once = f"{format_joules(plan.trace.joules)}, {format_seconds(plan.trace.seconds)}"
    yield "updating", f"once {once}: the figures below"
    yield "whole step", f"{format_joules(plan.step_joules)}, {format_seconds(plan.step_seconds)}"


def candidate_lines(tried: Sequence[Candidate]) -> Iterator[str]:
    """What each number of micro-batches takes."""
    for item in tried:
        called = "the whole batch" if item.micro is None else f"{item.micro.count} micro-batches"
        if item.joules is None or item.seconds is None:
            yield f"{called}: {item.why}"
        else:
            yield f"{called}: {format_joules(item.joules)} and {format_seconds(item.seconds)} per step"
