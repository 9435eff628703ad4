"""Which tensors of a training step go to storage in fewer bytes, where that is allowed.

What is read back is then rounded (`poet.problem.PageForm`). A form that takes no more seconds, joules and
bytes than another, in either direction, conversion included, takes its place: every schedule takes at most as
much with it, as transfers only get shorter and cheaper. Where each takes less of something, the search
decides: the form is an alternative (`poet.problem.Alternative`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from poet.devices.costs import buffer_cost
from poet.devices.profile import Profile
from poet.ir.graph import Graph, floats_within
from poet.problem import Alternative, PageForm, Problem, Tensor

PAGES = "pages of "
"""Begins the names of alternatives that are forms of pages."""


def with_forms(problem: Problem, graph: Graph, profile: Profile, allowed: Collection[PageForm]) -> Problem:
    """``problem`` with those of the forms ``allowed`` that take no more of anything."""
    if profile.storage is None or not allowed:
        return problem
    rounded = floats_within(graph)

    def best(tensor: Tensor) -> Tensor:
        for form in _forms(tensor, profile, allowed) if tensor.name in rounded else ():
            if _takes(problem, form) != _takes(problem, tensor) and _is_below(problem, form, tensor):
                tensor = form
        return tensor

    return replace(problem, tensors=tuple(map(best, problem.tensors)))


def form_choices(
    problem: Problem, graph: Graph, profile: Profile, allowed: Collection[PageForm]
) -> Iterator[Alternative]:
    """Of each tensor of `with_forms` one more form, where it takes less of something and more of another."""
    rounded = floats_within(graph) if allowed and profile.storage is not None else ()
    for tensor in problem.tensors:
        for form in _forms(tensor, profile, allowed) if tensor.name in rounded else ():
            if not _is_below(problem, tensor, form) and not _is_below(problem, form, tensor):
                yield Alternative(PAGES + tensor.name, (), tensors=(form,))
                break


def _forms(tensor: Tensor, profile: Profile, allowed: Collection[PageForm]) -> Iterator[Tensor]:
    """``tensor`` in each form, the nearest to what it is first."""
    for form in PageForm:
        if form in allowed:
            cost = buffer_cost(tensor.bytes, profile, form)
            yield replace(
                tensor,
                page_in=cost.page_in,
                page_out=cost.page_out,
                stored_bytes=cost.stored_bytes,
                page_form=form,
            )


def _is_below(problem: Problem, one: Tensor, other: Tensor) -> bool:
    return all(map(float.__le__, _takes(problem, one), _takes(problem, other)))


def _takes(problem: Problem, tensor: Tensor) -> tuple[float, ...]:
    """Bytes; seconds and joules out and in, with idle power where ops wait for transfers."""
    idle_watts = 0.0 if problem.background_storage else problem.idle_watts
    both = [each for each in (tensor.page_out, tensor.page_in) if each is not None]
    prices = ((each.seconds, each.joules + idle_watts * each.seconds) for each in both)
    return (float(tensor.storage_bytes), *(amount for pair in prices for amount in pair))
