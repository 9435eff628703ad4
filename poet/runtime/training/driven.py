"""An optimizer that schedulers of torch drive, while a plan makes the updates."""

from __future__ import annotations

from typing import Any

import torch

from poet.optimizer import OptimizerSpec


class DrivenOptimizer(torch.optim.Optimizer):
    """Has the learning rates of a trainer in ``param_groups``, where `torch.optim.lr_scheduler` changes them.

    Group 0 is of the parameters that are in no group of the plan's optimizer; then come the groups, in its
    order. Only ``lr`` counts; what else schedulers may change is fixed in the plan.
    """

    def __init__(self, spec: OptimizerSpec, rates: list[float]) -> None:
        placeholders = [torch.zeros(0) for _ in rates]
        super().__init__(
            [{"params": [item], "lr": rate} for item, rate in zip(placeholders, rates, strict=True)],
            {"lr": spec.lr},
        )

    @property
    def rates(self) -> list[float]:
        """The learning rates of the groups."""
        return [float(group["lr"]) for group in self.param_groups]

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Nothing: the plan has made the update. Schedulers count these calls."""
