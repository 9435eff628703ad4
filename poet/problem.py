"""A planning problem: what must run, what it costs, and what a plan may do. Needs no model.

The file format (``poet-problem``, versions 1 to 4) is one JSON object::

    {"format": "poet-problem", "version": 2, "name": "...", "source": "...",
     "tensors": [{"name": "t0", "bytes": 4096,
                  "page_in": {"seconds": 1e-3, "joules": 3e-4},
                  "page_out": {"seconds": 1e-3, "joules": 3e-4}}],
     "ops": [{"name": "conv1", "inputs": ["t0"], "outputs": ["t1"],
              "seconds": 0.01, "joules": 0.02, "workspace_bytes": 0}]}

Ops are in a runnable order. A tensor is a buffer: the unit of keeping, paging and freeing. All
fields of the records below may stand in a file; those with a default may be left out. Version 2 adds
``"initially": "either"``, version 3 ``"move"``, version 4 ``"alternatives"``; what has none of them is
written as version 1.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Container
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from poet import codec
from poet.brief import shortened, told
from poet.errors import ProblemError
from poet.files.kinds import FileKind, says_what_it_is
from poet.files.reading import LARGEST_AMOUNT, parse_json, read_regular, shown
from poet.units import format_joules, format_seconds

FORMAT = "poet-problem"
FORMAT_VERSION = 4
READABLE_VERSIONS = (1, 2, 3, 4)
MAX_FILE_BYTES = 1 << 28
"""Of a problem file; one of 1,000 ops has half a million."""


class Place(enum.Enum):
    """Where a tensor's content is between steps."""

    RAM = "ram"
    STORAGE = "storage"
    BOTH = "both"  # in RAM with a valid copy in storage, as a frozen parameter is; only `initially`
    EITHER = "either"  # in RAM or in storage, at the start and at the end, as the plan chooses; likewise


class Objective(enum.Enum):
    """What a plan should take the least of, per step; ties are broken by energy."""

    ENERGY = "energy"
    TIME = "time"
    RAM = "ram"
    WRITES = "writes"


@dataclass(frozen=True, slots=True)
class Transfer:
    """The cost of copying one tensor once, in one direction."""

    seconds: float
    joules: float

    def __post_init__(self) -> None:
        _check_cost("a transfer", self.seconds, self.joules)


@dataclass(frozen=True, slots=True)
class Tensor:
    """A buffer.

    Attributes:
        name: unique among tensors.
        bytes: its size.
        page_in, page_out: cost of copying it from and to storage; ``None`` where it must not be.
        role: what it is for, as reports name it (see `poet.graph.Role`).
        initially: where its content is when the step begins; ``None``: in RAM for a tensor that no
            op produces, nowhere for one that an op does. Of ``EITHER`` see `poet.homes`.
        finally_: where its last content must be when the step ends; ``None``: nowhere in particular.
            In a file the field is called ``finally``.
        stored_bytes: what a copy takes in storage, whole pages; ``None``: ``bytes``.
        move: cost of moving it to another place in RAM; ``None`` where it must stay at its place.
    """

    name: str
    bytes: int
    page_in: Transfer | None = None
    page_out: Transfer | None = None
    role: str | None = None
    initially: Place | None = None
    finally_: Place | None = field(default=None, metadata={"json": "finally"})
    stored_bytes: int | None = None
    move: Transfer | None = None

    def __post_init__(self) -> None:
        if self.bytes < 0 or (self.stored_bytes is not None and self.stored_bytes < 0):
            raise ProblemError(f"tensor {self.name}: a negative size")

    @property
    def storage_bytes(self) -> int:
        """What a copy takes in storage."""
        return self.bytes if self.stored_bytes is None else self.stored_bytes


