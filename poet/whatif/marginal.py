"""Marginal value: what one change to a point buys, by solving again with the changed figure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from poet.devices.costs import buffer_cost
from poet.devices.profile import Direction, Profile
from poet.problem import Limits, Problem, Tensor
from poet.units import format_bytes
from poet.whatif.cache import SolvedCell
from poet.whatif.result import FoundPlan, Marginal, Point, Setting, WhatIf
from poet.whatif.searches import Solver, Wanted

_RAM_PART = 8
_LATER = 1.25
_FASTER = 2.0


@dataclass(frozen=True, slots=True)
class _Change:
    text: str
    problem: Problem
    limits: Limits


def marginals_of(result: WhatIf, indices: Sequence[int], solver: Solver) -> tuple[Marginal, ...]:
    """What changes of the points at ``indices`` buy: RAM, flash, deadline, and a smaller batch if swept."""
    asked = [(index, change) for index in indices for change in _changes(result, index)]
    wanted = []
    for index, change in asked:
        plan = result.plan_of(result.points[index])
        assert plan is not None
        name = f"point {index} with {change.text}"
        wanted.append(Wanted(change.problem, change.limits, name, plan.schedule))
    answers = solver.solve(wanted)
    found = [
        _marginal(result, index, change, answer)
        for (index, change), answer in zip(asked, answers, strict=True)
    ]
    smaller = [made for index in indices if (made := _smaller_batch(result, index)) is not None]
    return tuple(sorted([*found, *smaller], key=lambda marginal: indices.index(marginal.point)))


def _changes(result: WhatIf, index: int) -> Iterator[_Change]:
    point = result.points[index]
    setting = result.setting_of(point)
    problem, limits = setting.problem, point.limits
    if limits.ram_budget_bytes is not None:
        more = ram_step_bytes(limits.ram_budget_bytes)
        larger = replace(limits, ram_budget_bytes=limits.ram_budget_bytes + more)
        yield _Change(f"{format_bytes(more)} more RAM", problem, larger)
    if setting.profile is not None and setting.profile.storage is not None and limits.paging:
        faster = with_flash_bandwidth(problem, setting.profile, _FASTER)
        yield _Change("twice the flash bandwidth", faster, limits)
    if limits.deadline_seconds is not None:
        later = replace(limits, deadline_seconds=limits.deadline_seconds * _LATER)
        yield _Change(f"a deadline {_LATER - 1:.0%} later".replace("%", " %"), problem, later)


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


def _marginal(result: WhatIf, index: int, change: _Change, answer: SolvedCell | None) -> Marginal:
    point = result.points[index]
    before = result.plan_of(point)
    assert before is not None
    trace = None if answer is None else answer.trace
    if trace is None:
        return Marginal(index, change.text, before.joules, None, before.seconds, None, None, False)
    cheaper = trace.joules <= before.joules or change.problem != result.setting_of(point).problem
    joules, seconds = (trace.joules, trace.seconds) if cheaper else (before.joules, before.seconds)
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


def _certain(saved: float, before: FoundPlan, point: Point, joules: float, answer: SolvedCell | None) -> bool:
    """A saving is certain if the best plan before costs more still; none, if the best after saves none."""
    if saved > 0:
        return joules < point.bound_joules
    return answer is not None and answer.bound_joules >= before.joules * (1 - 1e-6)


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
    return (one.device, one.optimizer) == (other.device, other.optimizer)
