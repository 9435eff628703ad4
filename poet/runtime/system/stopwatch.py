"""How long a step took: by the clock, and by what its own thread did."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from poet.runtime.system.outputs import Outputs
from poet.util.brief import brief


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
