"""Groups of parameters that a plan may train, in a step that trains all of them.

The step of a set of groups comes from the trace of that step. What only some groups need, and the least that
each op may take, is what a relaxation over all sets is made of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from poet.devices.costs import op_cost
from poet.errors import Infeasible, InputError, OutOfTime
from poet.ir.graph import Graph, Op
from poet.ir.named import block_of
from poet.planning.choice import Scores
from poet.planning.planned import Planned, plan_step
from poet.planning.prepared import Prepared, training_less
from poet.problem import Limits
from poet.problem.solution import SolveOptions
from poet.solvers.bounds.optional_ops import Groups, OptionalOps


@dataclass(frozen=True, slots=True)
class Tried:
    """What planning a set showed.

    Attributes:
        joules: of a step; ``None``: no plan was found.
        is_infeasible: it was proven that there is none.
        least_joules: no plan takes less.
        planned: the plan; of a step whose names are not those of the step traced by itself.
    """

    joules: float | None
    is_infeasible: bool = False
    least_joules: float = 0.0
    planned: Planned | None = None


Try = Callable[[Groups, float], Tried]
"""Plan a set within so many seconds."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """A step that trains every group, and the groups as it names their parameters."""

    prepared: Prepared
    scores: Scores
    members: tuple[frozenset[str], ...]

    def patterns(self, groups: Collection[int]) -> tuple[str, ...]:
        """What trains ``groups`` as ``train`` says it."""
        every = (pattern for group in sorted(groups) for pattern in self.scores.group[group].patterns)
        return tuple(dict.fromkeys(every))

    def optional(self) -> OptionalOps:
        """What of the step only some groups need, and the least that each op may take."""
        return _optional_ops(self)

    def attempt(self, limits: Limits, options: SolveOptions, *, is_enough: bool) -> Try:
        """Planning of sets; ``is_enough``: any plan inside the limits is."""

        def planned(groups: Groups, seconds: float) -> Tried:
            enough = limits.joules_budget or math.inf
            asked = replace(
                options, time_limit_seconds=None if seconds == math.inf else seconds, progress=None
            )
            asked = replace(asked, enough_joules=enough, confirm=False) if is_enough else asked
            names = frozenset[str]().union(*(self.members[group] for group in groups))
            prepared = training_less(self.prepared, names)
            try:
                found = plan_step(prepared, limits, asked)
            except Infeasible:
                return Tried(None, is_infeasible=True)
            except OutOfTime:
                return Tried(None)
            if found.solution.was_interrupted:
                raise KeyboardInterrupt
            return Tried(found.joules, False, found.solution.bound_joules, found)

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


def _optional_ops(candidates: Candidates) -> OptionalOps:
    prepared = candidates.prepared
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
    for number, names in enumerate(candidates.members):
        for name in _ancestors(graph, [op for op in graph.ops if updates[op.name] & names]) - base:
            needs[name].add(number)
    streams = prepared.kernels.library != profile.kernels.name or prepared.step.forms is not None
    return OptionalOps(
        problem=prepared.problem,
        shares=candidates.scores.shares,
        needs={name: frozenset(groups) for name, groups in needs.items()},
        least={op.name: _least(graph, op, prepared) for op in graph.ops if len(_parts(op)) > 1},
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
