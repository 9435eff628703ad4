"""Bytes against input size, learned from a few shapes: a first answer for others, with nothing built or run.

After Mimose (arXiv 2209.02478), which fits a parabola to the measured bytes of one input size. Here tensors
have the sizes that the formulas of `poet.ir.reshaping` give, of several input sizes as well, and what kernels
need beside them is fitted: a constant, and at most two products of powers of the sizes, none with a negative
factor, so that more is never less. All of it decides what is tried first, never what may run: the largest
size that has a step is planned to be sure.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from poet.errors import Infeasible, InputError, OutOfTime
from poet.ir.calls import TensorType
from poet.ir.reshaping import Formula, Reshaping, Sizes
from poet.planning.beside import at_home, limits_beside
from poet.plans.training_plan import Plan, Shape
from poet.problem import Limits, Place
from poet.problem.homes import DecidedProblem
from poet.problem.schedule import Compute, Free, PageIn
from poet.problem.simulator import judge
from poet.problem.solution import LowerBound
from poet.solvers.heuristics.policies import keep_everything
from poet.solvers.instance.feasibility import least_moments

LARGEST_SIZE = 1 << 20
_POWERS = (0, 1, 2)
_MOST_PRODUCTS = 2
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


_Size = Formula | int | str
"""Of a tensor: by a formula, the same in all shapes, or by a law of the tensor's own."""


class _Peak:
    """The largest of several moments: the moment of the peak is another at other sizes."""

    def __init__(self, sizes: Mapping[str, _Size], moments: Iterable[LowerBound]) -> None:
        """Count, per moment, the tensors of each size that are in RAM."""
        held = dict.fromkeys((moment.op, moment.tensors) for moment in moments)
        self.ops = [op for op, _ in held]
        self.sizes = list(dict.fromkeys(sizes.values()))
        place = {size: number for number, size in enumerate(self.sizes)}
        self._counts = np.zeros((len(held), len(self.sizes)))
        for number, (_, tensors) in enumerate(held):
            for tensor in tensors:
                self._counts[number, place[sizes[tensor]]] += 1

    def of(self, sizes_bytes: Sequence[int], workspaces_bytes: Sequence[int]) -> int:
        """Bytes where tensors of ``sizes`` and workspaces of ``ops`` have these."""
        return int((self._counts @ np.array(sizes_bytes, dtype=float) + np.array(workspaces_bytes)).max())


