"""Other orders of first runs: every topological order of a small problem is searched.

Two ops keep their order where one reads what the other makes, where one updates what the other reads, and
where both have an effect: they draw random numbers or update something. The simulator asks for no more: a
schedule of the problem listed in another such order is one of the problem itself, and gives the same bits.

Each order is a search of its own (`poet.solvers.search.objectives`), which ends where its bound shows that
the best plan so far cannot be beaten. Those that hold least RAM with everything kept come first.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

from poet.problem import Limits, Objective, Place, Problem, ProblemOp
from poet.problem.search_record import joined
from poet.problem.simulator import simulate
from poet.problem.solution import EVERY, OWN, WORD_OF, Solution, SolveOptions, Start, Status
from poet.solvers.search import objectives

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
    return _Search(problem, limits, options).run()


class _Search:
    def __init__(self, problem: Problem, limits: Limits, options: SolveOptions) -> None:
        self.problem, self.limits, self.options = problem, limits, options
        self.started = options.clock.now()
        self.seconds_left = objectives.seconds_left(options)

    def run(self) -> Solution:
        listing = Listing(self.problem)
        found = list(itertools.islice(listing.orders(), MOST_ORDERS + 1))
        others = [order for order in found if order != tuple(range(len(order)))]
        best = first = self.searched(self.problem, 2 if others else 1, self.options)
        keeps_all = first.trace is not None and first.trace.joules <= first.baseline_joules * (1 + 1e-9)
        if keeps_all and first.objective is Objective.ENERGY:
            return replace(first, order=EVERY)  # each op runs once at least
        others.sort(key=listing.peak_bytes)
        least, searched = _bound(first), 0
        for order in others:
            if best.was_interrupted or not self.seconds_left():
                break
            began = self.options.clock.now()
            other = self.in_order(order, len(others) - searched, best)
            least, searched = min(least, _bound(other)), searched + 1
            best = replace(best, was_interrupted=other.was_interrupted)
            if _amount(other) < _amount(best):
                record = joined(first.record, other.record, after_seconds=began - self.started)
                best = replace(other, order=OWN, record=record)
        best = replace(best, solve_seconds=self.options.clock.now() - self.started)
        if listing.is_complete and len(found) <= MOST_ORDERS and searched == len(others):
            return self.of_every(best, least, proof=best.proof if not others else "")
        return best

    def in_order(self, order: Order, shared_by: int, best: Solution) -> Solution:
        """The best plan in ``order``, if it beats ``best``; it is held against the problem as listed."""
        problem = replace(self.problem, ops=tuple(self.problem.ops[number] for number in order))
        quiet = replace(self.options, start=Start(), progress=None)
        enough = None
        if best.trace is not None and best.objective is Objective.ENERGY:
            joules = best.trace.joules
            enough = joules - self.options.allowed_gap_joules(joules, best.baseline_joules)
        found = self.searched(problem, shared_by, replace(quiet, enough_joules=enough))
        if enough is not None and found.schedule is not None and _amount(found) <= enough:
            more = replace(quiet, start=Start(found.schedule, found.solver))
            found = self.searched(problem, shared_by, more)
        if found.schedule is None:
            return found
        return replace(found, trace=simulate(self.problem, found.schedule, self.limits))

    def searched(self, problem: Problem, shared_by: int, options: SolveOptions) -> Solution:
        """One search, in a share of the time that is left."""
        return objectives.solve(
            problem, self.limits, objectives.timed(options, self.seconds_left() / shared_by)
        )

    def of_every(self, best: Solution, least: float, *, proof: str) -> Solution:
        """``best`` with a bound for every order, of which the lowest is ``least``."""
        best = replace(best, order=EVERY, proof=proof or f"{WORD_OF}one engine for other orders")
        if best.trace is None:
            return replace(best, status=Status.INFEASIBLE if math.isinf(least) else Status.TIMEOUT)
        amount = _amount(best)
        bound, allowed = min(least, amount), 1e-9 * amount
        if best.objective is Objective.ENERGY:
            allowed = self.options.allowed_gap_joules(amount, best.baseline_joules)
            best = replace(best, bound_joules=bound)
        else:
            best = replace(best, bound_joules=best.baseline_joules, objective_bound=bound)
        if amount - bound <= allowed:
            return replace(best, status=Status.OPTIMAL)
        return replace(best, status=Status.FEASIBLE, proof="")


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


def _amount(solution: Solution) -> float:
    return math.inf if solution.amount is None else solution.amount


def _bound(solution: Solution) -> float:
    """No plan in the solution's order takes less of the objective."""
    return math.inf if solution.status is Status.INFEASIBLE else solution.bound or 0.0
