"""``poet explain --html``: the page about one plan."""

from __future__ import annotations

import shlex

from poet.device import Profile
from poet.report.html.page import render
from poet.report.html.sections import plan_content, plan_context
from poet.report.html.subject import subject_of_plan
from poet.training_plan import Plan


def plan_page(plan: Plan, *, command: str = "", profile: Profile | None = None) -> str:
    """The page as text.

    Args:
        plan: what it is about.
        command: the line that made the page; empty where it was made from Python.
        profile: of the plan's device; ``None``: the shipped one of its name, if there is one.

    Raises:
        InputError: the packages of ``poet[report]`` are not there.
    """
    subject = subject_of_plan(plan, profile=profile)
    commands = [("a command that asks for this plan", solve_command(plan))]
    if command:
        commands.insert(0, ("this page", command))
    context = plan_context(subject, commands=commands)
    title = f"{plan.model.name} on {plan.device.name}"
    return render(
        "plan.html", plan_content(subject), {**context, "title": title, "made_by": plan.poet_version}
    )


def solve_command(plan: Plan) -> str:
    """A ``poet solve`` that asks for what the plan was asked for; the model's file is not known to it."""
    limits = plan.request.limits
    words = ["poet", "solve", f"{plan.model.name}.onnx" if plan.model.kind == "onnx" else plan.model.name]
    words += ["--device", plan.device.name]
    if limits.ram_budget_bytes is not None:
        words += ["--ram", f"{limits.ram_budget_bytes}B"]
    if limits.deadline_seconds is not None:
        words += ["--deadline", f"{limits.deadline_seconds!r}s"]
    words += [
        "--loss",
        plan.request.loss,
        "--optimizer",
        plan.optimizer.name,
        "--lr",
        f"{plan.optimizer.lr!r}",
    ]
    for pattern in plan.request.train:
        words += [] if pattern == "*" else ["--train", pattern]
    for name, size in plan.model.binding:
        words += ["--bind", f"{name}={size}"]
    words += [] if limits.recompute else ["--no-recompute"]
    words += [] if limits.paging else ["--no-paging"]
    if limits.joules_budget is not None:
        words += ["--energy-budget", f"{limits.joules_budget!r}J"]
    if limits.written_budget_bytes is not None:
        words += ["--write-budget", f"{limits.written_budget_bytes}B"]
    pins = limits.pins
    for option, patterns in (
        ("--keep", pins.keep),
        ("--recompute", pins.recompute),
        ("--page", pins.page),
        ("--never-page", pins.never_page),
    ):
        for pattern in patterns:
            words += [option, pattern]
    return shlex.join(words)
