"""Several shapes in one plan: the bits of plain PyTorch on a stream that mixes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from poet.api import Planned
from poet.api import plan as plan_module
from poet.errors import InputError, PlanError, ReplayError
from poet.frontend.plain import PlainTrainer
from poet.ir.optimizer import OptimizerSpec
from poet.planning.auxiliary import bindings_of
from poet.plans.plan_file import read_plan
from poet.runtime import Trainer
from poet.runtime.kernels.cells import Cells
from poet.runtime.runs.fit import fit, load_samples
from poet.runtime.system.process import torch_threads
from poet.verification import verify

ADAMW = OptimizerSpec("adamw", lr=0.01)


def conv_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Dropout(0.4),
        nn.Flatten(),
        nn.Linear(64, 32),
        nn.Tanh(),
        nn.Linear(32, 5),
    ).train()


class LengthNet(nn.Module):
    """Attention over sequences of any length, one class per sequence."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(11, 8)
        self.mix = nn.Linear(8, 24)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores [N,3] of tokens [N,L]."""
        query, key, value = self.mix(self.embed(tokens)).chunk(3, dim=-1)
        weights = torch.softmax(query @ key.transpose(1, 2), dim=-1)
        scores: Tensor = self.head((weights @ value).mean(dim=1))
        return scores


class Mlp(nn.Sequential):
    """The smallest net that has something to keep between forward and backward."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def planned(
    net: nn.Module, first: Tensor, *others: Tensor, ram: int | None = None, evaluation: bool = False
) -> Planned:
    return plan_module(
        net, first, device="x86-host", ram=ram, optimizer=ADAMW, shapes=others, evaluation=evaluation
    )


@cache
def mlp_plan() -> Planned:
    with torch_threads(1):
        return planned(Mlp(), torch.zeros(4, 6), torch.zeros(3, 6), evaluation=True)


@cache
def conv_plan(ram: int | None) -> Planned:
    with torch_threads(1):
        first, *others = (torch.zeros(samples, 1, 4, 4) for samples in (8, 3, 1))
        return planned(conv_net(), first, *others, ram=ram, evaluation=True)


