"""`poet export pt2`: a loaded program makes the plan's steps, bit for bit, in the plan's memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers import hand_net
from helpers.command import invoke
from helpers.hand_net import write_step
from helpers.nets import Tied
from helpers.program_plans import rerunning, written
from helpers.schedules import random_schedule
from torch import Tensor, nn

import poet
from poet.frontend.trace import trace_training_step
from poet.ir.optimizer import OptimizerSpec
from poet.ir.packed import BaseSpec
from poet.plans.training_plan import Plan
from poet.problem.schedule import Compute
from poet.runtime import Trainer, native
from poet.runtime.data.random_batches import random_batch


def test_a_small_step_reruns_and_has_the_bits_of_the_replay(tmp_path: Path) -> None:
    path, what = tmp_path / "a.poet", hand_net.graph()
    plan = hand_net.write(path, rerunning(hand_net.problem(what), 99))
    assert plan.trace.recomputed_runs
    assert_same_bits(path, _exported(path), plan)


def _exported(path: Path) -> Path:
    code, _, said = invoke("export", "pt2", path, "-o", path.with_suffix(".pt2"))
    assert code == 0, said
    return path.with_suffix(".pt2")


def assert_same_bits(path: Path, program: Path, plan: Plan) -> None:
    module = torch.export.load(program).module()
    with Trainer.open(path, arena=False) as trainer:
        for number in range(3):
            inputs, targets = random_batch(plan, number)
            assert isinstance(targets, Tensor)
            loss, output = module(*inputs, targets)
            step = trainer.step(inputs, targets)
            assert loss.item() == step.loss
            assert torch.equal(output, step.outputs.own[0])
        state = module.state_dict()
        assert all(torch.equal(tensor, state[name]) for name, tensor in trainer.state_dict().items())


def test_a_tied_tensor_is_one_tensor_of_the_program(tmp_path: Path) -> None:
    path = tmp_path / "a.poet"
    planned = poet.plan(
        Tied(), torch.arange(6), device="rpi4b", ram=None, time_limit_seconds=1.0, evaluation=False
    )
    planned.save(path)
    inputs, targets = random_batch(planned.plan, 0)
    program = torch.export.load(_exported(path)).module()
    program(*inputs, targets)
    with Trainer.open(path) as trainer:
        trainer.step(inputs, targets)
        expected = trainer.parameters()
    found = program.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(tensor, found[name]) for name, tensor in expected.items())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Plan, Path]:
    """A plan file, its plan, and its program."""
    path = tmp_path_factory.mktemp("pt2") / "a.poet"
    plan = written(path)
    assert plan.trace.recomputed_runs
    return path, plan, _exported(path)


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_steps_are_the_bits_of_the_replay(made: tuple[Path, Plan, Path], threads: int) -> None:
    path, plan, program = made
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert_same_bits(path, program, plan)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "adamax", "adagrad:lr_decay=0.1"])
def test_numbers_that_change_with_the_step_are_those_of_the_replay(tmp_path: Path, optimizer: str) -> None:
    net, given = nn.Sequential(nn.Linear(32, 32), nn.ReLU()), torch.zeros(2, 32)
    step = trace_training_step(net, given, optimizer=OptimizerSpec.parse(optimizer), measure=False)
    path = tmp_path / "a.poet"
    plan = write_step(path, step, None)
    assert_same_bits(path, _exported(path), plan)
    saved = tmp_path / "s.safetensors"
    with Trainer.open(path, arena=False) as trainer:
        trainer.step(*random_batch(plan, 0))
        trainer.save(saved)
        assert invoke("export", "pt2", path, "--state", saved, "-o", tmp_path / "b.pt2")[0] == 0
        inputs, targets = random_batch(plan, 1)
        assert isinstance(targets, Tensor)
        module = torch.export.load(tmp_path / "b.pt2").module()
        module(*inputs, targets)
        trainer.step(inputs, targets)
        state = module.state_dict()
        assert all(torch.equal(tensor, state[name]) for name, tensor in trainer.state_dict().items())


@pytest.mark.slow
def test_it_runs_again_what_the_schedule_does(made: tuple[Path, Plan, Path]) -> None:
    _, plan, program = made
    forward = {
        "aten.convolution.default",
        "aten.native_batch_norm.default",
        "poet.relu",
        "aten.hardtanh.default",
    }
    targets = {op.name: op.call.target for op in plan.graph.ops if op.call.target in forward}
    scheduled = [targets.get(step.op) for step in plan.schedule if isinstance(step, Compute)]
    nodes = [str(node.target) for node in torch.export.load(program).graph.nodes]
    for target in ("aten.convolution.default", "aten.native_batch_norm.default", "aten.hardtanh.default"):
        assert nodes.count(target) == scheduled.count(target)
    assert len(list(filter(None, scheduled))) > len(targets)


@pytest.mark.slow
def test_it_holds_what_the_plan_counts(made: tuple[Path, Plan, Path]) -> None:
    allocator = native.load()
    if allocator is None:
        pytest.skip(native.why_unavailable())
    _, plan, program = made
    module = torch.export.load(program).module()
    inputs, targets = random_batch(plan, 0)
    assert isinstance(targets, Tensor)
    module(*inputs, targets)
    with allocator.tracking() as tracked:
        module(*inputs, targets)
        peak_bytes = tracked.peak_bytes
    peak_bytes += sum(item.nbytes for item in (*module.state_dict().values(), *inputs, targets))
    assert peak_bytes <= 1.01 * plan.prediction.peak_ram_bytes


@pytest.mark.slow
def test_trained_state_goes_with_it(made: tuple[Path, Plan, Path], tmp_path: Path) -> None:
    path, plan, _ = made
    saved, program = tmp_path / "s.safetensors", tmp_path / "a.pt2"
    with Trainer.open(path, arena=False) as trainer:
        trainer.step(*random_batch(plan, 0))
        trainer.save(saved)
        code, _, said = invoke("export", "pt2", path, "--state", saved, "-o", program)
        assert code == 0, said
        state = torch.export.load(program).module().state_dict()
        assert all(torch.equal(tensor, state[name]) for name, tensor in trainer.state_dict().items())


def test_pages_lie_in_a_file_of_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path, what = tmp_path / "a.poet", hand_net.graph()
    plan = hand_net.write(path, rerunning(hand_net.problem(what), 99, paging=True))
    assert plan.slots
    assert_same_bits(path, _exported(path), plan)
    assert (tmp_path / "a.pt2.pages").stat().st_size >= max(slot.size_bytes for slot in plan.slots)


@pytest.mark.parametrize("target", ["pt2", "pte"])
def test_what_cannot_be_a_program_is_refused_in_one_line(tmp_path: Path, target: str) -> None:
    names = ("paged", "random", "stepped", "packed")
    paged, random, stepped, packed = (tmp_path / f"{name}.poet" for name in names)
    assert hand_net.write(paged, random_schedule(hand_net.problem(hand_net.graph()), 3)).slots
    for path, layer, optimizer, train, base in (
        (random, nn.Dropout(), "sgd", "*", None),
        (stepped, nn.ReLU(), "nadam", "*", None),
        (packed, nn.Linear(32, 4), "sgd", "1.*", BaseSpec("int8")),
    ):
        net, spec = nn.Sequential(nn.Linear(32, 32), layer), OptimizerSpec(optimizer)
        given = torch.zeros(2, 32)
        step = trace_training_step(net, given, optimizer=spec, measure=False, train=[train], base=base)
        write_step(path, step, None)
    ways = ((paged, "--no-paging"), (random, "without dropout"), (stepped, "sgd"), (packed, "without --base"))
    for path, way in ways:
        code, _, said = invoke("export", target, path, "-o", tmp_path / "made")
        assert code == 2
        assert way in said
        assert len(said.strip().splitlines()) == 1
        assert not (tmp_path / "made").exists()
