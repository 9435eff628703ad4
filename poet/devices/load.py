"""Hardware profiles as files: reading TOML, writing it, and the JSON Schema for editors.

Profiles are untrusted data: nothing in one is ever executed, and no more than `MAX_FILE_BYTES`
of a file are read.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
import typing
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from poet.devices.figures import UNITS, Figure, unit_of
from poet.devices.profile import Direction, Medium, Part, Profile, Slot, Storage
from poet.devices.sense import check_sense, in_one_line
from poet.errors import ProfileError, nearest
from poet.files.kinds import FileKind, says_what_it_is
from poet.util.reading import open_regular

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

__all__ = ["Profile", "load_part", "load_profile", "part_names", "profile_names"]

MAX_FILE_BYTES = 1 << 20
MAX_DOTS = 32
"""In one piece of a line between equals signs, where a key may stand: its parts cost time by their square."""

MAX_EXTENDS = 4
WITH = "-with-"
"""Between a device and the storage part in place of its own."""


def profile_names() -> tuple[str, ...]:
    """Names of the profiles that come with the package, sorted."""
    return _names("")


def part_names() -> tuple[str, ...]:
    """Names of the storage parts that come with the package, sorted."""
    return _names("parts")


def _names(folder: str) -> tuple[str, ...]:
    entries = files("poet.hardware_profiles").joinpath(folder).iterdir()
    return tuple(sorted(entry.name[:-5] for entry in entries if entry.name.endswith(".toml")))


@says_what_it_is(FileKind.PROFILE)
def load_profile(name_or_path: str | Path) -> Profile:
    """The profile of a device that comes with the package, or the one in a file.

    Args:
        name_or_path: a name of `profile_names`, one of those with a storage part, such as
            ``rpi5-with-nvme-gen2``, or a path; a text that ends in ``.toml`` or holds a path separator is
            a path.

    Raises:
        ProfileError: there is no such device or file, or it breaks the schema. The message is one
            line and names the file, the field, what was found and what was expected.
    """
    text, path = str(name_or_path), profile_path(name_or_path)
    device, attaches, part = text.rpartition(WITH)
    if path is None and attaches and text not in profile_names():
        return with_part(load_profile(device), part)
    where = f"{text}.toml" if path is None else path.name
    data = _resolve(_read_shipped(text) if path is None else _read_file(path), where)
    slot, own = _pop_slot(data, where)
    profile = validated(data, where)
    if slot is not None:
        profile = _attached(profile, load_part(slot.part), slot, where)
        if own:
            data = profile.model_dump(exclude_none=True)
            profile = validated({**data, "storage": _overlay(data["storage"], own)}, where)
    if path is None and profile.name != text:
        raise ProfileError(f"{where}: the name is {profile.name!r}; it must be the file's name, {text!r}")
    return profile


def load_part(name_or_path: str | Path) -> Part:
    """The storage part that comes with the package, or the one in a file; names and paths as above.

    Raises:
        ProfileError: there is no such part or file, or it breaks the schema.
    """
    text, path = str(name_or_path), profile_path(name_or_path)
    data = _read_shipped(text, "parts") if path is None else _read_file(path)
    return _made(Part, data, f"{text}.toml" if path is None else path.name)


def with_part(profile: Profile, name_or_path: str | Path) -> Profile:
    """``profile`` with another storage part attached, under a name that says so.

    Raises:
        ProfileError: there is no such part, or one that moves bytes faster than the device's memory.
    """
    part = load_part(name_or_path)
    name = f"{profile.name}{WITH}{part.name}"
    title = f"{profile.title}, storage: {part.title}"
    made = _attached(profile, part, None, name).model_copy(update={"name": name, "title": title})
    check_sense(made, name)
    return made


def validated(data: dict[str, Any], where: str) -> Profile:
    """The profile of ``data``.

    Raises:
        ProfileError: it breaks the schema; ``where`` goes first in the message.
    """
    return _made(Profile, data, where)


_R = TypeVar("_R", bound=BaseModel)


def _made(record: type[_R], data: Any, where: str) -> _R:
    try:
        return record.model_validate(data)
    except ValidationError as error:
        raise ProfileError(_explain(error, where, record)) from None


def _pop_slot(data: dict[str, Any], where: str) -> tuple[Slot | None, dict[str, Any]]:
    """The storage of a profile that names a part, taken out of it: the slot, and what replaces figures."""
    storage = data.get("storage")
    if not isinstance(storage, dict) or "part" not in storage:
        return None, {}
    del data["storage"]
    own = {key: item for key, item in storage.items() if key not in Slot.model_fields}
    return _made(Slot, {key: storage[key] for key in storage.keys() - own.keys()}, f"{where}: storage"), own


def profile_path(name_or_path: str | Path) -> Path | None:
    """The file that `load_profile` would read; ``None``: the name is of a device that comes with poet."""
    text = str(name_or_path)
    is_path = isinstance(name_or_path, Path) or text.endswith(".toml") or "/" in text or "\\" in text
    return Path(text) if is_path else None


def _read_shipped(name: str, folder: str = "") -> dict[str, Any]:
    known = _names(folder)
    if name not in known:
        if not folder and os.path.isfile(name):  # also no for a name that is too long for a file
            raise ProfileError(f"{name}: a profile is a TOML file, whose name ends in .toml")
        what, listed = ("storage part", "parts") if folder else ("device", "devices")
        raise ProfileError(
            f"there is no {what} {name!r}{nearest(name, known)} ({listed}: {', '.join(known)})"
        )
    with files("poet.hardware_profiles").joinpath(folder, f"{name}.toml").open("rb") as file:
        return _parse(file.read(MAX_FILE_BYTES + 1), f"{name}.toml")


def _read_file(path: Path) -> dict[str, Any]:
    try:
        with open_regular(path) as file:
            return _parse(file.read(MAX_FILE_BYTES + 1), path.name)
    except OSError as error:
        raise ProfileError(f"{path}: cannot be read ({error.strerror})") from None


def _parse(content: bytes, where: str) -> dict[str, Any]:
    if len(content) > MAX_FILE_BYTES:
        raise ProfileError(f"{where}: larger than {MAX_FILE_BYTES} bytes; a profile is smaller")
    if any(piece.count(b".") > MAX_DOTS for line in content.splitlines() for piece in line.split(b"=")):
        raise ProfileError(
            f"{where}: not a profile (more than {MAX_DOTS} dots in a key, or in a line of text)"
        )
    try:
        return tomllib.loads(content.decode("utf-8"))
    except UnicodeDecodeError:
        raise ProfileError(f"{where}: not a TOML file (it is not UTF-8 text)") from None
    except RecursionError:
        raise ProfileError(f"{where}: not a profile (nested too deeply)") from None
    except ValueError as error:  # TOML's own errors, and numbers with too many digits for Python
        raise ProfileError(f"{where}: not a TOML file ({' '.join(str(error).split())})") from None


def _resolve(data: dict[str, Any], where: str) -> dict[str, Any]:
    """``data`` laid over the shipped profile that it ``extends``, and so on."""
    for _ in range(MAX_EXTENDS):
        base = data.pop("extends", None)
        if base is None:
            return data
        if not isinstance(base, str):
            raise ProfileError(f"{where}: extends is {base!r}; expected the name of a device")
        try:
            data = _overlay(_read_shipped(base), data)
        except ProfileError as error:
            raise ProfileError(f"{where}: extends: {error}") from None
    if "extends" in data:
        raise ProfileError(f"{where}: extends a profile that extends another, more than {MAX_EXTENDS} deep")
    return data


def _overlay(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """``base`` with ``over``'s keys; tables are merged, but a figure replaces a figure whole."""
    merged = dict(base)
    for key, item in over.items():
        old = merged.get(key)
        both = isinstance(item, dict) and isinstance(old, dict) and not {"value", "part"} & item.keys()
        merged[key] = _overlay(typing.cast(dict[str, Any], old), item) if both else item
    return merged


