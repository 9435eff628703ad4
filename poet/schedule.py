"""What a device does in one training step, in order.

Four kinds of step, each naming an op or a tensor of the problem (DESIGN: section "The words"):
``Compute`` needs its inputs in RAM and allocates its outputs; ``Free`` gives a tensor's RAM back;
``PageOut`` copies a tensor to storage, its RAM copy staying until freed; ``PageIn`` allocates and
copies back. Where storage works in the background, a transfer is issued where it stands in the
list and runs beside the compute steps after it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from poet.errors import InputError


@dataclass(frozen=True, slots=True)
class Compute:
    """Run an op; the second and later runs of the same op recompute its outputs."""

    op: str


@dataclass(frozen=True, slots=True)
class Free:
    """Give a tensor's RAM back."""

    tensor: str


@dataclass(frozen=True, slots=True)
class PageOut:
    """Copy a tensor to storage."""

    tensor: str


@dataclass(frozen=True, slots=True)
class PageIn:
    """Allocate a tensor and copy it back from storage."""

    tensor: str


Step = Compute | Free | PageOut | PageIn
Schedule = tuple[Step, ...]

_WORDS: dict[str, type[Compute] | type[Free] | type[PageOut] | type[PageIn]] = {
    "compute": Compute,
    "free": Free,
    "page_out": PageOut,
    "page_in": PageIn,
}


def schedule_to_data(schedule: Iterable[Step]) -> list[dict[str, str]]:
    """JSON form: a list of ``{"do": "compute"|"free"|"page_out"|"page_in", "what": name}``."""
    words = {kind: word for word, kind in _WORDS.items()}
    return [
        {"do": words[type(step)], "what": step.op if isinstance(step, Compute) else step.tensor}
        for step in schedule
    ]


def schedule_from_data(data: Any, *, where: str, error: type[InputError] = InputError) -> Schedule:
    """The schedule that `schedule_to_data` wrote.

    Raises:
        InputError: (or ``error``) ``data`` is not of that form.
    """
    if not isinstance(data, list):
        raise error(f"{where}: a schedule is a list of steps")
    steps: list[Step] = []
    for index, entry in enumerate(data):
        if not isinstance(entry, dict) or entry.keys() != {"do", "what"}:
            raise error(f'{where}[{index}]: a step is {{"do": ..., "what": ...}}')
        word, name = entry["do"], entry["what"]
        if not isinstance(word, str) or word not in _WORDS or not isinstance(name, str):
            raise error(f"{where}[{index}]: 'do' is one of {', '.join(_WORDS)}, 'what' a name")
        steps.append(_WORDS[word](name))
    return tuple(steps)
