"""Where tensors are at home between steps, when that is the plan's choice.

A tensor that begins in ``Place.EITHER`` is at home in RAM or in storage, and is there when the step
ends again, so that the step can be repeated. A schedule says which by what it does with the tensor
first: at home in storage is what it reads before all else, or never touches.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import replace

from poet.problem import Place, Problem, Tensor
from poet.schedule import Compute, PageIn, Schedule


def undecided(problem: Problem) -> tuple[str, ...]:
    """The tensors whose home a plan chooses."""
    return tuple(tensor.name for tensor in problem.tensors if tensor.initially is Place.EITHER)


def settle(problem: Problem, in_storage: Container[str]) -> Problem:
    """``problem`` with every home decided: storage for the names given, RAM for the other choices.

    What no op updates has a valid copy in storage in both cases.
    """
    return settle_some(problem, in_storage=in_storage, in_ram=undecided(problem))


def settle_some(problem: Problem, *, in_storage: Container[str] = (), in_ram: Container[str] = ()) -> Problem:
    """``problem`` with the homes of these tensors decided; ``in_storage`` goes before ``in_ram``."""
    if not undecided(problem):
        return problem
    updated = {name for op in problem.ops for name in op.updates}

    def at_home(tensor: Tensor) -> Tensor:
        name, changes = tensor.name, tensor.name in updated
        if tensor.initially is Place.EITHER and name in in_storage:
            return replace(tensor, initially=Place.STORAGE, finally_=Place.STORAGE if changes else None)
        if tensor.initially is Place.EITHER and name in in_ram:
            return replace(tensor, initially=Place.RAM if changes else Place.BOTH, finally_=Place.RAM)
        return tensor

    return replace(problem, tensors=tuple(at_home(tensor) for tensor in problem.tensors))


def settled(problem: Problem, schedule: Schedule) -> Problem:
    """``problem`` with every home as ``schedule`` has it."""
    choices = undecided(problem)
    return settle(problem, stored_between_steps(problem, schedule, choices)) if choices else problem


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
    choices = undecided(problem)
    stored = stored_between_steps(problem, schedule, choices)
    return {name: (Place.STORAGE if name in stored else Place.RAM).value for name in choices}
