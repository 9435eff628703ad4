"""The text report of a plan: what it is for, what a step costs and how good that is, who holds the RAM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from poet.ir.named import trained_in_words
from poet.ir.untrained import loss_misfit
from poet.planning.planned import measured_words
from poet.plans.page_slots import erases_text, life_steps
from poet.plans.plan_parts import PriceEnds, PriceRange
from poet.plans.training_plan import Plan
from poet.problem import Limits, Objective, Place, Problem
from poet.problem.alternatives import chosen_by
from poet.problem.homes import DecidedProblem, decided
from poet.problem.pins import pinned
from poet.problem.schedule import Schedule
from poet.problem.simulator import Trace
from poet.problem.solution import SAYS_FILE, TITLES, WHOLE_PROBLEM, Solution, Status, format_amount
from poet.report.plan_data import auxiliary_lines, solution_of
from poet.report.reasons import DECISIONS, decision_of
from poet.report.rows import Column, listed, table
from poet.report.schedule_rows import PeakMoment, TensorFate, memory_over_time, op_runs, peak, tensor_fates
from poet.report.training import loss_reads, technique_lines, untrained_lines
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

BINDING_SHARE = 0.99
"""A limit of which at least this share is used counts as used up."""

PLOT_COLUMNS, PLOT_ROWS = 72, 8
_EIGHTHS = " ▁▂▃▄▅▆▇█"


def plan_heading(plan: Plan, says: str = "") -> Table:
    """What the plan is for: model, device, what is trained and how, the RAM it is measured against.

    ``says``: as of `Solution`.
    """
    table = listed(heading_lines(plan, says), "", "", left=2)
    table.show_header = False
    return table


def heading_lines(plan: Plan, says: str = "") -> Iterator[tuple[str, str]]:
    """Title and text of each line of the heading."""
    graph, prediction, layout = plan.graph, plan.prediction, plan.layout
    sizes = "".join(f", {name}={size}" for name, size in plan.model.binding)
    yield "model", f"{plan.model.name}{sizes}: {len(graph.ops)} ops, {len(graph.buffers)} buffers"
    yield "device", plan.device.title or plan.device.name
    yield "kernels", plan.problem.kernels or "not stated"
    yield "training", f"{trained_in_words(graph)}, {plan.request.loss}, {plan.optimizer.name}"
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
    rows = ((role, format_bytes(size), format_share(size / fullest.bytes)) for role, size in fullest.by_role)
    made = listed(rows, f"RAM at the peak ({fullest.what})", "bytes", "share")
    made.add_row("together", format_bytes(fullest.bytes), "", style="bold")
    return made


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
        kinds[decision_of(fate)].append(fate)
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


# --- what a step costs -------------------------------------------------------------------------


def cost_table(
    problem: DecidedProblem,
    limits: Limits,
    solution: Solution,
    trace: Trace,
    price_range: PriceRange | None = None,
) -> Table:
    """Energy, time, RAM and storage of one step, each beside its bound or limit."""
    return listed(_cost_rows(problem, limits, solution, trace, price_range), "per step", "", "", left=3)


def _cost_rows(
    problem: DecidedProblem,
    limits: Limits,
    solution: Solution,
    trace: Trace,
    price_range: PriceRange | None,
) -> Iterator[tuple[str, str, str]]:
    yield from _objective_rows(solution)
    once_joules = solution.baseline_joules
    above = trace.joules / once_joules - 1.0 if once_joules else 0.0
    above = above if abs(above) > 1e-12 else 0.0  # less is the sums' rounding
    yield (
        "energy",
        format_joules(trace.joules),
        format_above(above, f"running every op once ({format_joules(once_joules)})"),
    )
    scope = "" if solution.bound_scope == WHOLE_PROBLEM else f" ({solution.bound_scope})"
    yield (
        "energy bound",
        format_joules(solution.bound_joules),
        f"{solution.says}{_gap_words(solution)}{scope}",
    )
    once_seconds = problem.compute_seconds
    slower = f"{trace.seconds / once_seconds:.4g}x running every op once" if once_seconds else ""
    deadline = (
        "" if limits.deadline_seconds is None else f"; deadline {format_seconds(limits.deadline_seconds)}"
    )
    yield "time", format_seconds(trace.seconds), slower + deadline
    if price_range is not None:
        yield "range", *_range_words(price_range, limits, "as far as the device's figures may be off")
        if price_range.likely is not None:
            yield "likely", *_range_words(price_range.likely, limits, "in nine cases of ten")
    budget = limits.ram_budget_bytes
    yield (
        "RAM at the peak",
        format_bytes(trace.peak_ram_bytes),
        "no budget"
        if budget is None
        else f"{format_share(trace.peak_ram_bytes / budget)} of the budget, {format_bytes(budget)}",
    )
    yield (
        "recomputed",
        f"{trace.recomputed_runs} runs",
        f"{format_seconds(max(0.0, trace.compute_seconds - once_seconds))}, "
        f"{format_joules(max(0.0, trace.compute_joules - sum(op.joules for op in problem.ops)))}",
    )
    yield (
        "paged out",
        format_bytes(trace.written_bytes),
        _transfer(trace.page_out_seconds, trace.page_out_joules),
    )
    yield "paged in", format_bytes(trace.read_bytes), _transfer(trace.page_in_seconds, trace.page_in_joules)
    if trace.moves:
        price = _transfer(trace.move_seconds, trace.move_joules)
        yield "moved in RAM", format_bytes(trace.moved_bytes), f"{trace.moves} moves, {price}"
    yield from _choice_rows(problem, limits)
    proof = f"; {solution.proof}" if solution.proof else ""
    yield "search", format_seconds(solution.solve_seconds), f"{solution.says}by {solution.solver}{proof}"


def _range_words(found: PriceEnds, limits: Limits, why: str) -> tuple[str, str]:
    """Both ends of the energy; both ends of the time, and whether the bad one meets the deadline."""
    joules = f"{format_joules(found.good_joules)} to {format_joules(found.bad_joules)}"
    seconds = f"{format_seconds(found.good_seconds)} to {format_seconds(found.bad_seconds)}"
    missed = limits.deadline_seconds is not None and found.bad_seconds > limits.deadline_seconds
    return (
        joules,
        f"and {seconds}, {why}{'; may miss the deadline' * missed}",
    )


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


def _transfer(seconds: float, joules: float) -> str:
    return f"{format_seconds(seconds)}, {format_joules(joules)}"


def graph_text(plan: Plan) -> str:
    """One line per op, with the workspace and the allocations of its kernel as the plan counts them."""
    remarks = {}
    for op in plan.graph.ops:
        facts = plan.kernels.of(op.name)
        said = [f"workspace {facts.workspace_bytes} B"] if facts.workspace_bytes else []
        said += [f"{len(facts.allocations)} allocations"] if facts.allocations is not None else []
        if said:
            remarks[op.name] = ", ".join(said)
    return plan.graph.to_text(remarks)
