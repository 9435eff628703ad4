"""What a device does in one training step, in order.

Four kinds of step, each naming an op or a tensor of the problem (DESIGN: section "The words"):
``Compute`` needs its inputs in RAM and allocates its outputs; ``Free`` gives a tensor's RAM back;
``PageOut`` copies a tensor to storage, its RAM copy staying until freed; ``PageIn`` allocates and
copies back. Where storage works in the background, a transfer is issued where it stands in the
list and runs beside the compute steps after it.

In JSON a step is ``{"do": "compute"|"free"|"page_out"|"page_in", "what": name}`` (see `poet.util.codec`).
Where an op or a page has another form (`poet.problem.Alternative`), a step in it says so:
``"alternative": name``; a run on another unit than the main one: ``"unit": name``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

_WHAT = {"json": "what"}


@dataclass(frozen=True, slots=True)
class Compute:
    """Run an op; the second and later runs of the same op recompute its outputs.

    ``alternative``: the one whose form of the op runs; ``None``: the problem's own form.
    ``unit``: on which it runs; ``None``: the main one. All runs of an op are on one.
    """

    json_tag: ClassVar[tuple[str, str]] = ("do", "compute")
    op: str = field(metadata=_WHAT)
    alternative: str | None = None
    unit: str | None = None


@dataclass(frozen=True, slots=True)
class Free:
    """Give a tensor's RAM back."""

    json_tag: ClassVar[tuple[str, str]] = ("do", "free")
    tensor: str = field(metadata=_WHAT)


@dataclass(frozen=True, slots=True)
class PageOut:
    """Copy a tensor to storage; ``alternative``: the one in whose form, which page-ins read as well."""

    json_tag: ClassVar[tuple[str, str]] = ("do", "page_out")
    tensor: str = field(metadata=_WHAT)
    alternative: str | None = None


@dataclass(frozen=True, slots=True)
class PageIn:
    """Allocate a tensor and copy it back from storage."""

    json_tag: ClassVar[tuple[str, str]] = ("do", "page_in")
    tensor: str = field(metadata=_WHAT)


Step = Compute | Free | PageOut | PageIn
Schedule = tuple[Step, ...]
