"""Learning rates, momentum and betas of a training: set by hand, or driven by a scheduler of torch."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from numbers import Real
from typing import Any

import torch

from poet.errors import InputError
from poet.ir.optimizer import OptimizerSpec

_FIXED = frozenset(
    {
        "momentum",
        "betas",
        "weight_decay",
        "eps",
        "dampening",
        "nesterov",
        "alpha",
        "amsgrad",
        "maximize",
        "lr_decay",
    }
)
"""What torch's optimizers have in their groups beside learning rates; a scheduler's notes are others."""


class DrivenOptimizer(torch.optim.Optimizer):
    """Has the learning rates of a trainer in ``param_groups``, where `torch.optim.lr_scheduler` changes them.

    Group 0 is of the parameters that are in no group of the plan's optimizer; then come the groups, in its
    order. Beside ``lr`` a group has ``momentum`` or ``betas`` where the plan's updates are told them in each
    step; nothing else counts, since it is fixed in the plan, and setting it is refused at the next step.
    """

    def __init__(self, spec: OptimizerSpec, rates: list[float], told: Collection[str]) -> None:
        """``told``: the plan's hyperparameters; those of earlier versions have learning rates alone."""
        names = {name.partition(".")[0] for name in told}
        is_driven = "momentum" in names or {"beta1", "beta2"} <= names
        own = [spec.of_group(number).driven if is_driven else {} for number in range(len(rates))]
        groups: list[dict[str, Any]] = [
            {"params": [torch.zeros(0)], "lr": rate, **amounts}
            for rate, amounts in zip(rates, own, strict=True)
        ]
        super().__init__(groups, {"lr": spec.lr, **(spec.driven if is_driven else {})})

    @property
    def rates(self) -> list[float]:
        """The learning rates of the groups."""
        return [float(group["lr"]) for group in self.param_groups]

    @property
    def driven(self) -> list[dict[str, Any]]:
        """``momentum`` or ``betas`` of the groups, where schedulers may change them.

        Raises:
            InputError: a group has one that cannot be, or something that no step would heed.
        """
        for number, group in enumerate(self.param_groups):
            for name in sorted(_FIXED.intersection(group).difference(self.defaults)):
                raise InputError(
                    f"group {number} of the optimizer has {name}, which the plan's updates hold as a "
                    "number or not at all, so that no step would heed it; plan again with the optimizer "
                    "meant, or take it out of param_groups"
                )
        names = [name for name in ("momentum", "betas") if name in self.defaults]
        return [
            {name: _checked(number, name, group.get(name)) for name in names}
            for number, group in enumerate(self.param_groups)
        ]

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Nothing: the plan has made the update. Schedulers count these calls."""


def _checked(number: int, name: str, given: object) -> float | tuple[float, ...]:
    """What group ``number`` has as ``name``, in Python's numbers.

    Raises:
        InputError: it is no number, not two, or out of its range.
    """
    where = f"group {number} of the optimizer"
    if name == "momentum":
        momentum = _number(given)
        if not 0.0 < momentum < math.inf:  # at 0 torch keeps no buffer
            raise InputError(f"{where}: the momentum of a step is {given!r}; it must stay above 0")
        return momentum
    betas = tuple(map(_number, given)) if isinstance(given, list | tuple) else ()
    if len(betas) != 2 or not all(0.0 <= beta < 1.0 for beta in betas):
        raise InputError(f"{where}: the betas of a step are {given!r}; they must be two numbers in [0, 1)")
    return betas


def _number(given: object) -> float:
    """As a float, also of a tensor with one element; NaN: it is none."""
    if isinstance(given, torch.Tensor) and given.numel() == 1:
        given = given.item()
    return float(given) if isinstance(given, Real) else math.nan


class Rates:
    """Of what is in no parameter group, then of the plan's groups in their order."""

    def __init__(self, spec: OptimizerSpec, told: Collection[str]) -> None:
        """``told``: names of the hyperparameters that the plan's updates are given in each step."""
        self._spec, self._told = spec, told
        self._rates = list(spec.rates)
        self._driven: DrivenOptimizer | None = None

    @property
    def now(self) -> tuple[float, ...]:
        """Of the next step."""
        return tuple(self._rates if self._driven is None else self._driven.rates)

    @now.setter
    def now(self, rates: Sequence[float]) -> None:
        if len(rates) != len(self._rates):
            raise InputError(f"{len(rates)} learning rates were given, the plan has {len(self._rates)}")
        self._rates = list(rates)
        if self._driven is not None:
            for group, rate in zip(self._driven.param_groups, self._rates, strict=True):
                group["lr"] = rate

    @property
    def optimizer(self) -> DrivenOptimizer:
        """What a scheduler drives."""
        if self._driven is None:
            self._driven = DrivenOptimizer(self._spec, self._rates, self._told)
        return self._driven

    def scalars(self, step: int) -> dict[str, float]:
        """The hyperparameters of step number ``step``, which counts from 1.

        Raises:
            InputError: a scheduler has set a momentum or beta that cannot be.
        """
        driven = () if self._driven is None else self._driven.driven
        return self._spec.hyperparameters(step, lr=self.now, driven=driven)

    def step_done(self) -> None:
        """A scheduler sees that an update was made."""
        if self._driven is not None:
            self._driven.step()
