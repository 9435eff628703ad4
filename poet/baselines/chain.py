"""A training step as a chain of stages, forward and back, and orders of runs as schedules.

The forward ops are cut wherever a single tensor crosses; each stage has the backward ops that read
what it saved. A planner for chains gives the order in which stages run; where a tensor is kept follows
from the order: it stays from a run that makes it until the last reader before the next such run.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from poet.problem.schedule import Compute, Free, PageIn, PageOut, Schedule, Step
from poet.solvers.instance.instance import Facts

MOST_STAGES = 40
"""That a step is cut into; programs over stages grow with their cube, so these take seconds."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A piece of the forward pass and the backward ops that read what it saved; ops by index.

    Attributes:
        forward, backward: its ops, in order.
        hands_on: the tensor that the next stage reads; -1 for the last.
        saved: tensors that backward reads, and the one handed on.
        joules: of running the forward ops, idle power included.
        rerunnable: whether all forward ops may run again until backward begins.
        forward_bytes: at its fullest moment forward, keeping only what it hands on; ``keeping_bytes``:
            keeping what it saves. Neither counts what enters.
        backward_bytes: gradients and workspace at its fullest moment backward.
        waiting_bytes: gradients that wait for its backward while forward ops run again.
    """

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    hands_on: int
    saved: tuple[int, ...]
    joules: float
    rerunnable: bool
    forward_bytes: int
    keeping_bytes: int
    backward_bytes: int
    waiting_bytes: int


def chain_of(facts: Facts) -> tuple[Stage, ...]:
    """The step as a chain of so many stages at most; a graph that is none becomes one of few, large ones."""
    turn = _turn(facts)
    cuts = _cuts(facts, turn)
    step = -(-len(cuts) // MOST_STAGES)
    cuts = cuts[step - 1 :: step] if step > 1 else cuts
    ends = [*(op for op, _ in cuts), turn]
    forward = [tuple(range(a + 1, b + 1)) for a, b in itertools.pairwise([-1, *ends])]
    backward = _backward(facts, turn, forward)
    waiting, working = _gradient_bytes(facts, turn)
    stages = []
    for ops, later, out in zip(forward, backward, [*(tensor for _, tensor in cuts), -1], strict=True):
        made = [tensor for op in ops for tensor in facts.outputs[op]]
        saved = tuple(t for t in made if t == out or facts.next_use(t, turn + 1) is not None)
        costs = [facts.problem.ops[op] for op in ops]
        stages.append(
            Stage(
                forward=ops,
                backward=later,
                hands_on=out,
                saved=saved,
                joules=sum(op.joules + facts.problem.idle_watts * op.seconds for op in costs),
                rerunnable=all(facts.rerun_limit[op] > turn or not facts.outputs[op] for op in ops),
                forward_bytes=_most_bytes(facts, ops, kept=(out,)),
                keeping_bytes=_most_bytes(facts, ops, kept=saved),
                backward_bytes=max((working[op] for op in later), default=0),
                waiting_bytes=waiting[later[0]] if later else 0,
            )
        )
    return tuple(stages)


def _turn(facts: Facts) -> int:
    """The op during which the most bytes wait for a later use: the last of the forward pass."""
    change = np.zeros(facts.op_count + 2)
    for tensor, producer in enumerate(facts.producer):
        for before, after in itertools.pairwise([producer, *facts.uses[tensor]] if producer >= 0 else []):
            change[before + 1] += facts.size[tensor]
            change[after] -= facts.size[tensor]
    return int(np.argmax(np.cumsum(change)[: max(facts.op_count, 1)]))


def _cuts(facts: Facts, turn: int) -> list[tuple[int, int]]:
    """The forward ops after which a single tensor is handed on, and that tensor."""
    count, names = np.zeros(turn + 2, dtype=int), np.zeros(turn + 2, dtype=int)
    for tensor, producer in enumerate(facts.producer):
        forward = [use for use in facts.uses[tensor] if use <= turn]
        if 0 <= producer < turn and forward:
            for array, amount in ((count, 1), (names, tensor)):
                array[producer] += amount
                array[forward[-1]] -= amount
    counts, sums = np.cumsum(count), np.cumsum(names)
    return [(op, int(sums[op])) for op in range(turn) if counts[op] == 1]


def _backward(facts: Facts, turn: int, forward: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Per stage the ops after the turn that belong to it: no later op reads from a deeper stage."""
    stage_of = {t: stage for stage, ops in enumerate(forward) for op in ops for t in facts.outputs[op]}
    deepest, of_stage = 0, [list[int]() for _ in forward]
    for op in range(facts.op_count - 1, turn, -1):
        deepest = max([deepest, *(stage_of.get(tensor, 0) for tensor in facts.inputs[op])])
        of_stage[deepest].insert(0, op)
    return [tuple(ops) for ops in of_stage]


def _gradient_bytes(facts: Facts, turn: int) -> tuple[list[int], list[int]]:
    """Per op, bytes made after the turn that wait before it, and that it holds with its workspace."""
    waiting = [0] * (facts.op_count + 2)
    for tensor, producer in enumerate(facts.producer):
        if producer > turn:
            last = max([producer, *facts.uses[tensor]])
            waiting[producer + 1] += facts.size[tensor]
            waiting[min(last, facts.op_count) + 1] -= facts.size[tensor]
    waiting = list(itertools.accumulate(waiting))
    made = [sum(facts.size[t] for t in facts.outputs[op]) for op in range(facts.op_count)]
    working = [waiting[op] + made[op] + facts.workspace[op] for op in range(facts.op_count)]
    return waiting, working