# --- errors in one line -----------------------------------------------------------------------


def _explain(error: ValidationError, where: str, record: type[BaseModel] = Profile) -> str:
    """All that is wrong, as one line: the file, then each field, what was found, the way out."""
    entries = sorted(error.errors(include_url=False), key=lambda entry: entry["type"] != "extra_forbidden")
    said = [(entry, _fault(entry, record)) for entry in entries]
    misspelt = {(entry["loc"][:-1], fault.partition("did you mean ")[2]) for entry, fault in said}
    faults = list(
        dict.fromkeys(  # a field under a wrong name is not missing as well
            fault
            for entry, fault in said
            if entry["type"] != "missing" or (entry["loc"][:-1], f"{entry['loc'][-1]!r}?") not in misspelt
        )
    )
    return in_one_line(where, "faults", faults)


def _fault(first: ErrorDetails, record: type[BaseModel]) -> str:
    path = [str(part) for part in first["loc"]]
    place, leaf = ".".join(path[:-1]), path[-1] if path else ""
    if first["type"] == "extra_forbidden":
        extends = ("extends",) if record is Profile and not place else ()
        known = [*_model_at(path[:-1], record).model_fields, *extends]
        whole = {Profile: "a profile", Part: "a storage part"}.get(record, "a table that names a part")
        return f"{leaf!r} is not a field of {place or whole}{_suggest(leaf, known)}"
    if first["type"] == "missing":
        return f"{place + ': ' if place else ''}the field {leaf!r} is missing"
    full = ".".join(path)
    if first["type"] == "value_error":
        return f"{full + ': ' if full else ''}{first['ctx']['error']}"
    found = repr(first["input"])
    found = found if len(found) <= 60 else found[:57] + "..."
    return f"{full} is {found}; {_expected(first['type'], first['msg'], leaf)}"


