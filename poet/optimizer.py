"""The optimizers a plan may use: what they keep per parameter and what changes with each step.

The arithmetic of the update itself is a kernel of the runtime; here is the arithmetic that
`torch.optim` does in Python floats, operation for operation, so that replay gives the same bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from poet.errors import InputError, nearest
from poet.graph import Call, Ref, Symbol

_LARGEST_STEP = 2**24  # torch.optim counts steps in a float32, which stays there


@dataclass(frozen=True, slots=True)
class OptimizerSpec:
    """An optimizer of `torch.optim` and its settings; those another optimizer uses are ignored.

    Attributes:
        name: ``sgd``, ``momentum`` (`torch.optim.SGD`) or ``adamw`` (`torch.optim.AdamW`).
        lr: learning rate.
        weight_decay: ``None``: torch's default, 0.01 for ``adamw`` and 0 otherwise.
        momentum, dampening, nesterov: of ``momentum``.
        betas, eps: of ``adamw``.
    """

    name: str = "sgd"
    lr: float = 1e-3
    weight_decay: float | None = None
    momentum: float = 0.9
    dampening: float = 0.0
    nesterov: bool = False
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        if self.name not in STATES:
            raise InputError(
                f"optimizer {self.name!r} is not one of {', '.join(STATES)}{nearest(self.name, STATES)}"
            )
        for field in ("lr", "weight_decay", "momentum", "dampening", "eps"):
            amount = getattr(self, field)
            if amount is not None and (not math.isfinite(amount) or amount < 0):
                raise InputError(f"optimizer {self.name}: {field} is {amount}, not a number from 0 up")
        if not all(0.0 <= beta < 1.0 for beta in self.betas):
            raise InputError(f"optimizer {self.name}: betas are {self.betas}, not two numbers in [0, 1)")
        if self.nesterov and (self.momentum == 0.0 or self.dampening != 0.0):
            raise InputError(f"optimizer {self.name}: nesterov needs momentum and no dampening")

    @property
    def decay(self) -> float:
        """The weight decay in force."""
        if self.weight_decay is not None:
            return self.weight_decay
        return 0.01 if self.name == "adamw" else 0.0

    @property
    def states(self) -> dict[str, float]:
        """Name of each tensor kept per parameter, and the number it is filled with before step 1."""
        return STATES[self.name]

    def hyperparameters(self, step: int, *, lr: float | None = None) -> dict[str, float]:
        """The scalars of step number ``step``, which counts from 1.

        Args:
            step: the step about to be made.
            lr: the learning rate of this step, where a schedule changes it.
        """
        if step < 1:
            raise InputError(f"steps count from 1, not from {step}")
        lr = self.lr if lr is None else lr
        if self.name == "sgd":
            return {"lr": lr}
        if self.name == "momentum":
            # torch.optim.SGD puts the first gradient into an empty buffer as it is
            return {"lr": lr, "gradient_share": 1.0 if step == 1 else 1 - self.dampening}
        count = float(min(step, _LARGEST_STEP))
        beta1, beta2 = self.betas
        return {
            "decay_factor": 1 - lr * self.decay,
            "step_size": lr / (1 - beta1**count),
            "second_moment_correction": (1 - beta2**count) ** 0.5,
        }

    def update(self, parameter: str, gradient: str, states: tuple[str, ...]) -> Call:
        """The call that updates ``parameter`` and its ``states`` (in the order of `states`) in place."""
        tensors = (Ref(parameter), Ref(gradient), *(Ref(state) for state in states))
        if self.name == "sgd":
            return Call("poet.sgd", (*tensors, _scalar("lr"), self.decay))
        if self.name == "momentum":
            fixed = (self.momentum, self.decay, self.nesterov)
            return Call("poet.momentum", (*tensors, _scalar("lr"), _scalar("gradient_share"), *fixed))
        scalars = map(_scalar, ("decay_factor", "step_size", "second_moment_correction"))
        return Call("poet.adamw", (*tensors, *scalars, *self.betas, self.eps))


STATES: dict[str, dict[str, float]] = {
    "sgd": {},
    # from minus zero the first update gives the gradient bit for bit, its own minus zeros included
    "momentum": {"momentum_buffer": -0.0},
    "adamw": {"exp_avg": 0.0, "exp_avg_sq": 0.0},
}
"""Per optimizer, the tensors it keeps for each parameter and what they are filled with at first."""


def _scalar(name: str) -> Symbol:
    return Symbol("hyperparameter", name)
