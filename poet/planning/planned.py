"""From a prepared step to a plan: search, lay out, put together; and the plan in a dozen lines."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from poet.devices.costs import estimate
from poet.devices.device_problem import build_problem, deadline_seconds
from poet.devices.profile import Profile
from poet.devices.spread import Price, spread
from poet.errors import Infeasible, InputError, OutOfTime, spelled_out
from poet.ir.named import loss_misfit, trained_in_words
from poet.planning.arena import Fitted, fit, is_mapped, searching
from poet.planning.prepared import Prepared
from poet.planning.ram_survey import keep_everything_bytes
from poet.planning.step_search import answered_beside, offered, solve_choosing
from poet.plans.plan_file import write_plan
from poet.plans.plan_parts import (
    Arena,
    Choice,
    Device,
    MeasuredShare,
    PriceEnds,
    PriceRange,
    Request,
    SearchOutcome,
)
from poet.plans.planned_step import moved_in
from poet.plans.training_plan import Plan, make_plan
from poet.problem import Limits, Objective, Pins, Place, Problem
from poet.problem.homes import decided
from poet.problem.progress import stage
from poet.problem.rounded import rounding_words
from poet.problem.schedule import Schedule
from poet.problem.simulator import judge
from poet.problem.solution import WHOLE_PROBLEM, Solution, SolveOptions, Status, is_confirmed, sentence_of
from poet.solvers import minimum_ram_bytes
from poet.util.reading import check_apart
from poet.util.units import (
    IN_ORDER,
    NO_GAP,
    format_above,
    format_bytes,
    format_gap,
    format_joules,
    format_seconds,
    format_share,
    parse_bytes,
    parse_joules,
)

Row = tuple[str, str]
"""What it is, and the figure."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan together with the weights it starts from.

    Attributes:
        plan: what to save and to explain.
        solution: how the search ended.
        prepared: what it was made from.
        evaluation_remark: why the plan has no evaluation, where one was asked for.
        budgets_remark: why it has no plan for a smaller budget that was asked for.
    """

    plan: Plan
    solution: Solution
    prepared: Prepared
    evaluation_remark: str = ""
    budgets_remark: str = ""

    @property
    def peak_ram_bytes(self) -> int:
        """The most RAM that a step holds."""
        return self.plan.prediction.peak_ram_bytes

    @property
    def joules(self) -> float:
        """Of one step."""
        return self.plan.prediction.joules

    @property
    def seconds(self) -> float:
        """Of one step on the device."""
        return self.plan.prediction.seconds

    @property
    def ram_remark(self) -> str:
        """That the budget is more RAM than the device has; empty if it is not."""
        device, budget_bytes = self.plan.device, self.plan.request.limits.ram_budget_bytes
        if budget_bytes is None or device.ram_bytes is None or budget_bytes <= device.ram_bytes:
            return ""
        budget, has = (format_bytes(each, exact=True) for each in (budget_bytes, device.ram_bytes))
        return f"the budget of {budget} is more than {device.name} has: {has} of RAM"

    def summary(self) -> str:
        """What the plan is for, what a step takes and how good that is, in a dozen lines."""
        return as_text(self._rows())

    def __repr__(self) -> str:
        return f"<Planned {repr(self.plan).partition(' ')[2]}"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return as_html(self._rows(), title=f"Plan for {self.plan.model.name}")

    def _rows(self) -> tuple[Row, ...]:
        remark = self.prepared.names_remark
        return (*summary_rows(self.plan), *([("note", remark)] if remark else []))

    def save(self, path: str | Path) -> None:
        """Write the plan file, whole or not at all.

        Raises:
            InputError: ``path`` is a file that the plan was made from.
            PoetError: the folder cannot be written or is full.
        """
        from poet.runtime.storage.state import raw_tensor

        check_apart({"the plan": path}, reads=self._sources(Path(path)))
        stored = {name: raw_tensor(tensor) for name, tensor in self.prepared.step.tensors.items()}
        write_plan(path, self.plan, stored, structure=self.prepared.structure)

    def _sources(self, path: Path) -> dict[str, Path | list[Path]]:
        """The files that it was made from: all that writing to ``path`` could destroy."""
        model = self.prepared.path
        if model is None:
            return {}
        from poet.frontend.onnx.reader import data_files

        return {"the model": model, "the model's weights": data_files(model, [path])}


def limits_of(
    problem: Problem,
    *,
    ram: str | int | None,
    deadline: str | float | None = None,
    recompute: bool = True,
    paging: bool = True,
    written: str | int | None = None,
    energy: str | float | None = None,
    pins: Pins | None = None,
) -> Limits:
    """Limits from numbers or from text as people write it.

    Raises:
        InputError: a text is not a size, a deadline or an energy.
    """
    joules = parse_joules(energy) if isinstance(energy, str) else energy
    if joules is not None and not 0.0 < joules < math.inf:
        raise InputError(f"{energy!r} is not an energy budget; write for example 1.5mJ")
    return Limits(
        ram_budget_bytes=parse_bytes(ram) if isinstance(ram, str) else ram,
        deadline_seconds=deadline_seconds(deadline, problem) if isinstance(deadline, str) else deadline,
        recompute=recompute,
        paging=paging,
        written_budget_bytes=parse_bytes(written) if isinstance(written, str) else written,
        joules_budget=joules,
        pins=pins or Pins(),
    )


class Stages:
    """How `plan_step` searches; a subclass compares, keeps or looks at what is found."""

    def search(self, prepared: Prepared, problem: Problem, limits: Limits, options: SolveOptions) -> Solution:
        """Answer ``problem``, which is that of ``prepared`` with alternatives."""
        return answered_beside(problem, limits, options, in_whole_pages=is_mapped(prepared.kernels))

    def found(self, prepared: Prepared, solution: Solution) -> None:
        """Look at the answer, which may hold no plan; ``prepared`` has the alternatives that it takes."""


def plan_step(
    prepared: Prepared, limits: Limits, options: SolveOptions | None = None, stages: Stages | None = None
) -> Planned:
    """Solve, fit into the arena, make the plan; ``stages`` may look in or decide between.

    What of ``prepared`` may be saved for backward in two forms (`poet.planning.step_search`) is saved
    compressed where the plan is better for it.

    Raises:
        Infeasible: no plan exists inside the limits.
        OutOfTime: none was found in time.
    """
    options, stages = options or SolveOptions(), stages or Stages()
    search = partial(stages.search, prepared)
    prepared, solution = solve_choosing(prepared, limits, searching(options, limits), search)
    if solution.status is Status.INFEASIBLE:
        said = filter(None, (solution.message, _home_hint(prepared, limits)))
        solution = replace(solution, message=" ".join(said))
    stages.found(prepared, solution)
    return plan_with(prepared, limits, fit_step(prepared, limits, solution, options))


def fit_step(
    prepared: Prepared, limits: Limits, solution: Solution, options: SolveOptions | None = None
) -> Fitted:
    """Lay ``solution``, of ``prepared.problem`` and ``limits``, out in one arena inside the budget.

    Where the schedule's tensors leave too large gaps, it is searched again, with ``options`` and the missing
    bytes reserved (see `poet.planning.arena`).

    Raises:
        Infeasible: the answer is that no plan exists.
        OutOfTime: the answer holds no plan.
        KeyboardInterrupt: it holds none because Ctrl-C ended the search.
    """
    if solution.schedule is None and solution.was_interrupted:
        raise KeyboardInterrupt
    if solution.schedule is None:
        refused = Infeasible if solution.status is Status.INFEASIBLE else OutOfTime
        raise refused(solution.why_no_plan)
    stage("arena")
    fitted = fit(prepared.problem, limits, solution, options or SolveOptions(), kernels=prepared.kernels)
    assert fitted is not None  # as there is a schedule
    return fitted


def plan_with(prepared: Prepared, limits: Limits, fitted: Fitted) -> Planned:
    """Put the plan together from what `fit_step` gave for ``prepared`` and ``limits``.

    Nothing is searched and nothing is run. The homes of tensors are as the schedule has them.

    Raises:
        OutOfTime: the schedule has no gap to a bound.
    """
    prepared = replace(prepared, problem=fitted.problem)
    solution = fitted.solution
    if solution.schedule is None:
        raise OutOfTime(solution.why_no_plan)
    every = prepared.offered or prepared.problem
    made = make_plan(
        model=prepared.model,
        request=Request(
            limits=limits,
            loss=prepared.step.loss,
            train=prepared.train,
            gradients=prepared.gradients,
            allow=prepared.page_forms,
        ),
        device=_device_summary(prepared.profile),
        outcome=outcome_of(solution),
        graph=prepared.step.graph,
        kernels=prepared.kernels,
        optimizer=prepared.step.optimizer,
        problem=fitted.problem,
        schedule=solution.schedule,
        plain_peak_ram_bytes=keep_everything_bytes(every),
        lower_bound_ram_bytes=minimum_ram_bytes(every, limits).bytes,
        arena=fitted.arena,
        host_kernels=prepared.step.kernels,
        price_range=price_range(prepared, solution.schedule, fitted.arena),
        measured=measured_share(prepared),
    )
    return Planned(made, solution, prepared)


def price_range(prepared: Prepared, schedule: Schedule, arena: Arena | None) -> PriceRange | None:
    """What ``schedule`` takes at the ends of all of the device's figures, and between which it is likely.

    ``None`` where ``prepared.problem`` has other costs than the device's.
    """
    graph, profile = prepared.step.graph, prepared.profile
    problem = decided(prepared.problem, schedule)
    moves = moved_in(arena, problem, schedule, prepared.kernels)
    found = spread(problem, graph, schedule, profile, moves=moves)
    trace = judge(problem, schedule, moves=moves)
    stated = (found.stated.seconds, trace.seconds), (found.stated.joules, trace.joules)
    if not all(math.isclose(*pair, rel_tol=1e-6) for pair in stated):
        return None
    likely = PriceEnds(*_ends(found.likely_good, found.likely_bad))
    return PriceRange(*_ends(found.all_good, found.all_bad), likely)


def _ends(good: Price, bad: Price) -> tuple[float, float, float, float]:
    return good.seconds, bad.seconds, good.joules, bad.joules


def measured_share(prepared: Prepared) -> MeasuredShare | None:
    """Which ops have measured rows in the device's profile; ``None``: it has none at all."""
    if prepared.profile.op_times is None:
        return None
    costs = estimate(prepared.step.graph, prepared.profile).ops
    whole_seconds = sum(cost.seconds for cost in costs.values())
    seconds = sum(cost.seconds for cost in costs.values() if cost.measured)
    return MeasuredShare(
        sum(cost.measured for cost in costs.values()),
        seconds / whole_seconds if whole_seconds else 0.0,
        tuple(name for name, cost in costs.items() if not cost.measured),
    )


