"""Label-setting with two clocks: the least joules of a small step, whose transfers may run beside compute.

Beside background storage the joules of a step depend on when things happen: idle power is drawn until compute
and storage are both done, and a transfer costs time only where something waits for it. The event model counts
the two engines' seconds, and not which page-in finds no room beside the op before its use. Here a schedule is
followed step by step, by clocks that run as the judge's do. Storage that blocks compute keeps both alike.

A *state* is a stage t (first runs done), a set R of contents in RAM and a set S of those with a copy in
storage. A *label* adds the joules spent, the clocks of compute and of storage, the ends of the transfers that
still run, and the bytes written. Transitions are the first run of op t, a rerun, a page-out, a page-in.

- A content is freed only where room is needed, and then no set if a part of it is enough. What nothing reads
  any more is freed at once, unless a transfer of it still runs: freeing it would wait.
- Label a *dominates* b of the same stage if R(a) and S(a) hold R(b) and S(b), a has written no more, and a,
  later than b by at most d seconds in each clock and end, has spent less by the idle joules of d. Whatever
  follows b can follow a, no more than d later. With a deadline d must be 0.
- Labels are gone on from in the order of what they take at least (A*; Hart, Nilsson and Raphael 1968): what
  is spent, `Followed.ahead` and idle power, from each clock on with what it still has to do.

All contents are followed, and no order of steps is left out but for what dominance and freeing late cover; so
the first label that ends a step inside the limits is the optimum among schedules that keep the order of first
runs, and where there is none, no schedule exists. A search that is interrupted tells the least that its open
labels take.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from poet.clock import Clock
from poet.homes import decide, undecided
from poet.schedule import Compute, Free, PageIn, PageOut, Schedule, Step
from poet.solvers.bounds.followed import Followed, Run, bits
from poet.solvers.instance.instance import Content, Cost, Instance, instance_of

_ANY_BYTES = 1 << 62
_ROUNDING = 1e-12  # relative


@dataclass(frozen=True, slots=True)
class TimedBound:
    """What one search found.

    Attributes:
        overhead_joules: no schedule takes less, above running every op once; at most what was asked for.
        schedule: of that overhead; ``None``: none is below what was asked for, or the search has not ended.
        labels: that were gone on from.
        ended: it did, within the labels that it was allowed.
    """

    overhead_joules: float
    schedule: Schedule | None
    labels: int
    ended: bool


def _never() -> bool:
    return False


def timed_bound(
    instance: Instance,
    *,
    below_joules: float,
    most_labels: int,
    clock: Clock,
    finished: Callable[[], bool] = _never,
) -> TimedBound | None:
    """The least overhead of a small problem; ``None`` where it is too large, pinned, or metered.

    Args:
        instance: what to bound.
        below_joules: overhead of the best plan; nothing at or above it is looked at. Infinite: there is none.
        most_labels: to go on from.
        clock: of the search, which hears of the work.
        finished: asked many times a second; whether to stop.
    """
    tuning, problem = instance.tuning.timed, instance.problem
    pinned = any(content.kept or content.dropped for content in instance.contents)
    homes = undecided(problem)
    if pinned or instance.metered_joules_allowed is not None:
        return None
    if len(instance.contents) > tuning.most_contents or len(homes) > tuning.most_homes:
        return None
    least = TimedBound(below_joules, None, 0, True)
    for chosen in itertools.product((False, True), repeat=len(homes)):
        decided = decide(problem, [name for name, stored in zip(homes, chosen, strict=True) if stored])
        at_home = instance_of(decided, instance.limits, serial=False, tuning=instance.tuning)
        search = _Timed(at_home, least.overhead_joules, most_labels - least.labels, finished)
        found = search.least()
        clock.spend(engine_seconds=tuning.label_seconds * search.count)
        better = found if found.overhead_joules < least.overhead_joules else least
        ended = least.ended and found.ended
        schedule = better.schedule if ended else None
        least = TimedBound(better.overhead_joules, schedule, least.labels + search.count, ended)
    return least


class _TooMany(Exception):
    """More labels than were allowed, or the time is over."""


@dataclass(frozen=True, slots=True)
class _Label:
    """A way to a state; ``ends``: of contents whose transfers still run, of the page-in and of the page-out.

    ``spent``: joules without idle power. ``steps``: those that led from ``parent`` here.
    """

    stage: int
    held: int
    stored: int
    spent: float
    compute: float
    transfer: float
    ends: dict[int, tuple[float, float]]
    written_bytes: int
    steps: tuple[Step, ...]
    parent: _Label | None

    def waited(self, contents: int) -> float:
        """When compute may go on that waits for all transfers of these contents."""
        return max([self.compute, *(max(self.ends[n]) for n in self.ends if contents >> n & 1)])

    def read(self, contents: int) -> float:
        """When compute may go on that waits for these contents' page-ins alone."""
        return max([self.compute, *(self.ends[n][0] for n in self.ends if contents >> n & 1)])


