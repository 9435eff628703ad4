"""The learning rates, momentum and betas of a training, by hand or by a scheduler of torch."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from poet.errors import InputError
from poet.optimizer import OptimizerSpec
from poet.runtime.training.driven import DrivenOptimizer


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
