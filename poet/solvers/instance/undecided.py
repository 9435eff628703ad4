"""A problem with alternatives as one instance, in which the form of each op is still open.

An alternative without ops that it leaves out has two *forms*: its own ops, and those in whose place they
are. Tasks and contents are those of both: what only one form reads, makes, works in or pays for is listed
with the form (`poet.solvers.instance.instance.Form`), and everything else is common to both. So every
schedule of every choice is one of the instance, at the same price and in the same bytes, except that

- a rerun takes the lesser price and workspace of both forms, and reads what both read;
- alternatives of other kinds are as in `poet.problem.alternatives.relaxed`.

Only the windows relaxation knows of forms (`poet.solvers.bounds.relaxation`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

from poet.problem import Alternative, Limits, Problem, ProblemOp, Tensor
from poet.problem.alternatives import relaxed
from poet.solvers.instance.instance import Form, Instance, instance_of


@dataclass(frozen=True, slots=True)
class Undecided:
    """A problem with alternatives, to be bounded for all choices of them at once.

    Attributes:
        instance: of what is common to all choices, and of both forms of each alternative.
        names: of the alternatives whose forms are open, in the order of the instance's pairs of forms.
        joules: no schedule of any choice takes less than these and what the instance is bounded by.
    """

    instance: Instance
    names: tuple[str, ...]
    joules: float


def undecided(problem: Problem, limits: Limits) -> Undecided:
    """``problem`` inside ``limits`` with the forms of its alternatives open."""
    both = [each for each in problem.alternatives if _has_two_forms(problem, each)]
    others = tuple(each for each in problem.alternatives if each not in both)
    rest = relaxed(replace(problem, alternatives=others))
    made = _Joined(rest.problem, both)
    instance = instance_of(made.problem(), limits)
    number_of = {content.tensor: content.number for content in reversed(instance.contents)}
    tasks = {task.name: task.number for task in instance.tasks}
    forms = tuple(
        Form(
            joules=form.joules,
            contents=tuple(number_of[name] for name in form.tensors),
            reads=tuple((number_of[name], tasks[op]) for name, op in form.reads),
            workspaces=tuple((tasks[op], size_bytes) for op, size_bytes in form.workspaces),
        )
        for form in itertools.chain.from_iterable(made.forms)
    )
    return Undecided(
        replace(instance, forms=forms),
        tuple(each.name for each in both),
        instance.problem.compute_joules + rest.joules,
    )


def _has_two_forms(problem: Problem, alternative: Alternative) -> bool:
    """Whether no op is left out or writes rows in storage, and what one form alone makes is not updated, nor
    anywhere at the end.
    """
    if alternative.omits or any(op.stored_updates for op in alternative.ops):
        return False
    own = {op.name: op for op in problem.ops}
    tensors = {tensor.name: tensor for tensor in problem.tensors}
    updated = {name for op in problem.ops for name in op.updates}
    changed = {tensor.name for tensor in alternative.tensors}
    changed |= {name for op in alternative.ops for name in {*op.outputs} ^ {*own[op.name].outputs}}
    made = (*alternative.tensors, *(tensors[name] for name in changed if name in tensors))
    return not changed & updated and all(tensor.finally_ is None for tensor in made)


@dataclass(slots=True)
class _Named:
    """A form, by names; as `poet.solvers.instance.instance.Form`."""

    joules: float = 0.0
    tensors: list[str] = field(default_factory=list)
    reads: list[tuple[str, str]] = field(default_factory=list)
    workspaces: list[tuple[str, int]] = field(default_factory=list)


class _Joined:
    """Ops and tensors of both forms of ``alternatives``; ``forms``: without and with each of them."""

    def __init__(self, rest: Problem, alternatives: Collection[Alternative]) -> None:
        self.rest, self.alternatives = rest, alternatives
        self.tensors = {tensor.name: tensor for tensor in rest.tensors}
        self.forms = [(_Named(), _Named()) for _ in alternatives]
        self.shorter: dict[str, tuple[int, str]] = {}  # of a tensor of two sizes, whose it is, and the other
        for number, alternative in enumerate(alternatives):
            for tensor in alternative.tensors:
                self._take_in(number, tensor)
        belongs = {op.name: (op, number) for number, each in enumerate(alternatives) for op in each.ops}
        self.ops = [self._joined(op, *belongs.get(op.name, (op, None))) for op in rest.ops]

    def problem(self) -> Problem:
        """With all ops at the least price and workspace, that read and make what either form does."""
        made = {name for op in self.ops for name in op.outputs}
        before = {name for op in self.rest.ops for name in op.outputs}
        tensors = (
            tensor for tensor in self.tensors.values() if tensor.name in made or tensor.name not in before
        )
        return replace(self.rest, ops=tuple(self.ops), tensors=tuple(tensors))

    def _take_in(self, number: int, tensor: Tensor) -> None:
        """A tensor of an alternative, under a name of its own where there is one of this name."""
        name = tensor.name
        while name in self.tensors:
            name += "'"
        self.tensors[name] = replace(tensor, name=name)
        if name != tensor.name:
            self.shorter[tensor.name] = number, name

    def _joined(self, own: ProblemOp, other: ProblemOp, number: int | None) -> ProblemOp:
        """One op for both forms; ``number``: of the alternative whose form ``other`` is."""
        op = replace(
            own,
            inputs=tuple(self._read(own, other, number)),
            outputs=tuple(self._made(own, other, number)),
            recompute_inputs=tuple(
                name for name in own.rerun_inputs if name in other.rerun_inputs and name not in self.shorter
            ),
            seconds=min(own.seconds, other.seconds),
            joules=min(own.joules, other.joules),
            workspace_bytes=min(own.workspace_bytes, other.workspace_bytes),
            recomputable=own.recomputable or other.recomputable,
            random=own.random and other.random,
        )
        if number is not None:
            for form, run in zip(self.forms[number], (own, other), strict=True):
                form.joules = math.fsum((form.joules, self._joules(run), -self._joules(op)))
                more = self.rest.aligned_bytes(run.workspace_bytes) - self.rest.aligned_bytes(
                    op.workspace_bytes
                )
                if more:
                    form.workspaces.append((op.name, more))
        return op

    def _joules(self, op: ProblemOp) -> float:
        return op.joules + self.rest.idle_watts * op.seconds

    def _read(self, own: ProblemOp, other: ProblemOp, number: int | None) -> Iterable[str]:
        """What either form reads; what not every choice does is listed with the form that does."""
        found: dict[str, None] = {}
        for name in dict.fromkeys((*own.inputs, *other.inputs)):
            is_common = name in own.inputs and name in other.inputs
            of, short = self.shorter.get(name, (None, ""))
            if of is not None and (is_common or of == number):
                forms = [(self.forms[of][0], name)] if name in own.inputs else []
                forms += [(self.forms[of][1], short)] if name in other.inputs else []
            elif of is not None or name not in self.tensors:
                continue  # of two alternatives at once, or of a kind that has no two forms
            elif is_common:
                forms = []
                found[name] = None
            else:
                assert number is not None
                forms = [(self.forms[number][name not in own.inputs], name)]
            for form, read in forms:
                form.reads.append((read, own.name))
                found[read] = None
        return found

    def _made(self, own: ProblemOp, other: ProblemOp, number: int | None) -> Iterable[str]:
        """What either form makes; what one alone does is listed with it."""
        made: list[str] = []
        for name in dict.fromkeys((*own.outputs, *other.outputs)):
            _, short = self.shorter.get(name, (None, ""))
            is_common = name in own.outputs and name in other.outputs and not short
            for is_other, run in enumerate((own, other)):
                if name in run.outputs and not (is_common and is_other):
                    made.append(short if short and is_other else name)
                    if not is_common:
                        assert number is not None
                        self.forms[number][is_other].tensors.append(made[-1])
        return made
