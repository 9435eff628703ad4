"""A plan as text and as JSON: what it is for, what a step costs and how good that is, who holds the RAM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from poet.ir.named import loss_misfit, trained_in_words
from poet.planning.planned import choice_words, measured_words
from poet.plans.page_slots import erases_text, life_steps
from poet.plans.plan_parts import PriceEnds, PriceRange
from poet.plans.training_plan import Plan, shape_words
from poet.problem import Limits, Objective, Place, Problem
from poet.problem.alternatives import chosen_by
from poet.problem.homes import DecidedProblem, decided
from poet.problem.pins import pinned
from poet.problem.rounded import rounded_pages, rounding_words
from poet.problem.schedule import Schedule
from poet.problem.simulator import Trace
from poet.problem.solution import (
    SAYS_FILE,
    TITLES,
    WHOLE_PROBLEM,
    Solution,
    Status,
    format_amount,
    solution_to_json,
)
from poet.report import Column, listed, table
from poet.report.check import loss_reads, parts_data, strips_data, technique_lines, untrained_lines
from poet.report.reasons import what_binds
from poet.report.schedule_rows import (
    DECISIONS,
    PeakMoment,
    TensorFate,
    memory_over_time,
    op_runs,
    peak,
    tensor_fates,
)
from poet.util import codec
from poet.util.units import (
    IN_ORDER,
    NO_GAP,
    format_above,
    format_bytes,
    format_count,
    format_gap,
    format_joules,
    format_seconds,
    format_share,
)

if TYPE_CHECKING:  # a run shows plans without what planning needs
    from poet.planning.pipeline import Candidate

Lines = Iterator[tuple[str, str]]
"""Title and text of each row."""

PLOT_COLUMNS, PLOT_ROWS = 72, 8
_EIGHTHS = " ▁▂▃▄▅▆▇█"


def plan_report(plan: Plan, *, every_tensor: bool = False, every_op: bool = False) -> RenderableType:
    """Everything about a plan that was read from a file, for people."""
    tables = schedule_tables(
        plan.problem, plan.schedule, plan.trace, every_tensor=every_tensor, every_op=every_op
    )
    return Group(plan_summary(plan, says=SAYS_FILE), Text(), tables)


def plan_summary(plan: Plan, *, says: str = "", verbose: bool = False) -> RenderableType:
    """What the plan is for, what a step costs and how good that is.

    ``says``: as of `Solution`. ``verbose``: both ranges of what a step costs, not the likely one alone.
    """
    solution, made = solution_of(plan, says=says), plan.prediction
    answer = solution_report(plan.problem, plan.request.limits, solution, made.range, verbose=verbose)
    heading = listed(heading_lines(plan, says), "", "", left=2)
    heading.show_header = False
    marks = [] if made.measured is None else [Text(f"op times: {measured_words(made.measured)}")]
    return Group(heading, Text(), answer, *marks)


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


def heading_lines(plan: Plan, says: str = "") -> Iterator[tuple[str, str]]:
    """Title and text of each line of the heading."""
    graph, prediction, layout = plan.graph, plan.prediction, plan.layout
    sizes = "".join(f", {name}={size}" for name, size in plan.model.binding)
    yield "model", f"{plan.model.name}{sizes}: {len(graph.ops)} ops, {len(graph.buffers)} buffers"
    yield "device", plan.device.title or plan.device.name
    yield "kernels", plan.problem.kernels or "not stated"
    yield "training", f"{trained_in_words(graph)}, {plan.request.loss}, {plan.optimizer.name}"
    if choice := plan.outcome.choice:
        yield "chosen", f"{says}{choice_words(choice)}"
        yield from (("", group) for group in choice.groups)
    yield from auxiliary_lines(plan, says)
    yield "loss", loss_reads(graph, plan.request.loss)
    if doubt := loss_misfit(graph, plan.request.loss):
        yield "", doubt
    yield from (("not trained", line) for line in untrained_lines(graph, plan.request.train))
    yield from technique_lines(graph)
    if prediction.plain_peak_ram_bytes is not None:
        yield "plain training", f"{says}needs {format_bytes(prediction.plain_peak_ram_bytes)}"
    if prediction.lower_bound_ram_bytes is not None:
        least = format_bytes(prediction.lower_bound_ram_bytes)
        yield "lower bound", f"{says}{least} for any schedule {IN_ORDER}"
    if layout is not None:
        fits = "" if plan.has_fitting_arena else "; larger than the budget, so steps run from the heap"
        buffer = f", page buffer {format_bytes(plan.page_buffer_bytes)}" if plan.page_buffer_bytes else ""
        yield "arena", f"{format_bytes(layout.arena_bytes)}, efficiency {layout.efficiency:.1%}{buffer}{fits}"
    wear = plan.step_wear
    steps = life_steps(plan.device.endurance, wear)
    if wear.bytes and steps is not None:
        is_levelled = plan.device.endurance_cycles is None
        takes = f"wears {format_bytes(wear.bytes)}" if is_levelled else erases_text(wear)
        yield "wear", f"storage lasts {format_count(steps)} steps; each {takes}"


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


# --- what a step costs -------------------------------------------------------------------------


def solution_report(
    problem: Problem,
    limits: Limits,
    solution: Solution,
    price_range: PriceRange | None = None,
    *,
    verbose: bool = False,
) -> RenderableType:
    """What a search answered, with or without a plan; ``price_range`` where a device is known."""
    said = [Text(solution.sentence, style="bold")]
    if solution.message:
        said.append(Text(solution.message))
    if solution.schedule is None or solution.trace is None:
        return Group(*said)
    chosen, schedule = chosen_by(problem, solution.schedule)
    of, trace = decided(chosen, schedule), solution.trace
    fullest = peak(of, schedule, trace)
    costs = _cost_rows(of, limits, solution, trace, spreads_of(price_range, verbose=verbose))
    if rounded := rounded_pages(of, schedule):
        said.append(Text(f"Not exact: tensors are rounded in storage: {rounding_words(rounded)}."))
    return Group(
        *said,
        Text(),
        listed(costs, "per step", "", "", left=3),
        Text(),
        _role_table(fullest),
        Text(),
        *map(Text, what_binds(limits, trace, fullest)),
        Text(),
        *map(Text, memory_plot(trace, limits.ram_budget_bytes)),
    )


def _cost_rows(
    problem: DecidedProblem,
    limits: Limits,
    solution: Solution,
    trace: Trace,
    spreads: Iterator[tuple[PriceEnds, str]],
) -> Iterator[tuple[str, str, str]]:
    yield from _objective_rows(solution)
    once_joules = solution.baseline_joules
    above = trace.joules / once_joules - 1.0 if once_joules else 0.0
    above = above if abs(above) > 1e-12 else 0.0  # less is the sums' rounding
    once = f"running every op once ({format_joules(once_joules)})"
    yield "energy", format_joules(trace.joules), format_above(above, once)
    scope = "" if solution.bound_scope == WHOLE_PROBLEM else f" ({solution.bound_scope})"
    bound = f"{solution.says}{_gap_words(solution)}{scope}"
    yield "energy bound", format_joules(solution.bound_joules), bound
    once_seconds = problem.compute_seconds
    slower = f"{trace.seconds / once_seconds:.4g}x running every op once" if once_seconds else ""
    if limits.deadline_seconds is not None:
        slower += f"; deadline {format_seconds(limits.deadline_seconds)}"
    yield "time", format_seconds(trace.seconds), slower
    for found, why in spreads:
        missed = limits.deadline_seconds is not None and found.bad_seconds > limits.deadline_seconds
        seconds = f"{format_seconds(found.good_seconds)} to {format_seconds(found.bad_seconds)}"
        yield (
            "range",
            f"{format_joules(found.good_joules)} to {format_joules(found.bad_joules)}",
            f"and {seconds}, {why}{'; may miss the deadline' * missed}",
        )
    budget, used = limits.ram_budget_bytes, "no budget"
    if budget is not None:
        used = f"{format_share(trace.peak_ram_bytes / budget)} of the budget, {format_bytes(budget)}"
    yield "RAM at the peak", format_bytes(trace.peak_ram_bytes), used
    again_seconds = max(0.0, trace.compute_seconds - once_seconds)
    again_joules = max(0.0, trace.compute_joules - problem.compute_joules)
    out = _price(trace.page_out_seconds, trace.page_out_joules)
    yield "recomputed", f"{trace.recomputed_runs} runs", _price(again_seconds, again_joules)
    yield "paged out", format_bytes(trace.written_bytes), out
    yield "paged in", format_bytes(trace.read_bytes), _price(trace.page_in_seconds, trace.page_in_joules)
    if trace.moves:
        price = _price(trace.move_seconds, trace.move_joules)
        yield "moved in RAM", format_bytes(trace.moved_bytes), f"{trace.moves} moves, {price}"
    yield from _choice_rows(problem, limits)
    proof = f"; {solution.proof}" if solution.proof else ""
    yield "search", format_seconds(solution.solve_seconds), f"{solution.says}by {solution.solver}{proof}"


def spreads_of(found: PriceRange | None, *, verbose: bool = False) -> Iterator[tuple[PriceEnds, str]]:
    """The likely range of a step, and what it means; ``verbose``: that of all the device's figures, too."""
    if found is None:
        return
    if found.likely is not None:
        yield found.likely, "in nine cases of ten"
    if found.likely is None or verbose:
        yield found, "as far as the device's figures may be off"


