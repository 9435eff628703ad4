"""Short forms of what backward needs: which ops make and read them; steps with them are plain PyTorch's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from poet.devices.load import load_profile
from poet.frontend.trace import TrainingStep, trace_training_step
from poet.ir.graph import Graph, Role
from poet.passes.compressed import compressible
from poet.planning.prepared import form_on
from poet.problem import Place
from poet.report.training import packed_lines


class Net(nn.Module):
    """A fire module's branches (whose gradients are slices of something wider), poolings and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.left, self.right = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 16, 3, padding=1)
        self.last = nn.Linear(24 * 64, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.first(x)), 3, 2, padding=1)
        x = torch.cat([F.relu(self.left(x)), F.relu(self.right(x))], 1)
        x = F.dropout(F.max_pool2d(x, 2, ceil_mode=True), 0.3, training=True)
        return self.last(x.flatten(1))  # type: ignore[no-any-return]


def net() -> nn.Module:
    torch.manual_seed(0)
    return Net()


def traced(module: nn.Module, *inputs: Tensor, **options: object) -> TrainingStep:
    return trace_training_step(module, inputs, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def step() -> TrainingStep:
    return traced(net(), torch.zeros(2, 3, 32, 32))


def called(graph: Graph) -> list[str]:
    return [op.call.target if op.strip is None else op.strip.links[0].call.target for op in graph.ops]


def saved_bytes(graph: Graph) -> int:
    return sum(buffer.size_bytes for buffer in graph.buffers if buffer.role is Role.SAVED)


def test_signs_places_and_masks_are_saved_in_short_form(step: TrainingStep) -> None:
    whole = traced(net(), torch.zeros(2, 3, 32, 32), gradients="keep")
    assert whole.digest == step.digest
    made = called(step.graph)
    pairs = (("poet.relu", "poet.relu_backward"), ("poet.max_pool", "poet.max_pool_backward"))
    assert [made.count(name) for pair in pairs for name in pair] == [3, 3, 2, 2]
    assert made.count("poet.bernoulli_bits") == 1
    assert made.count("poet.masked") == 2
    assert not {"aten.relu.default", "poet.bernoulli", "aten.div.Scalar", "poet.rng_state"} & set(made)
    assert saved_bytes(step.graph) < 0.4 * saved_bytes(whole.graph)
    assert not compressible(step.graph)


def test_the_report_says_what_is_packed(step: TrainingStep) -> None:
    (line,) = packed_lines(step.graph)
    assert line.startswith("6 tensors saved for backward in bits and bytes: ")
    assert not packed_lines(traced(net(), torch.zeros(2, 3, 32, 32), gradients="keep").graph)


def test_small_tensors_stay_as_they_are() -> None:
    small = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 5))
    assert not packed_lines(traced(small, torch.zeros(1, 3, 8, 8)).graph)


def test_plans_of_several_shapes_save_as_plain_training_does() -> None:
    """So that graphs for other sizes follow from theirs."""
    assert not packed_lines(traced(net(), torch.zeros(2, 3, 32, 32), in_short_forms=False).graph)
    profile = load_profile("rpi4b")
    assert form_on(profile, Place.RAM).in_short_forms
    assert not form_on(profile, Place.RAM, has_shapes=True).in_short_forms
