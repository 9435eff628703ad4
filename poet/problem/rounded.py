"""Which tensors of a schedule come back rounded from storage, and how far off."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from poet.problem import PageForm, Problem
from poet.problem.schedule import PageIn, Schedule


def rounded_pages(problem: Problem, schedule: Schedule) -> dict[str, PageForm]:
    """The form of each tensor that ``schedule`` reads back rounded; ``problem`` is the one it has decided."""
    read = {step.tensor for step in schedule if isinstance(step, PageIn)}
    return {
        tensor.name: tensor.page_form
        for tensor in problem.tensors
        if tensor.page_form is not None and tensor.name in read
    }


def rounding_words(rounded: Mapping[str, PageForm]) -> str:
    """How many tensors are in which form, and how far off each number may come back."""
    counts = Counter(rounded.values())
    said = [
        f"{counts[form]} as {form.number}, each number within {form.error}"
        for form in PageForm
        if form in counts
    ]
    return "; ".join(said)
