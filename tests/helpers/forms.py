"""Random alternatives of ops, and the exhaustive oracle over all choices of them."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterator
from typing import Any

from helpers import oracle
from helpers.random_problems import mixed_problem, random_limits, random_pins, with_homes
from poet.errors import InputError
from poet.problem import Alternative, Limits, PageForm, Place, Problem, ProblemOp, Tensor, Transfer
from poet.problem.alternatives import with_names
from poet.problem.pins import permitted
from poet.problem.schedule import Schedule
from poet.problem.simulator import simulate


def with_alternatives(problem: Problem, seed: int, *, most: int = 2) -> Problem:
    """``problem`` with up to ``most`` alternatives: short forms to read later, smaller tensors, fused ops."""
    rng = random.Random(f"alternatives {problem.name} {seed}")
    made: list[Alternative] = []
    makers = [_short, _smaller, _fused]
    for number in range(6):
        rng.shuffle(makers)
        for maker in makers:
            found = None if len(made) == most else maker(problem, rng, f"form{number}")
            taken = {name for each in made for name in each.touched}
            sizes = {tensor.name for each in made for tensor in each.tensors}
            if (
                found is not None
                and not taken.intersection(found.touched)
                and not sizes.intersection(tensor.name for tensor in found.tensors)
                and not any({*op.outputs} & _made_by(problem, taken) for op in found.ops)
            ):
                made.append(found)
                break
    return dataclasses.replace(problem, alternatives=tuple(made))


def _made_by(problem: Problem, names: set[str]) -> set[str]:
    return {name for op in problem.ops if op.name in names for name in op.outputs}


def _priced(op: ProblemOp, rng: random.Random) -> ProblemOp:
    factor = rng.choice([0.7, 1.0, 1.1, 1.5])
    return dataclasses.replace(
        op, seconds=round(op.seconds * factor, 3), joules=round(op.joules * rng.choice([factor, 1.0]), 3)
    )


def _reading(op: ProblemOp, name: str, instead: tuple[str, ...]) -> ProblemOp:
    """``op`` reading ``instead`` of ``name``, on later runs as well."""

    def changed(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(new for old in names for new in (instead if old == name else (old,))))

    again = None if op.recompute_inputs is None else changed(op.recompute_inputs)
    return dataclasses.replace(op, inputs=changed(op.inputs), recompute_inputs=again)


def _pairs(problem: Problem, rng: random.Random) -> Iterator[tuple[ProblemOp, str, list[ProblemOp]]]:
    """An op, one of its outputs that nothing updates, and those that read it."""
    updated = {name for op in problem.ops for name in op.updates}
    found = [
        (op, name) for op in problem.ops for name in op.outputs if name not in updated and not op.updates
    ]
    rng.shuffle(found)
    for op, name in found:
        readers = [each for each in problem.ops if name in (*each.inputs, *each.rerun_inputs)]
        if readers and op not in readers and all(name not in each.outputs for each in readers):
            yield op, name, readers


def _short(problem: Problem, rng: random.Random, name: str) -> Alternative | None:
    """The maker of a tensor makes a small one as well, which the last reader reads instead."""
    for maker, tensor, readers in _pairs(problem, rng):
        size = next(each.bytes for each in problem.tensors if each.name == tensor)
        reader = readers[-1]
        small = Tensor(f"{tensor}.{name}", min(size, 1), Transfer(0.1, 0.1), Transfer(0.1, 0.1))
        forward = dataclasses.replace(_priced(maker, rng), outputs=(*maker.outputs, small.name))
        return Alternative(
            name, (forward, _priced(_reading(reader, tensor, (small.name,)), rng)), (), (small,)
        )
    return None


def _smaller(problem: Problem, rng: random.Random, name: str) -> Alternative | None:
    """A tensor takes fewer bytes, and its readers work longer."""
    for maker, tensor, readers in _pairs(problem, rng):
        own = next(each for each in problem.tensors if each.name == tensor)
        changed = (_priced(maker, rng), *(_priced(reader, rng) for reader in readers))
        return Alternative(name, changed, (), (dataclasses.replace(own, bytes=own.bytes // 2),))
    return None


def _fused(problem: Problem, rng: random.Random, name: str) -> Alternative | None:
    """An op that one other reads is left out, and that one reads what it read."""
    kept = {each.name for each in problem.tensors if each.finally_ is not None}
    updated = {each for op in problem.ops for each in op.updates}
    for maker, tensor, readers in _pairs(problem, rng):
        if len(maker.outputs) != 1 or len(readers) != 1 or tensor in kept or maker.random:
            continue
        if updated & {*maker.inputs, *maker.rerun_inputs} or maker.recompute_inputs is not None:
            continue
        return Alternative(name, (_priced(_reading(readers[0], tensor, maker.inputs), rng),), (maker.name,))
    return None


def with_page_forms(problem: Problem, seed: int, *, most: int = 3) -> Problem:
    """``problem`` with up to ``most`` tensors that have another form in storage: cheaper, dearer or both."""
    rng = random.Random(f"pages {problem.name} {seed}")
    changed = {tensor.name for each in problem.alternatives for tensor in each.tensors}

    def other(cost: Transfer) -> Transfer:
        return Transfer(
            round(cost.seconds * rng.choice([0.5, 0.8, 1.3]), 3),
            round(cost.joules * rng.choice([0.4, 0.8, 1.5]), 3),
        )

    found = [
        dataclasses.replace(
            tensor,
            page_in=other(tensor.page_in),
            page_out=other(tensor.page_out),
            page_form=None if tensor.bytes % 4 else PageForm.BF16,
            stored_bytes=tensor.bytes // 2,
        )
        for tensor in problem.tensors
        if tensor.page_in and tensor.page_out and tensor.initially is None and tensor.finally_ is None
        and tensor.name not in changed
    ]  # fmt: skip
    rng.shuffle(found)
    pages = tuple(Alternative(f"pages of {each.name}", (), tensors=(each,)) for each in found[:most])
    return dataclasses.replace(problem, alternatives=(*problem.alternatives, *pages))


def with_workspaces(problem: Problem, seed: int) -> Problem:
    """``problem`` with two ops that ask for memory of their own, and for less in another, dearer form."""
    rng = random.Random(f"workspaces {problem.name} {seed}")
    needy = {op.name: rng.choice([2, 5, 9]) for op in rng.sample(problem.ops, min(2, len(problem.ops)))}
    ops = tuple(
        dataclasses.replace(op, workspace_bytes=op.workspace_bytes + needy.get(op.name, 0))
        for op in problem.ops
    )
    lean = [op for op in problem.ops if op.name in needy]
    return dataclasses.replace(
        problem, ops=ops, alternatives=tuple(Alternative(op.name, (_priced(op, rng),)) for op in lean)
    )


def with_row_updates(problem: Problem, seed: int) -> Problem:
    """``problem`` between a look-up in a table and its update, which may read and write rows in storage."""
    rng = random.Random(f"rows {problem.name} {seed}")

    def cost() -> Transfer:
        return Transfer(rng.choice([0.2, 0.5, 1.0]), rng.choice([0.3, 0.6, 1.5]))

    home, ends = rng.choice([(Place.STORAGE, Place.STORAGE), (Place.EITHER, None)])
    parts = tuple(
        Tensor(f"rows{number}", rng.randint(1, 6), cost(), cost(), initially=home, finally_=ends)
        for number in range(rng.randint(1, 2))
    )
    table, looked_up = tuple(part.name for part in parts), Tensor("looked up", 2, cost(), cost())
    look = ProblemOp("look", table, ("looked up",), 0.4, 0.5)
    update = ProblemOp("update", ("looked up", *table), (), 0.3, 0.4, updates=table, recomputable=False)
    rows: dict[str, Any] = {"stored": table, "stored_reads": 2, "stored_read_bytes": 4}
    by_row = (
        ProblemOp("look", (), ("looked up",), 0.7, rng.choice([0.6, 1.2]), recomputable=False, **rows),
        ProblemOp(
            "update", ("looked up",), (), 0.8, rng.choice([0.6, 2.0]), recomputable=False, **rows,
            stored_updates=table, stored_writes=2, stored_written_bytes=rng.randint(1, 6),
        ),
    )  # fmt: skip
    return dataclasses.replace(
        problem,
        tensors=(*problem.tensors, *parts, looked_up),
        ops=(look, *problem.ops, update),
        alternatives=(*problem.alternatives, Alternative("rows", by_row)),
        storage_capacity_bytes=None,
        background_storage=False,
    )


def choices_of(problem: Problem) -> list[frozenset[str]]:
    """All of them, the empty one first."""
    names = [each.name for each in problem.alternatives]
    ways = itertools.product((False, True), repeat=len(names))
    return [frozenset(itertools.compress(names, way)) for way in ways]


def least_joules(problem: Problem, limits: Limits) -> Schedule | None:
    """`helpers.oracle.least_joules` over all choices of alternatives that allow the pins of ``limits``."""
    found: list[tuple[float, Schedule]] = []
    for choice in choices_of(problem):
        resolved = problem.resolved(choice)
        try:
            permitted(resolved, limits)
        except InputError:  # what a pin names is not there, or may not be held so
            continue
        schedule = oracle.least_joules(resolved, limits)
        if schedule is not None:
            joules = simulate(resolved, schedule, limits).joules
            found.append((joules, with_names(problem, choice, schedule)))
    return min(found, key=lambda pair: pair[0])[1] if found else None


def small_choice(seed: int) -> tuple[Problem, Limits]:
    """A step of 3 to 9 ops with one to three alternatives, in tight RAM, perhaps with pins and a deadline.

    Homes may be a choice of the plan, storage may be in the background, and some of it only read.
    """
    rng = random.Random(f"small choice {seed}")
    smallest = rng.choice([3, 3, 4, 5, 6, 8])
    problem = mixed_problem(seed, smallest=smallest, largest=min(9, smallest + 1))
    kind = rng.choice(["as it is", "homes", "read only"])
    if kind == "homes":
        problem = with_homes(problem, seed)
    elif kind == "read only":
        problem = _with_read_only(problem, rng)
    problem = with_alternatives(problem, seed, most=rng.choice([1, 1, 2, 3]))
    if not problem.alternatives:
        problem = with_workspaces(problem, seed)
    choices = choices_of(problem)
    limits = random_limits(problem.resolved(choices[-1]), seed, deadline=rng.random() < 0.3)
    if rng.random() < 0.35:
        limits = random_pins(problem.resolved(rng.choice(choices)), limits, seed)
    return problem, limits


def _with_read_only(problem: Problem, rng: random.Random) -> Problem:
    """``problem`` in which some of what is never updated is in storage for reading alone."""
    changed = {name for op in problem.ops for name in (*op.outputs, *op.updates)}

    def chosen(tensor: Tensor) -> Tensor:
        if tensor.name in changed or rng.random() < 0.3:
            return tensor
        begins = rng.choice([Place.STORAGE, Place.STORAGE, Place.BOTH])
        page_in = tensor.page_in or Transfer(0.3, 0.4)
        return dataclasses.replace(
            tensor, page_in=page_in, page_out=None, initially=begins, finally_=Place.STORAGE
        )

    return dataclasses.replace(problem, tensors=tuple(map(chosen, problem.tensors)))
