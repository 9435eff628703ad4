"""The package's own names, from a module or an ONNX file to a verified plan."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from zoo import NETS, export

import poet
import poet.training_plan
import poet.verification
from poet.errors import Infeasible, ModelError

NET = NETS["resnet18"].small


def test_every_public_name_is_there_and_functions_are_no_modules() -> None:
    for name in poet.__all__:
        assert getattr(poet, name) is not None
    assert callable(poet.plan)
    assert callable(poet.verify)
    with pytest.raises(AttributeError, match="no_such_name"):
        poet.no_such_name  # noqa: B018


def test_a_module_is_planned_saved_and_verified(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = NET.build().train()
    planned = poet.plan(
        module, NET.inputs(8), device="rpi4b", ram="400KiB", optimizer="momentum", time_limit_seconds=2.0
    )
    trace = planned.plan.trace
    assert trace.peak_ram_bytes <= 400 * 1024
    assert trace.recomputed_runs > 0
    assert trace.written_bytes > 0
    planned.save(tmp_path / "plan.poet")
    report = poet.verify(tmp_path / "plan.poet", module=module, steps=1, threads=(1, 2))
    assert [comparison.difference for comparison in report.comparisons] == [None, None]


def test_an_onnx_file_is_planned_with_its_dimensions_bound(tmp_path: Path) -> None:
    export(NET.build(), NET.inputs(4), tmp_path / "net.onnx", exporter="dynamo", training=True)
    planned = poet.plan(
        tmp_path / "net.onnx", device="nrf52840", ram="1MiB", bind={"N": 4}, time_limit_seconds=2.0
    )
    assert planned.plan.model.kind == "onnx"
    assert planned.plan.model.binding == (("N", 4),)
    assert planned.solution.bound_joules <= planned.plan.trace.joules


def test_what_cannot_be_planned_is_said() -> None:
    module = nn.Linear(4, 2)
    with pytest.raises(ModelError, match="example_inputs"):
        poet.plan(module, device="rpi4b", ram="1MiB")
    with pytest.raises(ModelError, match="bind"):
        poet.plan(module, torch.zeros(1, 4), device="rpi4b", ram="1MiB", bind={"N": 1})
    with pytest.raises(Infeasible, match="needs at least"):
        poet.plan(module, torch.zeros(1, 4), device="rpi4b", ram=64)
