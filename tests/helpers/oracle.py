"""Exhaustive search, for problems of up to about eight ops: what every other way is tested against.

It tries everything the judge allows, with first runs in the listed order: recompute any op at any
time, page anything out and in at any time. The search is Dijkstra's over states (first runs done,
tensors in RAM, contents stored); where a deadline, storage or the clock matters, a state keeps
every label that no other label beats in all respects. Two facts shorten it, and nothing else does:
freeing costs nothing, so it is put off until room is needed or a pin asks, and then no set of
tensors is freed if a part of it is enough; a recomputation whose outputs are all there changes
nothing; and nobody misses a tensor that neither an op to come, nor the end, nor any recomputation
towards them reads.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from poet.problem import Limits, Place, Problem, Tensor, Transfer
from poet.problem.homes import decide, undecided
from poet.problem.pins import pinned
from poet.problem.schedule import Compute, Free, PageIn, PageOut, Schedule, Step
from poet.problem.simulator import simulate


def least_joules(problem: Problem, limits: Limits) -> Schedule | None:
    """A schedule of least energy, first runs in the listed order; ``None``: none is within ``limits``."""
    cheapest: tuple[float, Schedule] | None = None
    choices = undecided(problem)
    for chosen in itertools.product((False, True), repeat=len(choices)):
        at_home = decide(problem, [name for name, stored in zip(choices, chosen, strict=True) if stored])
        schedule = _Search(at_home, limits).best()
        if schedule is not None:
            joules = simulate(at_home, schedule).joules
            cheapest = min(cheapest or (math.inf, schedule), (joules, schedule), key=lambda pair: pair[0])
    return None if cheapest is None else cheapest[1]


def least_ram_bytes(problem: Problem, limits: Limits) -> int | None:
    """The smallest RAM budget in which ``limits`` can be met; ``None``: there is none at all."""
    most = _Search(decide(problem, ()), limits).most_bytes
    low, high = 0, most
    while low <= high:
        middle = (low + high) // 2
        within = dataclasses.replace(limits, ram_budget_bytes=middle)
        if least_joules(problem, within) is None:
            low = middle + 1
        else:
            high = middle - 1
    return low if low <= most else None


@dataclass(frozen=True, slots=True)
class _State:
    """``done`` first runs; sets of tensors as bits, contents being current.

    ``used`` and ``idle`` are of those pinned not to be held while idle: in RAM and used since they
    came there, and then left alone by a first run.
    """

    done: int
    ram: int
    stored: int
    used: int = 0
    idle: int = 0


@dataclass(frozen=True, slots=True)
class _Clock:
    """When each engine is free, and the transfers still under way, as (tensor bit, end) pairs."""

    compute: float = 0.0
    transfer: float = 0.0
    reads: tuple[tuple[int, float], ...] = ()
    writes: tuple[tuple[int, float], ...] = ()

    def beats(self, other: _Clock) -> bool:
        """No later than ``other`` in any respect."""
        return (
            self.compute <= other.compute
            and self.transfer <= other.transfer
            and _no_later(self.reads, dict(other.reads), other.compute)
            and _no_later(self.writes, dict(other.writes), other.compute)
        )

    def waited(self, reads: int, writes: int) -> float:
        """When compute may go on that waits for these tensors' reads and writes."""
        ends = [end for bit, end in self.reads if bit & reads]
        ends += [end for bit, end in self.writes if bit & writes]
        return max([self.compute, *ends])


def _no_later(ends: tuple[tuple[int, float], ...], others: dict[int, float], otherwise: float) -> bool:
    return all(end <= max(others.get(bit, 0.0), otherwise) for bit, end in ends)


@dataclass(frozen=True, slots=True)
class _Label:
    """A way to reach a state."""

    state: _State
    joules: float
    clock: _Clock
    written_bytes: int
    steps: tuple[Step, ...]  # the last ones
    parent: _Label | None


