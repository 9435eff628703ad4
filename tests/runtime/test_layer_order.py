"""Micro-batches layer by layer: the bits of a backward pass per micro-batch, with parameters read once."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from helpers import hand_net
from helpers.nets import NETS, small_net
from helpers.schedules import random_schedule
from torch import Tensor, nn

from poet.api import plan as plan_module
from poet.errors import Infeasible, InputError, ModelError, PlanError
from poet.frontend.trace import TrainingStep, trace_training_step
from poet.micro import MicroBatches, micro_batches
from poet.optimizer import OptimizerSpec
from poet.planning.accumulated import least_energy
from poet.planning.planned import Planned
from poet.planning.replanning import plan_again
from poet.plans.plan_file import read_plan, write_plan
from poet.plans.training_plan import Plan
from poet.problem import Place
from poet.report.micro import micro_rows
from poet.runtime import Trainer
from poet.runtime.storage.state import raw_tensor
from poet.schedule import PageIn
from poet.verification import verify

pytestmark = pytest.mark.usefixtures("one_thread")

PIECES = 3
LAYERS = MicroBatches(PIECES, order="layers")
MOMENTUM = OptimizerSpec("momentum", lr=0.05)


@cache
def traced() -> TrainingStep:
    return trace_training_step(
        small_net(), torch.zeros(2, 2, 8, 8), optimizer=MOMENTUM, measure=False, micro=LAYERS
    )


def planned(step: TrainingStep, seed: int, *, in_storage: bool = False, micro: MicroBatches = LAYERS) -> Plan:
    """A plan that recomputes and pages."""
    of = hand_net.problem(step.graph, parameters_in_storage=in_storage)
    plan = hand_net.plan(of, step.graph, random_schedule(of, seed), optimizer=step.optimizer, loss=step.loss)
    assert any(isinstance(item, PageIn) for item in plan.schedule)
    return replace(plan, request=replace(plan.request, micro=micro))


def write(path: Path, plan: Plan, step: TrainingStep) -> Path:
    write_plan(path, plan, {name: raw_tensor(tensor) for name, tensor in step.tensors.items()})
    return path


@pytest.mark.parametrize("in_storage", [False, True])
def test_the_reference_is_what_people_write(tmp_path: Path, in_storage: bool) -> None:
    """Without any code of ours on the other side: batch norm's statistics move once per micro-batch."""
    path = write(tmp_path / "plan.poet", planned(traced(), 4, in_storage=in_storage), traced())
    module = small_net()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    torch.manual_seed(7)
    with Trainer.open(path, seed=7, arena=False) as trainer:
        for number in range(2):
            generator = torch.Generator().manual_seed(number)
            inputs = torch.randn(2 * PIECES, 2, 8, 8, generator=generator)
            targets = torch.randint(5, (2 * PIECES,), generator=generator)
            optimizer.zero_grad()
            losses, outputs = [], []
            for piece, wanted in zip(inputs.chunk(PIECES), targets.chunk(PIECES), strict=True):
                made = module(piece)
                loss = nn.functional.cross_entropy(made, wanted)
                (loss / PIECES).backward()  # type: ignore[no-untyped-call]
                losses.append(loss.detach())
                outputs.append(made.detach())
            optimizer.step()
            seen: dict[str, Tensor] = {}

            def see(name: str, gradient: Tensor, seen: dict[str, Tensor] = seen) -> None:
                seen[name] = gradient.clone()

            result = trainer.step(inputs, targets, on_gradient=see)
            assert result.loss == float(torch.stack(losses).mean())
            assert torch.equal(result.predictions[0], torch.cat(outputs))
            for name, parameter in module.named_parameters():
                assert parameter.grad is not None
                assert torch.equal(seen[name], parameter.grad), name
        for name, tensor in trainer.state_dict().items():
            assert torch.equal(tensor, module.state_dict()[name]), name


FAST = ("cnn", "tied", "dropout")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in FAST else pytest.mark.slow) for name in NETS]
)
def test_every_net_has_the_bits_of_one_backward_pass_after_the_other(tmp_path: Path, name: str) -> None:
    net = NETS[name]
    torch.manual_seed(0)
    module, micro = net.build(), MicroBatches(2, order="layers")
    step = trace_training_step(
        module, net.inputs(), loss=net.loss, train=net.train, optimizer=MOMENTUM, measure=False, micro=micro
    )
    path = write(tmp_path / "plan.poet", planned(step, 1, micro=micro), step)
    threads = (1,) if name in FAST else (1, 2)
    verify(path, module=module, threads=threads, steps=2, arena=False).require()