def _gap_words(solution: Solution) -> str:
    optimal = solution.status is Status.OPTIMAL
    gap = format_gap(solution.gap or 0.0, optimal=optimal, confirmed=solution.is_energy_confirmed)
    if gap in NO_GAP:
        return solution.in_words(NO_GAP[gap])
    overhead = format_share(solution.overhead_gap or 0.0)
    said = f"gap {gap} of the energy, {overhead} of what is above running every op once, {IN_ORDER}"
    return solution.in_words(said)


def _objective_rows(solution: Solution) -> Iterator[tuple[str, str, str]]:
    """What was minimised where that is not energy, beside its bound."""
    objective, amount, bound = solution.objective, solution.amount, solution.bound
    if objective is not Objective.ENERGY and amount is not None and bound is not None:
        optimal = solution.status is Status.OPTIMAL
        gap = format_gap(solution.objective_gap or 0.0, optimal=optimal, confirmed=solution.is_confirmed)
        gap = solution.in_words(NO_GAP.get(gap, f"gap {gap} {IN_ORDER}"))
        least = format_amount(objective, bound)
        yield (
            f"least {TITLES[objective]}",
            format_amount(objective, amount),
            f"{solution.says}bound {least}, {gap}",
        )


def _choice_rows(problem: DecidedProblem, limits: Limits) -> Iterator[tuple[str, str, str]]:
    """What lives in storage between steps, and what was pinned."""
    away = [tensor for tensor in problem.tensors if tensor.initially is Place.STORAGE]
    if away:
        size = format_bytes(sum(tensor.bytes for tensor in away))
        yield "kept in storage", size, f"{len(away)} tensors, between steps"
    pins = pinned(problem, limits)
    words = {
        "kept": pins.kept,
        "recomputed": pins.recomputed,
        "paged": pins.paged,
        "never paged": pins.never_paged,
    }
    said = [f"{len(names)} {word}" for word, names in words.items() if names]
    if said:
        yield "pinned", f"{sum(map(len, words.values()))} tensors", ", ".join(said)


