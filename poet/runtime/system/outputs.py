"""What a step gave the caller beside its loss, in memory in which the next step has planned other tensors."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch


class Outputs:
    """The model's outputs of one step, which lie in the arena of steps until they have to be copied.

    That is when they are asked for, or when the next step begins while somebody still holds them. So who only
    wants the loss of a step has nothing beside the arena, and who keeps a result never has a tensor of the
    next step put elsewhere.
    """

    def __init__(
        self, tensors: Sequence[torch.Tensor], is_lent: Callable[[torch.Tensor], bool] | None = None
    ) -> None:
        """Hold them.

        Args:
            tensors: in the model's order.
            is_lent: whether one lies where the next step needs the room; ``None``: none does.
        """
        self._tensors, self._is_lent = tuple(tensors), is_lent

    def __repr__(self) -> str:
        return f"<{len(self._tensors)} tensors>"

    def __deepcopy__(self, memo: dict[int, Any]) -> Outputs:
        return Outputs(copy.deepcopy(self.own, memo))

    def __reduce__(self) -> tuple[type[Outputs], tuple[tuple[torch.Tensor, ...]]]:
        """Whoever stores a result stores tensors, and no arena."""
        return Outputs, (self.own,)

    @property
    def in_place(self) -> tuple[torch.Tensor, ...]:
        """Where they lie, for who reads them before the next step and keeps none."""
        return self._tensors

    @property
    def own(self) -> tuple[torch.Tensor, ...]:
        """In memory of their own; copied when this is first asked for."""
        if self._is_lent is not None:
            self._tensors = tuple(item.clone() if self._is_lent(item) else item for item in self._tensors)
            self._is_lent = None
        return self._tensors