def test_a_layer_runs_for_all_micro_batches_before_the_next_one() -> None:
    """But where random numbers are drawn: those of one micro-batch come before those of the next."""
    module = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5))
    step = trace_training_step(module, torch.zeros(2, 4), measure=False, micro=LAYERS)
    reading = [op.name for op in step.graph.ops if "0.weight" in op.call.refs() or "t.piece" in str(op.call)]
    assert reading[:PIECES] == [f"0.addmm.piece{piece}" for piece in range(1, PIECES + 1)]
    readers = [op.call for op in step.graph.ops if "2.weight" in step.graph.reads(op.call)]
    places = [place for place, op in enumerate(step.graph.ops) if op.call in readers]
    between = step.graph.ops[places[0] : places[-1]]
    assert not any("0.weight" in step.graph.reads(op.call) for op in between)

    drawing = [op.name for op in traced().graph.ops if op.random]
    assert [name[-1] for name in drawing] == sorted(name[-1] for name in drawing)


def test_what_cannot_go_layer_by_layer_is_refused_in_a_line() -> None:
    class Sums(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 5)

        def forward(self, x: Tensor, factor: Tensor) -> Tensor:
            made: Tensor = self.linear(x) * factor
            return made

    inputs = (torch.zeros(2, 4), torch.ones(()))
    with pytest.raises(ModelError, match="factor is not made of samples one after the other"):
        trace_training_step(Sums(), inputs, measure=False, micro=LAYERS)
    with pytest.raises(ModelError, match="leave :layers out"):
        trace_training_step(
            nn.Linear(4, 5), torch.zeros(2, 4), measure=False, micro=LAYERS, gradients="logits"
        )


def test_pieces_one_by_one_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "plan.poet", planned(traced(), 2), traced())
    with Trainer.open(path, arena=False) as trainer:
        with pytest.raises(PlanError, match="all micro-batches in one step"):
            trainer.accumulate(torch.zeros(2, 2, 8, 8), torch.zeros(2, dtype=torch.int64))
        with pytest.raises(InputError, match=r"input is float32\[2,2,8,8\]"):
            trainer.step(torch.zeros(2, 2, 8, 8), torch.zeros(2, dtype=torch.int64))


@pytest.mark.slow
def test_a_plan_is_made_of_it(tmp_path: Path) -> None:
    """In its arena, with an evaluation of one micro-batch."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(256, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 5))
    inputs = torch.randn(8, 256)
    found = plan_module(
        module, inputs, device="rpi4b", ram="1800KiB", optimizer="momentum", micro="2:layers",
        home="storage", time_limit_seconds=2.0,
    )  # fmt: skip
    plan = found.plan
    assert plan.accumulation is None
    assert plan.evaluation is not None
    assert plan.evaluation.given_types[0].shape == (4, 256)
    assert "2 of 4 samples each, layer by layer" in dict(micro_rows(plan))["micro-batches"]
    path = tmp_path / "plan.poet"
    found.save(path)
    assert read_plan(path) == plan
    verify(path, module=module, threads=(1, 2), steps=2).require()
    again = plan_again(plan, 1700 * 1024, time_limit_seconds=2.0)
    assert again.request.micro == plan.request.micro
    assert again.trace.peak_ram_bytes <= 1700 * 1024


def test_auto_offers_both_orders_for_parameters_at_home_in_storage() -> None:
    asked = []

    def make(micro: MicroBatches | None) -> Planned:
        asked.append(str(micro))
        raise Infeasible("too little RAM")

    for home, expected in (
        (Place.RAM, ["None", "2", "4"]),
        (Place.STORAGE, ["None", "2", "2:layers", "4", "4:layers"]),
    ):
        asked.clear()
        with pytest.raises(Infeasible):
            least_energy(4, "mean", make, home=home)
        assert asked == expected


def test_auto_goes_on_where_an_order_is_not_for_the_model() -> None:
    def make(micro: MicroBatches | None) -> Planned:
        if micro is not None and micro.order == "layers":
            raise ModelError("not in this order")
        raise Infeasible("too little RAM")

    with pytest.raises(Infeasible, match="too little RAM"):
        least_energy(4, "mean", make, home=Place.STORAGE)

    def refusing(micro: MicroBatches | None) -> Planned:
        raise ModelError("no model")

    with pytest.raises(ModelError, match="no model"):
        least_energy(4, "mean", refusing, home=Place.STORAGE)


def test_the_order_is_read() -> None:
    assert micro_batches("4:layers") == MicroBatches(4, order="layers")
    assert micro_batches("4:sum:layers") == MicroBatches(4, "sum", "layers")
    assert str(MicroBatches(4, "sum", "layers")) == "4:sum:layers"
    assert micro_batches(str(LAYERS)) == LAYERS
    for text in ("4:layers:pieces", "4:sum:mean", "4:rows", "auto:layers", "4:"):
        with pytest.raises(InputError):
            micro_batches(text)
