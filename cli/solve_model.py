"""``poet solve MODEL.onnx``: trace the training step, cost it on the device, search, save."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from poet import api
from poet.baselines.comparison import Comparison
from poet.devices.load import load_profile, with_part
from poet.devices.profile import Profile
from poet.errors import InputError
from poet.loss import DEFAULT_LOSS
from poet.micro import BATCH_NAMES, MicroBatches, micro_batches
from poet.planning.accumulated import candidates, least_energy
from poet.planning.beside import TimeShares
from poet.planning.budgeted import check_reachable, smaller_budgets
from poet.planning.fit_layout import searching
from poet.planning.saves_choice import as_chosen, offered, surveyed, weighed, with_room
from poet.planning.shaped import bindings_of
from poet.problem import Problem
from poet.report.doubts import doubts_data, with_doubts
from poet.report.micro import candidate_lines
from poet.report.plan import plan_summary
from poet.report.training import training_lines
from poet.solution import Status
from poet.streams import say
from poet.whatif.robust import Robust
from poet.whatif.sensitivity import Sensitivity

from .compare import json_with, report_with
from .doubts import figures_doubted
from .options import Ask, Gradient, Home, ModelAsk, read_bindings, read_shapes, with_batch
from .output import answer
from .search import asked_limits, is_survey, require_plan, search, search_options, show_without_plan


def solve_model(path: Path, ask: Ask, about_model: ModelAsk) -> None:
    """Plan the training of a model, or survey its budgets where no RAM is given."""
    smaller_budgets(ask.ram, ask.budgets)
    if ask.budgets and ask.trade_off is not None:
        raise InputError("--trade-off shows a curve and makes no plan; give one budget in --ram")
    asked = micro_batches(about_model.micro)
    evaluates = about_model.output is not None
    others = [  # a size that the model does not take is refused before a long search
        _prepared(path, about_model, None, bind=bind)
        for bind in _shapes(about_model)[1]
        if ask.ram is not None
    ]
    each_shape = 1 + evaluates
    beside = (asked is not None) + evaluates + each_shape * len(others) + len(ask.budgets)
    shares = TimeShares(ask.time_limit_seconds, beside)
    if not isinstance(asked, str):
        found = _planned(path, ask, about_model, asked, shares)
    else:
        if ask.ram is None or ask.compare or ask.trade_off is not None or ask.robust or ask.sensitivity:
            raise InputError(
                "--micro auto plans inside one budget: give --ram, and no --compare, --trade-off, --robust "
                "or --sensitivity"
            )
        found = _least_energy(path, ask, about_model, asked, shares)
    if found is None:
        return
    planned, comparison = found.planned, found.comparison
    for remark in filter(None, (planned.prepared.names_remark, planned.ram_remark)):
        say(f"poet: {remark}", err=True)
    if evaluates:
        planned = api.with_evaluation(planned, time_limit_seconds=shares.each(1))
    has_evaluation, seconds = planned.plan.evaluation is not None, shares.each(each_shape * len(others))
    planned = api.with_shapes(planned, others, evaluation=has_evaluation, time_limit_seconds=seconds)
    seconds = shares.each(len(ask.budgets))
    planned = api.with_budgets(planned, ask.budgets, time_limit_seconds=seconds, options=search_options(ask))
    if planned.budgets_remark:
        say(f"poet: {planned.budgets_remark}", err=True)
    if about_model.output is not None:
        if planned.evaluation_remark:
            say(f"poet: {planned.evaluation_remark}", err=True)
        planned.save(about_model.output)
    report = with_doubts(
        report_with(plan_summary(planned.plan), comparison),
        found.robust,
        found.sensitivity,
        planned.prepared.profile,
        planned.plan.request.limits,
    )
    prediction = planned.plan.prediction
    answer(
        report,
        lambda: {
            **json_with(found.problem, planned.solution, comparison, prediction.range, prediction.measured),
            **doubts_data(found.robust, found.sensitivity),
        },
        json_file=ask.json_file,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Found:
    """A plan, the problem that it answers, how other planners answered it, and what doubts were looked at."""

    planned: api.Planned
    problem: Problem
    comparison: Comparison | None
    robust: Robust | None
    sensitivity: Sensitivity | None


def _least_energy(path: Path, ask: Ask, about_model: ModelAsk, loss: str, shares: TimeShares) -> _Found:
    """The plan with as many micro-batches as take the least energy."""
    kept: dict[MicroBatches | None, _Found] = {}

    def make(micro: MicroBatches | None) -> api.Planned:
        found = _planned(path, ask, about_model, micro, shares, tried=tried_ones)
        assert found is not None  # there is a budget
        kept[micro] = found
        return found.planned

    samples = api.samples_of(None, _bindings(about_model))
    tried_ones = sum(1 for _ in candidates(samples, loss))
    planned, tried = least_energy(samples, loss, make)
    for line in candidate_lines(tried):
        say(f"poet: {line}", err=True)
    return kept[planned.prepared.micro]


def _planned(
    path: Path,
    ask: Ask,
    about_model: ModelAsk,
    micro: MicroBatches | None,
    shares: TimeShares,
    *,
    tried: int = 1,
) -> _Found | None:
    """The plan; ``None`` where the answer was a survey or a curve. ``tried``: so many share its time."""
    prepared = _prepared(path, about_model, micro)
    problem, limits = asked_limits(prepared.problem, ask)
    prepared = dataclasses.replace(prepared, problem=problem)
    check_reachable(problem, limits, ask.budgets)
    graph = prepared.step.graph
    shown = surveyed(prepared, limits) if is_survey(ask) else problem
    about = training_lines(graph, prepared.step.loss, prepared.train)
    if show_without_plan(shown, limits, ask, about, of=weighed):
        return None
    if not ask.budgets:
        prepared = with_room(prepared, limits, ask.minimise)
    whole, seconds = search_options(ask), shares.first()
    if seconds is not None:
        whole = dataclasses.replace(whole, time_limit_seconds=seconds / tried)
    options = searching(whole, limits)
    asked = prepared.problem if ask.budgets else offered(prepared, limits)
    solution, comparison = search(weighed(asked, limits, ask.minimise), limits, ask, options, has_arena=True)
    prepared, solution = as_chosen(prepared, limits, options, asked, solution)
    problem = prepared.problem
    if solution.status is Status.INFEASIBLE:
        said = filter(None, (solution.message, api.home_hint(prepared, limits)))
        solution = dataclasses.replace(solution, message=" ".join(said))
    require_plan(problem, solution, ask)
    fitted = api.fit_step(prepared, limits, solution, whole)
    with figures_doubted(prepared, limits, ask) as doubt:
        fitted, robust = doubt.robust(fitted, solution.solve_seconds)
        sensitivity = doubt.sensitivity(fitted)
    planned = api.plan_with(prepared, limits, fitted)
    planned = api.with_accumulation(planned, time_limit_seconds=shares.each(micro is not None) / tried)
    return _Found(planned, problem, comparison, robust, sensitivity)


def _device(name: str, part: str | None) -> Profile:
    """The device, with the storage part that is asked for."""
    profile = load_profile(name)
    return profile if part is None else with_part(profile, part)


def _bindings(about_model: ModelAsk) -> dict[str, int]:
    """Sizes of dimensions, that of the batch among them.

    Raises:
        InputError: the batch is given twice.
    """
    bind = read_bindings(about_model.bind)
    for name in (largest := _shapes(about_model)[0]):
        if name in bind or (name in BATCH_NAMES and about_model.batch is not None):
            raise InputError(f"--shape says the sizes of {name}; leave it out of --bind and --batch")
    return with_batch(bind | largest, about_model.batch)


def _shapes(about_model: ModelAsk) -> tuple[dict[str, int], list[dict[str, int]]]:
    """Of the dimensions that have several sizes: those of the largest shape, and of every other."""
    if about_model.shape and about_model.micro is not None:
        raise InputError("--shape and --micro are not planned together; leave one out")
    return bindings_of(read_shapes(about_model.shape))


def _prepared(
    path: Path,
    about_model: ModelAsk,
    micro: MicroBatches | None,
    *,
    bind: Mapping[str, int] | None = None,
) -> api.Prepared:
    """The model's training step and its planning problem on the device; ``bind`` has other sizes."""
    assert about_model.device is not None
    return api.prepare(
        path,
        device=_device(about_model.device, about_model.part),
        loss=about_model.loss or DEFAULT_LOSS,
        optimizer=about_model.optimizer_spec(),
        train=about_model.train,
        output=about_model.gives,
        bind=_bindings(about_model) | dict(bind or {}),
        home=(about_model.home or Home.RAM).place,
        names=about_model.names,
        gradients=(about_model.gradients or Gradient.STREAM).value,
        micro=micro,
        has_shapes=bool(about_model.shape),
        evaluation=about_model.output is not None and about_model.micro != "auto",
    )
