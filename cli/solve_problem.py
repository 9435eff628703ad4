"""``poet solve PROBLEM.json``: no model, no torch."""

from __future__ import annotations

from pathlib import Path

from poet.problem import Problem

from .options import Ask
from .search import asked_limits, search, search_options, show_answer, show_without_plan


def solve_problem(path: Path, ask: Ask) -> None:
    """Answer the planning problem in a file."""
    problem, limits = asked_limits(Problem.load(path), ask)
    if show_without_plan(problem, limits, ask):
        return
    solution, comparison = search(problem, limits, ask, search_options(ask))
    show_answer(problem, limits, solution, comparison, ask)
