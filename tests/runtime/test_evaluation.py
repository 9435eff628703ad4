"""Evaluation inside the plan's RAM: the bits of ``module.eval()``, and training goes on as if nothing was."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers import hand_net
from helpers.evaluation_plans import plan_by_chance, small_plan, traced, write
from helpers.nets import small_net
from helpers.pace import with_slow
from helpers.schedules import random_schedule
from torch import Tensor, nn

from poet import api
from poet.errors import InputError, PageFileError, PlanError, ReplayError
from poet.frontend.evaluation import trace_evaluation
from poet.frontend.losses import LossFunction
from poet.frontend.trace import trace_training_step
from poet.memory.layout import lay_out
from poet.planning.beside import at_home
from poet.plans.plan_file import read_plan, write_plan
from poet.plans.plan_parts import Arena, Request
from poet.plans.run_request import RunRequest
from poet.plans.training_plan import Plan
from poet.problem import Limits, Place
from poet.problem.schedule import Free
from poet.runtime import Trainer, native
from poet.runtime.data.random_batches import random_batch
from poet.runtime.runs.fit import load_samples
from poet.runtime.runs.requested import metered_epochs, validation_samples
from poet.runtime.storage.state import raw_tensor
from poet.verification import verify

BESIDE_BYTES = 4096
"""Of a peak: the last page of what stands throughout."""


def test_a_failed_transfer_in_an_evaluation_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = small_plan(0, share=0.7)
    write(tmp_path / "p", plan)
    inputs, targets = random_batch(plan, 0)
    with Trainer.open(tmp_path / "p", seed=1) as trainer:
        trainer.step(inputs, targets)
        before = trainer.state_dict()
        assert trainer.page_file is not None
        calls = iter(range(10**6))
        read_into = trainer.page_file.read_into

        def failing(name: str, target: memoryview) -> None:
            if next(calls) == 0:
                raise PageFileError("the page file is gone")
            read_into(name, target)

        monkeypatch.setattr(trainer.page_file, "read_into", failing)
        with pytest.raises(PageFileError):
            trainer.predict(inputs)
        found = trainer.state_dict()
        assert all(torch.equal(found[name], tensor) for name, tensor in before.items())
        trainer.predict(inputs)
        trainer.step(inputs, targets)


def test_a_trainer_that_lost_tensors_in_an_evaluation_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = small_plan(0, share=0.7)
    write(tmp_path / "p", plan)
    inputs, targets = random_batch(plan, 0)
    with Trainer.open(tmp_path / "p", seed=1) as trainer:

        def failing(name: str, target: memoryview) -> None:
            raise PageFileError("the page file is gone")

        assert trainer.page_file is not None
        monkeypatch.setattr(trainer.page_file, "read_into", failing)
        with pytest.raises(PageFileError):
            trainer.predict(inputs)
        with pytest.raises(ReplayError, match="an evaluation failed"):
            trainer.step(inputs, targets)


def test_a_plan_without_an_evaluation_says_what_to_do(tmp_path: Path) -> None:
    write(tmp_path / "p", replace(small_plan(0, share=0.0), evaluation=None))
    with Trainer.open(tmp_path / "p") as trainer, pytest.raises(PlanError, match="plan again"):
        trainer.predict(torch.zeros(6, 2, 8, 8))


def test_an_evaluation_that_contradicts_the_plan_is_refused() -> None:
    plan = small_plan(0, share=0.5)
    evaluation = plan.evaluation
    assert evaluation is not None
    few = replace(plan.request.limits, ram_budget_bytes=plan.prediction.peak_ram_bytes)
    larger = replace(evaluation.request.limits, ram_budget_bytes=plan.prediction.peak_ram_bytes + 1)
    for fields, message in (
        ({"evaluation": plan}, "not that of the plan's model"),
        ({"evaluation": replace(plan, evaluation=None)}, "changes"),
        ({"evaluation": replace(evaluation, model=replace(plan.model, sha256="1" * 64))}, "model"),
    ):
        with pytest.raises(PlanError, match=message):
            replace(plan, **fields)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="larger budget"):
        replace(
            plan,
            request=replace(plan.request, limits=few),
            evaluation=replace(evaluation, request=replace(evaluation.request, limits=larger)),
        )


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("planned") / "p.poet"
    torch.set_num_threads(1)
    made = api.plan(
        small_net(), torch.zeros(6, 2, 8, 8), device="rpi4b", ram="1MiB",
        time_limit_seconds=2.0,
    )  # fmt: skip
    assert made.evaluation_remark == ""
    made.save(path)
    return path


def test_a_plan_carries_its_evaluation(planned: Path) -> None:
    plan = read_plan(planned)
    assert plan.evaluation is not None
    assert plan.evaluation.prediction.peak_ram_bytes <= plan.prediction.peak_ram_bytes
    assert Plan.from_json(plan.to_json()) == plan
    assert verify(planned, module=small_net(), steps=1)


@pytest.mark.skipif(not native.available(), reason="needs the native allocator")
def test_an_evaluation_lies_in_the_arena_of_training(planned: Path) -> None:
    module = small_net().eval()
    with Trainer.open(planned, arena="require") as trainer:
        for number in range(3):
            inputs, targets = random_batch(trainer.plan, number)
            trainer.step(inputs, targets)
            module.load_state_dict(trainer.state_dict())
            with torch.no_grad(), trainer.peak_meter() as meter:
                (found,) = trainer.predict(inputs)
                assert torch.equal(found, module(inputs[0]))
            assert trainer._tensors.placed is not None
            assert trainer._tensors.placed.misses == 0
        allocator = native.load()
        assert allocator is not None
        batches = [random_batch(trainer.plan, number) for number in range(3)]
        (x,), y = batches[0]
        assert isinstance(y, Tensor)
        with allocator.tracking() as tracked:
            trainer.evaluate(batches)
            trainer.evaluate([*batches, (x[:5], y[:5])])
        assert tracked.usage().heap_peak_bytes == tracked._begin[0].heap_bytes  # metrics take nothing
        assert trainer.memory.endswith("as planned")
        limit = trainer.plan.request.limits.ram_budget_bytes
        assert meter.peak.bytes is None or limit is None or meter.peak.bytes <= limit


@pytest.mark.skipif(not native.available(), reason="needs the native allocator")
def test_the_peak_in_an_arena_counts_tensors_and_nothing_else(planned: Path) -> None:
    with Trainer.open(planned, arena="require") as trainer:
        batches = [random_batch(trainer.plan, number) for number in range(3)]
        with trainer.peak_meter() as meter:
            trainer.step(*batches[0])
        assert meter.peak.bytes is None or meter.peak.bytes > 0
        with trainer.peak_meter() as meter:
            others = [bytes(100) for _ in range(100_000)]  # 13 MB of the interpreter's
            for batch in batches:
                trainer.step(*batch)
            trainer.evaluate(batches)
        assert len(others) == 100_000
        assert meter.peak.bytes is not None
        assert trainer.held_bytes <= meter.peak.bytes < trainer.held_bytes + BESIDE_BYTES
        strays: list[torch.Tensor] = []

        def stray(index: int) -> None:  # as of a kernel that does not give it back
            if not index:
                strays.append(torch.empty(1 << 20, dtype=torch.uint8))

        with trainer.peak_meter() as meter:
            kept = torch.empty(1 << 22, dtype=torch.uint8)  # the caller's own
            trainer.step(*batches[0], on_instruction=stray)
        assert meter.peak.bytes is not None
        assert 0 <= meter.peak.bytes - trainer.held_bytes - strays[0].nbytes < BESIDE_BYTES
        assert kept.nbytes > BESIDE_BYTES


@pytest.mark.skipif(not native.available(), reason="needs the native allocator")
def test_a_run_with_metrics_stays_in_a_budget_that_its_arena_fills(planned: Path, tmp_path: Path) -> None:
    """To the byte: accuracy of each batch that is trained, loss, accuracy and top-5 of what is evaluated."""
    plan = read_plan(planned)
    stored = {name: raw_tensor(tensor) for name, tensor in small_net().state_dict().items()}
    assert plan.evaluation is not None
    limits = replace(plan.request.limits, ram_budget_bytes=plan.held_bytes)
    evaluation = replace(plan.evaluation, request=replace(plan.evaluation.request, limits=limits))
    full = replace(plan, request=replace(plan.request, limits=limits), evaluation=evaluation)
    assert full.held_bytes + full.page_buffer_bytes == limits.ram_budget_bytes
    path, data = tmp_path / "p.poet", tmp_path / "data.npz"
    write_plan(path, full, stored)
    generator = np.random.default_rng(0)
    np.savez(
        data, x=generator.standard_normal((28, 2, 8, 8), dtype=np.float32), y=generator.integers(0, 5, 28)
    )
    request = RunRequest(
        str(path), str(data), 0, epochs=3, seed=0, arena="require", validate=str(data),
        metrics=("accuracy", "top-5", "iou"),
    )  # fmt: skip
    with Trainer.open(path, seed=0, arena="require") as trainer:
        samples = load_samples(data, trainer.plan)
        epochs = metered_epochs(trainer, samples, request, validation_samples(trainer.plan, request))
        found = list(epochs)
    assert len(found) == 3
    for epoch, peak_bytes in found[1:]:  # the arena is in use from the second one on
        assert epoch.accuracy is not None
        assert epoch.validation is not None
        assert epoch.validation.metrics["top-5"] == 1.0
        assert peak_bytes is not None
        assert peak_bytes <= full.held_bytes


def _weighted_ce(output: Tensor, targets: Tensor) -> Tensor:
    weight = torch.tensor([1.0, 2.0, 0.5])
    return F.cross_entropy(output, targets, weight=weight, label_smoothing=0.1, ignore_index=2)


def _l1(output: Tensor, targets: Tensor) -> Tensor:
    return F.l1_loss(output, targets)


def _focal(output: Tensor, targets: Tensor) -> Tensor:
    each = F.cross_entropy(output, targets, reduction="none")
    return ((1 - torch.exp(-each)) ** 2 * each).mean()


CE, BATCH = F.cross_entropy, 8
EVALUATED: dict[str, tuple[str | LossFunction, LossFunction]] = {
    "classes": ("cross-entropy", CE),
    "weighted": ("cross-entropy:weight=1/2/0.5,label_smoothing=0.1,ignore_index=2", _weighted_ce),
    "summed": ("cross-entropy:reduction=sum", lambda o, t: CE(o, t, reduction="sum")),
    "focal": ("focal", _focal),
    "numbers": ("mse", F.mse_loss),
    "a function": (_l1, _l1),
}
SLOW = {"summed", "focal", "numbers"}


def _evaluated(loss: str | LossFunction, path: Path, **options: Any) -> tuple[nn.Module, Tensor, Tensor]:
    """A plan for batches of eight; its module in evaluation mode, and samples for it."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 3))
    x, numbers = torch.randn(27, 6), torch.randn(27, 3)
    has_classes = isinstance(loss, str) and loss != "mse"
    y = torch.randint(3, (27,)) if has_classes else numbers
    if "ignore_index" in str(loss):
        y[:7] = 2  # of the first samples none counts
    given: dict[str, Any] = {} if isinstance(loss, str) else {"targets": y[:BATCH]}
    made = api.plan(
        net, x[:BATCH], device="rpi4b", ram=None, loss=loss, time_limit_seconds=1.0, **given, **options
    )
    made.save(path)
    return net.eval(), x, y


