"""Weights in the GGUF format (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), as bytes.

A file says in its head what it is about, in values that are skipped here but for the alignment, then the
name, shape, type and place of each tensor. Little-endian, versions 2 and 3. Nothing of it is executed.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from poet.errors import InputError
from poet.ir.packed import row_bytes
from poet.util.reading import MOST_DIMENSIONS, Closing, open_regular, shown

_MAGIC, _VERSIONS = b"GGUF", (2, 3)
_HEAD_LIMIT_BYTES = 1 << 26  # words of a tokenizer take some MiB
_MOST_TENSORS, _LARGEST = 1 << 16, 1 << 40
_STRING, _ARRAY = 8, 9
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of a value, by the number of its type."""
_TYPES = {0: "float32", 1: "float16", 2: "q4_0", 8: "q8_0", 30: "bfloat16"}
_ALIGNMENT, _ARCHITECTURE = b"general.alignment", b"general.architecture"


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """What a file says about a tensor.

    Attributes:
        type: of its elements, as torch has it, or the format of its rows; empty: another one.
        number: that the file has for the type.
        shape: rows first.
        start: the first byte in the file; ``size_bytes``: how many there are; 0 where the type is another.
    """

    type: str
    number: int
    shape: tuple[int, ...]
    start: int
    size_bytes: int


class GgufFile(Closing):
    """An open file, its head checked: every tensor of a type that is read lies in it.

    Attributes:
        path: for messages.
        architecture: of the model, as ``qwen2``; empty: it does not say.
        tensors: by name.
    """

    def __init__(self, path: Path) -> None:
        """Open it.

        Raises:
            InputError: it cannot be read, or is no such file.
        """
        self.path = path
        try:
            self._file = open_regular(path, buffering=0)
            self._file_bytes = os.fstat(self._file.fileno()).st_size
            head = os.pread(self._file.fileno(), min(self._file_bytes, _HEAD_LIMIT_BYTES), 0)
        except OSError as cause:
            raise InputError(f"{path}: cannot be read ({cause.strerror})") from None
        reader = _Head(head, self._file_bytes)
        try:
            self.tensors: Mapping[str, GgufTensor] = reader.tensors()
        except _Damaged as why:
            self._file.close()
            raise InputError(f"{path.name}: not a usable GGUF file ({why}); get it again") from None

        self.architecture = reader.architecture

    def read(self, name: str) -> bytearray:
        """The bytes of a tensor.

        Raises:
            InputError: they cannot be read, or are of a type that is not read.
        """
        tensor = self.tensors[name]
        if not tensor.type:
            raise InputError(
                f"{self.path.name}: {name} is of GGUF's type {tensor.number}; "
                f"poet reads {', '.join(_TYPES.values())}"
            )
        content, done = bytearray(tensor.size_bytes), 0
        while done < len(content):
            try:
                count = os.preadv(self._file.fileno(), [memoryview(content)[done:]], tensor.start + done)
            except OSError as cause:
                raise InputError(f"{self.path}: cannot be read ({cause.strerror})") from None
            if not count:
                raise InputError(f"{self.path.name}: {name} ends too early; get it again")
            done += count
        return content

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._file.close()


class _Damaged(Exception):
    pass


class _Head:
    """The head of a file, read from its first byte on."""

    def __init__(self, content: bytes, file_bytes: int) -> None:
        self._content, self._file_bytes, self._at = content, file_bytes, 0
        self.architecture = ""

    def tensors(self) -> dict[str, GgufTensor]:
        if self._bytes(4) != _MAGIC:
            raise _Damaged("it does not begin with GGUF")
        version, count, values = self._numbers("<IQQ")
        if version not in _VERSIONS:
            raise _Damaged(f"its version is {version}; {_VERSIONS[0]} and {_VERSIONS[1]} are read")
        if count > _MOST_TENSORS:
            raise _Damaged(f"it has {count} tensors, at most {_MOST_TENSORS} are read")
        alignment = 32
        for _ in range(values):
            key, (kind,) = self._string(), self._numbers("<I")
            if key == _ALIGNMENT and kind == 4:
                (alignment,) = self._numbers("<I")
            elif key == _ARCHITECTURE and kind == _STRING:
                self.architecture = self._string().decode(errors="replace")
            else:
                self._skip(kind)
        if not 0 < alignment <= 1 << 20 or alignment & (alignment - 1):
            raise _Damaged(f"its tensors are aligned to {alignment} bytes")
        told = [self._told() for _ in range(count)]
        base = -(-self._at // alignment) * alignment
        found: dict[str, GgufTensor] = {}
        for name, shape, number, offset in told:
            if name in found:
                raise _Damaged(f"it has {shown(name)} twice")
            found[name] = self._tensor(name, shape, number, base + offset)
        return found

    def _told(self) -> tuple[str, tuple[int, ...], int, int]:
        try:
            name = self._string().decode()
        except UnicodeDecodeError:
            raise _Damaged("the name of a tensor is no text") from None
        (dims,) = self._numbers("<I")
        if not 0 < dims <= MOST_DIMENSIONS:
            raise _Damaged(f"{shown(name)} has {dims} dimensions")
        shape = self._numbers(f"<{dims}Q")[::-1]
        number, offset = self._numbers("<IQ")
        if min(shape) < 1 or max(shape) > _LARGEST or math.prod(shape) > _LARGEST:
            raise _Damaged(f"{shown(name)} has a shape that no memory holds")
        return name, shape, number, offset

    def _tensor(self, name: str, shape: tuple[int, ...], number: int, start: int) -> GgufTensor:
        kind = _TYPES.get(number, "")
        if not kind:
            return GgufTensor("", number, shape, start, 0)
        widths = {"float32": 4, "float16": 2, "bfloat16": 2}
        own_bytes = widths[kind] * shape[-1] if kind in widths else row_bytes(kind, shape[-1])
        size_bytes = math.prod(shape[:-1]) * own_bytes
        if not own_bytes or start + size_bytes > self._file_bytes:
            raise _Damaged(f"{shown(name)} does not lie in it")
        return GgufTensor(kind, number, shape, start, size_bytes)

    def _skip(self, kind: int) -> None:
        if kind == _STRING:
            self._string()
        elif kind == _ARRAY:
            item, count = self._numbers("<IQ")
            if item == _STRING:
                for _ in range(count):
                    self._string()
            elif item in _SIZES:
                self._bytes(count * _SIZES[item])
            else:
                raise _Damaged(f"a list in it has items of type {item}")
        elif kind in _SIZES:
            self._bytes(_SIZES[kind])
        else:
            raise _Damaged(f"a value in it is of type {kind}")

    def _string(self) -> bytes:
        (size,) = self._numbers("<Q")
        return self._bytes(size)

    def _numbers(self, form: str) -> tuple[Any, ...]:
        return struct.unpack(form, self._bytes(struct.calcsize(form)))

    def _bytes(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._content):
            raise _Damaged("it ends within its head")
        part, self._at = self._content[self._at : end], end
        return part
