"""How long a step took: by the clock, and by what its own thread did."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from poet.brief import brief


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one training step gave.

    Attributes:
        loss: before the update.
        predictions: the model's outputs; keeping them keeps their memory.
        seconds: wall clock of the step.
        own_seconds: processor time of the thread that made it, and its waits for storage: what the step would
            have taken on a machine with nothing else to do.
    """

    loss: float
    predictions: tuple[torch.Tensor, ...]
    seconds: float
    own_seconds: float

    __repr__ = brief


class Stopwatch:
    """Wall clock and own seconds since it was made."""

    def __init__(self, waited: Callable[[], float]) -> None:
        """Begin.

        Args:
            waited: seconds for which steps stood still for storage, so far.
        """
        self._waited = waited
        self._began = time.perf_counter(), self._own()

    def result(self, loss: float, predictions: tuple[torch.Tensor, ...]) -> StepResult:
        """Of the step that was made meanwhile."""
        seconds, own_seconds = time.perf_counter() - self._began[0], self._own() - self._began[1]
        return StepResult(loss, predictions, seconds, own_seconds)

    def _own(self) -> float:
        return time.thread_time() + self._waited()
