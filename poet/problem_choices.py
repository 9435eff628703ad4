"""Alternatives of a problem: the parts of it with some of them taken, and the check that any may be."""

from __future__ import annotations

from collections.abc import Sequence

from poet.errors import ProblemError
from poet.problem_parts import Alternative, ProblemOp, Tensor, check_structure


def resolved_parts(
    own_tensors: Sequence[Tensor], own_ops: Sequence[ProblemOp], taken: Sequence[Alternative]
) -> tuple[tuple[Tensor, ...], tuple[ProblemOp, ...]]:
    """Tensors and ops of a problem in which the alternatives ``taken`` are taken, and no others."""
    forms = {op.name: op for alternative in taken for op in alternative.ops}
    omitted = {name for alternative in taken for name in alternative.omits}
    ops = tuple(forms.get(op.name, op) for op in own_ops if op.name not in omitted)
    others = {tensor.name: tensor for alternative in taken for tensor in alternative.tensors}
    own = {tensor.name for tensor in own_tensors}
    made = {name for op in ops for name in op.outputs}
    lost = {name for op in own_ops for name in op.outputs} - made
    tensors = (
        *(others.get(tensor.name, tensor) for tensor in own_tensors if tensor.name not in lost),
        *(tensor for tensor in others.values() if tensor.name not in own),
    )
    return tensors, ops


def check_alternatives(
    problem: str,
    own_tensors: Sequence[Tensor],
    own_ops: Sequence[ProblemOp],
    alternatives: Sequence[Alternative],
) -> None:
    """Any may be taken: none touches what is another's, and each alone is a problem, as all together are.

    What two of them could break between them all of them break.

    Raises:
        ProblemError: otherwise, of the problem of the name ``problem``.
    """
    if len({each.name for each in alternatives}) < len(alternatives):
        raise ProblemError(f"{problem}: two alternatives have the same name")
    ops, tensors = {op.name: op for op in own_ops}, {tensor.name for tensor in own_tensors}
    produced = {name for op in own_ops for name in op.outputs}
    seen: set[tuple[str, str]] = set()
    for alternative in alternatives:
        where = f"alternative {alternative.name}"
        changed = _changed(alternative)
        if not alternative.ops or len(set(changed)) < len(changed):
            raise ProblemError(f"{where}: it has no op, or the same twice")
        for kind, name in changed:
            if (kind, name) in seen:
                raise ProblemError(f"{where}: {kind} {name} is another alternative's as well")
            if kind == "op" and name not in ops:
                raise ProblemError(f"{where}: there is no op {name!r}")
        seen.update(changed)
        by_row = {name for op in alternative.ops for name in op.stored_updates}
        for op in alternative.ops:
            if op.updates != tuple(name for name in ops[op.name].updates if name not in by_row):
                raise ProblemError(f"{where}: op {op.name} updates other tensors than without it")
        for name in alternative.omits:
            if not by_row.issuperset(ops[name].updates):
                raise ProblemError(f"{where}: op {name} updates tensors and cannot be left out")
        if not by_row <= {each for name in alternative.touched for each in _changes(ops[name])}:
            raise ProblemError(f"{where}: it writes rows of other tensors than are updated without it")
        made = {name for op in alternative.ops for name in op.outputs}
        for tensor in alternative.tensors:
            if tensor.name not in made or (tensor.name in tensors and tensor.name not in produced):
                raise ProblemError(f"{where}: tensor {tensor.name} is not made by its ops")
        _check_together(problem, own_tensors, own_ops, [alternative], where)
    if alternatives:
        _check_together(problem, own_tensors, own_ops, alternatives, "all alternatives together")


def _changes(op: ProblemOp) -> tuple[str, ...]:
    """Tensors that have another content after ``op``."""
    return (*op.updates, *op.stored_updates)


def _changed(alternative: Alternative) -> list[tuple[str, str]]:
    """Kind and name of the ops and tensors that are not as they are without it."""
    return [
        *(("op", name) for name in alternative.touched),
        *(("tensor", tensor.name) for tensor in alternative.tensors),
    ]


def _check_together(
    problem: str,
    own_tensors: Sequence[Tensor],
    own_ops: Sequence[ProblemOp],
    taken: Sequence[Alternative],
    where: str,
) -> None:
    try:
        check_structure(problem, *resolved_parts(own_tensors, own_ops, taken))
    except ProblemError as error:
        raise ProblemError(f"{where}: {error}") from None
