"""Which optional ops a step can have inside its limits: a relaxation with a choice of groups.

An op that only groups of updates need runs if one of them is chosen. Columns are ``u[g]``, 1 where group g is
*not* chosen, and per set of groups that need the same ops ``y``, 1 where these run. For each tensor, ``k[m]``
says that it stays in RAM from its event m (an op that makes or reads it) to the next, ``a[m]`` that it is
computed again or paged in for event m. With w[t] an op's workspace:

    y ≥ 1 − u[g]                     of each group g that needs its ops                 (activity)
    y[m] ≤ k[m−1] + a[m],   k[m] ≤ k[m−1] + y[m]                                       (presence)
    Σ b·k across t + (Σ b of what t touches + w[t])·y[t] ≤ B                            (RAM)
    Σ joules·y + Σ price·a ≤ joules                                                     (energy, time alike)

A run that brings a tensor back takes no RAM of its own and finds its inputs, and page-outs are free, so that
every schedule of a chosen set is a solution that costs no more: the optimum bounds all sets. Retention
intervals as in MOCCASIN (Bartan et al. 2023); groups that share their ancestors as in ElasticTrainer (Huang
et al. 2023), whose dynamic program over times stands in place of this program.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from poet.problem import Limits, Place, Problem, ProblemOp, Tensor
from poet.solvers.engines.highs import LinearProgram, run_highs
from poet.solvers.engines.program import NOUGHT, ONE, Effort, Job, Matrix, MatrixBuilder, Term
from poet.util.clock import WALL, Clock

Groups = frozenset[int]
_SLACK = 1e-9  # of limits, relative: rounding never refuses a set


@dataclass(frozen=True, slots=True)
class OptionalOps:
    """A step of which some ops are optional.

    Attributes:
        problem: the step with all of them.
        shares: per group what it contributes.
        needs: the groups that need an op, by its name; ops that are not named always run.
        least: joules and seconds of an op that may do less where some groups are not chosen.
        spared_bytes: likewise by how much less it may hold.
    """

    problem: Problem
    shares: Sequence[float]
    needs: Mapping[str, Groups]
    least: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    spared_bytes: Mapping[str, int] = field(default_factory=dict)

    def of(self, chosen: Collection[int]) -> Problem:
        """The problem of the chosen groups, where ops do the same whatever is chosen."""
        left = [op for op in self.problem.ops if self.runs(op, chosen)]
        used = {name for op in left for name in (*op.inputs, *op.outputs, *op.rerun_inputs, *op.stored)}
        made = {name for op in self.problem.ops for name in op.outputs}
        tensors = (t for t in self.problem.tensors if t.name in used or t.name not in made)
        return replace(self.problem, ops=tuple(left), tensors=tuple(tensors))

    def runs(self, op: ProblemOp, chosen: Collection[int]) -> bool:
        """Whether ``op`` does where ``chosen`` groups are."""
        return op.name not in self.needs or not self.needs[op.name].isdisjoint(chosen)

    def cost(self, op: ProblemOp) -> tuple[float, float]:
        """Joules, idle power included, and seconds that a run of ``op`` takes at least."""
        joules, seconds = self.least.get(op.name, (op.joules, op.seconds))
        return joules + self.problem.idle_watts * seconds, seconds

    def share(self, chosen: Iterable[int]) -> float:
        """What ``chosen`` groups contribute."""
        return math.fsum(self.shares[group] for group in chosen)


class Relaxation:
    """The program for one kind of question; cuts are added as sets turn out to be beyond the limits."""

    def __init__(self, step: OptionalOps, limits: Limits, *, at_least: float | None = None) -> None:
        """Lay it out.

        Args:
            step: what is chosen from.
            limits: of a step.
            at_least: the share that is to be reached at least energy; ``None``: the most is asked for.
        """
        self.step, self.limits, self.at_least = step, limits, at_least
        self._builder = MatrixBuilder()
        most = at_least is None
        self.off = [self._builder.column(share if most else 0.0) for share in step.shares]
        self._active: dict[Groups, int] = {}
        self._joules, self._seconds = defaultdict[int, float](float), defaultdict[int, float](float)
        self._limited: dict[int, float] = {}
        for op in step.problem.ops:
            self._charge(self._activity(op), *step.cost(op))
        self._hold()
        self._beyond: list[Groups] = []
        self._doubts: list[int] = []
        self._linear: LinearProgram | None = None
        limited = (self._seconds, limits.deadline_seconds), (self._joules, limits.joules_budget)
        for amounts, limit in limited:
            if limit is not None:
                self._limited[self._builder.row(_terms(amounts), limit * (1 + _SLACK))] = limit
        if at_least is not None:
            self._builder.row(
                zip(step.shares, self.off, strict=True), step.share(range(len(self.off))) - at_least + 1e-9
            )
            self._amount_joules = math.fsum(self._joules.values()) or 1.0
            self._amount = self._builder.column(self._amount_joules, integer=False)
            self._builder.row([*_terms(self._joules), (-self._amount_joules, self._amount)], 0.0)

    def _charge(self, column: int, joules: float, seconds: float) -> None:
        self._joules[column] += joules
        self._seconds[column] += seconds

    def _activity(self, op: ProblemOp) -> int:
        """The column of whether ``op`` runs."""
        if op.name not in self.step.needs:
            return ONE
        groups = self.step.needs[op.name]
        if groups not in self._active:
            column = self._active[groups] = self._builder.column(integer=False)
            for group in groups:
                self._builder.row([(-1.0, column), (-1.0, self.off[group])], -1.0)
        return self._active[groups]

    def _hold(self) -> None:
        """Presence and RAM."""
        problem, builder = self.step.problem, self._builder
        activity = [self._activity(op) for op in problem.ops]
        events: dict[str, list[int]] = {tensor.name: [] for tensor in problem.tensors}
        for place, op in enumerate(problem.ops):
            for name in dict.fromkeys((*op.inputs, *op.outputs)):
                events[name].append(place)
        across: list[list[Term]] = [[] for _ in problem.ops]
        for tensor in problem.tensors:
            size_bytes = problem.aligned_bytes(tensor.bytes)
            if size_bytes and events[tensor.name]:
                self._tensor(tensor, size_bytes, events[tensor.name], activity, across)
        if self.limits.ram_budget_bytes is None:
            return
        sizes = {tensor.name: problem.aligned_bytes(tensor.bytes) for tensor in problem.tensors}
        for place, op in enumerate(problem.ops):
            own = sum(sizes[name] for name in {*op.inputs, *op.outputs})
            own += problem.aligned_bytes(op.workspace_bytes) - self.step.spared_bytes.get(op.name, 0)
            budget_bytes = self.limits.ram_budget_bytes
            row = builder.row([(max(own, 0), activity[place]), *across[place]], budget_bytes)
            self._limited[row] = budget_bytes

    def _tensor(
        self,
        tensor: Tensor,
        size_bytes: int,
        events: Sequence[int],
        activity: Sequence[int],
        across: Sequence[list[Term]],
    ) -> None:
        """The columns and rows of one tensor; the end of the step is an event where its content stays in RAM.

        A tensor that no op makes does not exist where none of the ops that touch it run.
        """
        builder, ops, name = self._builder, self.step.problem.ops, tensor.name
        is_made = name in ops[events[0]].outputs
        maker = ops[events[0]] if is_made and ops[events[0]].recomputable else None
        before = NOUGHT
        if not is_made and tensor.initially is not Place.STORAGE:
            before = self._kept(size_bytes, range(events[0]), across, [(-1.0, ONE)])
        places = [*events, *([len(ops)] if tensor.finally_ is Place.RAM else [])]
        for number, (place, after) in enumerate(itertools.zip_longest(places, places[1:])):
            now = activity[events[0]] if place == len(ops) else activity[place]
            if number or not is_made:
                brought = self._brought(tensor, maker)
                builder.row([(1.0, now), (-1.0, before), (-1.0, brought)], 0.0)
            if after is None:
                break
            maker = ops[place] if name in ops[place].updates else maker
            before = self._kept(size_bytes, range(place + 1, after), across, [(-1.0, now), (-1.0, before)])

    def _kept(
        self, size_bytes: int, moments: range, across: Sequence[list[Term]], present: list[Term]
    ) -> int:
        """A column of whether a tensor that may be ``present`` stays in RAM through these ``moments``."""
        column = self._builder.column(integer=False)
        self._builder.row([(1.0, column), *present], 0.0)
        for moment in moments:
            across[moment].append((size_bytes, column))
        return column

    def _brought(self, tensor: Tensor, maker: ProblemOp | None) -> int:
        """A column that brings a tensor back in the cheapest way; `NOUGHT`: there is none."""
        ways = [self.step.cost(maker)] if maker is not None and self.limits.recompute else []
        moves = {tensor.initially, tensor.finally_} & {Place.STORAGE, Place.EITHER}
        if tensor.page_in is not None and (self.limits.paging or moves):
            problem = self.step.problem  # of transfers beside compute only their own joules are sure
            seconds = 0.0 if problem.background_storage else tensor.page_in.seconds
            ways.append((tensor.page_in.joules + problem.idle_watts * seconds, seconds))
        if not ways:
            return NOUGHT
        column = self._builder.column(integer=False)
        self._charge(column, *map(min, zip(*ways, strict=True)))
        return column

    # --- cuts and questions ---

    def forbid(self, chosen: Collection[int], *, is_proven: bool = True) -> None:
        """No solution has all of ``chosen``: they are beyond the limits, and more would be too.

        Without a proof of that (``is_proven``), only those who do not ask for a bound leave them out.
        """
        row = self._builder.row([(-1.0, self.off[group]) for group in chosen], -1.0)
        self._beyond.append(frozenset(chosen))
        self._doubts += [] if is_proven else [row]

    def forbids(self, groups: Groups) -> bool:
        """Whether all of some set that is beyond the limits, or in doubt, are among ``groups``."""
        return any(least <= groups for least in self._beyond)

    def takes(self, chosen: Collection[int], joules: float) -> None:
        """Solutions with all of ``chosen`` take at least so many ``joules``."""
        joules = min(joules, self._amount_joules)
        terms = [(-joules, self.off[group]) for group in chosen]
        self._builder.row([(-self._amount_joules, self._amount), *terms], -joules)

    def admits(self, chosen: Collection[int]) -> bool:
        """Whether the relaxation has a solution in fractions with exactly these groups."""
        if self._linear is None:
            self._linear = LinearProgram(self._matrix(None))
        self._linear.fix({column: int(group not in chosen) for group, column in enumerate(self.off)})
        return self._linear.minimise(math.inf).bound < math.inf

    def solve(
        self, seconds: float, *, shrink: float | None = None, clock: Clock = WALL
    ) -> tuple[Groups | None, float | None]:
        """The best set as far as the relaxation knows, and a bound that holds for all sets.

        No set contributes more, or takes fewer joules where these are asked for. Without a set none was found
        in time, without a bound none is within the limits.

        Args:
            seconds: at most.
            shrink: the share by which limits are smaller, for sets that are likelier to have a plan, none of
                which is in doubt; the bound holds for these alone. ``None``: of all sets.
            clock: that counts.
        """
        effort = Effort(seconds, relative_gap=1e-6, clock=clock)
        outcome = run_highs(Job(self._matrix(shrink), effort))
        if outcome.interrupted:
            raise KeyboardInterrupt
        if outcome.infeasible:
            return None, None
        every = range(len(self.off))
        bound = max(outcome.bound_joules, 0.0)
        if self.at_least is None:
            bound = min(self.step.share(every) - bound, self.step.share(every))
        if outcome.values is None:
            return None, bound
        return frozenset(g for g in every if outcome.values[self.off[g]] < 0.5), bound

    def _matrix(self, shrink: float | None) -> Matrix:
        """The program for the question of `solve`."""
        made = self._builder.matrix()
        for row, limit in self._limited.items():
            made.at_most[row] -= (shrink or 0.0) * limit
        if shrink is None:
            made.at_most[self._doubts] = 0.0  # which any set keeps
        return made


def _terms(amounts: Mapping[int, float]) -> list[Term]:
    return [(amount, column) for column, amount in amounts.items()]
