"""The planning problem: what must run, what it costs; schedules, and the simulator that judges them."""

from __future__ import annotations

from poet.problem.parts import (
    Alternative,
    Handing,
    OnUnit,
    PageForm,
    Place,
    ProblemOp,
    Tensor,
    Transfer,
    Unit,
)
from poet.problem.problem import Limits, Objective, Pins, Problem

__all__ = [
    "Alternative",
    "Handing",
    "Limits",
    "Objective",
    "OnUnit",
    "PageForm",
    "Pins",
    "Place",
    "Problem",
    "ProblemOp",
    "Tensor",
    "Transfer",
    "Unit",
]