def _expected(error_type: str, message: str, leaf: str) -> str:
    if error_type == "model_type" and any(leaf.endswith(ending) for ending in UNITS):
        return f"expected a table with value (in {unit_of(leaf)}), kind and source"
    if error_type == "model_type":
        return "expected a table"
    if error_type == "string_pattern_mismatch":
        return "expected lower-case letters, digits and single hyphens"
    if error_type == "too_long":
        return "expected " + message.partition(" have ")[2].replace(" after validation", "")
    return message.replace("Input should be", "expected").replace("String should", "expected to")


def _model_at(path: list[str], record: type[BaseModel]) -> type[BaseModel]:
    """The record that stands at ``path`` of a ``record``."""
    model = record
    for name in path:
        if name.isdecimal():  # of an entry in a list
            continue
        annotation = model.model_fields[name].annotation
        options = typing.get_args(annotation) or (annotation,)
        model = next(o for o in options if isinstance(o, type) and issubclass(o, BaseModel))
    return model


def _suggest(key: str, known: list[str]) -> str:
    """The field most like ``key``: the same words with another unit first, then the nearest name."""
    stem = key.split("_")[0]
    same = [name for name in known if name.startswith(key)] or [n for n in known if n.split("_")[0] == stem]
    if len(same) == 1:
        return f"; did you mean {same[0]!r}?"
    return nearest(key, same or known) or f"; its fields are {', '.join(known)}"


def _attached(profile: Profile, part: Part, slot: Slot | None, where: str) -> Profile:
    """``profile`` with ``part`` in place of its storage.

    Args:
        profile: of the device.
        part: to attach.
        slot: where; ``None``: the device says nothing about that but what its present storage shows.
        where: for messages.
    """
    old = profile.storage
    bus = None
    if slot is None and old is not None and old.interface == part.interface:
        bus = old.bus_bytes_per_second
    elif slot is not None and slot.interface == part.interface:
        bus = slot.bus_bytes_per_second
    host = slot.host_watts if slot is not None else old.host_watts if old is not None else None
    own = {name: getattr(part, name) for name in Medium.model_fields if name not in ("read", "write")}
    storage = Storage(
        **own,
        title=part.title,
        transfers=slot.transfers if slot is not None else old.transfers if old is not None else "blocking",
        interface=part.interface,
        host_watts=host,
        read=_on_device(part.read, profile, bus, host),
        write=_on_device(part.write, profile, bus, host),
        bus_bytes_per_second=bus,
    )
    return validated({**profile.model_dump(), "storage": storage.model_dump()}, where)


