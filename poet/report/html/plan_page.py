"""``poet explain --html``: the page about one plan."""

from __future__ import annotations

from poet.devices.profile import Profile
from poet.plans.training_plan import Plan
from poet.report.html.page import render
from poet.report.html.sections import plan_content, plan_context
from poet.report.html.subject import subject_of_plan
from poet.report.request import NOT_IN_A_PLAN, asked_by


def plan_page(plan: Plan, *, command: str = "", profile: Profile | None = None) -> str:
    """The page as text.

    Args:
        plan: what it is about.
        command: the line that made the page; empty where it was made from Python.
        profile: of the plan's device; ``None``: the shipped one of its name, if there is one.

    Raises:
        InputError: the packages of the extra ``report`` are not there.
    """
    subject = subject_of_plan(plan, profile=profile)
    commands = [asked_by(plan)]
    if command:
        commands.append(("this page", command))
    context = plan_context(subject, commands=commands)
    title = f"{plan.model.name} on {plan.device.name}"
    return render(
        "plan.html",
        plan_content(subject),
        {**context, "title": title, "made_by": plan.poet_version, "not_in_it": NOT_IN_A_PLAN},
    )
