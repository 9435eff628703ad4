"""What parts of a search are given in tests in place of the whole search: a clock, and ears."""

from __future__ import annotations

import math

from poet.clock import WALL, Clock
from poet.solvers.instance.context import Conduct


def listening(
    clock: Clock = WALL, *, seconds: float = math.inf, seed: int = 0, bounds: list[float] | None = None
) -> Conduct:
    """On one thread, until ``seconds`` of ``clock``; ``bounds``, in joules, are noted and never refuted."""

    def hear(joules: float, proven: bool) -> bool:
        if bounds is not None:
            bounds.append(joules)
        return True

    return Conduct(
        seconds_left=lambda: seconds - clock.now(),
        finished=lambda: clock.now() >= seconds,
        found=lambda schedule, found_by: None,
        bounded=hear,
        classed=lambda joules, reruns: None,
        threads=1,
        seed=seed,
        clock=clock,
    )
