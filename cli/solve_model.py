"""``poet solve MODEL.onnx``: trace the training step, cost it on the device, search, save."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import typer

from poet import api
from poet.fit_layout import searching
from poet.loss import DEFAULT_LOSS
from poet.report.plan import plan_summary
from poet.report.training import training_lines
from poet.solution import Status

from .compare import json_with, report_with
from .options import Ask, Gradient, Home, ModelAsk, read_bindings
from .output import answer
from .search import asked_limits, require_plan, search, search_options, show_without_plan


def solve_model(path: Path, ask: Ask, about_model: ModelAsk) -> None:
    """Plan the training of a model, or survey its budgets where no RAM is given."""
    prepared = _prepared(path, about_model)
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
    if not about_model.no_measure_host:
        prepared = api.measured_on_host(prepared)
    planned = api.plan_with(prepared, limits, fitted)
    if about_model.output is not None:
        planned = api.with_evaluation(planned)
        if planned.evaluation_remark:
            typer.echo(f"poet: {planned.evaluation_remark}", err=True)
        planned.save(about_model.output)
    report = report_with(plan_summary(planned.plan), comparison)
    answer(report, lambda: json_with(problem, planned.solution, comparison), json_file=ask.json_file)


def _prepared(path: Path, about_model: ModelAsk) -> api.Prepared:
    """The model's training step and the planning problem that it is on the device."""
    assert about_model.device is not None
    return api.prepare(
        path,
        device=about_model.device,
        loss=about_model.loss or DEFAULT_LOSS,
        optimizer=about_model.optimizer_spec(),
        train=about_model.train,
        bind=read_bindings(about_model.bind),
        home=(about_model.home or Home.RAM).place,
        names=about_model.names,
        gradients=(about_model.gradients or Gradient.STREAM).value,
    )
