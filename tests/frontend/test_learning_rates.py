"""Learning rates, momentum and betas of each step: set by schedulers of torch, by hand, or by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.optimizer_plans import SPECS, net, write
from helpers.pace import with_slow
from torch.optim import lr_scheduler

from poet.errors import InputError
from poet.frontend.plain import PlainTrainer
from poet.ir.optimizer import OptimizerSpec
from poet.plans.run_request import RateSchedule
from poet.runtime import Trainer
from poet.runtime.data.random_batches import random_batch
from poet.runtime.training.rates import DrivenOptimizer

COSINE = RateSchedule.parse("cosine:warmup=2,steps=6")


MAKERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "cosine": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, T_max=4),
    "one-cycle": lambda optimizer: lr_scheduler.OneCycleLR(
        optimizer, 0.5, total_steps=6, cycle_momentum=False
    ),
    "one-cycle-momentum": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=6),
    "cyclic-momentum": lambda optimizer: lr_scheduler.CyclicLR(optimizer, 0.01, 0.5, step_size_up=2),
    "ours": lambda optimizer: lr_scheduler.LambdaLR(optimizer, COSINE.factor_of),
    "exponential": lambda optimizer: lr_scheduler.ExponentialLR(optimizer, 0.8),
}
SCHEDULED = [(name, make) for name in ("momentum groups", "adamw groups") for make in MAKERS]
FAST = {
    ("momentum groups", "one-cycle-momentum"),
    ("adamw groups", "one-cycle-momentum"),
    ("momentum groups", "ours"),
}


@pytest.mark.parametrize(("name", "make"), with_slow(SCHEDULED, {*SCHEDULED} - FAST))
def test_schedulers_of_torch_drive_the_trainer(name: str, make: str, tmp_path: Path) -> None:
    plan, module = write(tmp_path / "p", SPECS[name]), net()
    plain = PlainTrainer(
        module, loss="cross-entropy", optimizer=plan.optimizer, trained=dict(module.named_parameters())
    )
    with Trainer.open(tmp_path / "p", seed=0) as trainer:
        ours, theirs = MAKERS[make](trainer.optimizer), MAKERS[make](plain.optimizer)
        torch.manual_seed(0)
        for number in range(5):
            inputs, targets = random_batch(plan, number)
            plain.step(inputs, targets)
            theirs.step()
            trainer.step(inputs, targets)
            ours.step()
            rates = [group["lr"] for group in plain.optimizer.param_groups]
            assert sorted(trainer.learning_rates) == sorted(rates)
        found, states = trainer.parameters(), trainer.optimizer_state()
    for (parameter, state), tensor in plain.optimizer_state().items():
        assert torch.equal(states[parameter][state], tensor)
    assert all(torch.equal(found[name], tensor) for name, tensor in module.named_parameters())


BETAS = [(0.6, 0.95), (0.7, 0.95), (0.8, 0.95)]
DRIVEN: dict[str, tuple[OptimizerSpec, str, list[Any]]] = {
    "nesterov": (SPECS["nesterov"], "momentum", [0.6, 0.7, 0.8]),
    "rmsprop": (SPECS["rmsprop"], "momentum", [0.6, 0.7, 0.8]),
    **{name: (SPECS[name], "betas", BETAS) for name in ("lion", "amsgrad", "adamax", "radam")},
    **{
        f"{name} of {betas}": (
            OptimizerSpec(name, lr=0.05, betas=betas), "betas", [betas, (0.5, 0.9), (0.6, 0.0), (0.0, 0.8)]
        )
        for name in ("adamw", "adam", "lion")
        for betas in ((0.9, 0.0), (0.0, 0.9))
    },
}  # fmt: skip
"""Also betas that are 0 in the plan, or become 0."""


@pytest.mark.parametrize("name", with_slow(DRIVEN, DRIVEN.keys() - {"nesterov", "adamw of (0.9, 0.0)"}))
def test_momentum_and_betas_are_set_by_hand_as_well(name: str, tmp_path: Path) -> None:
    """In each step anew, on a plan that recomputes and pages; and they do change something."""
    spec, key, amounts = DRIVEN[name]
    plan, module = write(tmp_path / "p", spec), net()
    assert plan.trace.recomputed_runs
    plain = PlainTrainer(
        module, loss="cross-entropy", optimizer=spec, trained=dict(module.named_parameters())
    )
    after, states = list[dict[str, torch.Tensor]](), list[Any]()
    for is_driven in (True, False):
        with Trainer.open(tmp_path / "p", seed=0) as trainer:
            torch.manual_seed(0)
            for number, amount in enumerate(amounts):
                inputs, targets = random_batch(plan, number)
                if is_driven:
                    for optimizer in (trainer.optimizer, plain.optimizer):
                        optimizer.param_groups[0][key] = amount
                    plain.step(inputs, targets)
                trainer.step(inputs, targets)
            after.append(trainer.parameters())
            states.append(trainer.optimizer_state())
    assert all(torch.equal(after[0][name], tensor) for name, tensor in module.named_parameters())
    assert not torch.equal(after[0]["5.weight"], after[1]["5.weight"])
    for (parameter, state), tensor in plain.optimizer_state().items():
        assert torch.equal(states[0][parameter][state], tensor)


@pytest.mark.parametrize(
    ("name", "key", "amounts", "message"),
    [
        ("nesterov", "momentum", [0.0, None, "0.9", -0.1, torch.inf], "it must stay above 0"),
        ("amsgrad", "betas", [(0.9,), 0.9, None, (0.9, 1.0), ("0.9", 0.9)], "they must be two numbers in"),
    ],
)
def test_what_a_momentum_or_betas_cannot_be_is_refused_before_the_step(
    name: str, key: str, amounts: list[object], message: str, tmp_path: Path
) -> None:
    plan = write(tmp_path / "p", SPECS[name], share=0.0)
    with Trainer.open(tmp_path / "p", seed=0) as trainer:
        (group,) = trainer.optimizer.param_groups
        usual = group[key]
        for amount in amounts:
            group[key] = amount
            with pytest.raises(InputError, match=f"group 0 .* the {key} of a step .*{message}") as refused:
                trainer.step(*random_batch(plan, 0))
            assert repr(amount) in str(refused.value)
        group[key] = usual
        trainer.step(*random_batch(plan, 0))
        assert trainer.steps == 1


def test_plans_of_earlier_versions_have_a_momentum_that_stays() -> None:
    """Their updates hold it as a number: a scheduler that cycles it is told so by torch."""
    driven = DrivenOptimizer(SPECS["nesterov"], [0.1], {"lr", "gradient_share"})
    with pytest.raises(ValueError, match="support momentum or beta1"):
        lr_scheduler.OneCycleLR(driven, 0.5, total_steps=6)
    assert DrivenOptimizer(SPECS["adam"], [0.1], {"lr", "beta1"}).driven == [{}]  # its beta2 stays 0
    driven.param_groups[0]["momentum"] = 0.5
    with pytest.raises(InputError, match=r"has momentum, which .* plan again"):
        _ = driven.driven


def test_what_no_step_would_heed_is_refused_before_the_step(tmp_path: Path) -> None:
    plan = write(tmp_path / "p", SPECS["sgd groups"], share=0.0)
    with Trainer.open(tmp_path / "p", seed=0) as trainer:
        for name, amount in {"betas": (0.5, 0.9), "momentum": 0.9, "weight_decay": 0.1}.items():
            trainer.optimizer.param_groups[1][name] = amount
            with pytest.raises(
                InputError, match=f"group 1 of the optimizer has {name}, .* no step would heed"
            ):
                trainer.step(*random_batch(plan, 0))
            del trainer.optimizer.param_groups[1][name]
        lr_scheduler.CyclicLR(trainer.optimizer, 0.1, 0.5, cycle_momentum=False)  # it keeps notes in groups
        trainer.step(*random_batch(plan, 0))
        assert trainer.steps == 1


def test_rates_are_set_by_hand_as_well(tmp_path: Path) -> None:
    write(tmp_path / "p", SPECS["sgd groups"], share=0.0)
    with Trainer.open(tmp_path / "p", learning_rate=0.3) as trainer:
        assert trainer.learning_rates == (0.3, 0.5, 0.02)
        scheduled = trainer.optimizer
        trainer.learning_rate = 0.25
        assert scheduled.rates == [0.25, 0.5, 0.02]
        with pytest.raises(InputError, match="2 learning rates were given, the plan has 3"):
            trainer.learning_rates = (0.1, 0.2)


def test_schedules_by_name() -> None:
    cosine = RateSchedule.parse("cosine:warmup=3,end=0.1").over(13)
    factors = [cosine.factor_of(step) for step in range(15)]
    assert factors[:4] == [0.25, 0.5, 0.75, 1.0]
    assert factors[3:14] == sorted(factors[3:14], reverse=True)
    assert factors[13:] == pytest.approx([0.1, 0.1])
    halved = RateSchedule.parse("step:every=2,factor=0.5")
    assert [halved.factor_of(step) for step in range(5)] == [1, 1, 0.5, 0.5, 0.25]
    assert RateSchedule.parse("linear:steps=4").factor_of(3) == 0.25
    assert RateSchedule.parse("constant:warmup=1").factor_of(9) == 1.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cosin", "did you mean 'cosine'"),
        ("cosine:every=1", "'every' is not an option; the options of cosine are: warmup, steps, end"),
        ("cosine:warmup=1.5", "warmup is a whole number from 0 up"),
        ("step:every=0", "every is a whole number from 1 up"),
        ("step:factor=x", "factor is a number from 0 up"),
        ("step:factor=1,factor=1", "gives factor twice"),
    ],
)
def test_a_schedule_that_cannot_be(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        RateSchedule.parse(text)