@pytest.mark.parametrize("name", with_slow(EVALUATED, SLOW))
def test_the_loss_is_that_of_all_samples(name: str, tmp_path: Path) -> None:
    loss, plainly = EVALUATED[name]
    net, x, y = _evaluated(loss, tmp_path / "p")
    with Trainer.open(tmp_path / "p") as trainer, torch.no_grad():
        for sizes in ((8, 8, 8, 3), (7,), (4,), (1,), (5, 3, 8)):
            pieces = [torch.split(item[: sum(sizes)], [*sizes]) for item in (x, y)]
            found = trainer.evaluate(list(zip(*pieces, strict=True)))
            expected = float(plainly(net(x[: sum(sizes)]), y[: sum(sizes)]))
            if math.isnan(expected):
                assert found.loss is None
            else:
                assert found.loss == pytest.approx(expected, rel=1e-6)
            assert found.samples == sum(sizes)


@pytest.mark.parametrize("options", [{}, pytest.param({"micro": 2}, marks=pytest.mark.slow)])
def test_a_run_validates_on_fewer_samples_than_a_batch(options: dict[str, Any], tmp_path: Path) -> None:
    """And on more, as `Trainer.evaluate` does; to train on them is refused."""
    net, x, y = _evaluated("cross-entropy", tmp_path / "p", **options)
    np.savez(tmp_path / "few.npz", x=x[:5].numpy(), y=y[:5].numpy())
    np.savez(tmp_path / "all.npz", x=x.numpy(), y=y.numpy())
    for samples, count in (("few.npz", 5), ("all.npz", 27)):
        request = RunRequest(
            str(tmp_path / "p"),
            str(tmp_path / "all.npz"),
            0,
            epochs=1,
            seed=0,
            validate=str(tmp_path / samples),
        )
        with Trainer.open(tmp_path / "p", seed=0) as trainer:
            training = load_samples(tmp_path / "all.npz", trainer.plan)
            validation = validation_samples(trainer.plan, request)
            ((epoch, _),) = metered_epochs(trainer, training, request, validation)
            net.load_state_dict(trainer.state_dict())
            with torch.no_grad():
                expected = float(F.cross_entropy(net(x[:count]), y[:count]))
            assert epoch.validation is not None
            assert epoch.validation.loss == pytest.approx(expected, rel=1e-6)
            assert epoch.validation.samples == count
            with pytest.raises(InputError, match="5 samples, the plan's batch is 8"):
                load_samples(tmp_path / "few.npz", trainer.plan)


