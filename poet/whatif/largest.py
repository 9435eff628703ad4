"""The largest batch, resolution or sequence length that fits: the model is imported again for each size.

A larger size is taken to need more RAM. The search goes by the least RAM of two small sizes straight to
where a line through them meets the budget, and bisects from there; the answer names the largest size with
a plan and the next one, with what is known about it.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field

from poet.api import limits_of
from poet.devices.profile import Profile
from poet.errors import ModelError
from poet.problem import Limits, Place
from poet.problem.solution import Status
from poet.util.units import IN_ORDER, format_bytes, format_joules
from poet.whatif.grid import Axis
from poet.whatif.models import VariantOf
from poet.whatif.result import Answer, Basis, Setting
from poet.whatif.settings import problem_of, setting_of
from poet.whatif.workers import Solver, Wanted

_log = logging.getLogger(__name__)

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
