"""Nets that look rows up by whole numbers: near to float64, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.c_build import build
from helpers.c_nets import Text
from helpers.c_plans import traced

from poet.c99.library import Floats, LibraryError, Step


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library of a step of `Text`."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("text") / "step"
    traced(Text(), torch.randint(11, (5, 4))).project(folder)
    return build(folder, "-O1")


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
