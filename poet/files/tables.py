"""CSV files of numbers as samples: the lines stay in the file, their places are kept (8 bytes each).

The first line may name the columns. Those called ``targets``, ``target``, ``label`` or ``y`` are the targets,
else the last one is; the others, from left to right, are the input.
"""

from __future__ import annotations

import csv
import io
import math
import weakref
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from poet.errors import InputError
from poet.files.columns import Array, Column
from poet.files.reading import open_regular

_TARGETS = ("targets", "target", "label", "y")
_LONGEST_LINE = 1 << 24


def table_columns(
    path: Path, *, input_shape: tuple[int, ...], target_shape: tuple[int, ...]
) -> dict[str, Column]:
    """``inputs`` and ``targets`` of a CSV file, in samples of these shapes where they have as many numbers.

    Raises:
        InputError: it is no table of numbers.
    """
    try:
        file = open_regular(path, buffering=1 << 20)
    except OSError as cause:
        raise InputError(f"{path}: cannot be opened ({cause.strerror})") from None
    try:
        table = _Table(file, path)
    except BaseException:
        file.close()
        raise
    weakref.finalize(table, file.close)
    targets = [place for place, name in enumerate(table.names) if name.lower() in _TARGETS]
    targets = targets or [len(table.names) - 1]
    inputs = [place for place in range(len(table.names)) if place not in targets]
    if not inputs:
        raise InputError(f"{path}: a table needs a column of inputs and one of targets")
    return {
        "inputs": _TableColumn(table, inputs, input_shape),
        "targets": _TableColumn(table, targets, target_shape),
    }


class _Table:
    """The lines of a CSV file.

    Attributes:
        names: of its columns; numbers where the first line has none.
        starts: of the lines with numbers, in the file.
        are_whole: per column whether all of its numbers are.
    """

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self._file, self._path = file, path
        self._delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
        self.starts = array("q")
        self.names: tuple[str, ...] = ()
        self.are_whole: list[bool] = []
        place = 0
        for number, line in enumerate(iter(lambda: file.readline(_LONGEST_LINE), b""), 1):
            if len(line) == _LONGEST_LINE:
                raise InputError(f"{path}: line {number} is longer than {_LONGEST_LINE} bytes")
            if line.strip():
                self._take(line, number, place)
            place += len(line)
        if not self.starts:
            raise InputError(f"{path}: it has no line of numbers")

    def _take(self, line: bytes, number: int, place: int) -> None:
        cells = self._cells(line, number)
        if not self.names:
            is_header = any(_number(cell) is None for cell in cells)
            self.names = (
                tuple(cell.strip() for cell in cells) if is_header else tuple(map(str, range(len(cells))))
            )
            self.are_whole = [True] * len(cells)
            if is_header:
                return
        if len(cells) != len(self.names):
            raise InputError(
                f"{self._path}: line {number} has {len(cells)} cells, the first {len(self.names)}"
            )
        for column, cell in enumerate(cells):
            if _number(cell) is None:
                raise InputError(f"{self._path}: line {number}: {cell[:20]!r} is no number")
            self.are_whole[column] &= cell.strip().lstrip("+-").isdecimal()
        self.starts.append(place)

    def _cells(self, line: bytes, number: int) -> list[str]:
        try:
            text = line.decode("utf-8-sig")
            return next(csv.reader(io.StringIO(text), strict=True, delimiter=self._delimiter))
        except (UnicodeDecodeError, csv.Error, StopIteration):
            raise InputError(f"{self._path}: line {number} is no line of a CSV file") from None

    def line(self, number: int) -> list[str]:
        """The cells of a line with numbers."""
        try:
            self._file.seek(self.starts[number])
            cells = self._cells(self._file.readline(_LONGEST_LINE), number + 1)
        except OSError as cause:
            raise InputError(f"{self._path}: cannot be read ({cause.strerror})") from None
        if len(cells) != len(self.names) or any(_number(cell) is None for cell in cells):
            raise InputError(f"{self._path}: it was written to meanwhile")
        return cells


class _TableColumn:
    """Some cells of each line: whole numbers where all are, else float32."""

    def __init__(self, table: _Table, places: Sequence[int], wanted: tuple[int, ...]) -> None:
        self._table, self._places = table, places
        is_whole = all(table.are_whole[place] for place in places)
        self.dtype: np.dtype[Any] = np.dtype(np.int64 if is_whole else np.float32)
        shape = wanted if math.prod(wanted) == len(places) else (len(places),)
        self.shape: tuple[int, ...] = (len(table.starts), *shape)

    def rows(self, numbers: Sequence[int]) -> Array:
        """See `poet.files.columns.Column`."""
        found = np.empty((len(numbers), len(self._places)), dtype=self.dtype)
        for place, number in enumerate(numbers):
            cells = self._table.line(int(number))
            try:
                found[place] = [
                    int(cells[at]) if self.dtype.kind == "i" else float(cells[at]) for at in self._places
                ]
            except (ValueError, OverflowError):
                raise InputError("a whole number in the table has more than 64 bits") from None
        return found.reshape((len(numbers), *self.shape[1:]))


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None
