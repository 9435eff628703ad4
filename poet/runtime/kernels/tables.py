"""Some rows of an embedding table: what is looked up in them, and their gradient, as in the whole table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from poet.errors import ReplayError


class StoredTable(Protocol):
    """A table where it lies in storage, by the numbers of its rows."""

    def read(self, row: int, memory: memoryview) -> None:
        """Fill ``memory`` with a row."""

    def change(self, row: int, change: Callable[[memoryview], None]) -> None:
        """Write a row back as ``change`` leaves it in the memory that it is given."""


_OF_OTHER_ROWS = -1  # the number of no row


def look_up(rows: Tensor, numbers: Tensor, first: int, count: int, found: Tensor | None) -> Tensor:
    """What of ``numbers`` is in ``rows``, which begin with row ``first`` of a table of ``count``.

    Each number is in one part of its table, so that a look-up in all parts in turn gives the whole's bits.

    Args:
        rows: (n, width) of the table.
        numbers: of rows of the table, of any shape.
        first: number of the first of ``rows``.
        count: rows of the whole table.
        found: (numbers' shape, width): what look-ups in other rows gave so far; ``None``: nothing yet.

    Returns:
        (numbers' shape, width): ``found`` with the rows that are here; before anything is found, rows of
        other numbers are arbitrary ones.

    Raises:
        IndexError: a number is not one of the table's.
    """
    if numbers.numel() and not (int(numbers.min()) >= 0 and int(numbers.max()) < count):
        raise IndexError("index out of range in self")  # torch's words
    local, elsewhere = _local(numbers, first, len(rows))
    made: Tensor = torch.ops.aten.embedding.default(rows, local.masked_fill_(elsewhere, 0))
    if found is not None:
        torch.where(elsewhere.unsqueeze(-1), found, made, out=made)
    return made


def stored_rows(table: StoredTable, numbers: Tensor, count: int, width: int, element: torch.dtype) -> Tensor:
    """What `torch.nn.functional.embedding` gives for a table in storage, each row read from there once.

    Args:
        table: whose rows are read.
        numbers: of rows of the table, of any shape.
        count: rows of the table.
        width: elements of a row.
        element: their type.

    Returns:
        (numbers' shape, width).

    Raises:
        IndexError: a number is not one of the table's.
    """
    wanted = _listed(numbers, count)
    made = torch.empty((*numbers.shape, width), dtype=element)
    rows = made.view(len(wanted), width).view(torch.uint8).numpy()
    first: dict[int, int] = {}
    for place, row in enumerate(wanted):
        known = first.setdefault(row, place)
        if known == place:
            table.read(row, rows[place].data)
        else:
            rows[place] = rows[known]
    return made


def stored_rows_sgd(
    table: StoredTable,
    numbers: Tensor,
    count: int,
    width: int,
    element: torch.dtype,
    gradient: Tensor,
    lr: float,
    padding: int,
) -> None:
    """`torch.optim.SGD` without momentum or decay on a table in storage: the rows that change, each once.

    Gradients of a row are summed in the order of ``numbers``, as those of the whole table are. All other rows
    have a gradient of nothing; where even that changes a number, as a rate that is not finite does, every
    row is updated.

    Args:
        table: whose rows are updated.
        numbers: of rows of the table that were looked up, of any shape.
        count: rows of the table.
        width: elements of a row.
        element: their type, float32.
        gradient: (numbers' shape, width) of what was looked up.
        lr: of the update.
        padding: the number of a row that gets no gradient; -1: there is none.

    Raises:
        IndexError: a number is not one of the table's.
    """
    wanted, places = _listed(numbers, count), dict[int, int]()
    local = torch.empty(numbers.shape, dtype=torch.int64)
    local.view(-1).numpy()[:] = [
        _OF_OTHER_ROWS if row == padding else places.setdefault(row, len(places)) for row in wanted
    ]
    sums: Tensor = torch.ops.aten.embedding_dense_backward.default(
        gradient, local, len(wanted), _OF_OTHER_ROWS, False
    )
    nothing = torch.from_numpy(np.zeros(width, np.float32))
    for row in range(count) if _changes_alone(lr) else sorted(places):
        given = sums[places[row]] if row in places else nothing

        def update(memory: memoryview, given: Tensor = given) -> None:
            torch.frombuffer(memory, dtype=element).add_(given, alpha=-lr)

        table.change(row, update)


def _changes_alone(lr: float) -> bool:
    """Whether an update of this rate by a gradient of nothing changes some number, as -0 or the least one."""
    before = np.array([0x80000000, 0, 1, 0x3F800000], np.uint32)  # as bits, which nothing flushes to 0
    after = torch.from_numpy(before.copy().view(np.float32))
    after.add_(torch.from_numpy(np.zeros(len(before), np.float32)), alpha=-lr)
    return after.numpy().tobytes() != before.tobytes()


def _listed(numbers: Tensor, count: int) -> list[int]:
    """The elements of ``numbers`` in C order.

    Raises:
        IndexError: one is not the number of one of ``count`` rows.
    """
    wanted = [*_each(numbers.tolist())]
    if wanted and not (min(wanted) >= 0 and max(wanted) < count):
        raise IndexError("index out of range in self")  # torch's words
    return wanted


class _NoStorage:
    """`StoredTable` where no page file is open."""

    def read(self, row: int, memory: memoryview) -> None:
        raise ReplayError(f"row {row} of a table in storage is read where no page file is open")

    def change(self, row: int, change: Callable[[memoryview], None]) -> None:
        raise ReplayError(f"row {row} of a table in storage is updated where no page file is open")


NO_STORAGE: StoredTable = _NoStorage()


def _each(numbers: int | list[object]) -> Iterator[int]:
    if isinstance(numbers, list):
        for item in numbers:
            yield from _each(item)  # type: ignore[arg-type]
    else:
        yield numbers


def look_up_backward(gradient: Tensor, numbers: Tensor, first: int, count: int, padding: int) -> Tensor:
    """The gradient of ``count`` rows of a table from row ``first`` on: (count, width).

    Args:
        gradient: (numbers' shape, width) of what was looked up.
        numbers: of rows of the table.
        first: number of the first row.
        count: of rows.
        padding: the number of a row that gets no gradient; -1: there is none.
    """
    local, elsewhere = _local(numbers, first, count)
    local.masked_fill_(elsewhere | (numbers == padding), _OF_OTHER_ROWS)
    made: Tensor = torch.ops.aten.embedding_dense_backward.default(
        gradient, local, count, _OF_OTHER_ROWS, False
    )
    return made


def _local(numbers: Tensor, first: int, count: int) -> tuple[Tensor, Tensor]:
    """The numbers among ``count`` rows from ``first`` on, and which are those of other rows."""
    local = numbers - first
    return local, (local < 0) | (local >= count)
