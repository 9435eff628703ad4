"""What layers give to learning: as plain PyTorch measures it, resumed, refused."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.command import invoke
from helpers.nets import small_net
from torch import Tensor, nn
from zoo import NETS, export

import poet
from poet.errors import Infeasible, InputError
from poet.planning.choice import Scores

BATCHES, LAYERS, RATE = 3, ("0", "6"), 0.5
ASKED: dict[str, Any] = {
    "device": "rpi4b", "ram": "64KiB", "optimizer": f"momentum:lr={RATE}", "train": ["0.*", "6.*"],
    "batches": BATCHES, "time_limit_seconds": 2.0,
}  # fmt: skip


def _data() -> list[tuple[Tensor, Tensor]]:
    draws = torch.Generator().manual_seed(1)
    return [
        (torch.randn(4, 2, 8, 8, generator=draws), torch.randint(5, (4,), generator=draws))
        for _ in range(BATCHES)
    ]


def _measured(**more: Any) -> Scores:
    return poet.contributions(small_net(), torch.zeros(4, 2, 8, 8), **{"data": _data(), **ASKED, **more})


def _losses(net: nn.Module, optimizer: torch.optim.Optimizer | None, rows: slice) -> Iterator[float]:
    own = [] if optimizer is None else optimizer.param_groups[0]["params"]
    for inputs, targets in _data():
        loss = nn.functional.cross_entropy(net(inputs), targets)
        if optimizer is not None:
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            before = [each.detach().clone() for each in own]
            optimizer.step()
            for each, old in zip(own, before, strict=True):
                each.data = torch.cat([old[: rows.start], each.data[rows], old[rows.stop :]])
        yield loss.item()


def _plain_loss(layer: str | None, rows: slice = slice(0, 5)) -> float:
    """Mean loss after a step of rows of a layer alone on each batch, with the dropout of later passes."""
    net = small_net()
    own = [each for name, each in net.named_parameters() if name.partition(".")[0] == layer]
    torch.manual_seed(0)
    list(_losses(net, torch.optim.SGD(own, lr=RATE, momentum=0.9) if own else None, rows))
    return statistics.fmean(_losses(net, None, rows))


def test_the_fall_of_the_loss_is_plain_pytorchs(tmp_path: Path) -> None:
    """To the last bit, with batch norm, dropout and momentum, and as the file has it."""
    told: list[str] = []
    scores = _measured(output=tmp_path / "scores.toml", tell=told.append)
    assert [group.train for group in scores.group] == [(f"{name}.weight", f"{name}.bias") for name in LAYERS]
    for group, layer in zip(scores.group, LAYERS, strict=True):
        assert group.score == max(0.0, _plain_loss(None) - _plain_loss(layer))
    assert any(group.score > 0 for group in scores.group)
    assert len(told) == len(LAYERS)
    assert Scores.load(tmp_path / "scores.toml") == scores
    assert [path.name for path in tmp_path.iterdir()] == ["scores.toml"]


@pytest.mark.slow
@pytest.mark.parametrize("device", ["rpi4b", "stm32h743"])
def test_blocks_of_channels_fall_as_in_plain_pytorch(device: str) -> None:
    """By kernels of either library, with momentum."""
    scores = _measured(blocks=2, device=device, train=["0.*"])
    assert [group.channels for group in scores.group] == ["0:2", "2:4"]
    before = _plain_loss(None)
    for group, rows in zip(scores.group, (slice(0, 2), slice(2, 4)), strict=True):
        assert group.score == max(0.0, before - _plain_loss("0", rows))


def test_fisher_information_is_plain_pytorchs() -> None:
    net, expected = small_net(), {"0": torch.zeros(4), "6": torch.zeros(5)}
    torch.manual_seed(0)
    for inputs, targets in _data():
        net.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(net(inputs), targets))
        for name, parameter in net.named_parameters():
            if (layer := name.partition(".")[0]) in expected and parameter.grad is not None:
                expected[layer] += (
                    parameter.grad.square()
                    .flatten(1 if parameter.dim() > 1 else 0)
                    .reshape(len(parameter), -1)
                    .sum(1)
                )
    scores = _measured(by="fisher", blocks=2)
    assert [group.channels for group in scores.group] == ["0:2", "2:4", "0:2", "2:5"]
    for group in scores.group:
        start, stop = map(int, str(group.channels).split(":"))
        mean = float(expected[group.train[0][0]][start:stop].sum()) / BATCHES
        assert group.score == pytest.approx(mean, rel=1e-5)


class _Stopped(Exception):
    pass


def _stop(line: str) -> None:
    raise _Stopped(line)


@pytest.mark.slow
def test_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    """The layer that was measured is not measured again, and the scores are those of one run."""
    output = tmp_path / "scores.toml"
    told: list[str] = []
    with pytest.raises(_Stopped, match="1 of 2"):
        _measured(output=output, tell=_stop)
    kept = json.loads((tmp_path / "scores.toml.partial" / "measured.json").read_text())
    assert [*kept["scores"]] == ["0.weight 0.bias"]
    assert not output.exists()
    for other in ({"batches": 2}, {"optimizer": "sgd"}, {"ram": "63KiB"}, {"by": "fisher"}):
        with pytest.raises(InputError, match="other weights, limits or options; remove it"):
            _measured(output=output, **other)
    with pytest.raises(InputError, match="is of other batches"):
        _measured(output=output, data=[(inputs + 1, targets) for inputs, targets in _data()])
    scores = _measured(output=output, tell=told.append)
    assert len(told) == 1
    assert told[0].startswith("2 of 2")
    assert scores == _measured()
    assert [path.name for path in tmp_path.iterdir()] == ["scores.toml"]


@pytest.mark.slow
def test_a_layer_that_does_not_fit_is_left_out() -> None:
    told: list[str] = []
    net = nn.Sequential(nn.Linear(8, 512), nn.ReLU(), nn.Linear(512, 5))
    data = [(inputs.flatten(1)[:, :8], targets) for inputs, targets in _data()]
    asked = ASKED | {"train": None, "ram": "80KiB", "paging": False, "optimizer": "adam:lr=0.01"}
    scores = poet.contributions(net, data[0][0], data=data, tell=told.append, **asked)
    assert [group.train for group in scores.group] == [("2.weight", "2.bias")]
    assert "0.weight 0.bias: left out: " in told[0]
    with pytest.raises(Infeasible, match="of no layer fits"):
        poet.contributions(net, data[0][0], data=data, **asked | {"ram": "40KiB"})


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"by": "hessian"}, "by is 'hessian'; there are steps and fisher"),
        ({"blocks": 2, "optimizer": "adamw"}, "take no weight decay"),
        ({"micro": 2}, "whole batches; leave micro out"),
        ({"blocks": 0}, "blocks is 0; give 1 or more"),
        ({"batches": 4, "train": ["6.*"]}, "the data has 3 batches, 4 are asked for"),
    ],
)
def test_what_cannot_be_measured_is_refused(more: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        _measured(**more)


def test_a_partial_result_that_is_none_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "scores.toml.partial"
    folder.write_text("mine")
    with pytest.raises(InputError, match="a folder for partial results would be there"):
        _measured(output=tmp_path / "scores.toml")
    folder.unlink()
    folder.mkdir()
    for text, said in (
        ("{", "no partial result can be read"),
        ("[]", "expected an object"),
        ('{"asked": "", "scores": {"0.weight 0.bias": [1.0, 2.0]}}', "scores of other layers"),
    ):
        (folder / "measured.json").write_text(text)
        with pytest.raises(InputError, match=said):
            _measured(output=tmp_path / "scores.toml")
        assert (folder / "measured.json").read_text() == text


@pytest.mark.slow
def test_the_command_measures_a_file_and_refuses_in_a_line(tmp_path: Path) -> None:
    net, model, output = NETS["resnet18"].small, tmp_path / "net.onnx", tmp_path / "scores.toml"
    torch.manual_seed(0)
    export(net.build(), net.inputs(2), model, exporter="legacy")
    images = np.random.default_rng(0).standard_normal((4, *net.input_shape), dtype=np.float32)
    np.savez(tmp_path / "data.npz", inputs=images, targets=np.arange(4))
    asked = (
        "contributions",
        model,
        "--bind",
        "N=2",
        "--train",
        "fc.*",
        "--train",
        "bn1.*",
        "--batches",
        2,
        "-o",
        output,
    )
    code, _, stderr = invoke(*asked, "--data", tmp_path / "none.npz")
    assert (code, stderr.count("\n"), output.exists()) == (2, 1, False), stderr
    code, stdout, stderr = invoke(*asked, "--data", tmp_path / "data.npz")
    assert (code, len(stdout.splitlines()), len(stderr.splitlines())) == (0, 2, 2), stderr
    assert [group.train[0] for group in Scores.load(output).group] == ["bn1.weight", "fc.weight"]
    code, _, stderr = invoke(*asked[:-1], model, "--data", tmp_path / "data.npz")
    assert (code, stderr.count("\n")) == (2, 1)