@dataclass(frozen=True, slots=True)
class ProblemOp:
    """One op of the step.

    Attributes:
        name: unique among ops.
        inputs: tensors that the first run needs in RAM.
        outputs: tensors that a run allocates and writes.
        seconds, joules: cost of one run.
        workspace_bytes: RAM needed while it runs beyond inputs and outputs.
        updates: those of ``inputs`` that the first run writes in place: their content is a new one
            afterwards, and what reads the old one cannot run any more.
        recompute_inputs: tensors that a later run needs; ``None``: ``inputs`` without ``updates``.
        recomputable: whether it may be run again.
        random: first runs of random ops keep their order.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    seconds: float
    joules: float
    workspace_bytes: int = 0
    updates: tuple[str, ...] = ()
    recompute_inputs: tuple[str, ...] | None = None
    recomputable: bool = True
    random: bool = False

    def __post_init__(self) -> None:
        _check_cost(f"op {self.name}", self.seconds, self.joules)
        if self.workspace_bytes < 0:
            raise ProblemError(f"op {self.name}: workspace_bytes is negative")

    @property
    def rerun_inputs(self) -> tuple[str, ...]:
        """Tensors that a recomputation needs in RAM."""
        if self.recompute_inputs is not None:
            return self.recompute_inputs
        return tuple(name for name in self.inputs if name not in self.updates)


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another form of some ops, which a plan takes as a whole or not at all.

    Attributes:
        name: unique among alternatives.
        ops: in the place of those of the same names.
        omits: names of ops that do not run where it is taken.
        tensors: in the place of those of the same names, or further ones, which its ops produce.
    """

    name: str
    ops: tuple[ProblemOp, ...]
    omits: tuple[str, ...] = ()
    tensors: tuple[Tensor, ...] = ()

    @property
    def touched(self) -> tuple[str, ...]:
        """Names of the ops that are in another form, or left out."""
        return (*(op.name for op in self.ops), *self.omits)


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
            and ``tensors`` are those of a plan that takes none. See `resolved` and `poet.alternatives`.
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

    def __post_init__(self) -> None:
        if self.alignment_bytes < 1:
            raise ProblemError(f"{self.name}: alignment_bytes is less than 1")
        _check_cost(self.name, 0.0, self.idle_watts)
        _check_structure(self)
        _check_alternatives(self)

    def __repr__(self) -> str:
        once = f"{format_joules(self.compute_joules)} and {format_seconds(self.compute_seconds)}"
        parts = f"{len(self.ops)} ops, {len(self.tensors)} tensors"
        return told(self, f"{shortened(self.name)}: {parts}; running every op once takes {once}")

    def aligned_bytes(self, size_bytes: int) -> int:
        """``size_bytes`` rounded up to the alignment."""
        return -(-size_bytes // self.alignment_bytes) * self.alignment_bytes

    @property
    def compute_seconds(self) -> float:
        """Time of running every op once, in the fastest forms: what a relative deadline is measured by."""
        gains = (min(0.0, self.extra_cost(alternative)[0]) for alternative in self.alternatives)
        return math.fsum((*(op.seconds for op in self.ops), *gains))

    @property
    def compute_joules(self) -> float:
        """Energy of running every op once with no transfer, idle power included; in the cheapest forms."""
        seconds = math.fsum(op.seconds for op in self.ops)
        gains = (min(0.0, self.extra_cost(alternative)[1]) for alternative in self.alternatives)
        return math.fsum(op.joules for op in self.ops) + self.idle_watts * seconds + math.fsum(gains)

    def extra_cost(self, alternative: Alternative) -> tuple[float, float]:
        """Seconds and joules, idle power included, by which ``alternative`` adds to running every op once."""
        before = [op for op in self.ops if op.name in alternative.touched]
        seconds = math.fsum((*(op.seconds for op in alternative.ops), *(-op.seconds for op in before)))
        joules = math.fsum((*(op.joules for op in alternative.ops), *(-op.joules for op in before)))
        return seconds, joules + self.idle_watts * seconds

    def resolved(self, taken: Container[str]) -> Problem:
        """The problem without alternatives in which those named in ``taken`` are taken, and no others."""
        chosen = [alternative for alternative in self.alternatives if alternative.name in taken]
        forms = {op.name: op for alternative in chosen for op in alternative.ops}
        omitted = {name for alternative in chosen for name in alternative.omits}
        ops = tuple(forms.get(op.name, op) for op in self.ops if op.name not in omitted)
        others = {tensor.name: tensor for alternative in chosen for tensor in alternative.tensors}
        own = {tensor.name for tensor in self.tensors}
        made = {name for op in ops for name in op.outputs}
        lost = {name for op in self.ops for name in op.outputs} - made
        tensors = (
            *(others.get(tensor.name, tensor) for tensor in self.tensors if tensor.name not in lost),
            *(tensor for tensor in others.values() if tensor.name not in own),
        )
        return replace(self, ops=ops, tensors=tensors, alternatives=())

    def to_json(self) -> dict[str, Any]:
        """JSON-ready form of the file format; `from_json` gives an equal problem back."""
        return {"format": FORMAT, "version": self._least_version(), **codec.encode(self)}

    def _least_version(self) -> int:
        """Of the format, that knows all that the problem says."""
        if self.alternatives:
            return FORMAT_VERSION
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
    def load(path: Path) -> Problem:
        """The problem in the file at ``path``.

        Raises:
            ProblemError: the file is not readable, not JSON, or not a problem.
        """
        try:
            data = parse_json(read_regular(path, most_bytes=MAX_FILE_BYTES))
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise ProblemError(f"{path}: not a readable JSON file ({why})") from None
        return Problem.from_json(data, where=path.name)


@dataclass(frozen=True, slots=True)
class Pins:
    """Patterns of names of tensors, or of ops for their outputs; see `poet.pins` for what each demands.

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


def _check_cost(what: str, seconds: float, joules: float) -> None:
    for amount, unit in ((seconds, "seconds"), (joules, "joules or watts")):
        if not 0 <= amount <= LARGEST_AMOUNT:
            raise ProblemError(
                f"{what}: {amount:g} {unit}; a cost is a finite number from 0 up, at most {LARGEST_AMOUNT:g}"
            )


def _check_structure(problem: Problem) -> None:
    tensors = {tensor.name: tensor for tensor in problem.tensors}
    if len(tensors) < len(problem.tensors):
        raise ProblemError(f"{problem.name}: two tensors have the same name")
    if len({op.name for op in problem.ops}) < len(problem.ops):
        raise ProblemError(f"{problem.name}: two ops have the same name")
    produced = {name for op in problem.ops for name in op.outputs}
    updated = {name for op in problem.ops for name in op.updates}
    ready = set(tensors) - produced
    for op in problem.ops:
        for name in (*op.inputs, *op.outputs, *op.updates, *(op.recompute_inputs or ())):
            if name not in tensors:
                raise ProblemError(f"op {op.name}: there is no tensor {name!r}")
        for name in (*op.inputs, *op.rerun_inputs):
            if name not in ready:
                raise ProblemError(f"op {op.name} reads {name} before an op produces it")
        for name in op.updates:
            if name not in op.inputs:
                raise ProblemError(f"op {op.name} updates {name}, which is not among its inputs")
        for name in op.outputs:
            if name in ready:
                raise ProblemError(f"op {op.name} produces {name}, which is there already")
            ready.add(name)
    for tensor in problem.tensors:
        if tensor.initially is not None and tensor.name in produced:
            raise ProblemError(f"tensor {tensor.name} is produced by an op and 'initially' somewhere")
        if tensor.finally_ in (Place.BOTH, Place.EITHER):
            raise ProblemError(f"tensor {tensor.name}: 'finally' is ram or storage")
        if tensor.initially in (Place.STORAGE, Place.EITHER) and tensor.page_in is None:
            raise ProblemError(f"tensor {tensor.name} begins in storage but has no page_in cost")
        if tensor.initially is Place.EITHER and tensor.finally_ is not None:
            raise ProblemError(f"tensor {tensor.name} ends where it begins, in either; leave 'finally' out")
        if tensor.initially is Place.EITHER and tensor.page_out is None and tensor.name in updated:
            raise ProblemError(f"tensor {tensor.name} may be updated in storage but has no page_out cost")
        if tensor.finally_ is Place.STORAGE and tensor.page_out is None:
            raise ProblemError(f"tensor {tensor.name} must end in storage but has no page_out cost")


def _check_alternatives(problem: Problem) -> None:
    """Any may be taken: none touches what is another's, and each alone is a problem, as all together are.

    What two of them could break between them all of them break.
    """
    if not problem.alternatives:
        return
    ops, tensors = {op.name: op for op in problem.ops}, {tensor.name for tensor in problem.tensors}
    produced = {name for op in problem.ops for name in op.outputs}
    if len({each.name for each in problem.alternatives}) < len(problem.alternatives):
        raise ProblemError(f"{problem.name}: two alternatives have the same name")
    seen: set[tuple[str, str]] = set()
    for alternative in problem.alternatives:
        where = f"alternative {alternative.name}"
        changed = [("op", name) for name in alternative.touched]
        changed += [("tensor", tensor.name) for tensor in alternative.tensors]
        if not alternative.ops or len(set(changed)) < len(changed):
            raise ProblemError(f"{where}: it has no op, or the same twice")
        for kind, name in changed:
            if (kind, name) in seen:
                raise ProblemError(f"{where}: {kind} {name} is another alternative's as well")
            if kind == "op" and name not in ops:
                raise ProblemError(f"{where}: there is no op {name!r}")
        seen.update(changed)
        for op in alternative.ops:
            if op.updates != ops[op.name].updates:
                raise ProblemError(f"{where}: op {op.name} updates other tensors than without it")
        for name in alternative.omits:
            if ops[name].updates:
                raise ProblemError(f"{where}: op {name} updates tensors and cannot be left out")
        made = {name for op in alternative.ops for name in op.outputs}
        for tensor in alternative.tensors:
            if tensor.name not in made or (tensor.name in tensors and tensor.name not in produced):
                raise ProblemError(f"{where}: tensor {tensor.name} is not made by its ops")
        _resolvable(problem, (alternative.name,), where)
    _resolvable(problem, [each.name for each in problem.alternatives], "all alternatives together")


def _resolvable(problem: Problem, taken: Container[str], where: str) -> None:
    try:
        problem.resolved(taken)
    except ProblemError as error:
        raise ProblemError(f"{where}: {error}") from None
