"""What each op takes in training steps on this machine, for calibrations.

A kernel that runs again and again by itself finds its weights and operands in the processor's caches. In a
step they come from memory, and every op has its share of the replay's own work. So the runtime makes whole
steps, with a clock before each op: of a traced step, which keeps everything, or of a running training.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from poet.devices.machine import Machine
from poet.devices.measurements import (
    RUN,
    TABLE,
    Measurements,
    OpTime,
    StepTime,
    TransferTime,
    alike_together,
    op_time,
    read_own,
    write_measurements,
)
from poet.errors import InputError
from poet.frontend.trace import TrainingStep
from poet.ir.graph import Graph, Op
from poet.memory.demand import demand_of
from poet.memory.layout import lay_out
from poet.plans.plan_parts import Arena, Device, Model, Request, SearchOutcome
from poet.plans.run_request import BUSY_RATIO
from poet.plans.training_plan import Plan, make_plan
from poet.problem import Limits, Place, Problem, ProblemOp
from poet.problem import Tensor as ProblemTensor
from poet.problem.homes import as_decided
from poet.problem.schedule import Compute
from poet.runtime import StepResult, Trainer
from poet.runtime.data.random_batches import random_batch
from poet.runtime.system.process import torch_threads
from poet.solvers.heuristics.policies import keep_everything

STEPS = 7
"""That are made of a training: others only make an op longer, so the lower quartile is taken."""

_WARM_STEPS = 1  # it maps the memory and checks its results
_LEAST_STEPS, _MOST_STEPS = 2, 9
_TIMED_SECONDS = 0.3  # more steps than the least only within this time
_SEED = 0

Batch = tuple[tuple[Tensor, ...], Tensor | tuple[Tensor, ...] | None]

_WALL, _OWN = 0, 1
_Instant = tuple[float, float]
"""Seconds by the wall clock and by this thread's own."""


def op_times(step: TrainingStep, *, whole: bool = True) -> tuple[tuple[OpTime, ...], float]:
    """The ops of whole steps made here and now, and wall clock over the steps' own time.

    The last op has with it what a step does before its first op and after its last, which may be fifty times
    what it takes itself: it is left out if not the ``whole`` step is asked for, but the ops.

    Raises:
        PoetError: the step cannot be made.
    """
    plan = _keeping_plan(step)
    made: list[StepResult] = []
    timed: list[tuple[dict[str, float], dict[str, float]]] = []
    batch = random_batch(plan, seed=_SEED)
    with Trainer(plan, _Beginning(step.tensors)) as trainer:
        for _ in range(_WARM_STEPS):
            trainer.step(*batch)
        while len(timed) < _LEAST_STEPS or (
            len(timed) < _MOST_STEPS and sum(result.seconds for result in made) < _TIMED_SECONDS
        ):
            begin = _now()
            result, stamps = _stamped_step(trainer, batch)
            made.append(result)
            end = _now()
            timed.append((_by_op(plan, stamps, begin, end, _WALL), _by_op(plan, stamps, begin, end, _OWN)))
    clock, ratio = _clock(made)
    seconds = {name: _lower_quartile(clocks[clock][name] for clocks in timed) for name in timed[0][clock]}
    if not whole:
        seconds.popitem()
    return times_of(step.graph, seconds), ratio


