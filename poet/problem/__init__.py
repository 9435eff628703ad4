"""The planning problem: what must run, what it costs; schedules, and the simulator that judges them."""

from __future__ import annotations

from poet.problem.parts import Alternative, PageForm, Place, ProblemOp, Tensor, Transfer
from poet.problem.problem import Limits, Objective, Pins, Problem

__all__ = [
    "Alternative",
    "Limits",
    "Objective",
    "PageForm",
    "Pins",
    "Place",
    "Problem",
    "ProblemOp",
    "Tensor",
    "Transfer",
]
