"""Which alternatives of a problem to take, before any search: by sums, and by keeping everything.

Dear ones are avoided: what an alternative adds to running every op once is weighed against the bytes that its
ops read less.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

from poet.alternatives import aligned_sizes, leanest, most_at_once, sizes_with
from poet.problem import Alternative, Limits, Objective, Pins, Place, Problem, ProblemOp, Tensor, Transfer
from poet.solution import SolveOptions
from poet.solvers.heuristics.keep_everything import keep_everything
from poet.solvers.instance.feasibility import minimum_ram_bytes
from poet.solvers.search.form_guide import FormGuide

Choice = frozenset[str]

SECONDS, JOULES = 0, 1
"""Of `poet.problem.Problem.extra_cost`, and of the limits on running every op once."""


class Choices:
    """Choices of the alternatives of ``problem``, without pins; ``started``: when the search of them was."""

    def __init__(self, problem: Problem, limits: Limits, options: SolveOptions, started: float) -> None:
        self.problem, self.limits, self.options, self.started = problem, limits, options, started
        self.tuning = options.tuning.alternatives
        self.of = SECONDS if options.objective is Objective.TIME else JOULES
        self.allowed = (limits.deadline_seconds, limits.joules_budget)
        self.costs = {each.name: problem.extra_cost(each) for each in problem.alternatives}
        self.spared = {
            each.name: _spared(problem, each, limits.ram_budget_bytes) for each in problem.alternatives
        }
        self.sizes = aligned_sizes(problem)
        self.ops = {op.name: op for op in problem.ops}
        self.saved_bytes = {each.name: self._saved_bytes(each) for each in problem.alternatives}
        self.names = tuple(self.costs)
        self.lean = leanest(problem)
        self.cheapest = self.gains(self.of)

    def added(self, name: str) -> float:
        """Of the objective, or of joules, what an alternative adds to running every op once.

        What is fetched without it alone is counted.
        """
        return self._added(name, self.of)

    def _added(self, name: str, of: int) -> float:
        return self.costs[name][of] - self.spared[name][of]

    def gains(self, of: int) -> Choice:
        """The alternatives with which running every op once takes the least."""
        return frozenset(name for name in self.costs if self._added(name, of) < 0)

    # --- keeping everything ---

    def keeping(self) -> Choice | None:
        """The alternatives with which keeping everything is within the limits; ``None``: none was found.

        How many fit is asked of RAM alone: more of them need less RAM, but more time or energy as well. They
        are weighed by what the objective counts, then by what else is limited.
        """
        orders = [
            self.of,
            *(of for of in (SECONDS, JOULES) if of != self.of and self.allowed[of] is not None),
        ]
        for of in orders:
            fitting = self._fitting(of)
            if fitting is None:
                continue
            for choice in dict.fromkeys((fitting, self.affordable(fitting))):
                if self._keeps(choice, self.limits):
                    return choice
        return None

    def _fitting(self, of: int) -> Choice | None:
        """What needs little of ``of`` among choices with which keeping everything fits into RAM."""
        limits = replace(
            self.limits, deadline_seconds=None, joules_budget=None, written_budget_bytes=None, pins=Pins()
        )
        cheapest = self.gains(of)
        if self._keeps(cheapest, limits):
            return cheapest
        others = sorted(
            (name for name in self.names if name not in cheapest and self.saved_bytes[name] > 0),
            key=lambda name: (self._added(name, of) / self.saved_bytes[name], name),
        )
        enough = len(others)
        if not self._keeps(cheapest.union(others), limits):
            return self.lean if self._keeps(self.lean, limits) else None
        few = 0  # with which it does not fit
        while enough - few > 1:
            middle = (few + enough) // 2
            if self._keeps(cheapest.union(others[:middle]), limits):
                enough = middle
            else:
                few = middle
        choice = cheapest.union(others[:enough])
        for name in sorted(others[:enough], key=lambda name: -self._added(name, of)):
            if self.options.clock.now() - self.started > self._fitting_seconds():
                break
            if self._keeps(choice - {name}, limits):
                choice -= {name}
        return choice

    def _fitting_seconds(self) -> float:
        allowed, seconds = self.options.time_limit_seconds, self.tuning.fitting_seconds
        return seconds if allowed is None else min(seconds, self.tuning.fitting_share * allowed)

    def _keeps(self, choice: Choice, limits: Limits) -> bool:
        self.options.clock.spend(programs=1)
        return keep_everything(self.problem.resolved(choice), limits) is not None

    # --- less RAM than that ---

    def first(self) -> Choice:
        """What saves bytes and fits, and what needs less at once, as far as time and energy allow.

        Where least RAM is asked for, what fits is what does not need more at once than the leanest choice.
        """
        fits_bytes = self.limits.ram_budget_bytes
        if self.options.objective is Objective.RAM:
            free = replace(self.limits, pins=Pins())
            fits_bytes = minimum_ram_bytes(self.problem.resolved(self.lean), free).bytes
        saving = {
            each.name
            for each in self.problem.alternatives
            if self.saved_bytes[each.name] > 0
            and (fits_bytes is None or self._needs_bytes(each) <= fits_bytes)
        }
        return self.affordable(self.lean | saving)

    def following(self, guide: FormGuide) -> Choice:
        """What the guide takes, and of what it does not weigh what would be taken without it."""
        return self.affordable(guide.taken | (self.first() - guide.open))

    def dearer_left_out(self, choice: Choice, other: Choice) -> Choice:
        """The cheaper of two choices, of which the first keeps everything, and the other may."""
        costs = [math.fsum(self.added(name) for name in each) for each in (choice, other)]
        return other if costs[1] < costs[0] and self._keeps(other, self.limits) else choice

    def others(self) -> list[Choice]:
        """Where the first has no plan: by bytes, the leanest, the cheapest, all, none; as limits allow."""
        ends = (self.lean, self.cheapest, frozenset(self.names), frozenset[str]())
        return list(dict.fromkeys((self.first(), *map(self.affordable, ends))))

    def affordable(self, choice: Choice) -> Choice:
        """What of ``choice`` running every op once is within the deadline and the energy budget with.

        The dearest for their bytes go first, last those without which an op does not fit; if that is not
        enough, what gains comes in.
        """
        plain = self.problem.resolved(())
        once = (plain.compute_seconds, plain.compute_joules)
        for of, allowed in enumerate(self.allowed):
            total = math.fsum((once[of], *(self.costs[name][of] for name in choice)))
            dearest = sorted(
                choice - self.gains(of),
                key=lambda name: (
                    self._is_needed(name),
                    -self.costs[name][of] / max(1, self.saved_bytes[name]),
                    name,
                ),
            )
            gaining = sorted(self.gains(of) - choice, key=lambda name: (self.costs[name][of], name))
            for name in (*dearest, *gaining):
                if allowed is None or total <= allowed * (1 + 1e-9):
                    break
                total += self.costs[name][of] * (-1 if name in choice else 1)
                choice ^= {name}
        return choice

    def _is_needed(self, name: str) -> bool:
        """Whether an op of it does not fit in its own form."""
        budget_bytes = self.limits.ram_budget_bytes
        (touched,) = (each.touched for each in self.problem.alternatives if each.name == name)
        own = [self.ops[name] for name in touched]
        return budget_bytes is not None and most_at_once(self.problem, own) > budget_bytes

    def _needs_bytes(self, alternative: Alternative) -> float:
        return most_at_once(self.problem, alternative.ops, alternative=alternative)

    def _saved_bytes(self, alternative: Alternative) -> int:
        """By how much the tensors that its ops read are smaller than those that they read without it."""
        with_it = sizes_with(self.problem, self.sizes, alternative)
        before = sum(self.sizes[name] for op in alternative.touched for name in self.ops[op].inputs)
        return before - sum(with_it[name] for op in alternative.ops for name in op.inputs)


def least_with_transfers(problem: Problem, ram_budget_bytes: int | None = None) -> tuple[float, float]:
    """Seconds and joules, idle power included, below which no schedule of any choice is within the budget.

    Every op runs once; what begins in storage and is read in every choice is fetched once, what is updated
    and ends there is written once; and of each alternative, either it is taken, or what it spares is fetched.
    """
    plain = problem.resolved(())
    always = _in_every_choice(problem, lambda op: op.inputs)
    updated = _in_every_choice(problem, lambda op: op.updates)
    moved = [t.page_in for t in problem.tensors if t.name in always and t.initially is Place.STORAGE]
    moved += [t.page_out for t in problem.tensors if t.name in updated and t.finally_ is Place.STORAGE]
    costs = [_cost_of(problem, filter(None, moved)), (plain.compute_seconds, plain.compute_joules)]
    for each in problem.alternatives:
        extra, spared = problem.extra_cost(each), _spared(problem, each, ram_budget_bytes)
        costs.append((min(extra[SECONDS], spared[SECONDS]), min(extra[JOULES], spared[JOULES])))
    return math.fsum(seconds for seconds, _ in costs), math.fsum(joules for _, joules in costs)


def _in_every_choice(problem: Problem, tensors: Callable[[ProblemOp], Iterable[str]]) -> set[str]:
    """Those of the ``tensors`` of ops that are theirs whatever is taken."""
    forms = {op.name: op for each in problem.alternatives for op in each.ops}
    omitted = {name for each in problem.alternatives for name in each.omits}
    return {
        name
        for op in problem.ops
        if op.name not in omitted
        for name in tensors(op)
        if op.name not in forms or name in tensors(forms[op.name])
    }


def _spared(problem: Problem, alternative: Alternative, ram_budget_bytes: int | None) -> tuple[float, float]:
    """Seconds and joules, idle power included, of moving what ``alternative`` leaves in storage.

    That is what begins there and is read by no op but those in whose place the alternative's are: it is
    fetched at least once without it, and written once where these update it. Of what a plan may have at home
    in RAM, as much as the budget holds is left out, at the price of the dearest byte.
    """
    touched = frozenset(alternative.touched)
    own = {name for op in problem.ops if op.name in touched for name in op.inputs}
    other = {name for op in problem.ops if op.name not in touched for name in op.inputs}
    left = own - other - {name for op in alternative.ops for name in op.inputs}
    updated = {name for op in problem.ops if op.name in touched for name in op.updates}

    def moving(tensor: Tensor) -> tuple[float, float]:
        ends_there = tensor.finally_ is Place.STORAGE or tensor.initially is Place.EITHER
        returns = tensor.name in updated and ends_there
        return _cost_of(problem, filter(None, (tensor.page_in, tensor.page_out if returns else None)))

    sums = []
    for of in (SECONDS, JOULES):
        stored = [moving(t)[of] for t in problem.tensors if t.name in left and t.initially is Place.STORAGE]
        either = {
            t: moving(t)[of]
            for t in problem.tensors
            if t.name in left and t.initially is Place.EITHER and t.bytes
        }
        dearest = max((price / tensor.bytes for tensor, price in either.items()), default=0.0)
        in_ram = math.inf if ram_budget_bytes is None else dearest * ram_budget_bytes
        sums.append(math.fsum(stored) + max(0.0, math.fsum(either.values()) - in_ram))
    return sums[SECONDS], sums[JOULES]


def _cost_of(problem: Problem, transfers: Iterable[Transfer]) -> tuple[float, float]:
    """Seconds and joules that ``transfers`` add, idle power included; seconds only where a step waits."""
    moved = [*transfers]
    seconds = 0.0 if problem.background_storage else math.fsum(each.seconds for each in moved)
    return seconds, math.fsum(each.joules for each in moved) + problem.idle_watts * seconds
