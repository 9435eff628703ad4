"""What a kernel asks for while it runs: its outputs and its hidden temporaries, piece by piece."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from poet.errors import GraphError

_NONE = -1
_MOST_TICKS, _MOST_BYTES = 1 << 20, 1 << 48


@dataclass(frozen=True, slots=True)
class Piece:
    """One piece of memory that a kernel asks for.

    Attributes:
        size_bytes: as asked for.
        born: when, in ticks: asks and releases since the run began.
        died: the tick of the release; ``None``: with the run's end, or after it.
        output: which of the op's outputs it becomes; ``None``: a temporary.
    """

    size_bytes: int
    born: int
    died: int | None = None
    output: int | None = None

    def __post_init__(self) -> None:
        end = self.born + 1 if self.died is None else self.died
        if not 0 < self.size_bytes <= _MOST_BYTES or not 0 <= self.born < end <= _MOST_TICKS:
            raise GraphError(f"a piece of {self.size_bytes} bytes from {self.born} to {self.died} cannot be")
        if self.output is not None and (self.output < 0 or self.died is not None):
            raise GraphError(f"a piece that becomes output {self.output} is there when the run ends")

    def to_data(self) -> list[int]:
        """JSON-ready form, read back by `from_data`."""
        ends = (_NONE if value is None else value for value in (self.died, self.output))
        return [self.size_bytes, self.born, *ends]

    @staticmethod
    def from_data(data: Any, where: str) -> Piece:
        """The piece that `to_data` wrote.

        Raises:
            GraphError: ``data`` is not of that form.
        """
        if not isinstance(data, list) or len(data) != 4 or any(type(item) is not int for item in data):
            raise GraphError(f"{where}: a piece of memory is four whole numbers")
        size_bytes, born, died, output = data
        return Piece(size_bytes, born, None if died == _NONE else died, None if output == _NONE else output)


def ticks(pieces: Iterable[Piece]) -> int:
    """How many ticks a run lasts at least."""
    return 1 + max((max(piece.born, piece.died or 0) for piece in pieces), default=0)


def peak_bytes(pieces: Iterable[Piece], *, alignment_bytes: int) -> int:
    """The most that is held at once, each piece rounded up to the alignment."""
    changes = []
    for piece in pieces:
        size_bytes = -(-piece.size_bytes // alignment_bytes) * alignment_bytes
        changes += [(piece.born, size_bytes)]
        changes += [(piece.died, -size_bytes)] if piece.died is not None else []
    return max(accumulate(change for _, change in sorted(changes)), default=0)
