"""Who finds plans and bounds: the names that an answer gives as its ``solver``, and its record."""

from __future__ import annotations

GREEDY = "greedy"
WALKS = "walks along the relaxation, highs"
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


def relaxed_by(engine: str) -> str:
    """Who found a bound: the relaxed event model, solved by ``engine``."""
    return f"relaxed event model, {engine}"