def step_of_run(trainer: Trainer, batch: Batch, *, machine: Machine) -> StepTime:
    """Further steps of a training, timed op by op; its plan may run an op again and page between ops.

    Ops that run in strips are left out: no single call is timed there. So is the schedule's last step.

    Args:
        trainer: whose state these steps change; save before.
        batch: inputs, and targets if there are any, of every step.
        machine: whose sensors tell whether it was slowed.

    Raises:
        InputError: every op runs in strips.
        ReplayError: a step failed.
    """
    plan = trainer.plan
    taken: tuple[dict[str, list[float]], dict[str, list[float]]] = defaultdict(list), defaultdict(list)
    made = []
    before = machine.state()
    for _ in range(STEPS):
        result, stamps = _stamped_step(trainer, batch)
        made.append(result)
        for index, following in zip(sorted(stamps), sorted(stamps)[1:], strict=False):
            if isinstance(run := plan.schedule[index], Compute):
                for clock in (_WALL, _OWN):
                    taken[clock][run.op].append(stamps[following][clock] - stamps[index][clock])
    after = machine.state()
    clock, ratio = _clock(made)
    whole = {op.name for op in plan.graph.ops if op.strip is None}
    seconds = {name: _lower_quartile(runs) for name, runs in taken[clock].items() if name in whole}
    if not seconds:
        raise InputError(f"{plan.model.name}: every op runs in strips, so none is timed by itself")
    ops, threads = times_of(plan.graph, seconds), torch.get_num_threads()
    return StepTime(plan.model.name, RUN, threads, ops, ratio, before, after, slowed=after.is_throttled)


def times_of(graph: Graph, seconds: Mapping[str, float]) -> tuple[OpTime, ...]:
    """Records of those of a graph's ops that took so many ``seconds``."""
    types = {value.name: value.type for value in graph.values}
    sizes_bytes = {buffer.name: buffer.size_bytes for buffer in graph.buffers}
    return alike_together(
        op_time(
            op.call,
            types,
            (types[name] if name is not None else None for name in op.outputs),
            updated_bytes=sum(sizes_bytes[name] for name in op.updates),
            seconds=max(seconds[op.name], 1e-9),
        )
        for op in graph.ops
        if op.name in seconds
    )


class _Beginning:
    """The tensors that a training step starts from, for a trainer of its own; see `Source`."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.steps = 0
        self.seed: int | None = None
        self.random_state: Tensor | None = torch.get_rng_state()
        self._tensors = tensors

    def fill(self, value: str, target: Tensor) -> None:
        """Write the content of the graph's ``value`` into ``target``."""
        target.copy_(self._tensors[value])

    def place_of(self, value: str) -> None:
        """In no file."""


def _now() -> _Instant:
    return time.perf_counter(), time.thread_time()


def _stamped_step(trainer: Trainer, batch: Batch) -> tuple[StepResult, dict[int, _Instant]]:
    """A step, and the clocks before each instruction that it tells of, by its index in the schedule."""
    stamps: dict[int, _Instant] = {}

    def stamp(index: int) -> None:
        stamps[index] = _now()

    return trainer.step(*batch, on_instruction=stamp), stamps


def _clock(made: Iterable[StepResult]) -> tuple[int, float]:
    """Which clock to trust, and wall clock over the steps' own time.

    With one thread, or where others had the processor, it is the thread's own, which stands still meanwhile.
    """
    ratio = statistics.median(result.seconds / max(result.own_seconds, 1e-9) for result in made)
    return _OWN if torch.get_num_threads() == 1 or ratio > BUSY_RATIO else _WALL, ratio


def _lower_quartile(seconds: Iterable[float]) -> float:
    return statistics.quantiles(seconds, n=4, method="inclusive")[0]


def _by_op(
    plan: Plan, stamps: Mapping[int, _Instant], begin: _Instant, end: _Instant, clock: int
) -> dict[str, float]:
    """Seconds of each op: to the next op, so that frees belong to the op before them.

    What the step does before its first op and after its last belongs to the last, which is an update
    and never runs again.
    """
    starts = [
        (step.op, stamps[index][clock])
        for index, step in enumerate(plan.schedule)
        if isinstance(step, Compute)
    ]
    ends = [*(start for _, start in starts[1:]), end[clock] + starts[0][1] - begin[clock]]
    return {op: stop - start for (op, start), stop in zip(starts, ends, strict=True)}


