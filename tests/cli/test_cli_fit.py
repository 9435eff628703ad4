"""``poet fit``: one line, with the largest batch that has a plan, and exit code 3 where there is none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from helpers.command import invoke
from torch import nn
from zoo import export

from poet import api


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("fit") / "net.onnx"
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 4))
    export(module, (torch.zeros(2, 1, 8, 8),), path)
    return path


def fit(net: Path, ram: str) -> tuple[int, str, str]:
    return invoke("fit", net, "--device", "rpi4b", "--ram", ram, "--time-limit", "0.1s")


def test_one_line_says_the_largest_batch_and_its_price(net: Path) -> None:
    code, said, told = fit(net, "140KiB")
    assert code == 0, told
    assert said.count("\n") == 1
    found = re.match(r"yes: it trains on rpi4b in 140 KiB of RAM, in batches of up to (\d+): a step", said)
    assert found is not None
    made = api.plan(
        net, device="rpi4b", ram="140KiB", bind={"N": int(found[1])}, evaluation=False,
        time_limit_seconds=1.0,
    )  # fmt: skip
    assert made.plan.step_peak_ram_bytes <= 140 * 1024


def test_where_nothing_trains_the_exit_code_is_that_of_infeasible(net: Path) -> None:
    code, said, told = fit(net, "10KiB")
    assert (code, said) == (3, "")
    assert "no: it does not train on rpi4b in 10 KiB of RAM: " in told
