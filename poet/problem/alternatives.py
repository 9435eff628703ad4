"""Which alternatives of a problem a schedule takes, and a problem that bounds all choices.

A schedule names the alternative in whose form each op runs, on first and later runs alike, or a tensor is
paged out. Judged and
reported is the problem in which that choice is made, `poet.problem.Problem.resolved`, which has no more of
them.
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from poet.errors import InvalidSchedule
from poet.problem import Alternative, Problem, ProblemOp, Tensor, Transfer
from poet.problem.schedule import Compute, PageOut, Schedule, Step
from poet.problem.units import placed_by


def taken_by(problem: Problem, schedule: Schedule) -> frozenset[str]:
    """Names of the alternatives that ``schedule`` takes.

    Raises:
        InvalidSchedule: a step names an alternative that its op or page does not have, or the form that it is
            in is not that of the other steps of an alternative (rule ``alternative``).
    """
    owner = {name: each.name for each in problem.alternatives for name in each.touched}
    pages = {name: each for each, names in _forms_of_pages(problem).items() for name in names}
    own = {op.name for op in problem.ops}
    named = [(index, step) for index, step in enumerate(schedule) if isinstance(step, Compute | PageOut)]
    taken = {step.alternative for _, step in named if step.alternative}
    for index, step in named:
        if isinstance(step, PageOut):
            of, what, verb, is_known = pages.get(step.tensor), f"the page of {step.tensor}", "is not", True
        else:
            of, what, verb, is_known = owner.get(step.op), f"op {step.op}", "does not run", step.op in own
        if step.alternative is not None and step.alternative != of and is_known:
            raise _wrong(index, f"{what} has no alternative {step.alternative!r}")
        if step.alternative is None and of in taken:
            raise _wrong(index, f"{what} {verb} as alternative {of} has it, which other steps do")
    return frozenset(name for name in taken if name is not None)


def _forms_of_pages(problem: Problem) -> dict[str, tuple[str, ...]]:
    """The alternatives that are forms of pages, by name, and the tensors that each is of."""
    return {
        each.name: tuple(tensor.name for tensor in each.tensors)
        for each in problem.alternatives
        if not each.ops
    }


def _wrong(step: int, message: str) -> InvalidSchedule:
    return InvalidSchedule(f"step {step}: {message}", rule="alternative", step=step)


def chosen_by(problem: Problem, schedule: Schedule) -> tuple[Problem, Schedule]:
    """The problem with the choice of ``schedule``, and the schedule for it: no alternatives, no units.

    Raises:
        InvalidSchedule: see `taken_by` and `poet.problem.units.assigned_by`.
    """
    if problem.alternatives:
        problem, schedule = problem.resolved(taken_by(problem, schedule)), without_names(schedule)
    return placed_by(problem, schedule)


def without_names(schedule: Schedule) -> Schedule:
    """``schedule`` of the problem in which its choice is made."""
    return tuple(
        replace(step, alternative=None) if isinstance(step, Compute | PageOut) and step.alternative else step
        for step in schedule
    )


def with_names(problem: Problem, taken: Collection[str], schedule: Schedule) -> Schedule:
    """A schedule of ``problem`` of one for ``problem.resolved(taken)``."""
    owner = {op.name: each.name for each in problem.alternatives if each.name in taken for op in each.ops}
    forms = _forms_of_pages(problem).items()
    pages = {name: each for each, names in forms if each in taken for name in names}

    def named(step: Step) -> Step:
        if isinstance(step, Compute) and step.op in owner:
            return replace(step, alternative=owner[step.op])
        return PageOut(step.tensor, pages.get(step.tensor)) if isinstance(step, PageOut) else step

    return tuple(map(named, schedule))


@dataclass(frozen=True, slots=True)
class Relaxed:
    """A problem without alternatives that takes no more than any choice, but for what each choice adds.

    Attributes:
        problem: its ops read what they read in every form, ask for the least workspace, time and energy; what
            exists in some forms only is not there.
        seconds, joules: of running every op once, that its ops leave out: each form of an alternative's ops
            takes at least as much more than they do, together. Idle power is among the joules.
    """

    problem: Problem
    seconds: float
    joules: float


def relaxed(problem: Problem) -> Relaxed:
    """The relaxation of ``problem`` over all choices.

    Where an alternative makes a compressed activation beside the full tensor, some ops then read it instead.
    A plan that does not take it has both as two pieces of the full tensor: the compressed one is there, and
    the full one is smaller by its bytes. Of other alternatives, what exists in some forms only is not there.

    Every schedule of every choice, without its steps on what is not there, is then one of the relaxed
    problem: no op needs more there, nothing is larger or more expensive. First runs of an alternative's
    ops cost their sum in one of two forms, which is at least the least sum.
    """
    problem = problem.at_least() if problem.chooses_units else problem
    ops: dict[str, ProblemOp | None] = {op.name: op for op in problem.ops}
    tensors: dict[str, Tensor] = {tensor.name: tensor for tensor in problem.tensors}
    omitted = {name for each in problem.alternatives for name in each.omits}
    in_forms = {name for names in _forms_of_pages(problem).values() for name in names}
    for alternative in problem.alternatives:
        split = _split(problem, alternative)
        if split is not None and split[0].name in in_forms:
            split = None
        if split is not None:
            tensors |= {tensor.name: tensor for tensor in split}
        for op in alternative.ops:
            own = ops[op.name]
            assert own is not None
            ops[op.name] = _least_op(own, op) if split is None else _least_costs(op, own)
        for tensor in () if split else alternative.tensors:
            if tensor.name in tensors:
                tensors[tensor.name] = _least_tensor(tensors[tensor.name], tensor)
    kept = [op for name, op in ops.items() if op is not None and name not in omitted]
    made = {name for op in kept for name in op.outputs}
    lost = {name for op in problem.ops for name in op.outputs} - made
    kept = [_without(op, lost) for op in kept]
    left = replace(
        problem,
        ops=tuple(kept),
        tensors=tuple(tensor for name, tensor in tensors.items() if name not in lost),
        alternatives=(),
    )
    return Relaxed(left, *_left_out(problem, {op.name: op for op in left.ops}))


def _left_out(problem: Problem, least: Mapping[str, ProblemOp]) -> tuple[float, float]:
    """Seconds and joules by which the cheaper form of each alternative's ops is above the least of each op.

    Where storage works in the background a step need not last longer for it: joules beside idle power alone.
    """
    idle_watts = 0.0 if problem.background_storage else problem.idle_watts
    seconds, joules = [], []
    for alternative in problem.alternatives:
        touched = frozenset(alternative.touched)
        own = [op for op in problem.ops if op.name in touched]
        both = [least[op.name] for op in own if op.name in least]
        lasts = min(_seconds(own), _seconds(alternative.ops)) - _seconds(both)
        forms = (_joules(own, idle_watts), _joules(alternative.ops, idle_watts))
        seconds.append(max(0.0, lasts))
        joules.append(max(0.0, min(forms) - _joules(both, idle_watts)))
    return (0.0 if problem.background_storage else math.fsum(seconds)), math.fsum(joules)


def _seconds(ops: Iterable[ProblemOp]) -> float:
    return math.fsum(op.seconds for op in ops)


def _joules(ops: Iterable[ProblemOp], idle_watts: float) -> float:
    return math.fsum(op.joules + idle_watts * op.seconds for op in ops)


def _split(problem: Problem, alternative: Alternative) -> tuple[Tensor, Tensor] | None:
    """The full tensor without the compressed one's bytes, and the compressed one, at least prices.

    ``None`` where ops are left out, or the alternative does not compress exactly one tensor.
    """
    known = {tensor.name: tensor for tensor in problem.tensors}
    own = {op.name: op for op in problem.ops}
    new = [tensor for tensor in alternative.tensors if tensor.name not in known]
    if alternative.omits or len(new) != 1 or len(alternative.tensors) > 1:
        return None
    short, makers, long = new[0], [], set[str]()
    for op in alternative.ops:
        before = own[op.name]
        if short.name in op.outputs:
            makers.append(op)
            same = {*op.outputs} - {short.name} == {*before.outputs} and op.inputs == before.inputs
            if not same or op.rerun_inputs != before.rerun_inputs:
                return None
        else:
            for after, reads in ((op.inputs, before.inputs), (op.rerun_inputs, before.rerun_inputs)):
                long |= {*reads} - {*after}
                if not {*after} - {short.name} <= {*reads} or (short.name in after) != (reads != after):
                    return None
            if op.outputs != before.outputs:
                return None
    (name,) = long if len(long) == 1 else ("",)
    updated = {each for op in problem.ops for each in op.updates}
    if len(makers) != 1 or name not in makers[0].outputs or name in updated:
        return None
    whole = known[name]
    rest_bytes = problem.aligned_bytes(whole.bytes) - problem.aligned_bytes(short.bytes)
    if rest_bytes < 0 or whole.storage_bytes < short.storage_bytes or whole.finally_ is not None:
        return None
    is_free = Transfer(0.0, 0.0)
    return (
        replace(
            whole,
            bytes=rest_bytes,
            stored_bytes=whole.storage_bytes - short.storage_bytes,
            page_form=None,
        ),
        replace(
            short,
            page_form=None,
            page_in=is_free if whole.page_in or short.page_in else None,
            page_out=is_free if whole.page_out or short.page_out else None,
            move=is_free if whole.move or short.move else None,
        ),
    )


def _least_costs(op: ProblemOp, own: ProblemOp) -> ProblemOp:
    """``op`` where it costs no more than in the form of ``own``."""
    return replace(
        op,
        seconds=min(op.seconds, own.seconds),
        joules=min(op.joules, own.joules),
        workspace_bytes=min(op.workspace_bytes, own.workspace_bytes),
        recomputable=op.recomputable or own.recomputable,
        random=op.random and own.random,
    )


def _least_op(one: ProblemOp, other: ProblemOp) -> ProblemOp:
    reruns = _common(one.rerun_inputs, other.rerun_inputs)
    return ProblemOp(
        name=one.name,
        inputs=_common(one.inputs, other.inputs),
        outputs=_common(one.outputs, other.outputs),
        seconds=min(one.seconds, other.seconds),
        joules=min(one.joules, other.joules),
        workspace_bytes=min(one.workspace_bytes, other.workspace_bytes),
        updates=_common(one.updates, other.updates),
        recompute_inputs=reruns,
        recomputable=one.recomputable or other.recomputable,
        random=one.random and other.random,
    )


def _common(one: Iterable[str], other: Iterable[str]) -> tuple[str, ...]:
    others = set(other)
    return tuple(name for name in one if name in others)


def _without(op: ProblemOp, lost: set[str]) -> ProblemOp:
    return replace(
        op,
        inputs=tuple(name for name in op.inputs if name not in lost),
        recompute_inputs=tuple(name for name in op.rerun_inputs if name not in lost),
        updates=tuple(name for name in op.updates if name not in lost),
    )


def _least_tensor(one: Tensor, other: Tensor) -> Tensor:
    place = one.finally_ if one.finally_ is other.finally_ else None
    return replace(
        one,
        bytes=min(one.bytes, other.bytes),
        stored_bytes=min(one.storage_bytes, other.storage_bytes),
        page_in=_least_transfer(one.page_in, other.page_in),
        page_out=_least_transfer(one.page_out, other.page_out),
        move=_least_transfer(one.move, other.move),
        finally_=place,
        page_form=None,
    )


def _least_transfer(one: Transfer | None, other: Transfer | None) -> Transfer | None:
    if one is None or other is None:
        return one or other
    return Transfer(min(one.seconds, other.seconds), min(one.joules, other.joules))


def leanest(problem: Problem) -> frozenset[str]:
    """The alternatives whose ops do not need more RAM at once than the forms in whose place they are.

    What an op needs at once are its inputs, outputs and workspace.
    """
    sizes = aligned_sizes(problem)
    ops = {op.name: op for op in problem.ops}
    return frozenset(
        each.name
        for each in problem.alternatives
        if _most_at_once(problem, sizes, map(ops.__getitem__, each.touched))
        >= _most_at_once(problem, sizes_with(problem, sizes, each), each.ops)
    )


def aligned_sizes(problem: Problem) -> dict[str, int]:
    """Bytes of each tensor of a plan that takes no alternative, aligned."""
    return {tensor.name: problem.aligned_bytes(tensor.bytes) for tensor in problem.tensors}


def sizes_with(problem: Problem, sizes: dict[str, int], alternative: Alternative) -> Mapping[str, int]:
    """`aligned_sizes` where ``alternative`` is taken; what it leaves out is among them."""
    own = {tensor.name: problem.aligned_bytes(tensor.bytes) for tensor in alternative.tensors}
    return ChainMap(own, sizes)


def most_at_once(
    problem: Problem, ops: Iterable[ProblemOp], *, alternative: Alternative | None = None
) -> float:
    """RAM that the neediest of ``ops`` takes for inputs, outputs and workspace; minus infinity: none.

    ``alternative`` is taken, and no other.
    """
    sizes = aligned_sizes(problem)
    with_it = sizes if alternative is None else sizes_with(problem, sizes, alternative)
    return _most_at_once(problem, with_it, ops)


def _most_at_once(problem: Problem, sizes: Mapping[str, int], ops: Iterable[ProblemOp]) -> float:
    needs = (
        sum(sizes[name] for name in {*op.inputs, *op.outputs}) + problem.aligned_bytes(op.workspace_bytes)
        for op in ops
    )
    return max(needs, default=-math.inf)
