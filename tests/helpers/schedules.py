"""Valid schedules for any problem: the plain one, and random ones."""

from __future__ import annotations

import random

from poet.errors import InvalidSchedule
from poet.problem import Limits, Place, Problem, ProblemOp
from poet.problem.schedule import Compute, Free, PageIn, PageOut, Schedule, Step
from poet.problem.simulator import content_versions, simulate


def verdict(of: Problem, schedule: Schedule, limits: Limits | None = None) -> str | None:
    """The rule that ``schedule`` breaks, or ``None``."""
    try:
        simulate(of, schedule, limits)
    except InvalidSchedule as error:
        return error.rule
    return None


def keep_everything(of: Problem) -> Schedule:
    """Run each op once; free each tensor right after its last use."""
    return random_schedule(of, 0, share=0.0)


def random_schedule(of: Problem, seed: int, *, share: float = 0.5) -> Schedule:
    """A valid schedule that drops each tensor with probability ``share`` after each op.

    What an op lacks is recomputed, inputs first, or fetched. Where that turns out to be impossible, the
    tensor is stored before it is dropped, and the schedule is drawn again.
    """
    must_store: set[str] = set()
    while True:
        try:
            schedule = _Draw(of, random.Random(seed), share, must_store).schedule()
        except _Lost as lost:
            must_store.add(lost.tensor)
            continue
        simulate(of, schedule)
        return schedule


class _Lost(Exception):
    """A tensor was dropped and cannot be had again."""

    def __init__(self, tensor: str) -> None:
        super().__init__(tensor)
        self.tensor = tensor


class _Draw:
    def __init__(self, of: Problem, rng: random.Random, share: float, must_store: set[str]) -> None:
        self.of, self.rng, self.share, self.must_store = of, rng, share, must_store
        self.tensors = {tensor.name: tensor for tensor in of.tensors}
        self.producer = {name: op for op in of.ops for name in op.outputs}
        self.meant = {name: dict(pairs) for name, pairs in content_versions(of).items()}
        self.last = {name: i for i, op in enumerate(of.ops) for name in (*op.inputs, *op.outputs)}
        self.version = dict.fromkeys(self.tensors, 0)
        sources = [tensor for tensor in of.tensors if tensor.name not in self.producer]
        self.in_ram = {t.name for t in sources if t.initially is not Place.STORAGE}
        self.stored = {t.name: 0 for t in sources if t.initially in (Place.STORAGE, Place.BOTH)}
        self.steps: list[Step] = []
        self.ran: set[str] = set()

    def schedule(self) -> Schedule:
        for index, op in enumerate(self.of.ops):
            self.run(op, op.inputs)
            for name in sorted(self.in_ram):
                self.maybe_drop(name, is_done=self.last.get(name, -1) <= index)
        for tensor in self.of.tensors:
            if tensor.finally_ is Place.RAM:
                self.fetch(tensor.name)
            elif tensor.finally_ is Place.STORAGE:
                self.store(tensor.name)
        return tuple(self.steps)

    def run(self, op: ProblemOp, inputs: tuple[str, ...], known: dict[str, bool] | None = None) -> None:
        known = {} if known is None else known
        for name in inputs:
            self.fetch(name, known)
        self.steps.append(Compute(op.name))
        self.in_ram.update(op.outputs)
        if op.name not in self.ran:
            self.ran.add(op.name)
            for name in op.updates:
                self.version[name] += 1

    def fetch(self, name: str, known: dict[str, bool] | None = None) -> None:
        """Bring it to RAM; what can be had stays so meanwhile."""
        if name in self.in_ram:
            return
        known = {} if known is None else known
        if not self.can_have(name, known):
            raise _Lost(name)
        is_stored = self.stored.get(name) == self.version[name]
        if is_stored and not (self.can_recompute(name, known) and self.rng.random() < 0.5):
            self.steps.append(PageIn(name))
            self.in_ram.add(name)
        else:
            op = self.producer[name]
            self.run(op, op.rerun_inputs, known)

    def can_have(self, name: str, known: dict[str, bool]) -> bool:
        """Whether it is in RAM, stored as it is now, or can be recomputed; ``known`` has what was found."""
        if name not in known:
            is_stored = self.stored.get(name) == self.version[name]
            known[name] = name in self.in_ram or is_stored or self.can_recompute(name, known)
        return known[name]

    def can_recompute(self, name: str, known: dict[str, bool]) -> bool:
        op = self.producer.get(name)
        return (
            op is not None
            and op.recomputable
            and not any(self.version[output] for output in op.outputs)
            and all(self.version[source] == self.meant[op.name][source] for source in op.rerun_inputs)
            and all(self.can_have(source, known) for source in op.rerun_inputs)
        )

    def store(self, name: str) -> None:
        if self.stored.get(name) != self.version[name]:
            self.fetch(name)
            self.steps.append(PageOut(name))
            self.stored[name] = self.version[name]

    def maybe_drop(self, name: str, *, is_done: bool) -> None:
        tensor = self.tensors[name]
        if is_done and tensor.finally_ is None:
            self.drop(name)
        elif self.rng.random() < self.share:
            if name in self.must_store or self.rng.random() < 0.3:
                if tensor.page_out is None:
                    return
                self.store(name)
            self.drop(name)

    def drop(self, name: str) -> None:
        if name in self.must_store and self.tensors[name].page_out is not None:
            self.store(name)
        self.steps.append(Free(name))
        self.in_ram.remove(name)
