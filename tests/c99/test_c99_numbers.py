"""Nets that look rows up by whole numbers, and nets that grow images: bits of plans, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.c_build import CStep, build
from helpers.c_plans import traced
from torch import Tensor, nn

from poet.c99.library import Floats, LibraryError, Step
from poet.c99.library_check import check_library
from poet.c99.vectors import given_tensors

STEPS = 3


class _Text(nn.Module):
    """The mean of the words' and the places' rows, in classes."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(11, 6, padding_idx=0), nn.Embedding(4, 6)
        self.out = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of classes; ``x`` is [N, 4], of whole numbers."""
        y = torch.tanh(self.words(x) + self.places(torch.arange(x.shape[1])))
        scores: Tensor = self.out(y.mean(1))
        return scores


def _decoder() -> nn.Module:
    layers = [nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Mish(), nn.ConvTranspose2d(4, 3, 3, stride=2)]
    return nn.Sequential(*layers, nn.Tanh(), nn.ConvTranspose2d(3, 2, 1), nn.Flatten(), nn.Linear(162, 3))


NETS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "text": (_Text, lambda: torch.randint(11, (5, 4))),
    "decoder": (_decoder, lambda: torch.randn(2, 2, 6, 6)),
}


def _trained(step: CStep) -> tuple[list[float], int]:
    losses = []
    for number in range(STEPS):
        step.fill(given_tensors(step.graph, step.project.interface, number))
        losses.append(step.step())
    return losses, step.crc()


@pytest.mark.slow
@pytest.mark.parametrize("name", NETS)
def test_plans_that_recompute_and_page_give_the_same_bits(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    make, inputs = NETS[name]
    net = traced(make(), inputs())
    fused = net.fused_everywhere()
    kept = net.project(tmp_path / "kept")
    library = build(tmp_path / "kept", "-O1")
    expected = _trained(CStep(kept, library, graph=net.step.graph))
    assert check_library(tmp_path / "kept.poet", library, steps=STEPS).is_right
    paged = fused.project(tmp_path / "paged", 4, pages=True)
    runs = [item.op for item in paged.statements.statements]
    assert len(runs) > len(set(runs)), "nothing is recomputed or paged"
    step = CStep(paged, build(tmp_path / "paged", "-O0"), graph=fused.step.graph)
    assert _trained(step) == expected


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library of a step of `_Text`."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("text") / "step"
    traced(_Text(), torch.randint(11, (5, 4))).project(folder)
    return build(folder, "-O1")


def test_a_step_is_as_near_to_float64_as_pytorchs(text: Path) -> None:
    assert check_library(text.parent.with_suffix(".poet"), text, steps=1).is_right


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (np.zeros(19), "19 numbers was given, and the step takes 20"),
        (np.full(20, 1.5), "number 1.5 of input 0 is no whole number"),
        (np.full(20, 11), "poet_set_number: bad argument"),
        (np.full(20, -1), "poet_set_number: bad argument"),
    ],
)  # fmt: skip
def test_numbers_of_no_row_are_refused(text: Path, given: Floats, why: str) -> None:
    with Step(text) as step, pytest.raises(LibraryError, match=why):
        step.set_input(0, given)


def test_numbers_that_were_never_set_read_nothing_outside(text: Path) -> None:
    """What lies in the arena by chance is no row: zeros are looked up, and nothing is learnt for it."""
    with Step(text) as step:
        kept = np.zeros(len(step.arena), dtype=bool)
        for span in step._spans():
            kept[span.word : span.word + span.words] = True
        step.arena[~kept] = -1.0
        step.set_classes([0] * 5)
        assert np.isfinite(step.train())
