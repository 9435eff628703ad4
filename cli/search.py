"""What both kinds of ``poet solve`` do with a problem: search or survey it, show the answer, fail."""

from __future__ import annotations

import dataclasses

from poet.budgets import SURVEY_SHARES, survey
from poet.errors import Infeasible, OutOfTime
from poet.problem import Limits, Problem
from poet.report.plan import solution_report
from poet.report.survey import survey_data, survey_report
from poet.solution import Solution, SolveOptions, Status, solution_to_json
from poet.solvers import solve
from poet.solvers.comparison import Comparison, compare
from poet.solvers.explain import explained

from .compare import json_with, report_with
from .options import Ask
from .output import answer, progress, write_json


def search(problem: Problem, limits: Limits, ask: Ask) -> tuple[Solution, Comparison | None]:
    """Solve with progress on stderr; where it is asked for, compare as well."""
    with progress() as show_progress:
        options = dataclasses.replace(_options(ask), progress=show_progress)
        solution = explained(problem, limits, options, solve(problem, limits, options))
    if not ask.compare:
        return solution, None
    comparison = compare(problem, limits, _options(ask), solution)
    return comparison.ours, comparison


def show_answer(
    problem: Problem, limits: Limits, solution: Solution, comparison: Comparison | None, ask: Ask
) -> None:
    """Report the answer.

    Raises:
        Infeasible, OutOfTime: there is no plan.
    """
    require_plan(problem, solution, ask)
    report = report_with(solution_report(problem, limits, solution), comparison)
    answer(report, lambda: json_with(problem, solution, comparison), json_file=ask.json_file)


def require_plan(problem: Problem, solution: Solution, ask: Ask) -> None:
    """Do nothing if there is a plan; else write the JSON answer and fail with its sentence.

    Raises:
        Infeasible, OutOfTime: there is no plan.
    """
    if solution.schedule is not None:
        return
    if ask.json_file is not None:
        write_json(ask.json_file, solution_to_json(problem, solution))
    message = " ".join(filter(None, (solution.status.value, solution.message)))
    raise Infeasible(message) if solution.status is Status.INFEASIBLE else OutOfTime(message)


def show_survey(problem: Problem, limits: Limits, ask: Ask) -> None:
    """Report which RAM budgets make sense; each is searched for its share of the time limit."""
    options = _options(ask)
    if options.time_limit_seconds is not None:
        each_seconds = options.time_limit_seconds / len(SURVEY_SHARES)
        options = dataclasses.replace(options, time_limit_seconds=each_seconds)
    with progress() as show_progress:
        found = survey(problem, limits, dataclasses.replace(options, progress=show_progress))
    answer(survey_report(found), lambda: survey_data(problem, found), json_file=ask.json_file)


def _options(ask: Ask) -> SolveOptions:
    return SolveOptions(time_limit_seconds=ask.time_limit_seconds, engine=ask.engine, threads=ask.threads)
