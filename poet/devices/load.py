"""Reading hardware profiles: one TOML file per device, checked by the records of `poet.devices.profile`.

Profiles are data from strangers: nothing in one is ever executed, and no more than `MAX_FILE_BYTES`
of a file are read.
"""

from __future__ import annotations

import tomllib
import types
import typing
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from poet.devices.profile import UNITS, Profile, unit_of
from poet.errors import ProfileError, nearest
from poet.files.kinds import FileKind, says_what_it_is
from poet.files.reading import open_regular

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

__all__ = ["Profile", "load_profile", "profile_names"]

MAX_FILE_BYTES = 1 << 18
MAX_DOTS = 32
"""In one piece of a line between equals signs, where a key may stand: its parts cost time by their square."""

MAX_EXTENDS = 4
MOST_FAULTS = 8


def profile_names() -> tuple[str, ...]:
    """Names of the profiles that come with the package, sorted."""
    entries = files("poet.hardware_profiles").iterdir()
    return tuple(sorted(entry.name[:-5] for entry in entries if entry.name.endswith(".toml")))


@says_what_it_is(FileKind.PROFILE)
def load_profile(name_or_path: str | Path) -> Profile:
    """The profile of a device that comes with the package, or the one in a file.

    Args:
        name_or_path: a name of `profile_names`, or a path; a text that ends in ``.toml`` or holds a
            path separator is a path.

    Raises:
        ProfileError: there is no such device or file, or it breaks the schema. The message is one
            line and names the file, the field, what was found and what was expected.
    """
    text, path = str(name_or_path), profile_path(name_or_path)
    where = f"{text}.toml" if path is None else path.name
    data = _resolve(_read_shipped(text) if path is None else _read_file(path), where)
    try:
        profile = Profile.model_validate(data)
    except ValidationError as error:
        raise ProfileError(_explain(error, where)) from None
    if path is None and profile.name != text:
        raise ProfileError(f"{where}: the name is {profile.name!r}; it must be the file's name, {text!r}")
    return profile


def profile_path(name_or_path: str | Path) -> Path | None:
    """The file that `load_profile` would read; ``None``: the name is of a device that comes with poet."""
    text = str(name_or_path)
    is_path = isinstance(name_or_path, Path) or text.endswith(".toml") or "/" in text or "\\" in text
    return Path(text) if is_path else None


def _read_shipped(name: str) -> dict[str, Any]:
    known = profile_names()
    if name not in known:
        listed = ", ".join(known)
        raise ProfileError(f"there is no device {name!r}{nearest(name, known)} (devices: {listed})")
    with files("poet.hardware_profiles").joinpath(f"{name}.toml").open("rb") as file:
        return _parse(file.read(MAX_FILE_BYTES + 1), f"{name}.toml")


def _read_file(path: Path) -> dict[str, Any]:
    try:
        with open_regular(path) as file:
            return _parse(file.read(MAX_FILE_BYTES + 1), path.name)
    except OSError as error:
        raise ProfileError(f"{path}: cannot be read ({error.strerror})") from None


def _parse(content: bytes, where: str) -> dict[str, Any]:
    if len(content) > MAX_FILE_BYTES:
        raise ProfileError(f"{where}: larger than {MAX_FILE_BYTES} bytes; a profile is a few thousand")
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
        both = isinstance(item, dict) and isinstance(old, dict) and "value" not in item
        merged[key] = _overlay(typing.cast(dict[str, Any], old), item) if both else item
    return merged


# --- errors in one line -----------------------------------------------------------------------


def _explain(error: ValidationError, where: str) -> str:
    """All that is wrong, as one line: the file, then each field, what was found, the way out."""
    entries = sorted(error.errors(include_url=False), key=lambda entry: entry["type"] != "extra_forbidden")
    said = [(entry, _fault(entry)) for entry in entries]
    misspelt = {(entry["loc"][:-1], fault.partition("did you mean ")[2]) for entry, fault in said}
    faults = list(
        dict.fromkeys(  # a field under a wrong name is not missing as well
            fault
            for entry, fault in said
            if entry["type"] != "missing" or (entry["loc"][:-1], f"{entry['loc'][-1]!r}?") not in misspelt
        )
    )
    if len(faults) == 1:
        return f"{where}: {faults[0]}"
    named = "; ".join(f"({number}) {fault}" for number, fault in enumerate(faults[:MOST_FAULTS], 1))
    more = f"; and {len(faults) - MOST_FAULTS} more" if len(faults) > MOST_FAULTS else ""
    return f"{where}: {len(faults)} faults: {named}{more}"


def _fault(first: ErrorDetails) -> str:
    path = [str(part) for part in first["loc"]]
    place, leaf = ".".join(path[:-1]), path[-1] if path else ""
    if first["type"] == "extra_forbidden":
        known = [*_model_at(path[:-1]).model_fields, *(() if place else ("extends",))]
        return f"{leaf!r} is not a field of {place or 'a profile'}{_suggest(leaf, known)}"
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


def _model_at(path: list[str]) -> type[BaseModel]:
    """The record that stands at ``path`` of a profile."""
    model: type[BaseModel] = Profile
    for name in path:
        annotation = model.model_fields[name].annotation
        options = typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
        model = next(o for o in options if isinstance(o, type) and issubclass(o, BaseModel))
    return model


def _suggest(key: str, known: list[str]) -> str:
    """The field most like ``key``: the same words with another unit first, then the nearest name."""
    stem = key.split("_")[0]
    same = [name for name in known if name.startswith(key)] or [n for n in known if n.split("_")[0] == stem]
    if len(same) == 1:
        return f"; did you mean {same[0]!r}?"
    return nearest(key, same or known) or f"; its fields are {', '.join(known)}"
