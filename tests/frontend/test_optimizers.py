"""Optimizers, parameter groups, clipping, learning rates: replay gives the bits of plain PyTorch."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import hand_net
from helpers.pace import with_slow
from helpers.schedules import random_schedule
from torch import nn
from torch.optim import lr_scheduler

from poet import api
from poet.devices.device_problem import build_problem
from poet.devices.load import load_profile
from poet.errors import InputError, ModelError
from poet.frontend.optimizers import Lion, spec_of
from poet.frontend.plain import PlainTrainer
from poet.frontend.trace import trace_training_step
from poet.optimizer import OptimizerSpec, ParameterGroup
from poet.optimizer_kinds import OPTIONS, STATES
from poet.plans.plan_file import write_plan
from poet.plans.rate_schedule import RateSchedule
from poet.plans.training_plan import Plan
from poet.random_batches import random_batch
from poet.runtime import Trainer
from poet.runtime.storage.state import raw_tensor
from poet.runtime.training.driven import DrivenOptimizer
from poet.schedule import Compute
from poet.verification import verify


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(),
        nn.Linear(4 * 16, 5),
    )  # fmt: skip


def write(path: Path, spec: OptimizerSpec, *, seed: int = 1, share: float = 0.5) -> Plan:
    """A plan that recomputes and pages."""
    step = trace_training_step(net(), torch.zeros(3, 2, 4, 4), optimizer=spec, measure=False)
    of = hand_net.problem(step.graph)
    schedule = random_schedule(of, seed, share=share)
    plan = hand_net.plan(of, step.graph, schedule, optimizer=spec, loss="cross-entropy", slack=1.0)
    write_plan(path, plan, {name: raw_tensor(tensor) for name, tensor in step.tensors.items()})
    return plan


GROUPS = (
    ParameterGroup.parse("1.*:weight_decay=0,lr=0.5"),
    ParameterGroup.parse("*.bias:lr=0.02"),
)
SPECS = {
    "adam": OptimizerSpec.parse("adam:lr=0.05,weight_decay=0.1"),
    "rmsprop": OptimizerSpec.parse("rmsprop:lr=0.05,momentum=0.5,centered=yes"),
    "adagrad": OptimizerSpec.parse("adagrad:lr=0.05,lr_decay=0.1,initial=0.5"),
    "lion": OptimizerSpec.parse("lion:lr=0.05,weight_decay=0.1"),
    "amsgrad": OptimizerSpec.parse("adam:lr=0.05,weight_decay=0.1,amsgrad=yes"),
    "amsgrad decoupled": OptimizerSpec.parse("adamw:lr=0.05,amsgrad=yes,maximize=yes"),
    "maximize clipped": dataclasses.replace(
        OptimizerSpec.parse("momentum:lr=0.1,nesterov=yes,maximize=yes"), clip_value=0.1, clip_norm=0.2
    ),
    "adadelta": OptimizerSpec.parse("adadelta:lr=0.5,rho=0.8"),
    "adamax": OptimizerSpec.parse("adamax:lr=0.05,weight_decay=0.1,maximize=yes"),
    "nadam groups": dataclasses.replace(
        OptimizerSpec.parse("nadam:lr=0.05,momentum_decay=0.1,decoupled_weight_decay=yes"), groups=GROUPS
    ),
    "radam": OptimizerSpec.parse("radam:lr=0.05,betas=0.9/0.95,weight_decay=0.1"),
    "nesterov": OptimizerSpec.parse("momentum:lr=0.05,nesterov=yes,weight_decay=0.01"),
    "sgd groups": dataclasses.replace(OptimizerSpec.parse("sgd:lr=0.1,weight_decay=0.1"), groups=GROUPS),
    "adamw groups": dataclasses.replace(OptimizerSpec.parse("adamw:lr=0.1"), groups=GROUPS),
    "momentum groups": dataclasses.replace(
        OptimizerSpec.parse("momentum:lr=0.1"), groups=(ParameterGroup(("5.*",), momentum=0.3),)
    ),
    "clip value": dataclasses.replace(OptimizerSpec.parse("sgd:lr=0.1"), clip_value=0.01),
    "clip norm": dataclasses.replace(OptimizerSpec.parse("adamw:lr=0.1"), clip_norm=0.05),
    "clip norm in vain": dataclasses.replace(OptimizerSpec.parse("sgd:lr=0.1"), clip_norm=1e6),
    "everything": dataclasses.replace(
        OptimizerSpec.parse("momentum:lr=0.1"), groups=GROUPS, clip_value=0.1, clip_norm=0.2
    ),
}


@pytest.mark.parametrize(
    "name",
    with_slow(
        SPECS,
        {
            "clip norm in vain",
            "clip norm",
            "sgd groups",
            "amsgrad",
            "maximize clipped",
            "adadelta",
            "adamax",
            "adamw groups",
            "everything",
        },
    ),
)
def test_training_gives_the_bits_of_torchs_optimizer(name: str, tmp_path: Path) -> None:
    write(tmp_path / "p", SPECS[name])
    verify(tmp_path / "p", module=net(), steps=3).require()


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", ["adadelta", "adamax", "nadam groups", "radam"])
def test_many_steps_have_the_bits_as_well(name: str, threads: int, tmp_path: Path) -> None:
    """RAdam's step has another form from the sixth on (and its memory no other)."""
    plan = write(tmp_path / "p", SPECS[name])
    assert plan.trace.recomputed_runs
    assert plan.trace.written_bytes
    verify(tmp_path / "p", module=net(), steps=12, threads=(threads,)).require()


