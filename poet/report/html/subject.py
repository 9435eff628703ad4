"""What a page shows of one plan: gathered from a plan file, or from the chosen point of a sweep."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from poet.devices.load import load_profile
from poet.devices.profile import Profile
from poet.errors import ProfileError
from poet.ir.named import trained_in_words
from poet.plans.page_slots import life_steps
from poet.plans.plan_parts import PriceRange
from poet.plans.training_plan import Plan
from poet.problem import Limits, Objective
from poet.problem.homes import DecidedProblem, decided
from poet.problem.schedule import Schedule
from poet.problem.search_record import NO_SEARCH, SearchRecord
from poet.problem.simulator import Trace, judge
from poet.problem.solution import SAYS_FILE, WHOLE_PROBLEM, LowerBound, Status, is_confirmed, sentence_of
from poet.report.reasons import Alternative, TensorVerdict, alternatives, tensor_verdicts
from poet.report.schedule_rows import (
    PeakMoment,
    Share,
    energy_by_kind,
    energy_by_part,
    peak,
    tensor_fates,
)
from poet.report.timeline import StepTimeline, timeline
from poet.report.training import strip_lines
from poet.solvers import minimum_ram_bytes
from poet.whatif.daily import life_of
from poet.whatif.result import FoundPlan, Point, Setting, Verdict, WhatIf


@dataclass(frozen=True, slots=True)
class PlanQuality:
    """How good a plan is known to be; the fields are those of `poet.plans.plan_parts.SearchOutcome`.

    ``says``: as of `poet.problem.solution.Solution`.
    """

    word: str
    sentence: str
    bound_joules: float
    bound_scope: str
    gap: float | None
    overhead_gap: float | None
    solver: str
    solve_seconds: float
    record: SearchRecord = NO_SEARCH
    objective: Objective = Objective.ENERGY
    proof: str = ""
    says: str = ""

    @property
    def confirmed(self) -> bool:
        """Whether exact arithmetic or a second engine stands behind the energy bound."""
        return is_confirmed(self.proof) and self.objective is Objective.ENERGY

    @property
    def rests_on(self) -> str:
        """What stands behind the energy bound."""
        return self.proof if self.proof and self.objective is Objective.ENERGY else "the plan is at its bound"


@dataclass(frozen=True)
class Subject:
    """A plan, and everything that is worked out from it.

    Attributes:
        model: name, with the sizes of its dynamic dimensions.
        training: loss, optimizer and what is trained, for people.
        device: title of the device.
        profile: its figures; ``None``: see ``profile_note``.
        profile_note: what to say about the figures' origin.
        problem, limits, schedule, trace: what was planned and what the simulator says of it.
        proof: how good it is.
        keep_everything_bytes: what plain training needs, if known.
        lower_bound: RAM below which no schedule exists.
        life_steps: that the device's storage survives, if known; infinite where nothing is written.
        price_range: what a step takes at the ends of the device's figures, if known.
    """

    model: str
    training: str
    device: str
    profile: Profile | None
    profile_note: str
    problem: DecidedProblem
    limits: Limits
    schedule: Schedule
    trace: Trace
    proof: PlanQuality
    keep_everything_bytes: int | None
    lower_bound: LowerBound
    life_steps: float | None
    price_range: PriceRange | None = None

    @cached_property
    def line(self) -> StepTimeline:
        """What happens when."""
        return timeline(self.problem, self.schedule, self.trace)

    @cached_property
    def fullest(self) -> PeakMoment:
        """Who holds the RAM at the peak."""
        return peak(self.problem, self.schedule, self.trace)

    @cached_property
    def verdicts(self) -> tuple[TensorVerdict, ...]:
        """What becomes of each tensor, and why."""
        fates = tensor_fates(self.problem, self.schedule, self.trace)
        return tensor_verdicts(self.problem, self.limits, self.line, fates)

    @cached_property
    def parts(self) -> tuple[Share, ...]:
        """Where the energy goes."""
        return energy_by_part(self.problem, self.schedule, self.trace)

    @cached_property
    def kinds(self) -> tuple[Share, ...]:
        """The same by kind of op."""
        return energy_by_kind(self.problem, self.schedule)

    @cached_property
    def others(self) -> tuple[Alternative, ...]:
        """Simpler ways to train."""
        return alternatives(self.problem, self.limits)


def subject_of_plan(plan: Plan, *, profile: Profile | None = None) -> Subject:
    """A plan file's subject.

    Args:
        plan: what to show.
        profile: of its device; ``None``: the one of its name that comes with the package, if any.
    """
    outcome, prediction = plan.outcome, plan.prediction
    found, note = (profile, "") if profile is not None else _shipped(plan.device.name)
    sizes = "".join(f", {name}={size}" for name, size in plan.model.binding)
    trained = f"{trained_in_words(plan.graph)}, {plan.request.loss}, {plan.optimizer.name}"
    return Subject(
        model=f"{plan.model.name}{sizes}",
        training="; ".join((trained, *strip_lines(plan.graph))),
        device=plan.device.title or plan.device.name,
        profile=found,
        profile_note=note,
        problem=plan.problem,
        limits=plan.request.limits,
        schedule=plan.schedule,
        trace=plan.trace,
        proof=PlanQuality(
            outcome.status,
            sentence_of(Status[outcome.status.upper()], outcome.proof, says=SAYS_FILE),
            outcome.bound_joules,
            outcome.bound_scope,
            outcome.gap,
            outcome.overhead_gap,
            outcome.solver,
            outcome.solve_seconds,
            outcome.record,
            outcome.objective,
            outcome.proof,
            SAYS_FILE,
        ),
        keep_everything_bytes=prediction.plain_peak_ram_bytes,
        lower_bound=minimum_ram_bytes(plan.problem, plan.request.limits),
        life_steps=life_steps(plan.device.endurance, plan.step_wear),
        price_range=prediction.range,
    )


def subject_of_point(result: WhatIf, index: int) -> Subject | None:
    """The subject of a sweep's point; ``None`` where it has no plan."""
    point = result.points[index]
    setting, plan = result.setting_of(point), result.plan_of(point)
    if plan is None:
        return None
    problem = decided(setting.problem, plan.schedule)
    trace = judge(problem, plan.schedule, point.limits)
    no_device = "The costs are those of the problem file; it names no device."
    return Subject(
        model=", ".join((result.question.model, *(f"{name}={size}" for name, size in setting.binding))),
        training=", ".join(filter(None, (result.question.loss, setting.optimizer))),
        device=setting.device_title or setting.device,
        profile=setting.profile,
        profile_note="" if setting.profile else no_device,
        problem=problem,
        limits=point.limits,
        schedule=plan.schedule,
        trace=trace,
        proof=quality_of_point(point, setting, plan, trace),
        keep_everything_bytes=setting.keep_everything_bytes,
        lower_bound=setting.lower_bound,
        life_steps=life_of(plan, setting),
        price_range=_range_of(plan) if plan.accumulating is None else None,
    )


