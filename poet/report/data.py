"""Reports as JSON-ready objects, made of the same rows as the text."""

from __future__ import annotations

from typing import Any

from poet import codec
from poet.graph import Graph
from poet.homes import DecidedProblem
from poet.named import named_parameters
from poet.plans.training_plan import Plan
from poet.report.budgets import budget_data
from poet.report.micro import micro_data
from poet.report.plan import solution_of
from poet.report.schedule_rows import op_runs, peak, tensor_fates
from poet.report.shapes import shape_data
from poet.schedule import Schedule
from poet.simulator import Trace
from poet.solution import SAYS_FILE, solution_to_json


def plan_data(plan: Plan) -> dict[str, Any]:
    """The plan's model, request and device, its answer as ``poet solve --json`` gives it, and its rows."""
    return {
        "model": codec.encode(plan.model),
        "request": codec.encode(plan.request),
        "device": codec.encode(plan.device),
        "optimizer": codec.encode(plan.optimizer),
        "prediction": codec.encode(plan.prediction),
        "strips": strips_data(plan.graph),
        "parts": parts_data(plan.graph),
        "micro_batches": micro_data(plan),
        "shapes": shape_data(plan),
        "budgets": budget_data(plan),
        "arena": arena_data(plan),
        **solution_to_json(plan.problem, solution_of(plan)),
        "says": SAYS_FILE.partition(":")[0],
        **schedule_data(plan.problem, plan.schedule, plan.trace),
    }


def strips_data(graph: Graph) -> list[dict[str, Any]]:
    """Per op that runs block by block: into how many, and the bytes of what never exists whole."""
    return [
        {
            "op": op.name,
            "blocks": len(op.strip.bounds),
            "whole_bytes": op.strip.whole_bytes,
            "block_bytes": op.strip.block_bytes,
            "saved_bytes": op.strip.whole_bytes - op.strip.block_bytes,
        }
        for op in graph.ops
        if op.strip is not None and op.strip.overwritten is None
    ]


def parts_data(graph: Graph) -> list[dict[str, Any]]:
    """Per parameter in parts: its name and bytes, and the rows at which its parts begin."""
    return [
        {
            "parameter": item.name,
            "bytes": item.content.type.extent_bytes,
            "begin": [start for start, _ in item.content.bounds],
        }
        for item in named_parameters(graph)
        if item.content.bounds
    ]


def arena_data(plan: Plan) -> dict[str, Any] | None:
    """Size of the arena, the bytes that no arena is smaller than, and what it leaves for the page buffer."""
    if plan.layout is None:
        return None
    return {
        "size_bytes": plan.layout.arena_bytes,
        "lower_bound_bytes": plan.layout.lower_bound_bytes,
        "efficiency": plan.layout.efficiency,
        "fits": plan.has_fitting_arena,
        "page_buffer_bytes": plan.page_buffer_bytes,
    }


def schedule_data(problem: DecidedProblem, schedule: Schedule, trace: Trace) -> dict[str, Any]:
    """Who holds the RAM at the peak, and a row per tensor and per op."""
    fullest = peak(problem, schedule, trace)
    return {
        "peak": {**codec.encode(fullest), "by_role": dict(fullest.by_role), "tensors": dict(fullest.tensors)},
        "tensors": codec.encode(tensor_fates(problem, schedule, trace)),
        "ops": codec.encode(op_runs(problem, schedule)),
        "ram_over_time": [
            [moment.start_seconds, moment.end_seconds, moment.ram_bytes] for moment in trace.moments
        ],
    }
