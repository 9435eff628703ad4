"""What a page shows of one plan, gathered from a plan file or a point of a sweep, and how it was asked for.

A plan holds the request exactly: limits in bytes, seconds and joules, loss, optimizer, patterns, sizes.
It does not hold where the model's file lay, nor how long the search was to take and by which engine: two
searches for one request may end with different plans.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from poet.devices.load import load_profile
from poet.devices.profile import Profile
from poet.errors import ProfileError
from poet.ir.graph import Role
from poet.ir.loss import PYTHON
from poet.ir.named import trained_in_words
from poet.ir.optimizer import OptimizerSpec
from poet.ir.strips import Gradients
from poet.plans.page_slots import life_steps
from poet.plans.plan_parts import PriceRange
from poet.plans.training_plan import Plan
from poet.problem import Limits, Objective, Place, Problem
from poet.problem.homes import DecidedProblem, decided
from poet.problem.schedule import Schedule
from poet.problem.simulator import Trace, judge
from poet.problem.solution import WORD_OF, LowerBound, Solution, Status
from poet.report.check import strip_lines
from poet.report.plan import solution_of
from poet.report.reasons import Alternative, alternatives, tensor_reasons
from poet.report.schedule_rows import (
    PeakMoment,
    Share,
    StepTimeline,
    TensorFate,
    energy_by_kind,
    energy_by_part,
    peak,
    tensor_fates,
    timeline,
)
from poet.solvers import minimum_ram_bytes
from poet.whatif.result import FoundPlan, Point, Setting, Verdict, WhatIf
from poet.whatif.usage import life_of

BY_THE_SWEEP = f"{WORD_OF}the sweep's searches, not proven independently"
"""The proof of a point that is at its bound: its own, or that of a point with looser limits."""


@dataclass(frozen=True)
class Subject:
    """A plan, and everything that is worked out from it.

    Attributes:
        model: name, with the sizes of its dynamic dimensions.
        training: loss, optimizer and what is trained, for people.
        device: title of the device.
        profile: its figures; ``None``: see ``profile_note``.
        profile_note: what to say about the figures' origin.
        problem, limits: what was planned.
        solution: the plan, what the simulator says of it, and how good it is.
        keep_everything_bytes: what plain training needs, if known.
        lower_bound: RAM below which no schedule exists.
        life_steps: that the device's storage survives, if known; infinite where nothing is written.
        price_range: what a step takes at the ends of the device's figures, if known.
        lines: of the model's source, by the name of the tensor that each makes, where known.
    """

    model: str
    training: str
    device: str
    profile: Profile | None
    profile_note: str
    problem: DecidedProblem
    limits: Limits
    solution: Solution
    keep_everything_bytes: int | None
    lower_bound: LowerBound
    life_steps: float | None
    price_range: PriceRange | None = None
    lines: Mapping[str, str] = field(default_factory=dict)

    @property
    def schedule(self) -> Schedule:
        """What happens, in order."""
        assert self.solution.schedule is not None
        return self.solution.schedule

    @property
    def trace(self) -> Trace:
        """What the simulator says of it."""
        assert self.solution.trace is not None
        return self.solution.trace

    @cached_property
    def line(self) -> StepTimeline:
        """What happens when."""
        return timeline(self.problem, self.schedule, self.trace)

    @cached_property
    def fullest(self) -> PeakMoment:
        """Who holds the RAM at the peak."""
        return peak(self.problem, self.schedule, self.trace)

    @cached_property
    def fates(self) -> tuple[tuple[TensorFate, str], ...]:
        """What becomes of each tensor, and why; and where the model's source makes it."""
        fates = tensor_fates(self.problem, self.schedule, self.trace)
        reasons = tensor_reasons(self.problem, self.limits, self.line, fates)
        made = (f" Made at {self.lines[fate.name]}." if fate.name in self.lines else "" for fate in fates)
        return tuple((fate, why + line) for fate, why, line in zip(fates, reasons, made, strict=True))

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
    prediction = plan.prediction
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
        solution=solution_of(plan),
        keep_everything_bytes=prediction.plain_peak_ram_bytes,
        lower_bound=minimum_ram_bytes(plan.problem, plan.request.limits),
        life_steps=life_steps(plan.device.endurance, plan.step_wear),
        price_range=prediction.range,
        lines=dict(plan.model.lines),
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
        solution=solution_of_point(point, setting, plan, trace),
        keep_everything_bytes=setting.keep_everything_bytes,
        lower_bound=setting.lower_bound,
        life_steps=life_of(plan, setting),
        price_range=_range_of(plan) if plan.accumulating is None else None,
    )


