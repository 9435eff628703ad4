"""Nets of many kinds as C: each op against float64, plans against each other, plan files against PyTorch."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch
from helpers.c_build import needs_cortex_m
from helpers.c_rows import worst_ratios
from helpers.pace import with_slow
from helpers.strange_nets import NETS

import poet
from poet.c99.library_check import check_library
from poet.c99.project import c_project
from poet.errors import UnsupportedOperator
from poet.plans.plan_file import PlanFile
from poet.verification import verify

FAST = {"siamese", "triplet"}
OPTIMIZERS = ("sgd", "momentum", "adamw")


@pytest.mark.parametrize("name", with_slow(NETS, set(NETS) - FAST))
def test_each_operator_is_right(name: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    net = NETS[name]
    worst = worst_ratios(net.build(), net.inputs(), tmp_path / "c", net.loss, "momentum")
    assert max(worst.values()) <= 1.0, worst


def _planned(name: str, optimizer: str, ram: int | None, path: Path) -> int:
    """A plan for so many bytes, or that keeps everything; the least bytes that there are plans for."""
    torch.manual_seed(0)
    net = NETS[name]
    planned = poet.plan(
        net.build(), net.inputs(), loss=net.loss, ram=ram,
        home="ram" if ram is None else "either", recompute=ram is not None, paging=ram is not None,
        time_limit_seconds=2.0, evaluation=False, optimizer=optimizer, device="nrf52840",
    )  # fmt: skip
    planned.save(path)
    least = planned.plan.prediction.lower_bound_ram_bytes
    assert least is not None
    return least


def _said(folder: Path, target: str) -> list[str]:
    done = subprocess.run(["make", "-C", str(folder), target], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return [line for line in (done.stdout + done.stderr).splitlines() if line.startswith(("loss", "state"))]


CASES = [(name, OPTIMIZERS[number % 3]) for number, name in enumerate(NETS)]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "optimizer"), CASES)
def test_plans_agree_and_replay_exactly(name: str, optimizer: str, tmp_path: Path) -> None:
    """Everything kept, and little RAM with homes in storage: one state; PyTorch replays it bit for bit."""
    least = _planned(name, optimizer, None, tmp_path / "kept.poet")
    _planned(name, optimizer, least + least // 10 + 256, tmp_path / "tight.poet")
    found = []
    for kind in ("kept", "tight"):
        with PlanFile(tmp_path / f"{kind}.poet") as file:
            c_project(file).write(tmp_path / kind)
        found.append(_said(tmp_path / kind, "test"))
    assert len(found[0]) == 4
    assert found[0] == found[1]
    _said(tmp_path / "tight", "lib")
    library = tmp_path / "tight" / "build" / "libpoet_step.so"
    check_library(tmp_path / "tight.poet", library, page_file=tmp_path / "pages").require()
    verify(tmp_path / "tight.poet", module=NETS[name].build(), steps=2).require()


@pytest.mark.slow
@needs_cortex_m
@pytest.mark.parametrize("name", NETS)
def test_the_bits_of_a_cortex_m(name: str, tmp_path: Path) -> None:
    least = _planned(name, "adamw", None, tmp_path / "kept.poet")
    _planned(name, "adamw", least + least // 10 + 256, tmp_path / "tight.poet")
    with PlanFile(tmp_path / "tight.poet") as file:
        c_project(file).write(tmp_path / "tight")
    assert _said(tmp_path / "tight", "test") == _said(tmp_path / "tight", "test-cortex-m")


def test_what_has_no_kernel_is_named_with_the_way_out(tmp_path: Path) -> None:
    class Bag(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.EmbeddingBag(9, 3, padding_idx=0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.table(x)
            return found

    planned = poet.plan(
        Bag(), torch.randint(9, (2, 4)), device="nrf52840", ram="256KiB",
        evaluation=False, time_limit_seconds=1.0,
    )  # fmt: skip
    planned.save(tmp_path / "bag.poet")
    with (
        PlanFile(tmp_path / "bag.poet") as file,
        pytest.raises(UnsupportedOperator, match=r"write bags of one size, .* in place of aten"),
    ):
        c_project(file)


def test_what_lies_apart_is_copied_side_by_side_for_kernels_that_need_it(tmp_path: Path) -> None:
    """Half of the channels of two images, as a split gives them, through a convolution."""

    class Half(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.out = torch.nn.Conv1d(4, 2, 3), torch.nn.Conv1d(1, 2, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.out(self.layer(x).chunk(2, 1)[1]).mean(2)
            return found

    torch.manual_seed(0)
    worst = worst_ratios(Half(), torch.randn(2, 4, 9), tmp_path / "c", "mse", "sgd")
    assert "aten.clone.default" in worst
    assert max(worst.values()) <= 1.0, worst