class _Timed(Followed):
    """The search through one instance, whose homes are decided."""

    def __init__(
        self, instance: Instance, below_joules: float, most_labels: int, finished: Callable[[], bool]
    ) -> None:
        budget = instance.limits.ram_budget_bytes
        super().__init__(instance, 0, _ANY_BYTES if budget is None else budget)
        self.below_joules, self.most_labels, self._finished = below_joules, most_labels, finished
        self.idle_watts, self.blocking = instance.problem.idle_watts, not instance.problem.background_storage
        self.seconds = [task.cost.seconds for task in instance.tasks]
        self.left_seconds = [math.fsum(self.seconds[stage:]) for stage in range(self.end + 1)]
        self.names = [task.name for task in instance.tasks]
        deadline = instance.limits.deadline_seconds
        self.hurried = deadline is not None
        self.deadline = math.inf if deadline is None else deadline * (1 + 1e-9)
        self.room_bytes = _room_bytes(instance)
        self.ends_stored = self.bits_of(c.number for c in self.followed if c.ends_stored)
        self.old = [self.bits_of(number - 1 for number in task.updated) for task in instance.tasks]
        self.next_use = [self._next_uses(stage) for stage in range(self.end + 1)]
        for stage, alive in enumerate(self.alive):
            born = self.bits_of(c.number for c in self.followed if c.ends_stored and c.birth < stage)
            self.alive[stage] = alive | born
        self.count, self._looks, self._ask = 0, 0, instance.tuning.timed.looks
        self._settled: list[dict[int, dict[int, list[_Label]]]] = [{} for _ in range(self.end + 1)]

    def _next_uses(self, stage: int) -> dict[int, int]:
        """Of contents that first runs from ``stage`` on read, the first of these."""
        uses: dict[int, int] = {}
        for later in range(self.end - 1, stage - 1, -1):
            uses.update(dict.fromkeys(bits(self.first[later].needs), later))
        return uses

    def least(self) -> TimedBound:
        """The least overhead, or what was asked for where it is not less; less where labels are too many."""
        if self.held_bytes(self.starts) > self.budget_bytes:  # what no op reads is there at the start as well
            return TimedBound(self.below_joules, None, 0, True)
        order = itertools.count()
        starts = self.starts & self.alive[0]
        stored = self.bits_of(c.number for c in self.followed if c.starts_stored)
        unread = tuple(Free(self.followed[n].tensor) for n in bits(self.starts & ~starts))
        start = _Label(0, starts, stored, self.fixed_joules, 0.0, 0.0, {}, 0, unread, None)
        heap = [(self._takes(start), next(order), start)]
        below = self.below_joules * (1 - _ROUNDING)
        takes = math.inf
        try:
            while heap:
                takes, _, label = heapq.heappop(heap)
                if takes >= below:
                    break
                if not self._settles(label):
                    continue
                if self._is_end(label):
                    return TimedBound(takes, _steps_to(label), self.count, True)
                self.count += 1
                if self.count > self.most_labels:
                    raise _TooMany
                for after in self._following(label):
                    least = self._takes(after)
                    if least < below:
                        heapq.heappush(heap, (least, next(order), after))
        except _TooMany:
            return TimedBound(min(takes, self.below_joules), None, self.count, False)
        return TimedBound(self.below_joules, None, self.count, True)

    def _is_end(self, label: _Label) -> bool:
        missing = self.ends & ~label.held | self.ends_stored & ~label.stored
        return label.stage == self.end and not missing

    def _takes(self, label: _Label) -> float:
        """Overhead that any schedule through ``label`` has at least; infinite: it misses the deadline.

        Reruns that it still needs take their seconds of compute, so `Followed.ahead` may count their idle
        power beside that of compute's other work, but not beside that of storage's.
        """
        missing = self.wanted[label.stage] & ~label.held
        later = self.left_seconds[label.stage]
        owed = self.ends_stored & ~label.stored
        read_joules, transfer_seconds, done = 0.0, self._seconds_of(owed, out=True), label.compute + later
        for number in bits(missing):
            run = self.maker.get(number)
            if run is None or run.last_stage < label.stage:
                read_joules += self.page_joules(number, label.stored)
                page_in = self._seconds_of(1 << number, out=False)
                transfer_seconds += page_in
                use = self.next_use[label.stage].get(number, self.end)
                done = max(done, max(label.compute, label.transfer) + page_in + self.left_seconds[use])
        seconds = max(done, label.transfer + transfer_seconds)
        if seconds > self.deadline:
            return math.inf
        whole = self.left_seconds[0]
        in_compute = self.ahead(label.stage, label.held, label.stored)
        in_compute += self.idle_watts * (label.compute + later - whole)
        return label.spent + max(in_compute, read_joules + self.idle_watts * (seconds - whole))

    def _seconds_of(self, contents: int, *, out: bool) -> float:
        """Of page-outs or page-ins of all of them."""
        costs = (self.followed[n].page_out if out else self.followed[n].page_in for n in bits(contents))
        return math.fsum(cost.seconds for cost in costs if cost is not None)

    def _settles(self, label: _Label) -> bool:
        """Whether no other label dominates it; it is kept then."""
        settled = self._settled[label.stage]
        same = settled.setdefault(label.held, {}).setdefault(label.stored, [])
        if any(self._dominates(other, label) for other in reversed(same)):
            return False
        for held, by_stored in settled.items():
            if label.held & ~held:
                continue
            for stored, others in by_stored.items():
                if label.stored & ~stored or others is same:
                    continue
                if any(self._dominates(other, label) for other in others):
                    return False
        same.append(label)
        return True

    def _dominates(self, one: _Label, other: _Label) -> bool:
        """Of two labels, the first of which holds and has stored at least as much; see the module."""
        if one.written_bytes > other.written_bytes and self.room_bytes < _ANY_BYTES:
            return False
        if one.spent > other.spent:
            return False
        later = max(0.0, one.compute - other.compute, one.transfer - other.transfer)
        for number, ends in one.ends.items():
            others = other.ends.get(number, (0.0, 0.0))
            for end, its in zip(ends, others, strict=True):
                later = max(later, end - max(its, other.compute))
        if later > 0.0 and self.hurried:
            return False
        return one.spent + self.idle_watts * later <= other.spent

    # --- transitions ---

    def _following(self, label: _Label) -> Iterator[_Label]:
        if label.stage < self.end:
            yield from self._after_run(label, self.first[label.stage], again=False)
        alive = self.alive[label.stage]
        for run in self.again:
            if run.task < label.stage <= run.last_stage and run.makes & alive & ~label.held:
                yield from self._after_run(label, run, again=True)
        for number in bits(alive):
            content = self.followed[number]
            if label.held >> number & 1:
                pays = content.page_in is not None or content.ends_stored
                if content.page_out is not None and pays and not label.stored >> number & 1:
                    yield from self._after_page_out(label, content, content.page_out)
            elif label.stored >> number & 1 and content.page_in is not None:
                yield from self._after_page_in(label, number, content.page_in)

    def _after_run(self, label: _Label, run: Run, *, again: bool) -> Iterator[_Label]:
        if run.needs & ~label.held:
            return
        overwritten = run.makes if again else self.old[run.task]
        stage = label.stage + (not again)
        for kept in self.left(label.held, run.needs, self.budget_bytes - run.beside_bytes, self._look):
            freed = label.held & ~kept
            start = max(label.waited(freed | overwritten), label.read(run.needs))
            end = start + self.seconds[run.task]
            ends = {n: e for n, e in label.ends.items() if max(e) > end and not freed >> n & 1}
            running = sum(1 << number for number in ends)
            there = (kept | run.makes | run.updates) & ~(0 if again else overwritten)
            held = there & (self.alive[stage] | running)
            steps = (*self._frees(freed), Compute(self.names[run.task]), *self._frees(there & ~held))
            spent = run.joules - self.idle_watts * self.seconds[run.task] if again else 0.0
            yield _Label(
                stage, held, label.stored & self.alive[stage], label.spent + spent, end, label.transfer,
                ends, label.written_bytes, steps, label,
            )  # fmt: skip

    def _after_page_out(self, label: _Label, content: Content, cost: Cost) -> Iterator[_Label]:
        number = self.number[content.number]
        written = label.written_bytes + content.stored_bytes
        if written > self.room_bytes:
            return
        end = max(label.compute, label.transfer) + cost.seconds
        ends = {**label.ends, number: (label.ends.get(number, (0.0, 0.0))[0], end)}
        yield _Label(
            label.stage, label.held, label.stored | 1 << number, label.spent + self.page_out[number],
            end if self.blocking else label.compute, end, {} if self.blocking else ends, written,
            (PageOut(content.tensor),), label,
        )  # fmt: skip

    def _after_page_in(self, label: _Label, number: int, cost: Cost) -> Iterator[_Label]:
        for kept in self.left(label.held, 0, self.budget_bytes - self.bytes[number], self._look):
            freed = label.held & ~kept
            compute = label.waited(freed)
            end = max(compute, label.transfer) + cost.seconds
            ends = {n: e for n, e in label.ends.items() if max(e) > compute and not freed >> n & 1}
            ends[number] = end, 0.0
            steps = (*self._frees(freed), PageIn(self.followed[number].tensor))
            yield _Label(
                label.stage, kept | 1 << number, label.stored, label.spent + cost.joules,
                end if self.blocking else compute, end, {} if self.blocking else ends,
                label.written_bytes, steps, label,
            )  # fmt: skip

    def _frees(self, contents: int) -> tuple[Step, ...]:
        return tuple(Free(self.followed[number].tensor) for number in bits(contents))

    def _look(self) -> None:
        """Count a look at a set of contents that may be freed; ask now and then whether to stop."""
        self._looks += 1
        if self._looks % self._ask == 0 and self._finished():
            raise _TooMany


def _room_bytes(instance: Instance) -> int:
    """That may be written: what is written stays until the end of the step."""
    capacity, room = instance.problem.storage_capacity_bytes, instance.written_room_bytes
    rooms = [_ANY_BYTES] if room is None else [room]
    if capacity is not None:
        begun = sum(content.stored_bytes for content in instance.contents if content.starts_stored)
        rooms.append(capacity - begun)
    return min(rooms)


def _steps_to(label: _Label | None) -> Schedule:
    parts: list[tuple[Step, ...]] = []
    while label is not None:
        parts.append(label.steps)
        label = label.parent
    return tuple(itertools.chain.from_iterable(reversed(parts)))