@pytest.mark.parametrize("count", [3, 4])
def test_samples_that_depend_on_others_are_not_evaluated_among_fewer(count: int, tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, track_running_stats=False), nn.Linear(8, 3))
    x, y = torch.randn(BATCH, 6), torch.randn(BATCH, 3)
    api.plan(net, x, device="rpi4b", ram=None, loss="mse").save(tmp_path / "p")
    with Trainer.open(tmp_path / "p") as trainer, torch.no_grad():
        assert trainer.evaluate([(x, y)]).loss == float(F.mse_loss(net.eval()(x), y))
        with pytest.raises(
            InputError, match=f"step for 8 samples cannot evaluate {count}; plan for that size"
        ):
            trainer.evaluate([(x, y), (x[:count], y[:count])])
        trainer.step(x, y)


def test_a_batch_that_stands_throughout_training_stands_in_the_evaluation() -> None:
    """Where a step never lets go of its targets, they have a place of their own in the arena."""
    step, evaluation = traced()
    of = hand_net.problem(step.graph)
    freed = random_schedule(of, 0, share=0.0)
    targets = step.graph.buffer_of(step.graph.inputs[-1])
    schedule = tuple(item for item in freed if item != Free(targets))
    plan = hand_net.plan(of, step.graph, schedule, optimizer=step.optimizer, loss="cross-entropy", slack=1.0)
    layout = lay_out(plan.demand.blocks)
    room = Limits(ram_budget_bytes=2 * layout.arena_bytes)
    arena = Arena(layout.arena_bytes, layout.offsets_bytes)
    plan = replace(plan, arena=arena, request=replace(plan.request, limits=room))
    assert targets in plan.standing
    tensors = {tensor.name: tensor for tensor in at_home(hand_net.problem(evaluation.graph), plan).tensors}
    assert tensors[targets].finally_ is Place.RAM