def solution_of_point(point: Point, setting: Setting, plan: FoundPlan, trace: Trace) -> Solution:
    """The plan of a point as an answer.

    Of two schedules that are shown as one, all that the step could save is what this one could save at most;
    a plan of a step that is optimal within the gaps of its search has an optimal schedule here.
    """
    bound, is_optimal, least = (
        point.bound_joules,
        point.verdict is Verdict.OPTIMAL,
        setting.problem.compute_joules,
    )
    if plan.accumulating is not None:
        saved = 0.0 if is_optimal else min(trace.joules - least, plan.joules - bound)
        is_optimal = saved <= 1e-9 * trace.joules
        bound = trace.joules - (0.0 if is_optimal else saved)
    return Solution(
        status=Status.OPTIMAL if is_optimal else Status.FEASIBLE,
        schedule=plan.schedule,
        trace=trace,
        bound_joules=bound,
        baseline_joules=least,
        solve_seconds=point.solve_seconds,
        solver=plan.solver,
        proof=BY_THE_SWEEP if is_optimal else "",
    )


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


# --- how a plan was asked for -----------------------------------------------------------------

NOT_IN_A_PLAN = (
    "A plan file holds what was asked, to the byte, and the first line repeats it. It does not hold where "
    "the model lay, nor the time limit, the engine and the threads of the search."
)


def asked_by(plan: Plan) -> tuple[str, str]:
    """What to call the line that asks for ``plan`` again, and the line.

    It is of the shell where `poet solve` can say all of it, else of Python: a module, settings of an
    optimizer without an option, or no RAM budget.
    """
    is_python = plan.request.loss.startswith(f"{PYTHON}:")
    surveys = plan.request.limits.ram_budget_bytes is None and plan.outcome.objective is not Objective.RAM
    if plan.model.kind == "module" or surveys or without_option(plan.optimizer) or is_python:
        return "the call of Python that asks for this plan", python_call(plan)
    return "the command that asks for this plan", solve_command(plan)


def solve_command(plan: Plan) -> str:
    """The ``poet solve`` that asks for what ``plan`` was asked for, of the model's file in the folder."""
    words = ["poet", "solve", f"{plan.model.name}.onnx", "--device", plan.device.name]
    words += [*_limits(plan), "--loss", plan.request.loss, *_optimizer(plan.optimizer)]
    words += [] if plan.model.output is None else ["--output", plan.model.output]
    for pattern in plan.request.train:
        words += [] if pattern == "*" else ["--train", pattern]
    for name, size in _batch_bound(plan):
        words += ["--bind", f"{name}={size}"]
    words += [] if plan.request.micro is None else ["--micro", str(plan.request.micro)]
    home = home_of(plan.problem)
    words += [] if home is Place.RAM else ["--home", "auto" if home is Place.EITHER else home.value]
    gradients = plan.request.gradients
    words += [] if gradients is Gradients.STREAM else ["--gradients", gradients.value]
    for form in plan.request.allow:
        words += ["--allow", form.value]
    if plan.outcome.objective is not Objective.ENERGY:
        words += ["--minimise", plan.outcome.objective.value]
    return shlex.join(words)