def rows(samples: int, number: int, *shape: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(samples, *shape, generator=generator), torch.randint(
        3, (samples,), generator=generator
    )


def check_stream(path: Path, net: nn.Module, batches: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Losses and the state after the steps are those of plain PyTorch, within the plan's RAM."""
    names = [name for name, _ in net.named_parameters()]
    plain = PlainTrainer(net, loss="cross-entropy", optimizer=ADAMW, trained=names)
    with Trainer.open(path, seed=3) as trainer:
        torch.manual_seed(3)
        for inputs, targets in batches:
            assert trainer.step(inputs, targets).loss == float(plain.step([inputs], targets)[0])
        state = net.state_dict()
        assert all(torch.equal(tensor, state[name]) for name, tensor in trainer.state_dict().items())


def test_a_smaller_batch_has_a_step_of_its_own(tmp_path: Path) -> None:
    mlp_plan().save(tmp_path / "p.poet")
    assert read_plan(tmp_path / "p.poet") == mlp_plan().plan
    check_stream(tmp_path / "p.poet", Mlp(), [rows(n, n, 6) for n in (4, 3, 3, 4)])


def test_a_shape_that_no_step_takes_is_refused_with_those_there_are(tmp_path: Path) -> None:
    mlp_plan().save(tmp_path / "p.poet")
    with Trainer.open(tmp_path / "p.poet") as trainer:
        with pytest.raises(InputError, match=r"is float32\[2,6\], the plan takes .*\[4,6\] or .*\[3,6\]"):
            trainer.step(*rows(2, 0, 6))
        assert trainer.steps == 0


def test_evaluation_takes_every_shape(tmp_path: Path) -> None:
    mlp_plan().save(tmp_path / "p.poet")
    net = Mlp().eval()
    batches = [rows(n, n, 6) for n in (4, 3, 2)]
    with Trainer.open(tmp_path / "p.poet") as trainer:
        for inputs, _ in batches[:2]:
            assert torch.equal(trainer.predict(inputs)[0], net(inputs))
        result = trainer.evaluate(batches)
    losses = [nn.functional.cross_entropy(net(inputs), targets).item() for inputs, targets in batches]
    assert result.samples == 9
    assert result.loss == pytest.approx((4 * losses[0] + 3 * losses[1] + 2 * losses[2]) / 9)


def test_an_epoch_ends_with_the_smaller_batch(tmp_path: Path) -> None:
    mlp_plan().save(tmp_path / "p.poet")
    inputs, targets = rows(11, 0, 6)
    np.savez(tmp_path / "d.npz", inputs=inputs.numpy(), targets=targets.numpy())
    with Trainer.open(tmp_path / "p.poet", seed=0) as trainer:
        samples = load_samples(tmp_path / "d.npz", trainer.plan)
        epochs = list(fit(trainer, samples, epochs=2))
    assert [epoch.steps for epoch in epochs] == [3, 3]
    assert all(epoch.is_complete for epoch in epochs)


def test_a_plan_checks_its_shapes() -> None:
    plan = mlp_plan().plan
    (shape,) = plan.shapes
    with pytest.raises(PlanError, match="the same shape"):
        replace(plan, shapes=(shape, shape))
    with pytest.raises(PlanError, match="other inputs than its training step"):
        replace(plan, shapes=(replace(shape, evaluation=plan.evaluation),))
    assert shape.evaluation is not None
    with pytest.raises(PlanError, match="updates other tensors"):
        replace(plan, shapes=(replace(shape, step=shape.evaluation),))


def test_a_step_of_another_shape_is_held_to_the_plan() -> None:
    plan = mlp_plan().plan
    (shape,) = plan.shapes
    with pytest.raises(PlanError, match="another optimizer"):
        replace(plan, shapes=(replace(shape, step=replace(shape.step, optimizer=replace(ADAMW, lr=0.5))),))
    mute = replace(shape.step.graph, predictions=(shape.step.graph.loss,))
    with pytest.raises(PlanError, match="gives other outputs"):
        replace(plan, shapes=(replace(shape, step=replace(shape.step, graph=mute)),))


def test_nan_is_allowed_to_every_shape(tmp_path: Path) -> None:
    regression = plan_module(
        Mlp(), torch.zeros(4, 6), device="x86-host", ram=None, loss="mse",
        shapes=[torch.zeros(3, 6)],
    )  # fmt: skip
    regression.save(tmp_path / "p.poet")
    batch = torch.zeros(3, 6), torch.full((3, 3), float("nan"))
    with Trainer.open(tmp_path / "p.poet", allow_nan=True) as trainer:
        assert trainer.evaluate([batch]).loss is None
        trainer.allow_nan = False
        with pytest.raises(InputError, match="finite"):
            trainer.evaluate([batch])


def test_a_shape_without_an_evaluation_says_so(tmp_path: Path) -> None:
    plan = mlp_plan().plan
    (shape,) = plan.shapes
    without = replace(plan, shapes=(replace(shape, evaluation=None),))
    replace(mlp_plan(), plan=without).save(tmp_path / "p.poet")
    with Trainer.open(tmp_path / "p.poet") as trainer:
        with pytest.raises(PlanError, match=r"no evaluation for float32\[3,6\]"):
            trainer.predict(torch.zeros(3, 6))
        assert trainer.evaluate([rows(3, 0, 6)]).samples == 3  # filled up to a batch of four


@pytest.mark.parametrize("is_evaluation", [False, True])
def test_what_fails_while_tensors_are_lent_gives_all_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_evaluation: bool
) -> None:
    mlp_plan().save(tmp_path / "p.poet")
    installs = count()
    install = Cells.install

    def fails_once(cells: Cells, buffer: str, raw: Tensor) -> None:
        if next(installs) == 2:
            raise RuntimeError("no power")
        install(cells, buffer, raw)

    with Trainer.open(tmp_path / "p.poet") as trainer:
        before = trainer.state_dict()
        monkeypatch.setattr(Cells, "install", fails_once)
        with pytest.raises((RuntimeError, ReplayError), match="no power"):
            trainer.predict(torch.zeros(3, 6)) if is_evaluation else trainer.step(*rows(3, 0, 6))
        assert all(torch.equal(tensor, before[name]) for name, tensor in trainer.state_dict().items())
        trainer.step(*rows(3, 0, 6))


def test_verify_runs_every_shape(tmp_path: Path) -> None:
    mlp_plan().save(tmp_path / "p.poet")
    assert verify(tmp_path / "p.poet", module=Mlp(), steps=1, threads=(1,)).exact
    plan = mlp_plan().plan
    (shape,) = plan.shapes
    graph = shape.step.graph
    ops = [
        replace(op, call=replace(op.call, args=(*op.call.args[:-1], 1)))
        if op.call.target == "aten.threshold_backward.default"
        else op
        for op in graph.ops
    ]
    wrong = replace(graph, ops=tuple(ops))
    other = replace(plan, shapes=(replace(shape, step=replace(shape.step, graph=wrong)),))
    replace(mlp_plan(), plan=other).save(tmp_path / "q.poet")
    (found,) = verify(tmp_path / "q.poet", module=Mlp(), steps=1, threads=(1,)).comparisons
    assert "step for" in (found.difference or "")
    assert "[3,6]" in (found.difference or "")


def test_each_size_with_each() -> None:
    largest, others = bindings_of({"N": [1, 8], "L": [64, 128]})
    assert largest == {"N": 8, "L": 128}
    assert others == [{"N": 1, "L": 64}, {"N": 1, "L": 128}, {"N": 8, "L": 64}]


@pytest.mark.slow
@pytest.mark.parametrize("is_tight", [False, True], ids=["plenty", "tight"])
@pytest.mark.parametrize("threads", [1, 2])
def test_mixed_batches_have_the_bits_of_plain_torch(tmp_path: Path, *, is_tight: bool, threads: int) -> None:
    plenty = conv_plan(None)
    ram = round(0.95 * plenty.peak_ram_bytes) if is_tight else None
    made = conv_plan(ram)
    trace = made.plan.trace
    assert bool(trace.written_bytes or trace.recomputed_runs) == is_tight
    made.save(tmp_path / "p.poet")
    with torch_threads(threads):
        batches = [rows(n, number, 1, 4, 4) for number, n in enumerate([8, 1, 3, 3, 8, 1, 1, 8])]
        check_stream(tmp_path / "p.poet", conv_net(), batches)


@pytest.mark.slow
def test_mixed_lengths_have_the_bits_of_plain_torch(tmp_path: Path) -> None:
    def tokens(samples: int, length: int) -> Tensor:
        return torch.randint(11, (samples, length), generator=torch.Generator().manual_seed(length))

    made = planned(LengthNet(), tokens(4, 12), tokens(4, 7), tokens(2, 12))
    made.save(tmp_path / "p.poet")
    batches = [(tokens(n, length), rows(n, n)[1]) for n, length in ((4, 7), (4, 12), (2, 12), (4, 7))]
    check_stream(tmp_path / "p.poet", LengthNet(), batches)


def test_shapes_and_micro_batches_are_not_planned_together() -> None:
    with pytest.raises(InputError, match="leave one out"):
        plan_module(
            Mlp(), torch.zeros(4, 6), device="x86-host", ram=None, micro=2, shapes=[torch.zeros(3, 6)],
            evaluation=False,
        )  # fmt: skip


class Counting(nn.Module):
    """A net with a constant as long as its input."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.linear((x * torch.tensor([1.0 * i for i in range(x.shape[1])])).sum(1, True))
        return scores


def test_a_constant_that_depends_on_the_shape_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"the model has another .* than for the largest shape"):
        plan_module(
            Counting(), torch.zeros(4, 6), device="x86-host", ram=None, shapes=[torch.zeros(4, 5)],
            evaluation=False, time_limit_seconds=1.0,
        )  # fmt: skip
