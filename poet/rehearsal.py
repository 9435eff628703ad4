"""What each op takes in a training step on this machine, measured in steps that keep everything.

A kernel that runs again and again by itself finds its weights and operands in the processor's caches; in a
step they come from memory, and every op has its share of the replay's own work. So the step itself is
made a few times, by the runtime, from the weights that the plan begins with. The times serve predictions for
this machine; costs on a device come from its profile.
"""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from poet.demand import demand_of
from poet.devices.costs import build_problem
from poet.devices.load import load_profile
from poet.errors import PoetError
from poet.frontend.trace import TrainingStep
from poet.homes import as_decided
from poet.kernel_facts import KernelFacts
from poet.layout import lay_out
from poet.problem import Limits
from poet.runtime.measure import seconds_in_steps
from poet.solvers.heuristics.keep_everything import keep_everything
from poet.training_plan import Arena, Device, Model, Plan, Request, SearchOutcome, make_plan
from poet.verification import random_batch

_LONGEST_SECONDS = 1.0
"""Of one step, as its ops take by themselves; longer ones keep these times, which are truer of large ops."""
_RAM_SHARE = 0.5
"""Of what is available: the most that a rehearsal may take."""
_log = logging.getLogger(__name__)
_KERNELS_OF = "x86-host"  # a profile whose ops are torch's own kernels


def rehearsed(step: TrainingStep) -> KernelFacts:
    """The kernels' facts of ``step`` with the seconds that its ops take in whole steps, made here and now.

    As they were where that cannot be had: the ops were not measured, or with another number of threads; a
    step takes too long or more RAM than this machine has to spare; or a random batch does not suit the model.
    torch's generator is left as it was.
    """
    kernels = step.kernels
    if kernels.timed_in_steps or kernels.threads != torch.get_num_threads():
        return kernels
    alone = kernels.step_seconds(op.name for op in step.graph.ops)
    if alone is None or sum(alone.values()) > _LONGEST_SECONDS:
        return kernels
    try:
        plan = _keeping_plan(step)
        if plan.held_bytes > _RAM_SHARE * _available_bytes():
            return kernels
        seconds, busy_ratio = seconds_in_steps(plan, step.tensors, random_batch(plan, seed=0))
    except (PoetError, RuntimeError, IndexError, MemoryError) as error:  # data that a kernel refuses, no room
        _log.info("ops keep the times that they have by themselves, no whole step could be made: %s", error)
        return kernels
    _log.info("a whole step takes %.3g s here, busy ratio %.2f", sum(seconds.values()), busy_ratio)
    return kernels.timed(seconds, busy_ratio)


def _keeping_plan(step: TrainingStep) -> Plan:
    """A plan for this machine that runs every op once, in an arena."""
    problem = as_decided(build_problem(step.graph, load_profile(_KERNELS_OF), step.kernels))
    schedule = keep_everything(problem, Limits())
    assert schedule is not None  # with no limit there is nothing in its way
    layout = lay_out(demand_of(problem, schedule, step.kernels).blocks, time_limit_seconds=0.0)
    return make_plan(
        model=Model(step.graph.name, "module", ""),
        request=Request(limits=Limits(), loss=step.loss),
        device=Device(_KERNELS_OF),
        outcome=SearchOutcome("feasible", 0.0, "", 0.0, 0.0, 0.0, "keep-everything", 0.0),
        graph=step.graph,
        kernels=step.kernels,
        optimizer=step.optimizer,
        problem=problem,
        schedule=schedule,
        arena=Arena(layout.arena_bytes, layout.offsets_bytes),
    )


def _available_bytes() -> float:
    """RAM that can be had without swapping; none where the system does not report it."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) * 1024.0 for line in lines if line.startswith("MemAvailable:")), 0.0)