class _Search:
    def __init__(self, problem: Problem, limits: Limits) -> None:
        self.problem, self.limits = problem, limits
        self.budget = math.inf if limits.ram_budget_bytes is None else limits.ram_budget_bytes
        self.deadline = math.inf if limits.deadline_seconds is None else limits.deadline_seconds * (1 + 1e-9)
        names = [tensor.name for tensor in problem.tensors]
        self.bit = {name: 1 << index for index, name in enumerate(names)}
        self.sizes = [problem.aligned_bytes(tensor.bytes) for tensor in problem.tensors]
        self.new_bytes = [
            sum(problem.aligned_bytes(self._tensor(name).bytes) for name in op.outputs)
            + problem.aligned_bytes(op.workspace_bytes)
            for op in problem.ops
        ]
        self.most_bytes = sum(self.sizes) + max(self.new_bytes, default=0)
        self.ahead_joules = [
            math.fsum(op.joules for op in problem.ops[i:]) for i in range(len(problem.ops) + 1)
        ]
        self.ahead_seconds = [
            math.fsum(op.seconds for op in problem.ops[i:]) for i in range(len(problem.ops) + 1)
        ]
        self.first_inputs = [self._mask(op.inputs) for op in problem.ops]
        self.rerun_inputs = [self._mask(op.rerun_inputs) for op in problem.ops]
        self.outputs = [self._mask(op.outputs) for op in problem.ops]
        self.updates = [self._mask(op.updates) for op in problem.ops]
        self.updated_later = [
            self._mask(name for op in problem.ops[done:] for name in op.updates)
            for done in range(len(problem.ops) + 1)
        ]
        self.final_ram = self._mask(t.name for t in problem.tensors if t.finally_ is Place.RAM)
        self.final_stored = self._mask(t.name for t in problem.tensors if t.finally_ is Place.STORAGE)
        self.rerunnable = [self._rerunnable(done) for done in range(len(problem.ops) + 1)]
        self.useful = [self._useful(done) for done in range(len(problem.ops) + 1)]
        self.time_matters = limits.deadline_seconds is not None or (
            problem.background_storage and problem.idle_watts > 0.0
        )
        pins = pinned(problem, limits)
        self.dropped, self.unmoved = self._mask(pins.dropped), self._mask(pins.unmoved)
        self.held = [self._held(pins.kept, done) for done in range(len(problem.ops) + 1)]
        self.room = self._storage_room()
        self.subsets: dict[tuple[int, int], tuple[int, ...]] = {}

    def best(self) -> Schedule | None:
        """The steps of the cheapest label that reaches the end."""
        start = self._start()
        if self._bytes(start.state.ram) > self.budget:
            return None
        order = itertools.count()
        waiting = [(self._rank(start), next(order), start)]
        settled: dict[_State, list[_Label]] = {}
        while waiting:
            _, _, label = heapq.heappop(waiting)
            known = settled.setdefault(label.state, [])
            if any(self._beats(other, label) for other in known):
                continue
            known.append(label)
            if self._is_end(label.state):
                return _steps_to(label)
            for following in self._following(label):
                if self._least_seconds(following) <= self.deadline:
                    heapq.heappush(waiting, (self._rank(following), next(order), following))
        return None

    # --- labels ---

    def _start(self) -> _Label:
        produced = {name for op in self.problem.ops for name in op.outputs}
        sources = [tensor for tensor in self.problem.tensors if tensor.name not in produced]
        ram = self._mask(t.name for t in sources if t.initially is not Place.STORAGE)
        stored = self._mask(t.name for t in sources if t.initially in (Place.STORAGE, Place.BOTH))
        return _Label(_State(0, ram, stored, ram & self.dropped), 0.0, _Clock(), 0, (), None)

    def _rank(self, label: _Label) -> float:
        """Joules so far, with first runs to come counted already: they are the same on every way."""
        joules = label.joules + self.ahead_joules[label.state.done] + self._owed_joules(label.state)
        return joules + self.problem.idle_watts * self._least_seconds(label)

    def _owed_joules(self, state: _State) -> float:
        """Of page-outs that must come because the end asks for them."""
        missing = self.final_stored & ~(state.stored & ~self.updated_later[state.done])
        if not missing:
            return 0.0
        outs = [t.page_out for t in self.problem.tensors if self.bit[t.name] & missing]
        return math.fsum(cost.joules for cost in outs if cost is not None)

    def _least_seconds(self, label: _Label) -> float:
        compute = label.clock.compute + self.ahead_seconds[label.state.done]
        return max(compute, label.clock.transfer)

    def _beats(self, known: _Label, label: _Label) -> bool:
        if self.time_matters and not (known.joules <= label.joules and known.clock.beats(label.clock)):
            return False
        return math.isinf(self.room) or known.written_bytes <= label.written_bytes

    def _is_end(self, state: _State) -> bool:
        return (
            state.done == len(self.problem.ops)
            and not state.idle & self.final_ram
            and state.ram & self.final_ram == self.final_ram
            and state.stored & self.final_stored == self.final_stored
        )

    def _following(self, label: _Label) -> Iterator[_Label]:
        state = label.state
        if state.done < len(self.problem.ops):
            yield from self._compute(label, state.done, again=False)
        useful = self.useful[state.done]
        for op in self.rerunnable[state.done]:
            if self.outputs[op] & ~state.ram & useful:
                yield from self._compute(label, op, again=True)
        for index, tensor in enumerate(self.problem.tensors):
            bit = 1 << index
            if (state.used | state.idle) & bit:
                yield self._let_go(label, bit)
            movable = self.limits.paging or Place.STORAGE in (tensor.initially, tensor.finally_)
            movable = movable and not bit & self.unmoved
            if not (movable and bit & useful):
                continue
            if state.ram & bit and not state.stored & bit and tensor.page_out is not None:
                size = tensor.storage_bytes
                if label.written_bytes + size <= self.room:
                    yield self._page_out(label, bit, tensor.page_out, size)
            if state.stored & bit and not state.ram & bit and tensor.page_in is not None:
                yield from self._page_in(label, bit, tensor.page_in)

    # --- the steps ---

    def _compute(self, label: _Label, op: int, *, again: bool) -> Iterator[_Label]:
        state, what = label.state, self.problem.ops[op]
        needed = self.rerun_inputs[op] if again else self.first_inputs[op]
        if needed & ~state.ram or needed & state.idle:
            return
        touched = needed | self.outputs[op]
        overwritten = self.outputs[op] if again else self.updates[op]
        stored = state.stored if again else state.stored & ~self.updates[op]
        candidates = state.ram & ~needed & ~self.held[state.done]
        for freed in self._frees(candidates, self._bytes(state.ram) + self.new_bytes[op]):
            clock = self._freed(label.clock, freed)
            end = clock.waited(needed | overwritten, overwritten) + what.seconds
            done, ram = state.done + (not again), state.ram & ~freed | self.outputs[op]
            useless = 0 if self.problem.background_storage else ram & ~self.useful[done]
            ram &= ~useless
            idle = state.idle & ~touched | (0 if again else state.used & ~touched)
            used = (state.used | touched) & self.dropped
            after = _State(done, ram, stored & self.useful[done], used & ram, idle & ram)
            steps = (*self._free_steps(freed), Compute(what.name), *self._free_steps(useless))
            clock = self._at(_Clock(end, clock.transfer, clock.reads, clock.writes))
            yield _Label(after, label.joules + what.joules, clock, label.written_bytes, steps, label)

    def _page_out(self, label: _Label, bit: int, cost: Transfer, size: int) -> _Label:
        state = label.state
        clock = self._transferred(label.clock, cost.seconds, writes=bit)
        step = PageOut(self._name(bit))
        after = replace(state, stored=state.stored | bit)
        return _Label(after, label.joules + cost.joules, clock, label.written_bytes + size, (step,), label)

    def _page_in(self, label: _Label, bit: int, cost: Transfer) -> Iterator[_Label]:
        state = label.state
        for freed in self._frees(state.ram & ~self.held[state.done], self._bytes(state.ram | bit)):
            clock = self._transferred(self._freed(label.clock, freed), cost.seconds, reads=bit)
            ram = state.ram & ~freed
            after = _State(state.done, ram | bit, state.stored, state.used & ram, state.idle & ram)
            steps = (*self._free_steps(freed), PageIn(self._name(bit)))
            yield _Label(after, label.joules + cost.joules, clock, label.written_bytes, steps, label)

    def _let_go(self, label: _Label, bit: int) -> _Label:
        """Free a tensor that is, or would next be, held while idle, so that it may come back in time."""
        state = label.state
        after = _State(state.done, state.ram & ~bit, state.stored, state.used & ~bit, state.idle & ~bit)
        clock, steps = self._freed(label.clock, bit), self._free_steps(bit)
        return _Label(after, label.joules, clock, label.written_bytes, steps, label)

    # --- time ---

    def _freed(self, clock: _Clock, freed: int) -> _Clock:
        return self._at(_Clock(clock.waited(freed, freed), clock.transfer, clock.reads, clock.writes))

    def _transferred(self, clock: _Clock, seconds: float, *, reads: int = 0, writes: int = 0) -> _Clock:
        end = max(clock.compute, clock.transfer) + seconds
        if not self.problem.background_storage:
            return _Clock(end, end)
        read = tuple(pair for pair in clock.reads if pair[0] != reads) + (((reads, end),) if reads else ())
        write = tuple(pair for pair in clock.writes if pair[0] != writes) + (
            ((writes, end),) if writes else ()
        )
        return self._at(_Clock(clock.compute, end, read, write))

    @staticmethod
    def _at(clock: _Clock) -> _Clock:
        """Without the transfers that are over."""
        reads = tuple(pair for pair in clock.reads if pair[1] > clock.compute)
        writes = tuple(pair for pair in clock.writes if pair[1] > clock.compute)
        return _Clock(clock.compute, clock.transfer, reads, writes)

    # --- memory ---

    def _frees(self, candidates: int, held_bytes: int) -> tuple[int, ...]:
        """The sets out of ``candidates`` that bring ``held_bytes`` into the budget and have no spare part."""
        if held_bytes <= self.budget:
            return (0,)
        excess = int(held_bytes - self.budget)
        key = (candidates, excess)
        if key not in self.subsets:
            indices = [i for i in range(len(self.sizes)) if candidates >> i & 1 and self.sizes[i]]
            self.subsets[key] = tuple(
                sum(1 << index for index in chosen)
                for count in range(1, len(indices) + 1)
                for chosen in itertools.combinations(indices, count)
                if 0 <= sum(self.sizes[i] for i in chosen) - excess < min(self.sizes[i] for i in chosen)
            )
        return self.subsets[key]

    def _bytes(self, mask: int) -> int:
        return sum(size for index, size in enumerate(self.sizes) if mask >> index & 1)

    def _free_steps(self, mask: int) -> tuple[Step, ...]:
        if not mask:
            return ()
        return tuple(Free(tensor.name) for tensor in self.problem.tensors if self.bit[tensor.name] & mask)

    # --- the problem by bits ---

    def _mask(self, names: Iterable[str]) -> int:
        mask = 0
        for name in names:
            mask |= self.bit[name]
        return mask

    def _name(self, bit: int) -> str:
        return self.problem.tensors[bit.bit_length() - 1].name

    def _tensor(self, name: str) -> Tensor:
        return self.problem.tensors[self.bit[name].bit_length() - 1]

    def _rerunnable(self, done: int) -> tuple[int, ...]:
        """The ops that may run again after ``done`` first runs: nothing they read or write was updated."""
        if not self.limits.recompute:
            return ()
        ops = self.problem.ops
        allowed = []
        for index in range(done):
            updated_since = {name for op in ops[index:done] for name in op.updates}
            touched = {*ops[index].rerun_inputs, *ops[index].outputs}
            if ops[index].recomputable and not touched & updated_since:
                allowed.append(index)
        return tuple(allowed)

    def _useful(self, done: int) -> int:
        """The tensors that may matter after ``done`` first runs."""
        useful = self.final_ram | self.final_stored
        for op in range(len(self.problem.ops) - 1, -1, -1):
            if op >= done:
                useful |= self.first_inputs[op]
            if (op in self.rerunnable[done] or op >= done) and self.outputs[op] & useful:
                useful |= self.rerun_inputs[op]
        return useful

    def _held(self, kept: Collection[str], done: int) -> int:
        """The tensors pinned to be kept that must not be freed after ``done`` first runs."""
        produced = {name for op in self.problem.ops for name in op.outputs}
        held = []
        for tensor in self.problem.tensors:
            if tensor.name in kept:
                read = [index for index, op in enumerate(self.problem.ops) if tensor.name in op.inputs]
                begun = tensor.initially is not Place.STORAGE or tensor.name in produced
                begun = begun or any(index < done for index in read)
                ahead = any(index >= done for index in read) or tensor.finally_ is Place.RAM
                held += [tensor.name] if begun and ahead else []
        return self._mask(held)

    def _storage_room(self) -> float:
        """Bytes that may be written: every content written stays until the end of the step."""
        room = math.inf
        if self.problem.storage_capacity_bytes is not None:
            begun = [t for t in self.problem.tensors if t.initially in (Place.STORAGE, Place.BOTH)]
            sizes = [t.storage_bytes for t in begun]
            room = self.problem.storage_capacity_bytes - sum(sizes)
        if self.limits.written_budget_bytes is not None:
            room = min(room, self.limits.written_budget_bytes - self.problem.row_written_bytes)
        return room


def _steps_to(label: _Label | None) -> Schedule:
    steps: list[Step] = []
    while label is not None:
        steps[:0] = label.steps
        label = label.parent
    return tuple(steps)
