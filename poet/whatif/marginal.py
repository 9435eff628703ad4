"""Marginal value: what one change to a point buys, by solving again with the changed figure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from poet.devices.costs import buffer_cost
from poet.devices.profile import Direction, Profile
from poet.planning.cache import SolvedCell
from poet.problem import Limits, Problem, Tensor
from poet.problem.solution import Start
from poet.util.units import format_bytes
from poet.whatif.knowledge import parts_of
from poet.whatif.result import FoundPlan, Marginal, Point, Setting, WhatIf
from poet.whatif.workers import Solver, Wanted

_RAM_PART = 8
_LATER = 1.25
_FASTER = 2.0


@dataclass(frozen=True, slots=True)
class _Change:
    text: str
    setting: Setting
    limits: Limits


@dataclass(frozen=True, slots=True)
class _Solved:
    """A step with a change: of one schedule, or of two; ``bound_joules``: no such step costs less."""

    joules: float
    seconds: float
    bound_joules: float


def marginals_of(result: WhatIf, indices: Sequence[int], solver: Solver) -> tuple[Marginal, ...]:
    """What changes of the points at ``indices`` buy: RAM, flash, deadline, and a smaller batch if swept."""
    asked = [(index, change) for index in indices for change in _changes(result, index)]
    wanted = [list(_wanted(result, index, change)) for index, change in asked]
    answers = iter(solver.solve([item for items in wanted for item in items]))
    found = [
        _marginal(result, index, change, _solved(change, [next(answers) for _ in items]))
        for (index, change), items in zip(asked, wanted, strict=True)
    ]
    smaller = [made for index in indices if (made := _smaller_batch(result, index)) is not None]
    return tuple(sorted([*found, *smaller], key=lambda marginal: indices.index(marginal.point)))


def _wanted(result: WhatIf, index: int, change: _Change) -> Iterator[Wanted]:
    """The schedules of a step with the change, each begun with the plan's own."""
    plan = result.plan_of(result.points[index])
    assert plan is not None
    name = f"point {index} with {change.text}"
    for part, start in zip(
        parts_of(change.setting, change.limits), (plan.schedule, plan.accumulating), strict=False
    ):
        yield Wanted(part.setting.problem, part.limits, name, Start(start, "the plan of another point"))


def _solved(change: _Change, answers: Sequence[SolvedCell | None]) -> _Solved | None:
    """The step that the answers to its schedules make; ``None``: one of them has no plan."""
    joules = seconds = bound = 0.0
    parts = tuple(parts_of(change.setting, change.limits))
    for part, answer in zip(parts, answers, strict=True):
        if answer is None or answer.trace is None:
            return None
        joules += part.times * answer.trace.joules
        seconds += part.times * answer.trace.seconds
        bound += part.times * answer.bound_joules
    divided = len(parts) > 1 and change.limits.deadline_seconds is not None
    return _Solved(joules, seconds, 0.0 if divided else bound)  # other ways to divide it are not bounded


def _changes(result: WhatIf, index: int) -> Iterator[_Change]:
    point = result.points[index]
    setting = result.setting_of(point)
    limits = point.limits
    if limits.ram_budget_bytes is not None:
        more = ram_step_bytes(limits.ram_budget_bytes)
        larger = replace(limits, ram_budget_bytes=limits.ram_budget_bytes + more)
        yield _Change(f"{format_bytes(more)} more RAM", setting, larger)
    if setting.profile is not None and setting.profile.storage is not None and limits.paging:
        faster = _faster(setting, setting.profile)
        yield _Change("twice the flash bandwidth", faster, limits)
    if limits.deadline_seconds is not None:
        later = replace(limits, deadline_seconds=limits.deadline_seconds * _LATER)
        yield _Change(f"a deadline {_LATER - 1:.0%} later".replace("%", " %"), setting, later)


def _faster(setting: Setting, profile: Profile) -> Setting:
    """``setting`` with `_FASTER` times the flash bandwidth, in both of its schedules."""
    beside = None if setting.accumulating is None else _faster(setting.accumulating, profile)
    problem = with_flash_bandwidth(setting.problem, profile, _FASTER)
    return replace(setting, problem=problem, accumulating=beside)