def _price(seconds: float, joules: float) -> str:
    return f"{format_seconds(seconds)}, {format_joules(joules)}"


def _role_table(fullest: PeakMoment) -> Table:
    """RAM at the peak by role."""
    rows = ((role, format_bytes(size), format_share(size / fullest.bytes)) for role, size in fullest.by_role)
    made = listed(rows, f"RAM at the peak ({fullest.what})", "bytes", "share")
    made.add_row("together", format_bytes(fullest.bytes), "", style="bold")
    return made


def memory_plot(trace: Trace, budget_bytes: int | None) -> Iterator[str]:
    """RAM over the step in lines of block characters; the top of the plot is the budget or the peak."""
    top = max(budget_bytes or 0, trace.peak_ram_bytes, 1)
    heights = [
        round(size_bytes / top * PLOT_ROWS * 8) for size_bytes in memory_over_time(trace, PLOT_COLUMNS)
    ]
    for row in reversed(range(PLOT_ROWS)):
        label = {PLOT_ROWS - 1: format_bytes(top), 0: "0"}.get(row, "")
        line = "".join(_EIGHTHS[min(8, max(0, height - 8 * row))] for height in heights)
        yield f"{label:>10} │{line.rstrip()}"
    yield f"{'':>10} └{'─' * PLOT_COLUMNS}"
    yield f"{'':>12}0{format_seconds(trace.seconds):>{PLOT_COLUMNS - 1}}"


