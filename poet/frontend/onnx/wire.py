"""Takes the weights out of a serialised ONNX model without parsing them.

A model file is one protobuf message, and protobuf holds a message in memory as a whole. This walks
over the bytes of the (memory-mapped) file instead, and returns the small rest of the message with the
``raw_data`` of initialisers left out, and where in the file each of them lies. Field numbers are those
of ``onnx.proto``: ``ModelProto.graph`` = 7, ``GraphProto.initializer`` = 5, ``TensorProto.raw_data`` = 9.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass

from poet.errors import ModelError

_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_INLINE_BYTES = 256
"""Data up to this size stays where it is: shapes and scalars are needed at once."""


Data = bytes | mmap.mmap


@dataclass(frozen=True)
class Span:
    """``size`` bytes of a file, from ``start`` on."""

    start: int
    size: int


@dataclass(frozen=True)
class _Field:
    number: int
    wire_type: int
    start: int  # of the tag
    body: int  # of the content, after tag and length
    end: int


def split_weights(data: Data) -> tuple[bytes, tuple[Span | None, ...]]:
    """The model without its weights, and per initialiser where its raw data lies (``None``: still inside).

    Raises:
        ModelError: the bytes are not a protobuf message; the message does not name the file.
    """
    spans: list[Span | None] = []
    return _rewritten(data, 0, len(data), (_GRAPH, _INITIALIZER), spans), tuple(spans)


def _rewritten(data: Data, start: int, end: int, path: tuple[int, ...], spans: list[Span | None]) -> bytes:
    """The message in ``data[start:end]`` with its fields on ``path`` rewritten, all others copied."""
    if not path:
        return _without_raw_data(data, start, end, spans)
    pieces: list[bytes] = []
    for field in _fields(data, start, end):
        if field.number == path[0] and field.wire_type == _BYTES:
            body = _rewritten(data, field.body, field.end, path[1:], spans)
            pieces += [_varint(field.number << 3 | _BYTES), _varint(len(body)), body]
        else:
            pieces.append(data[field.start : field.end])
    return b"".join(pieces)


def _without_raw_data(data: Data, start: int, end: int, spans: list[Span | None]) -> bytes:
    span = None
    pieces = []
    for field in _fields(data, start, end):
        size = field.end - field.body
        if field.number == _RAW_DATA and field.wire_type == _BYTES and size > _INLINE_BYTES:
            span = Span(field.body, size)
        else:
            pieces.append(data[field.start : field.end])
    spans.append(span)
    return b"".join(pieces)


def _fields(data: Data, start: int, end: int) -> Iterator[_Field]:
    position = start
    while position < end:
        tag, body = _read_varint(data, position, end)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == _VARINT:
            _, field_end = _read_varint(data, body, end)
        elif wire_type == _BYTES:
            size, body = _read_varint(data, body, end)
            field_end = body + size
        elif wire_type in (_FIXED32, _FIXED64):
            field_end = body + (4 if wire_type == _FIXED32 else 8)
        else:
            raise ModelError(f"not an ONNX model: wire type {wire_type} at byte {position}")
        if field_end > end or number == 0:
            raise ModelError(f"not a complete ONNX model: the field at byte {position} ends past its message")
        yield _Field(number, wire_type, position, body, field_end)
        position = field_end


def _read_varint(data: Data, position: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while position < end and shift < 70:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            return value, position
        shift += 7
    raise ModelError(f"not a complete ONNX model: it breaks off at byte {position}")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
