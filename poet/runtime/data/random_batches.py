"""Batches for a plan where nobody's samples matter: drawn at random, or the first of a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from poet.errors import ModelError, PlanError
from poet.ir.graph import TensorType
from poet.ir.loss import LossSpec
from poet.plans.training_plan import Plan
from poet.runtime.data.ranges import rules
from poet.runtime.data.samples import batch_of, load_samples

Batch = tuple[tuple[Tensor, ...], Tensor | tuple[Tensor, ...] | None]
"""The model's inputs, and the loss's targets where it has any."""


def batches_of(data: str | Path, plan: Plan, steps: int) -> list[Batch]:
    """The first ``steps`` batches of the samples at ``data``, or as many as there are.

    Raises:
        InputError: they do not fit the plan, or make no batch.
    """
    samples, rows = load_samples(data, plan), batch_of(plan)
    made: list[Batch] = []
    for number in range(min(steps, samples.count // rows)):
        parts = samples.batch(torch.arange(rows * number, rows * (number + 1)))
        inputs, targets = (tuple(tensor.clone() for tensor in part) for part in parts)
        made.append((inputs, targets[0] if len(targets) == 1 else targets or None))
    return made


def random_batch(plan: Plan, seed: int) -> Batch:
    """Inputs and targets of the plan's shapes.

    Floats are normally distributed, whole numbers small enough for every table that they index,
    targets are classes, numbers between 0 and 1, or probabilities where the loss takes those.
    """
    graph = plan.graph
    generator = torch.Generator().manual_seed(seed)
    types = {value.name: value.type for value in graph.values}
    below = {name: rule.below or 2 for name, rule in rules(graph).items()}
    drawn = [_random_tensor(types[name], below.get(name, 2), generator) for name in graph.inputs]
    if not graph.targets:
        return tuple(drawn), None
    inputs, targets = drawn[: -graph.targets], drawn[-graph.targets :]
    classes = graph.classes_in_strips()
    if classes is not None:
        return tuple(inputs), _random_tensor(types[graph.inputs[-1]], classes, generator)
    loss, output = LossSpec.parse(plan.request.loss), types[graph.predictions[0]].shape
    if loss.targets_are_classes:
        _check_classes(plan, loss, output, types[graph.inputs[-1]].shape)
        targets = [_random_tensor(types[graph.inputs[-1]], output[loss.class_dim(len(output))], generator)]
    elif loss.name == "ctc":
        targets = [_random_sequences(loss, output, types[graph.inputs[-1]].shape, generator)]
    elif loss.name in ("bce", "bce-with-logits"):
        targets = [targets[0].sigmoid()]
    elif loss.name == "kl-div":
        probabilities = targets[0].softmax(dim=-1)
        targets = [probabilities.log() if loss.option("log_target") else probabilities]
    return tuple(inputs), targets[0] if len(targets) == 1 else tuple(targets)


def random_step(plan: Plan, seed: int) -> Batch:
    """What a whole step takes: `random_batch`, or one for each micro-batch in one."""
    count = 1 if plan.request.micro is None else plan.request.micro.count
    if count == 1:
        return random_batch(plan, seed)
    drawn = [random_batch(plan, seed * count + number) for number in range(count)]
    inputs = tuple(torch.cat(tensors) for tensors in zip(*(batch[0] for batch in drawn), strict=True))
    targets = [batch[1] for batch in drawn]
    if isinstance(targets[0], Tensor):
        return inputs, torch.cat([item for item in targets if isinstance(item, Tensor)])
    if targets[0] is None:
        return inputs, None
    several = (item for item in targets if isinstance(item, tuple))
    return inputs, tuple(torch.cat(tensors) for tensors in zip(*several, strict=True))


def _random_sequences(
    loss: LossSpec, output: Sequence[int], targets: Sequence[int], generator: torch.Generator
) -> Tensor:
    """Classes that are not the blank, for at most half of the moments, so that a sequence can be found."""
    _, moments, classes, _ = loss.sequences(output)
    samples, longest = targets
    blank = loss.option("blank", 0)
    drawn = torch.randint(0, max(int(classes) - 1, 1), (samples, longest), generator=generator)
    drawn += drawn >= blank if isinstance(blank, int) else 0
    most = min(longest, int(moments) // 2) if int(classes) > 1 else 0
    counts = torch.randint(0, most + 1, (samples, 1), generator=generator)
    return torch.where(torch.arange(longest) < counts, drawn, -1)


def _check_classes(plan: Plan, loss: LossSpec, output: tuple[int, ...], targets: tuple[int, ...]) -> None:
    """Refuse targets that the loss does not take: before it had a dim, [N,T,C] was taken for what it is not.

    Raises:
        PlanError: says how to plan again.
    """
    try:
        fits = loss.class_dim_of(output, targets) is not None or targets == output
    except ModelError as error:
        raise PlanError(f"{plan.model.name}: {error}") from None
    if not fits:
        raise PlanError(
            f"{plan.model.name}: {loss} of an output {list(output)} does not take targets {list(targets)}; "
            "if its classes are last, plan again with the loss cross-entropy:dim=-1"
        )


def _random_tensor(kind: TensorType, below: int, generator: torch.Generator) -> Tensor:
    dtype: torch.dtype = getattr(torch, kind.dtype)
    if dtype.is_floating_point:
        return torch.randn(kind.shape, generator=generator).to(dtype)
    return torch.randint(below, kind.shape, generator=generator).to(dtype)