@pytest.mark.parametrize("name", SPECS)
def test_every_op_has_its_cost_on_a_device(name: str) -> None:
    step = trace_training_step(net(), torch.zeros(3, 2, 4, 4), optimizer=SPECS[name], measure=False)
    problem = build_problem(step.graph, load_profile("rpi4b"), step.kernels)
    assert {op.name for op in problem.ops} == {op.name for op in step.graph.ops}


def test_clipping_changes_something(tmp_path: Path) -> None:
    """Else the tests above would show nothing."""
    weights = []
    for name in ("clip value", "clip norm in vain"):
        plan = write(tmp_path / "p", SPECS[name], share=0.0)
        with Trainer.open(tmp_path / "p", seed=0) as trainer:
            trainer.step(*random_batch(plan, 0))
            weights.append(trainer.parameters()["0.weight"])
    assert not torch.equal(*weights)


def test_the_norm_of_all_gradients_is_there_before_the_first_update(tmp_path: Path) -> None:
    plan = write(tmp_path / "p", SPECS["clip norm"], share=0.0)
    ops = [step.op for step in plan.schedule if isinstance(step, Compute)]
    updates = [place for place, op in enumerate(ops) if op.endswith(".update")]
    assert updates[0] > ops.index("grad.clip_coefficient")


# --- learning rates ---------------------------------------------------------------------------


COSINE = RateSchedule.parse("cosine:warmup=2,steps=6")


@pytest.mark.parametrize("make", [
    lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, T_max=4),
    lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=6, cycle_momentum=False),
    lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=6),
    pytest.param(
        lambda optimizer: lr_scheduler.CyclicLR(optimizer, 0.01, 0.5, step_size_up=2), marks=pytest.mark.slow
    ),
    lambda optimizer: lr_scheduler.LambdaLR(optimizer, COSINE.factor_of),
    lambda optimizer: lr_scheduler.ExponentialLR(optimizer, 0.8),
], ids=["cosine", "one-cycle", "one-cycle-momentum", "cyclic-momentum", "ours", "exponential"])  # fmt: skip
@pytest.mark.parametrize("name", ["momentum groups", "adamw groups"])
def test_schedulers_of_torch_drive_the_trainer(name: str, make: object, tmp_path: Path) -> None:
    assert callable(make)
    plan, module = write(tmp_path / "p", SPECS[name]), net()
    plain = PlainTrainer(
        module, loss="cross-entropy", optimizer=plan.optimizer, trained=dict(module.named_parameters())
    )
    with Trainer.open(tmp_path / "p", seed=0) as trainer:
        ours, theirs = make(trainer.optimizer), make(plain.optimizer)
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


@pytest.mark.parametrize(
    "name",
    with_slow(
        ("nesterov", "rmsprop", "lion", "amsgrad", "adamax", "radam"), {"rmsprop", "lion", "adamax", "radam"}
    ),
)
def test_momentum_and_betas_are_set_by_hand_as_well(name: str, tmp_path: Path) -> None:
    """In each step anew; and they do change something."""
    plan, module = write(tmp_path / "p", SPECS[name]), net()
    plain = PlainTrainer(
        module, loss="cross-entropy", optimizer=plan.optimizer, trained=dict(module.named_parameters())
    )
    key = "betas" if "betas" in OPTIONS[plan.optimizer.name] else "momentum"
    after: list[dict[str, torch.Tensor]] = []
    for amounts in ([0.6, 0.7, 0.8], [None] * 3):
        with Trainer.open(tmp_path / "p", seed=0) as trainer:
            torch.manual_seed(0)
            for number, amount in enumerate(amounts):
                inputs, targets = random_batch(plan, number)
                if amount is not None:
                    for optimizer in (trainer.optimizer, plain.optimizer):
                        own = (amount, 0.95) if key == "betas" else amount
                        optimizer.param_groups[0][key] = own
                    plain.step(inputs, targets)
                trainer.step(inputs, targets)
            after.append(trainer.parameters())
    assert all(torch.equal(after[0][name], tensor) for name, tensor in module.named_parameters())
    assert not torch.equal(after[0]["5.weight"], after[1]["5.weight"])


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