def python_call(plan: Plan) -> str:
    """The ``poet.plan`` that asks for what ``plan`` was asked for; a module is not in a plan file."""
    of_a_file = plan.model.kind == "onnx"
    limits, home = plan.request.limits, home_of(plan.problem)
    given = {
        "device": plan.device.name,
        "ram": limits.ram_budget_bytes,
        "deadline": limits.deadline_seconds,
        "loss": plan.request.loss,
        "output": plan.model.output,
        "optimizer": plan.optimizer,
        "bind": dict(_batch_bound(plan)) or None,
        "micro": None if plan.request.micro is None else str(plan.request.micro),
        "train": None if plan.request.train == ("*",) else list(plan.request.train),
        "allow": [form.value for form in plan.request.allow] or None,
        "recompute": None if limits.recompute else False,
        "paging": None if limits.paging else False,
        "written": limits.written_budget_bytes,
        "energy": limits.joules_budget,
        "pins": None if limits.pins == type(limits.pins)() else limits.pins,
        "home": None if home is Place.RAM else home.value,
        "gradients": None if plan.request.gradients is Gradients.STREAM else plan.request.gradients.value,
        "minimise": None if plan.outcome.objective is Objective.ENERGY else plan.outcome.objective.value,
    }
    words = [
        f"{name}={value!r}" for name, value in given.items() if value is not None or name in ("device", "ram")
    ]
    model = repr(f"{plan.model.name}.onnx") if of_a_file else "module, example_inputs"
    return f"poet.plan({model}, {', '.join(words)})"


def _batch_bound(plan: Plan) -> tuple[tuple[str, int], ...]:
    """The sizes that were bound, the batch's as a whole."""
    count = 1 if plan.request.micro is None else plan.request.micro.count
    return tuple(
        (name, size * count if name in ("N", "batch") else size) for name, size in plan.model.binding
    )


def home_of(problem: Problem) -> Place:
    """Where parameters were asked to be between steps: where all of them are, else left to the plan."""
    homes = {
        Place.STORAGE if tensor.initially is Place.STORAGE else Place.RAM
        for tensor in problem.tensors
        if tensor.role == Role.PARAMETER.value
    }
    return Place.EITHER if len(homes) > 1 else next(iter(homes), Place.RAM)


def without_option(spec: OptimizerSpec) -> tuple[str, ...]:
    """Settings of an optimizer that ``poet solve`` has no option for: groups of several patterns."""
    return ("groups",) if any(len(group.patterns) != 1 for group in spec.groups) else ()


def _limits(plan: Plan) -> Iterator[str]:
    limits = plan.request.limits
    if limits.ram_budget_bytes is not None:
        yield from ("--ram", f"{limits.ram_budget_bytes}B")
    if limits.deadline_seconds is not None:
        yield from ("--deadline", f"{limits.deadline_seconds!r}s")
    if not limits.recompute:
        yield "--no-recompute"
    if not limits.paging:
        yield "--no-paging"
    if limits.joules_budget is not None:
        yield from ("--energy-budget", f"{limits.joules_budget!r}J")
    if limits.written_budget_bytes is not None:
        yield from ("--write-budget", f"{limits.written_budget_bytes}B")
    capacity = plan.problem.storage_capacity_bytes
    if capacity is not None and capacity != plan.device.storage_bytes:
        yield from ("--storage", f"{capacity}B")
    pins = limits.pins
    for option, patterns in (
        ("--keep", pins.keep),
        ("--recompute", pins.recompute),
        ("--page", pins.page),
        ("--never-page", pins.never_page),
    ):
        for pattern in patterns:
            yield from (option, pattern)


def _optimizer(spec: OptimizerSpec) -> Iterator[str]:
    yield from ("--optimizer", str(replace(spec, lr=OptimizerSpec().lr, weight_decay=None)))
    yield from ("--lr", f"{spec.lr!r}")
    if spec.weight_decay is not None:
        yield from ("--weight-decay", f"{spec.weight_decay!r}")
    for group in spec.groups:
        yield from ("--group", str(group))
    for option, amount in (("--clip-value", spec.clip_value), ("--clip-norm", spec.clip_norm)):
        if amount is not None:
            yield from (option, f"{amount!r}")
