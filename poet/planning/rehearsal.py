"""What each op takes in a training step on this machine, measured in steps that keep everything.

A kernel that runs again and again by itself finds its weights and operands in the processor's caches; in a
step they come from memory, and every op has its share of the replay's own work. So the step itself is
made a few times, by the runtime, from the weights that the plan begins with. The times serve predictions for
this machine; costs on a device come from its profile.
"""

from __future__ import annotations

import logging

import torch

from poet.errors import PoetError
from poet.frontend.trace import TrainingStep
from poet.graph import Graph, Op
from poet.homes import as_decided
from poet.kernel_facts import KernelFacts
from poet.memory.demand import demand_of
from poet.memory.layout import lay_out
from poet.plans.plan_parts import Arena, Device, Model, Request, SearchOutcome
from poet.plans.training_plan import Plan, make_plan
from poet.problem import Limits, Place, Problem, ProblemOp, Tensor
from poet.random_batches import random_batch
from poet.runtime.system.memory import available_bytes
from poet.runtime.training.step_clock import seconds_in_steps
from poet.solvers.heuristics.keep_everything import keep_everything

_LONGEST_SECONDS = 1.0
"""Of one step, as its ops take by themselves; longer ones keep these times, which are truer of large ops."""
_RAM_SHARE = 0.5
"""Of what is available: the most that a rehearsal may take."""
_log = logging.getLogger(__name__)


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
        plan = keeping_plan(step)
        if plan.held_bytes > _RAM_SHARE * available_bytes():
            return kernels
        seconds, busy_ratio = seconds_in_steps(plan, step.tensors, random_batch(plan, seed=0))
    except (PoetError, RuntimeError, IndexError, MemoryError) as error:  # data that a kernel refuses, no room
        _log.info("ops keep the times that they have by themselves, no whole step could be made: %s", error)
        return kernels
    _log.info("a whole step takes %.3g s here, busy ratio %.2f", sum(seconds.values()), busy_ratio)
    return kernels.timed(seconds, busy_ratio)


def keeping_plan(step: TrainingStep) -> Plan:
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
            Tensor(
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
