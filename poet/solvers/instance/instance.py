"""A problem as integers: tensor versions, tasks, slots and events. Pure bookkeeping, no engine.

A *tensor version* (`Content`) is what a tensor holds between two in-place updates: an update ends one and
begins the next in the same bytes. A *slot* is a moment at which an op may run: the first run of op t, or an
optional rerun in the stage before it. The *events* of a version are the slots that make or use it; between
two of them lies a *gap*, through which it is kept in RAM or not. Idle power is folded into every cost.
"""

from __future__ import annotations

import bisect
import enum
from dataclasses import dataclass

import numpy as np

from poet.problem import Limits, Place, Problem, ProblemOp, Tensor, Transfer
from poet.problem.homes import decide
from poet.problem.pins import pinned
from poet.problem.simulator import content_versions
from poet.problem.units import on_units


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one run or one transfer.

    Attributes:
        seconds: that it lasts.
        joules: with idle power included; what is minimised.
        metered_joules: what counts against an energy budget, where something else is minimised.
    """

    seconds: float
    joules: float
    metered_joules: float = 0.0


@dataclass(frozen=True, slots=True)
class Content:
    """A tensor version.

    Attributes:
        number: index into `Instance.contents`.
        tensor, version: of which tensor, and which of its versions in order.
        bytes: in RAM, aligned; ``stored_bytes``: in storage.
        birth: op whose first run makes it; -1: there from the start.
        death: op that overwrites it; the number of ops: never.
        producer: op whose rerun may make it again; ``None``: nothing can.
        starts_in_ram, starts_stored, ends_in_ram, ends_stored: the step's two ends.
        page_in, page_out: ``None`` where not allowed.
        home: where the plan chooses whether the tensor is in RAM or storage between steps: the number of
            its first content; ``comes_home``: this is the last one.
        kept, dropped: pinned to stay in RAM while it is needed, or not to while it is idle.
    """

    number: int
    tensor: str
    version: int
    bytes: int
    stored_bytes: int
    birth: int
    death: int
    producer: int | None
    starts_in_ram: bool
    starts_stored: bool
    ends_in_ram: bool
    ends_stored: bool
    page_in: Cost | None
    page_out: Cost | None
    home: int | None = None
    comes_home: bool = False
    kept: bool = False
    dropped: bool = False

    @property
    def can_be_paged(self) -> bool:
        """Out of RAM and back from storage."""
        return self.page_in is not None and (self.starts_stored or self.page_out is not None)


@dataclass(frozen=True, slots=True)
class Task:
    """One op by numbers.

    Attributes:
        reads, rerun_reads: contents that the first run, and a rerun, need in RAM.
        outputs: contents that every run makes; ``updated``: those that the first run makes in place.
        last_rerun_stage: the last op before which it may run again; -1: never.
    """

    number: int
    name: str
    reads: tuple[int, ...]
    rerun_reads: tuple[int, ...]
    outputs: tuple[int, ...]
    updated: tuple[int, ...]
    workspace_bytes: int
    cost: Cost
    last_rerun_stage: int


@dataclass(frozen=True, slots=True)
class Instance:
    """A problem and its limits as tasks and contents.

    ``serial``: transfers block compute, or are planned as if they did. ``metered_joules_allowed``: above
    running every op once; ``None``: any.
    """

    problem: Problem
    limits: Limits
    serial: bool
    tasks: tuple[Task, ...]
    contents: tuple[Content, ...]
    metered_joules_allowed: float | None = None

    @property
    def written_room_bytes(self) -> int | None:
        """What page-outs may write in all; ``None``: any."""
        budget_bytes = self.limits.written_budget_bytes
        return None if budget_bytes is None else budget_bytes - self.problem.row_written_bytes


@dataclass(frozen=True, slots=True)
class Metered:
    """An energy budget where something else than energy is minimised.

    Attributes:
        problem: whose joules count; but for them it is the problem that is solved.
        joules_budget: what one step may take.
    """

    problem: Problem
    joules_budget: float


def instance_of(
    problem: Problem,
    limits: Limits,
    *,
    serial: bool | None = None,
    metered: Metered | None = None,
) -> Instance:
    """``problem`` inside ``limits``, numbered; ``serial`` is as the problem's storage unless given.

    Where transfers run beside compute their idle power may be hidden, so they are charged none. Where nothing
    may be moved, nothing runs beside compute.
    """
    meter = problem if metered is None else metered.problem  # whose joules are metered
    if serial is None:
        moving = any(_may_move(limits, tensor) for tensor in problem.tensors)
        serial = not (problem.background_storage and moving)
    numbers = {op.name: index for index, op in enumerate(problem.ops)}
    births: dict[str, list[int]] = {tensor.name: [-1] for tensor in problem.tensors}
    for op in problem.ops:
        for name in op.outputs:
            births[name] = [numbers[op.name]]
    producers = {name: op for op in problem.ops for name in op.outputs}
    for op in problem.ops:
        for name in dict.fromkeys(op.updates):
            births[name].append(numbers[op.name])

    def cost(transfer: Transfer | None, same: Transfer | None, tensor: Tensor) -> Cost | None:
        if transfer is None or same is None or not _may_move(limits, tensor):
            return None
        return _cost(transfer, same, *((problem.idle_watts, meter.idle_watts) if serial else (0.0, 0.0)))

    pins, starting = pinned(problem, limits), (Place.STORAGE, Place.BOTH)
    contents: list[Content] = []
    number_of: dict[tuple[str, int], int] = {}
    dropped = pins.dropped
    for tensor, same in zip(problem.tensors, meter.tensors, strict=True):
        made_at, chosen = births[tensor.name], tensor.initially is Place.EITHER
        for version, birth in enumerate(made_at):
            last = version == len(made_at) - 1
            number_of[tensor.name, version] = len(contents)
            first_run = version == 0 and tensor.name in producers
            contents.append(
                Content(
                    number=len(contents),
                    tensor=tensor.name,
                    version=version,
                    bytes=problem.aligned_bytes(tensor.bytes),
                    stored_bytes=tensor.storage_bytes,
                    birth=birth,
                    death=len(problem.ops) if last else made_at[version + 1],
                    producer=numbers[producers[tensor.name].name] if first_run else None,
                    starts_in_ram=birth == -1 and tensor.initially not in (Place.STORAGE, Place.EITHER),
                    starts_stored=birth == -1 and (tensor.initially in starting or (chosen and last)),
                    ends_in_ram=last and tensor.finally_ is Place.RAM,
                    ends_stored=last and tensor.finally_ is Place.STORAGE,
                    page_in=cost(tensor.page_in, same.page_in, tensor),
                    page_out=cost(tensor.page_out, same.page_out, tensor),
                    home=len(contents) - version if chosen else None,
                    comes_home=chosen and last,
                    kept=tensor.name in pins.kept,
                    dropped=tensor.name in dropped,
                )
            )
    tasks = _tasks(problem, meter, limits, number_of, contents)
    allowed = None if metered is None else metered.joules_budget * (1 + 1e-9) - meter.compute_joules
    return Instance(problem, limits, serial, tasks, tuple(contents), allowed)


def _cost(what: Transfer | ProblemOp, same: Transfer | ProblemOp, watts: float, meter_watts: float) -> Cost:
    """``same`` is ``what`` with the joules that are metered."""
    return Cost(what.seconds, what.joules + watts * what.seconds, same.joules + meter_watts * same.seconds)


def _may_move(limits: Limits, tensor: Tensor) -> bool:
    """To storage or from there."""
    must_move = Place.STORAGE in (tensor.initially, tensor.finally_) or tensor.initially is Place.EITHER
    return limits.paging or must_move


def _tasks(
    problem: Problem,
    meter: Problem,
    limits: Limits,
    number_of: dict[tuple[str, int], int],
    contents: list[Content],
) -> tuple[Task, ...]:
    tasks = []
    versions = content_versions(problem)
    for index, (op, same) in enumerate(zip(problem.ops, meter.ops, strict=True)):
        at = dict(versions[op.name])
        reads = tuple(number_of[name, at[name]] for name in dict.fromkeys(op.inputs))
        again = tuple(number_of[name, at[name]] for name in dict.fromkeys(op.rerun_inputs))
        outputs = tuple(number_of[name, 0] for name in op.outputs)
        last = min((contents[c].death for c in (*again, *outputs)), default=-1)
        may_rerun = bool(limits.recompute and op.recomputable and outputs)
        tasks.append(
            Task(
                number=index,
                name=op.name,
                reads=reads,
                rerun_reads=again,
                outputs=outputs,
                updated=tuple(number_of[name, at[name] + 1] for name in dict.fromkeys(op.updates)),
                workspace_bytes=problem.aligned_bytes(op.workspace_bytes),
                cost=_cost(op, same, problem.idle_watts, meter.idle_watts),
                last_rerun_stage=last if may_rerun and last > index else -1,
            )
        )
    return tuple(tasks)


# --- slots and events ---


@dataclass(frozen=True, slots=True)
class Slot:
    """A moment at which ``task`` may run; ``None``: the start or the end of the step.

    ``stage`` is the op before whose first run, or as whose first run, the slot lies.
    """

    stage: int
    task: int | None
    mandatory: bool


class SlotKind(enum.Enum):
    """What a slot means to a content."""

    BIRTH = enum.auto()  # it appears, without a choice
    USE = enum.auto()  # it is read, or must be there at the end
    MAKE = enum.auto()  # an optional rerun makes it again


@dataclass(frozen=True, slots=True)
class Event:
    """A slot in the life of a content."""

    slot: int
    kind: SlotKind
    mandatory: bool


@dataclass(frozen=True, slots=True)
class Timeline:
    """Slots in order, and per content its events in order."""

    instance: Instance
    slots: tuple[Slot, ...]
    events: tuple[tuple[Event, ...], ...]


def timeline_of(instance: Instance, reruns: dict[int, tuple[int, ...]]) -> Timeline:
    """All slots and events where, before each stage's op, the tasks ``reruns[stage]`` may run again."""
    slots = [Slot(-1, None, True)]
    for task in instance.tasks:
        slots += [Slot(task.number, again, False) for again in reruns.get(task.number, ())]
        slots.append(Slot(task.number, task.number, True))
    end = len(instance.tasks)
    slots += [Slot(end, again, False) for again in reruns.get(end, ())]
    slots.append(Slot(end, None, True))
    events: list[list[Event]] = [[] for _ in instance.contents]
    for number, slot in enumerate(slots):
        for content, kind in _meanings(instance, slot):
            events[content].append(Event(number, kind, slot.mandatory))
    for content_ in instance.contents:  # in RAM between steps or not, as the plan chooses
        if content_.home == content_.number and events[content_.number]:
            events[content_.number].insert(0, Event(0, SlotKind.BIRTH, False))
        if content_.comes_home and events[content_.number]:
            events[content_.number].append(Event(len(slots) - 1, SlotKind.USE, False))
    return Timeline(instance, tuple(slots), tuple(_without_tail(life) for life in events))


