"""Some rows of an embedding table: what is looked up in them, and their gradient, as in the whole table."""

from __future__ import annotations

import torch
from torch import Tensor

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
