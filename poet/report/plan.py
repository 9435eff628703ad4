"""The text report of a schedule: what it costs, how good it is, who holds the RAM, what binds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from poet.alternatives import chosen_by
from poet.homes import DecidedProblem, decided
from poet.named import trained_in_words
from poet.planning.summary import measured_words
from poet.plans.flash_life import erases_text, life_steps, wear_of_plan
from poet.plans.plan_parts import PriceRange
from poet.plans.training_plan import Plan
from poet.problem import Limits, Problem
from poet.report.budgets import budget_rows
from poet.report.columns import columns
from poet.report.costs import cost_table
from poet.report.micro import micro_rows
from poet.report.schedule_rows import (
    OpRuns,
    PeakMoment,
    TensorFate,
    memory_over_time,
    op_runs,
    peak,
    tensor_fates,
)
from poet.report.shapes import shape_rows
from poet.report.training import (
    loss_reads,
    packed_lines,
    part_lines,
    row_lines,
    strip_lines,
    untrained_lines,
)
from poet.schedule import Schedule
from poet.simulator import Trace
from poet.solution import SAYS_FILE, Solution, Status
from poet.units import (
    IN_ORDER,
    format_bytes,
    format_count,
    format_joules,
    format_seconds,
    format_share,
)
from poet.untrained import loss_misfit

BINDING_SHARE = 0.99
"""A limit of which at least this share is used counts as used up."""

PLOT_COLUMNS, PLOT_ROWS = 72, 8
_EIGHTHS = " ▁▂▃▄▅▆▇█"


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


def plan_heading(plan: Plan, says: str = "") -> Table:
    """What the plan is for: model, device, what is trained and how, the RAM it is measured against.

    ``says``: as of `Solution`.
    """
    graph, prediction = plan.graph, plan.prediction
    table = columns("", "", left=2)
    table.show_header = False
    sizes = "".join(f", {name}={size}" for name, size in plan.model.binding)
    table.add_row("model", f"{plan.model.name}{sizes}: {len(graph.ops)} ops, {len(graph.buffers)} buffers")
    table.add_row("device", plan.device.title or plan.device.name)
    table.add_row("kernels", plan.problem.kernels or "not stated")
    table.add_row(
        "training",
        f"{trained_in_words(graph)}, {plan.request.loss}, {plan.optimizer.name}",
    )
    for title, line in (*micro_rows(plan), *shape_rows(plan), *budget_rows(plan, says)):
        table.add_row(title, line)
    table.add_row("loss", Text(loss_reads(graph, plan.request.loss)))
    if doubt := loss_misfit(graph, plan.request.loss):
        table.add_row("", Text(doubt, style="bold"))
    for line in untrained_lines(graph, plan.request.train):
        table.add_row("not trained", Text(line))
    for line in strip_lines(graph):
        table.add_row("strips", line)
    for line in packed_lines(graph):
        table.add_row("packed", line)
    for line in part_lines(graph):
        table.add_row("parts", line)
    for line in row_lines(graph):
        table.add_row("rows", line)
    if prediction.plain_peak_ram_bytes is not None:
        table.add_row("plain training", f"{says}needs {format_bytes(prediction.plain_peak_ram_bytes)}")
    if prediction.lower_bound_ram_bytes is not None:
        least = format_bytes(prediction.lower_bound_ram_bytes)
        table.add_row("lower bound", f"{says}{least} for any schedule {IN_ORDER}")
    if plan.layout is not None:
        layout = plan.layout
        fits = "" if plan.has_fitting_arena else "; larger than the budget, so steps run from the heap"
        buffer = f", page buffer {format_bytes(plan.page_buffer_bytes)}" if plan.page_buffer_bytes else ""
        table.add_row(
            "arena",
            f"{format_bytes(layout.arena_bytes)}, efficiency {layout.efficiency:.1%}{buffer}{fits}",
        )
    wear = wear_of_plan(plan)
    steps = life_steps(plan.device.endurance, wear)
    if wear.bytes and steps is not None:
        takes = f"wears {format_bytes(wear.bytes)}"
        takes = takes if plan.device.endurance_cycles is None else erases_text(wear)
        table.add_row("wear", f"storage lasts {format_count(steps)} steps; each {takes}")
    return table


def solution_report(
    problem: Problem, limits: Limits, solution: Solution, price_range: PriceRange | None = None
) -> RenderableType:
    """What a search answered, with or without a plan; ``price_range`` where a device is known."""
    said = [Text(solution.sentence, style="bold")]
    if solution.message:
        said.append(Text(solution.message))
    if solution.schedule is None or solution.trace is None:
        return Group(*said)
    chosen, schedule = chosen_by(problem, solution.schedule)
    found = _found(decided(chosen, schedule), limits, solution, schedule, solution.trace, price_range)
    return Group(*said, *found)


def _found(
    problem: DecidedProblem,
    limits: Limits,
    solution: Solution,
    schedule: Schedule,
    trace: Trace,
    price_range: PriceRange | None,
) -> Iterator[RenderableType]:
    """What the schedule that was found costs, and its RAM."""
    yield Text()
    yield cost_table(problem, limits, solution, trace, price_range)
    yield Text()
    yield from memory_report(problem, limits, schedule, trace)


def memory_report(
    problem: DecidedProblem, limits: Limits, schedule: Schedule, trace: Trace
) -> tuple[RenderableType, ...]:
    """RAM by role at the peak, what binds, and RAM over the step."""
    fullest = peak(problem, schedule, trace)
    return (
        role_table(fullest),
        Text(),
        *(Text(line) for line in what_binds(limits, trace, fullest)),
        Text(),
        *(Text(line) for line in memory_plot(trace, limits.ram_budget_bytes)),
    )


def role_table(fullest: PeakMoment) -> Table:
    """RAM at the peak by role."""
    table = columns(f"RAM at the peak ({fullest.what})", "bytes", "share")
    for role, size_bytes in fullest.by_role:
        table.add_row(role, format_bytes(size_bytes), format_share(size_bytes / fullest.bytes))
    table.add_row("together", format_bytes(fullest.bytes), "", style="bold")
    return table


def what_binds(limits: Limits, trace: Trace, fullest: PeakMoment) -> Iterator[str]:
    """One line per limit: whether it binds, how much of it is used, and where.

    Running every op once without a transfer takes the least energy and time: what a plan does beyond
    that is for lack of RAM. The other limits bind where they are used up.
    """
    budget = limits.ram_budget_bytes
    if budget is not None:
        share = format_share(trace.peak_ram_bytes / budget)
        if trace.recomputed_runs or trace.read_bytes or trace.written_bytes:
            yield f"RAM binds: keeping everything does not fit; {share} is used while {fullest.what}"
            near_share = format_share(BINDING_SHARE)
            near = sum(moment.ram_bytes >= BINDING_SHARE * budget for moment in trace.moments)
            yield f"{near} of {len(trace.moments)} steps hold {near_share} of the budget or more"
        else:
            yield f"RAM does not bind: everything is kept; {share} is used while {fullest.what}"
    for name, limit, amount in (
        ("the deadline", limits.deadline_seconds, trace.seconds),
        ("the write budget", limits.written_budget_bytes, trace.written_bytes),
        ("the energy budget", limits.joules_budget, trace.joules),
    ):
        if limit is not None:
            verb = "binds" if amount >= BINDING_SHARE * limit else "does not bind"
            yield f"{name} {verb}: {format_share(amount / limit) if limit else 'all'} is used"


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


def tensor_table(fates: Sequence[TensorFate]) -> Table:
    """One line per tensor: what becomes of it and what that costs."""
    table = columns("tensor", "role", "what becomes of it", "bytes", "in RAM", "time", "energy", left=3)
    for fate in fates:
        table.add_row(
            fate.name,
            fate.role,
            fate.words,
            format_bytes(fate.bytes),
            f"{100 * fate.resident_share:.0f} %",
            format_seconds(fate.seconds) if fate.seconds else "",
            format_joules(fate.joules) if fate.joules else "",
        )
    return table


def op_table(runs: Sequence[OpRuns]) -> Table:
    """One line per op: runs and their cost."""
    table = columns("op", "runs", "time", "energy", "workspace")
    for op in runs:
        table.add_row(
            op.name,
            str(op.runs),
            format_seconds(op.seconds),
            format_joules(op.joules),
            format_bytes(op.workspace_bytes) if op.workspace_bytes else "",
        )
    return table


def fates_by_decision(fates: Sequence[TensorFate]) -> Table:
    """How many tensors and bytes are kept, recomputed, paged, or both."""
    table = columns("tensors", "number", "bytes", "time", "energy")
    kinds: dict[str, list[TensorFate]] = {
        "kept": [],
        "recomputed": [],
        "paged": [],
        "recomputed and paged": [],
    }
    for fate in fates:
        paged = fate.page_ins + fate.page_outs > 0
        words = ("recomputed and paged" if paged else "recomputed") if fate.recomputations else "paged"
        kinds[words if paged or fate.recomputations else "kept"].append(fate)
    for words, members in kinds.items():
        table.add_row(
            words,
            str(len(members)),
            format_bytes(sum(fate.bytes for fate in members)),
            format_seconds(sum(fate.seconds for fate in members)),
            format_joules(sum(fate.joules for fate in members)),
        )
    return table


def schedule_tables(
    problem: DecidedProblem, schedule: Schedule, trace: Trace, *, every_tensor: bool, every_op: bool
) -> RenderableType:
    """What becomes of the tensors; those that are merely kept are listed only with ``every_tensor``."""
    fates = tensor_fates(problem, schedule, trace)
    listed = [fate for fate in fates if every_tensor or fate.words != "kept"]
    parts: list[RenderableType] = [fates_by_decision(fates)]
    parts += [Text(), tensor_table(listed)] if listed else []
    parts += [Text(), op_table(op_runs(problem, schedule))] if every_op else []
    return Group(*parts)


def plan_report(plan: Plan, *, every_tensor: bool = False, every_op: bool = False) -> RenderableType:
    """Everything about a plan that was read from a file, for people."""
    return Group(
        plan_summary(plan, says=SAYS_FILE),
        Text(),
        schedule_tables(
            plan.problem, plan.schedule, plan.trace, every_tensor=every_tensor, every_op=every_op
        ),
    )


def plan_summary(plan: Plan, *, says: str = "") -> RenderableType:
    """What the plan is for, what a step costs and how good that is."""
    answer = solution_report(
        plan.problem, plan.request.limits, solution_of(plan, says=says), price_range=plan.prediction.range
    )
    measured = plan.prediction.measured
    marks = [] if measured is None else [Text(f"op times: {measured_words(measured)}")]
    return Group(plan_heading(plan, says), Text(), answer, *marks)
