"""A profile as the text of a TOML file, numbers to four digits."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from poet.devices.profile import Profile

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def profile_text(profile: Profile) -> str:
    """The profile as a TOML file."""
    data = profile.model_dump(exclude_none=True)
    return "\n".join(_table_lines(data, ())).strip() + "\n"


def _table_lines(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    plain = {key: item for key, item in table.items() if not isinstance(item, Mapping)}
    if path and plain:
        yield f"\n[{'.'.join(path)}]"
    for key, item in plain.items():
        yield f"{key if _BARE.fullmatch(key) else _value(key)} = {_value(item)}"
    for key, item in table.items():
        if isinstance(item, Mapping):
            yield from _table_lines(item, (*path, key))


def _value(item: Any) -> str:
    if isinstance(item, bool):
        return "true" if item else "false"
    if isinstance(item, tuple | list):
        return f"[{', '.join(map(_value, item))}]"
    if isinstance(item, float):
        return repr(float(f"{item:.4g}"))
    return json.dumps(item, ensure_ascii=True).replace("\x7f", "\\u007f")
