"""Plans and replays neural-network training on devices that are too small for it.

The names below are imported when they are first used, so that `import poet.runtime` on a device
needs nothing but torch and numpy. Those that plan need the extra ``plan``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from poet.version import __version__

if TYPE_CHECKING:
    from poet.api import Planned as Planned
    from poet.api import plan as plan
    from poet.integrations.partitioner import torch_solver as torch_solver
    from poet.integrations.planned_forward import plan_forward as plan_forward
    from poet.integrations.wrapping import wrap as wrap
    from poet.ir.optimizer import OptimizerSpec as OptimizerSpec
    from poet.planning.auxiliary import plan_again as plan_again
    from poet.planning.contributions import contributions as contributions
    from poet.planning.ram_survey import survey as survey
    from poet.planning.ram_survey import trade_off as trade_off
    from poet.planning.shape_planner import ShapeImprovement as ShapeImprovement
    from poet.planning.shape_planner import ShapePlanner as ShapePlanner
    from poet.plans.plan_file import PlanFile as PlanFile
    from poet.problem import Limits as Limits
    from poet.problem import Objective as Objective
    from poet.problem import Pins as Pins
    from poet.problem import Problem as Problem
    from poet.problem.simulator import simulate as simulate
    from poet.problem.solution import SolveOptions as SolveOptions
    from poet.problem.solution import Start as Start
    from poet.solvers import solve as solve
    from poet.verification import verify as verify
    from poet.whatif.run import what_if as what_if

_HOMES = {
    "Limits": "poet.problem",
    "Objective": "poet.problem",
    "OptimizerSpec": "poet.ir.optimizer",
    "Pins": "poet.problem",
    "PlanFile": "poet.plans.plan_file",
    "Planned": "poet.api",
    "Problem": "poet.problem",
    "ShapeImprovement": "poet.planning.shape_planner",
    "ShapePlanner": "poet.planning.shape_planner",
    "SolveOptions": "poet.problem.solution",
    "Start": "poet.problem.solution",
    "contributions": "poet.planning.contributions",
    "plan": "poet.api",
    "plan_again": "poet.planning.auxiliary",
    "plan_forward": "poet.integrations.planned_forward",
    "simulate": "poet.problem.simulator",
    "solve": "poet.solvers",
    "survey": "poet.planning.ram_survey",
    "torch_solver": "poet.integrations.partitioner",
    "trade_off": "poet.planning.ram_survey",
    "verify": "poet.verification",
    "what_if": "poet.whatif.run",
    "wrap": "poet.integrations.wrapping",
}
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'poet' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        from poet.errors import explained

        missing = explained(error)
        if missing is None:
            raise
        raise missing from None
