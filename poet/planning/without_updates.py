"""The updating schedule of a plan with its updates left out: it sums gradients, and fits where that one fits.

What a search finds for the accumulating step is better or as good; this is there where it finds nothing.
"""

from __future__ import annotations

from poet.graph import Graph
from poet.homes import DecidedProblem
from poet.kernel_facts import KernelFacts
from poet.memory.demand import BEFORE, Demand, demand_of
from poet.planning.arena_search import arena_around, places_begun
from poet.plans.plan_parts import Arena
from poet.plans.training_plan import Plan
from poet.problem import Place
from poet.schedule import Compute, PageOut, Schedule, Step


def without_updates(plan: Plan, graph: Graph, problem: DecidedProblem) -> tuple[Schedule, tuple[int, ...]]:
    """The schedule of ``plan`` without its updates, and the step of ``plan`` that each of its steps is.

    An op that sums and updates in strips becomes that which only sums. Where the two graphs have other ops in
    common, it is no valid schedule: who uses it asks the simulator.

    Args:
        plan: that updates.
        graph: that sums the same gradients and updates nothing.
        problem: of ``graph``.
    """
    names = _counterparts(plan.graph, graph)
    updates = {op.name: op.updates for op in problem.ops}
    versions = dict.fromkeys((tensor.name for tensor in problem.tensors), 0)
    stored = {t.name: {0} for t in problem.tensors if t.initially in (Place.STORAGE, Place.BOTH)}
    ran: set[str] = set()
    steps: list[Step] = []
    origins: list[int] = []
    for number, step in enumerate(plan.schedule):
        kept: Step | None = step
        if isinstance(step, Compute):
            name = names.get(step.op)
            kept = None if name is None else Compute(name)
            for tensor in () if name is None or name in ran else updates[name]:
                versions[tensor] += 1
            ran.add(name or "")
        elif step.tensor not in versions:
            kept = None  # it was made for an update
        elif isinstance(step, PageOut):
            copies = stored.setdefault(step.tensor, set())
            kept = None if versions[step.tensor] in copies else step
            copies.add(versions[step.tensor])
        if kept is not None:
            steps.append(kept)
            origins.append(number)
    return tuple(steps), tuple(origins)


def _counterparts(updating: Graph, summing: Graph) -> dict[str, str]:
    """The summing graph's name of each op of the updating graph that it has."""
    there = {op.name for op in summing.ops}
    adders = {name: op.name for op in summing.ops for name in op.updates}
    found = {op.name: op.name for op in updating.ops if op.name in there}
    for op in updating.ops:
        if op.strip is not None and op.name not in found:
            adder = next((adders[name] for name in op.updates if name in adders), None)
            found |= {} if adder is None else {op.name: adder}
    return found


def arena_of(
    plan: Plan, problem: DecidedProblem, schedule: Schedule, origins: tuple[int, ...], kernels: KernelFacts
) -> Arena | None:
    """Places in the plan's arena: those that the plan has for the same requests; ``None``: there are none."""
    layout = plan.layout
    if layout is None or not plan.has_fitting_arena:
        return None
    demand = demand_of(problem, schedule, kernels)
    has_moves = plan.arena is not None and bool(plan.arena.moves)
    theirs = {} if has_moves else _by_step(plan.demand)  # a place that is left is another's
    fixed = places_begun(demand, plan.begun_bytes)
    for step, requests in _by_step(demand).items():
        known = [] if step == BEFORE else theirs.get(origins[step], [])
        if [size for size, _ in requests] == [size for size, _ in known]:
            fixed |= {
                mine: layout.offsets_bytes[other]
                for (_, mine), (_, other) in zip(requests, known, strict=True)
                if mine not in fixed
            }
    return arena_around(plan, problem, schedule, demand, known_bytes=fixed)


def _by_step(demand: Demand) -> dict[int, list[tuple[int, int]]]:
    """Size and block of each request, by its step."""
    found: dict[int, list[tuple[int, int]]] = {}
    for item in demand.requests:
        found.setdefault(item.step, []).append((item.size_bytes, item.block))
    return found
