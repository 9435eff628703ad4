"""What a step gave the caller, how long it took, and outputs in memory that the next step has planned."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from poet.util.brief import brief


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


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one training step gave.

    Attributes:
        loss: before the update.
        outputs: see `predictions`.
        seconds: wall clock of the step.
        own_seconds: processor time of the thread that made it, and its waits for storage: what the step would
            have taken on a machine with nothing else to do.
    """

    loss: float
    outputs: Outputs
    seconds: float
    own_seconds: float

    __repr__ = brief

    @property
    def predictions(self) -> tuple[torch.Tensor, ...]:
        """The model's outputs: the caller's own, copied when they are first asked for.

        A result that is still held when the next step begins is copied then: its outputs are memory of the
        caller's beside the budget.
        """
        return self.outputs.own


class Stopwatch:
    """Wall clock and own seconds since it was made."""

    def __init__(self, waited: Callable[[], float]) -> None:
        """Begin.

        Args:
            waited: seconds for which steps stood still for storage, so far.
        """
        self._waited = waited
        self._began = time.perf_counter(), self._own()

    def result(self, loss: float, outputs: Outputs) -> StepResult:
        """Of the step that was made meanwhile."""
        seconds, own_seconds = time.perf_counter() - self._began[0], self._own() - self._began[1]
        return StepResult(loss, outputs, seconds, own_seconds)

    def _own(self) -> float:
        return time.thread_time() + self._waited()
