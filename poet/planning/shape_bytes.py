"""Bytes against input size, learned from a few shapes: a first answer for others, with nothing built or run.

After Mimose (arXiv 2209.02478), which fits a parabola to the measured bytes of one input size. A law of the
bytes of a tensor or a workspace is a constant and at most two products of powers of the sizes, none with a
negative factor, so that more is never less. It decides what is tried first, never what may run.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from poet.errors import InputError
from poet.ir.reshaping import Reshaping, Sizes
from poet.planning.beside import at_home, limits_beside
from poet.planning.ram_survey import keep_everything_bytes
from poet.plans.training_plan import Plan
from poet.problem import Problem
from poet.solvers import minimum_ram_bytes

LARGEST_SIZE = 1 << 20
_POWERS, _MOST_PRODUCTS = (0, 1, 2), 2
_SAME = 1e-6  # relative errors that differ by less are the same


@dataclass(frozen=True, slots=True)
class BytesLaw:
    """``constant + sum of factor * product of sizes[i] ** powers[i]`` bytes.

    Attributes:
        constant: in bytes.
        products: each a factor and its powers.
        error: the largest relative one over the samples that it was learned from.
    """

    constant: float
    products: tuple[tuple[float, tuple[int, ...]], ...]
    error: float

    def at(self, sizes: Sizes) -> int:
        """Bytes at ``sizes``."""
        grown = (factor * math.prod(map(pow, sizes, powers)) for factor, powers in self.products)
        return round(math.fsum((self.constant, *grown)))


def law_of(samples: Mapping[Sizes, int]) -> BytesLaw:
    """The law of least error for the bytes at some sizes, the simplest of those that are as good.

    Args:
        samples: at least one.
    """
    if not any(samples.values()):
        return BytesLaw(0.0, (), 0.0)
    sizes = np.array(list(samples), dtype=float)
    target = np.array(list(samples.values()), dtype=float).clip(min=1.0)
    best: BytesLaw | None = None
    for powers in _choices(sizes.shape[1], len(samples) - 1):
        columns = [np.ones(len(samples)), *(np.prod(sizes ** np.array(each), axis=1) for each in powers)]
        design = np.stack(columns, axis=1) / target[:, None]  # relative errors count
        factors = np.linalg.lstsq(design, np.ones(len(samples)), rcond=None)[0]
        if (design * factors).min() < -_SAME:
            continue
        factors = factors.clip(min=0.0)
        error = float(np.abs(design @ factors - 1.0).max())
        if best is None or error < best.error - _SAME:
            products = tuple(zip(map(float, factors[1:]), powers, strict=True))
            best = BytesLaw(float(factors[0]), products, error)
    assert best is not None  # a constant alone is never negative
    return best


def _choices(count: int, most: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Products of powers of ``count`` sizes, at most ``most`` of them together, from the simplest on."""
    single = sorted((each for each in itertools.product(_POWERS, repeat=count) if any(each)), key=sum)
    for number in range(min(_MOST_PRODUCTS, most) + 1):
        yield from itertools.combinations(single, number)


@dataclass(frozen=True, slots=True)
class Foreseen:
    """What a step for other sizes takes, by laws; a plan for it is simulated exactly.

    Attributes:
        kept_bytes: of RAM, where everything is kept.
        least_bytes: below which no schedule exists.
        within_bytes: what the plan has.
    """

    kept_bytes: int
    least_bytes: int
    within_bytes: int

    @property
    def fits_kept(self) -> bool:
        """Whether nothing has to be recomputed or paged."""
        return self.kept_bytes <= self.within_bytes

    @property
    def may_fit(self) -> bool:
        """Whether a search may find a schedule."""
        return self.least_bytes <= self.within_bytes


class ShapeBytes:
    """What is known of the bytes of one training step's shapes, and what follows for others."""

    def __init__(self, reshaping: Reshaping, plan: Plan) -> None:
        """Learn from the shapes of ``plan``, whose graphs are those of ``reshaping``."""
        self._problem, self._limits = at_home(plan.problem, plan), limits_beside(plan)
        self._reshaping = reshaping
        self._seen: dict[Sizes, Problem] = {}
        self._laws: dict[tuple[int, ...], BytesLaw] = {}  # by the bytes at the known sizes
        self.learn(plan)

    def learn(self, plan: Plan) -> None:
        """Take in the shapes of ``plan`` that are not known yet."""
        for step in (plan, *(item.step for item in plan.shapes)):
            try:
                self._seen.setdefault(self._reshaping.sizes(step.given_types), step.problem)
            except InputError:
                continue  # a planned shape that no other follows from

    def problem(self, sizes: Sizes) -> Problem:
        """That of the plan's own step, with the bytes of a step of these ``sizes``."""
        seen = self._seen.values()
        tensors = zip(*([item.bytes for item in problem.tensors] for problem in seen), strict=True)
        ops = zip(*([op.workspace_bytes for op in problem.ops] for problem in seen), strict=True)
        own = self._problem
        return replace(
            own,
            tensors=tuple(
                replace(item, bytes=self._bytes(found, sizes))
                for item, found in zip(own.tensors, tensors, strict=True)
            ),
            ops=tuple(
                replace(op, workspace_bytes=self._bytes(found, sizes))
                for op, found in zip(own.ops, ops, strict=True)
            ),
        )

    def _bytes(self, found: tuple[int, ...], sizes: Sizes) -> int:
        known = dict(zip(self._seen, found, strict=True))
        if sizes in known:
            return known[sizes]
        if found not in self._laws:
            self._laws[found] = law_of(known)
        return self._laws[found].at(sizes)

    def kept_bytes(self, sizes: Sizes) -> int:
        """RAM of a step of these ``sizes`` where everything is kept."""
        return keep_everything_bytes(self.problem(sizes))

    def least_bytes(self, sizes: Sizes) -> int:
        """Below which it has no schedule."""
        return minimum_ram_bytes(self.problem(sizes), self._limits).bytes

    def sizes_like(self, sizes: Sizes, number: int) -> tuple[int, ...]:
        """The sizes ``number`` of known shapes whose others are those of ``sizes``."""
        return tuple(
            seen[number]
            for seen in self._seen
            if (*seen[:number], *seen[number + 1 :]) == (*sizes[:number], *sizes[number + 1 :])
        )

    def largest(self, sizes: Sizes, number: int, within_bytes: int, *, kept: bool = False) -> int:
        """The largest size that may fit, or that fits ``kept``, with the other ``sizes``; 0: none does.

        Args:
            sizes: of which one is looked for.
            number: its place among them.
            within_bytes: that it has.
            kept: without recomputing and paging.
        """
        bytes_of = self.kept_bytes if kept else self.least_bytes

        def fits(size: int) -> bool:
            return bytes_of((*sizes[:number], size, *sizes[number + 1 :])) <= within_bytes

        low, high = 0, max(1, sizes[number])
        while high < LARGEST_SIZE and fits(high):
            low, high = high, 2 * high
        while high - low > 1:  # more never takes less
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low
