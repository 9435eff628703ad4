"""Samples that stay where they are: arrays whose rows are read when they are asked for.

A column is one array of all samples, samples first. Rows are read with the file's own calls, not mapped: a
file that is cut while it is mapped ends the process, a read that comes short is one sentence.
"""

from __future__ import annotations

import math
import os
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import numpy.typing as npt

from poet.errors import InputError

MOST_HELD_BYTES = 64 * 1024 * 1024
"""An array up to this size is read whole; larger ones stay in their file."""

Array = npt.NDArray[Any]


class Column(Protocol):
    """One array of all samples.

    Attributes:
        shape: samples first.
        dtype: of the elements, as rows are given.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    def rows(self, numbers: Sequence[int]) -> Array:
        """The samples with these numbers, in this order.

        Raises:
            InputError: they cannot be read.
        """


def unnamed_file(folder: Path) -> IO[bytes]:
    """A file for samples, which vanishes when it is closed.

    Raises:
        OSError: it cannot be made; ``strerror`` says where, and the way out.
    """
    try:
        return tempfile.TemporaryFile(dir=folder)
    except OSError as error:
        where = f"samples are unpacked in {folder.absolute()}, which cannot be written: {error.strerror}"
        raise OSError(error.errno, f"{where}; start in another folder") from None


class ArrayColumn:
    """An array in memory."""

    def __init__(self, array: Array) -> None:
        self.array = array

    @property
    def shape(self) -> tuple[int, ...]:
        """See `Column`."""
        return self.array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """See `Column`."""
        return self.array.dtype

    def rows(self, numbers: Sequence[int]) -> Array:
        """See `Column`."""
        found: Array = self.array[list(numbers)]
        return found


class StoredColumn:
    """An array in the order of C in a file, which the column keeps open as long as it is there."""

    def __init__(
        self, file: IO[bytes], name: str, start: int, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> None:
        """Of ``file``, which is closed, the array begins at byte ``start``; ``name`` is for messages."""
        file.flush()
        self._descriptor = os.dup(file.fileno())
        file.close()
        weakref.finalize(self, os.close, self._descriptor)
        self._name, self._start = name, start
        self.shape, self.dtype = shape, dtype
        self._row_bytes = math.prod(shape[1:]) * dtype.itemsize

    def rows(self, numbers: Sequence[int]) -> Array:
        """See `Column`."""
        found = np.empty((len(numbers), *self.shape[1:]), dtype=self.dtype)
        if not self._row_bytes or not len(numbers):
            return found
        memory = found.reshape(-1).view(np.uint8).data
        for place, number in enumerate(numbers):
            target = memory[place * self._row_bytes : (place + 1) * self._row_bytes]
            self._fill(target, self._start + int(number) * self._row_bytes)
        return found

    def _fill(self, target: memoryview, start: int) -> None:
        done = 0
        while done < len(target):
            try:
                count = os.preadv(self._descriptor, [target[done:]], start + done)
            except OSError as cause:
                raise InputError(f"{self._name}: cannot be read ({cause.strerror})") from None
            if count == 0:
                raise InputError(f"{self._name}: it ends too early; was it written to meanwhile?")
            done += count
