"""Laws of the judge: over random valid schedules, whose memory is recomputed from scratch, and mutations."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Sequence

import pytest
from helpers.random_problems import keep_bytes, mixed_problem, random_limits
from helpers.schedules import verdict

from poet.problem import Limits, Place, Problem
from poet.problem.schedule import Compute, Free, PageIn, PageOut, Schedule
from poet.problem.simulator import Trace, simulate
from poet.solvers.heuristics.greedy import greedy


def valid_schedules(count: int) -> Sequence[tuple[Problem, Limits, Schedule, Trace]]:
    """``count`` valid schedules of random problems, tight ones among them."""
    while len(_VALID) < count:
        of = mixed_problem(seed := next(_SEEDS), largest=9)
        limits = random_limits(of, seed)
        schedule = greedy(of, limits, seconds=0.0)
        if schedule is not None:
            _VALID.append((of, limits, schedule, simulate(of, schedule, limits)))
    return _VALID[:count]


_VALID, _SEEDS = list[tuple[Problem, Limits, Schedule, Trace]](), itertools.count()


def ram_by_hand(of: Problem, schedule: Schedule, index: int) -> int:
    """RAM at step ``index`` from nothing but the list: who arrived and was not freed since."""

    def rounded(size: int) -> int:
        return math.ceil(size / of.alignment_bytes) * of.alignment_bytes

    ops = {op.name: op for op in of.ops}
    made = {name for op in of.ops for name in op.outputs}
    held = 0
    for tensor in of.tensors:
        there = tensor.name not in made and tensor.initially is not Place.STORAGE
        for step in schedule[:index]:
            if isinstance(step, Compute):
                there = there or tensor.name in ops[step.op].outputs
            elif step.tensor == tensor.name and not isinstance(step, PageOut):
                there = isinstance(step, PageIn)
        held += rounded(tensor.bytes) if there else 0
    now = schedule[index]
    if isinstance(now, Compute):
        outputs = [tensor for tensor in of.tensors if tensor.name in ops[now.op].outputs]
        return held + sum(rounded(t.bytes) for t in outputs) + rounded(ops[now.op].workspace_bytes)
    if isinstance(now, PageIn):
        return held + sum(rounded(tensor.bytes) for tensor in of.tensors if tensor.name == now.tensor)
    return held


def test_ram_equals_live_sets_recomputed_from_scratch() -> None:
    for of, _, schedule, trace in valid_schedules(120):
        by_hand = [ram_by_hand(of, schedule, index) for index in range(len(schedule))]
        assert [moment.ram_bytes for moment in trace.moments] == by_hand
        assert trace.peak_ram_bytes >= max(by_hand)


def test_the_peak_is_tight() -> None:
    for of, limits, schedule, trace in valid_schedules(60):
        exact = dataclasses.replace(limits, ram_budget_bytes=trace.peak_ram_bytes)
        assert simulate(of, schedule, exact) == trace
        if trace.peak_ram_bytes > 0:
            less = dataclasses.replace(limits, ram_budget_bytes=trace.peak_ram_bytes - 1)
            assert verdict(of, schedule, less) == "ram"
        late = dataclasses.replace(limits, deadline_seconds=trace.seconds * (1 - 1e-6))
        assert trace.seconds == 0.0 or verdict(of, schedule, late) == "deadline"


def test_energy_is_the_sum_of_what_the_steps_cost() -> None:
    for of, _, schedule, trace in valid_schedules(60):
        ops, tensors = {op.name: op for op in of.ops}, {tensor.name: tensor for tensor in of.tensors}
        joules = of.idle_watts * trace.seconds
        for step in schedule:
            if isinstance(step, Compute):
                joules += ops[step.op].joules
            elif not isinstance(step, Free):
                transfer = tensors[step.tensor]
                cost = transfer.page_in if isinstance(step, PageIn) else transfer.page_out
                assert cost is not None
                joules += cost.joules
        assert trace.joules == pytest.approx(joules, rel=1e-12)


# --- mutations of valid schedules ----------------------------------------------------------------


def first_runs(schedule: Schedule) -> set[int]:
    seen: set[str] = set()
    found = set()
    for index, step in enumerate(schedule):
        if isinstance(step, Compute) and step.op not in seen:
            seen.add(step.op)
            found.add(index)
    return found


def read_later(of: Problem, schedule: Schedule, index: int, name: str) -> bool:
    """Whether a step after ``index`` needs ``name`` in RAM before anything brings it there."""
    ops = {op.name: op for op in of.ops}
    seen = {step.op for step in schedule[: index + 1] if isinstance(step, Compute)}
    for step in schedule[index + 1 :]:
        if isinstance(step, Compute):
            op = ops[step.op]
            if name in (op.rerun_inputs if step.op in seen else op.inputs):
                return True
            if name in op.outputs:
                return False
            seen.add(step.op)
        elif step.tensor == name:
            return not isinstance(step, PageIn)
    return next(t for t in of.tensors if t.name == name).finally_ is Place.RAM


def test_dropping_any_step_but_a_spare_one_is_noticed() -> None:
    noticed: dict[str, int] = {}
    for of, limits, schedule, trace in valid_schedules(80):
        tight = dataclasses.replace(limits, ram_budget_bytes=trace.peak_ram_bytes)
        firsts = first_runs(schedule)
        for index, step in enumerate(schedule):
            rule = verdict(of, schedule[:index] + schedule[index + 1 :], tight)
            if index in firsts:  # an op of no outputs and effects is missed at the end, others at once
                assert rule in {"missing", "input", "order", "free", "page_out", "stale"}
            elif isinstance(step, PageIn):
                assert rule in {"input", "free", "final", "page_out"} or not read_later(
                    of, schedule, index, step.tensor
                )
            noticed[str(rule)] = noticed.get(str(rule), 0) + 1
    assert {"missing", "input", "order", "free", "page_in", "final", "ram"} <= noticed.keys()


def test_doubling_a_step_that_is_no_computation_is_noticed() -> None:
    expected = {Free: "free", PageOut: "page_out", PageIn: "page_in"}
    for of, limits, schedule, _ in valid_schedules(60):
        for index, step in enumerate(schedule):
            if not isinstance(step, Compute):
                assert (
                    verdict(of, (*schedule[:index], step, *schedule[index:]), limits) == expected[type(step)]
                )


def last_reader(of: Problem, schedule: Schedule, index: int, name: str) -> int | None:
    """The step before ``index`` that last needed ``name`` in RAM, if none made it since."""
    ops, firsts = {op.name: op for op in of.ops}, first_runs(schedule)
    for at in range(index - 1, -1, -1):
        step = schedule[at]
        if isinstance(step, Compute):
            op = ops[step.op]
            if name in (op.inputs if at in firsts else op.rerun_inputs):
                return at
            if name in op.outputs:
                return None
        elif step.tensor == name:
            return at if isinstance(step, PageOut) else None
    return None


def test_freeing_before_the_last_reader_is_noticed() -> None:
    tried = 0
    for of, limits, schedule, _ in valid_schedules(80):
        for index, step in enumerate(schedule):
            reader = last_reader(of, schedule, index, step.tensor) if isinstance(step, Free) else None
            if reader is not None:
                early = list(schedule)
                early.insert(reader, early.pop(index))
                tried += 1
                assert verdict(of, tuple(early), limits) in {"input", "page_out"}
    assert tried > 200


def test_swapping_a_first_run_before_its_producer_is_noticed() -> None:
    for of, limits, schedule, _ in valid_schedules(60):
        for index in sorted(first_runs(schedule)):
            step = schedule[index]
            assert isinstance(step, Compute)
            inputs = next(op.inputs for op in of.ops if op.name == step.op)
            made = {name for op in of.ops for name in op.outputs}
            if made & set(inputs):
                early = (step, *schedule[:index], *schedule[index + 1 :])
                assert verdict(of, early, limits) in {"input", "order", "stale"}


def test_permissions_are_enforced() -> None:
    seen = set()
    for of, limits, schedule, trace in valid_schedules(150):
        if trace.recomputed_runs:
            assert verdict(of, schedule, dataclasses.replace(limits, recompute=False)) == "recompute"
            firsts = first_runs(schedule)
            rerun = {s.op for i, s in enumerate(schedule) if isinstance(s, Compute) and i not in firsts}
            once = tuple(dataclasses.replace(o, recomputable=o.name not in rerun) for o in of.ops)
            assert verdict(dataclasses.replace(of, ops=once), schedule, limits) == "recompute"
            seen.add("recompute")
        if trace.written_bytes:
            less = dataclasses.replace(limits, written_budget_bytes=trace.written_bytes - 1)
            assert verdict(of, schedule, less) == "storage"
            full = dataclasses.replace(of, storage_capacity_bytes=trace.storage_bytes - 1)
            assert verdict(full, schedule, limits) == "storage"
            exact = dataclasses.replace(of, storage_capacity_bytes=trace.storage_bytes)
            assert verdict(exact, schedule, limits) is None
            seen.add("storage")
        if trace.joules:
            assert verdict(of, schedule, dataclasses.replace(limits, joules_budget=trace.joules)) is None
            less_energy = dataclasses.replace(limits, joules_budget=trace.joules * (1 - 1e-6))
            assert verdict(of, schedule, less_energy) == "energy"
            seen.add("energy")
        for name in {step.tensor for step in schedule if isinstance(step, PageIn)}:
            sealed = [dataclasses.replace(t, page_in=None) if t.name == name else t for t in of.tensors]
            if all(t.page_in is not None or t.initially is not Place.STORAGE for t in sealed):
                fixed = dataclasses.replace(of, tensors=tuple(sealed))
                assert verdict(fixed, schedule, limits) == "page_in"
                seen.add("page_in")
    assert seen == {"recompute", "storage", "page_in", "energy"}


def test_an_update_makes_every_later_use_of_the_old_content_stale() -> None:
    tried = 0
    for of, limits, schedule, _ in valid_schedules(250):
        updaters = {op.name: op for op in of.ops if op.updates and op.inputs}
        for index, step in enumerate(schedule):
            if isinstance(step, Compute) and step.op in updaters and index in first_runs(schedule):
                victim = updaters[step.op].updates[0]
                for reader in of.ops[: of.ops.index(updaters[step.op])]:
                    if victim in reader.rerun_inputs and reader.recomputable:
                        again = (*schedule[: index + 1], Compute(reader.name), *schedule[index + 1 :])
                        roomy = dataclasses.replace(
                            limits, ram_budget_bytes=2 * keep_bytes(of), recompute=True
                        )
                        assert verdict(of, again, roomy) in {"stale", "recompute", "input"}
                        tried += 1
    assert tried > 30


def test_random_mutations_never_escape_the_accounts() -> None:
    """Whatever a mutation does, the judge rejects it or its RAM is that of the list, by hand."""
    rng = random.Random(7)
    rejected = accepted = 0
    for of, limits, schedule, _ in valid_schedules(80):
        for _ in range(10):
            mutant = list(schedule)
            for _ in range(rng.randint(1, 2)):
                one, two = rng.randrange(len(mutant)), rng.randrange(len(mutant))
                match rng.randrange(3):
                    case 0:
                        mutant[one], mutant[two] = mutant[two], mutant[one]
                    case 1:
                        mutant.insert(one, mutant[two])
                    case _:
                        mutant.insert(one, mutant.pop(two))
            if verdict(of, tuple(mutant), limits) is not None:
                rejected += 1
                continue
            accepted += 1
            trace = simulate(of, tuple(mutant), limits)
            by_hand = [ram_by_hand(of, tuple(mutant), index) for index in range(len(mutant))]
            assert [moment.ram_bytes for moment in trace.moments] == by_hand
            assert limits.ram_budget_bytes is None or max(by_hand) <= limits.ram_budget_bytes
    assert rejected > 400
    assert accepted > 40
