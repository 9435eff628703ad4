"""Nets over sequences as C: LSTMs and attention are made of operators that have a kernel, and stay exact."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.c_build import CStep, build
from helpers.c_plans import traced
from helpers.pace import with_slow
from helpers.sequence_nets import NETS

import poet
from poet.c99.library_check import check_library
from poet.c99.vectors import given_tensors
from poet.frontend.traced_operators import small_operators

STEPS = 3


def _trained(step: CStep) -> tuple[list[float], int]:
    losses = []
    for number in range(STEPS):
        step.fill(given_tensors(step.graph, step.project.interface, number))
        losses.append(step.step())
    return losses, step.crc()


@pytest.mark.parametrize("name", with_slow(NETS, set(NETS) - {"rnn"}))
def test_plans_that_recompute_and_page_give_the_same_bits(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = traced(NETS[name].build(), torch.randn(NETS[name].shape))
    fused = net.fused_everywhere()
    kept = net.project(tmp_path / "kept")
    expected = _trained(CStep(kept, build(tmp_path / "kept", "-O1"), graph=net.step.graph))
    library = build(tmp_path / "kept", "-O1")
    assert check_library(tmp_path / "kept.poet", library, steps=STEPS).is_right
    paged = fused.project(tmp_path / "paged", 4, pages=True)
    runs = [item.op for item in paged.statements.statements]
    assert len(runs) > len(set(runs)), "nothing is recomputed or paged"
    step = CStep(paged, build(tmp_path / "paged", "-O0"), graph=fused.step.graph)
    assert _trained(step) == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", NETS)
def test_pytorch_replays_such_a_plan_bit_for_bit(name: str, tmp_path: Path) -> None:
    """Training and evaluation, against PyTorch with the small operators too; 1 and 2 threads."""
    torch.manual_seed(0)
    module, inputs = NETS[name].build(), torch.randn(NETS[name].shape)
    planned = poet.plan(module, inputs, device="nrf52840", ram="96KiB", home="ram", time_limit_seconds=1.0)
    planned.save(tmp_path / "net.poet")
    report = poet.verify(tmp_path / "net.poet", module=module, steps=2)
    assert len(report.comparisons) == 2
    report.require()
    assert all(comparison.tensors > 10 for comparison in report.comparisons)


def test_the_small_operators_are_torchs_own() -> None:
    """Elsewhere an LSTM stays one op, and the flag that switches oneDNN off is set back."""
    torch.manual_seed(0)
    module, inputs = NETS["lstm"].build(), torch.randn(NETS["lstm"].shape)
    before = torch.backends.mkldnn.enabled
    with small_operators():
        targets = {op.call.target for op in traced(module, inputs).step.graph.ops}
    assert torch.backends.mkldnn.enabled == before
    assert not any("mkldnn" in target or "recurrent" in target for target in targets)
