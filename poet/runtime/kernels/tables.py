"""Some rows of an embedding table: what is looked up in them, and their gradient, as in the whole table."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from poet.errors import ReplayError

ReadRow = Callable[[int, memoryview], None]
"""Fills the memory with the row of that number of a table in storage."""

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


def stored_rows(read: ReadRow, numbers: Tensor, count: int, width: int, element: torch.dtype) -> Tensor:
    """What `torch.nn.functional.embedding` gives for a table in storage, each row read from there once.

    Args:
        read: rows of the table.
        numbers: of rows of the table, of any shape.
        count: rows of the table.
        width: elements of a row.
        element: their type.

    Returns:
        (numbers' shape, width).

    Raises:
        IndexError: a number is not one of the table's.
    """
    wanted = [*_each(numbers.tolist())]
    if wanted and not (min(wanted) >= 0 and max(wanted) < count):
        raise IndexError("index out of range in self")  # torch's words
    made = torch.empty((*numbers.shape, width), dtype=element)
    rows = made.view(len(wanted), width).view(torch.uint8).numpy()
    first: dict[int, int] = {}
    for place, row in enumerate(wanted):
        known = first.setdefault(row, place)
        if known == place:
            read(row, rows[place].data)
        else:
            rows[place] = rows[known]
    return made


def no_storage(row: int, memory: memoryview) -> None:
    """`ReadRow` where no page file is open.

    Raises:
        ReplayError: always.
    """
    raise ReplayError(f"row {row} of a table in storage is read where no page file is open")


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
