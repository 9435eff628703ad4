"""``poet solve MODEL.onnx``: trace the training step, cost it on the device, search, save."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import typer

from poet import api
from poet.fit_layout import searching
from poet.optimizer import OptimizerSpec
from poet.problem import Place
from poet.report.plan import plan_summary
from poet.report.training import training_lines
from poet.solution import Status

from .compare import json_with, report_with
from .options import Ask
from .output import answer
from .search import asked_limits, require_plan, search, search_options, show_without_plan


def solve_model(
    path: Path,
    ask: Ask,
    *,
    device: str,
    loss: str,
    optimizer: OptimizerSpec,
    train: list[str] | None,
    bind: dict[str, int],
    names: Path | None,
    home: Place,
    measure_host: bool,
    output: Path | None,
) -> None:
    """Plan the training of a model, or survey its budgets where no RAM is given."""
    prepared = api.prepare(
        path, device=device, loss=loss, optimizer=optimizer, train=train, bind=bind, home=home, names=names
    )
    if prepared.names_remark:
        typer.echo(f"poet: {prepared.names_remark}", err=True)
    problem, limits = asked_limits(prepared.problem, ask)
    prepared = dataclasses.replace(prepared, problem=problem)
    graph = prepared.step.graph
    if show_without_plan(problem, limits, ask, training_lines(graph, prepared.step.loss, prepared.train)):
        return
    solution, comparison = search(problem, limits, ask, searching(search_options(ask), limits))
    if solution.status is Status.INFEASIBLE:
        said = filter(None, (solution.message, api.home_hint(prepared, limits)))
        solution = dataclasses.replace(solution, message=" ".join(said))
    require_plan(problem, solution, ask)
    fitted = api.fit_step(prepared, limits, solution, search_options(ask))
    planned = api.plan_with(api.measured_on_host(prepared) if measure_host else prepared, limits, fitted)
    if output is not None:
        planned.save(output)
    report = report_with(plan_summary(planned.plan), comparison)
    answer(report, lambda: json_with(problem, planned.solution, comparison), json_file=ask.json_file)
