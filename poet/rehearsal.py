"""What each op takes in a training step on this machine, measured in steps that keep everything.

A kernel that runs again and again by itself finds its weights and operands in the processor's caches; in a
step they come from memory, and every op has its share of the replay's own work. So the step itself is
made a few times, by the runtime, from the weights that the plan begins with. The times serve predictions for
this machine; costs on a device come from its profile.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from poet.costs import build_problem
from poet.demand import demand_of
from poet.errors import PoetError
from poet.frontend.trace import TrainingStep
from poet.graph import Graph
from poet.layout import lay_out
from poet.problem import Limits
from poet.profiles import load_profile
from poet.runtime import StepResult, Trainer
from poet.schedule import Compute
from poet.solvers.keep_everything import keep_everything
from poet.training_plan import Arena, Device, Model, Outcome, Plan, Request, make_plan
from poet.training_run import BUSY_RATIO
from poet.verification import random_batch

_WARM_STEPS = 1  # it maps the memory and checks its results
_LEAST_STEPS, _MOST_STEPS = 2, 9
_TIMED_SECONDS = 0.3  # more steps than the least only within this time
_LONGEST_SECONDS = 1.0
"""Of one step, as its ops take by themselves; longer ones keep these times, which are truer of large ops."""
_RAM_SHARE = 0.5
"""Of what is available: the most that a rehearsal may take."""
_KERNELS_OF = "x86-host"  # a profile whose ops are torch's own kernels


def rehearsed(step: TrainingStep) -> Graph:
    """The graph of ``step`` with the seconds that its ops take in whole steps, made here and now.

    As it was where that cannot be had: the ops were not measured, or with another number of threads; a step
    takes too long or more RAM than this machine has to spare; or a random batch does not suit the model.
    torch's generator is left as it was.
    """
    graph = step.graph
    alone = [op.host_seconds for op in graph.ops if op.host_seconds is not None]
    if graph.timed_in_steps or graph.threads != torch.get_num_threads() or len(alone) < len(graph.ops):
        return graph
    if sum(alone) > _LONGEST_SECONDS:
        return graph
    try:
        plan = _keeping_plan(step)
        if plan.held_bytes > _RAM_SHARE * _available_bytes():
            return graph
        seconds, busy_ratio = _op_seconds(plan, step)
    except (PoetError, RuntimeError, IndexError, MemoryError):  # data that a kernel refuses, no room
        return graph
    ops = tuple(replace(op, host_seconds=seconds[op.name]) for op in graph.ops)
    return replace(graph, ops=ops, timed_in_steps=True, busy_ratio=busy_ratio)


def _keeping_plan(step: TrainingStep) -> Plan:
    """A plan for this machine that runs every op once, in an arena."""
    problem = build_problem(step.graph, load_profile(_KERNELS_OF))
    schedule = keep_everything(problem, Limits())
    assert schedule is not None  # with no limit there is nothing in its way
    layout = lay_out(demand_of(problem, schedule, step.graph).blocks, time_limit_seconds=0.0)
    return make_plan(
        model=Model(step.graph.name, "module", ""),
        request=Request(limits=Limits(), loss=step.loss),
        device=Device(_KERNELS_OF),
        outcome=Outcome("feasible", 0.0, "", 0.0, 0.0, 0.0, "keep-everything", 0.0),
        graph=step.graph,
        optimizer=step.optimizer,
        problem=problem,
        schedule=schedule,
        arena=Arena(layout.arena_bytes, layout.offsets_bytes),
    )


class _Beginning:
    """The tensors that a training step starts from, for a trainer of its own."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self.steps = 0
        self.seed: int | None = None
        self.random_state: torch.Tensor | None = torch.get_rng_state()
        self._tensors = tensors

    def fill(self, value: str, target: torch.Tensor) -> None:
        """Write the content of the graph's ``value`` into ``target``."""
        target.copy_(self._tensors[value])


def _op_seconds(plan: Plan, step: TrainingStep) -> tuple[dict[str, float], float]:
    """The lower quartile of each op over some steps: what else the machine does only makes them longer.

    And how much longer whole steps took than they did themselves. Where that is much, or with one thread, ops
    have the processor time of this thread, which stands still while others have the processor.
    """
    batch = random_batch(plan, seed=0)
    timed: list[tuple[dict[str, float], dict[str, float]]] = []
    made: list[StepResult] = []
    with Trainer(plan, _Beginning(step.tensors), pages=None) as trainer:
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


def _available_bytes() -> float:
    """RAM that can be had without swapping; none where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) * 1024.0 for line in lines if line.startswith("MemAvailable:")), 0.0)
