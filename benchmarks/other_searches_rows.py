"""What `other_searches` asks, and the rows that it keeps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from poet.problem.solution import Status

INSTANCES = Path(__file__).parents[1] / "tests" / "instances"
DENSE_LAYERS = (12, 24, 40)
KINDS = ("published", "concats", "10,000 ops", "VGG-16 without paging", "random")
EQUAL = 1e-6
"""What counts as equal, relative."""


@dataclass(frozen=True, slots=True)
class Question:
    """One search: of a kind, a problem by name, a budget as a share, and whether anything may be paged."""

    kind: str
    problem: str
    share: float
    paging: bool = True


@dataclass(frozen=True, slots=True)
class Row:
    """One search; plan and bound are shares above running every op once, ``None``: there is no plan.

    Attributes:
        kind, problem, share, paging, ops, budget_bytes, limit_seconds: what was asked.
        status: of the answer.
        plan, bound: see above.
        gap, open_share: how far the plan may be above the best, as a share of its joules and of its overhead.
        seconds: of a core.
        first_seconds, plan_seconds, bound_seconds: until the first plan, the last one, and the last bound.
        bound_by: who found it.
        peak_bytes: the most that the search and its children held at once (`held_memory`).
    """

    kind: str
    problem: str
    share: float
    paging: bool
    ops: int
    budget_bytes: int
    limit_seconds: float
    status: str
    plan: float | None
    bound: float
    gap: float | None
    open_share: float | None
    seconds: float
    first_seconds: float
    plan_seconds: float
    bound_seconds: float
    bound_by: str
    peak_bytes: int = 0

    @property
    def asked(self) -> Question:
        """What was asked."""
        return Question(self.kind, self.problem, self.share, self.paging)

    @property
    def proven(self) -> bool:
        """Nothing is open: the plan is the best, or there is none."""
        return self.status in (Status.OPTIMAL.word, Status.INFEASIBLE.word)

    @property
    def still_open(self) -> float:
        """Of the joules."""
        return 0.0 if self.proven else 1.0 if self.gap is None else self.gap

    @property
    def overhead_open(self) -> float:
        """Of the overhead."""
        return 0.0 if self.proven else 1.0 if self.open_share is None else self.open_share


@dataclass(frozen=True, slots=True)
class RandomRow:
    """One random problem beside exhaustive search.

    Attributes:
        seed, limit_seconds: what was asked.
        background: whether transfers run beside compute.
        proven: within the limit.
        plan_above, bound_above: relative to the least joules there are; ``None``: exhaustive search did not
            end, or there is no plan. A plan that is missing, or should not be, is infinitely far off.
        compared: exhaustive search ended.
        seconds: of a core.
    """

    seed: int
    limit_seconds: float
    background: bool
    proven: bool
    plan_above: float | None
    bound_above: float | None
    compared: bool
    seconds: float

    @property
    def equal(self) -> bool:
        """To the optimum, the bound not above it."""
        return (self.plan_above or 0.0) <= EQUAL and (self.bound_above or 0.0) <= EQUAL


def questions(kinds: Sequence[str]) -> Iterator[Question]:
    """All searches of these kinds but those of random problems."""
    if "published" in kinds:
        for path in (*sorted(INSTANCES.glob("*.json")), *sorted((INSTANCES / "family").glob("*.json"))):
            name = str(path.relative_to(INSTANCES).with_suffix(""))
            yield from (
                Question("published", name, *asked) for asked in ((0.5, True), (0.2, True), (0.5, False))
            )
    if "concats" in kinds:
        for layers in DENSE_LAYERS:
            yield from (Question("concats", f"densenet-like-{layers}", share) for share in (0.2, 0.15, 0.1))
    if "10,000 ops" in kinds:
        yield from (Question("10,000 ops", "headwise-gpt-48", share) for share in (0.5, 0.3, 0.15))
    if "VGG-16 without paging" in kinds:
        yield Question("VGG-16 without paging", "family/vgg16.m4", 0.5, paging=False)