def outcome_of(solution: Solution) -> SearchOutcome:
    """How the search ended, as a plan says it.

    Raises:
        OutOfTime: the schedule has no gap to a bound.
    """
    if solution.gap is None or solution.overhead_gap is None:
        raise OutOfTime(solution.why_no_plan)
    return SearchOutcome(
        status=solution.status.word,
        bound_joules=solution.bound_joules,
        bound_scope=solution.bound_scope,
        baseline_joules=solution.baseline_joules,
        gap=solution.gap,
        overhead_gap=solution.overhead_gap,
        solver=solution.solver,
        solve_seconds=solution.solve_seconds,
        objective=solution.objective,
        objective_bound=solution.objective_bound,
        proof=solution.proof,
        record=solution.record,
    )


def _home_hint(prepared: Prepared, limits: Limits) -> str:
    """How little RAM is possible with parameters in storage between steps; empty where that is no way out."""
    profile, budget_bytes = prepared.profile, limits.ram_budget_bytes
    if profile.storage is None or budget_bytes is None:
        return ""
    elsewhere = replace(
        prepared,
        home=Place.EITHER,
        problem=replace(
            build_problem(prepared.step.graph, profile, prepared.kernels, home=Place.EITHER),
            storage_capacity_bytes=prepared.problem.storage_capacity_bytes,
        ),
    )
    least = minimum_ram_bytes(offered(elsewhere, limits), limits)
    now = minimum_ram_bytes(offered(prepared, limits), limits)
    at_home_in_ram = all(tensor.initially is not Place.STORAGE for tensor in prepared.problem.tensors)
    if least.bytes >= now.bytes or not at_home_in_ram:
        return ""
    verb = "may be enough" if least.bytes <= budget_bytes else "is not enough"
    return (
        f"With parameters in storage between steps (--home storage or auto) as little as "
        f"{format_bytes(least.bytes)} is possible, so the budget {verb}."
    )