def _on_device(direction: Direction, profile: Profile, bus: Figure | None, host: Figure | None) -> Direction:
    """No faster than the bus, and with what the device draws beside the part."""
    idle_watts = profile.energy.idle_watts.value if profile.energy.accounting == "total" else 0.0
    host_watts, host_ends = (0.0, (0.0, 0.0)) if host is None else (host.value, host.interval)
    low, high = (
        idle_watts + own + beside
        for own, beside in zip(direction.active_watts.interval, host_ends, strict=True)
    )
    value = idle_watts + direction.active_watts.value + host_watts
    watts = direction.active_watts.model_copy(
        update={"value": value, "range": (low, high), "uncertainty": None}
    )
    return direction.model_copy(
        update={
            "active_watts": watts,
            "bandwidth_bytes_per_second": _capped(direction.bandwidth_bytes_per_second, bus),
        }
    )


def _capped(speed: Figure, bus: Figure | None) -> Figure:
    if bus is None or speed.interval[1] <= bus.interval[0]:
        return speed
    low, high = (min(end, most) for end, most in zip(speed.interval, bus.interval, strict=True))
    value = min(speed.value, bus.value)
    kind = speed.kind if value == speed.value else "derived"
    capped = {"value": value, "range": (low, high), "uncertainty": None, "kind": kind}
    said = f"no more than the {bus.value:g} B/s of the bus ({bus.source})"
    return speed.model_copy(update={**capped, "note": " ".join(filter(None, (speed.note, said)))})


_BARE = re.compile(r"[A-Za-z0-9_-]+")


def profile_text(profile: Profile) -> str:
    """The profile as a TOML file."""
    data = profile.model_dump(exclude_none=True)
    return "\n".join(_table_lines(data, ())).strip() + "\n"


def _table_lines(table: Mapping[str, Any], path: tuple[str, ...], head: str = "[{}]") -> Iterator[str]:
    tables = {key: item for key, item in table.items() if isinstance(item, Mapping)}
    lists = {
        key: item
        for key, item in table.items()
        if isinstance(item, tuple | list) and any(isinstance(each, Mapping) for each in item)
    }
    plain = {key: item for key, item in table.items() if key not in {**tables, **lists}}
    if path and (plain or head != "[{}]"):
        yield "\n" + head.format(".".join(path))
    for key, item in plain.items():
        yield f"{key if _BARE.fullmatch(key) else _value(key)} = {_value(item)}"
    for key, item in tables.items():
        yield from _table_lines(item, (*path, key))
    for key, item in lists.items():
        for each in item:
            yield from _table_lines(each, (*path, key), "[[{}]]")


def _value(item: Any) -> str:
    if isinstance(item, bool):
        return "true" if item else "false"
    if isinstance(item, tuple | list):
        return f"[{', '.join(map(_value, item))}]"
    if isinstance(item, float):
        return repr(float(f"{item:.4g}"))
    return json.dumps(item, ensure_ascii=True).replace("\x7f", "\\u007f")


def profile_schema() -> dict[str, Any]:
    """JSON Schema, draft 2020-12, of a profile's file.

    Every figure needs all its fields, for it replaces a figure whole. Of other tables a profile that
    ``extends`` another needs only what differs; one that does not needs those of a `Profile`.
    """
    whole = Profile.model_json_schema()
    slot = Slot.model_json_schema(ref_template="#/$defs/{model}")
    records: dict[str, Any] = {**slot.pop("$defs"), **whole.pop("$defs"), "Slot": slot}
    for name in records.keys() - {"Figure", "Count"}:
        records[name].pop("required", None)
    whole["properties"]["storage"]["anyOf"].append({"$ref": "#/$defs/Slot"})
    whole["properties"]["extends"] = {"type": "string", "title": "Extends"}
    required = whole.pop("required")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **whole,
        "title": "Hardware profile of poet",
        "if": {"required": ["extends"]},
        "else": {"required": required},
        "$defs": dict(sorted(records.items())),
    }
