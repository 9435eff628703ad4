"""What a page shows of one plan: gathered from a plan file, or from the chosen point of a sweep."""

from __future__ import annotations

from dataclasses import dataclass

from poet.devices.load import load_profile
from poet.devices.profile import Profile
from poet.errors import ProfileError
from poet.graph import Graph
from poet.homes import DecidedProblem, decided
from poet.named import trained_in_words
from poet.plans import flash_life
from poet.plans.plan_parts import PriceRange
from poet.plans.training_plan import Plan
from poet.problem import Limits, Objective
from poet.report.alternatives import Alternative, alternatives
from poet.report.energy import Share, energy_by_kind, energy_by_part
from poet.report.reasons import TensorVerdict, tensor_verdicts
from poet.report.schedule_rows import PeakMoment, peak, tensor_fates
from poet.report.timeline import StepTimeline, timeline
from poet.report.training import strip_lines
from poet.schedule import Schedule
from poet.search_record import NO_SEARCH, SearchRecord
from poet.simulator import Trace, judge
from poet.solution import SAYS_FILE, WHOLE_PROBLEM, LowerBound, Status, is_confirmed, sentence_of
from poet.solvers import minimum_ram_bytes
from poet.whatif.result import FoundPlan, Point, Setting, Verdict, WhatIf
from poet.whatif.usage import endurance_of, wear_of


@dataclass(frozen=True, slots=True)
class PlanQuality:
    """How good a plan is known to be; the fields are those of `poet.plans.plan_parts.SearchOutcome`.

    ``says``: as of `poet.solution.Solution`.
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


@dataclass(frozen=True, slots=True)
class Subject:
    """A plan with everything that is worked out from it.

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
        line, fullest, verdicts, parts, kinds, others: worked out.
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
    line: StepTimeline
    fullest: PeakMoment
    verdicts: tuple[TensorVerdict, ...]
    parts: tuple[Share, ...]
    kinds: tuple[Share, ...]
    others: tuple[Alternative, ...]
    price_range: PriceRange | None = None


def _in_strips(graph: Graph) -> str:
    """What the line about training says of strips; empty where no op runs so."""
    return "".join(f"; {line}" for line in strip_lines(graph))


def subject_of_plan(plan: Plan, *, profile: Profile | None = None) -> Subject:
    """A plan file's subject.

    Args:
        plan: what to show.
        profile: of its device; ``None``: the one of its name that comes with the package, if any.
    """
    outcome, prediction = plan.outcome, plan.prediction
    found, note = (profile, "") if profile is not None else _shipped(plan.device.name)
    sizes = "".join(f", {name}={size}" for name, size in plan.model.binding)
    return _worked_out(
        model=f"{plan.model.name}{sizes}",
        training=f"{trained_in_words(plan.graph)}, {plan.request.loss}, "
        f"{plan.optimizer.name}{_in_strips(plan.graph)}",
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
        life_steps=flash_life.life_steps(plan.device.endurance, flash_life.wear_of_plan(plan)),
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
    return _worked_out(
        model=", ".join((result.question.model, *(f"{name}={size}" for name, size in setting.binding))),
        training=", ".join(filter(None, (result.question.loss, setting.optimizer))),
        device=setting.device_title or setting.device,
        profile=setting.profile,
        profile_note=""
        if setting.profile
        else "The costs are those of the problem file; it names no device.",
        problem=problem,
        limits=point.limits,
        schedule=plan.schedule,
        trace=trace,
        proof=quality_of_point(point, setting, plan, trace),
        keep_everything_bytes=setting.keep_everything_bytes,
        lower_bound=setting.lower_bound,
        life_steps=flash_life.life_steps(endurance_of(setting.profile), wear_of(plan, setting)),
        price_range=_range_of(plan) if plan.accumulating is None else None,
    )


def quality_of_point(point: Point, setting: Setting, plan: FoundPlan, trace: Trace) -> PlanQuality:
    """How good a point's plan is known to be.

    Of two schedules that are shown as one, all that the step could save is what this one could save at most;
    a plan of a step that is optimal within the gaps of its search has an optimal schedule here.
    """
    bound, gap, overhead_gap = point.bound_joules, point.gap, point.overhead_gap
    verdict = point.verdict
    if plan.accumulating is not None:
        optimal = verdict is Verdict.OPTIMAL
        least = setting.problem.compute_joules
        bound = trace.joules if optimal else max(least, trace.joules - (plan.joules - point.bound_joules))
        saved, above = trace.joules - bound, trace.joules - least
        if saved <= 1e-9 * trace.joules:
            verdict, bound, gap, overhead_gap = Verdict.OPTIMAL, trace.joules, 0.0, 0.0
        else:
            gap, overhead_gap = saved / trace.joules, min(1.0, saved / above)
    return PlanQuality(
        verdict.word,
        verdict.value,
        bound,
        WHOLE_PROBLEM,
        gap,
        overhead_gap,
        plan.solver,
        point.solve_seconds,
    )


def _range_of(plan: FoundPlan) -> PriceRange | None:
    ends = plan.good_seconds, plan.bad_seconds, plan.good_joules, plan.bad_joules
    good_seconds, bad_seconds, good_joules, bad_joules = ends
    if good_seconds is None or bad_seconds is None or good_joules is None or bad_joules is None:
        return None
    return PriceRange(good_seconds, bad_seconds, good_joules, bad_joules)


def _shipped(name: str) -> tuple[Profile | None, str]:
    try:
        profile = load_profile(name)
    except ProfileError:
        return None, (
            f"The plan names the device {name}, which is no profile of this poet; "
            "give its file with --device to see where the figures come from."
        )
    return profile, (
        "The profile is the one that this poet has under the plan's device name; the plan's own costs were "
        "worked out when it was made."
    )


def _worked_out(
    *,
    model: str,
    training: str,
    device: str,
    profile: Profile | None,
    profile_note: str,
    problem: DecidedProblem,
    limits: Limits,
    schedule: Schedule,
    trace: Trace,
    proof: PlanQuality,
    keep_everything_bytes: int | None,
    lower_bound: LowerBound,
    life_steps: float | None,
    price_range: PriceRange | None = None,
) -> Subject:
    line = timeline(problem, schedule, trace)
    fates = tensor_fates(problem, schedule, trace)
    return Subject(
        model=model,
        training=training,
        device=device,
        profile=profile,
        profile_note=profile_note,
        problem=problem,
        limits=limits,
        schedule=schedule,
        trace=trace,
        proof=proof,
        keep_everything_bytes=keep_everything_bytes,
        lower_bound=lower_bound,
        life_steps=life_steps,
        line=line,
        fullest=peak(problem, schedule, trace),
        verdicts=tensor_verdicts(problem, limits, line, fates),
        parts=energy_by_part(problem, schedule, trace),
        kinds=energy_by_kind(problem, schedule),
        others=alternatives(problem, limits),
        price_range=price_range,
    )
