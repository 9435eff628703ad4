"""What must hold between a training step and an auxiliary schedule, on the same tensors."""

from __future__ import annotations

from poet.errors import PlanError
from poet.plans.lasting_values import lasting_values
from poet.plans.plan_parts import Arena
from poet.plans.planned_step import PlannedStep
from poet.problem import Place
from poet.schedule import Free


def check_evaluation(plan: PlannedStep, evaluation: PlannedStep, *, has_other_inputs: bool = False) -> None:
    """It is an auxiliary schedule of the plan and changes nothing that lives across steps."""
    check_beside(plan, evaluation, "evaluation", has_other_inputs=has_other_inputs)
    changed = {name for op in evaluation.graph.ops for name in op.updates}
    if changed:
        raise PlanError(f"the evaluation changes {min(changed)}")


def check_accumulation(plan: PlannedStep, accumulation: PlannedStep) -> None:
    """It is an auxiliary schedule of the plan, and changes the sums of gradients and module state alone."""
    check_beside(plan, accumulation, "accumulating step")
    check_outputs(plan, accumulation, "accumulating step")
    summed = [item.accumulator for item in plan.graph.parameters if item.accumulator is not None]
    sums = {plan.graph.buffer_of(value) for value in summed}
    graph = accumulation.graph
    changed = graph.persistent().intersection(name for op in graph.ops for name in op.updates)
    allowed = sums | {plan.graph.buffer_of(value) for _, value in plan.graph.states}
    if not sums <= changed or not changed <= allowed:
        wrong = (sums - changed) or (changed - allowed)
        raise PlanError(f"the accumulating step should not leave out or change {min(wrong)}")
    if not changed <= {name for op in plan.graph.ops for name in op.updates}:
        raise PlanError("the accumulating step changes what the updating step does not")


def check_beside(plan: PlannedStep, other: PlannedStep, what: str, *, has_other_inputs: bool = False) -> None:
    """It takes the same inputs, works on what the plan keeps, where it is kept, and fits beside it.

    Inputs may be of other shapes where it ``has_other_inputs``.
    """
    graph, beside = other.graph, plan.graph
    types, theirs = ({item.name: item.type for item in each.values} for each in (graph, beside))
    if other.model.sha256 != plan.model.sha256:
        raise PlanError(f"the {what} is not that of the plan's model")
    if other.optimizer != plan.optimizer:
        raise PlanError(f"the {what} has another optimizer than the training step")
    persistent = beside.persistent()
    same_inputs = graph.inputs == beside.inputs and graph.targets == beside.targets
    pairs = [(types[name], theirs[name]) for name in graph.inputs] if same_inputs else []
    if has_other_inputs:
        is_alike = all((one.dtype, len(one.shape)) == (their.dtype, len(their.shape)) for one, their in pairs)
    else:
        is_alike = all(one == their for one, their in pairs)
    if not same_inputs or not is_alike:
        raise PlanError(f"the {what} takes other inputs than the training step")
    if lasting_values(graph) != lasting_values(beside) or graph.persistent() != beside.persistent():
        raise PlanError(f"the {what} has other tensors that live across steps than the training step")
    bytes_of = {buffer.name: buffer.size_bytes for buffer in beside.buffers}
    if any(
        bytes_of[item.name] != item.size_bytes for item in graph.buffers if item.name in graph.persistent()
    ):
        raise PlanError(f"the {what} has other tensors that live across steps than the training step")
    asked_bytes = other.request.limits.ram_budget_bytes
    allowed_bytes = plan.request.limits.ram_budget_bytes
    if allowed_bytes is not None and (asked_bytes is None or asked_bytes > allowed_bytes):
        raise PlanError(f"the {what} has a larger budget than the training step")
    _check_homes(plan, other, what)
    if plan.has_fitting_arena:
        begun = {name: at for name, at in plan.begun_bytes.items() if name in persistent}
        found = {name: at for name, at in other.begun_bytes.items() if name in persistent}
        if other.arena is None or plan.arena is None or begun != found:
            raise PlanError(f"the {what} does not lie in the plan's arena, where the plan's tensors lie")
        if other.arena.size_bytes > plan.arena.size_bytes:
            raise PlanError(f"the {what} needs a larger arena than the training step")
        _check_places(plan, plan.arena, other, what)


def _check_places(plan: PlannedStep, arena: Arena, other: PlannedStep, what: str) -> None:
    """What the training step never moves is not moved here either, and all else stays below it.

    That nothing shares a byte with it, and that everything comes back, a planned step has checked itself.
    """
    divide_bytes, _ = plan.demand.parts_bytes(arena.offsets_bytes, arena.size_bytes)
    places, blocks = other.places, other.demand.blocks
    assert places is not None  # as there is an arena
    moved = {move.tensor for move in places.moves} & plan.standing
    if moved:
        raise PlanError(f"the {what} moves {min(moved)} within the arena, which has its place throughout")
    ends = [
        offset + item.size_bytes
        for item, offset in zip(other.demand.requests, places.requests_bytes, strict=True)
        if blocks[item.block].tensor not in plan.standing
    ]
    if max(ends, default=0) > divide_bytes or any(
        move.to_bytes + move.size_bytes > divide_bytes for move in places.moves
    ):
        raise PlanError(f"the {what} has something where the training step has what stays throughout")


def check_outputs(plan: PlannedStep, other: PlannedStep, what: str) -> None:
    """It gives as many outputs as ``plan``, each with as many dims and of the same element type."""

    def kinds(of: PlannedStep) -> list[tuple[str, int]]:
        types = {value.name: value.type for value in of.graph.values}
        return [(types[name].dtype, len(types[name].shape)) for name in of.graph.predictions]

    if kinds(other) != kinds(plan):
        raise PlanError(f"the {what} gives other outputs than that of the plan's own shape")


def _check_homes(plan: PlannedStep, other: PlannedStep, what: str) -> None:
    """Each persistent tensor begins the other step where it is between steps; what stands is not moved."""
    at_home = {tensor.name: tensor.initially or Place.RAM for tensor in plan.problem.tensors}
    slotted = {slot.tensor for slot in plan.slots}
    persistent = plan.graph.persistent()
    for tensor in other.problem.tensors:
        begins = tensor.initially or Place.RAM
        if tensor.name not in persistent:
            continue
        in_storage = (at_home[tensor.name] is Place.STORAGE, begins is Place.STORAGE)
        copied = begins is not Place.BOTH or (at_home[tensor.name] is Place.BOTH and tensor.name in slotted)
        if in_storage[0] != in_storage[1] or not copied:
            raise PlanError(f"the {what} does not find {tensor.name} where the training step leaves it")
    moved = {step.tensor for step in other.schedule if isinstance(step, Free)} & plan.standing
    if moved:
        raise PlanError(f"the {what} moves {min(moved)}, which has its place throughout")
