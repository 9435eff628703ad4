"""``poet solve MODEL.onnx``: trace the training step, cost it on the device, search, save."""

from __future__ import annotations

from dataclasses import replace

from poet.baselines.comparison import Comparison
from poet.devices.load import load_profile, with_part
from poet.errors import Infeasible, InputError, OutOfTime
from poet.ir.loss import DEFAULT_LOSS
from poet.ir.micro import BATCH_NAMES
from poet.ir.strips import Gradients
from poet.planning.auxiliary import bindings_of
from poet.planning.pipeline import planned_as
from poet.planning.planned import Planned, Stages
from poet.planning.prepared import Prepared
from poet.planning.request import PlanRequest
from poet.planning.step_search import surveyed, weighed
from poet.problem import Limits, Problem
from poet.problem.solution import Solution, SolveOptions, solution_to_json
from poet.report.plan import plan_summary
from poet.report.plan_data import candidate_lines
from poet.report.training import training_lines
from poet.util.streams import say

from .ask import Ask
from .options import Home, read_bindings, read_shapes, with_batch
from .output import answer, write_json
from .search import is_survey, json_with, report_with, search, search_options, show_without_plan

_ADVICE = (
    "Try --micro auto, which trains the batch in pieces, --home storage, or poet fit, which finds the "
    "largest batch that fits."
)


def solve_model(ask: Ask) -> None:
    """Plan the training of a model, or survey its budgets where no RAM is given."""
    request = _request(ask)
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
    _show(planned, stages, ask)


def _show(planned: Planned, stages: _Looking, ask: Ask) -> None:
    plan, comparison = planned.plan, stages.comparison
    report = report_with(plan_summary(plan), comparison)
    made = plan.prediction
    answer(
        report,
        lambda: json_with(planned.prepared.problem, planned.solution, comparison, made.range, made.measured),
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
        solution, self.comparison = search(problem, limits, self.ask, options, has_arena=True)
        return solution

    def found(self, prepared: Prepared, solution: Solution) -> None:
        no_plan = solution.schedule is None
        self.refused = solution_to_json(prepared.problem, solution) if no_plan else None


def _show_without_plan(request: PlanRequest, ask: Ask) -> None:
    """A survey of budgets, or the curve of two objectives."""
    pieces = request.pieces
    assert not isinstance(pieces, str)  # they need a budget
    prepared, limits = request.inside(request.prepared(pieces))
    problem = surveyed(prepared, limits) if is_survey(ask) else prepared.problem
    about = training_lines(prepared.step.graph, prepared.step.loss, prepared.train)
    show_without_plan(problem, limits, ask, about, of=weighed)


def _request(ask: Ask) -> PlanRequest:
    """The options as `poet.plan` takes them.

    Raises:
        InputError: one of them cannot be, or not beside another.
    """
    assert ask.device is not None
    profile = load_profile(ask.device)
    largest, others = bindings_of(read_shapes(ask.shape))
    return PlanRequest(
        ask.model,
        device=profile if ask.part is None else with_part(profile, ask.part),
        ram=ask.ram,
        deadline=ask.deadline,
        loss=ask.loss or DEFAULT_LOSS,
        optimizer=ask.optimizer_spec(),
        train=ask.train,
        output=ask.gives,
        bind=_bindings(ask, largest),
        names=ask.names,
        recompute=not ask.no_recompute,
        paging=not ask.no_paging,
        written=ask.write_budget,
        energy=ask.energy_budget,
        pins=ask.pins,
        storage=ask.storage,
        home=(ask.home or Home.RAM).place,
        gradients=ask.gradients or Gradients.STREAM,
        progress=ask.progress,
        options=replace(search_options(ask), progress=None),
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