def _most_bytes(facts: Facts, ops: Sequence[int], *, kept: Sequence[int]) -> int:
    """At the fullest moment of ``ops`` alone, what each makes freed after its last reader among them."""
    last = {t: op for op in ops for t in (*facts.outputs[op], *facts.inputs[op])}
    made, held, most = set[int](), 0, 0
    for op in ops:
        made.update(facts.outputs[op])
        held += sum(facts.size[tensor] for tensor in facts.outputs[op])
        most = max(most, held + facts.workspace[op])
        for tensor in {*facts.inputs[op], *facts.outputs[op]}:
            if tensor in made and tensor not in kept and last[tensor] == op:
                held -= facts.size[tensor]
    return most


# --- orders of runs as schedules ---


def schedule_of_runs(facts: Facts, runs: Sequence[int], paged: frozenset[int]) -> Schedule | None:
    """The schedule that runs the ops ``runs`` in this order, of which some run again.

    Reruns whose outputs no op reads before they are made again are left out. Tensors among ``paged``
    wait in storage wherever their next reader is not the next op. ``None`` where something is read
    that is not there any more. The simulator decides whether it fits and whether each run is allowed.
    """
    return _Replay(facts, needed_runs(facts, runs), paged).schedule()


def needed_runs(facts: Facts, runs: Sequence[int]) -> list[tuple[int, tuple[int, ...]]]:
    """The runs that make something read later, with what each reads."""
    seen, first = set[int](), list[bool]()
    for op in runs:
        first.append(op not in seen)
        seen.add(op)
    wanted, kept = set(facts.ends_in_ram) | set(facts.ends_stored), list[tuple[int, tuple[int, ...]]]()
    for op, is_first in zip(reversed(runs), reversed(first), strict=True):
        if is_first or wanted.intersection(facts.outputs[op]):
            reads = facts.inputs[op] if is_first else facts.rerun_inputs[op]
            wanted.difference_update(facts.outputs[op])
            wanted.update(reads)
            kept.append((op, reads))
    return kept[::-1]


class _Replay:
    """Steps for runs, freeing by what lies ahead."""

    def __init__(self, facts: Facts, runs: list[tuple[int, tuple[int, ...]]], paged: frozenset[int]) -> None:
        self.facts, self.runs, self.paged = facts, runs, paged
        self.steps: list[Step] = []
        self.present = set(facts.starts_in_ram)
        self.stored = set(facts.starts_stored)
        self.ahead: list[list[tuple[int, bool]]] = [[] for _ in range(facts.tensor_count)]  # soonest last
        self.updates_left = [len(updates) for updates in facts.update_ops]
        for position in range(len(runs) - 1, -1, -1):
            op, reads = runs[position]
            for tensor in facts.outputs[op]:
                self.ahead[tensor].append((position, True))
            for tensor in reads:
                self.ahead[tensor].append((position, False))
        self.ends = set(facts.ends_in_ram)

    def schedule(self) -> Schedule | None:
        for tensor in list(self.present):
            self._settle(tensor, -1)
        for position, (op, reads) in enumerate(self.runs):
            for tensor in reads:
                if not self._bring(tensor):
                    return None
            self.steps.append(Compute(self.facts.problem.ops[op].name))
            touched = dict.fromkeys((*reads, *self.facts.outputs[op]))
            self.present.update(self.facts.outputs[op])
            for tensor in touched:
                while self.ahead[tensor] and self.ahead[tensor][-1][0] <= position:
                    self.ahead[tensor].pop()
            for tensor in self.facts.updates[op]:
                self.stored.discard(tensor)
                self.updates_left[tensor] -= 1
            for tensor in touched:
                self._settle(tensor, position)
        if not all(self._bring(tensor) for tensor in self.facts.ends_in_ram):
            return None
        return tuple(self.steps)

    def _name(self, tensor: int) -> str:
        return self.facts.problem.tensors[tensor].name

    def _bring(self, tensor: int) -> bool:
        if tensor not in self.present:
            if tensor not in self.stored:
                return False
            self.steps.append(PageIn(self._name(tensor)))
            self.present.add(tensor)
        return True

    def _settle(self, tensor: int, position: int) -> None:
        """Keep, store or free ``tensor`` after the run at ``position``."""
        if tensor not in self.present:
            return
        ahead = self.ahead[tensor]
        last = not ahead and not self.updates_left[tensor]
        owed = last and tensor in self.facts.ends_stored and tensor not in self.stored
        read_next = bool(ahead) and not ahead[-1][1]
        away = read_next and tensor in self.paged and ahead[-1][0] > position + 1
        if (away or owed) and tensor not in self.stored:
            self.steps.append(PageOut(self._name(tensor)))
            self.stored.add(tensor)
        if away or not (read_next or (not ahead and tensor in self.ends)):
            self.steps.append(Free(self._name(tensor)))
            self.present.remove(tensor)
