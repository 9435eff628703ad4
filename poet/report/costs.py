"""What a step of a schedule costs: energy, time, RAM and storage, each beside its bound or limit."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from poet.homes import DecidedProblem
from poet.pins import pinned
from poet.plans.plan_parts import PriceEnds, PriceRange
from poet.problem import Limits, Objective, Place
from poet.report.columns import columns
from poet.simulator import Trace
from poet.solution import TITLES, WHOLE_PROBLEM, Solution, Status, format_amount
from poet.units import (
    IN_ORDER,
    NO_GAP,
    format_above,
    format_bytes,
    format_gap,
    format_joules,
    format_seconds,
    format_share,
)


def cost_table(
    problem: DecidedProblem,
    limits: Limits,
    solution: Solution,
    trace: Trace,
    price_range: PriceRange | None = None,
) -> Table:
    """Energy, time, RAM and storage of one step, each beside its bound or limit."""
    table = columns("per step", "", "", left=3)
    for row in _cost_rows(problem, limits, solution, trace, price_range):
        table.add_row(*row)
    return table


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
        yield "at home in storage", size, f"{len(away)} tensors, between steps"
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