def _keeping_plan(step: TrainingStep) -> Plan:
    """A plan for this machine that runs every op once, in an arena; ops and transfers cost nothing in it."""
    problem = as_decided(_problem_in_ram(step))
    schedule = keep_everything(problem, Limits())
    assert schedule is not None  # with no limit there is nothing in its way
    layout = lay_out(demand_of(problem, schedule, step.kernels).blocks, time_limit_seconds=0.0)
    return make_plan(
        model=Model(step.graph.name, "module", ""),
        request=Request(limits=Limits(), loss=step.loss),
        device=Device("this-machine"),
        outcome=SearchOutcome("feasible", 0.0, "", 0.0, 0.0, 0.0, "keep-everything", 0.0),
        graph=step.graph,
        kernels=step.kernels,
        optimizer=step.optimizer,
        problem=problem,
        schedule=schedule,
        arena=Arena(layout.arena_bytes, layout.offsets_bytes),
    )


def _problem_in_ram(step: TrainingStep) -> Problem:
    """Of a step that nothing is paged of; no device's figures are needed."""
    graph, kernels = step.graph, step.kernels
    kept = {graph.buffer_of(value) for value in (graph.loss, *graph.predictions)}
    stays = graph.persistent()
    return Problem(
        name=graph.name,
        tensors=tuple(
            ProblemTensor(
                buffer.name,
                buffer.size_bytes,
                role=buffer.role.value,
                initially=Place.RAM if buffer.name in stays else None,
                finally_=Place.RAM if buffer.name in stays or buffer.name in kept else None,
            )
            for buffer in graph.buffers
        ),
        ops=tuple(_free_of_charge(graph, op, kernels.of(op.name).workspace_bytes) for op in graph.ops),
        alignment_bytes=kernels.alignment_bytes,
        kernels=kernels.library,
    )


def _free_of_charge(graph: Graph, op: Op, workspace_bytes: int) -> ProblemOp:
    return ProblemOp(
        name=op.name,
        inputs=tuple(dict.fromkeys((*graph.reads(op.call), *op.updates))),
        outputs=graph.writes(op),
        seconds=0.0,
        joules=0.0,
        workspace_bytes=workspace_bytes,
        updates=op.updates,
        recompute_inputs=None if op.recall is None else graph.reads(op.recall),
        recomputable=op.recall is not None,
        random=op.random,
    )


def steps_of_model(
    step: TrainingStep, *, name: str, threads: Sequence[int], repeats: int, machine: Machine
) -> tuple[StepTime, ...]:
    """Whole training steps of a model, measured op by op for its table.

    Args:
        step: that keeps every gradient whole, so that each op is one call.
        name: of the model.
        threads: of torch; each of them in turn.
        repeats: how often, each with steps of its own: how far these lie apart is the table's uncertainty.
        machine: whose sensors tell whether it was slowed.
    """
    made = []
    for count in threads:
        for _ in range(repeats):
            before = machine.state()
            with torch_threads(count):
                ops, busy_ratio = op_times(step)
            after = machine.state()
            made.append(
                StepTime(name, TABLE, count, ops, busy_ratio, before, after, slowed=after.is_throttled)
            )
    return tuple(made)


def begun(path: Path, machine: Machine) -> Measurements:
    """What the file has, or the beginning of one.

    Raises:
        InputError: it is of another machine or another torch, or no such file.
    """
    host = machine.host(torch=torch.__version__, threads=torch.get_num_threads())
    if not path.exists():
        if not path.parent.is_dir():
            raise InputError(f"{path}: cannot be written (its folder does not exist)")
        return Measurements(host, time.strftime("%Y-%m-%d", time.gmtime(machine.wall())))
    return read_own(path, host, any_threads=True)


def add_to(
    path: Path, machine: Machine, steps: Sequence[StepTime], transfers: Sequence[TransferTime] = ()
) -> Measurements:
    """The file with ``steps`` and ``transfers`` added, written whole or not at all.

    Raises:
        InputError: as of `begun`, or the file cannot be written.
    """
    found = begun(path, machine)
    found = replace(found, steps=(*found.steps, *steps), transfers=(*found.transfers, *transfers))
    write_measurements(path, found)
    return found
