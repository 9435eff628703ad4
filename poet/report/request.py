"""How a plan was asked for, told from the plan file: the line that asks for it again.

A plan holds the request exactly: limits in bytes, seconds and joules, loss, optimizer, patterns, sizes.
It does not hold where the model's file lay, nor how long the search was to take and by which engine: two
searches for one request may end with different plans.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace

from poet.ir.graph import Role
from poet.ir.loss import PYTHON
from poet.ir.optimizer import OptimizerSpec
from poet.ir.strips import Gradients
from poet.plans.training_plan import Plan
from poet.problem import Objective, Place, Problem

NOT_IN_A_PLAN = (
    "A plan file holds what was asked, to the byte, and the first line repeats it. It does not hold where "
    "the model lay, nor the time limit, the engine and the threads of the search."
)


def asked_by(plan: Plan) -> tuple[str, str]:
    """What to call the line that asks for ``plan`` again, and the line.

    It is of the shell where `poet solve` can say all of it, else of Python: a module, settings of an
    optimizer without an option, or no RAM budget.
    """
    is_python = plan.request.loss.startswith(f"{PYTHON}:")
    surveys = plan.request.limits.ram_budget_bytes is None and plan.outcome.objective is not Objective.RAM
    if plan.model.kind == "module" or surveys or without_option(plan.optimizer) or is_python:
        return "the call of Python that asks for this plan", python_call(plan)
    return "the command that asks for this plan", solve_command(plan)


def solve_command(plan: Plan) -> str:
    """The ``poet solve`` that asks for what ``plan`` was asked for, of the model's file in the folder."""
    words = ["poet", "solve", f"{plan.model.name}.onnx", "--device", plan.device.name]
    words += [*_limits(plan), "--loss", plan.request.loss, *_optimizer(plan.optimizer)]
    words += [] if plan.model.output is None else ["--output", plan.model.output]
    for pattern in plan.request.train:
        words += [] if pattern == "*" else ["--train", pattern]
    for name, size in _batch_bound(plan):
        words += ["--bind", f"{name}={size}"]
    words += [] if plan.request.micro is None else ["--micro", str(plan.request.micro)]
    home = home_of(plan.problem)
    words += [] if home is Place.RAM else ["--home", "auto" if home is Place.EITHER else home.value]
    gradients = plan.request.gradients
    words += [] if gradients is Gradients.STREAM else ["--gradients", gradients.value]
    if plan.outcome.objective is not Objective.ENERGY:
        words += ["--minimise", plan.outcome.objective.value]
    return shlex.join(words)


def python_call(plan: Plan) -> str:
    """The ``poet.plan`` that asks for what ``plan`` was asked for; a module is not in a plan file."""
    of_a_file = plan.model.kind == "onnx"
    limits, home = plan.request.limits, home_of(plan.problem)
    given = {
        "device": plan.device.name,
        "ram": limits.ram_budget_bytes,
        "deadline": limits.deadline_seconds,
        "loss": plan.request.loss,
        "output": plan.model.output,
        "optimizer": plan.optimizer,
        "bind": dict(_batch_bound(plan)) or None,
        "micro": None if plan.request.micro is None else str(plan.request.micro),
        "train": None if plan.request.train == ("*",) else list(plan.request.train),
        "recompute": None if limits.recompute else False,
        "paging": None if limits.paging else False,
        "written": limits.written_budget_bytes,
        "energy": limits.joules_budget,
        "pins": None if limits.pins == type(limits.pins)() else limits.pins,
        "home": None if home is Place.RAM else home.value,
        "gradients": None if plan.request.gradients is Gradients.STREAM else plan.request.gradients.value,
        "minimise": None if plan.outcome.objective is Objective.ENERGY else plan.outcome.objective.value,
    }
    words = [
        f"{name}={value!r}" for name, value in given.items() if value is not None or name in ("device", "ram")
    ]
    model = repr(f"{plan.model.name}.onnx") if of_a_file else "module, example_inputs"
    return f"poet.plan({model}, {', '.join(words)})"


def _batch_bound(plan: Plan) -> tuple[tuple[str, int], ...]:
    """The sizes that were bound, the batch's as a whole."""
    count = 1 if plan.request.micro is None else plan.request.micro.count
    return tuple(
        (name, size * count if name in ("N", "batch") else size) for name, size in plan.model.binding
    )


def home_of(problem: Problem) -> Place:
    """Where parameters were asked to be between steps: where all of them are, else left to the plan."""
    homes = {
        Place.STORAGE if tensor.initially is Place.STORAGE else Place.RAM
        for tensor in problem.tensors
        if tensor.role == Role.PARAMETER.value
    }
    return Place.EITHER if len(homes) > 1 else next(iter(homes), Place.RAM)


def without_option(spec: OptimizerSpec) -> tuple[str, ...]:
    """Settings of an optimizer that ``poet solve`` has no option for: groups of several patterns."""
    return ("groups",) if any(len(group.patterns) != 1 for group in spec.groups) else ()


def _limits(plan: Plan) -> Iterator[str]:
    limits = plan.request.limits
    if limits.ram_budget_bytes is not None:
        yield from ("--ram", f"{limits.ram_budget_bytes}B")
    if limits.deadline_seconds is not None:
        yield from ("--deadline", f"{limits.deadline_seconds!r}s")
    if not limits.recompute:
        yield "--no-recompute"
    if not limits.paging:
        yield "--no-paging"
    if limits.joules_budget is not None:
        yield from ("--energy-budget", f"{limits.joules_budget!r}J")
    if limits.written_budget_bytes is not None:
        yield from ("--write-budget", f"{limits.written_budget_bytes}B")
    capacity = plan.problem.storage_capacity_bytes
    if capacity is not None and capacity != plan.device.storage_bytes:
        yield from ("--storage", f"{capacity}B")
    pins = limits.pins
    for option, patterns in (
        ("--keep", pins.keep),
        ("--recompute", pins.recompute),
        ("--page", pins.page),
        ("--never-page", pins.never_page),
    ):
        for pattern in patterns:
            yield from (option, pattern)


def _optimizer(spec: OptimizerSpec) -> Iterator[str]:
    yield from ("--optimizer", str(replace(spec, lr=OptimizerSpec().lr, weight_decay=None)))
    yield from ("--lr", f"{spec.lr!r}")
    if spec.weight_decay is not None:
        yield from ("--weight-decay", f"{spec.weight_decay!r}")
    for group in spec.groups:
        yield from ("--group", str(group))
    for option, amount in (("--clip-value", spec.clip_value), ("--clip-norm", spec.clip_norm)):
        if amount is not None:
            yield from (option, f"{amount!r}")
