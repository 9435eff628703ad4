"""Strict JSON to frozen dataclasses and back, with nothing but the standard library.

The runtime reads plan files on small devices, so the records it needs must not pull in a
validation package. ``decode`` refuses unknown keys by name, missing keys, and values of another
type (no coercion: ``true`` is not 1, ``"1"`` is not 1; a whole number is accepted for a float).
A field with ``metadata={"json": "finally"}`` has that name in JSON. Records of a union that their fields do
not tell apart have a class attribute ``json_tag``, a key and the word of each: ``("do", "free")``. A record
with a form of its own defines ``to_data()`` and ``from_data(data, where)``.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import types
import typing
from collections.abc import Callable
from typing import Any, TypeVar

from poet.errors import InputError, nearest
from poet.util.reading import is_whole, shown

T = TypeVar("T")


def encode(value: Any) -> Any:
    """``value`` as JSON-ready objects: records become dicts (fields at their default are left out)."""
    if isinstance(value, enum.Enum):
        return value.value
    if hasattr(value, "to_data"):
        return value.to_data()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        data = dict([tag]) if (tag := _tag(type(value))) else {}
        for name, key, default in _stored(type(value)):
            item = getattr(value, name)
            if default is dataclasses.MISSING or item != default:
                data[key] = encode(item)
        return data
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        return {key: encode(item) for key, item in value.items()}
    return value


def decode(record: type[T], data: Any, *, where: str, error: type[InputError] = InputError) -> T:
    """An instance of the frozen dataclass ``record`` from JSON objects.

    Args:
        record: the dataclass; its field annotations are the schema.
        data: what ``json.loads`` gave.
        where: named in errors, for example the file's name.
        error: the class of error to raise.

    Raises:
        InputError: (or ``error``) the data is not of the schema; the message names the place.
    """
    try:
        return typing.cast(T, _decode_record(record, data, where))
    except _Mismatch as mismatch:
        raise error(str(mismatch)) from None
    except RecursionError:
        raise error(f"{where}: it is nested too deeply") from None


def decode_value(kind: Any, data: Any, *, where: str, error: type[InputError] = InputError) -> Any:
    """`decode` for any annotation that a field may have, such as ``tuple[Step, ...]``."""
    try:
        return _decoder(kind)(data, where)
    except _Mismatch as mismatch:
        raise error(str(mismatch)) from None
    except RecursionError:
        raise error(f"{where}: it is nested too deeply") from None


@functools.cache
def _stored(record: type) -> tuple[tuple[str, str, Any], ...]:
    """Name, key in JSON and default of each field that stands in a file."""
    return tuple(
        (field.name, _key(field), field.default) for field in dataclasses.fields(record) if field.init
    )


def _key(field: dataclasses.Field[Any]) -> str:
    key: str = field.metadata.get("json", field.name)
    return key


def _tag(record: type) -> tuple[str, str] | None:
    """The key and the word that tell ``record`` from the others of its union."""
    return getattr(record, "json_tag", None)


class _Mismatch(Exception):
    pass


_Decoder = Callable[[Any, str], Any]


def _expect(kind: str, data: Any, where: str) -> _Mismatch:
    return _Mismatch(f"{where}: expected {kind}, found {shown(data)}")


@functools.cache
def _fields(record: type) -> tuple[tuple[str, str, _Decoder, bool], ...]:
    hints = typing.get_type_hints(record)
    return tuple(
        (
            field.name,
            _key(field),
            _decoder(hints[field.name]),
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
        )
        for field in dataclasses.fields(record)
        if field.init
    )


def _decode_record(record: type, data: Any, where: str) -> Any:
    if not isinstance(data, dict):
        raise _expect("an object", data, where)
    fields = _fields(record)
    known = [key for _, key, _, _ in fields]
    for key in data:
        if key not in known:
            raise _Mismatch(f"{where}: {key!r} is not a field here{nearest(str(key), known)}")
    arguments = {}
    for name, key, decoder, required in fields:
        if key in data:
            arguments[name] = decoder(data[key], f"{where}.{key}")
        elif required:
            raise _Mismatch(f"{where}: the field {key!r} is missing")
    try:
        return record(**arguments)
    except InputError as error:
        raise _Mismatch(f"{where}: {error}") from None


def _decode_tuple(item: _Decoder, data: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(data, list):
        raise _expect("a list", data, where)
    return tuple(item(entry, f"{where}[{index}]") for index, entry in enumerate(data))


def _decode_fixed(items: tuple[_Decoder, ...], data: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(data, list) or len(data) != len(items):
        raise _expect(f"a list of {len(items)}", data, where)
    return tuple(
        item(entry, f"{where}[{index}]") for index, (item, entry) in enumerate(zip(items, data, strict=True))
    )


def _decode_dict(item: _Decoder, data: Any, where: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise _expect("an object", data, where)
    return {key: item(entry, f"{where}.{key}") for key, entry in data.items()}


def _decode_enum(kind: type[enum.Enum], data: Any, where: str) -> enum.Enum:
    for member in kind:
        if type(data) is type(member.value) and data == member.value:
            return member
    choices = ", ".join(repr(member.value) for member in kind)
    raise _expect(f"one of {choices}", data, where)


def _decode_union(options: tuple[_Decoder, ...], data: Any, where: str) -> Any:
    mismatch: _Mismatch | None = None
    for option in options:
        try:
            return option(data, where)
        except _Mismatch as error:
            mismatch = mismatch or error
    raise mismatch or _expect("a value", data, where)


def _decode_tagged(key: str, options: dict[str, type], data: Any, where: str) -> Any:
    """One of several records, each with its word under ``key``."""
    if not isinstance(data, dict):
        raise _expect("an object", data, where)
    word = data.get(key)
    if not isinstance(word, str) or word not in options:
        found = f"found {shown(word)}" if key in data else "which is missing"
        raise _Mismatch(f"{where}: {key!r} is one of {', '.join(map(repr, options))}, {found}")
    return _decode_record(options[word], {name: item for name, item in data.items() if name != key}, where)


def _tagged(kinds: tuple[Any, ...]) -> _Decoder | None:
    """The decoder of a union whose records all have a word under the same key; else ``None``."""
    tags = [_tag(kind) for kind in kinds if isinstance(kind, type)]
    words = {tag[1]: kind for tag, kind in zip(tags, kinds, strict=False) if tag is not None}
    keys = {tag[0] for tag in tags if tag is not None}
    if len(words) < len(kinds) or len(keys) != 1:
        return None
    return functools.partial(_decode_tagged, keys.pop(), words)


def _decode_custom(kind: Any, data: Any, where: str) -> Any:
    try:
        return kind.from_data(data, where)
    except InputError as error:
        raise _Mismatch(str(error)) from None


def _decode_float(data: Any, where: str) -> float:
    is_number = is_whole(data) or (isinstance(data, float) and math.isfinite(data))
    if not is_number:
        raise _expect("a finite number", data, where)
    return float(data)


def _decode_exact(kind: type, name: str, data: Any, where: str) -> Any:
    if type(data) is not kind:
        raise _expect(name, data, where)
    if kind is int and not is_whole(data):
        raise _expect(f"{name} of at most 64 bits", data, where)
    return data


_EXACT = {int: "a whole number", str: "a string", bool: "true or false", types.NoneType: "null"}


@functools.cache
def _decoder(kind: Any) -> _Decoder:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return lambda data, where: data
    if kind is float:
        return _decode_float
    if kind in _EXACT:
        return functools.partial(_decode_exact, kind, _EXACT[kind])
    if isinstance(kind, typing.NewType):  # what makes it another type is checked by the record that holds it
        return _decoder(kind.__supertype__)
    if origin in (typing.Union, types.UnionType):
        if (tagged := _tagged(arguments)) is not None:
            return tagged
        # null last: the other branch's message is the more useful one
        ordered = sorted(arguments, key=lambda option: option is types.NoneType)
        return functools.partial(_decode_union, tuple(_decoder(option) for option in ordered))
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return functools.partial(_decode_tuple, _decoder(arguments[0]))
    if origin is tuple:
        return functools.partial(_decode_fixed, tuple(_decoder(item) for item in arguments))
    if origin is dict:
        return functools.partial(_decode_dict, _decoder(arguments[1]))
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return functools.partial(_decode_enum, kind)
    if hasattr(kind, "from_data"):
        return functools.partial(_decode_custom, kind)
    if dataclasses.is_dataclass(kind):
        return functools.partial(_decode_record, typing.cast(type, kind))
    raise TypeError(f"no decoder for {kind!r}")
