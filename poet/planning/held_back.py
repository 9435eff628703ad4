"""What an answer for a part of the budget says about all of it, once it is laid out.

A plan with bytes held back, or with moves within its arena, keeps the bound of the search that had the whole
budget: it fits there as well. Proofs that hold for less RAM only do not.
"""

from __future__ import annotations

from dataclasses import replace

from poet.search_record import Phase, SearchRecord, joined
from poet.solution import Solution, SolveOptions, Status
from poet.units import format_bytes


def with_another(
    record: SearchRecord, answer: Solution, after_seconds: float, reserved_bytes: int
) -> SearchRecord:
    """``record`` with a search that had less RAM: its plans count, its bounds hold for less RAM only."""
    name = f"again, with {format_bytes(reserved_bytes)} held back for gaps between tensors"
    phase = Phase(name, 0.0, answer.solve_seconds, plans=len(answer.record.plans))
    another = SearchRecord((phase,), answer.record.plans, rejected=answer.record.rejected)
    return joined(record, another, after_seconds=after_seconds)


def for_the_budget(answer: Solution, first: Solution, options: SolveOptions, reserved_bytes: int) -> Solution:
    """``answer``, which was found with less RAM, with the bound of ``first`` for all of it.

    Args:
        answer: of the last search, without ``reserved_bytes``.
        first: of the search with the whole budget.
        options: whose gaps say what is optimal.
        reserved_bytes: of the budget, for gaps between tensors and for the page buffer.
    """
    whole = replace(
        answer,
        status=Status.FEASIBLE,
        bound_joules=first.bound_joules,
        bound_scope=first.bound_scope,
        objective_bound=first.objective_bound,
        message=first.message,
        proof="",  # that of ``answer`` holds for less RAM, and so does its class bound
    )
    closed = _is_closed(whole, options)
    if first.status is not Status.OPTIMAL:
        return whole
    if closed:
        return replace(whole, status=Status.OPTIMAL, proof=first.proof)
    held = format_bytes(reserved_bytes)
    return replace(
        whole, message=f"{held} of the budget are held back for gaps between tensors: the gap is their price."
    )


def with_its_moves(answer: Solution, options: SolveOptions) -> Solution:
    """``answer``, whose trace has moves within the arena: it may be no more the best that there is."""
    if answer.status is not Status.OPTIMAL or _is_closed(answer, options):
        return answer
    assert answer.trace is not None
    return replace(
        answer,
        status=Status.FEASIBLE,
        proof="",
        message=f"{answer.trace.moves} moves within the arena make the plan fit: the gap is their price.",
    )


def _is_closed(answer: Solution, options: SolveOptions) -> bool:
    return (answer.objective_gap or 0.0) <= options.relative_gap and (
        answer.overhead_gap is None or answer.overhead_gap <= options.overhead_gap
    )
