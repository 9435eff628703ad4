"""Metrics are what their formulas and torch say, counted in pieces, without what the loss leaves out."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from helpers.evaluation_plans import small_plan
from torch import nn

from poet import api
from poet.errors import InputError
from poet.runtime import Trainer
from poet.runtime.data.metrics import PIECE_ELEMENTS, class_pieces, metric_named, right_classes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_counted_in_pieces_is_what_torch_counts(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    for shape, dim in (((7, 5), 1), ((3, 6, 40, 41), 1), ((2, 9, 700), -1), ((2, 5000), 1)):
        output = torch.randn(shape, generator=generator).to(dtype)
        places = [size for place, size in enumerate(shape) if place != dim % len(shape)]
        targets = torch.randint(-2, shape[dim], places, generator=generator)
        counted = targets >= 0
        expected = int(((output.argmax(dim=dim) == targets) & counted).sum())
        assert right_classes(output, targets, dim) == (expected, int(counted.sum()))
        wanted = output.gather(dim, targets.clamp(min=0).unsqueeze(dim))
        above = (output > wanted).sum(dim=dim)  # more than five: not among them; equal ones are rare
        found, _ = right_classes(output, targets, dim, top=5)
        ties = (output == wanted).sum(dim=dim) > 1
        assert abs(found - int(((above < 5) & counted).sum())) <= int(ties.sum())
        sizes = [scores.size for scores, _ in class_pieces(output, targets, dim)]
        assert max(sizes) <= max(PIECE_ELEMENTS, shape[dim])


def test_places_without_a_class_are_not_counted() -> None:
    output = torch.tensor([[0.0, 3.0, 1.0], [2.0, 0.0, 1.0], [0.0, 1.0, 2.0], [5.0, 0.0, 0.0]])
    targets = torch.tensor([1, 255, 0, -100])
    assert right_classes(output, targets, 1) == (1, 2)
    assert right_classes(output, targets, 1, top=5) == (2, 2)
    assert right_classes(output, targets, 1, ignored=0) == (1, 1)
    (pieces,) = class_pieces(output, targets, 1)
    assert pieces[1].tolist() == [1, 0]


def test_metrics_leave_out_what_the_loss_leaves_out(tmp_path: Path) -> None:
    torch.manual_seed(0)
    loss = "cross-entropy:ignore_index=255"
    api.plan(nn.Linear(4, 3), torch.zeros(2, 4), device="rpi4b", ram="1MiB", loss=loss).save(tmp_path / "p")
    with Trainer.open(tmp_path / "p") as trainer:
        batch = torch.eye(2, 4), torch.tensor([255, trainer.predict(torch.eye(2, 4))[0][1].argmax().item()])
        found = trainer.evaluate([batch], metrics=["accuracy", "top-5", "iou"])
    assert found.metrics == {"accuracy": 1.0, "top-5": 1.0, "iou": 1.0}


def test_metrics_are_what_their_formulas_say() -> None:
    plan = small_plan(0, share=0.0)
    output, targets = torch.randn(60, 5), torch.randint(5, (60,))
    targets[:4] = -100
    kept = targets >= 0
    for name, expected in (
        ("accuracy", (output.argmax(1) == targets)[kept].double().mean()),
        ("top-5", torch.ones(())),
    ):
        metric = metric_named(name, plan)
        assert metric.value() is None
        for start in range(0, 60, 7):
            metric.add(output[start : start + 7], targets[start : start + 7])
        assert metric.value() == pytest.approx(float(expected))
    metric = metric_named("iou", plan)
    metric.add(output, targets)
    chosen = output.argmax(1)
    shares = [
        float(((chosen == c) & (targets == c) & kept).sum() / (((chosen == c) | (targets == c)) & kept).sum())
        for c in range(5)
    ]
    assert metric.value() == pytest.approx(sum(shares) / 5)
    with pytest.raises(InputError, match="mae"):
        metric_named("mae", plan)
    with pytest.raises(InputError, match="did you mean"):
        metric_named("acuracy", plan)


def test_mean_absolute_error_and_a_smaller_last_batch(tmp_path: Path) -> None:
    module = nn.Linear(4, 3)
    x, y = torch.randn(10, 4), torch.randn(10, 3)
    made = api.plan(module, x[:4], device="rpi4b", ram=None, loss="mse")
    made.save(tmp_path / "p")
    with Trainer.open(tmp_path / "p") as trainer:
        result = trainer.evaluate((x[s : s + 4], y[s : s + 4]) for s in (0, 4, 8))
        with pytest.raises(InputError, match="1 to 4 samples"):
            trainer.evaluate([(x, y)])
    with torch.no_grad():
        expected = copy.deepcopy(module).eval()(x)
    assert result.samples == 10
    assert result.metrics == {"mae": pytest.approx(float((expected - y).abs().mean()), rel=1e-6)}
    assert result.loss == pytest.approx(float(F.mse_loss(expected, y)), rel=1e-6)