@pytest.mark.parametrize(
    ("name", "betas"),
    with_slow(
        [(name, betas) for name in ("adamw", "adam", "lion") for betas in ((0.9, 0.0), (0.0, 0.9))],
        {("adam", (0.9, 0.0)), ("adam", (0.0, 0.9)), ("lion", (0.9, 0.0)), ("lion", (0.0, 0.9))},
    ),
    ids=str,
)
def test_betas_that_are_0_in_the_plan_are_set_by_hand_as_well(
    name: str, betas: tuple[float, float], tmp_path: Path
) -> None:
    """On a plan that recomputes and pages; a beta that becomes 0 as well."""
    spec = OptimizerSpec(name, lr=0.05, betas=betas)
    plan = write(tmp_path / "p", spec)
    assert plan.trace.recomputed_runs
    threads_before = torch.get_num_threads()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        try:
            module = net()
            plain = PlainTrainer(
                module, loss="cross-entropy", optimizer=spec, trained=dict(module.named_parameters())
            )
            with Trainer.open(tmp_path / "p", seed=0) as trainer:
                torch.manual_seed(0)
                for number, own in enumerate((betas, (0.5, 0.9), (0.6, 0.0), (0.0, 0.8))):
                    for optimizer in (trainer.optimizer, plain.optimizer):
                        optimizer.param_groups[0]["betas"] = own
                    inputs, targets = random_batch(plan, number)
                    plain.step(inputs, targets)
                    trainer.step(inputs, targets)
                found, states = trainer.parameters(), trainer.optimizer_state()
        finally:
            torch.set_num_threads(threads_before)
        assert all(torch.equal(found[each], tensor) for each, tensor in module.named_parameters())
        for (parameter, state), tensor in plain.optimizer_state().items():
            assert torch.equal(states[parameter][state], tensor)


def test_a_state_of_the_optimizer_from_earlier_versions_is_taken() -> None:
    """It has learning rates alone; momentum and betas are those of each group in the plan."""
    for name, key, usual in (
        ("momentum groups", "momentum", [0.9, 0.3]),
        ("adamw groups", "betas", [(0.9, 0.999)] * 3),
    ):
        spec = SPECS[name]
        rates = [0.5] * len(spec.rates)
        now = DrivenOptimizer(spec, rates, {"momentum", "beta1", "beta2"})
        old = DrivenOptimizer(spec, [0.25] * len(rates), {"lr"}).state_dict()
        assert key not in old["param_groups"][0]
        now.load_state_dict(old)
        assert now.rates == [0.25] * len(rates)
        assert [group[key] for group in now.driven] == usual
        copied = copy.deepcopy(now)
        copied.load_state_dict(old)
        assert copied.driven == now.driven


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
    assert [RateSchedule.parse("step:every=2,factor=0.5").factor_of(n) for n in range(5)] == [
        1,
        1,
        0.5,
        0.5,
        0.25,
    ]
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


# --- from torch, and from text ----------------------------------------------------------------


