"""What a replay moves within its arena, as it happens."""

from __future__ import annotations

import pytest

from poet.memory.demand import MadeMove
from poet.runtime.kernels.cells import Cells
from poet.runtime.steps import instructions as moving


def moves_noted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str, int]]:
    """A list that gets step, tensor and new place of each move; its place before and after are checked."""
    made: list[tuple[int, str, int]] = []
    move = moving.Moving._move

    def noted(self: moving.Moving, item: MadeMove, cells: Cells) -> None:
        assert cells.raw(item.tensor).data_ptr() == self._first + item.from_bytes
        move(self, item, cells)
        assert cells.raw(item.tensor).data_ptr() == self._first + item.to_bytes
        made.append((item.step, item.tensor, item.to_bytes))

    monkeypatch.setattr(moving.Moving, "_move", noted)
    return made
