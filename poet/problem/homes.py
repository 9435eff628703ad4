"""Where tensors lie between steps, when that is the plan's choice.

A tensor that begins in ``Place.EITHER`` lies between steps in RAM or in storage (its *home*), and is there
when the step ends again, so that the step can be repeated. A schedule says which by what it does with the
tensor first: in storage is what it reads before all else, or never touches.

A problem whose homes are decided has a type of its own, `DecidedProblem`: what replays or reports a
schedule takes that one, and it is decided once, where a schedule meets its problem.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import replace
from typing import NewType

from poet.errors import ProblemError
from poet.problem import Place, Problem, Tensor
from poet.problem.alternatives import chosen_by
from poet.problem.schedule import Compute, PageIn, Schedule

DecidedProblem = NewType("DecidedProblem", Problem)
"""A problem that leaves no home to the plan; made by `decide`, `decided` or `as_decided` only."""


def as_decided(problem: Problem) -> DecidedProblem:
    """``problem`` itself, which leaves no home to the plan.

    Raises:
        ProblemError: it does.
    """
    if problem.alternatives:
        raise ProblemError(
            f"{problem.name}: whether {problem.alternatives[0].name} is taken is not decided; a schedule "
            "decides it: use poet.problem.alternatives.chosen_by(problem, schedule)"
        )
    if problem.chooses_units:
        raise ProblemError(
            f"{problem.name}: on which units its ops run is not decided; a schedule decides it: "
            "use poet.problem.alternatives.chosen_by(problem, schedule)"
        )
    if choices := undecided(problem):
        raise ProblemError(
            f"{problem.name}: the home of {choices[0]} is not decided; a schedule decides it: "
            "use poet.problem.homes.decided(problem, schedule)"
        )
    return DecidedProblem(problem)


def undecided(problem: Problem) -> tuple[str, ...]:
    """The tensors whose home a plan chooses."""
    return tuple(tensor.name for tensor in problem.tensors if tensor.initially is Place.EITHER)


def decide(problem: Problem, in_storage: Container[str]) -> DecidedProblem:
    """``problem`` with every home decided: storage for the names given, RAM for the other choices.

    What no op updates has a valid copy in storage in both cases; what ops write rows of is in storage.
    """
    return as_decided(decide_some(problem, in_storage=in_storage, in_ram=undecided(problem)))


def decide_some(problem: Problem, *, in_storage: Container[str] = (), in_ram: Container[str] = ()) -> Problem:
    """``problem`` with the homes of these tensors decided; ``in_storage`` goes before ``in_ram``."""
    if not undecided(problem):
        return problem
    updated = {name for op in problem.ops for name in op.updates}
    by_row = {name for op in problem.ops for name in op.stored_updates}

    def at_home(tensor: Tensor) -> Tensor:
        name, changes = tensor.name, tensor.name in updated | by_row
        if tensor.initially is Place.EITHER and (name in in_storage or name in by_row):
            return replace(tensor, initially=Place.STORAGE, finally_=Place.STORAGE if changes else None)
        if tensor.initially is Place.EITHER and name in in_ram:
            return replace(tensor, initially=Place.RAM if changes else Place.BOTH, finally_=Place.RAM)
        return tensor

    return replace(problem, tensors=tuple(at_home(tensor) for tensor in problem.tensors))


def decided(problem: Problem, schedule: Schedule) -> DecidedProblem:
    """``problem`` with every home as ``schedule`` has it."""
    choices = undecided(problem)
    if not choices and not problem.alternatives and not problem.chooses_units:
        return DecidedProblem(problem)
    return decide(problem, stored_between_steps(problem, schedule, choices))


def stored_between_steps(problem: Problem, schedule: Schedule, names: Iterable[str]) -> frozenset[str]:
    """Those of ``names`` that ``schedule`` first reads from storage, or never touches."""
    inputs = {op.name: op.inputs for op in problem.ops}
    stored, left = set[str](), set(names)
    for step in schedule:
        touched = set(inputs.get(step.op, ())) if isinstance(step, Compute) else {step.tensor}
        if isinstance(step, PageIn):
            stored |= touched & left
        left -= touched
        if not left:
            break
    return frozenset(stored | left)


def homes_of(problem: Problem, schedule: Schedule) -> dict[str, str]:
    """Where ``schedule`` keeps between steps what it had to choose a home for: ``ram`` or ``storage``."""
    problem, schedule = chosen_by(problem, schedule)
    choices = undecided(problem)
    stored = stored_between_steps(problem, schedule, choices)
    return {name: (Place.STORAGE if name in stored else Place.RAM).value for name in choices}