def test_an_optimizer_of_torch_is_taken_with_its_groups(tmp_path: Path) -> None:
    module = net()
    groups: list[dict[str, Any]] = [
        {"params": module[0].parameters()},
        {"params": [module[5].weight], "lr": 0.5, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.05, betas=(0.8, 0.9))
    made = api.plan(
        module, torch.zeros(3, 2, 4, 4), device="rpi4b", ram=None, optimizer=optimizer, measure_host=False,
        time_limit_seconds=1.0,
    )  # fmt: skip
    plan = made.plan
    assert plan.optimizer.rates == (0.05, 0.5)
    trained = {item.name for item in plan.graph.parameters if item.gradient is not None}
    assert trained == {"0.weight", "0.bias", "5.weight"}
    made.save(tmp_path / "p")
    verify(tmp_path / "p", module=net(), steps=2, threads=(1,)).require()
    inputs, targets = random_batch(plan, 0)
    with Trainer.open(tmp_path / "p", seed=0) as trainer:
        trainer.step(inputs, targets)
        found = trainer.parameters()
    torch.manual_seed(0)
    nn.functional.cross_entropy(module(*inputs), targets).backward()  # type: ignore[arg-type, no-untyped-call]
    optimizer.step()
    for name, tensor in module.named_parameters():
        assert torch.equal(found[name], tensor)


@pytest.mark.parametrize("name", [name for name in SPECS if "clip" not in name and name != "everything"])
def test_what_torch_is_told_is_what_is_read_back(name: str) -> None:
    from poet.frontend.optimizers import torch_optimizer

    module, spec = net(), SPECS[name]
    found, _ = spec_of(torch_optimizer(spec, dict(module.named_parameters())), module)
    assert found.name == spec.name
    names = [name for name, _ in module.named_parameters()]
    for parameter in names:
        ours, theirs = (each.of_group(each.group_of(parameter)) for each in (spec, found))
        for setting in (
            "lr",
            "decay",
            "inertia",
            "both_betas",
            "epsilon",
            "alpha",
            "centered",
            "lr_decay",
            "amsgrad",
            "maximize",
            "rho",
            "momentum_decay",
            "decoupled_weight_decay",
        ):
            assert getattr(ours, setting) == getattr(theirs, setting) or setting not in OPTIONS[spec.name]


def test_what_cannot_be_taken_is_said() -> None:
    module = net()
    for kind, why in {
        torch.optim.ASGD: "the average of the weights",
        torch.optim.Rprop: "whole data sets' gradients",
        torch.optim.LBFGS: "several times per step",
        torch.optim.Adafactor: "the mean square of the whole weight",
        torch.optim.SparseAdam: "takes sparse gradients",
        torch.optim.Muon: "whole gradient with itself",
    }.items():
        with pytest.raises(InputError, match=f"{kind.__name__} is not an optimizer that poet has: .*{why}"):
            spec_of(kind([module[5].weight]), module)
        with pytest.raises(InputError, match=f"'{kind.__name__}' is not one that poet has: .*{why}"):
            OptimizerSpec.parse(kind.__name__)
    with pytest.raises(InputError, match="Own is not an optimizer that poet has; it has: SGD, Adam, "):
        spec_of(type("Own", (torch.optim.SGD,), {})(module.parameters()), module)
    cycled = DrivenOptimizer(SPECS["nadam groups"], [0.1, 0.1, 0.1], {"lr", "step_size"})
    with pytest.raises(ValueError, match="support momentum or beta1"):
        lr_scheduler.OneCycleLR(cycled, 0.5, total_steps=6)
    with pytest.raises(InputError, match="decoupled_weight_decay=True is not something that poet has"):
        spec_of(torch.optim.Adam(module.parameters(), decoupled_weight_decay=True), module)
    with pytest.raises(InputError, match="no parameter of the module"):
        spec_of(Lion([torch.zeros(2)]), module)
    groups: list[dict[str, Any]] = [
        {"params": module[0].parameters()},
        {"params": module[5].parameters(), "betas": (0.5, 0.5)},
    ]
    with pytest.raises(InputError, match="betas differs between groups"):
        spec_of(torch.optim.Adam(groups), module)
    begun = torch.optim.Adam(module.parameters())
    module(torch.zeros(3, 2, 4, 4)).sum().backward()
    begun.step()
    with pytest.raises(InputError, match="has made steps already"):
        spec_of(begun, module)
    spec = dataclasses.replace(OptimizerSpec(), groups=(ParameterGroup.parse("7.*:lr=0.1"),))
    with pytest.raises(ModelError, match=r"parameter group '7\.\*': no trained parameter"):
        trace_training_step(module, torch.zeros(3, 2, 4, 4), optimizer=spec, measure=False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("adamm", "did you mean 'adam'"),
        (
            "sgd:momentum=0.9",
            "'momentum' is not an option; the options of sgd are: lr, weight_decay, maximize",
        ),
        ("adam:betas=0.9", "betas are two numbers with / between"),
        ("adam:betas=0.9/1.5", "betas are"),
        ("adam:lr=x", "lr is a number"),
        ("adadelta:rho=1.5", "rho is 1.5, not a number from 0 to 1"),
        ("nadam:decoupled_weight_decay=1", "decoupled_weight_decay is yes or no"),
        ("adam:lr=-1", "lr is -1"),
        ("momentum:nesterov=1", "nesterov is yes or no"),
        ("adam:lr=1,lr=2", "gives lr twice"),
    ],
)
def test_an_optimizer_that_cannot_be(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        OptimizerSpec.parse(text)


@pytest.mark.parametrize("text", ["norm", ":lr=1", "norm*:betas=1", "norm*:lr=-1"])
def test_a_group_that_cannot_be(text: str) -> None:
    with pytest.raises(InputError, match="parameter group"):
        ParameterGroup.parse(text)


def test_texts_are_read_back() -> None:
    for spec in SPECS.values():
        assert OptimizerSpec.parse(str(spec)) == dataclasses.replace(
            spec, groups=(), clip_value=None, clip_norm=None
        )
        assert tuple(ParameterGroup.parse(str(group)) for group in spec.groups) == spec.groups
    assert OPTIONS.keys() == STATES.keys()
