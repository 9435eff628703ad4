"""What the loss of a batch counts beside that of others, so that together they are that of all samples."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from poet.loss import LossSpec
from poet.plans.training_plan import Plan
from poet.runtime.data.counting import weight_of_classes

_AVERAGED_OVER_CLASSES = frozenset({"cross-entropy", "nll"})
_TORCHS_IGNORED = -100


class LossWeights:
    """By what a loss divides: samples, or what the classes that targets name weigh; see `poet.loss`.

    Of a function of Python's and of a loss that the model computes it is not known; both are taken to be
    means over samples.

    Attributes:
        are_one: the loss is a sum, and what batches give is added up.
    """

    def __init__(self, plan: Plan) -> None:
        spec, graph = LossSpec.parse(plan.request.loss), plan.graph
        types = {value.name: value.type for value in graph.values}
        output = types[graph.predictions[0]].shape if graph.predictions else ()
        self.are_one = spec.option("reduction") == "sum" or (spec.name == "output" and len(output) > 0)
        is_by_class = spec.name in _AVERAGED_OVER_CLASSES and graph.targets == 1
        self._is_by_class = is_by_class and "int" in types[graph.inputs[-1]].dtype
        self._ignored = _TORCHS_IGNORED if spec.ignored_class is None else spec.ignored_class
        weights = spec.option("weight")
        self._weights = weights if isinstance(weights, tuple) else None

    def of(self, targets: Sequence[torch.Tensor], samples: int) -> float:
        """Of the first ``samples`` of a batch with these targets."""
        if self.are_one:
            return 1.0
        if not self._is_by_class:
            return float(samples)
        chosen = targets[0][:samples] if targets[0].dim() else targets[0]
        return weight_of_classes(chosen, self._ignored, self._weights)


def loss_of_all(losses: Sequence[float], weights: Sequence[float], *, are_one: bool) -> float:
    """Of the samples of all batches, from the loss of each; NaN where nothing was counted."""
    if are_one:
        return math.fsum(losses) if losses else math.nan
    if len(set(weights)) == 1 and weights[0]:
        return math.fsum(losses) / len(losses)
    counted = [(loss, weight) for loss, weight in zip(losses, weights, strict=True) if weight]
    if not counted:
        return math.nan
    return math.fsum(loss * weight for loss, weight in counted) / math.fsum(weight for _, weight in counted)