def ram_step_bytes(budget_bytes: int) -> int:
    """A power of two of about an eighth of the budget: what a team would add."""
    step: int = 2 ** max(0, (budget_bytes // _RAM_PART).bit_length() - 1)
    return step


def with_flash_bandwidth(problem: Problem, profile: Profile, factor: float) -> Problem:
    """``problem`` as it would be if the device's storage moved ``factor`` times the bytes per second."""
    storage = profile.storage
    assert storage is not None
    changed = profile.model_copy(
        update={
            "storage": storage.model_copy(
                update={"read": _scaled(storage.read, factor), "write": _scaled(storage.write, factor)}
            )
        }
    )
    return replace(problem, tensors=tuple(_recosted(tensor, changed) for tensor in problem.tensors))


def _scaled(direction: Direction, factor: float) -> Direction:
    bandwidth = direction.bandwidth_bytes_per_second
    figure = bandwidth.model_copy(update={"value": bandwidth.value * factor, "range": None})
    return direction.model_copy(update={"bandwidth_bytes_per_second": figure})


def _recosted(tensor: Tensor, profile: Profile) -> Tensor:
    cost = buffer_cost(tensor.bytes, profile)
    return replace(
        tensor,
        page_in=None if tensor.page_in is None else cost.page_in,
        page_out=None if tensor.page_out is None else cost.page_out,
    )


def _marginal(result: WhatIf, index: int, change: _Change, answer: _Solved | None) -> Marginal:
    point = result.points[index]
    before = result.plan_of(point)
    assert before is not None
    if answer is None:
        return Marginal(index, change.text, before.joules, None, before.seconds, None, None, False)
    cheaper = answer.joules <= before.joules or change.setting != result.setting_of(point)
    joules, seconds = (answer.joules, answer.seconds) if cheaper else (before.joules, before.seconds)
    saved = before.joules - joules
    return Marginal(
        point=index,
        change=change.text,
        joules_before=before.joules,
        joules_after=joules,
        seconds_before=before.seconds,
        seconds_after=seconds,
        saved_share=saved / before.joules if before.joules else 0.0,
        certain=_certain(saved, before, point, joules, answer),
    )


def _certain(saved: float, before: FoundPlan, point: Point, joules: float, answer: _Solved) -> bool:
    """A saving is certain if the best plan before costs more still; none, if the best after saves none."""
    if saved > 0:
        return joules < point.bound_joules
    return answer.bound_joules >= before.joules * (1 - 1e-6)


def _smaller_batch(result: WhatIf, index: int) -> Marginal | None:
    """The next smaller batch size of the sweep, per sample, in no more RAM and the same deadline."""
    point = result.points[index]
    setting, before = result.setting_of(point), result.plan_of(point)
    batch = setting.batch
    smaller = [
        other.batch
        for other in result.settings
        if _alike(other, setting) and other.batch is not None and batch is not None and other.batch < batch
    ]
    if not smaller or batch is None or before is None:
        return None
    size = max(smaller)
    budget = point.limits.ram_budget_bytes or 0
    found = [
        (plan.joules / size, plan.seconds / size, other.bound_joules / size)
        for other in result.points
        if (plan := result.plan_of(other)) is not None
        and _alike(result.setting_of(other), setting)
        and result.setting_of(other).batch == size
        and other.deadline == point.deadline
        and plan.peak_ram_bytes <= budget
    ]
    joules_before, seconds_before = before.joules / batch, before.seconds / batch
    text = f"batch {size} (per sample)"
    if not found:
        return Marginal(index, text, joules_before, None, seconds_before, None, None, False)
    joules, seconds, bound = min(found)
    share = 1 - joules / joules_before if joules_before else 0.0
    certain = joules < point.bound_joules / batch if share > 0 else bound >= joules_before
    return Marginal(index, text, joules_before, joules, seconds_before, seconds, share, certain)


def _alike(one: Setting, other: Setting) -> bool:
    return (one.device, one.optimizer, one.micro) == (other.device, other.optimizer, other.micro)