# --- what becomes of tensors and ops -----------------------------------------------------------

_TENSORS = (
    Column("tensor", "name"),
    Column("role", "role"),
    Column("what becomes of it", "words"),
    Column("bytes", "bytes", "B"),
    Column("in RAM", lambda fate: f"{100 * fate.resident_share:.0f} %", "right"),
    Column("time", "seconds", "s", sparse=True),
    Column("energy", "joules", "J", sparse=True),
)
_OPS = (
    Column("op", "name"),
    Column("runs", "runs", "right"),
    Column("time", "seconds", "s"),
    Column("energy", "joules", "J"),
    Column("workspace", "workspace_bytes", "B", sparse=True),
)


def fates_by_decision(fates: Sequence[TensorFate]) -> Table:
    """How many tensors and bytes are kept, recomputed, paged, or both."""
    kinds: dict[str, list[TensorFate]] = {decision: [] for decision in DECISIONS}
    for fate in fates:
        kinds[fate.decision].append(fate)
    return table(
        kinds.items(),
        Column("tensors", lambda kind: kind[0]),
        Column("number", lambda kind: len(kind[1]), "right"),
        Column("bytes", lambda kind: sum(fate.bytes for fate in kind[1]), "B"),
        Column("time", lambda kind: sum(fate.seconds for fate in kind[1]), "s"),
        Column("energy", lambda kind: sum(fate.joules for fate in kind[1]), "J"),
    )


def schedule_tables(
    problem: DecidedProblem, schedule: Schedule, trace: Trace, *, every_tensor: bool, every_op: bool
) -> RenderableType:
    """What becomes of the tensors; those that are merely kept are listed only with ``every_tensor``."""
    fates = tensor_fates(problem, schedule, trace)
    shown = [fate for fate in fates if every_tensor or fate.words != "kept"]
    parts: list[RenderableType] = [fates_by_decision(fates)]
    parts += [Text(), table(shown, *_TENSORS, left=3)] if shown else []
    parts += [Text(), table(op_runs(problem, schedule), *_OPS)] if every_op else []
    return Group(*parts)


# --- JSON and text of the graph ----------------------------------------------------------------


def plan_data(plan: Plan) -> dict[str, Any]:
    """The plan's model, request and device, its answer as ``poet solve --json`` gives it, and its rows."""
    layout, of = plan.layout, (plan.problem, plan.schedule, plan.trace)
    fullest = peak(*of)
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
        "peak": {**codec.encode(fullest), "by_role": dict(fullest.by_role), "tensors": dict(fullest.tensors)},
        "tensors": codec.encode(tensor_fates(*of)),
        "ops": codec.encode(op_runs(plan.problem, plan.schedule)),
        "ram_over_time": [
            [moment.start_seconds, moment.end_seconds, moment.ram_bytes] for moment in plan.trace.moments
        ],
    }


def graph_text(plan: Plan) -> str:
    """One line per op, with the workspace and the allocations of its kernel as the plan counts them."""
    remarks, units = {}, {op.name: op.unit for op in plan.problem.ops if op.unit}
    for op in plan.graph.ops:
        facts = plan.kernels.of(op.name)
        said = [f"on {units[op.name]}"] if op.name in units else []
        said += [f"workspace {facts.workspace_bytes} B"] if facts.workspace_bytes else []
        said += [f"{len(facts.allocations)} allocations"] if facts.allocations is not None else []
        if said:
            remarks[op.name] = ", ".join(said)
    return plan.graph.to_text(remarks)
