"""What a training may spend before it stops: joules, seconds, bytes written to storage."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from poet.errors import InputError
from poet.plans.training_plan import Plan
from poet.util.units import format_bytes, format_joules, format_seconds

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a run of training may spend; ``None``: as much as it takes.

    Attributes:
        joules: by the plan's figures, or by a meter.
        seconds: by the clock.
        written_bytes: to storage, by the plan's figures, and the sizes of the states that are saved.
    """

    joules: float | None = None
    seconds: float | None = None
    written_bytes: int | None = None


class Spending:
    """Counts what a run has spent, and says when there is no room for another step."""

    def __init__(
        self,
        plan: Plan,
        allowance: Allowance,
        *,
        meter: Callable[[], float] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin to count.

        Args:
            plan: on which the first step is made; `step_done` and `over` may be told of others.
            allowance: of the run.
            meter: gives joules that rise, those of a battery's gauge for example, in place of the plan's.
            clock: gives seconds that rise.

        Raises:
            InputError: not even one step is allowed.
        """
        self._plan, self._allowance = plan, allowance
        self._meter, self._clock = meter, clock
        self._began, self._began_joules = clock(), 0.0 if meter is None else meter()
        self._steps = self._steps_written_bytes = self._saved_bytes = self._last_save_bytes = 0
        self._steps_joules = 0.0
        if why := self.over():
            raise InputError(f"no step can be made: {why}")

    def step_done(self, plan: Plan | None = None) -> None:
        """A step was made, on ``plan``; ``None``: on that of the step before."""
        self._plan = plan or self._plan
        self._steps += 1
        self._steps_joules += self._plan.step_joules
        self._steps_written_bytes += self._plan.step_written_bytes

    def saved(self, path: Path) -> None:
        """A state was written at ``path``."""
        self._last_save_bytes = path.stat().st_size
        self._saved_bytes += self._last_save_bytes

    @property
    def joules(self) -> float:
        """Spent so far."""
        if self._meter is not None:
            return self._meter() - self._began_joules
        return self._steps_joules

    @property
    def written_bytes(self) -> int:
        """Written so far."""
        return self._steps_written_bytes + self._saved_bytes

    def over(self, plan: Plan | None = None) -> str:
        """Which allowance the next step, and a save after it, would exceed; empty: none.

        The step is made on ``plan``; ``None``: on that of the step before.
        """
        allowed, plan = self._allowance, plan or self._plan
        if allowed.joules is not None:
            needed = self.joules + plan.step_joules
            if needed > allowed.joules * (1 + _ROUNDING):
                return (
                    f"another step makes {format_joules(needed)}, {format_joules(allowed.joules)} are allowed"
                )
        if allowed.seconds is not None:
            passed = self._clock() - self._began
            needed = passed + (passed / self._steps if self._steps else 0.0)
            if needed > allowed.seconds:
                shown = format_seconds(allowed.seconds)
                return f"another step ends after {format_seconds(needed)}, {shown} are allowed"
        if allowed.written_bytes is not None:
            bytes_needed = self.written_bytes + plan.step_written_bytes + self._last_save_bytes
            if bytes_needed > allowed.written_bytes:
                shown = format_bytes(allowed.written_bytes)
                return f"another step makes {format_bytes(bytes_needed)} written, {shown} are allowed"
        return ""
