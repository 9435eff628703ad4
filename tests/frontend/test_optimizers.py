"""Optimizers from torch and from text: taken with their groups, or refused; their ops, costs and order."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.optimizer_plans import SPECS, net, write
from torch import nn
from torch.optim import lr_scheduler

from poet import api
from poet.devices.device_problem import build_problem
from poet.devices.load import load_profile
from poet.errors import InputError, ModelError
from poet.frontend.plain import Lion, spec_of, torch_optimizer
from poet.frontend.trace import trace_training_step
from poet.ir.optimizer import OptimizerSpec, ParameterGroup
from poet.ir.optimizer_kinds import OPTIONS
from poet.problem.schedule import Compute
from poet.runtime import Trainer
from poet.runtime.data.random_batches import random_batch
from poet.runtime.training.rates import DrivenOptimizer
from poet.verification import verify


def test_an_optimizer_of_torch_is_taken_with_its_groups(tmp_path: Path) -> None:
    module = net()
    groups: list[dict[str, Any]] = [
        {"params": module[0].parameters()},
        {"params": [module[5].weight], "lr": 0.5, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.05, betas=(0.8, 0.9))
    made = api.plan(
        module, torch.zeros(3, 2, 4, 4), device="rpi4b", ram=None, optimizer=optimizer,
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


def test_gradients_are_clipped_as_the_plan_is_asked_to() -> None:
    module, x = net(), torch.zeros(3, 2, 4, 4)
    optimizers = ("momentum", OptimizerSpec("momentum", lr=0.1), torch.optim.SGD(module.parameters(), lr=0.1))
    for optimizer in optimizers:
        made = api.prepare(module, x, device="rpi4b", optimizer=optimizer, clip_norm=0.01, clip_value=0.1)
        assert (made.step.optimizer.clip_norm, made.step.optimizer.clip_value) == (0.01, 0.1)


def test_clipping_among_an_optimizers_options_names_what_to_write() -> None:
    with pytest.raises(InputError, match=r"--clip-norm on the command line, clip_norm= of poet\.plan"):
        OptimizerSpec.parse("adam:clip_norm=5")


_SETTINGS = (
    "lr", "decay", "inertia", "both_betas", "epsilon", "alpha", "centered", "lr_decay", "amsgrad", "maximize",
    "rho", "momentum_decay", "decoupled_weight_decay",
)  # fmt: skip


@pytest.mark.parametrize("name", [name for name in SPECS if "clip" not in name and name != "everything"])
def test_what_torch_is_told_is_what_is_read_back(name: str) -> None:
    module, spec = net(), SPECS[name]
    found, _ = spec_of(torch_optimizer(spec, dict(module.named_parameters())), module)
    assert found.name == spec.name
    names = [name for name, _ in module.named_parameters()]
    for parameter in names:
        ours, theirs = (each.of_group(each.group_of(parameter)) for each in (spec, found))
        for setting in _SETTINGS:
            assert getattr(ours, setting) == getattr(theirs, setting) or setting not in OPTIONS[spec.name]


def test_what_is_frozen_is_not_trained_by_an_optimizer_of_all_parameters(tmp_path: Path) -> None:
    module = net()
    module[3] = nn.Identity()
    module[0].requires_grad_(False)
    groups: list[dict[str, Any]] = [
        {"params": module[5].parameters()},
        {"params": module[0].parameters(), "lr": 0.5},
        {"params": module[1].parameters(), "lr": 0.1},
    ]
    spec, trained = spec_of(torch.optim.SGD(groups, lr=0.05), module)
    assert sorted(trained) == sorted(
        name for name, item in module.named_parameters() if item.requires_grad and name[0] in "15"
    )
    assert [group.patterns for group in spec.groups] == [("1.weight", "1.bias")]
    with pytest.raises(InputError, match="none of its parameters requires a gradient"):
        spec_of(torch.optim.SGD(module[0].parameters(), lr=0.05), module)
    plain = copy.deepcopy(module)
    images, targets = torch.randn(3, 2, 4, 4), torch.randint(4, (3,))
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.9)
    made = api.plan(
        module, images, device="rpi4b", ram=None, time_limit_seconds=1.0,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9),
    )  # fmt: skip
    made.save(tmp_path / "plan.poet")
    with Trainer.open(tmp_path / "plan.poet") as trainer:
        for _ in range(2):
            trainer.step(images, targets)
            optimizer.zero_grad()
            torch.autograd.backward(nn.functional.cross_entropy(plain(images), targets))
            optimizer.step()
        state = trainer.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in plain.state_dict().items())


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
    spec_of(torch.optim.SGD(module.parameters(), fused=True), module)
    with pytest.raises(InputError, match="lr is a tensor, by which torch rounds otherwise; give a number"):
        spec_of(torch.optim.Adam(module.parameters(), lr=torch.tensor(0.01)), module)
    with pytest.raises(InputError, match="fused=True rounds in another order than a plan does; leave it out"):
        spec_of(torch.optim.AdamW(module.parameters(), fused=True), module)
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


# --- what they are made of --------------------------------------------------------------------


def test_every_op_has_its_cost_on_a_device() -> None:
    for spec in {spec.name: spec for spec in SPECS.values()}.values():
        step = trace_training_step(net(), torch.zeros(3, 2, 4, 4), optimizer=spec, measure=False)
        problem = build_problem(step.graph, load_profile("rpi4b"), step.kernels)
        assert {op.name for op in problem.ops} == {op.name for op in step.graph.ops}, spec.name


def test_clipping_changes_something(tmp_path: Path) -> None:
    """Else equal bits would show nothing."""
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