def quality_of_point(point: Point, setting: Setting, plan: FoundPlan, trace: Trace) -> PlanQuality:
    """How good a point's plan is known to be.

    Of two schedules that are shown as one, all that the step could save is what this one could save at most;
    a plan of a step that is optimal within the gaps of its search has an optimal schedule here.
    """
    bound, gap, overhead_gap, verdict = point.bound_joules, point.gap, point.overhead_gap, point.verdict
    if plan.accumulating is not None:
        least = setting.problem.compute_joules
        saved = 0.0 if verdict is Verdict.OPTIMAL else min(trace.joules - least, plan.joules - bound)
        bound = trace.joules - saved
        if saved <= 1e-9 * trace.joules:
            verdict, bound, gap, overhead_gap = Verdict.OPTIMAL, trace.joules, 0.0, 0.0
        else:
            gap, overhead_gap = saved / trace.joules, min(1.0, saved / (trace.joules - least))
    told = gap, overhead_gap, plan.solver, point.solve_seconds
    return PlanQuality(verdict.word, verdict.value, bound, WHOLE_PROBLEM, *told)


def _range_of(plan: FoundPlan) -> PriceRange | None:
    good, bad = (plan.good_seconds, plan.good_joules), (plan.bad_seconds, plan.bad_joules)
    if good[0] is None or good[1] is None or bad[0] is None or bad[1] is None:
        return None
    return PriceRange(good[0], bad[0], good[1], bad[1])


def _shipped(name: str) -> tuple[Profile | None, str]:
    """The profile of that name, and what to say of it."""
    try:
        return load_profile(name), (
            "The profile is the one that this poet has under the plan's device name; the plan's own costs "
            "were worked out when it was made."
        )
    except ProfileError:
        return None, (
            f"The plan names the device {name}, which is no profile of this poet; "
            "give its file with --device to see where the figures come from."
        )
