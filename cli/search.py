"""What ``poet solve`` does: trace and cost a model's training step, search or survey it, save, show, fail."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from poet.baselines.comparison import Comparison, compare
from poet.devices.load import load_profile, with_part
from poet.devices.profile import Profile
from poet.errors import Infeasible, InputError, OutOfTime, PlanError
from poet.ir.loss import DEFAULT_LOSS
from poet.ir.micro import BATCH_NAMES
from poet.ir.optimizer import OptimizerSpec
from poet.ir.strips import Gradients
from poet.planning.auxiliary import bindings_of
from poet.planning.cache import KeptPlans
from poet.planning.pipeline import PlanRequest, planned_as
from poet.planning.planned import Stages, limits_of
from poet.planning.prepared import Prepared
from poet.planning.ram_survey import SURVEY_SHARES, survey, trade_off
from poet.planning.step_search import bounded_limits, surveyed, weighed
from poet.problem import Limits, Objective, Problem
from poet.problem.progress import stage
from poet.problem.schedule import Compute
from poet.problem.solution import LISTED, Solution, SolveOptions, Status, solution_to_json
from poet.report.check import training_lines
from poet.report.plan import candidate_lines, plan_summary, solution_report
from poet.report.searches import (
    comparison_data,
    comparison_report,
    survey_data,
    survey_report,
    trade_off_data,
    trade_off_report,
)
from poet.solvers.search.explain import answered
from poet.util import codec
from poet.util.streams import say
from poet.util.units import parse_bytes

from .ask import Ask
from .options import Home, read_bindings, read_shapes, with_batch
from .output import answer, write_json

_ADVICE = (
    "Try --micro auto, which trains the batch in pieces, --home storage, or poet fit, which finds the "
    "largest batch that fits."
)


def solve_model(ask: Ask) -> None:
    """Plan the training of a model, or survey its budgets where no RAM is given."""
    request = plan_request(ask)
    if is_survey(ask) or ask.trade_off is not None:
        _show_without_plan(request, ask)
        return
    stages = _Looking(ask)
    try:
        planned, tried = planned_as(request, stages)
    except (Infeasible, OutOfTime, KeyboardInterrupt) as error:
        if ask.json_file is not None and stages.refused is not None:
            write_json(ask.json_file, stages.refused)
        if isinstance(error, Infeasible) and ask.ram is not None and ask.micro is None:
            raise Infeasible(f"{error} {_ADVICE}") from None
        raise
    remarks = [*(candidate_lines(tried) if isinstance(request.pieces, str) else ())]
    remarks += [planned.prepared.names_remark, planned.ram_remark, planned.budgets_remark]
    if ask.output is not None:
        remarks.append(planned.evaluation_remark)
        planned.save(ask.output)
    for remark in filter(None, remarks):
        say(f"poet: {remark}", err=True)
    made, comparison = planned.plan.prediction, stages.comparison
    further = {"measured": made.measured, "range": made.range, "choice": planned.plan.outcome.choice}
    answer(
        report_with(plan_summary(planned.plan, verbose=ask.verbose), comparison),
        lambda: json_with(planned.prepared.problem, planned.solution, comparison, further),
        json_file=ask.json_file,
    )


class _Looking(Stages):
    """Keeps plans for later searches, and compares planners, as is asked.

    Attributes:
        comparison: with other planners; ``None``: it was not asked for.
        refused: the answer of a search without a plan, as JSON.
    """

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self.comparison: Comparison | None = None
        self.refused: dict[str, object] | None = None

    def search(self, prepared: Prepared, problem: Problem, limits: Limits, options: SolveOptions) -> Solution:
        _check_kernels(prepared)
        by = functools.partial(super().search, prepared)
        solution, self.comparison = search(problem, limits, self.ask, options, by=by)
        return solution

    def found(self, prepared: Prepared, solution: Solution) -> None:
        no_plan = solution.schedule is None
        self.refused = solution_to_json(prepared.problem, solution) if no_plan else None


def _show_without_plan(request: PlanRequest, ask: Ask) -> None:
    """A survey of budgets, or the curve of two objectives."""
    pieces = request.pieces
    assert not isinstance(pieces, str)  # they need a budget
    prepared, limits = request.inside(request.prepared(pieces))
    _check_kernels(prepared)
    problem = surveyed(prepared, limits) if is_survey(ask) else prepared.problem
    about = training_lines(prepared.step.graph, prepared.step.loss, prepared.train)
    show_without_plan(problem, limits, ask, about, of=weighed)


_OTHER_KERNELS = "plan with a copy of its profile without [kernels] for PyTorch's kernels alone"
_SHOWN = 4


def _check_optimizer(profile: Profile, spec: OptimizerSpec) -> None:
    """Refuse, before the model is read, an optimizer that the device's kernels in C lack.

    Raises:
        InputError: says which there are.
    """
    from poet.c99.exportable import LIBRARY
    from poet.c99.rules.updates import check_optimizer

    if profile.kernels.name != LIBRARY:
        return
    try:
        check_optimizer(spec)
    except PlanError as error:
        raise InputError(f"{profile.name} runs {LIBRARY}: {error}; or {_OTHER_KERNELS}") from None


def _check_kernels(prepared: Prepared) -> None:
    """Refuse, before a search, a step that the device's kernels in C cannot make.

    Raises:
        InputError: names the operators.
    """
    from poet.c99.exportable import LIBRARY, refusals

    lacking = refusals(prepared.step.graph) if prepared.profile.kernels.name == LIBRARY else ()
    if lacking:
        more = f"; and {len(lacking) - _SHOWN} more" if len(lacking) > _SHOWN else ""
        raise InputError(
            f"{prepared.profile.name} runs {LIBRARY}: {'; '.join(lacking[:_SHOWN])}{more}; docs/operators.md "
            f"lists what has a kernel; use that, or {_OTHER_KERNELS}"
        )


def plan_request(ask: Ask) -> PlanRequest:
    """The options as `poet.plan` takes them.

    Raises:
        InputError: one of them cannot be, or not beside another.
    """
    assert ask.device is not None
    profile = load_profile(ask.device)
    _check_optimizer(profile, ask.optimizer_spec())
    largest, others = bindings_of(read_shapes(ask.shape))
    return PlanRequest(
        ask.model,
        device=profile if ask.part is None else with_part(profile, ask.part),
        ram=ask.ram,
        deadline=ask.deadline,
        loss=ask.loss or DEFAULT_LOSS,
        optimizer=ask.optimizer_spec(),
        train=ask.train,
        choose=ask.choose,
        most=ask.most,
        at_least=ask.at_least,
        output=ask.gives,
        bind=_bindings(ask, largest),
        names=ask.names,
        base=ask.base,
        weights=ask.weights,
        recompute=not ask.no_recompute,
        paging=not ask.no_paging,
        written=ask.write_budget,
        energy=ask.energy_budget,
        pins=ask.pins,
        storage=ask.storage,
        home=(ask.home or Home.RAM).place,
        gradients=ask.gradients or Gradients.STREAM,
        allow=ask.allow or (),
        progress=ask.progress,
        options=dataclasses.replace(search_options(ask), progress=None),
        evaluation=ask.output is not None,
        micro=ask.micro,
        shapes=others,
        budgets=ask.budgets,
    )


def _bindings(ask: Ask, largest: dict[str, int]) -> dict[str, int]:
    """Sizes of dimensions: of the batch, and of the ``largest`` shape.

    Raises:
        InputError: one is given twice.
    """
    bind = read_bindings(ask.bind)
    for name in largest:
        if name in bind or (name in BATCH_NAMES and ask.batch is not None):
            raise InputError(f"--shape says the sizes of {name}; leave it out of --bind and --batch")
    return with_batch(bind | largest, ask.batch)


def solve_problem(ask: Ask) -> None:
    """Answer the planning problem in a file: no model, no torch."""
    problem = Problem.load(ask.model)
    limits = limits_of(
        problem,
        ram=ask.ram,
        deadline=ask.deadline,
        recompute=not ask.no_recompute,
        paging=not ask.no_paging,
        written=ask.write_budget,
        energy=ask.energy_budget,
        pins=ask.pins,
    )
    if ask.storage is not None:
        problem = dataclasses.replace(problem, storage_capacity_bytes=parse_bytes(ask.storage))
    if not show_without_plan(problem, limits, ask):
        by = functools.partial(answered, any_order=True)
        solution, comparison = search(problem, limits, ask, search_options(ask), by=by)
        show_answer(problem, limits, solution, comparison, ask)


def show_without_plan(
    problem: Problem,
    limits: Limits,
    ask: Ask,
    about: Sequence[str] = (),
    *,
    of: Callable[[Problem, Limits], Problem] = lambda problem, _: problem,
) -> bool:
    """Show a curve or a survey, below the lines ``about`` the model, where no single plan is asked for.

    Whether that was so. ``of``: what is searched inside a budget of a survey.
    """
    options = search_options(ask)
    if ask.trade_off is not None:
        stage("trade-off")
        x, y = ask.trade_off
        options = dataclasses.replace(options, progress=None)  # amounts are of both objectives
        curve = trade_off(problem, limits, options, x=x, y=y, points=ask.points)
        report = Group(*map(Text, about), trade_off_report(curve))
        answer(report, lambda: trade_off_data(problem, curve), json_file=ask.json_file)
        return True
    if not is_survey(ask):
        return False
    stage("survey")
    if options.time_limit_seconds is not None:
        each_seconds = options.time_limit_seconds / len(SURVEY_SHARES)
        options = dataclasses.replace(options, time_limit_seconds=each_seconds)
    found = survey(problem, limits, options, of=of)
    answer(survey_report(found, about), lambda: survey_data(problem, found), json_file=ask.json_file)
    if any(solution.was_interrupted for _, solution in found.points):
        raise KeyboardInterrupt  # the survey is not complete
    return True


def is_survey(ask: Ask) -> bool:
    """Whether no single plan is asked for, but which RAM budgets make sense."""
    return ask.trade_off is None and ask.ram is None and ask.minimise is not Objective.RAM


def search(
    problem: Problem,
    limits: Limits,
    ask: Ask,
    options: SolveOptions,
    *,
    by: Callable[[Problem, Limits, SolveOptions], Solution],
) -> tuple[Solution, Comparison | None]:
    """What ``by`` answers with ``options``; where it is asked for, compared with other planners.

    The search starts from what earlier ones found for this model, and its plan is kept for later ones. Other
    planners have as much RAM beside a page buffer as the plan.
    """
    kept: KeptPlans | None = None
    with _remarked():
        if not ask.no_kept_plans:
            found = KeptPlans()
            options, kept = found.started(problem, limits, options), found
    solution = by(problem, limits, options)
    limits = bounded_limits(solution, limits)
    with _remarked():
        if kept is not None and _is_as_listed(problem, solution):
            kept.keep(problem, limits, solution)
    if not ask.compare or solution.was_interrupted:
        return solution, None
    comparison = compare(problem, limits, search_options(ask), solution)
    return comparison.ours, comparison


def _is_as_listed(problem: Problem, solution: Solution) -> bool:
    """Whether its first runs keep the listed order, so that other searches can begin with it."""
    if solution.order == LISTED or solution.schedule is None:
        return True
    runs = (step.op for step in solution.schedule if isinstance(step, Compute))
    return [*dict.fromkeys(runs)] == [op.name for op in problem.ops]


@contextlib.contextmanager
def _remarked() -> Iterator[None]:
    """Where no plan can be kept, say so, and why: nobody's answer depends on it."""
    try:
        yield
    except InputError as error:
        say(f"poet: no plan is kept for later searches: {error} (--no-kept-plans: none is)", err=True)


