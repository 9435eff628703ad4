"""Which groups of parameters to train: the set that contributes most inside the limits, and a bound on all.

Logic-based Benders decomposition (Hooker and Ottosson 2003). The relaxation of
`poet.solvers.bounds.optional_ops` offers a set and bounds all of them; planning the step that trains the set
says whether it has a plan. Where it proves that there is none, no larger set has one, and the relaxation
leaves them out. Sets offered for smaller limits are likelier to have a plan, and give the first ones.

A set's step comes from the trace of the step that trains every group, so that a set takes no new trace. The
one that is taken is traced again by itself: its plan is that of the same ``train`` patterns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

from poet.baselines.choosing import by_score_per_byte
from poet.devices.costs import op_cost
from poet.errors import Infeasible, InputError, OutOfTime
from poet.ir.graph import Graph, Op
from poet.ir.named import block_of
from poet.planning.choice import Scores
from poet.planning.climbing import Climber
from poet.planning.planned import Planned, plan_step
from poet.planning.prepared import Prepared, training_less
from poet.plans.plan_parts import Choice
from poet.problem import Limits, Objective
from poet.problem.progress import stage, unshown
from poet.problem.schedule import Compute, Schedule
from poet.problem.solution import SolveOptions, Start
from poet.solvers import has_schedules
from poet.solvers.bounds.optional_ops import Groups, OptionalOps, Relaxation

PROVEN_SHARE = 1e-6
"""Of all scores: a set that contributes so little less than the bound is the best."""

PROVEN_JOULES = 1e-3
"""Likewise of the joules of a step, where these are what the least is sought of."""

_FIRST_SHRINK, _MOST_SHRINK = 0.02, 0.6
_OPEN = 1e-3  # of all scores: a relaxation that leaves more open was not solved in time
_FINAL_SHARE = 0.2  # of the time limit: for the plan of the set that is taken


@dataclass(frozen=True, slots=True)
class Tried:
    """What planning a set showed.

    Attributes:
        joules: of a step; ``None``: no plan was found.
        is_infeasible: it was proven that there is none.
        least_joules: no plan takes less.
        schedule: that was found; of a step whose names are not those of the step traced by itself.
    """

    joules: float | None
    is_infeasible: bool = False
    least_joules: float = 0.0
    schedule: Schedule | None = None
    planned: Planned | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """The best set of a search.

    Attributes:
        groups: numbers of those chosen.
        share: what they contribute.
        bound: as `poet.plans.plan_parts.Choice`.
        tried: what planning it showed.
        was_interrupted: Ctrl-C ended the search.
    """

    groups: Groups
    share: float
    bound: float
    tried: Tried
    was_interrupted: bool = False


Try = Callable[[Groups, float], Tried]
"""Plan a set within so many seconds."""


class Search:
    """A search for the best set of groups; `run` makes it."""

    def __init__(
        self,
        step: OptionalOps,
        limits: Limits,
        attempt: Try,
        options: SolveOptions,
        at_least: float | None,
    ) -> None:
        """Begin.

        Args:
            step: to choose from.
            limits: of a plan.
            attempt: plans a set.
            options: of the search; the time limit is that of all that is searched here.
            at_least: the share that is to be reached at least energy; ``None``: the most is asked for.
        """
        self.step, self.at_least, self._attempt = step, at_least, attempt
        self.clock, self._seconds = options.clock, options.time_limit_seconds
        self._began = self.clock.now()
        self.relaxation = Relaxation(step, limits, at_least=at_least)
        self.bound = 1.0 if at_least is None else 0.0
        self.best: Found | None = None
        self.tried: dict[Groups, Tried] = {}
        self._retried: set[Groups] = set()
        self._seeds: list[Groups] = []
        self._shrink = 0.0
        self._climber: Climber | None = None  # where the relaxation takes too long
        self._margin = 0.0
        self._beyond: list[Groups] = []

    def seeded(self, candidates: Candidates) -> Search:
        """The same search; where the first set has no plan, seeds are tried until one has."""
        self._seeds = candidates.seeds(self.relaxation) if self.at_least is None else []
        return self

    def run(self) -> Found:
        """The best set.

        Raises:
            Infeasible: no set of groups has a plan inside the limits.
            OutOfTime: none was found in time.
            KeyboardInterrupt: Ctrl-C, before one was found.
        """
        interrupted = False
        if not has_schedules(self.step.of(()), self.relaxation.limits):
            raise Infeasible(self._nothing_fits())
        try:
            for line in self._rounds():
                stage(line)
        except KeyboardInterrupt:
            interrupted = True
            if self.best is None:
                raise
        if self.best is None:
            raise OutOfTime("no set of groups was found that has a plan, nor a proof that there is none")
        return replace(self.best, bound=self.bound, was_interrupted=interrupted)

    # --- rounds ---

    def _rounds(self) -> Iterator[str]:
        """Look for sets until the best is proven or time is up; what there is to say after each."""
        while self._left() > 0 and not self._is_proven():
            groups = self._offered()
            if groups is None:
                return
            self._note(groups, self._tried(groups))
            yield self._words()

    def _offered(self) -> Groups | None:
        """The next set to plan; ``None``: there is none left."""
        if self._climber is not None and (climbed := self._climbed(self._climber)):
            return climbed
        answer = self.relaxation.solve(max(self._left() / 2, 0.1), clock=self.clock)
        is_most = self.at_least is None
        if answer.bound is None or (is_most and answer.bound <= PROVEN_SHARE):
            if self.best is None:
                raise Infeasible(self._nothing_fits())
            self.bound = self._amount(self.best)
            return None
        self.bound = min(self.bound, answer.bound) if is_most else max(self.bound, answer.bound)
        if self._is_proven():
            return None
        is_open = answer.chosen is None or self.step.share(answer.chosen) < answer.bound - _OPEN
        if is_most and is_open and self._climber is None:
            self._climber = Climber(self.step)
            if climbed := self._climbed(self._climber):
                return climbed
        if answer.chosen and not self._shrink and answer.chosen not in self.tried:
            return answer.chosen
        while self._seeds:
            seed = self._seeds.pop(0)
            if seed and seed not in self.tried and self._gains(seed):
                return seed
        while self._left() > 0:
            smaller = self.relaxation.solve(max(self._left() / 2, 0.1), shrink=self._shrink, clock=self.clock)
            if smaller.chosen and smaller.chosen not in self.tried and self._gains(smaller.chosen):
                return smaller.chosen
            if self._shrink == 0.0:  # what is left are sets in doubt
                break
            self._shrink = 0.0 if self._shrink < _FIRST_SHRINK / 8 else self._shrink / 2
        in_doubt = answer.chosen in self.tried and self.tried[answer.chosen].joules is None
        if answer.chosen is None or not in_doubt or answer.chosen in self._retried:
            return None
        self._retried.add(answer.chosen)
        return answer.chosen

    def _climbed(self, climber: Climber) -> Groups | None:
        """A set by local search, with a margin of joules for what small RAM adds."""
        limit = min(self.relaxation.limits.joules_budget or math.inf, climber.joules)
        start = frozenset() if self.best is None else self.best.groups
        while self._left() > 0 and self._margin < 1:
            groups = climber.climbed(limit * (1 - self._margin), start, self._is_beyond)
            if not groups or not self._gains(groups):
                if self._margin == 0.0:
                    return None
                self._margin = 0.0 if self._margin < _FIRST_SHRINK else self._margin / 2
            elif self.relaxation.admits(groups):
                return groups
            else:
                self._beyond.append(groups)
                self._margin = min(max(2 * self._margin, _FIRST_SHRINK), _MOST_SHRINK)
        return None

    def _is_beyond(self, groups: Groups) -> bool:
        return any(least <= groups for least in self._beyond)

    def _gains(self, groups: Groups) -> bool:
        """Whether a plan of ``groups`` could be better than the best."""
        is_most = self.at_least is None
        return not is_most or self.best is None or self.step.share(groups) > self.best.share + PROVEN_SHARE

    def _tried(self, groups: Groups) -> Tried:
        left = self._left()
        whole = left if self._seconds is None else self._seconds
        with unshown():
            seconds = left if groups in self._retried else min(left, max(whole / 8, left / 4, 1.0))
            self.tried[groups] = self._attempt(groups, seconds)
        return self.tried[groups]

    def _note(self, groups: Groups, tried: Tried) -> None:
        if tried.joules is not None:
            found = Found(groups, self.step.share(groups), self.bound, tried)
            if self.best is None or self._amount(found) * self._sign > self._amount(self.best) * self._sign:
                self.best, self._seeds = found, []
            self._shrink = 0.0 if self._shrink <= _FIRST_SHRINK else self._shrink / 2
            self._margin /= 2
            if self.at_least is not None:
                self.relaxation.takes(groups, tried.least_joules)
            return
        self.relaxation.forbid(groups, is_proven=tried.is_infeasible)
        self._beyond.append(groups)
        self._shrink = min(max(2 * self._shrink, _FIRST_SHRINK), _MOST_SHRINK)
        self._margin = min(max(2 * self._margin, _FIRST_SHRINK), _MOST_SHRINK)

    # --- amounts ---

    @property
    def _sign(self) -> int:
        return 1 if self.at_least is None else -1

    def _amount(self, found: Found) -> float:
        """What is sought the most or the least of."""
        return found.share if self.at_least is None else found.tried.joules or math.inf

    def _is_proven(self) -> bool:
        if self.best is None:
            return False
        if self.at_least is None:
            return self.best.share >= self.bound - PROVEN_SHARE
        return self._amount(self.best) <= self.bound * (1 + PROVEN_JOULES)

    def _left(self) -> float:
        if self._seconds is None:
            return math.inf
        return self._seconds - (self.clock.now() - self._began)

    def _words(self) -> str:
        at_most = "" if self.at_least is not None else f", at most {self.bound:.4g} is possible"
        if self.best is None:
            return f"choice: {len(self.tried)} sets without a plan{at_most}"
        return f"choice: {len(self.best.groups)} groups contribute {self.best.share:.4g}{at_most}"

    def _nothing_fits(self) -> str:
        what = "No group of parameters can be trained"
        if self.at_least is not None:
            what = f"No set of groups that contributes {self.at_least:g} can be trained"
        return f"{what} inside the limits."


# --- of a model ---


@dataclass(frozen=True, slots=True)
class Candidates:
    """A step that trains every group, and the groups as it names their parameters."""

    prepared: Prepared
    scores: Scores
    members: tuple[frozenset[str], ...]

    def names(self, groups: Collection[int]) -> frozenset[str]:
        """The parameters of ``groups``, and blocks of these."""
        return frozenset().union(*(self.members[group] for group in groups))

    def patterns(self, groups: Collection[int]) -> tuple[str, ...]:
        """What trains ``groups`` as ``train`` says it."""
        every = (pattern for group in sorted(groups) for pattern in self.scores.group[group].patterns)
        return tuple(dict.fromkeys(every))

    def optional(self) -> OptionalOps:
        """The step as the relaxation sees it."""
        return optional_ops(self.prepared, [*self.members], self.scores.shares)

    def seeds(self, relaxation: Relaxation) -> list[Groups]:
        """The set by score per byte, and smaller ones without its least scores."""
        graph, shares = self.prepared.step.graph, self.scores.shares
        sizes = {value.name: value.type.extent_bytes for value in graph.values}
        own = [sum(sizes.get(name, 0) for name in names) for names in self.members]
        greedy = by_score_per_byte(shares, own, relaxation.admits)
        ordered = sorted(greedy, key=lambda group: shares[group])
        return [frozenset(ordered[count:]) for count in (0, 1, 2, 4, 8, 16) if count < len(ordered)]

    def attempt(self, limits: Limits, options: SolveOptions, *, is_enough: bool) -> Try:
        """Planning of sets; ``is_enough``: any plan inside the limits is."""

        def planned(groups: Groups, seconds: float) -> Tried:
            enough = limits.joules_budget or math.inf
            asked = replace(
                options, time_limit_seconds=None if seconds == math.inf else seconds, progress=None
            )
            asked = replace(asked, enough_joules=enough, confirm=False) if is_enough else asked
            prepared = training_less(self.prepared, self.names(groups))
            try:
                found = plan_step(prepared, limits, asked)
            except Infeasible:
                return Tried(None, is_infeasible=True)
            except OutOfTime:
                return Tried(None)
            if found.solution.was_interrupted:
                raise KeyboardInterrupt
            schedule = None if prepared.step.forms is not None else found.solution.schedule
            return Tried(found.joules, False, found.solution.bound_joules, schedule, found)

        return planned


def candidates_of(prepared: Prepared, scores: Scores) -> Candidates:
    """The groups of ``scores`` in a step that trains all of them.

    Raises:
        InputError: a group has no parameter with a gradient, or two have the same.
    """
    from poet.frontend.module_tensors import trained_blocks

    source = prepared.step.source
    assert source is not None
    gradients, members = source.names.gradients, list[frozenset[str]]()
    owners: dict[str, str] = {}
    for group in scores.group:
        own = [name for name in trained_blocks(gradients, group.patterns) if gradients[block_of(name)[0]]]
        if not own:
            raise InputError(f"--choose: the loss gives no gradient to {group.words}; leave that group out")
        for name in own:
            whole, rows = block_of(name)
            for other in (key for key in owners if block_of(key)[0] == whole):
                there = block_of(other)[1]
                if rows is None or there is None or (rows[0] < there[1] and there[0] < rows[1]):
                    said = f"{group.words} and {owners[other]}"
                    raise InputError(f"--choose: {said} both have {name}; a parameter is in one group")
        owners |= dict.fromkeys(own, group.words)
        members.append(frozenset(own))
    return Candidates(prepared, scores, tuple(members))


def optional_ops(prepared: Prepared, members: list[frozenset[str]], shares: tuple[float, ...]) -> OptionalOps:
    """What of the step of ``prepared`` only some groups need, and the least that each op may take."""
    graph, profile = prepared.step.graph, prepared.profile
    parts = {part: whole.name for whole in graph.wholes for part in whole.parts}
    values = {value.name for value in graph.values}
    trained = {
        item.name if item.name in values else item.value: parts.get(item.name, item.name)
        for item in graph.parameters
        if item.gradient
    }
    updates = {
        op.name: {trained[name] for name in op.call.refs() if name in trained and op.updates}
        for op in graph.ops
    }
    always = [op for op in graph.ops if not updates[op.name] and _has_effect(graph, op)]
    base = _ancestors(graph, always)
    needs: dict[str, set[int]] = {op.name: set() for op in graph.ops if op.name not in base}
    for number, names in enumerate(members):
        for name in _ancestors(graph, [op for op in graph.ops if updates[op.name] & names]) - base:
            needs[name].add(number)
    least = {op.name: _least(graph, op, prepared) for op in graph.ops if len(_parts(op)) > 1}
    streams = prepared.kernels.library != profile.kernels.name or prepared.step.forms is not None
    return OptionalOps(
        problem=prepared.problem,
        shares=shares,
        needs={name: frozenset(groups) for name, groups in needs.items()},
        least_joules={name: joules for name, (joules, _) in least.items()},
        least_seconds={name: seconds for name, (_, seconds) in least.items()},
        spared_bytes={op.name: _spared_bytes(prepared, op, whole=streams) for op in graph.ops},
    )


def _has_effect(graph: Graph, op: Op) -> bool:
    """Whether the step needs ``op`` whatever is trained."""
    results = {graph.buffer_of(name) for name in (graph.loss, *graph.predictions)}
    lasting = graph.persistent()
    return op.random or bool(results & {*graph.writes(op)}) or any(name in lasting for name in op.updates)


def _ancestors(graph: Graph, roots: list[Op]) -> set[str]:
    """Names of ``roots`` and of the ops that what they read depends on."""
    found, wanted = {op.name for op in roots}, set[str]()
    for op in reversed(graph.ops):
        if op.name in found or wanted & {*graph.writes(op), *op.updates}:
            found.add(op.name)
            wanted |= {*graph.reads(op.call)}
    return found


def _parts(op: Op) -> list[int]:
    """Places of the outputs of an op whose last argument says which of them are wanted."""
    mask = op.call.args[-1] if op.call.args else None
    if not isinstance(mask, tuple) or not all(isinstance(item, bool) for item in mask):
        return []
    return [place for place, name in enumerate(op.outputs) if name is not None]


def _least(graph: Graph, op: Op, prepared: Prepared) -> tuple[float, float]:
    """Joules and seconds of the cheapest single output of ``op``."""
    costs = []
    for place in _parts(op):
        mask = tuple(number == place for number in range(len(op.outputs)))
        outputs = tuple(name if keep else None for name, keep in zip(op.outputs, mask, strict=True))
        alone = replace(op, call=replace(op.call, args=(*op.call.args[:-1], mask)), outputs=outputs)
        costs.append(op_cost(alone, graph, prepared.profile))
    return min(cost.joules for cost in costs), min(cost.seconds for cost in costs)


_PRODUCTS = ("convolution", "mm", "bmm", "addmm", "baddbmm")


def _spared_bytes(prepared: Prepared, op: Op, *, whole: bool) -> int:
    """By how much less ``op`` may hold in a step that trains less: a result written over an operand.

    With blocks chosen again for each step (``whole``), no workspace or result is sure.
    """
    graph, problem = prepared.step.graph, prepared.problem
    sizes = {item.name: problem.aligned_bytes(item.size_bytes) for item in graph.buffers}
    made, lasting = graph.writes(op), graph.persistent()
    workspace = problem.aligned_bytes(prepared.kernels.of(op.name).workspace_bytes)
    if whole:
        return workspace + sum(sizes[name] for name in made)
    apart = sum(sizes[name] for name in made) - max((sizes[name] for name in made), default=0)
    if any(word == op.call.target.split(".")[1].removesuffix("_backward") for word in _PRODUCTS):
        return workspace + apart
    operands = [sizes[name] for name in graph.reads(op.call) if name not in lasting]
    over = min(max(operands, default=0), max((sizes[name] for name in made), default=0))
    return workspace + apart + over


def renamed_schedule(schedule: Schedule, one: Prepared, other: Prepared) -> Schedule | None:
    """``schedule`` of one step with the names of another of the same build; ``None``: it is another."""
    ops, others = one.problem.ops, other.problem.ops
    if len(ops) != len(others):
        return None
    called = {a.name: b.name for a, b in zip(ops, others, strict=True)}
    held: dict[str, str] = {}
    for a, b in zip(ops, others, strict=True):
        held.update(zip((*a.inputs, *a.outputs), (*b.inputs, *b.outputs), strict=False))
    if any(not isinstance(step, Compute) and step.tensor not in held for step in schedule):
        return None
    return tuple(
        Compute(called[step.op]) if isinstance(step, Compute) else type(step)(held[step.tensor])
        for step in schedule
    )


def chosen(
    prepared: Prepared,
    scores: Scores,
    limits: Limits,
    options: SolveOptions,
    again: Callable[[tuple[str, ...]], Prepared],
    *,
    at_least: float | None,
) -> tuple[Prepared, SolveOptions, Choice]:
    """The step that trains the best set of groups, how to plan it, and what was chosen.

    Args:
        prepared: a step that trains all groups.
        scores: of the groups.
        limits: of a plan.
        options: of all searches together.
        again: the step that trains the parameters of some patterns.
        at_least: see `Search`.

    Raises:
        InputError: a group fits no parameter, or another objective than energy is asked for.
        Infeasible, OutOfTime: as `Search.run`.
    """
    if options.objective is not Objective.ENERGY:
        raise InputError("--choose takes the least energy among plans; leave --minimise out")
    stage("choice")
    candidates = candidates_of(prepared, scores)
    began, seconds = options.clock.now(), options.time_limit_seconds
    inner = replace(options, time_limit_seconds=None if seconds is None else seconds * (1 - _FINAL_SHARE))
    attempt = candidates.attempt(limits, options, is_enough=at_least is None)
    search = Search(candidates.optional(), limits, attempt, inner, at_least)
    found = search.seeded(candidates).run()
    spent = options.clock.now() - began
    step = again(candidates.patterns(found.groups))  # an import, which no limit counts
    start = Start()
    if found.tried.schedule is not None and found.tried.planned is not None:
        schedule = renamed_schedule(found.tried.schedule, found.tried.planned.prepared, step)
        start = Start(schedule, "the search for what to train") if schedule is not None else start
    if seconds is not None:
        seconds = max(seconds - spent, 1.0 if found.was_interrupted else _FINAL_SHARE * seconds)
    made = Choice(
        groups=tuple(scores.group[group].words for group in sorted(found.groups)),
        candidates=len(scores.group),
        contribution=min(found.share, 1.0),
        bound=found.bound,
        at_least=at_least,
    )
    return step, replace(options, start=start, time_limit_seconds=seconds), made
