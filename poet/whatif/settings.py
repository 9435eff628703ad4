"""From training graphs and devices to the planning problems of a sweep, and to their grids."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from poet.api import limits_of
from poet.devices.device_problem import build_problem, kernels_on
from poet.devices.load import load_profile
from poet.devices.profile import Profile
from poet.devices.spread import SIDES, at_ends, uncertain_groups
from poet.errors import InputError, ProfileError
from poet.plans.plan_file import read_plan
from poet.problem import Limits, Place, Problem
from poet.ram_survey import keep_everything_bytes
from poet.solvers import minimum_ram_bytes
from poet.units import parse_factor
from poet.whatif.grid import ram_budgets
from poet.whatif.knowledge import Cell, levels
from poet.whatif.models import ModelVariant, variant_of
from poet.whatif.question import Question
from poet.whatif.result import Setting

MOST_POINTS = 100_000
HOMES_MUST_AGREE = (
    "micro-batches one after the other have two schedules, which must agree where parameters live: give "
    "--home ram or storage"
)


def setting_of(
    problem: Problem,
    *,
    profile: Profile | None = None,
    variant: ModelVariant | None = None,
    device: tuple[str, str] | None = None,
    accumulating: Setting | None = None,
) -> Setting:
    """The record of a ``problem``; ``device`` is a name and a title where there is no profile.

    ``accumulating`` is that of all micro-batches but the last, where ``variant`` has them one by one.
    """
    name, title = device or (
        (profile.name, profile.title) if profile is not None else (problem.name, problem.source)
    )
    lower_bound = minimum_ram_bytes(problem, Limits())
    keep_bytes = keep_everything_bytes(problem)
    if accumulating is not None:
        lower_bound = max(lower_bound, accumulating.lower_bound, key=lambda bound: bound.bytes)
        keep_bytes = max(keep_bytes, accumulating.keep_everything_bytes)
    return Setting(
        device=name,
        device_title=title,
        binding=variant.binding if variant is not None else (),
        batch=variant.batch if variant is not None else None,
        optimizer=variant.optimizer if variant is not None else "",
        problem=problem,
        profile=profile,
        keep_everything_bytes=keep_bytes,
        lower_bound=lower_bound,
        ends=None if profile is None or variant is None else _ends(problem, variant, profile),
        micro=None if variant is None else variant.micro,
        accumulating=accumulating,
    )


def _ends(problem: Problem, variant: ModelVariant, profile: Profile) -> tuple[Problem, Problem]:
    """``problem`` with every figure of ``profile`` at its good and at its bad end."""
    moved = uncertain_groups(profile)
    good, bad = (at_ends(problem, variant.graph, profile, dict.fromkeys(moved, side)) for side in SIDES)
    return good, bad


def problem_of(variant: ModelVariant, profile: Profile, home: Place) -> Problem:
    """The planning problem of a training step on ``profile``'s device."""
    kernels = kernels_on(profile, variant.graph, variant.kernels)
    return build_problem(variant.graph, profile, kernels, home=home)


def settings_of(variants: Iterable[ModelVariant], profiles: Sequence[Profile], home: Place) -> list[Setting]:
    """One per device and variant, in this order."""
    made = list(variants)
    return [_on_device(variant, profile, home) for profile in profiles for variant in made]


def _on_device(variant: ModelVariant, profile: Profile, home: Place) -> Setting:
    """A variant with its costs on ``profile``'s device, and what its pieces but the last do."""
    beside = None if variant.accumulation is None else _on_device(variant.accumulation, profile, home)
    problem = problem_of(variant, profile, home)
    return setting_of(problem, profile=profile, variant=variant, accumulating=beside)


def plan_settings(path: Path, profiles: Sequence[Profile], home: Place) -> list[Setting]:
    """Of a saved plan: its own problem, or its graph costed on other devices.

    Raises:
        InputError: it has two schedules, whose homes would be chosen apart.
    """
    plan = read_plan(path)
    beside = plan.accumulation
    if beside is not None and home is Place.EITHER:
        raise InputError(HOMES_MUST_AGREE)
    variant = variant_of(
        plan.graph,
        plan.replayed_kernels,
        plan.model.binding,
        plan.optimizer.name,
        plan.request.micro,
        None if beside is None else (beside.graph, beside.replayed_kernels),
    )
    if profiles:
        return settings_of([variant], profiles, home)
    try:
        known = load_profile(plan.device.name)
    except ProfileError:
        known = None
    same = known is not None and problem_of(variant, known, home) == plan.problem
    profile, device = known if same else None, (plan.device.name, plan.device.title)
    pieces = None
    if beside is not None:
        pieces = setting_of(beside.problem, profile=profile, variant=variant.accumulation, device=device)
    return [setting_of(plan.problem, profile=profile, variant=variant, device=device, accumulating=pieces)]


def _keep_bytes(setting: Setting) -> int:
    """What plain training needs, or all the RAM of the device where that is less but enough for a plan."""
    if setting.profile is None or setting.profile.memory.ram_bytes.value < setting.lower_bound.bytes:
        return setting.keep_everything_bytes
    return min(setting.keep_everything_bytes, setting.profile.memory.ram_bytes.value)


def _deadline_seconds(text: str | None, setting: Setting) -> float | None:
    """Of a step, all its pieces; a factor is of running every op once."""
    factor = None if text is None else parse_factor(text)
    if factor is not None and setting.accumulating is not None:
        return factor * setting.compute_seconds
    return limits_of(setting.problem, ram=None, deadline=text).deadline_seconds


def grid_of(setting: Setting, question: Question) -> list[Cell]:
    """The cells of a setting: each RAM budget with each deadline, budgets ascending.

    Raises:
        InputError: the grid is too large, or an axis cannot be read.
    """
    budgets = ram_budgets(
        question.ram, least_bytes=setting.lower_bound.bytes, keep_bytes=_keep_bytes(setting)
    )
    limits = [(text, _deadline_seconds(text, setting)) for text in question.deadlines]
    limits.sort(key=lambda item: (item[1] is None, item[1]))
    if len(budgets) * len(limits) > MOST_POINTS:
        raise InputError(
            f"{len(budgets)} budgets and {len(limits)} deadlines: more than {MOST_POINTS} points"
        )
    rows, columns = levels(len(budgets)), levels(len(limits))
    return [
        Cell(
            Limits(
                ram_budget_bytes=budget,
                deadline_seconds=seconds,
                recompute=question.recompute,
                paging=question.paging,
            ),
            text,
            max(row, column),
        )
        for budget, row in zip(budgets, rows, strict=True)
        for (text, seconds), column in zip(limits, columns, strict=True)
    ]
