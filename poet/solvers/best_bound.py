"""The best bound of a search that holds for the whole problem, and who says so."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

from poet.solvers.milp import Model


@dataclass(slots=True)
class BestBound:
    """Keeps the highest bound among those it is told.

    Attributes:
        baseline_joules: of running everything once, which no plan is below.
        joules: of a step; no plan takes less.
        model: the relaxed model that an engine says so of; ``None``: see ``alone``.
        alone: it is an engine's word for a program that is no `Model`; else arithmetic says so.
        after_seconds: when it was last improved, since it was set up.
    """

    baseline_joules: float
    joules: float = field(init=False)
    model: Model | None = field(default=None, init=False)
    alone: bool = field(default=False, init=False)
    after_seconds: float = field(default=0.0, init=False)
    _began: float = field(default_factory=time.monotonic, init=False)

    def __post_init__(self) -> None:
        self.joules = self.baseline_joules

    def take(self, overhead: float, model: Model | None = None, *, proven: bool = True) -> None:
        """Take over a bound on the overhead, if it is the highest.

        Args:
            overhead: joules above running everything once.
            model: whose optimum it bounds.
            proven: without a model, by sums of our own rather than an engine's word.
        """
        joules = self.baseline_joules + overhead
        if math.isfinite(overhead) and joules > self.joules:
            self.joules, self.model, self.alone = joules, model, not proven
            self.after_seconds = time.monotonic() - self._began

    def forget(self) -> None:
        """It was refuted: nothing is known but that every op runs once."""
        self.joules, self.model, self.alone = self.baseline_joules, None, False