def _meanings(instance: Instance, slot: Slot) -> list[tuple[int, SlotKind]]:
    if slot.task is None and slot.stage < 0:
        return [(c.number, SlotKind.BIRTH) for c in instance.contents if c.starts_in_ram]
    if slot.task is None:
        return [(c.number, SlotKind.USE) for c in instance.contents if c.ends_in_ram]
    task = instance.tasks[slot.task]
    if not slot.mandatory:
        return [(c, SlotKind.USE) for c in task.rerun_reads] + [(c, SlotKind.MAKE) for c in task.outputs]
    born = (*task.outputs, *task.updated)
    return [(c, SlotKind.USE) for c in task.reads] + [(c, SlotKind.BIRTH) for c in born]


def _without_tail(life: list[Event]) -> tuple[Event, ...]:
    while life and life[-1].kind is SlotKind.MAKE:
        life.pop()
    return tuple(life)


# --- tensors as a whole ---


class Facts:
    """A problem by index: ops 0 to n-1 in order, n state for the end of the step.

    Homes that are a plan's choice are in RAM, and ops on the main unit.
    """

    def __init__(self, problem: Problem) -> None:
        problem = decide(on_units(problem, {}), in_storage=())
        tensors, ops = problem.tensors, problem.ops
        number = {tensor.name: index for index, tensor in enumerate(tensors)}
        self.problem = problem
        self.op_count, self.tensor_count = len(ops), len(tensors)
        self.size = [problem.aligned_bytes(tensor.bytes) for tensor in tensors]
        self.sizes = np.array(self.size, dtype=np.float64)  # to rank by; a file may say 2**63 and more
        self.stored_size = [t.storage_bytes for t in tensors]
        self.workspace = [problem.aligned_bytes(op.workspace_bytes) for op in ops]
        self.inputs = [tuple(dict.fromkeys(number[name] for name in op.inputs)) for op in ops]
        self.rerun_inputs = [tuple(dict.fromkeys(number[name] for name in op.rerun_inputs)) for op in ops]
        self.outputs = [tuple(number[name] for name in op.outputs) for op in ops]
        self.updates = [tuple(number[name] for name in op.updates) for op in ops]
        self.producer = [-1] * len(tensors)
        self.uses: list[list[int]] = [[] for _ in tensors]  # first runs that read it, then the end
        self.update_ops: list[list[int]] = [[] for _ in tensors]
        for index in range(len(ops)):
            for read in self.inputs[index]:
                self.uses[read].append(index)
            for updated in self.updates[index]:
                self.update_ops[updated].append(index)
            for written in self.outputs[index]:
                self.producer[written] = index
        self.starts_in_ram, self.starts_stored = list[int](), list[int]()
        self.ends_in_ram, self.ends_stored = list[int](), list[int]()
        for index, tensor in enumerate(tensors):
            if self.producer[index] < 0 and tensor.initially is not Place.STORAGE:
                self.starts_in_ram.append(index)
            if tensor.initially in (Place.STORAGE, Place.BOTH):
                self.starts_stored.append(index)
            if tensor.finally_ is Place.RAM:
                self.ends_in_ram.append(index)
                self.uses[index].append(len(ops))
            elif tensor.finally_ is Place.STORAGE:
                self.ends_stored.append(index)
        self.rerun_limit = [self._rerun_limit(index) for index in range(len(ops))]
        self.rerun_need = [
            sum(self.size[t] for t in {*self.rerun_inputs[index], *self.outputs[index]})
            + self.workspace[index]
            for index in range(len(ops))
        ]

    def _rerun_limit(self, op: int) -> int:
        """The last op before whose first run ``op`` may run again; -1: it may not at all."""
        if not self.problem.ops[op].recomputable:
            return -1
        limit = self.op_count
        for tensor in self.rerun_inputs[op]:
            updates = self.update_ops[tensor]
            later = bisect.bisect_left(updates, op)
            limit = min(limit, updates[later] if later < len(updates) else limit)
        for tensor in self.outputs[op]:
            limit = min([limit, *self.update_ops[tensor][:1]])
        return limit

    def next_use(self, tensor: int, position: int) -> int | None:
        """The first op from ``position`` on that reads ``tensor``, or the end if it must be there."""
        uses = self.uses[tensor]
        index = bisect.bisect_left(uses, position)
        return uses[index] if index < len(uses) else None
