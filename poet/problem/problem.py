"""A planning problem: what must run, what it costs, and what a plan may do. Needs no model.

The file format (``poet-problem``, versions 1 to 7) is one JSON object::

    {"format": "poet-problem", "version": 2, "name": "...", "source": "...",
     "tensors": [{"name": "t0", "bytes": 4096,
                  "page_in": {"seconds": 1e-3, "joules": 3e-4},
                  "page_out": {"seconds": 1e-3, "joules": 3e-4}}],
     "ops": [{"name": "conv1", "inputs": ["t0"], "outputs": ["t1"],
              "seconds": 0.01, "joules": 0.02, "workspace_bytes": 0}]}

Ops are in a runnable order. A tensor is a buffer: the unit of keeping, paging and freeing. All
fields of the records here and in `poet.problem.parts` may stand in a file; those with a default may
be left out. Version 2 adds ``"initially": "either"``, version 3 ``"move"``, version 4
``"alternatives"``, version 5 ``"stored"``, version 6 ``"stored_updates"``, version 7 ``"units"`` and
``"page_form"``; what has none of them is written as version 1.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from poet.errors import ProblemError
from poet.files.kinds import FileKind, says_what_it_is
from poet.problem.parts import (
    Alternative,
    Handing,
    OnUnit,
    Place,
    ProblemOp,
    Tensor,
    Unit,
    check_alternatives,
    check_cost,
    check_structure,
    check_units,
    resolved_parts,
)
from poet.util import codec
from poet.util.brief import shortened, told
from poet.util.reading import parse_json, read_regular, shown
from poet.util.units import format_joules, format_seconds

FORMAT = "poet-problem"
FORMAT_VERSION = 7
READABLE_VERSIONS = (1, 2, 3, 4, 5, 6, 7)
MAX_FILE_BYTES = 1 << 28
"""Of a problem file; one of 1,000 ops has half a million."""


class Objective(enum.Enum):
    """What a plan should take the least of, per step; ties are broken by energy."""

    ENERGY = "energy"
    TIME = "time"
    RAM = "ram"
    WRITES = "writes"


@dataclass(frozen=True, slots=True)
class Problem:
    """What must run and what it costs; checked when made.

    Attributes:
        name, source: for reports.
        tensors, ops: the parts; ops in a runnable order.
        alignment_bytes: every tensor and workspace takes a multiple of this in RAM.
        idle_watts: drawn during the whole step, on top of the ops' and transfers' joules.
        background_storage: transfers run beside compute, one at a time, in the order issued.
        storage_capacity_bytes: what all stored contents may take together; ``None``: no limit.
        kernels: the target whose kernels' workspaces are counted, for reports.
        alternatives: other forms of some ops, of which a plan takes any; no op or tensor is of two. ``ops``
            and ``tensors`` are those of a plan that takes none. See `poet.problem.alternatives`.
        units: that run ops beside the main one. See `poet.problem.units`.
    """

    name: str
    tensors: tuple[Tensor, ...]
    ops: tuple[ProblemOp, ...]
    source: str = ""
    alignment_bytes: int = 1
    idle_watts: float = 0.0
    background_storage: bool = False
    storage_capacity_bytes: int | None = None
    kernels: str = ""
    alternatives: tuple[Alternative, ...] = ()
    units: tuple[Unit, ...] = ()

    def __post_init__(self) -> None:
        if self.alignment_bytes < 1:
            raise ProblemError(f"{self.name}: alignment_bytes is less than 1")
        check_cost(self.name, 0.0, self.idle_watts)
        check_structure(self.name, self.tensors, self.ops)
        check_alternatives(self.name, self.tensors, self.ops, self.alternatives)
        check_units(self.name, self.units, self.all_ops())

    def __repr__(self) -> str:
        once = f"{format_joules(self.compute_joules)} and {format_seconds(self.compute_seconds)}"
        parts = f"{len(self.ops)} ops, {len(self.tensors)} tensors"
        return told(self, f"{shortened(self.name)}: {parts}; running every op once takes {once}")

    def aligned_bytes(self, size_bytes: int) -> int:
        """``size_bytes`` rounded up to the alignment."""
        return -(-size_bytes // self.alignment_bytes) * self.alignment_bytes

    def all_ops(self) -> Iterator[ProblemOp]:
        """The ops in all their forms."""
        yield from self.ops
        for alternative in self.alternatives:
            yield from alternative.ops

    @property
    def chooses_units(self) -> bool:
        """Whether a plan chooses the unit of an op."""
        return any(op.on for op in self.all_ops())

    def offers(self) -> Callable[[ProblemOp], tuple[OnUnit, ...]]:
        """What an op takes on each unit that it fits, with hand-overs to RAM of the unit's own."""
        own = {unit.name: unit for unit in self.units if unit.ram_bytes is not None}
        if not own:
            return lambda op: op.on
        sizes: dict[str, int] = {}
        for tensor in (*self.tensors, *(tensor for each in self.alternatives for tensor in each.tensors)):
            sizes[tensor.name] = min(tensor.bytes, sizes.get(tensor.name, tensor.bytes))

        def on(op: ProblemOp, offer: OnUnit) -> OnUnit | None:
            unit, names = own.get(offer.unit), {*op.inputs, *op.rerun_inputs, *op.outputs}
            if unit is None or unit.ram_bytes is None:
                return offer
            held = [self.aligned_bytes(size) for size in (op.workspace_bytes, *map(sizes.__getitem__, names))]
            if sum(held) > unit.ram_bytes:
                return None
            handed = [(unit.handing or Handing()).of(sizes[name]) for name in sorted(names)]
            return OnUnit(
                unit.name,
                math.fsum((offer.seconds, *(each.seconds for each in handed))),
                math.fsum((offer.joules, *(each.joules for each in handed))),
            )

        return lambda op: tuple(offer for each in op.on if (offer := on(op, each)) is not None)

    def at_least(self) -> Problem:
        """The problem on one unit in which no op takes more than on any of its units, hand-overs left out.

        With idle power, where a step lasts as long as its parts together: in all, not time and energy each.
        """
        watts, offers = 0.0 if self.background_storage else self.idle_watts, self.offers()

        def least(op: ProblemOp) -> ProblemOp:
            costs = [(op.seconds, op.joules), *((each.seconds, each.joules) for each in offers(op))]
            seconds = min(seconds for seconds, _ in costs)
            joules = min(joules + watts * seconds for seconds, joules in costs)
            return replace(op, seconds=seconds, joules=max(0.0, joules - watts * seconds), on=())

        return replace(
            self,
            ops=tuple(map(least, self.ops)),
            alternatives=tuple(replace(each, ops=tuple(map(least, each.ops))) for each in self.alternatives),
        )

    @property
    def row_written_bytes(self) -> int:
        """What ops write to storage themselves, in every schedule of a problem without alternatives."""
        return sum(op.stored_written_bytes for op in self.ops)

    @property
    def compute_seconds(self) -> float:
        """Time of running every op once, in the fastest forms: what a relative deadline is measured by.

        On the fastest units, with no hand-over.
        """
        if self.chooses_units:
            return self.at_least().compute_seconds
        gains = (min(0.0, self.extra_cost(alternative)[0]) for alternative in self.alternatives)
        return math.fsum((*(op.seconds for op in self.ops), *gains))

    @property
    def compute_joules(self) -> float:
        """Energy of running every op once with no transfer, idle power included; in the cheapest forms.

        On the cheapest units, with no hand-over.
        """
        if self.chooses_units:
            return self.at_least().compute_joules
        seconds = math.fsum(op.seconds for op in self.ops)
        gains = (min(0.0, self.extra_cost(alternative)[1]) for alternative in self.alternatives)
        return math.fsum(op.joules for op in self.ops) + self.idle_watts * seconds + math.fsum(gains)

    def extra_cost(self, alternative: Alternative) -> tuple[float, float]:
        """Seconds and joules, idle power included, by which ``alternative`` adds to running every op once."""
        touched = frozenset(alternative.touched)
        before = [op for op in self.ops if op.name in touched]
        seconds = math.fsum((*(op.seconds for op in alternative.ops), *(-op.seconds for op in before)))
        joules = math.fsum((*(op.joules for op in alternative.ops), *(-op.joules for op in before)))
        return seconds, joules + self.idle_watts * seconds

    def resolved(self, taken: Container[str]) -> Problem:
        """The problem without alternatives in which those named in ``taken`` are taken, and no others."""
        chosen = [alternative for alternative in self.alternatives if alternative.name in taken]
        tensors, ops = resolved_parts(self.tensors, self.ops, chosen)
        return replace(self, ops=ops, tensors=tensors, alternatives=())

    def to_json(self) -> dict[str, Any]:
        """JSON-ready form of the file format; `from_json` gives an equal problem back."""
        return {"format": FORMAT, "version": self._least_version(), **codec.encode(self)}

    def _least_version(self) -> int:
        """Of the format, that knows all that the problem says."""
        tensors = (*self.tensors, *(each for other in self.alternatives for each in other.tensors))
        if self.units or any(tensor.page_form is not None for tensor in tensors):
            return FORMAT_VERSION
        by_row = [op for op in self.all_ops() if op.stored]
        if by_row:
            return 6 if any(op.stored_updates for op in by_row) else 5
        if self.alternatives:
            return 4 if all(each.ops for each in self.alternatives) else FORMAT_VERSION
        if any(tensor.move is not None for tensor in self.tensors):
            return 3
        return 2 if any(tensor.initially is Place.EITHER for tensor in self.tensors) else 1

    @staticmethod
    def from_json(data: Any, *, where: str = "problem") -> Problem:
        """The problem in a parsed problem file.

        Raises:
            ProblemError: another format or version, or a malformed or contradictory problem.
        """
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise ProblemError(f'{where}: not a {FORMAT} file (its "format" must be {FORMAT!r})')
        if data.get("version") not in READABLE_VERSIONS:
            readable = f"{READABLE_VERSIONS[0]} to {READABLE_VERSIONS[-1]}"
            raise ProblemError(f"{where}: version {shown(data.get('version'))}, this poet reads {readable}")
        fields = {key: item for key, item in data.items() if key not in ("format", "version")}
        problem = codec.decode(Problem, fields, where=where, error=ProblemError)
        if not problem.ops:
            raise ProblemError(f"{where}: it has no ops, so there is nothing to plan; give it at least one")
        return problem

    @staticmethod
    @says_what_it_is(FileKind.PROBLEM)
    def load(path: str | Path) -> Problem:
        """The problem in the file at ``path``.

        Raises:
            ProblemError: the file is not readable, not JSON, or not a problem.
        """
        path = Path(path)
        try:
            data = parse_json(read_regular(path, most_bytes=MAX_FILE_BYTES))
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise ProblemError(f"{path}: not a readable JSON file ({why})") from None
        return Problem.from_json(data, where=path.name)


