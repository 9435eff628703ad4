"""Samples that are no arrays yet: CSV files, folders of images, and functions of the user's own.

Of a CSV file the places of lines are kept (8 bytes each). The first line may name the columns: those called
``targets``, ``target``, ``label`` or ``y`` are the targets, else the last one is; the others are the input.
Images are decoded by Pillow when asked for, channels first. A function ``module:function`` gives an iterable,
written once to an unnamed file, so that it is shuffled and gone on with like a file.
"""

from __future__ import annotations

import csv
import importlib
import io
import math
import os
import sys
import warnings
import weakref
from array import array
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from poet.errors import InputError
from poet.files.arrays import Array, ArrayColumn, Column, StoredColumn, unnamed_file
from poet.util.reading import open_regular

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


_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".pgm", ".ppm")
_FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "GIF", "TIFF", "PPM")
_MODES = {1: "L", 3: "RGB"}


def image_columns(folder: Path, sample_shape: Sequence[int]) -> dict[str, Column]:
    """``inputs`` and ``targets`` of a folder of images, for a plan that takes ``[C,H,W]``.

    Raises:
        InputError: there are no images, Pillow is missing, or the plan takes none.
    """
    try:
        import PIL.Image  # noqa: F401
    except ImportError:
        raise InputError(f"{folder}: images are read by Pillow; python -m pip install pillow") from None
    if len(sample_shape) != 3 or sample_shape[0] not in _MODES:
        raise InputError(
            f"{folder}: the plan takes samples of shape {list(sample_shape)}; images are [1,H,W] or [3,H,W]"
        )
    classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    paths, targets = [], []
    for number, name in enumerate(classes):
        for file in sorted((folder / name).iterdir()):
            if file.suffix.lower() in _SUFFIXES:
                paths.append(file)
                targets.append(number)
    if not paths:
        raise InputError(f"{folder}: it has no folder per class with images, nor .npy files")
    inputs = _ImageColumn(paths, (sample_shape[0], sample_shape[1], sample_shape[2]))
    return {"inputs": inputs, "targets": ArrayColumn(np.asarray(targets, dtype=np.int64))}


class _ImageColumn:
    """Decodes images when they are asked for."""

    def __init__(self, paths: Sequence[Path], sample_shape: tuple[int, int, int]) -> None:
        self._paths = paths
        self.shape: tuple[int, ...] = (len(paths), *sample_shape)
        self.dtype: np.dtype[Any] = np.dtype(np.uint8)

    def rows(self, numbers: Sequence[int]) -> Array:
        found = np.empty((len(numbers), *self.shape[1:]), dtype=np.uint8)
        for place, number in enumerate(numbers):
            found[place] = self._decoded(self._paths[int(number)])
        return found

    def _decoded(self, path: Path) -> Array:
        from PIL import Image

        channels, height, width = self.shape[1:]
        try:
            with warnings.catch_warnings(), open_regular(path) as file:
                warnings.simplefilter("error")  # Pillow warns of images that unpack to too much
                with Image.open(file, formats=_FORMATS) as image:
                    made = image.convert(_MODES[channels])
                    if made.size != (width, height):
                        made = made.resize((width, height), Image.Resampling.BILINEAR)
        except Exception as error:  # Pillow raises a dozen kinds; each means the same here
            raise InputError(f"{path}: not a readable image ({' '.join(str(error).split())[:120]})") from None
        pixels = np.asarray(made)
        return pixels[np.newaxis] if channels == 1 else pixels.transpose(2, 0, 1)


def is_function(text: str) -> bool:
    """Whether ``text`` names a function, as ``module:function``, and not a file."""
    module, colon, function = text.partition(":")
    named = bool(colon) and function.isidentifier() and all(part.isidentifier() for part in module.split("."))
    return named and not Path(text).exists()


def function_named(text: str) -> Callable[[], object]:
    """The user's own function that ``module:function`` names, whose module may lie in the working folder.

    Raises:
        InputError: the module cannot be imported, or has no such function.
    """
    module, _, name = text.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), name, None)
    except Exception as error:
        raise InputError(f"{text}: the module {module} cannot be imported ({line_of(error)})") from None
    if not callable(found):
        raise InputError(f"{text}: {module} has no function {name}")
    function: Callable[[], object] = found
    return function


def spooled_columns(text: str, names: list[str], folder: Path) -> dict[str, Column]:
    """The samples of the iterable that ``module:function`` gives, as columns called ``names``.

    Args:
        text: the function's name; its module is looked for in the working folder too.
        names: of the arrays of a sample, in their order.
        folder: where the unnamed files are.

    Raises:
        InputError: there is no such function, it fails, or a sample has other arrays than the first.
    """
    found = function_named(text)
    files: list[IO[bytes]] = []
    kinds: list[tuple[tuple[int, ...], np.dtype[np.generic]]] = []
    count = 0
    try:
        for count, sample in enumerate(_samples(found(), text), 1):
            arrays = _arrays(sample, len(names), text)
            if not files:
                kinds = [(item.shape, item.dtype) for item in arrays]
                files = [unnamed_file(folder) for _ in arrays]
            if [(item.shape, item.dtype) for item in arrays] != kinds:
                raise InputError(f"{text}: sample {count} has arrays of another shape or type than the first")
            for file, item in zip(files, arrays, strict=True):
                file.write(item.tobytes())
        if not files:
            raise InputError(f"{text}: it gives no samples")
    except BaseException as error:
        for file in files:
            file.close()
        if isinstance(error, InputError) or not isinstance(error, Exception):
            raise
        raise InputError(f"{text}: sample {count + 1} fails ({line_of(error)})") from None
    return {
        name: StoredColumn(file, text, 0, (count, *shape), dtype)
        for name, file, (shape, dtype) in zip(names, files, kinds, strict=True)
    }


def _samples(given: object, text: str) -> Iterable[object]:
    if not isinstance(given, Iterable):
        raise InputError(f"{text}: it gives {type(given).__name__}, not an iterable of samples")
    return given


def _arrays(sample: object, count: int, text: str) -> list[Array]:
    parts = list(sample) if isinstance(sample, tuple | list) else [sample]
    if len(parts) != count:
        raise InputError(f"{text}: a sample has {len(parts)} arrays, the plan takes {count}")
    arrays: list[Array] = [np.asarray(part) for part in parts]
    for item in arrays:
        if item.dtype.kind not in "biuf":
            raise InputError(f"{text}: a sample has elements of type {item.dtype}, which are no numbers")
    return arrays


def line_of(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