class ShapeBytes:
    """What is known of the bytes of one training step's shapes, and what follows for others."""

    def __init__(self, reshaping: Reshaping, plan: Plan) -> None:
        """Find the moments of the plan's own step, and what its shapes tell about kernels.

        Args:
            reshaping: of the plan's graphs.
            plan: of a few shapes.

        Raises:
            InputError: its storage does not hold what must begin or end there.
        """
        problem = at_home(plan.problem, plan)
        self._reshaping, self._alignment_bytes = reshaping, problem.alignment_bytes
        self._seen: set[Sizes] = set()
        self._workspaces: dict[str, dict[Sizes, int]] = {}
        self._tensors: dict[str, dict[Sizes, int]] = {}
        self._laws: tuple[dict[str, BytesLaw], dict[str, BytesLaw]] | None = None
        self.learn(plan)
        formulas = reshaping.buffer_bytes()
        sizes: dict[str, _Size] = {}
        for name, known in self._tensors.items():
            told = len(set(known.values())) == 1 or isinstance(formulas.get(name), Formula)
            sizes[name] = formulas.get(name, known[next(iter(known))]) if told else name
        self._kept = _Peak(sizes, _kept_moments(problem))
        self._least = _Peak(sizes, least_moments(problem, limits_beside(plan)))

    def learn(self, plan: Plan) -> None:
        """Take in the shapes of ``plan`` that are not known yet."""
        for step in (plan, *(item.step for item in plan.shapes)):
            try:
                sizes = self._reshaping.sizes(step.given_types)
            except InputError:
                continue  # a planned shape that no other follows from
            if sizes not in self._seen:
                self._seen.add(sizes)
                self._laws = None
                for op in step.problem.ops:
                    self._workspaces.setdefault(op.name, {})[sizes] = op.workspace_bytes
                for tensor in step.problem.tensors:
                    self._tensors.setdefault(tensor.name, {})[sizes] = tensor.bytes

    def at(self, sizes: Sizes, within_bytes: int) -> Foreseen:
        """What a step of these ``sizes`` takes."""
        return Foreseen(self._bytes(sizes, self._kept), self._bytes(sizes, self._least), within_bytes)

    def _bytes(self, sizes: Sizes, peak: _Peak) -> int:
        if self._laws is None:
            told = {size: self._tensors[size] for size in self._kept.sizes if isinstance(size, str)}
            self._laws = _laws(told), _laws(self._workspaces)
        tensors, workspaces = self._laws

        def bytes_of(size: _Size) -> int:
            if isinstance(size, Formula):
                return math.ceil(size.exact(sizes))
            return size if isinstance(size, int) else tensors[size].at(sizes)

        beside = [0 if op is None else workspaces[op].at(sizes) for op in peak.ops]
        return peak.of(self._aligned(map(bytes_of, peak.sizes)), self._aligned(beside))

    def _aligned(self, sizes_bytes: Iterable[int]) -> list[int]:
        return [-(-size // self._alignment_bytes) * self._alignment_bytes for size in sizes_bytes]

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
        peak = self._kept if kept else self._least
        low, high = 0, LARGEST_SIZE
        while low < high:  # more never takes less
            middle = (low + high + 1) // 2
            fits = self._bytes((*sizes[:number], middle, *sizes[number + 1 :]), peak) <= within_bytes
            low, high = (middle, high) if fits else (low, middle - 1)
        return low


def _laws(known: Mapping[str, Mapping[Sizes, int]]) -> dict[str, BytesLaw]:
    return {name: law_of(samples) for name, samples in known.items()}


def _kept_moments(problem: DecidedProblem) -> Iterator[LowerBound]:
    """What is in RAM while each op runs, where everything is kept."""
    schedule = keep_everything(problem, Limits())
    if schedule is None:
        raise InputError(f"{problem.name}: its storage does not hold what must begin or end there")
    outputs = {op.name: op.outputs for op in problem.ops}
    made = {name for names in outputs.values() for name in names}
    held = {
        item.name
        for item in problem.tensors
        if item.initially in (Place.RAM, Place.BOTH) or (item.initially is None and item.name not in made)
    }
    for step, moment in zip(schedule, judge(problem, schedule).moments, strict=True):
        if isinstance(step, Compute):
            held.update(outputs[step.op])
            yield LowerBound(moment.ram_bytes, step.op, tuple(sorted(held)))
        elif isinstance(step, PageIn):
            held.add(step.tensor)
        elif isinstance(step, Free):
            held.discard(step.tensor)


ShapeMaker = Callable[[Plan, Sequence[TensorType]], Shape]


@dataclass(frozen=True, slots=True)
class Largest:
    """A size that has a step, and the next one, that has none.

    Attributes:
        size: the largest that has one.
        types: of the inputs and targets then.
        shape: the step that was planned; ``None``: the plan has it already.
        why: the next size has none.
        tried: how many sizes were planned.
    """

    size: int
    types: tuple[TensorType, ...]
    shape: Shape | None
    why: str
    tried: int


@dataclass(frozen=True, slots=True)
class SizeSearch:
    """Finds the largest size; a larger one is taken to need more.

    Attributes:
        make: plans a step, as `poet.ShapePlanner` does.
        plan: that runs.
        reshaping: of its graphs.
        known: of its shapes.
        within_bytes: that the plan has.
    """

    make: ShapeMaker
    plan: Plan
    reshaping: Reshaping
    known: ShapeBytes
    within_bytes: int

    def largest(self, number: int, multiple_of: int) -> Largest:
        """The largest of the size ``number``, others as in the plan's own step.

        The first size tried is the largest that may fit, by the laws: where it has a step, the next one is
        left to try. Else the largest that fits with everything kept, and the rest is bisected.

        Raises:
            InputError: none of the plan's sizes is a multiple.
        """
        own = self.reshaping.sizes(self.plan.given_types)

        def types(count: int) -> tuple[TensorType, ...]:
            return self.reshaping.types((*own[:number], count * multiple_of, *own[number + 1 :]))

        planned = self.known.sizes_like(own, number)
        low = max((size // multiple_of for size in planned if size % multiple_of == 0), default=0)
        if low == 0:
            sizes = ", ".join(map(str, sorted(planned)))
            raise InputError(f"none of the sizes that are planned ({sizes}) is a multiple of {multiple_of}")
        high = LARGEST_SIZE // multiple_of + 1
        guesses = (
            self.known.largest(own, number, self.within_bytes, kept=kept) // multiple_of
            for kept in (False, True)
        )
        near, shape, why, tried, further = tuple(guesses), None, "", 0, 1
        while high - low > 1:
            count = next((each for each in near if low < each < high), None)
            if count is None:
                count = (low + high) // 2 if why else min(low + further, high - 1)
                further *= 2
            tried += 1
            try:
                low, shape = count, self.make(self.plan, types(count))
            except (Infeasible, InputError, OutOfTime) as error:
                high, why = count, str(error)
        return Largest(low * multiple_of, types(low), shape, why, tried)
