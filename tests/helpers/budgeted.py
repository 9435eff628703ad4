"""One training that has plans for two budgets."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn

from poet.api import Planned
from poet.api import plan as plan_module
from poet.errors import Infeasible
from poet.ir.optimizer import OptimizerSpec
from poet.plans.training_plan import Plan
from poet.runtime.system.process import torch_threads
from poet.runtime.training.training_state import within

MIB = 1 << 20
LARGE, SMALL = 256 * 1024, 64 * 1024


@cache
def planned() -> Planned:
    """A net that trains in 256 KiB as it is, and in 64 KiB with recomputation or paging."""
    torch.manual_seed(0)
    layers = [layer for _ in range(5) for layer in (nn.Linear(16, 16), nn.Tanh(), nn.Dropout(0.2))]
    with torch_threads(1):
        return plan_module(
            nn.Sequential(*layers, nn.Linear(16, 3)),
            torch.zeros(64, 16),
            device="x86-host",
            ram=LARGE,
            budgets=[SMALL],
            optimizer=OptimizerSpec("adamw", lr=0.01),
            evaluation=False,
            time_limit_seconds=0.3,
        )


def batch(number: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(64, 16, generator=generator), torch.randint(3, (64,), generator=generator)


def plan_that_fits(plan: Plan, ram_bytes: int) -> Plan:
    """As a planner that finds the plan that it has."""
    made = within(planned().plan.budgets[0], ram_bytes)
    if made is None:
        raise Infeasible("too little")
    return made