def _device_summary(profile: Profile) -> Device:
    storage = profile.storage
    capacity = storage.capacity_bytes if storage is not None else None
    cycles = storage.block_cycles if storage is not None else None
    return Device(
        name=profile.name,
        title=profile.title,
        ram_bytes=int(profile.memory.ram_bytes.value),
        storage_bytes=int(capacity.value) if capacity is not None else None,
        storage_page_bytes=int(storage.page_bytes.value) if storage is not None else None,
        endurance_bytes=storage.lifetime_written_bytes if storage is not None else None,
        wear_levelled=storage is not None and cycles is None,
        endurance_cycles=cycles,
        erase_block_bytes=storage.erase_block_bytes if storage is not None else 1,
    )


# --- in a dozen lines -------------------------------------------------------------------------

_MOST_NAMED = 4


def summary_rows(plan: Plan) -> tuple[Row, ...]:
    """Model, device, RAM, energy, time, what is recomputed and paged, and the search."""
    return (*_asked(plan), *_answered(plan))


def as_text(rows: tuple[Row, ...]) -> str:
    """The rows in two columns."""
    width = max(len(name) for name, _ in rows)
    return "\n".join(spelled_out(f"{name:<{width}}  {figure}".rstrip()) for name, figure in rows)


def as_html(rows: tuple[Row, ...], *, title: str) -> str:
    """The rows as a table for a notebook."""
    cells = "".join(
        f'<tr><th style="text-align:left">{html.escape(spelled_out(name))}</th>'
        f'<td style="text-align:left">{html.escape(spelled_out(figure))}</td></tr>'
        for name, figure in rows
    )
    return f"<table><caption>{html.escape(spelled_out(title))}</caption><tbody>{cells}</tbody></table>"


