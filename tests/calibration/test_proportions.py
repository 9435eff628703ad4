"""How much of a base's proportions is believed: as much as the ops speak for them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from helpers.simulated_board import Board

from poet.calls import Call, Ref, TensorType
from poet.devices.fitting import OUTLIER, log_evidence
from poet.devices.load import load_profile
from poet.devices.measurements import OpTime
from poet.devices.profile import OpClass, Profile
from poet.devices.proportions import SHARES, share_by_evidence, with_share

PI = load_profile("rpi4b")


def _ops(folder: Path, machine: Profile) -> list[OpTime]:
    board = Board(folder, machine, noise=0.05)
    return [op for name in ("a", "b", "c") for op in board.step(name, 4, lambda: None)[0]]


def _speed(profile: Profile, op_class: OpClass) -> float:
    throughput = profile.compute.throughput(op_class)
    assert throughput is not None
    return throughput.flops_per_second.value


def test_a_share_scales_the_distance_from_products_and_nothing_else() -> None:
    products = _speed(PI, OpClass.MATMUL)
    for share in SHARES:
        found = with_share(PI, share)
        for op_class in (OpClass.MATMUL, OpClass.DEPTHWISE, OpClass.TRANSCENDENTAL, OpClass.GROUPED):
            expected = products * (_speed(PI, op_class) / products) ** share
            assert _speed(found, op_class) == pytest.approx(expected), (share, op_class)
            throughput, own = found.compute.throughput(op_class), PI.compute.throughput(op_class)
            assert throughput is not None
            assert own is not None
            (low, high), (own_low, own_high) = (
                throughput.flops_per_second.interval,
                own.flops_per_second.interval,
            )
            assert high / low == pytest.approx(own_high / own_low)
            assert found.compute.overhead_seconds(op_class) == PI.compute.overhead_seconds(op_class)
        assert (found.memory, found.energy, found.storage) == (PI.memory, PI.energy, PI.storage)
    assert with_share(PI, 1.0) == PI


def test_ops_speak_for_proportions_or_against_them(tmp_path: Path) -> None:
    like = share_by_evidence(_ops(tmp_path / "like", PI), PI)
    unlike = share_by_evidence(_ops(tmp_path / "unlike", with_share(PI, 0.0)), PI)
    assert like > 0.75
    assert unlike < 0.25


def test_ops_of_one_class_say_nothing_of_proportions(tmp_path: Path) -> None:
    products = [op for op in _ops(tmp_path, PI) if op.call.target == "aten.mm.default"]
    assert share_by_evidence(products, PI) == pytest.approx(0.5, abs=0.01)


def test_the_evidence_of_a_call_is_that_of_a_normal_distribution() -> None:
    """An op that is all call is off by what may be off together: its own noise, calls, the machine."""
    one = TensorType("float32", (1,), (1,))
    call = Call("aten.add.Tensor", (Ref("v0"), Ref("v1")))
    base = PI.model_dump()
    for table in base["compute"].values():
        if isinstance(table, dict):
            table.pop("call_overhead_seconds", None)
    base["compute"]["call_overhead_seconds"].update(value=1e-4, range=None, uncertainty=0.3)
    profile = Profile.model_validate(base)

    def evidence(seconds: float) -> float:
        return log_evidence([OpTime(call, (one, one), (one,), 0, seconds)], profile)

    own_width = min(max(math.log(1.5), 0.5 * math.log(1.3 / 0.7)), math.log(2.0))
    variance = OUTLIER**2 + own_width**2 + math.log(30.0) ** 2 + math.log(5.0) ** 2
    for off in (0.5, 1.0, -2.0):
        expected = -(off**2) / (2.0 * variance)
        assert evidence(1e-4 * math.exp(off)) - evidence(1e-4) == pytest.approx(expected, rel=0.02)
