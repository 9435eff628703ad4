"""Ops in more blocks as another form: what they save, when a plan takes them, and the bits of the step."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import pytest
import torch
from torch import nn

from poet import api
from poet.frontend.trace import TrainingStep, trace_training_step
from poet.ir.micro import MicroBatches
from poet.passes import block_choice
from poet.passes.block_choice import LEAST_SAVED_BYTES
from poet.passes.forms import Forms
from poet.passes.rewrite import Rewrite, Technique
from poet.planning.prepared import Prepared
from poet.planning.ram_survey import keep_everything_bytes
from poet.planning.step_search import (
    NEEDY_SHARE,
    SAVED_SHARE,
    offered,
    solve_choosing,
    surveyed,
    weighed,
    with_choice,
)
from poet.problem import Limits, Objective, Pins, ProblemOp
from poet.problem.simulator import simulate
from poet.problem.solution import SolveOptions, Status
from poet.runtime.trials import blocks
from poet.runtime.trials.measure import measured
from poet.solvers import minimum_ram_bytes, solve

QUICK = SolveOptions(time_limit_seconds=2.0)
X = torch.zeros(1, 3, 16, 16)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 128, 3, padding=1), nn.ReLU(),
        nn.Conv2d(128, 256, 3, padding=1), nn.ReLU(),
        nn.Conv2d(256, 256, 3, padding=1, bias=False), nn.ReLU(),
        nn.MaxPool2d(4), nn.Flatten(), nn.Linear(256 * 16, 10),
    ).train()  # fmt: skip


@pytest.fixture(scope="module")
def _no_time_for_blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_choice, "ALLOWANCE", 0.0)
        patch.setattr(blocks.StripBench, "slowdown_seconds", lambda *_: 1.0)
        yield


@pytest.fixture(scope="module")
def step(_no_time_for_blocks: None) -> TrainingStep:
    return trace_training_step(net(), X)


@pytest.fixture(scope="module")
def prepared(_no_time_for_blocks: None) -> Prepared:
    return api.prepare(net(), X, device="rpi4b-xnnpack", home="either")


def finer_of(step: TrainingStep) -> dict[str, Rewrite]:
    return forms_of(step).of(Technique.BLOCKS)


def forms_of(step: TrainingStep) -> Forms:
    assert step.forms is not None
    return step.forms


def test_what_runs_whole_may_run_in_blocks_and_needs_less(step: TrainingStep) -> None:
    forms = forms_of(step)
    finer, compressed = forms.of(Technique.BLOCKS), forms.of(Technique.COMPRESSED)
    assert not any(op.strip is not None and not op.strip.is_whole for op in step.graph.ops)
    assert "4.convolution" in finer
    assert not set(finer) & {op for each in compressed.values() for op in each.ops}
    every = {*compressed, *finer}
    for taken in ((), every, {*compressed}, {*finer}):
        graph, kernels = forms.graph(taken), forms.kernels(taken)
        assert [facts.name for facts in kernels.ops] == [op.name for op in graph.ops]
        assert {op.name for op in graph.ops if op.strip is not None and not op.strip.is_whole} == {
            name for name in finer if name in taken
        }
        assert measured(graph, told=kernels)[0] == graph
    assert forms.graph(()) == forms.long
    assert forms.graph(compressed) == step.graph


def test_the_problem_of_a_choice_is_that_of_its_graph(prepared: Prepared) -> None:
    of = offered(prepared, Limits())
    finer = finer_of(prepared.step)
    names = [each.name for each in of.alternatives]
    assert {*finer} < {*names}
    for taken in (names, [], names[::2], [*finer]):
        resolved, own = of.resolved(taken), with_choice(prepared, taken).problem
        assert own.ops == resolved.ops
        assert {tensor.name: tensor.bytes for tensor in own.tensors} == {
            tensor.name: tensor.bytes for tensor in resolved.tensors
        }
    survey = surveyed(prepared, Limits())
    assert {each.name for each in survey.alternatives} == {*finer}
    assert survey.resolved(()) == prepared.problem
    pinned = Limits(pins=Pins(keep=("*",)))
    assert offered(prepared, pinned) == surveyed(prepared, pinned) == prepared.problem


def test_the_lower_bound_is_the_least_over_all_choices(prepared: Prepared) -> None:
    of = offered(prepared, Limits())
    names = [each.name for each in of.alternatives]
    assert len(names) <= 12
    choices = itertools.chain.from_iterable(
        itertools.combinations(names, count) for count in range(len(names) + 1)
    )
    least = min(minimum_ram_bytes(of.resolved(choice)).bytes for choice in choices)
    assert minimum_ram_bytes(of).bytes == least
    without = of.resolved([name for name in names if name not in finer_of(prepared.step)])
    assert least < minimum_ram_bytes(without).bytes - LEAST_SAVED_BYTES


def test_what_holds_or_saves_much_of_a_budget_is_weighed(prepared: Prepared) -> None:
    of, finer = offered(prepared, Limits()), finer_of(prepared.step)
    packed = {each.name for each in of.alternatives} - {*finer}
    least, most = minimum_ram_bytes(of).bytes, keep_everything_bytes(of)
    sizes = {tensor.name: of.aligned_bytes(tensor.bytes) for tensor in of.tensors}

    def needs_bytes(ops: Iterable[ProblemOp]) -> int:
        return max(
            sum(sizes[name] for name in {*op.inputs, *op.outputs}) + of.aligned_bytes(op.workspace_bytes)
            for op in ops
        )

    for budget_bytes in (least, (least + most) // 2, most - 1):
        kept = {each.name for each in weighed(of, Limits(ram_budget_bytes=budget_bytes)).alternatives}
        assert kept >= packed
        for each in of.alternatives:
            own_bytes = needs_bytes(op for op in of.ops if op.name in each.touched)
            if each.name in finer:
                is_much = own_bytes - needs_bytes(each.ops) >= SAVED_SHARE * budget_bytes
                is_dearer = min(of.extra_cost(each)) >= 0
                is_needy = own_bytes > NEEDY_SHARE * budget_bytes
                assert (each.name in kept) == (is_needy or (is_much and is_dearer))
    for limits in (Limits(), Limits(ram_budget_bytes=most)):
        assert {each.name for each in weighed(of, limits).alternatives} == packed
    assert weighed(of, Limits(), Objective.RAM) == of


@pytest.mark.usefixtures("_no_time_for_blocks")
def test_a_form_that_saves_little_is_taken_where_nothing_else_fits() -> None:
    torch.manual_seed(0)
    dense = nn.Sequential(*(nn.Linear(*pair) for pair in itertools.pairwise((640, 128, 512, 128, 640))))
    of = api.prepare(dense, torch.zeros(4, 640), device="rpi4b", optimizer="momentum", loss="mse")
    problem = offered(of, Limits())
    every = [each.name for each in problem.alternatives if each.omits]
    limits = Limits(ram_budget_bytes=keep_everything_bytes(problem.resolved(every)), paging=False)
    likely = weighed(problem, limits)
    assert likely != problem
    assert solve(likely, limits, QUICK).status is Status.INFEASIBLE
    chosen, found = solve_choosing(of, limits, QUICK)
    assert found.schedule is not None
    assert simulate(chosen.problem, found.schedule, limits) == found.trace
    assert found.bound_joules <= (found.joules or 0.0)


@pytest.mark.slow
def test_where_ram_is_plenty_nothing_runs_in_more_blocks(prepared: Prepared) -> None:
    of = offered(prepared, Limits())
    plenty = Limits(ram_budget_bytes=2 * keep_everything_bytes(of))
    for limits in (plenty, Limits()):
        chosen, found = solve_choosing(prepared, limits, QUICK)
        assert found.status is Status.OPTIMAL
        assert chosen.step.graph == forms_of(prepared.step).long
    tight = Limits(ram_budget_bytes=minimum_ram_bytes(of).bytes)
    chosen, found = solve_choosing(prepared, tight, QUICK)
    assert found.schedule is not None
    assert found.trace == simulate(chosen.problem, found.schedule, tight)
    assert found.bound_joules <= (found.joules or 0.0)
    assert any(op.strip is not None and not op.strip.is_whole for op in chosen.step.graph.ops)


@pytest.mark.slow
def test_a_plan_at_the_lower_bound_has_finer_blocks(prepared: Prepared) -> None:
    least = minimum_ram_bytes(offered(prepared, Limits())).bytes
    planned = api.plan_step(prepared, Limits(ram_budget_bytes=least + 64 * 1024), QUICK)
    plan = planned.plan
    assert plan.prediction.lower_bound_ram_bytes == least
    assert {op.name for op in plan.graph.ops} & {*finer_of(prepared.step)}


def test_with_micro_batches_and_several_shapes_there_is_one_form() -> None:
    forms = trace_training_step(net(), X, micro=MicroBatches(2)).forms
    assert forms is not None
    assert not forms.of(Technique.BLOCKS)
    assert trace_training_step(net(), X, in_short_forms=False).forms is None