def show_answer(
    problem: Problem, limits: Limits, solution: Solution, comparison: Comparison | None, ask: Ask
) -> None:
    """Report the answer; without a plan, write the JSON answer and fail with its sentence.

    Raises:
        Infeasible, OutOfTime: there is no plan.
        KeyboardInterrupt: there is none because Ctrl-C ended the search.
    """
    if solution.schedule is None:
        if ask.json_file is not None:
            write_json(ask.json_file, solution_to_json(problem, solution))
        if solution.was_interrupted:
            raise KeyboardInterrupt
        refused = Infeasible if solution.status is Status.INFEASIBLE else OutOfTime
        raise refused(solution.why_no_plan)
    report = report_with(solution_report(problem, limits, solution), comparison)
    answer(report, lambda: json_with(problem, solution, comparison), json_file=ask.json_file)


def report_with(report: RenderableType, comparison: Comparison | None) -> RenderableType:
    """``report``, followed by the comparison where there is one."""
    return report if comparison is None else Group(report, Text(), comparison_report(comparison))


def json_with(
    problem: Problem,
    solution: Solution,
    comparison: Comparison | None,
    further: Mapping[str, object] | None = None,
) -> dict[str, Any]:
    """The ``--json`` answer, with the comparison and with what of ``further`` is there."""
    data = solution_to_json(problem, solution)
    data |= {name: codec.encode(each) for name, each in (further or {}).items() if each is not None}
    return data if comparison is None else {**data, "comparison": comparison_data(comparison)}


def search_options(ask: Ask) -> SolveOptions:
    """How long and how hard to search, as asked for."""
    return SolveOptions(
        time_limit_seconds=ask.time_limit_seconds,
        engine=ask.engine,
        threads=ask.threads,
        objective=ask.minimise,
        progress=ask.progress,
    )
