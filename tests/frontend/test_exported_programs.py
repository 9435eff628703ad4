"""Programs of ``torch.export`` as models."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from helpers.beside_plain import assert_trains_alike
from torch import nn

from poet.api import plan as plan_module
from poet.errors import ModelError
from poet.files.kinds import FileKind, other_kind
from poet.ir.optimizer import OptimizerSpec
from poet.planning.prepared import prepare


class Named(nn.Module):
    """A net that is exported with an argument's name."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Scores."""
        scores: torch.Tensor = self.linear(features)
        return scores


@pytest.mark.slow
def test_a_program_trains_with_the_bits_of_its_module(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout(0.3), nn.Flatten(), nn.Linear(8, 3))
    program = torch.export.export(copy.deepcopy(net).train(), (torch.zeros(4, 1, 4, 4),))
    spec = OptimizerSpec("momentum", lr=0.05)
    with pytest.warns(UserWarning, match="no other mode than that in which it was exported"):
        planned = plan_module(program, device="x86-host", ram=None, optimizer=spec)
    planned.save(tmp_path / "p.poet")
    assert_trains_alike(tmp_path / "p.poet", net.train(), spec, (4, 1, 4, 4))


def test_named_arguments_are_refused() -> None:
    program = torch.export.export(Named(), (), {"features": torch.zeros(2, 3)})
    with pytest.raises(ModelError, match=r"exported with named arguments \(features\)"):
        prepare(program, device="x86-host")


def test_a_file_is_a_model(tmp_path: Path) -> None:
    """Its inputs and names are those of the program; what is for ONNX files is refused."""
    torch.export.save(torch.export.export(Named().train(), (torch.zeros(2, 3),)), tmp_path / "net.pt2")
    prepared = prepare(tmp_path / "net.pt2", device="x86-host")
    assert prepared.step.graph.name == "net"
    assert [parameter.name for parameter in prepared.step.graph.parameters] == [
        "linear.weight",
        "linear.bias",
    ]
    assert prepared.step.graph.inputs[0] == "features"
    with pytest.raises(ModelError, match="no dimensions to bind; export it for these sizes"):
        prepare(tmp_path / "net.pt2", device="x86-host", bind={"N": 4})
    with pytest.raises(ModelError, match="names are for an ONNX file"):
        prepare(tmp_path / "net.pt2", device="x86-host", names=Named())
    assert "`poet solve` takes it" in other_kind(tmp_path / "net.pt2", FileKind.ONNX)


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(ModelError, match="an exported program, not dict"):
        prepare({}, torch.zeros(2, 3), device="x86-host")  # type: ignore[arg-type]
