"""Records in one line, for people who print them: what is long is given by its number or size alone.

A record of the package may hold a whole model; what a dataclass prints by itself is then as long as the
plan file. ``__repr__ = brief`` gives a record the one line that suits any; the records that users meet
most say in words of their own what they are, with `told`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from poet.errors import spelled_out
from poet.util.units import format_bytes

LONGEST = 60
"""Characters of one field; more is cut."""


def brief(record: Any) -> str:
    """``record``, a dataclass, with all its fields, the long ones by their number or size."""
    fields = (field.name for field in dataclasses.fields(record) if field.repr)
    return told(record, ", ".join(f"{name}={_short(getattr(record, name))}" for name in fields))


def told(record: Any, words: str) -> str:
    """``<Plan of resnet18 ...>``: the record's type and ``words`` in one printable line."""
    return f"<{type(record).__name__} {spelled_out(words)}>"


def shortened(name: str) -> str:
    """``name`` without its end where it is longer than a line can take."""
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 3]}..."


def _short(item: Any) -> str:
    if isinstance(item, bytes | bytearray | memoryview):
        return format_bytes(len(item))
    shown = "" if _is_long(item) else repr(item)
    if shown and len(shown) <= LONGEST and "\n" not in shown:
        return shown
    if isinstance(item, str):
        return repr(shortened(item))
    if isinstance(item, Sequence | Mapping | set | frozenset):
        return f"<{len(item)} items>"
    return f"<{type(item).__name__}>"


def _is_long(item: Any) -> bool:
    return isinstance(item, Sequence | Mapping | set | frozenset) and len(item) > LONGEST
