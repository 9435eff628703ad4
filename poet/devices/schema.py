"""The JSON Schema of profiles, for editors and for programs that write them."""

from __future__ import annotations

import copy
from typing import Any

from poet.devices.part import Slot
from poet.devices.profile import Profile

_REFERENCE = "#/$defs/"
_WHOLE_ALWAYS = frozenset({"Figure", "Count"})
"""A figure replaces a figure whole, so that it needs all its fields in a profile that extends another too."""


def profile_schema() -> dict[str, Any]:
    """JSON Schema, draft 2020-12, of a profile's file.

    A profile that ``extends`` another needs only what differs; one that does not needs every table.
    """
    whole = Profile.model_json_schema()
    slot = Slot.model_json_schema(ref_template=_REFERENCE + "{model}")
    slot.pop("$defs", None)
    records: dict[str, Any] = {**whole.pop("$defs"), "Slot": slot, "Profile": whole}
    whole["properties"]["storage"]["anyOf"].append({"$ref": f"{_REFERENCE}Slot"})
    over = copy.deepcopy({_over(name): record for name, record in records.items()})
    for name in records:
        if name not in _WHOLE_ALWAYS:
            _loosen(over[_over(name)])
    over["ProfileOver"]["properties"]["extends"] = {"type": "string", "title": "Extends"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Hardware profile of poet",
        "type": "object",
        "if": {"required": ["extends"]},
        "then": {"$ref": f"{_REFERENCE}ProfileOver"},
        "else": {"$ref": f"{_REFERENCE}Profile"},
        "$defs": dict(sorted((records | over).items())),
    }


def _over(name: str) -> str:
    """Name of the record that ``name`` is where a file extends another."""
    return name if name in _WHOLE_ALWAYS else f"{name}Over"


def _loosen(node: Any) -> None:
    """Nothing below ``node`` is required, and what it refers to is the same there."""
    if isinstance(node, dict):
        node.pop("required", None)
        reference = node.get("$ref")
        if isinstance(reference, str):
            node["$ref"] = _REFERENCE + _over(reference.removeprefix(_REFERENCE))
        for item in node.values():
            _loosen(item)
    elif isinstance(node, list):
        for item in node:
            _loosen(item)
