"""How many bytes a plan is followed without, so that its arena fits: first by jumps, then by halving.

What an arena lacks at fixed places shrinks by about a byte for each byte that its plan is without. So a plan
without the missing bytes mostly fits, or nearly does; where it fits, less may do.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class LeastHeld:
    """Between which bytes the least held back that fits lies.

    Attributes:
        low_bytes: the most that were held back in vain.
        missing_bytes: that the arena lacked with them.
        high_bytes: the least with which it fitted; ``None``: none did so far.
    """

    low_bytes: int
    missing_bytes: int
    high_bytes: int | None = None

    @property
    def next_bytes(self) -> int:
        """To be held back next."""
        if self.high_bytes is None:
            return self.low_bytes + self.missing_bytes
        return (self.low_bytes + self.high_bytes) // 2

    def is_close(self, close_bytes: int) -> bool:
        """Whether what is enough and what is not are no further apart than ``close_bytes``."""
        return self.high_bytes is not None and self.high_bytes - self.low_bytes <= close_bytes

    def tell(self, held_bytes: int, missing_bytes: int) -> None:
        """That an arena lacks ``missing_bytes``, or nothing, with ``held_bytes`` held back."""
        if missing_bytes <= 0:
            self.high_bytes = held_bytes
        else:
            self.low_bytes, self.missing_bytes = held_bytes, missing_bytes
