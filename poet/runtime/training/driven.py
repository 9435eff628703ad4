"""An optimizer that schedulers of torch drive, while a plan makes the updates."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from poet.optimizer import OptimizerSpec


class DrivenOptimizer(torch.optim.Optimizer):
    """Has the learning rates of a trainer in ``param_groups``, where `torch.optim.lr_scheduler` changes them.

    Group 0 is of the parameters that are in no group of the plan's optimizer; then come the groups, in its
    order. Beside ``lr`` a group has ``momentum`` or ``betas`` where the plan's updates are told them in each
    step; nothing else counts, since it is fixed in the plan.
    """

    def __init__(self, spec: OptimizerSpec, rates: list[float], told: Collection[str]) -> None:
        """``told``: the plan's hyperparameters; those of earlier versions have learning rates alone."""
        is_driven = any(name.partition(".")[0] in ("momentum", "beta1") for name in told)
        groups: list[dict[str, Any]] = [
            {"params": [torch.zeros(0)], "lr": rate, **(spec.of_group(number).driven if is_driven else {})}
            for number, rate in enumerate(rates)
        ]
        super().__init__(groups, {"lr": spec.lr, **(spec.driven if is_driven else {})})

    @property
    def rates(self) -> list[float]:
        """The learning rates of the groups."""
        return [float(group["lr"]) for group in self.param_groups]

    @property
    def driven(self) -> list[dict[str, Any]]:
        """``momentum`` or ``betas`` of the groups, where schedulers may change them."""
        return [
            {name: group[name] for name in ("momentum", "betas") if name in self.defaults}
            for group in self.param_groups
        ]

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Nothing: the plan has made the update. Schedulers count these calls."""
