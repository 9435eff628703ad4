"""What needs searches beyond the grid: what one change to a point buys, and the largest size that fits.

A change is solved again with the changed figure. For the largest batch, resolution or sequence length the
model is imported again for each size; a larger one is taken to need more RAM. That search goes by the least
RAM of two small sizes straight to where a line through them meets the budget, and bisects from there; the
answer names the largest size with a plan and the next one, with what is known about it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from poet.api import limits_of
from poet.devices.costs import buffer_cost
from poet.devices.profile import Direction, Profile
from poet.errors import ModelError
from poet.planning.cache import SolvedCell
from poet.problem import Limits, Place, Problem, Tensor
from poet.problem.solution import Start, Status
from poet.util.units import IN_ORDER, format_bytes, format_joules
from poet.whatif.grid import Axis
from poet.whatif.knowledge import parts_of
from poet.whatif.models import VariantOf
from poet.whatif.result import Answer, Basis, Marginal, Setting, WhatIf
from poet.whatif.settings import problem_of, setting_of
from poet.whatif.workers import Solver, Wanted

_log = logging.getLogger(__name__)

# --- what a change buys -----------------------------------------------------------------------

_RAM_PART = 8
_LATER = 1.25
_FASTER = 2.0


@dataclass(frozen=True, slots=True)
class _Change:
    text: str
    setting: Setting
    limits: Limits


@dataclass(frozen=True, slots=True)
class _Solved:
    """A step with a change: of one schedule, or of two; ``bound_joules``: no such step costs less."""

    joules: float
    seconds: float
    bound_joules: float


def marginals_of(result: WhatIf, indices: Sequence[int], solver: Solver) -> tuple[Marginal, ...]:
    """What changes of the points at ``indices`` buy: RAM, flash, deadline, and a smaller batch if swept."""
    asked = [(index, change) for index in indices for change in _changes(result, index)]
    wanted = [list(_wanted(result, index, change)) for index, change in asked]
    answers = iter(solver.solve([item for items in wanted for item in items]))
    found = [
        _marginal(result, index, change, _solved(change, [next(answers) for _ in items]))
        for (index, change), items in zip(asked, wanted, strict=True)
    ]
    smaller = [made for index in indices if (made := _smaller_batch(result, index)) is not None]
    return tuple(sorted([*found, *smaller], key=lambda marginal: indices.index(marginal.point)))


def _wanted(result: WhatIf, index: int, change: _Change) -> Iterator[Wanted]:
    """The schedules of a step with the change, each begun with the plan's own."""
    plan = result.plan_of(result.points[index])
    assert plan is not None
    name = f"point {index} with {change.text}"
    for part, start in zip(
        parts_of(change.setting, change.limits), (plan.schedule, plan.accumulating), strict=False
    ):
        yield Wanted(part.setting.problem, part.limits, name, Start(start, "the plan of another point"))


def _solved(change: _Change, answers: Sequence[SolvedCell | None]) -> _Solved | None:
    """The step that the answers to its schedules make; ``None``: one of them has no plan."""
    joules = seconds = bound = 0.0
    parts = tuple(parts_of(change.setting, change.limits))
    for part, answer in zip(parts, answers, strict=True):
        if answer is None or answer.trace is None:
            return None
        joules += part.times * answer.trace.joules
        seconds += part.times * answer.trace.seconds
        bound += part.times * answer.bound_joules
    divided = len(parts) > 1 and change.limits.deadline_seconds is not None
    return _Solved(joules, seconds, 0.0 if divided else bound)  # other ways to divide it are not bounded


def _changes(result: WhatIf, index: int) -> Iterator[_Change]:
    point = result.points[index]
    setting = result.setting_of(point)
    limits = point.limits
    if limits.ram_budget_bytes is not None:
        more = ram_step_bytes(limits.ram_budget_bytes)
        larger = replace(limits, ram_budget_bytes=limits.ram_budget_bytes + more)
        yield _Change(f"{format_bytes(more)} more RAM", setting, larger)
    if setting.profile is not None and setting.profile.storage is not None and limits.paging:
        faster = _faster(setting, setting.profile)
        yield _Change("twice the flash bandwidth", faster, limits)
    if limits.deadline_seconds is not None:
        later = replace(limits, deadline_seconds=limits.deadline_seconds * _LATER)
        yield _Change(f"a deadline {_LATER - 1:.0%} later".replace("%", " %"), setting, later)


def _faster(setting: Setting, profile: Profile) -> Setting:
    """``setting`` with `_FASTER` times the flash bandwidth, in both of its schedules."""
    beside = None if setting.accumulating is None else _faster(setting.accumulating, profile)
    problem = with_flash_bandwidth(setting.problem, profile, _FASTER)
    return replace(setting, problem=problem, accumulating=beside)


