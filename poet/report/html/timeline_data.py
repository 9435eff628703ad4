"""A timeline as compact columns for the page's script: a few bytes per step and per stay."""

from __future__ import annotations

from typing import Any

from poet.report.html.charts import ROLE_ORDER, role_colour
from poet.report.html.subject import Subject
from poet.report.schedule_rows import NO_ROLE
from poet.units import format_bytes, scale_of

KINDS = ("compute", "recompute", "page_out", "page_in")
VERBS = {"compute": "running", "recompute": "recomputing", "page_out": "storing", "page_in": "fetching"}


def timeline_data(subject: Subject) -> dict[str, Any]:
    """What the memory chart and its readout need.

    ``stays`` is flat: tensor, first frame, end frame, and so on; tensors are numbered as the rows of
    the table ``tensors`` of the page, whose names they bear. Sums over stays and workspaces are the
    bytes in RAM, frame by frame.
    """
    problem, line = subject.problem, subject.line
    numbers = {tensor.name: index for index, tensor in enumerate(problem.tensors)}
    kinds = [tensor.role or NO_ROLE for tensor in problem.tensors]
    roles = sorted(dict.fromkeys([*kinds, ROLE_ORDER[-1]]), key=_place)
    top = max(subject.limits.ram_budget_bytes or 0, subject.trace.peak_ram_bytes)
    factor, unit = scale_of(top, "B")
    seconds_factor, seconds_unit = scale_of(subject.trace.seconds, "s")
    names = sorted({frame.what for frame in line.frames})
    whats = {name: index for index, name in enumerate(names)}
    return {
        "unit": unit,
        "factor": factor,
        "secondsUnit": seconds_unit,
        "roles": [{"name": role, "colour": role_colour(role)} for role in roles],
        "names": names,
        "what": [whats[frame.what] for frame in line.frames],
        "kind": [KINDS.index(frame.kind) for frame in line.frames],
        "verbs": [VERBS[kind] for kind in KINDS],
        "at": [_short(frame.issued_seconds / seconds_factor) for frame in line.frames],
        "end": _short(subject.trace.seconds / seconds_factor),
        "workspace": [frame.workspace_bytes for frame in line.frames],
        "tensors": [tensor.name for tensor in problem.tensors],
        "role": [roles.index(kind) for kind in kinds],
        "bytes": [problem.aligned_bytes(tensor.bytes) for tensor in problem.tensors],
        "stays": [n for stay in line.stays for n in (numbers[stay.tensor], stay.first, stay.last)],
        "budget": subject.limits.ram_budget_bytes,
        "budgetText": format_bytes(subject.limits.ram_budget_bytes or subject.trace.peak_ram_bytes),
    }


def _place(role: str) -> int:
    return ROLE_ORDER.index(role) if role in ROLE_ORDER else ROLE_ORDER.index(NO_ROLE)


def _short(amount: float) -> float:
    return float(f"{amount:.7g}")
