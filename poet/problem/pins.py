"""What a user insists on, tensor by tensor: keep, recompute, page, never page.

A pattern (`fnmatch`'s: ``*``, ``?``, ``[abc]``) names tensors, or ops, which stand for their outputs.
What a pin demands of every schedule, and the simulator checks, with *first runs* being each op's first:

============== ====================================================================================
``keep``       it stays in RAM from the start, its production, or the first first run that reads it
               if it begins in storage, to the last first run that reads it, or to the end of the
               step if it must be in RAM there
``page``       it is not held in RAM from one use to the next across a first run that does not touch
               it: in between it leaves RAM and is read back from storage, or remade
``recompute``  the same, and it is never written to storage nor read from there: it is remade
``never page`` it is never written to storage nor read from there
============== ====================================================================================

A use is a run, first or not, that reads or makes the tensor, the start of the step for what begins
in RAM, and the end for what must be in RAM there. A page-in ahead of its use is allowed.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from poet.errors import InputError, nearest
from poet.problem import Limits, Pins, Place, Problem
from poet.problem.homes import decide_some


@dataclass(frozen=True, slots=True)
class Pinned:
    """The names of the tensors that patterns mean.

    Attributes:
        kept, recomputed, paged, never_paged: by the patterns of the same name.
    """

    kept: frozenset[str] = frozenset()
    recomputed: frozenset[str] = frozenset()
    paged: frozenset[str] = frozenset()
    never_paged: frozenset[str] = frozenset()

    @property
    def dropped(self) -> frozenset[str]:
        """Not to be held while idle."""
        return self.recomputed | self.paged

    @property
    def unmoved(self) -> frozenset[str]:
        """Neither to be written to storage nor read from there."""
        return self.recomputed | self.never_paged


def pinned(problem: Problem, limits: Limits) -> Pinned:
    """The tensors of ``problem`` that the pins of ``limits`` mean.

    Raises:
        InputError: a pattern matches nothing, or two pins contradict each other.
    """
    return _NOTHING if limits.pins == _NO_PINS else _pinned(problem, limits.pins)


_NOTHING, _NO_PINS = Pinned(), Pins()


@functools.lru_cache(maxsize=16)
def _pinned(problem: Problem, pins: Pins) -> Pinned:
    patterns = {
        "keep": pins.keep,
        "recompute": pins.recompute,
        "page": pins.page,
        "never page": pins.never_page,
    }
    names = {word: _matches(problem, word, given) for word, given in patterns.items()}
    for one, other in _CONTRARY:
        for name in sorted(names[one] & names[other]):
            raise InputError(f"tensor {name} is pinned twice, to {one} and to {other}; leave one out")
    return Pinned(names["keep"], names["recompute"], names["page"], names["never page"])


_CONTRARY = (("keep", "recompute"), ("keep", "page"), ("recompute", "page"), ("page", "never page"))


def _matches(problem: Problem, word: str, patterns: Iterable[str]) -> frozenset[str]:
    found: set[str] = set()
    for pattern in patterns:
        tensors = {tensor.name for tensor in problem.tensors if fnmatchcase(tensor.name, pattern)}
        for op in problem.ops:
            if fnmatchcase(op.name, pattern):
                tensors.update(op.outputs)
        if not tensors:
            known = [tensor.name for tensor in problem.tensors] + [op.name for op in problem.ops]
            raise InputError(f"{word} {pattern!r} names no tensor and no op{nearest(pattern, known)}")
        found |= tensors
    return frozenset(found)


def permitted(problem: Problem, limits: Limits) -> Problem:
    """``problem`` in which tensors pinned never to move have no transfers.

    Raises:
        InputError: a pin asks for what ``problem`` or ``limits`` do not allow.
    """
    pins = pinned(problem, limits)
    if pins == _NOTHING:
        return problem
    makers = {name: op for op in problem.ops for name in op.outputs}
    updated = {name for op in problem.ops for name in op.updates}
    for tensor in problem.tensors:
        name = tensor.name
        if name in pins.unmoved and Place.STORAGE in (tensor.initially, tensor.finally_):
            raise InputError(f"tensor {name} lives in storage; it cannot be pinned never to move")
        if name in pins.paged and (tensor.page_in is None or tensor.page_out is None or not limits.paging):
            raise InputError(f"tensor {name} is pinned to page, but it may not be written and read here")
        if name in pins.recomputed and not limits.recompute:
            raise InputError(f"tensor {name} is pinned to recompute, but no op may run again here")
        if name in pins.recomputed and (
            name in updated or name not in makers or not makers[name].recomputable
        ):
            why = "no op makes it" if name not in makers else f"op {makers[name].name} runs once only"
            why = "it is updated in place" if name in updated else why
            raise InputError(f"tensor {name} is pinned to recompute, but {why}")
    home = decide_some(problem, in_ram=pins.unmoved)
    return replace(
        home,
        tensors=tuple(
            replace(tensor, page_in=None, page_out=None) if tensor.name in pins.unmoved else tensor
            for tensor in home.tensors
        ),
    )
