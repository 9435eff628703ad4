"""Weights of a frozen base in 4 or 8 bits: how many bytes a row of them takes, and which ones are packed.

Every row of a weight (an index of its first dimension) is packed by itself, so that rows are parts. The value
of an element is an integer times a scale, in float32, rounded once:

=========  ==========================================================================================
``q4_0``   blocks of 32, as GGUF has them: a float16 scale, then 16 bytes, of which byte *i* has element
           *i* in its low and element *i* + 16 in its high bits; the integer is what they say minus 8
``q8_0``   blocks of 32, as GGUF has them: a float16 scale, then 32 integers of 8 bits
``int8``   a row: a float32 scale, then integers of 8 bits (per channel, symmetric)
=========  ==========================================================================================
"""

from __future__ import annotations

import fnmatch
import math
from dataclasses import dataclass

from poet.errors import GraphError, InputError, nearest

DEQUANTISE = "poet.dequantise"
"""The operator that gives packed rows as float32."""

BLOCK = 32
"""Elements of a block, which lie in one row."""

BLOCK_BYTES = {"q4_0": 18, "q8_0": 34}
"""Of each block; ``int8`` has one scale for a whole row."""

FORMATS = (*BLOCK_BYTES, "int8")

IN_FLASH = ("poet-c99",)
"""Libraries whose kernels read packed weights where they lie, in flash: these take no RAM."""
USED_BYTES = 4 * BLOCK * BLOCK
"""Of float32: such kernels multiply by a packed weight a block of 32 x 32 at a time."""

_SCALE_BYTES = 4
_EXCEPT = "except="


def row_bytes(format_: str, elements: int) -> int:
    """Bytes of a packed row of so many elements; 0 where the format has no such row."""
    if format_ == "int8":
        return elements + _SCALE_BYTES if elements else 0
    return elements // BLOCK * BLOCK_BYTES[format_] if format_ in BLOCK_BYTES and elements % BLOCK == 0 else 0


@dataclass(frozen=True, slots=True)
class Packed:
    """How the bytes of a parameter are to be read.

    Attributes:
        format: one of `FORMATS`.
        shape: of the weight.
    """

    format: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise GraphError(f"a weight is packed as {', '.join(FORMATS)}, not as {self.format!r}")
        if len(self.shape) < 2 or min(self.shape) < 1 or not row_bytes(self.format, self.columns):
            raise GraphError(
                f"a weight of shape {list(self.shape)} has no rows that are packed as {self.format}"
            )

    @property
    def columns(self) -> int:
        """Elements of a row."""
        return math.prod(self.shape[1:])

    @property
    def packed_shape(self) -> tuple[int, int]:
        """Rows, and bytes of each."""
        return self.shape[0], row_bytes(self.format, self.columns)

    def with_rows(self, rows: int) -> Packed:
        """The same for so many rows."""
        return Packed(self.format, (rows, *self.shape[1:]))


@dataclass(frozen=True, slots=True)
class BaseSpec:
    """Which format frozen weights are packed in, and which are left as they are.

    Attributes:
        format: one of `FORMATS`.
        left_out: patterns of names of parameters that stay float32.
    """

    format: str
    left_out: tuple[str, ...] = ()

    @staticmethod
    def parse(text: str) -> BaseSpec:
        """``q4_0``, or with patterns that are left out: ``q4_0:except=*.head.*,words.*``.

        Raises:
            InputError: it is no format.
        """
        name, _, rest = text.partition(":")
        if name not in FORMATS:
            raise InputError(
                f"a base is {', '.join(FORMATS)}, not {name!r}{nearest(name, FORMATS)}; "
                f"to leave weights out: {FORMATS[0]}:{_EXCEPT}*.norm*"
            )
        patterns = tuple(filter(None, rest.removeprefix(_EXCEPT).split(",")))
        if rest and not (rest.startswith(_EXCEPT) and patterns):
            raise InputError(f"base {text!r}: behind the colon stands {_EXCEPT}PATTERN,PATTERN")
        return BaseSpec(name, patterns)

    def packed(self, name: str, shape: tuple[int, ...]) -> Packed | None:
        """How a frozen float32 weight is packed; ``None``: it stays as it is."""
        if len(shape) < 2 or min(shape) < 1 or not row_bytes(self.format, math.prod(shape[1:])):
            return None
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in self.left_out):
            return None
        return Packed(self.format, shape)
