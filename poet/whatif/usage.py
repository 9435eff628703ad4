"""What a plan means in daily use: battery, budget, flash life, carbon."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from poet.devices.profile import Profile
from poet.plans.flash_life import Wear, life_steps, step_wear
from poet.plans.plan_parts import Endurance
from poet.simulator import Trace, simulate
from poet.whatif.knowledge import Candidate
from poet.whatif.question import Duty
from poet.whatif.result import FoundPlan, Setting, Usage

DAYS_PER_YEAR = 365.25


def found_plan(
    number: int, setting: Setting, plan: Candidate, accumulating: Candidate | None = None
) -> FoundPlan:
    """The record of a judged plan of the setting with that ``number``.

    ``accumulating`` is what each micro-batch but the last does, where they come one after the other.
    """
    runs = [_Run(1, setting, plan)]
    if accumulating is not None and setting.accumulating is not None:
        runs.append(_Run(setting.accumulating_runs, setting.accumulating, accumulating))
    good, bad = (_at_end(runs, end) for end in (0, 1))

    def whole(of: Callable[[Trace], float]) -> float:
        return sum(run.times * of(run.plan.trace) for run in runs)

    return FoundPlan(
        setting=number,
        schedule=plan.schedule,
        joules=whole(lambda trace: trace.joules),
        compute_joules=whole(lambda trace: trace.compute_joules),
        page_in_joules=whole(lambda trace: trace.page_in_joules),
        page_out_joules=whole(lambda trace: trace.page_out_joules),
        idle_joules=whole(lambda trace: trace.idle_joules),
        seconds=whole(lambda trace: trace.seconds),
        compute_seconds=whole(lambda trace: trace.compute_seconds),
        page_in_seconds=whole(lambda trace: trace.page_in_seconds),
        page_out_seconds=whole(lambda trace: trace.page_out_seconds),
        peak_ram_bytes=max(run.plan.trace.peak_ram_bytes for run in runs),
        recomputed_runs=sum(run.times * run.plan.trace.recomputed_runs for run in runs),
        read_bytes=sum(run.times * run.plan.trace.read_bytes for run in runs),
        written_bytes=sum(run.times * run.plan.trace.written_bytes for run in runs),
        worn_bytes=step_wear(
            ((run.setting.problem, run.plan.schedule, run.times) for run in runs),
            endurance_of(setting.profile).block_bytes,
        ).bytes,
        solver=", ".join(dict.fromkeys(run.plan.solver for run in runs)),
        good_joules=None if good is None else good[0],
        bad_joules=None if bad is None else bad[0],
        good_seconds=None if good is None else good[1],
        bad_seconds=None if bad is None else bad[1],
        accumulating=None if accumulating is None else accumulating.schedule,
    )


@dataclass(frozen=True, slots=True)
class _Run:
    """A schedule that a step runs so many ``times``."""

    times: int
    setting: Setting
    plan: Candidate


def _at_end(runs: list[_Run], end: int) -> tuple[float, float] | None:
    """Joules and seconds of a step with the device's figures at an end; ``None``: none are known."""
    joules = seconds = 0.0
    for run in runs:
        if run.setting.ends is None:
            return None
        trace = simulate(run.setting.ends[end], run.plan.schedule)
        joules += run.times * trace.joules
        seconds += run.times * trace.seconds
    return joules, seconds


def endurance_of(profile: Profile | None) -> Endurance:
    """What the storage of a device survives."""
    storage = profile.storage if profile is not None else None
    if storage is None:
        return Endurance()
    cycles = storage.block_cycles
    written_bytes = storage.lifetime_written_bytes if cycles is None else None
    return Endurance(written_bytes, cycles, storage.erase_block_bytes)


def wear_of(plan: FoundPlan, setting: Setting) -> Wear:
    """What a step of ``plan`` takes of the storage, all its pieces together."""
    runs = [(setting.problem, plan.schedule, 1)]
    if plan.accumulating is not None and setting.accumulating is not None:
        runs.append((setting.accumulating.problem, plan.accumulating, setting.accumulating_runs))
    return step_wear(runs, endurance_of(setting.profile).block_bytes)


def usage_of(
    plan: FoundPlan, setting: Setting, duty: Duty, *, stall_seconds: float = 0.0, stall_joules: float = 0.0
) -> Usage:
    """What ``plan`` means under ``duty``; each step also waits ``stall_seconds`` for its data."""
    step_joules = plan.joules + stall_joules
    session_joules = step_joules * duty.steps_per_session
    battery = duty.battery_joules
    steps = _budget_steps(step_joules, duty)
    samples = None if steps is None or setting.batch is None else steps * setting.batch
    life = life_steps(endurance_of(setting.profile), wear_of(plan, setting))
    steps_per_year = duty.steps_per_session * duty.sessions_per_day * DAYS_PER_YEAR
    grams = duty.grid_grams_per_joule
    return Usage(
        joules_per_sample=None if setting.batch is None else step_joules / setting.batch,
        session_joules=session_joules,
        session_seconds=(plan.seconds + stall_seconds) * duty.steps_per_session,
        battery_share_per_session=None if battery is None else session_joules / battery,
        sessions_per_charge=None if battery is None else _times(battery, session_joules),
        budget_steps=steps,
        budget_samples=samples,
        budget_epochs=None if samples is None or not duty.dataset_samples else samples / duty.dataset_samples,
        flash_life_steps=life,
        flash_life_years=None if life is None else life / steps_per_year,
        session_grams=None if grams is None else session_joules * grams,
    )


def _budget_steps(step_joules: float, duty: Duty) -> int | None:
    """Steps that the energy budget buys in its period; ``None`` without a budget."""
    budget = duty.energy_budget
    return None if budget is None else _times(budget.joules * (1 + 1e-12), step_joules)


def _times(joules: float, each_joules: float) -> int | None:
    """How often ``joules`` are enough; ``None``: for any number, as each time takes none."""
    return math.floor(joules / each_joules) if each_joules else None
