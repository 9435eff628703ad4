"""Ops timed in whole steps: what comes out, what is left alone, and when the times of single kernels stay."""

from __future__ import annotations

import io
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from helpers import hand_net
from helpers.pace import with_slow
from helpers.schedules import keep_everything
from poet.cli.main import app
from rich.console import Console
from torch import nn
from typer.testing import CliRunner
from zoo import NETS, export

from poet import api
from poet.frontend.trace import TrainingStep
from poet.kernel_facts import KernelFacts
from poet.planning import rehearsal
from poet.plans.run_request import Epoch
from poet.problem import Limits
from poet.report.run import Measured, run_data, run_report
from poet.runtime import Trainer
from poet.runtime.training import step_clock
from poet.schedule import Compute, Free
from poet.solution import SolveOptions

pytestmark = pytest.mark.usefixtures("one_thread")


def prepared(name: str = "resnet18", device: str = "rpi4b") -> api.Prepared:
    torch.manual_seed(0)
    size = NETS[name].small
    return api.prepare(size.build().train(), size.inputs(4), device=device, optimizer="momentum")


def untimed(step: TrainingStep) -> KernelFacts:
    ops = tuple(replace(op, seconds=None) for op in step.kernels.ops)
    return replace(step.kernels, ops=ops, timed_in_steps=False, busy_ratio=1.0)


@pytest.mark.parametrize("name", with_slow(["resnet18", "bert", "lstm"], {"resnet18", "bert"}))
def test_only_times_change(name: str) -> None:
    before = prepared(name)
    tensors = {key: tensor.clone() for key, tensor in before.step.tensors.items()}
    generator = torch.get_rng_state()
    after = api.measured_on_host(before)
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(torch.equal(after.step.tensors[key], tensor) for key, tensor in tensors.items())
    assert after.step.graph is before.step.graph
    assert after.step.kernels.timed_in_steps
    assert after.kernels == after.step.kernels  # those of the device are torch's
    assert untimed(after.step) == untimed(before.step)
    assert after.problem == before.problem  # a device's costs are its profile's
    assert [op.name for op in after.step.kernels.ops] == [op.name for op in after.step.graph.ops]
    assert all(op.seconds is not None and op.seconds > 0.0 for op in after.step.kernels.ops)
    assert api.measured_on_host(after).step.kernels is after.step.kernels


@pytest.mark.slow
def test_plans_carry_the_times() -> None:
    made = api.plan_step(prepared(), Limits(), SolveOptions(time_limit_seconds=1.0))
    assert made.plan.kernels.timed_in_steps
    assert type(made.plan).from_json(made.plan.to_json()) == made.plan


def test_training_steps_run_here_only_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[TrainingStep] = []

    def rehearsed(step: TrainingStep) -> KernelFacts:
        steps.append(step)
        return replace(step.kernels, timed_in_steps=True)

    monkeypatch.setattr(rehearsal, "rehearsed", rehearsed)
    step = api.prepare(nn.Linear(4, 2), torch.zeros(3, 4), device="rpi4b", loss="mse")
    limits, options = Limits(), SolveOptions(time_limit_seconds=None)
    made = api.plan_step(step, limits, options, measure_host=False)
    fitted = api.fit_step(step, limits, api.solve_step(step, limits, options), options)
    by_stages = api.plan_with(step, limits, fitted)
    assert not steps
    assert not made.plan.replayed_kernels.timed_in_steps
    assert by_stages.plan.schedule == made.plan.schedule
    assert by_stages.plan.arena == made.plan.arena
    measured = api.plan_step(step, limits, options)
    assert steps == [step.step]
    assert measured.plan.replayed_kernels.timed_in_steps
    assert measured.plan.schedule == made.plan.schedule


def test_the_command_measures_this_machine_unless_told_not_to(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    steps: list[TrainingStep] = []

    def rehearsed(step: TrainingStep) -> KernelFacts:
        steps.append(step)
        return step.kernels

    monkeypatch.setattr(rehearsal, "rehearsed", rehearsed)
    export(nn.Linear(4, 2), (torch.zeros(3, 4),), tmp_path / "net.onnx", exporter="legacy")
    model = ["solve", str(tmp_path / "net.onnx"), "--device", "rpi4b", "--bind", "N=3"]
    for options, runs in ((["--no-measure-host"], 0), ([], 1)):
        result = CliRunner().invoke(app, [*model, "--loss", "mse", "--ram", "1MiB", *options])
        assert result.exit_code == 0, result.stderr
        assert len(steps) == runs


def test_the_report_says_where_kernels_ran_by_themselves() -> None:
    plan = api.plan_step(prepared(), Limits(), SolveOptions(time_limit_seconds=1.0)).plan
    epoch = Epoch(1, 2.0, None, 3, 0.01, 0.03, is_complete=True)
    for in_steps in (True, False):
        told = replace(plan, kernels=replace(plan.kernels, timed_in_steps=in_steps))
        console = Console(width=120, record=True, file=io.StringIO())
        console.print(run_report(told, [epoch], Measured("heap")))
        assert ("each kernel by itself" in console.export_text()) is not in_steps
        assert run_data(told, [epoch], Measured("heap"))["predicted_from_whole_steps"] is in_steps


def test_all_of_a_step_belongs_to_some_op() -> None:
    graph = hand_net.graph()
    problem = hand_net.problem(graph)
    plan = hand_net.plan(problem, graph, keep_everything(problem))
    stamps = {index: 1.0 + 0.5 * index * index for index in range(len(plan.schedule))}
    seconds = step_clock._by_op(plan, stamps, 0.25, 1000.0)
    assert sum(seconds.values()) == pytest.approx(1000.0 - 0.25)
    computes = [(i, step.op) for i, step in enumerate(plan.schedule) if isinstance(step, Compute)]
    assert list(seconds) == [op for _, op in computes]
    assert any(isinstance(step, Free) for step in plan.schedule[computes[0][0] : computes[-1][0]])
    for (index, op), (following, _) in pairwise(computes):
        assert seconds[op] == stamps[following] - stamps[index]


def test_where_there_is_no_room_for_a_step_kernels_keep_their_own_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = prepared()
    monkeypatch.setattr(rehearsal, "available_bytes", lambda: 1000.0)
    assert api.measured_on_host(before).step.kernels is before.step.kernels


def test_with_another_number_of_threads_kernels_keep_their_own_times() -> None:
    before = prepared()
    torch.set_num_threads(2)
    assert api.measured_on_host(before).step.kernels is before.step.kernels


@pytest.mark.slow
def test_unmeasured_ops_stay_so() -> None:
    before = prepared()
    bare = replace(before, step=replace(before.step, kernels=untimed(before.step)))
    assert api.measured_on_host(bare).step.kernels is bare.step.kernels


def test_the_instructions_are_told_in_order(tmp_path: Path) -> None:
    hand_net.write(tmp_path / "p")
    with Trainer.open(tmp_path / "p") as trainer:
        for _ in range(2):
            told: list[int] = []
            trainer.step(*hand_net.batch(0), on_instruction=told.append)
            schedule = trainer.plan.schedule
            frees = {index for index, step in enumerate(schedule) if isinstance(step, Free)}
            assert (
                told == sorted(set(told)) == [i for i in range(len(schedule)) if i not in frees or i in told]
            )
            assert all(index in told for index in frees if index - 1 not in frees)


@pytest.mark.slow
def test_a_module_is_the_same_whatever_its_kernels_took() -> None:
    assert prepared().model == prepared().model
