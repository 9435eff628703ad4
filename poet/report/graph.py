"""The training graph of a plan as text: sources, then one line per op with what its kernel needs."""

from __future__ import annotations

from poet.plans.training_plan import Plan


def graph_text(plan: Plan) -> str:
    """One line per op, with the workspace and the allocations of its kernel as the plan counts them."""
    remarks = {}
    for op in plan.graph.ops:
        facts = plan.kernels.of(op.name)
        said = [f"workspace {facts.workspace_bytes} B"] if facts.workspace_bytes else []
        said += [f"{len(facts.allocations)} allocations"] if facts.allocations is not None else []
        if said:
            remarks[op.name] = ", ".join(said)
    return plan.graph.to_text(remarks)