def ram_step_bytes(budget_bytes: int) -> int:
    """A power of two of about an eighth of the budget: what a team would add."""
    step: int = 2 ** max(0, (budget_bytes // _RAM_PART).bit_length() - 1)
    return step


def with_flash_bandwidth(problem: Problem, profile: Profile, factor: float) -> Problem:
    """``problem`` as it would be if the device's storage moved ``factor`` times the bytes per second."""
    storage = profile.storage
    assert storage is not None
    changed = profile.model_copy(
        update={
            "storage": storage.model_copy(
                update={"read": _scaled(storage.read, factor), "write": _scaled(storage.write, factor)}
            )
        }
    )
    return replace(problem, tensors=tuple(_recosted(tensor, changed) for tensor in problem.tensors))


def _scaled(direction: Direction, factor: float) -> Direction:
    bandwidth = direction.bandwidth_bytes_per_second
    figure = bandwidth.model_copy(update={"value": bandwidth.value * factor, "range": None})
    return direction.model_copy(update={"bandwidth_bytes_per_second": figure})


def _recosted(tensor: Tensor, profile: Profile) -> Tensor:
    cost = buffer_cost(tensor.bytes, profile, tensor.page_form)
    return replace(
        tensor,
        page_in=None if tensor.page_in is None else cost.page_in,
        page_out=None if tensor.page_out is None else cost.page_out,
    )


def _marginal(result: WhatIf, index: int, change: _Change, answer: _Solved | None) -> Marginal:
    point = result.points[index]
    before = result.plan_of(point)
    assert before is not None
    if answer is None:
        return Marginal(index, change.text, before.joules, None, before.seconds, None, None, False)
    cheaper = answer.joules <= before.joules or change.setting != result.setting_of(point)
    joules, seconds = (answer.joules, answer.seconds) if cheaper else (before.joules, before.seconds)
    saved = before.joules - joules
    share = saved / before.joules if before.joules else 0.0
    # A saving is certain if the best plan before costs more still; none, if the best after saves none.
    certain = joules < point.bound_joules if saved > 0 else answer.bound_joules >= before.joules * (1 - 1e-6)
    return Marginal(index, change.text, before.joules, joules, before.seconds, seconds, share, certain)


def _smaller_batch(result: WhatIf, index: int) -> Marginal | None:
    """The next smaller batch size of the sweep, per sample, in no more RAM and the same deadline."""
    point = result.points[index]
    setting, before = result.setting_of(point), result.plan_of(point)
    batch, key = setting.batch, (setting.device, setting.optimizer, setting.micro)
    alike = [other for other in result.settings if (other.device, other.optimizer, other.micro) == key]
    size = max((o.batch for o in alike if o.batch and batch and o.batch < batch), default=None)
    if size is None or batch is None or before is None:
        return None
    budget = point.limits.ram_budget_bytes or 0
    found = [
        (plan.joules / size, plan.seconds / size, other.bound_joules / size)
        for _, other, plan in result.planned()
        if any(result.setting_of(other) is one and one.batch == size for one in alike)
        and other.deadline == point.deadline
        and plan.peak_ram_bytes <= budget
    ]
    joules_before, seconds_before = before.joules / batch, before.seconds / batch
    text = f"batch {size} (per sample)"
    if not found:
        return Marginal(index, text, joules_before, None, seconds_before, None, None, False)
    joules, seconds, bound = min(found)
    share = 1 - joules / joules_before if joules_before else 0.0
    certain = joules < point.bound_joules / batch if share > 0 else bound >= joules_before
    return Marginal(index, text, joules_before, joules, seconds_before, seconds, share, certain)


# --- the largest size -------------------------------------------------------------------------

LARGEST_SIZE = 4096
_MEMORY_SHARE = 0.25  # of this machine: sizes whose plain training would take more are not imported


@dataclass(frozen=True, slots=True)
class _Probe:
    """What is known of one size; ``why`` it has no plan, or empty."""

    size: int
    least_bytes: int
    joules: float | None
    why: str
    seconds: float = 0.0


@dataclass(slots=True)
class _Search:
    """Sizes tried so far on one device, counted in steps."""

    axis: Axis
    variant_of: VariantOf
    profile: Profile
    home: Place
    ram_budget_bytes: int
    deadline: str | None
    permissions: Limits
    solver: Solver
    probes: dict[int, _Probe] = field(default_factory=dict)

    def fits(self, steps: int) -> bool:
        """Whether a plan is found for the size of ``steps`` steps."""
        if steps not in self.probes:
            found = self.probes[steps] = self._probe(steps * self.axis.step)
            _log.info("%s: %s", self._name(found.size), found.why or "it fits")
        return self.probes[steps].joules is not None

    def _name(self, size: int) -> str:
        return f"{self.axis.name} {self.axis.text(size)} on {self.profile.name}"

    def _probe(self, size: int) -> _Probe:
        try:
            variant = self.variant_of(size)
        except ModelError as error:
            return _Probe(size, self.ram_budget_bytes + 1, None, f"it cannot be imported ({error})")
        problem = problem_of(variant, self.profile, self.home)
        setting = setting_of(problem, profile=self.profile, variant=variant)
        least = setting.lower_bound.bytes
        if least > self.ram_budget_bytes:
            return _Probe(
                size, least, None, f"no schedule {IN_ORDER} needs less than {format_bytes(least, exact=True)}"
            )
        return self._solved(setting, size)

    def _solved(self, setting: Setting, size: int) -> _Probe:
        allowed = limits_of(
            setting.problem,
            ram=self.ram_budget_bytes,
            deadline=self.deadline,
            recompute=self.permissions.recompute,
            paging=self.permissions.paging,
        )
        answer = self.solver.solve([Wanted(setting.problem, allowed, self._name(size))])[0]
        least = setting.lower_bound.bytes
        if answer is not None and answer.trace is not None:
            return _Probe(size, least, answer.trace.joules, "", answer.trace.seconds)
        proven = answer is not None and answer.status is Status.INFEASIBLE
        why = f"proven infeasible {IN_ORDER}" if proven else "no plan was found in time"
        return _Probe(size, least, None, why)

    def run(self) -> tuple[int, bool]:
        """The largest number of steps that fits (0: none), and whether a larger one was tried."""
        if not self.fits(1):
            return 0, True
        most = max(1, LARGEST_SIZE // self.axis.step)
        if most == 1 or not self.fits(2):
            return 1, most > 1
        low, high = 2, most + 1
        guess = self._meeting(most)
        near = iter((guess, guess + 1, guess - 1))
        while high - low > 1:
            middle = next((steps for steps in near if low < steps < high), None)
            if middle is None:  # the line was no help: bisect, or double while nothing was too large
                middle = (low + high) // 2 if high <= most else min(most, 2 * low)
            if self.fits(middle):
                low = middle
            else:
                high = middle
        return low, high <= most

    def _meeting(self, most: int) -> int:
        """Steps at which the line through the least RAM of one and of two steps meets the budget.

        Where both need the same, as where one large parameter decides, sizes are doubled instead.
        """
        one, two = self.probes[1].least_bytes, self.probes[2].least_bytes
        if two <= one:
            return min(most, 4)
        return max(2, min(most, 1 + (self.ram_budget_bytes - one) // (two - one)))


def largest_answer(
    axis: Axis,
    variant_of: VariantOf,
    profile: Profile,
    solver: Solver,
    *,
    home: Place,
    ram_budget_bytes: int,
    deadline: str | None,
    permissions: Limits,
) -> Answer:
    """The largest size of ``axis`` that ``profile``'s device trains with in a budget and a deadline."""
    machine_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    capped = min(ram_budget_bytes, int(machine_bytes * _MEMORY_SHARE))
    search = _Search(axis, variant_of, profile, home, capped, deadline, permissions, solver)
    steps, tried_larger = search.run()
    where = f"on {profile.name} in {format_bytes(ram_budget_bytes, exact=True)} of RAM"
    where += "" if deadline is None else f" within {deadline}"
    key = f"largest-{axis.name}"
    if steps == 0:
        reason = search.probes[1].why
        text = f"No {axis.name} of {axis.text(axis.step)} or more trains {where}: {reason}."
        return Answer(key, text, Basis.SOLVED)
    best = search.probes[steps]
    figures = (("size", float(best.size)), ("joules", best.joules or 0.0), ("seconds", best.seconds))
    text = f"The largest {axis.name} that trains {where} is {axis.text(best.size)}, at "
    text += f"{format_joules(best.joules or 0.0)} per step"
    if capped < ram_budget_bytes and tried_larger:
        text += f"; sizes above {format_bytes(capped)} were not tried on this machine"
    elif not tried_larger:
        text += "; larger ones were not tried"
    else:
        text += f"; {axis.text(best.size + axis.step)} has no plan: {search.probes[steps + 1].why}"
    return Answer(key, f"{text}.", Basis.SOLVED, (), figures)