@dataclass(frozen=True, slots=True)
class Pins:
    """Patterns of names of tensors, or of ops for their outputs; `poet.problem.pins` says what each demands.

    Attributes:
        keep: stay in RAM from production to last use.
        recompute: are not held while idle, and remade.
        page: are not held while idle, and read back from storage.
        never_page: are neither written to storage nor read from there.
    """

    keep: tuple[str, ...] = ()
    recompute: tuple[str, ...] = ()
    page: tuple[str, ...] = ()
    never_page: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Limits:
    """What a plan must stay within and what it may do.

    Attributes:
        ram_budget_bytes: held at every moment; ``None``: unlimited.
        deadline_seconds: for one step, transfers included; ``None``: none.
        recompute, paging: whether ops may run again, whether tensors may move to storage. Tensors
            that begin or must end in storage move even without ``paging``.
        written_budget_bytes: what one step may write to storage; ``None``: unlimited.
        joules_budget: what one step may take, idle power included; ``None``: unlimited.
        pins: what must be kept, recomputed or paged, and what must not move.
    """

    ram_budget_bytes: int | None = None
    deadline_seconds: float | None = None
    recompute: bool = True
    paging: bool = True
    written_budget_bytes: int | None = None
    joules_budget: float | None = None
    pins: Pins = Pins()

    def are_within(self, others: Limits) -> bool:
        """Whether every plan inside these limits is inside ``others`` as well, as far as they show it."""
        amounts = (
            (self.ram_budget_bytes, others.ram_budget_bytes),
            (self.deadline_seconds, others.deadline_seconds),
            (self.written_budget_bytes, others.written_budget_bytes),
            (self.joules_budget, others.joules_budget),
        )
        return (
            all(other is None or (own is not None and own <= other) for own, other in amounts)
            and (others.recompute or not self.recompute)
            and (others.paging or not self.paging)
            and others.pins in (Pins(), self.pins)
        )
