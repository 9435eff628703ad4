"""A small net with an optimizer of each kind, and its plans that recompute and page."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch
from torch import nn

from helpers import hand_net
from poet.frontend.trace import trace_training_step
from poet.ir.optimizer import OptimizerSpec, ParameterGroup
from poet.plans.training_plan import Plan


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(),
        nn.Linear(4 * 16, 5),
    )  # fmt: skip


def write(path: Path, spec: OptimizerSpec, *, seed: int = 1, share: float = 0.5) -> Plan:
    """A plan that recomputes and pages."""
    step = trace_training_step(net(), torch.zeros(3, 2, 4, 4), optimizer=spec, measure=False)
    return hand_net.write_step(path, step, seed, share=share)


GROUPS = (ParameterGroup.parse("1.*:weight_decay=0,lr=0.5"), ParameterGroup.parse("*.bias:lr=0.02"))
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
