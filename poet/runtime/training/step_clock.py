"""How long each op takes in whole steps on this machine, for a rehearsal."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping

import torch
from torch import Tensor

from poet.plans.run_request import BUSY_RATIO
from poet.plans.training_plan import Plan
from poet.runtime.training.trainer import StepResult, Trainer
from poet.schedule import Compute

_WARM_STEPS = 1  # it maps the memory and checks its results
_LEAST_STEPS, _MOST_STEPS = 2, 9
_TIMED_SECONDS = 0.3  # more steps than the least only within this time


class _Beginning:
    """The tensors that a training step starts from, for a trainer of its own."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.steps = 0
        self.seed: int | None = None
        self.random_state: Tensor | None = torch.get_rng_state()
        self._tensors = tensors

    def fill(self, value: str, target: Tensor) -> None:
        """Write the content of the graph's ``value`` into ``target``."""
        target.copy_(self._tensors[value])

    def place_of(self, value: str) -> None:
        """See `poet.runtime.storage.state.Source`; in no file."""


def seconds_in_steps(
    plan: Plan,
    tensors: Mapping[str, Tensor],
    batch: tuple[tuple[Tensor, ...], Tensor | tuple[Tensor, ...] | None],
) -> tuple[dict[str, float], float]:
    """Seconds of each op in whole steps of ``plan``, made here and now, and how busy the machine was.

    The lower quartile over some steps: what else the machine does only makes them longer. Busy is the wall
    clock of whole steps over what they took themselves. Where that is much, or with one thread, ops have the
    processor time of this thread, which stands still while others have the processor. torch's generator is
    left as it was.

    Args:
        plan: whose ops run once each.
        tensors: that training starts from, by value name; they are copied.
        batch: inputs, and targets if there are any, of every step.
    """
    timed: list[tuple[dict[str, float], dict[str, float]]] = []
    made: list[StepResult] = []
    with Trainer(plan, _Beginning(tensors), pages=None) as trainer:
        for _ in range(_WARM_STEPS):
            trainer.step(*batch)
        while len(timed) < _LEAST_STEPS or (
            len(timed) < _MOST_STEPS and sum(result.seconds for result in made) < _TIMED_SECONDS
        ):
            stamps: dict[int, _Instant] = {}

            def stamp(index: int, taken: dict[int, _Instant] = stamps) -> None:
                taken[index] = _now()

            begin = _now()
            made.append(trainer.step(*batch, on_instruction=stamp))
            end = _now()
            wall, own = (
                _by_op(plan, {index: at[clock] for index, at in stamps.items()}, begin[clock], end[clock])
                for clock in (_WALL, _OWN)
            )
            timed.append((wall, own))
    ratio = statistics.median(result.seconds / max(result.own_seconds, 1e-9) for result in made)
    clock = _OWN if torch.get_num_threads() == 1 or ratio > BUSY_RATIO else _WALL
    chosen = [clocks[clock] for clocks in timed]
    return {name: _lower_quartile([seconds[name] for seconds in chosen]) for name in chosen[0]}, ratio


_WALL, _OWN = 0, 1
_Instant = tuple[float, float]
"""Seconds by the wall clock and by this thread's own."""


def _now() -> _Instant:
    return time.perf_counter(), time.thread_time()


def _lower_quartile(seconds: list[float]) -> float:
    return statistics.quantiles(seconds, n=4, method="inclusive")[0]


def _by_op(plan: Plan, stamps: Mapping[int, float], begin: float, end: float) -> dict[str, float]:
    """Seconds of each op: to the next op, so that frees belong to the op before them.

    What the step does before its first op and after its last belongs to the last, which is an update
    and never runs again.

    Args:
        plan: that was replayed.
        stamps: before each op, by its index in the schedule.
        begin: of the whole step.
        end: likewise.
    """
    starts = [
        (step.op, stamps[index]) for index, step in enumerate(plan.schedule) if isinstance(step, Compute)
    ]
    ends = [*(start for _, start in starts[1:]), end + starts[0][1] - begin]
    return {op: stop - start for (op, start), stop in zip(starts, ends, strict=True)}
