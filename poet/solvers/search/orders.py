"""Other orders of first runs: every topological order of a small problem is searched.

Two ops keep their order where one reads what the other makes, where one updates what the other reads, and
where both have an effect: they draw random numbers or update something. The simulator asks for no more: a
schedule of the problem listed in another such order is one of the problem itself, and gives the same bits.

Each order is a search of its own (`poet.solvers.search.objectives`), which ends where its bound shows that
the best plan so far cannot be beaten. Those that hold least RAM with everything kept come first.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from poet.problem import Limits, Objective, Place, Problem, ProblemOp
from poet.problem.schedule import Schedule
from poet.problem.solution import EVERY, LISTED, OWN, WORD_OF, Solution, SolveOptions, Start, is_confirmed
from poet.solvers.search import objectives
from poet.solvers.search.choices import ChoiceSearch

MOST_OPS = 12
"""Of a problem whose orders are tried."""

MOST_ORDERS = 500
"""That are tried; where there are more, nothing is said of every order."""

Order = tuple[int, ...]
"""Ops by their numbers in the list."""


def solve(problem: Problem, limits: Limits, options: SolveOptions) -> Solution:
    """The best plan in any order, for problems of up to `MOST_OPS` ops; of larger ones in the listed order.

    The listed order has half of the time limit, all others together what is left. The answer's ``order`` says
    what its bound holds for: `EVERY` order where all were tried, else that of the plan.

    Raises:
        InputError: the engine named in ``options`` is not available.
    """
    if len(problem.ops) > MOST_OPS or options.enough_joules is not None:
        return objectives.solve(problem, limits, options)
    return _Search(problem, limits, options).answer()


class _Search(ChoiceSearch[Order]):
    """One search over orders; ``is_every``: what is known holds for all of them."""

    kind = "orders"

    def __init__(self, problem: Problem, limits: Limits, options: SolveOptions) -> None:
        super().__init__(problem, limits, options)
        self.listed, self.is_every = tuple(range(len(problem.ops))), False
        if options.objective is Objective.RAM:  # which is that of the listed order
            self.least = 0.0

    def run(self) -> None:
        listing = Listing(self.problem)
        found = list(itertools.islice(listing.orders(), MOST_ORDERS + 1))
        others = sorted((order for order in found if order != self.listed), key=listing.peak_bytes)
        self.search(self.listed, 0.5 if others else 1.0)
        if self.is_closed:  # by what every order takes
            self.is_every = True
            return
        self.search_each([self.listed, *others], of_all=True)
        is_all = listing.is_complete and len(found) <= MOST_ORDERS
        known = all(order in self.found or self.is_settled(order) for order in others)
        self.is_every = is_all and known and not self.stopped
        if others and not is_confirmed(self.proof):
            self.proof = f"{WORD_OF}one engine for other orders"

    def decided(self, choice: Order) -> Problem:
        return replace(self.problem, ops=tuple(self.problem.ops[number] for number in choice))

    def named(self, choice: Order, schedule: Schedule) -> Schedule:
        return schedule

    def solved(self, choice: Order, options: SolveOptions) -> Solution:
        """In another order than the listed one, only where that beats the best plan."""
        if choice == self.listed:
            given = self.options.start if options.start.schedule is None else options.start
            return objectives.solve(self.problem, self.limits, replace(options, start=given))
        problem, enough = self.decided(choice), None
        if self.options.objective is Objective.ENERGY and self.best is not None:
            enough = self.amount - self.allowed
        cut = replace(options, enough_joules=enough, progress=None)
        found = objectives.solve(problem, self.limits, cut)
        if enough is not None and found.schedule is not None and (found.joules or 0.0) <= enough:
            whole = replace(options, start=Start(found.schedule, found.solver), progress=None)
            found = objectives.solve(problem, self.limits, whole)
        return found

    def answer(self) -> Solution:
        answer = super().answer()
        if self.is_every:
            return replace(answer, order=EVERY)
        best = self.best or self.found.get(self.listed, answer)
        return replace(
            best,
            order=LISTED if self.best_choice in (None, self.listed) else OWN,
            solve_seconds=answer.solve_seconds,
            was_interrupted=answer.was_interrupted,
        )


class Listing:
    """Which op must come before which, as sets of bits; and all orders that keep to that.

    Attributes:
        is_complete: whether `orders` has all orders that schedules may have: what only a rerun reads is made
            before the op in a list, and need not be in a schedule.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.makes = {name: number for number, op in enumerate(problem.ops) for name in op.outputs}
        self.before = [self._before(number) for number in range(len(problem.ops))]
        self.is_complete = all(
            name not in self.makes for op in problem.ops for name in {*op.rerun_inputs} - {*op.inputs}
        )

    def orders(self) -> Iterator[Order]:
        """All of them, by a depth-first search, the listed one first."""
        waiting: list[Order] = [()]
        while waiting:
            order = waiting.pop()
            if len(order) == len(self.before):
                yield order
            done = sum(1 << number for number in order)
            ready = [n for n, before in enumerate(self.before) if not done >> n & 1 and not before & ~done]
            waiting += [(*order, number) for number in reversed(ready)]

    def peak_bytes(self, order: Order) -> int:
        """The most in RAM, beside what is there from the start, where nothing is rerun or paged."""
        problem, place = self.problem, {number: at for at, number in enumerate(order)}
        held = [problem.aligned_bytes(problem.ops[number].workspace_bytes) for number in order]
        for tensor in problem.tensors:
            if (maker := self.makes.get(tensor.name)) is None:
                continue
            reads = [place[number] for number, op in enumerate(problem.ops) if tensor.name in op.inputs]
            last = len(order) - 1 if tensor.finally_ is Place.RAM else max(reads, default=place[maker])
            for at in range(place[maker], last + 1):
                held[at] += problem.aligned_bytes(tensor.bytes)
        return max(held, default=0)

    def _before(self, number: int) -> int:
        op = self.problem.ops[number]
        earlier = {self.makes[name] for name in _reads(op) if name in self.makes}
        for other, one in enumerate(self.problem.ops[:number]):
            shared = (_writes(one) & _reads(op)) | (_writes(op) & _reads(one))
            if shared or (_has_effect(one) and _has_effect(op)):
                earlier.add(other)
        return sum(1 << other for other in earlier)


def _reads(op: ProblemOp) -> set[str]:
    return {*op.inputs, *op.rerun_inputs, *op.stored}


def _writes(op: ProblemOp) -> set[str]:
    return {*op.updates, *op.stored_updates}


def _has_effect(op: ProblemOp) -> bool:
    return bool(op.random or _writes(op))
