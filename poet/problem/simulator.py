"""The simulator: replays a schedule on a problem by its rules, and nothing but its rules.

It lies below every solver and shares no code with any. Each rule has a short name, which the
error carries and the mutation tests count:

==================== ==================================================================
``unknown``          a step names no op or tensor of the problem
``input``            an op runs while a tensor that it reads is not in RAM
``stale``            a tensor is read or stored with a content other than the one meant, by row as well
``recompute``        an op is run again that must not be, or against the limits
``order``            first runs of ops with an effect leave the listed order
``free``             a tensor is freed that is not in RAM
``page_out``         a tensor is stored that is absent, stored already, or may not be
``page_in``          a tensor is fetched that is in RAM, not in storage, or may not be
``stored``           an op reads from a tensor in storage that is not there, or may not be read
``move``             a tensor is moved within RAM that is not there, or must stay at its place
``ram``              more bytes in RAM than the budget, at any moment
``storage``          more bytes in storage than it holds, or written than allowed
``deadline``         the step lasts longer than allowed
``energy``           the step takes more joules than allowed
``pin``              a tensor is held, dropped or moved against what was pinned
``missing``          an op never ran
``alternative``      an op runs, or a page is, in a form that it does not have, or that is not the one taken
``unit``             an op runs on a unit that does not run it, or on two
``final``            a tensor is not, with its last content, where it must end
==================== ==================================================================

What an op reads from storage itself, or writes there, is in its own seconds and joules, and in the bytes
read and written; storage serves one at a time, so that it waits for transfers in flight, and later ones for
it. Rows that are written replace the content that is there: no op reads the old one any more.

RAM at a moment is every tensor present plus, while an op runs, its new outputs and its workspace;
sizes are rounded to the problem's alignment. A tensor is present from the start of its page-in.
RAM depends on the order of the list alone, never on how long anything takes: freeing a tensor
whose page-out still runs waits for it, and so does an op that overwrites it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from poet.errors import InvalidSchedule
from poet.problem import Limits, Place, Problem, ProblemOp, Tensor, Transfer
from poet.problem.alternatives import chosen_by
from poet.problem.homes import DecidedProblem, decided
from poet.problem.pins import pinned
from poet.problem.schedule import Compute, Free, PageOut, Schedule
from poet.util.brief import told
from poet.util.units import format_bytes, format_joules, format_seconds


@dataclass(frozen=True, slots=True)
class Moment:
    """One step of the schedule as it happened.

    Attributes:
        ram_bytes: held while the step runs, its outputs and workspace included.
        start_seconds, end_seconds: when its engine works on it, from the start of the step.
    """

    ram_bytes: int
    start_seconds: float
    end_seconds: float


@dataclass(frozen=True, slots=True)
class Trace:
    """What a valid schedule does; all totals are for one training step.

    Attributes:
        moments: one per step of the schedule.
        peak_ram_bytes: the largest RAM at any moment.
        peak_step: the step at which it is first reached; -1: before the first step.
        seconds: until compute and transfers are both done.
        joules: of ops, transfers, moves and idle power together; ``compute_joules``, ``page_in_joules``,
            ``page_out_joules``, ``move_joules`` and ``idle_joules`` are its parts.
        compute_seconds, page_in_seconds, page_out_seconds, move_seconds: the engines' busy times; moves
            within RAM are compute's.
        recomputed_runs: compute steps beyond each op's first.
        read_bytes, written_bytes: from and to storage.
        storage_bytes: the most that storage held.
        moves, moved_bytes: of tensors, from one place in RAM to another.
    """

    moments: tuple[Moment, ...]
    peak_ram_bytes: int
    peak_step: int
    seconds: float
    joules: float
    compute_joules: float
    page_in_joules: float
    page_out_joules: float
    idle_joules: float
    compute_seconds: float
    page_in_seconds: float
    page_out_seconds: float
    recomputed_runs: int
    read_bytes: int
    written_bytes: int
    storage_bytes: int
    move_joules: float = 0.0
    move_seconds: float = 0.0
    moves: int = 0
    moved_bytes: int = 0

    def __repr__(self) -> str:
        takes = f"{format_bytes(self.peak_ram_bytes)} of RAM, {format_joules(self.joules)}"
        paged = f"{format_bytes(self.read_bytes)} paged in, {format_bytes(self.written_bytes)} paged out"
        more = f"{self.recomputed_runs} runs recomputed, {paged}"
        return told(self, f"of {len(self.moments)} steps: {takes}, {format_seconds(self.seconds)}; {more}")


def simulate(problem: Problem, schedule: Schedule, limits: Limits | None = None) -> Trace:
    """Judge ``schedule``, which also decides homes, alternatives and units.

    Returns:
        what it does.

    Raises:
        InvalidSchedule: a step breaks a rule; the error carries the rule's name and the step.
    """
    problem, schedule = chosen_by(problem, schedule)
    return judge(decided(problem, schedule), schedule, limits)


def judge(
    problem: DecidedProblem,
    schedule: Schedule,
    limits: Limits | None = None,
    moves: Mapping[int, Sequence[str]] | None = None,
) -> Trace:
    """`simulate` for a problem whose homes are decided.

    Args:
        problem: whose schedule it is.
        schedule: to judge.
        limits: inside which; ``None``: none.
        moves: tensors that are moved to another place in RAM, by the step before which that is done. Where
            they go is for `poet.memory.demand` to judge; here they take time and energy, after transfers of
            the same tensor.

    Raises:
        InvalidSchedule: a step breaks a rule; the error carries the rule's name and the step.
    """
    run = _Run(problem, limits or Limits(), steps=len(schedule))
    moves = moves or {}
    for index, step in enumerate(schedule):
        run.index = index
        for name in moves.get(index, ()):
            run.move(run.known_tensor(name))
        if isinstance(step, Compute):
            run.compute(run.known_op(step.op, step.alternative or step.unit))
        elif isinstance(step, Free):
            run.free(run.known_tensor(step.tensor))
        elif isinstance(step, PageOut):
            run.page_out(run.known_tensor(step.tensor, step.alternative))
        else:
            run.page_in(run.known_tensor(step.tensor))
    run.index = len(schedule)
    for name in moves.get(run.index, ()):
        run.move(run.known_tensor(name))
    return run.finish()


def content_versions(problem: Problem) -> dict[str, tuple[tuple[str, int], ...]]:
    """Per op, the (tensor, version) pairs it reads; a version counts the updates before it."""
    updates_so_far: dict[str, int] = {}
    versions = {}
    for op in problem.ops:
        reads = dict.fromkeys((*op.inputs, *op.rerun_inputs))
        versions[op.name] = tuple((name, updates_so_far.get(name, 0)) for name in reads)
        for name in op.updates:
            updates_so_far[name] = updates_so_far.get(name, 0) + 1
    return versions


def _row_versions(problem: Problem) -> dict[str, dict[str, int]]:
    """Per op that reads by row what others write rows of: the version that it reads."""
    writes_so_far = {name: 0 for op in problem.ops for name in op.stored_updates}
    versions = {}
    for op in problem.ops:
        versions[op.name] = {name: writes_so_far[name] for name in op.stored if name in writes_so_far}
        for name in op.stored_updates:
            writes_so_far[name] += 1
    return versions


class _Run:
    """The device's state while a schedule is replayed."""

    def __init__(self, problem: DecidedProblem, limits: Limits, *, steps: int) -> None:
        self.problem, self.limits, self.steps = problem, limits, steps
        self.index = -1
        self.ops = {op.name: op for op in problem.ops}
        self.tensors = {tensor.name: tensor for tensor in problem.tensors}
        self.meant = {name: dict(pairs) for name, pairs in content_versions(problem).items()}
        self.meant_rows = _row_versions(problem)
        self.effects = [op.name for op in problem.ops if op.updates or op.random or op.stored_updates]
        self.effects_done = 0
        self.ran: set[str] = set()
        produced = {name for op in problem.ops for name in op.outputs}
        sources = [tensor for tensor in problem.tensors if tensor.name not in produced]
        self.version = {tensor.name: 0 for tensor in problem.tensors}
        self.in_ram = {t.name for t in sources if t.initially is not Place.STORAGE}
        self.stored = {t.name: {0} for t in sources if t.initially in (Place.STORAGE, Place.BOTH)}
        self.ram_bytes = sum(self._size(self.tensors[name]) for name in self.in_ram)
        self.storage_bytes = sum(self.tensors[name].storage_bytes for name in self.stored)
        self.storage_peak_bytes = self.storage_bytes
        self.moments: list[Moment] = []
        self.peak_ram_bytes, self.peak_step = self.ram_bytes, -1
        self.compute_clock = self.transfer_clock = 0.0
        self.page_in_ends: dict[str, float] = {}  # of the last transfer of each tensor
        self.page_out_ends: dict[str, float] = {}
        self.compute_costs: list[tuple[float, float]] = []
        self.page_in_costs: list[tuple[float, float]] = []
        self.page_out_costs: list[tuple[float, float]] = []
        self.move_costs: list[tuple[float, float]] = []
        self.recomputed_runs = self.read_bytes = self.written_bytes = self.moved_bytes = 0
        self.pinned = pinned(problem, limits)
        self.first_reads = Counter(name for op in problem.ops for name in dict.fromkeys(op.inputs))
        self.used = self.in_ram & self.pinned.dropped  # in RAM, and used since they came there
        self.idle: set[str] = set()  # and then left unused by a first run
        self.begun = produced | self.in_ram  # from here on what is pinned to be kept is held
        self._check_ram(self.ram_bytes, "what begins in RAM")

    # --- the four steps ---

    def compute(self, op: ProblemOp) -> None:
        again = op.name in self.ran
        if again:
            self._check_recompute(op)
        elif op.updates or op.random or op.stored_updates:
            self._check_effect_order(op)
        needed = op.rerun_inputs if again else op.inputs
        for name in needed:
            if name not in self.in_ram:
                raise self._invalid("input", f"op {op.name} reads {name}, which is not in RAM")
            if self.version[name] != self.meant[op.name][name]:
                when = "after" if self.version[name] > self.meant[op.name][name] else "before"
                raise self._invalid("stale", f"op {op.name} reads {name} {when} it was updated")
            if name in self.idle:
                raise self._invalid("pin", f"{name} was held while idle until op {op.name}, against its pin")
        for name in op.stored:
            self._check_stored(op, self.tensors[name])
        new_bytes = sum(self._size(self.tensors[name]) for name in op.outputs)
        workspace_bytes = self.problem.aligned_bytes(op.workspace_bytes)
        overwritten = op.outputs if again else op.updates
        waits = [self.page_in_ends.get(name, 0.0) for name in (*needed, *overwritten)]
        waits += [self.page_out_ends.get(name, 0.0) for name in overwritten]
        waits += [self.transfer_clock] if op.stored else []
        start = max([self.compute_clock, *waits])
        self.compute_clock = start + op.seconds
        if op.stored:
            self.transfer_clock = self.compute_clock
            self.read_bytes += op.stored_read_bytes
        self._write_rows(op)
        held = self.ram_bytes + new_bytes + workspace_bytes
        self._record(held, f"op {op.name}", start, self.compute_clock)
        for name in op.outputs:
            if name not in self.in_ram:
                self.in_ram.add(name)
                self.ram_bytes += self._size(self.tensors[name])
        self._note_use(op, needed, first=not again)
        if not again:
            self.ran.add(op.name)
            for name in op.updates:
                self.version[name] += 1
        self.recomputed_runs += again
        self.compute_costs.append((op.seconds, op.joules))

    def free(self, tensor: Tensor) -> None:
        if tensor.name not in self.in_ram:
            raise self._invalid("free", f"{tensor.name} is freed but not in RAM")
        if tensor.name in self.pinned.kept & self.begun and self._still_read(tensor):
            raise self._invalid("pin", f"{tensor.name} is freed before its last use, against its pin")
        self.used.discard(tensor.name)
        self.idle.discard(tensor.name)
        start = self.compute_clock
        page_in_end = self.page_in_ends.get(tensor.name, 0.0)
        page_out_end = self.page_out_ends.get(tensor.name, 0.0)
        self.compute_clock = max(start, page_in_end, page_out_end)
        self.moments.append(Moment(self.ram_bytes, start, self.compute_clock))
        self.in_ram.remove(tensor.name)
        self.ram_bytes -= self._size(tensor)

    def page_out(self, tensor: Tensor) -> None:
        cost, name = tensor.page_out, tensor.name
        if cost is None or not (self.limits.paging or self._must_move(tensor)):
            raise self._invalid("page_out", f"{name} may not be written to storage")
        if name in self.pinned.unmoved:
            raise self._invalid("pin", f"{name} is written to storage, against its pin")
        if name not in self.in_ram:
            raise self._invalid("page_out", f"{name} is paged out but not in RAM")
        contents = self.stored.setdefault(name, set())
        if self.version[name] in contents:
            raise self._invalid("page_out", f"{name} is paged out a second time")
        contents.add(self.version[name])
        stored_bytes = tensor.storage_bytes
        self.storage_bytes += stored_bytes
        self.storage_peak_bytes = max(self.storage_peak_bytes, self.storage_bytes)
        self.written_bytes += stored_bytes
        self._check_storage(name)
        self.page_out_ends[name] = self._transfer(name, cost)
        self.page_out_costs.append((cost.seconds, cost.joules))

    def page_in(self, tensor: Tensor) -> None:
        cost, name = tensor.page_in, tensor.name
        if cost is None or not (self.limits.paging or self._must_move(tensor)):
            raise self._invalid("page_in", f"{name} may not be read from storage")
        if name in self.pinned.unmoved:
            raise self._invalid("pin", f"{name} is read from storage, against its pin")
        if name in self.in_ram:
            raise self._invalid("page_in", f"{name} is paged in but in RAM already")
        if not self.stored.get(name):
            raise self._invalid("page_in", f"{name} is paged in but was never stored")
        if self.version[name] not in self.stored[name]:
            raise self._invalid("stale", f"{name} was updated after it was stored")
        self.in_ram.add(name)
        self.ram_bytes += self._size(tensor)
        self.read_bytes += tensor.storage_bytes
        self.page_in_ends[name] = self._transfer(name, cost)
        self.page_in_costs.append((cost.seconds, cost.joules))

    def move(self, tensor: Tensor) -> None:
        cost, name = tensor.move, tensor.name
        if cost is None:
            raise self._invalid("move", f"{name} must stay at its place in RAM")
        if name not in self.in_ram:
            raise self._invalid("move", f"{name} is moved but not in RAM")
        ends = self.page_in_ends.get(name, 0.0), self.page_out_ends.get(name, 0.0)
        self.compute_clock = max(self.compute_clock, *ends) + cost.seconds
        self.moved_bytes += tensor.bytes
        self.move_costs.append((cost.seconds, cost.joules))

    # --- the end of the step ---

    def finish(self) -> Trace:
        for op in self.problem.ops:
            if op.name not in self.ran:
                raise self._invalid("missing", f"op {op.name} never runs")
        for tensor in self.problem.tensors:
            self._check_final(tensor)
        seconds = max(self.compute_clock, self.transfer_clock)
        deadline = self.limits.deadline_seconds
        if deadline is not None and seconds > deadline * (1 + 1e-9):
            took, allowed = (format_seconds(each, exact=True) for each in (seconds, deadline))
            raise self._invalid("deadline", f"the step lasts {took}, the deadline is {allowed}")
        compute_seconds, compute_joules = _total(self.compute_costs)
        page_in_seconds, page_in_joules = _total(self.page_in_costs)
        page_out_seconds, page_out_joules = _total(self.page_out_costs)
        move_seconds, move_joules = _total(self.move_costs)
        idle_joules = self.problem.idle_watts * seconds
        joules = math.fsum((compute_joules, page_in_joules, page_out_joules, move_joules, idle_joules))
        joules_budget = self.limits.joules_budget
        if joules_budget is not None and joules > joules_budget * (1 + 1e-9):
            took, allowed = (format_joules(each, exact=True) for each in (joules, joules_budget))
            raise self._invalid("energy", f"the step takes {took}, the budget is {allowed}")
        return Trace(
            moments=tuple(self.moments),
            peak_ram_bytes=self.peak_ram_bytes,
            peak_step=self.peak_step,
            seconds=seconds,
            joules=joules,
            compute_joules=compute_joules,
            page_in_joules=page_in_joules,
            page_out_joules=page_out_joules,
            idle_joules=idle_joules,
            compute_seconds=compute_seconds,
            page_in_seconds=page_in_seconds,
            page_out_seconds=page_out_seconds,
            recomputed_runs=self.recomputed_runs,
            read_bytes=self.read_bytes,
            written_bytes=self.written_bytes,
            storage_bytes=self.storage_peak_bytes,
            move_joules=move_joules,
            move_seconds=move_seconds,
            moves=len(self.move_costs),
            moved_bytes=self.moved_bytes,
        )

    # --- rules and helpers ---

    def known_op(self, name: str, alternative: str | None) -> ProblemOp:
        if name not in self.ops:
            raise self._invalid("unknown", f"there is no op {name!r}")
        if alternative is not None:
            raise self._invalid("alternative", f"op {name} has no alternative {alternative!r}")
        return self.ops[name]

    def known_tensor(self, name: str, alternative: str | None = None) -> Tensor:
        if name not in self.tensors:
            raise self._invalid("unknown", f"there is no tensor {name!r}")
        if alternative is not None:
            raise self._invalid("alternative", f"pages of {name} have no alternative {alternative!r}")
        return self.tensors[name]

    def _check_recompute(self, op: ProblemOp) -> None:
        if not op.recomputable or not self.limits.recompute:
            raise self._invalid("recompute", f"op {op.name} may not run again")
        for name in op.outputs:
            if self.version[name] > 0:
                raise self._invalid("recompute", f"op {op.name} would undo the update of {name}")

    def _check_stored(self, op: ProblemOp, tensor: Tensor) -> None:
        name = tensor.name
        if tensor.page_in is None or not (self.limits.paging or self._must_move(tensor)):
            raise self._invalid("stored", f"op {op.name} reads from {name} in storage, which it may not")
        if name in self.pinned.unmoved:
            raise self._invalid("pin", f"op {op.name} reads from {name} in storage, against its pin")
        if self.version[name] != self.meant_rows[op.name].get(name, self.version[name]):
            when = "after" if self.version[name] > self.meant_rows[op.name][name] else "before"
            raise self._invalid("stale", f"op {op.name} reads rows of {name} {when} some were written")
        if self.version[name] not in self.stored.get(name, ()):
            raise self._invalid("stored", f"op {op.name} reads from {name}, which is not in storage")

    def _write_rows(self, op: ProblemOp) -> None:
        """The content of what ``op`` writes rows of in storage is a new one, in the place of the old."""
        for name in op.stored_updates:
            self.version[name] += 1
            self.stored[name] = {self.version[name]}
        self.written_bytes += op.stored_written_bytes
        if op.stored_updates:
            self._check_storage(f"rows of {op.stored_updates[0]}")

    def _check_effect_order(self, op: ProblemOp) -> None:
        expected = self.effects[self.effects_done]
        if op.name != expected:
            raise self._invalid("order", f"op {op.name} has an effect and runs before {expected}")
        self.effects_done += 1

    def _check_final(self, tensor: Tensor) -> None:
        name, place = tensor.name, tensor.finally_
        if place is Place.RAM and name not in self.in_ram:
            raise self._invalid("final", f"{name} must end in RAM and is not there")
        if place is Place.RAM and name in self.idle:
            raise self._invalid("pin", f"{name} was held while idle to the end, against its pin")
        if place is Place.STORAGE and self.version[name] not in self.stored.get(name, ()):
            raise self._invalid("final", f"{name} must end in storage and is not there")

    def _note_use(self, op: ProblemOp, needed: Iterable[str], *, first: bool) -> None:
        """What pins require of each run: who was used by it, and who was left idle."""
        touched = {*needed, *op.outputs}
        self.idle -= touched
        if first:
            self.first_reads.subtract(dict.fromkeys(op.inputs, 1))
            self.begun.update(op.inputs)
            self.idle |= self.used - touched
        self.used |= touched & self.pinned.dropped

    def _still_read(self, tensor: Tensor) -> bool:
        return self.first_reads[tensor.name] > 0 or tensor.finally_ is Place.RAM

    def _check_storage(self, name: str) -> None:
        capacity, budget = self.problem.storage_capacity_bytes, self.limits.written_budget_bytes
        if capacity is not None and self.storage_bytes > capacity:
            raise self._invalid("storage", f"no room in storage for {name}")
        if budget is not None and self.written_bytes > budget:
            raise self._invalid("storage", f"writing {name} exceeds the step's write budget")

    def _check_ram(self, held_bytes: int, what: str) -> None:
        budget = self.limits.ram_budget_bytes
        if budget is not None and held_bytes > budget:
            held, allowed = format_bytes(held_bytes), format_bytes(budget)
            raise self._invalid(
                "ram", f"{what} takes {held} ({held_bytes} B) of RAM; the budget is {allowed} ({budget} B)"
            )

    def _must_move(self, tensor: Tensor) -> bool:
        return Place.STORAGE in (tensor.initially, tensor.finally_)

    def _transfer(self, name: str, cost: Transfer) -> float:
        start = max(self.compute_clock, self.transfer_clock)
        self.transfer_clock = start + cost.seconds
        if not self.problem.background_storage:
            self.compute_clock = self.transfer_clock
        self._record(self.ram_bytes, f"the transfer of {name}", start, self.transfer_clock)
        return self.transfer_clock

    def _record(self, held_bytes: int, what: str, start: float, end: float) -> None:
        self.moments.append(Moment(held_bytes, start, end))
        self._check_ram(held_bytes, what)
        if held_bytes > self.peak_ram_bytes:
            self.peak_ram_bytes, self.peak_step = held_bytes, self.index

    def _size(self, tensor: Tensor) -> int:
        return self.problem.aligned_bytes(tensor.bytes)

    def _invalid(self, rule: str, message: str) -> InvalidSchedule:
        if self.index < 0:
            place = "at the start"
        elif self.index < self.steps:
            place = f"step {self.index}"
        else:
            place = "at the end"
        return InvalidSchedule(f"{place}: {message}", rule=rule, step=self.index)


def _total(costs: Iterable[tuple[float, float]]) -> tuple[float, float]:
    pairs = tuple(costs)
    return math.fsum(seconds for seconds, _ in pairs), math.fsum(joules for _, joules in pairs)
