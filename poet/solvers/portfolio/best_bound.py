"""The best bound of a search that holds for the whole problem, what proves it, and the names of who finds."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from poet.clock import WALL, Clock

Claim = TypeVar("Claim")
"""What an engine said, and of which program; here it is only remembered."""

_REFUTED = 1e-6  # of a plan's joules

# who finds plans and bounds: what an answer gives as its ``solver``, and its record
GREEDY = "greedy"
WALKS = "LP-guided rollout, highs"
ROUNDS = "neighbourhood search, highs"


def model_by(engine: str) -> str:
    """The event model, solved by ``engine``; of two side by side it is not known which found the plan."""
    return f"event model, {engine}"


LOCAL = "local search over what each use comes from"
COPIES = "search over copies in storage"
EARLIER = "an earlier search"
EVERY_OP_ONCE = "running every op once"
REFUTED = "what is left after a second opinion"
LINEAR = "windows relaxation, summed from duals"
WHOLE = "windows relaxation in whole numbers, highs"


@dataclass(slots=True)
class BestBound(Generic[Claim]):
    """Keeps the highest of the bounds that it is given.

    Attributes:
        baseline_joules: of running everything once, which no plan is below.
        joules: of a step; no plan takes less.
        claim: of a single solver that it is, for a program that is kept; ``None``: see ``alone``.
        alone: it is the bound of a single solver for a program that is not kept; else arithmetic proves it.
        after_seconds: when it was last improved, since it was set up.
        clock: of the search.
    """

    baseline_joules: float
    clock: Clock = WALL
    joules: float = field(init=False)
    claim: Claim | None = field(default=None, init=False)
    alone: bool = field(default=False, init=False)
    after_seconds: float = field(default=0.0, init=False)
    _sure_joules: float = field(init=False)  # the best that rests on no single solver
    _began: float = field(init=False)

    def __post_init__(self) -> None:
        self.joules = self._sure_joules = self.baseline_joules
        self._began = self.clock.now()

    def take(self, overhead: float, claim: Claim | None = None, *, proven: bool = True) -> None:
        """Take over a bound on the overhead, if it is the highest.

        Args:
            overhead: joules above running everything once.
            claim: of the engine whose bound it is.
            proven: without a claim, by sums of our own rather than the bound of a single solver.
        """
        joules = self.baseline_joules + overhead
        if not math.isfinite(overhead):
            return
        if proven and claim is None:
            self._sure_joules = max(self._sure_joules, joules)
        if joules > self.joules:
            self.joules, self.claim, self.alone = joules, claim, not proven and claim is None
            self.after_seconds = self.clock.now() - self._began

    def meet(self, joules: float) -> None:
        """Forget the bound of a single solver, where a plan of ``joules`` refutes it."""
        if (self.alone or self.claim is not None) and refutes(joules, self.joules):
            self.joules, self.claim, self.alone = self._sure_joules, None, False

    def forget(self) -> None:
        """It was refuted: nothing is known but what sums of our own prove."""
        self.joules, self.claim, self.alone = self._sure_joules, None, False


def refutes(plan_joules: float, bound_joules: float) -> bool:
    """Whether a plan takes so much less than a bound that rounding does not explain it."""
    return bound_joules > (1.0 + _REFUTED) * plan_joules
