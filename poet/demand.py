"""What a schedule asks for: blocks of memory with the times at which each is needed, and who asks when.

Time runs in ticks. A `Compute` whose kernel's pieces are known (see `poet.pieces`) lasts as many ticks as
they need, so that a temporary which is gone before an output is made may lie where the output will; any
other step lasts one. Tick 0 is before the first step.
"""

from __future__ import annotations

from dataclasses import dataclass

from poet.brief import brief
from poet.graph import Graph
from poet.layout import Block, Span
from poet.pieces import Piece, ticks
from poet.problem import Place, Problem, ProblemOp
from poet.schedule import Compute, Free, PageIn, Schedule

BEFORE = -1
"""The step of what is asked for before the first one."""
REPLAYED_BY = ("", "pytorch-cpu")
"""Kernels whose pieces were measured; others have one workspace, as their device's profile states."""

_TORCH_ALIGNMENT_BYTES = 64


@dataclass(frozen=True, slots=True)
class Asked:
    """One request for memory: ``size_bytes`` in ``step`` of the schedule, for ``blocks[block]``."""

    step: int
    size_bytes: int
    block: int


@dataclass(frozen=True, slots=True)
class Demand:
    """All that a schedule asks for.

    Attributes:
        blocks: sizes rounded up to the alignment.
        requests: of tensors and of temporaries that are known, in the order in which they are made.
        standing: blocks of tensors that begin the step in RAM and stay there throughout.
    """

    blocks: tuple[Block, ...]
    requests: tuple[Asked, ...]
    standing: tuple[int, ...]

    __repr__ = brief


def demand_of(problem: Problem, schedule: Schedule, graph: Graph | None = None) -> Demand:
    """What ``schedule`` asks for, in blocks of the problem's alignment.

    Args:
        problem: whose schedule it is.
        schedule: valid (see `poet.simulator.simulate`).
        graph: of the problem; it knows the pieces of its kernels.
    """
    return _Demands(problem, graph).of(schedule)


@dataclass(slots=True)
class _Residency:
    """A tensor's time in RAM: from the request in ``step`` at tick ``born`` to ``died``."""

    step: int
    born: int
    died: int = BEFORE


class _Demands:
    """The blocks so far, while a schedule is read."""

    def __init__(self, problem: Problem, graph: Graph | None) -> None:
        self.problem = problem
        self.sizes_bytes = {tensor.name: tensor.bytes for tensor in problem.tensors}
        self.ops = {op.name: op for op in problem.ops}
        replayed = graph is not None and problem.kernels in REPLAYED_BY
        self.alignment_bytes = max(problem.alignment_bytes, _TORCH_ALIGNMENT_BYTES if replayed else 1)
        self.pieces = _pieces_by_op(graph) if graph is not None and replayed else {}
        self.blocks: list[Block] = []
        self.requests: list[tuple[int, Asked]] = []  # with the tick
        self.present: dict[str, _Residency] = {}
        self.past: dict[str, list[_Residency]] = {}
        self.ran: set[str] = set()

    def of(self, schedule: Schedule) -> Demand:
        produced = {name for op in self.problem.ops for name in op.outputs}
        for tensor in self.problem.tensors:
            if tensor.name not in produced and tensor.initially is not Place.STORAGE:
                self.present[tensor.name] = _Residency(BEFORE, 0)
        begins = set(self.present)
        now = 1
        for index, step in enumerate(schedule):
            if isinstance(step, Compute):
                now += self.compute(self.ops[step.op], index, now)
                continue
            if isinstance(step, PageIn):
                self.present[step.tensor] = _Residency(index, now)
            elif isinstance(step, Free):
                self.end(step.tensor, now)
            now += 1
        tied = begins.intersection(self.present)
        for name in list(self.present):
            self.end(name, now)
        standing = [self.add_tensor(name, stays, tied=name in tied) for name, stays in self.past.items()]
        requests = tuple(request for _, request in sorted(self.requests, key=lambda pair: pair[0]))
        return Demand(tuple(self.blocks), requests, tuple(block for block in standing if block is not None))

    def compute(self, op: ProblemOp, index: int, now: int) -> int:
        """One run of ``op`` from tick ``now`` on; how many ticks it lasts."""
        pieces = self.pieces.get((op.name, op.name in self.ran))
        self.ran.add(op.name)
        if pieces is None:
            pieces = [
                (Piece(self.sizes_bytes[name], 0), name) for name in op.outputs if self.sizes_bytes[name]
            ]
            if op.workspace_bytes:
                self.add_block(op.name, None, op.workspace_bytes, ((now, now),))
        end = now + ticks(piece for piece, _ in pieces) - 1
        for piece, name in pieces:
            born = now + piece.born
            if name is not None and name not in self.present:
                self.present[name] = _Residency(index, born)
            else:  # a temporary, or a second copy
                died = end if piece.died is None else now + piece.died - 1
                self.requests.append((born, Asked(index, piece.size_bytes, len(self.blocks))))
                self.add_block(name or op.name, None, piece.size_bytes, ((born, died),))
        return end - now + 1

    def end(self, tensor: str, died: int) -> None:
        residency = self.present.pop(tensor)
        residency.died = died
        self.past.setdefault(tensor, []).append(residency)

    def add_tensor(self, name: str, stays: list[_Residency], *, tied: bool) -> int | None:
        """The blocks of a tensor's residencies; the block's number if it is one for the whole step."""
        if not self.sizes_bytes[name]:
            return None
        if tied and len(stays) == 1:
            self.add_residencies(name, stays)
            return len(self.blocks) - 1
        groups = [[stays[0], stays[-1]]] if tied else []
        for group in (*groups, *([stay] for stay in (stays[1:-1] if tied else stays))):
            self.add_residencies(name, group)
        return None

    def add_residencies(self, name: str, stays: list[_Residency]) -> None:
        """One block."""
        size_bytes = self.sizes_bytes[name]
        self.requests += [(stay.born, Asked(stay.step, size_bytes, len(self.blocks))) for stay in stays]
        self.add_block(name, name, size_bytes, tuple((stay.born, stay.died) for stay in stays))

    def add_block(self, owner: str, tensor: str | None, size_bytes: int, spans: tuple[Span, ...]) -> None:
        alignment = self.alignment_bytes
        rounded_bytes = -(-size_bytes // alignment) * alignment
        self.blocks.append(Block(owner, tensor, rounded_bytes, spans, alignment))


def _pieces_by_op(graph: Graph) -> dict[tuple[str, bool], list[tuple[Piece, str | None]]]:
    """Per op and whether it ran before: its pieces, each with the buffer that it becomes.

    Ops whose pieces are not known, or are not their outputs' buffers, are left out.
    """
    sizes_bytes = {buffer.name: buffer.size_bytes for buffer in graph.buffers}
    found = {}
    for op in graph.ops:
        outputs = [None if name is None else graph.buffer_of(name) for name in op.outputs]
        expected = {name: sizes_bytes[name] for name in outputs if name is not None and sizes_bytes[name]}
        again = op.pieces if op.repeat_pieces is None else op.repeat_pieces
        for ran_before, pieces in ((False, op.pieces), (True, again)):
            named = [(p, None if p.output is None else outputs[p.output]) for p in pieces or ()]
            made = {name: piece.size_bytes for piece, name in named if name is not None}
            if pieces is not None and made == expected:
                found[op.name, ran_before] = named
    return found
