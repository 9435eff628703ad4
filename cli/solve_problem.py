"""``poet solve PROBLEM.json``: no model, no torch."""

from __future__ import annotations

from pathlib import Path

from poet.api import limits_of
from poet.problem import Problem

from .options import Ask
from .search import search, show_answer, show_survey


def solve_problem(path: Path, ask: Ask) -> None:
    """Answer the planning problem in a file."""
    problem = Problem.load(path)
    limits = limits_of(
        problem, ram=ask.ram, deadline=ask.deadline, recompute=ask.recompute, paging=ask.paging
    )
    if ask.ram is None:
        show_survey(problem, limits, ask)
        return
    solution, comparison = search(problem, limits, ask)
    show_answer(problem, limits, solution, comparison, ask)
