"""Groups of parameters that a plan may train, in a step that trains all of them; the plan of a set.

A set's step comes from the trace of that step, so that a set takes no new trace.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from poet.errors import Infeasible, InputError, OutOfTime
from poet.ir.named import block_of
from poet.planning.choice import Scores
from poet.planning.optional_step import optional_ops
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
