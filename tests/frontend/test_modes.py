"""Every net as it is fine-tuned: evaluating, with frozen norms, with one layer or only biases trained.

Each goes the whole way: traced and measured, a schedule that recomputes and pages, an arena, replay
in that arena, and equality with plain PyTorch at one thread and at two.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers import hand_net
from helpers.schedules import random_schedule
from test_exactness_graph import ALL
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from poet.frontend.trace import TrainingStep, trace_training_step
from poet.memory.demand import demand_of
from poet.memory.layout import check_layout, lay_out
from poet.optimizer import OptimizerSpec
from poet.plans.plan_file import write_plan
from poet.plans.plan_parts import Arena, Request
from poet.plans.training_plan import Plan
from poet.problem import Limits
from poet.runtime import Trainer, native
from poet.runtime.storage.state import raw_tensor
from poet.schedule import PageIn
from poet.verification import verify

Mode = Callable[[nn.Module], tuple[str, ...] | None]
"""Sets a module up; patterns of what is trained, ``None`` for all that require a gradient."""


def _evaluating(module: nn.Module) -> None:
    module.eval()


def _frozen_norms(module: nn.Module) -> None:
    for norm in _norms(module):
        norm.eval().requires_grad_(False)


def _last_layer(module: nn.Module) -> tuple[str, ...]:
    name = [name for name, _ in module.named_parameters()][-1]
    return (name.rpartition(".")[0] + "*",)


def _evaluating_last_layer(module: nn.Module) -> tuple[str, ...]:
    module.eval()
    return _last_layer(module)


def _biases(module: nn.Module) -> tuple[str, ...]:
    return ("*bias*",)


def _norm_weights(module: nn.Module) -> tuple[str, ...]:
    names = {id(norm): name for name, norm in module.named_modules()}
    return tuple(f"{names[id(norm)]}.weight" for norm in _norms(module) if norm.weight is not None)


def _norms(module: nn.Module) -> list[_NormBase]:
    return [norm for norm in module.modules() if isinstance(norm, _NormBase)]


MODES: dict[str, Mode] = {
    "evaluating": _evaluating,
    "frozen-norms": _frozen_norms,
    "last-layer": _last_layer,
    "evaluating-last-layer": _evaluating_last_layer,
    "biases": _biases,
    "norm-weights": _norm_weights,
}


FAST = {"shared-norm"}
"""Nets that every run tries in every second mode; of every second of the other small ones it tries one mode,
in turn."""


def _cases() -> list[object]:
    cases: list[object] = []
    for number, name in enumerate(sorted(ALL)):
        module = ALL[name].build()
        has_biases = any("bias" in key for key, _ in module.named_parameters())
        modes = [mode for mode in MODES if "norm" not in mode or _norms(module)]
        modes = [mode for mode in modes if mode != "biases" or has_biases]
        for mode in modes:
            in_turn = (name in FAST and mode in modes[::2]) or (
                number % 6 == 0 and mode == modes[number % len(modes)]
            )
            marks = [] if in_turn and not name.startswith("zoo-") else [pytest.mark.slow]
            cases.append(pytest.param(name, mode, marks=marks))
    return cases


def _planned(name: str, mode: str, path: Path) -> tuple[nn.Module, Plan]:
    """A net in a mode, and its plan at ``path``: a random schedule inside an arena of just its size."""
    net = ALL[name]
    torch.manual_seed(1)
    module = net.build()
    train = MODES[mode](module)
    step = trace_training_step(
        module,
        net.inputs(),
        loss=net.loss,
        optimizer=OptimizerSpec("momentum", lr=0.05, weight_decay=0.01),
        train=train,
        targets=net.targets(),
    )
    plan = _with_arena(step)
    write_plan(path, plan, {key: raw_tensor(tensor) for key, tensor in step.tensors.items()})
    return module, plan


def _with_arena(step: TrainingStep) -> Plan:
    graph = step.graph
    of = replace(hand_net.problem(graph, kernels=step.kernels), alignment_bytes=64)
    schedule = random_schedule(of, 3, share=0.3)
    layout = lay_out(demand_of(of, schedule, step.kernels).blocks, time_limit_seconds=0.0)
    check_layout(layout)
    plan = hand_net.plan(of, graph, schedule, optimizer=step.optimizer, loss=step.loss, kernels=step.kernels)
    plan = replace(plan, arena=Arena(layout.arena_bytes, layout.offsets_bytes))
    budget_bytes = max(plan.arena_ram_bytes, plan.trace.peak_ram_bytes)
    return replace(plan, request=Request(Limits(ram_budget_bytes=budget_bytes), step.loss))


@pytest.mark.parametrize(("name", "mode"), _cases())
def test_a_net_in_a_mode_is_exact_through_its_arena(name: str, mode: str, tmp_path: Path) -> None:
    module, plan = _planned(name, mode, tmp_path / "net.poet")
    assert plan.trace.recomputed_runs > 0 or any(isinstance(step, PageIn) for step in plan.schedule)
    report = verify(tmp_path / "net.poet", module=copy.deepcopy(module), steps=2, threads=(1, 2))
    report.require()
    if native.load() is not None and plan.kernels.threads is not None:
        before = torch.get_num_threads()
        torch.set_num_threads(plan.kernels.threads)
        with Trainer.open(tmp_path / "net.poet") as trainer:
            assert trainer.memory.endswith("as planned")
        torch.set_num_threads(before)
