"""What the exact models are offered: where a relaxed plan pretends, and the block where RAM is tightest."""

from __future__ import annotations

from pathlib import Path

import pytest

from poet.budgets import keep_everything_bytes
from poet.problem import Limits, Problem
from poet.solvers.candidates import densest, fullest
from poet.solvers.engines import Effort, run_engine
from poet.solvers.events import Instance, instance_of, timeline_of
from poet.solvers.guide import merged, remade_dearly, suggested
from poet.solvers.milp import build

EFFORT = Effort(seconds=60.0, threads=1, seed=0, absolute_joules=1e-9, relative=0.0)


@pytest.fixture(scope="module")
def deep() -> Instance:
    """ResNet-18 at CIFAR size with Cortex-M4 costs in a fifth of the RAM: reruns of reruns pay."""
    problem = Problem.load(Path(__file__).parent / "instances" / "resnet18_cifar.m4.json")
    return instance_of(problem, Limits(ram_budget_bytes=keep_everything_bytes(problem) // 5))


def test_the_densest_block_holds_the_largest_contents_where_they_are_read(deep: Instance) -> None:
    early = next(task for task in deep.tasks if "Conv2d" in task.name)
    size = max(deep.contents[c].bytes for c in early.outputs)
    block = densest(deep, early.outputs)
    (widest,) = fullest(deep)
    tasks = {number for numbers in block.values() for number in numbers}
    assert early.number in tasks
    assert all(max(deep.contents[c].bytes for c in deep.tasks[number].outputs) >= size for number in tasks)
    assert list(block) == list(range(min(block), max(block) + 1))
    assert min(block) > widest > max(tasks)
    read = {c for number in tasks for c in deep.tasks[number].outputs}
    assert read.intersection(deep.tasks[min(block)].reads)
    assert not any(read.intersection(task.reads) for task in deep.tasks[widest + 1 : min(block)])


def test_small_contents_widen_the_block(deep: Instance) -> None:
    large, small = (
        next(task for task in deep.tasks if name in task.name).outputs for name in ("layer3_", "layer46_")
    )
    block, wider = densest(deep, large), densest(deep, small)
    assert sum(map(len, wider.values())) > sum(map(len, block.values()))
    assert set(block) < set(wider)


def test_nothing_remade_is_no_reason_to_leave_anything_out(deep: Instance) -> None:
    assert set(densest(deep, ())) >= set(densest(deep, (0,)))


def test_what_a_relaxed_plan_remakes_dearly_is_what_costs_more(deep: Instance) -> None:
    model = build(timeline_of(deep, {}), relaxed=True)
    outcome = run_engine("highs", model, EFFORT)
    assert outcome.values is not None
    costs = {c.number: deep.tasks[c.producer].cost.joules for c in deep.contents if c.producer is not None}
    everything = remade_dearly(model, outcome.values, joules=0.0)
    threshold = sorted(costs[content] for content in everything)[len(everything) // 2]
    dear = remade_dearly(model, outcome.values, joules=threshold)
    assert dear == {content for content in everything if costs[content] > threshold}
    assert 0 < len(dear) < len(everything)


def test_offering_the_block_raises_a_bound_that_had_stalled(deep: Instance) -> None:
    """Every rerun of the largest contents leaves fewer places where one may be had without its RAM."""
    model = build(timeline_of(deep, {}), relaxed=True)
    first = run_engine("highs", model, EFFORT)
    assert first.values is not None
    remade = remade_dearly(model, first.values, joules=0.003 * deep.problem.compute_joules)
    late = {stage: tasks for stage, tasks in densest(deep, remade).items() if stage >= 126}
    offered = merged(suggested(model, first.values, chain=3), late)
    second = run_engine("highs", build(timeline_of(deep, offered), relaxed=True), EFFORT)
    assert first.done
    assert second.done
    assert second.bound_joules > first.bound_joules
