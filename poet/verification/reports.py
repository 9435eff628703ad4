"""What a comparison of a plan with plain PyTorch found."""

from __future__ import annotations

from dataclasses import dataclass

from poet.errors import NotExact
from poet.problem import PageForm


@dataclass(frozen=True, slots=True)
class BitComparison:
    """What was compared at one number of threads.

    Attributes:
        threads: that torch used.
        tensors: that were compared.
        difference: the first tensor that differs and how, or ``None``.
    """

    threads: int
    tensors: int
    difference: str | None


@dataclass(frozen=True, slots=True)
class RoundingReport:
    """What rounded pages do to a training step.

    Attributes:
        forms: of the tensors that are rounded, by name.
        page_error: how far off a number came back at most, as a share of what its form allows.
        gradient_error: norm of the difference of all gradients from plain PyTorch's, over the norm of those,
            in the worst step; each begins with the same state.
        farthest: the parameter whose gradient is farthest off, and the same of it alone.
    """

    forms: dict[str, PageForm]
    page_error: float
    gradient_error: float
    farthest: tuple[str, float]


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The outcome of `verify`; true if every bit was the same, or off by no more than rounded pages allow.

    Attributes:
        steps: made on each side.
        shapes: others of the plan, of each of which one step more was made.
        budgets: others of the plan, inside each of which one step more was made, and one of each shape.
        recomputed_runs, page_ins: of the plan in one step: what was put to the test.
        comparisons: one per number of threads.
        rounding: of a plan that rounds pages; ``None``: it does not.
    """

    steps: int
    recomputed_runs: int
    page_ins: int
    comparisons: tuple[BitComparison, ...]
    shapes: int = 0
    budgets: int = 0
    rounding: RoundingReport | None = None

    @property
    def exact(self) -> bool:
        """Whether every bit was the same."""
        return self.rounding is None and bool(self)

    def __bool__(self) -> bool:
        return all(comparison.difference is None for comparison in self.comparisons)

    def require(self) -> None:
        """Do nothing if the plan is exact, or off by no more than its rounded pages allow.

        Raises:
            NotExact: names the first tensor that differs.
        """
        for comparison in self.comparisons:
            if comparison.difference is not None:
                raise NotExact(f"with {comparison.threads} thread(s), {comparison.difference}")
