"""What of a graph or a plan can be C, and what lacks a kernel."""

from __future__ import annotations

from collections import Counter

from poet.c99.calls import WORD_BYTES, Address, OpRun, Placed
from poet.c99.rows import KERNELS, c_calls, strip_calls
from poet.errors import GraphError, PlanError, UnsupportedOperator
from poet.ir.graph import Graph
from poet.ir.strips import Strip
from poet.plans.planned_step import stored_values
from poet.plans.training_plan import Plan

LIBRARY = "poet-c99"
"""What profiles and plans call these kernels."""
ITEM_TYPES = ("float32", "int64", "bool")
_MOST_NAMED = 8


def uses_elements(strip: Strip, graph: Graph) -> bool:
    """Whether the kernels use each element of a gradient as it is made; see `poet.passes.fused`."""
    values = _anywhere(graph)
    try:
        return bool(strip_calls("strip", strip, values, values, Address(0)))
    except (UnsupportedOperator, GraphError):
        return False


def _anywhere(graph: Graph) -> dict[str, Placed]:
    """The values of ``graph``, as good as placed."""
    in_flash = graph.in_flash(LIBRARY)
    return {value.name: Placed(value.type, 0, value.buffer in in_flash) for value in graph.values}


def missing_rows(graph: Graph) -> dict[str, int]:
    """Operators of ``graph`` without a C kernel, and how many ops are of each."""
    plain = (op.call.target for op in graph.ops if op.strip is None)
    return dict(sorted(Counter(target for target in plain if target not in KERNELS).items()))


def refusals(graph: Graph) -> tuple[str, ...]:
    """What of ``graph`` cannot be C, one sentence each: operators, or what single ops ask of theirs."""
    missing = missing_rows(graph)
    found = [f"{target} has no C kernel ({count} ops)" for target, count in missing.items()]
    placed = _anywhere(graph)
    for op in graph.ops:
        if op.strip is not None:
            continue  # made only of what has a kernel
        outputs = tuple(None if name is None else placed[name] for name in op.outputs)
        for call in filter(None, (op.call, op.repeat_call)):
            if call.target in missing:
                continue
            try:
                c_calls(OpRun(op.name, call, outputs, placed))
            except UnsupportedOperator as error:
                found.append(str(error))
    return tuple(found)


_INSTEAD = {"aten._embedding_bag.default": "bags of one size, rows of a matrix without padding_idx,"}
"""What to write in place of an operator without a kernel."""


def check_exportable(plan: Plan) -> None:
    """Refuse a plan that cannot be C, with all the operators that lack a kernel in one line.

    Raises:
        UnsupportedOperator: operators without a kernel, or element types.
        PlanError: the plan has no arena, or moves tensors to or from storage.
    """
    name, graph = plan.model.name, plan.graph
    if missing := missing_rows(graph):
        named = [f"{target} ({count} ops)" for target, count in missing.items()]
        more = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
        instead = [f"write {item} in place of {each}; " for each, item in _INSTEAD.items() if each in missing]
        raise UnsupportedOperator(
            f"{name}: no C kernel for {', '.join(named[:_MOST_NAMED])}{more}; {''.join(instead)}"
            "docs/operators.md lists the operators that have one"
        )
    lasting, in_flash = stored_values(graph), graph.in_flash(LIBRARY)
    random_states = {each for op in graph.ops if op.call.target == "poet.rng_state" for each in op.outputs}
    for value in graph.values:
        kind = value.type.dtype
        if value.buffer in in_flash:
            continue
        if kind == "bool" and value.name in lasting:
            raise UnsupportedOperator(
                f"{name}: {value.name} is a mask of bytes that lives across steps; C kernels have "
                "masks that a step makes (is_causal=True), or tensors of float32"
            )
        if kind not in ITEM_TYPES and value.name not in random_states:
            raise UnsupportedOperator(f"{name}: {value.name} is of {kind}; C kernels are of float32")
    _check_arena(plan)


def _check_arena(plan: Plan) -> None:
    name, arena, budget_bytes = plan.model.name, plan.arena, plan.request.limits.ram_budget_bytes
    if any(facts.allocations is not None for facts in plan.kernels.ops):
        raise PlanError(
            f"{name}: the plan counts the memory of {plan.kernels.library}; solve it again for "
            f'a device whose profile says [kernels] name = "{LIBRARY}", such as nrf52840'
        )
    if arena is None:
        raise PlanError(f"{name}: the plan has no arena; solve it again to have one")
    if budget_bytes is not None and arena.size_bytes > budget_bytes:
        raise PlanError(
            f"{name}: with the gaps between its tensors the arena takes {arena.size_bytes} "
            f"bytes of {budget_bytes}, and C has no heap to run from; solve with more time or more --ram"
        )
    if any(offset % WORD_BYTES for offset in (*arena.offsets_bytes, *(m.to_bytes for m in arena.moves))):
        raise PlanError(f"{name}: places in its arena are not multiples of {WORD_BYTES} bytes")