def test_verify_finds_an_evaluation_that_is_not_the_models(planned: Path, tmp_path: Path) -> None:
    """The forward pass in training mode is not that of ``module.eval()``: the last check bites."""
    other = small_net()
    other[2] = nn.Tanh()
    step, _ = traced()
    plan = small_plan(0, share=0.0)
    evaluation = trace_evaluation(other, torch.zeros(6, 2, 8, 8), step, measure=False)
    of = at_home(hand_net.problem(evaluation.graph), plan)
    wrong = hand_net.plan(
        of,
        evaluation.graph,
        random_schedule(of, 0, share=0.0),
        optimizer=step.optimizer,
        loss="cross-entropy",
    )
    wrong = replace(wrong, model=plan.model)
    assert plan.evaluation is not None
    write(tmp_path / "p", replace(plan, evaluation=wrong, request=Request(Limits(), "cross-entropy")))
    report = verify(tmp_path / "p", module=small_net(), steps=1, threads=(1,))
    assert "evaluation: output 0" in str(report.comparisons[0].difference)


def test_what_cannot_be_evaluated_is_said() -> None:
    class Counting(nn.Module):
        seen: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 3)
            self.register_buffer("seen", torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                self.seen += 1
            y: Tensor = self.inner(x)
            return y

    with pytest.warns(UserWarning, match="no evaluation is planned: .* writes seen"):
        made = api.plan(Counting(), torch.zeros(2, 4), device="rpi4b", ram=None)
    assert made.plan.evaluation is None


# --- kernels that torch chooses by whether a weight requires a gradient -------------------------


class Sequence(nn.Module):
    """A layer over a sequence, and classes from its last moment."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.into, self.layer, self.out = nn.Linear(3, 4), layer, nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Scores [N,3] of [N,T,3]."""
        scores: Tensor = self.out(self.layer(self.into(x))[0][:, -1])
        return scores


def test_a_frozen_weight_takes_the_kernel_that_it_takes_in_plain_pytorch() -> None:
    """Of a strided batch: `mm` where the weight is trained, `bmm` where it is not."""
    torch.manual_seed(0)
    layer = nn.GRU(4, 5, 2, batch_first=True, dropout=0.2)
    module, inputs = Sequence(layer), torch.randn(2, 5, 3)
    trained = trace_training_step(module, inputs, measure=False)
    module.requires_grad_(False)
    module.get_submodule("out").requires_grad_(True)
    frozen = trace_training_step(module, inputs, measure=False)
    for step, kernel in ((trained, "aten.mm.default"), (frozen, "aten.bmm.default")):
        graphs = (step.graph, trace_evaluation(module, inputs, step, measure=False).graph)
        for graph in graphs:
            first = next(op for op in graph.ops if op.name.startswith("layer."))
            assert first.call.target == kernel


class _FrozenFront(nn.Module):
    """An LSTM that is not trained and runs without gradients, as one does with a feature extractor."""

    def __init__(self) -> None:
        super().__init__()
        self.front, self.back, self.out = nn.LSTM(4, 5), nn.LSTM(5, 5), nn.Linear(5, 3)
        self.front.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        """Scores [N,3] of [T,N,4]."""
        with torch.no_grad():
            y = self.front(x)[0]
        scores: Tensor = self.out(self.back(y)[0][-1])
        return scores


@pytest.mark.slow
def test_an_lstm_without_gradients_inside_a_step_is_that_of_plain_pytorch(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, inputs = _FrozenFront(), torch.randn(5, 2, 4)
    step = trace_training_step(module, inputs, measure=False)
    plan = plan_by_chance(step, trace_evaluation(module, inputs, step, measure=False), 1, share=0.5)
    write_plan(tmp_path / "p", plan, {name: raw_tensor(tensor) for name, tensor in step.tensors.items()})
    assert plan.evaluation is not None
    for graph, kernels in ((plan.graph, 1), (plan.evaluation.graph, 2)):
        targets = [op.call.target for op in graph.ops]
        assert targets.count("poet.lstm_without_gradients") == kernels
        assert targets.count("aten.mkldnn_rnn_layer.default") == 2 - kernels
    verify(tmp_path / "p", module=module, steps=2).require()