def range_words(found: PriceEnds) -> str:
    """Both ends of the energy and of the time."""
    joules = f"{format_joules(found.good_joules)} to {format_joules(found.bad_joules)}"
    seconds = f"{format_seconds(found.good_seconds)} to {format_seconds(found.bad_seconds)}"
    return f"{joules}, {seconds}"


def measured_words(found: MeasuredShare) -> str:
    """How many ops have measured times, and which of the others are extrapolated."""
    others = len(found.extrapolated)
    said = (
        f"{found.ops} of {found.ops + others} ops measured, {format_share(found.seconds_share)} of computing"
    )
    if not others:
        return said
    named = ", ".join(found.extrapolated[:_MOST_NAMED])
    more = f" and {others - _MOST_NAMED} more" if others > _MOST_NAMED else ""
    return f"{said}; extrapolated from classes: {named}{more}"


def choice_words(choice: Choice) -> str:
    """How many groups are trained, what they contribute, and how good that is."""
    what = f"{len(choice.groups)} of {choice.candidates} groups, contribution {choice.contribution:.4g}"
    if choice.at_least is None:
        return f"{what}, at most {choice.bound:.4g} is possible"
    return f"{what}; {choice.at_least:g} takes at least {format_joules(choice.bound)}"


def _asked(plan: Plan) -> Iterator[Row]:
    graph, limits = plan.graph, plan.request.limits
    sizes = "".join(f", {name}={size}" for name, size in plan.model.binding)
    yield "model", f"{plan.model.name}{sizes}: {len(graph.ops)} ops, {len(graph.buffers)} buffers"
    yield "device", plan.device.title or plan.device.name
    yield "training", f"{trained_in_words(graph)}, {plan.request.loss}, {plan.optimizer.name}"
    if choice := plan.outcome.choice:
        yield "chosen", choice_words(choice)
    if doubt := loss_misfit(graph, plan.request.loss):
        yield "loss", doubt
    budget = "no budget" if limits.ram_budget_bytes is None else format_bytes(limits.ram_budget_bytes)
    deadline = "" if limits.deadline_seconds is None else f", {format_seconds(limits.deadline_seconds)}"
    yield "allowed", f"{budget}{' of RAM' if limits.ram_budget_bytes is not None else ''}{deadline}"


def _answered(plan: Plan) -> Iterator[Row]:
    made, outcome, trace = plan.prediction, plan.outcome, plan.trace
    is_energy = outcome.objective is Objective.ENERGY
    ends = (made.joules, outcome.bound_joules) if is_energy else (None, None)
    yield "answer", sentence_of(Status[outcome.status.upper()], outcome.proof, ends=ends)
    plain = made.plain_peak_ram_bytes
    yield (
        "RAM at the peak",
        format_bytes(made.peak_ram_bytes)
        + ("" if plain is None else f"; plain training needs {format_bytes(plain)}"),
    )
    once = outcome.baseline_joules
    above = max(0.0, made.joules / once - 1.0) if once else 0.0
    yield "energy", f"{format_joules(made.joules)}; {format_above(above, 'running every op once')}"
    confirmed = is_confirmed(outcome.proof) and is_energy
    gap = format_gap(outcome.gap, optimal=outcome.status == "optimal", confirmed=confirmed)
    scope = "" if outcome.bound_scope == WHOLE_PROBLEM else f" ({outcome.bound_scope})"
    yield (
        "energy bound",
        f"{format_joules(outcome.bound_joules)}; {NO_GAP.get(gap, f'gap {gap} {IN_ORDER}')}{scope}",
    )
    yield "time", format_seconds(made.seconds)
    if made.range is not None and made.range.likely is not None:
        yield "range (90 %)", range_words(made.range.likely)
    elif made.range is not None:
        yield "range", range_words(made.range)
    if made.measured is not None:
        yield "op times", measured_words(made.measured)
    if plan.request.micro is not None:
        count = plan.request.micro.count
        taken = f"{format_joules(plan.step_joules)}, {format_seconds(plan.step_seconds)}"
        yield (
            "whole step",
            f"{taken}: {count - 1} micro-batches that accumulate, and one that updates as above",
        )
    yield "recomputed", f"{trace.recomputed_runs} runs"
    yield "paged", f"{format_bytes(trace.written_bytes)} out, {format_bytes(trace.read_bytes)} in"
    if plan.rounded:
        yield "not exact", f"pages are rounded: {rounding_words(plan.rounded)}"
    yield "search", f"{format_seconds(outcome.solve_seconds)}, by {outcome.solver}"
