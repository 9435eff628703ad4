"""What planning problems are made of: tensors, ops, other forms of ops; `poet.problem` has the whole."""

from __future__ import annotations

import enum
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from poet.errors import ProblemError
from poet.util.reading import LARGEST_AMOUNT


class Place(enum.Enum):
    """Where a tensor's content is between steps."""

    RAM = "ram"
    STORAGE = "storage"
    BOTH = "both"  # in RAM with a valid copy in storage, as a frozen parameter is; only `initially`
    EITHER = "either"  # in RAM or in storage, at the start and at the end, as the plan chooses; likewise


class PageForm(enum.Enum):
    """How a float32 tensor is written to storage in fewer bytes: rounded, so that it comes back another."""

    BF16 = "bf16-pages"  # the upper half of each number, rounded to nearest
    INT8 = (
        "int8-pages"  # multiples of one scale, which is in the first 4 bytes: the largest magnitude over 127
    )

    def coded_bytes(self, size_bytes: int) -> int:
        """What a tensor of ``size_bytes`` takes."""
        return size_bytes // 2 if self is PageForm.BF16 else size_bytes // 4 + 4

    @property
    def number(self) -> str:
        """What each number is written as."""
        return self.value.removesuffix("-pages")

    @property
    def error(self) -> str:
        """How far off an element comes back at most; of normal numbers, in words."""
        if self is PageForm.BF16:
            return "2^-8 of itself"
        return "1/254 of the tensor's largest magnitude"


@dataclass(frozen=True, slots=True)
class Transfer:
    """The cost of copying one tensor once, in one direction."""

    seconds: float
    joules: float

    def __post_init__(self) -> None:
        check_cost("a transfer", self.seconds, self.joules)


@dataclass(frozen=True, slots=True)
class Tensor:
    """A buffer.

    Attributes:
        name: unique among tensors.
        bytes: its size.
        page_in, page_out: cost of copying it from and to storage; ``None`` where it must not be.
        role: what it is for, as reports name it (see `poet.ir.graph.Role`).
        initially: where its content is when the step begins; ``None``: in RAM for a tensor that no
            op produces, nowhere for one that an op does. Of ``EITHER`` see `poet.problem.homes`.
        finally_: where its last content must be when the step ends; ``None``: nowhere in particular.
            In a file the field is called ``finally``.
        stored_bytes: what a copy takes in storage, whole pages; ``None``: ``bytes``.
        move: cost of moving it to another place in RAM; ``None`` where it must stay at its place.
        page_form: how it is written to storage, which its costs and ``stored_bytes`` are for; ``None``: as it
            is. Not of what begins or ends a step at a place of its own.
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
    page_form: PageForm | None = None

    def __post_init__(self) -> None:
        if self.bytes < 0 or (self.stored_bytes is not None and self.stored_bytes < 0):
            raise ProblemError(f"tensor {self.name}: a negative size")
        if self.page_form is None:
            return
        if self.bytes % 4 or self.initially is not None or self.finally_ is not None:
            raise ProblemError(f"tensor {self.name}: page_form is of float32 numbers that live within a step")
        if self.storage_bytes < self.coded_bytes:
            raise ProblemError(f"tensor {self.name}: stored_bytes do not hold it as {self.page_form.number}")

    @property
    def storage_bytes(self) -> int:
        """What a copy takes in storage."""
        return self.coded_bytes if self.stored_bytes is None else self.stored_bytes

    @property
    def coded_bytes(self) -> int:
        """What is written of it, without the rest of the last page."""
        return self.bytes if self.page_form is None else self.page_form.coded_bytes(self.bytes)


@dataclass(frozen=True, slots=True)
class Handing:
    """The cost of handing one tensor over to a unit, or from it, each time that an op reads it."""

    seconds: float = 0.0
    joules: float = 0.0
    seconds_per_byte: float = 0.0
    joules_per_byte: float = 0.0

    def __post_init__(self) -> None:
        check_cost("handing over", self.seconds, self.joules)
        check_cost("handing over", self.seconds_per_byte, self.joules_per_byte)

    def of(self, size_bytes: int) -> Transfer:
        """A tensor of ``size_bytes``."""
        return Transfer(
            self.seconds + size_bytes * self.seconds_per_byte, self.joules + size_bytes * self.joules_per_byte
        )


@dataclass(frozen=True, slots=True)
class Unit:
    """Something that runs ops beside the main unit: other cores, another thread count, a second processor.

    Attributes:
        name: unique; the main unit has none.
        handing: of each tensor that an op reads here and another unit made, or the other way round.
        threads: with which PyTorch runs its ops on this machine; ``None``: it is not here.
        ram_bytes: of its own, for what one op reads, makes and works in while it runs. All of that is handed
            over, and between runs everything is in the main RAM. ``None``: it shares that.
    """

    name: str
    handing: Handing | None = None
    threads: int | None = None
    ram_bytes: int | None = None

    def __post_init__(self) -> None:
        if not self.name or (self.threads is not None and not 1 <= self.threads <= MOST_THREADS):
            raise ProblemError(f"unit {self.name!r}: it has a name and 1 to {MOST_THREADS} threads")
        if self.ram_bytes is not None and self.ram_bytes < 0:
            raise ProblemError(f"unit {self.name}: ram_bytes is negative")


MOST_THREADS = 1024


@dataclass(frozen=True, slots=True)
class OnUnit:
    """The cost of one run of an op on the unit of that name."""

    unit: str
    seconds: float
    joules: float

    def __post_init__(self) -> None:
        check_cost(f"on unit {self.unit}", self.seconds, self.joules)


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
        stored: tensors that each run reads from in storage, whose content has to be there; it need not be in
            RAM. What the reading takes is among ``seconds`` and ``joules``.
        stored_reads, stored_read_bytes: how often a run reads there, and how much together, whole pages.
        stored_updates: those of ``stored`` that the run writes rows of where they lie; it is the only one.
            Their content is a new one afterwards, and the old one is gone. No op has them in RAM.
        stored_writes, stored_written_bytes: how often it writes there, and how much together.
        on: other units that run it, and a run's cost there; ``seconds`` and ``joules`` are the main one's.
        unit: on which it runs; empty: the main one, or as the plan chooses from ``on``.
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
    stored: tuple[str, ...] = ()
    stored_reads: int = 0
    stored_read_bytes: int = 0
    stored_updates: tuple[str, ...] = ()
    stored_writes: int = 0
    stored_written_bytes: int = 0
    on: tuple[OnUnit, ...] = ()
    unit: str = ""

    def __post_init__(self) -> None:
        check_cost(f"op {self.name}", self.seconds, self.joules)
        if self.workspace_bytes < 0:
            raise ProblemError(f"op {self.name}: workspace_bytes is negative")
        for amount in (self.stored_reads, self.stored_read_bytes):
            if not 0 <= amount <= LARGEST_AMOUNT or (amount and not self.stored):
                raise ProblemError(f"op {self.name}: {amount} stored_reads or bytes of them, or of no tensor")
        for amount in (self.stored_writes, self.stored_written_bytes):
            if not 0 <= amount <= LARGEST_AMOUNT or (amount and not self.stored_updates):
                raise ProblemError(
                    f"op {self.name}: {amount} stored_writes or bytes of them, or of no tensor"
                )
        if self.stored_updates and (self.recomputable or not set(self.stored_updates) <= set(self.stored)):
            raise ProblemError(
                f"op {self.name} writes rows in storage: it runs once, and reads there as well"
            )

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
        ops: in the place of those of the same names; none where it is another form of pages.
        omits: names of ops that do not run where it is taken.
        tensors: in the place of those of the same names, or further ones, which its ops produce; of another
            form of pages, those of the same names with other transfers.
    """

    name: str
    ops: tuple[ProblemOp, ...]
    omits: tuple[str, ...] = ()
    tensors: tuple[Tensor, ...] = ()

    @property
    def touched(self) -> tuple[str, ...]:
        """Names of the ops that are in another form, or left out."""
        return (*(op.name for op in self.ops), *self.omits)


def check_cost(what: str, seconds: float, joules: float) -> None:
    for amount, unit in ((seconds, "seconds"), (joules, "joules or watts")):
        if not 0 <= amount <= LARGEST_AMOUNT:
            raise ProblemError(
                f"{what}: {amount:g} {unit}; a cost is a finite number from 0 up, at most {LARGEST_AMOUNT:g}"
            )


def check_structure(problem: str, all_tensors: Sequence[Tensor], ops: Sequence[ProblemOp]) -> None:
    """Names are unique and known, ops can run in their order, and each tensor can get where it must be.

    Raises:
        ProblemError: otherwise, of the problem of the name ``problem``.
    """
    tensors = {tensor.name: tensor for tensor in all_tensors}
    if len(tensors) < len(all_tensors):
        raise ProblemError(f"{problem}: two tensors have the same name")
    if len({op.name for op in ops}) < len(ops):
        raise ProblemError(f"{problem}: two ops have the same name")
    produced = {name for op in ops for name in op.outputs}
    updated = {name for op in ops for name in op.updates}
    ready = set(tensors) - produced
    for op in ops:
        reads = (*op.inputs, *(op.recompute_inputs or ()))
        is_new = ready.isdisjoint(op.outputs) and len(set(op.outputs)) == len(op.outputs)
        if not (is_new and ready.issuperset(reads) and tensors.keys() >= {*op.outputs, *op.updates}):
            _check_reads(op, tensors, ready)
        for name in op.updates:
            if name not in op.inputs:
                raise ProblemError(f"op {op.name} updates {name}, which is not among its inputs")
        ready.update(op.outputs)
    _check_stored(tensors, ops, produced | updated)
    _check_stored_updates(tensors, ops)
    for tensor in all_tensors:
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
        rewritten = tensor.name in updated or tensor.initially not in (Place.STORAGE, Place.BOTH)
        if tensor.finally_ is Place.STORAGE and tensor.page_out is None and rewritten:
            raise ProblemError(f"tensor {tensor.name} must end in storage but has no page_out cost")


def _check_stored(tensors: Mapping[str, Tensor], ops: Sequence[ProblemOp], changed: Container[str]) -> None:
    """What ops read from in storage lies there when the step begins, and no op makes or updates it."""
    for op in ops:
        for name in op.stored:
            if name not in tensors:
                raise ProblemError(f"op {op.name}: there is no tensor {name!r}")
            there = tensors[name].initially in (Place.STORAGE, Place.BOTH, Place.EITHER)
            if not there or name in changed or tensors[name].page_in is None:
                raise ProblemError(f"op {op.name} reads from {name} in storage, where it need not be")


def _check_stored_updates(tensors: Mapping[str, Tensor], ops: Sequence[ProblemOp]) -> None:
    """What ops write rows of in storage is at home there alone, and what reads it there runs once."""
    written = {name: op.name for op in ops for name in op.stored_updates}
    for op in ops if written else ():
        for name in (*op.inputs, *op.rerun_inputs):
            if name in written:
                raise ProblemError(
                    f"op {op.name} has {name} in RAM, of which {written[name]} writes rows in storage"
                )
        for name in op.stored if op.recomputable else ():
            if name in written:
                raise ProblemError(f"op {op.name} may run after {written[name]} has written rows of {name}")
    for name, writer in written.items():
        tensor = tensors[name]
        if tensor.initially not in (Place.STORAGE, Place.EITHER) or tensor.finally_ is Place.RAM:
            raise ProblemError(f"op {writer} writes rows of {name}, which is not in storage between steps")


def _check_reads(op: ProblemOp, tensors: Container[str], ready: Container[str]) -> None:
    """``op`` names tensors that there are, reads what is ``ready`` and makes what is not."""
    for name in (*op.inputs, *op.outputs, *op.updates, *(op.recompute_inputs or ())):
        if name not in tensors:
            raise ProblemError(f"op {op.name}: there is no tensor {name!r}")
    for name in (*op.inputs, *op.rerun_inputs):
        if name not in ready:
            raise ProblemError(f"op {op.name} reads {name} before an op produces it")
    made = set[str]()
    for name in op.outputs:
        if name in ready or name in made:
            raise ProblemError(f"op {op.name} produces {name}, which is there already")
        made.add(name)


def resolved_parts(
    own_tensors: Sequence[Tensor], own_ops: Sequence[ProblemOp], taken: Sequence[Alternative]
) -> tuple[tuple[Tensor, ...], tuple[ProblemOp, ...]]:
    """Tensors and ops of a problem in which the alternatives ``taken`` are taken, and no others."""
    forms = {op.name: op for alternative in taken for op in alternative.ops}
    omitted = {name for alternative in taken for name in alternative.omits}
    ops = tuple(forms.get(op.name, op) for op in own_ops if op.name not in omitted)
    others = {tensor.name: tensor for alternative in taken for tensor in alternative.tensors}
    own = {tensor.name for tensor in own_tensors}
    made = {name for op in ops for name in op.outputs}
    lost = {name for op in own_ops for name in op.outputs} - made
    tensors = (
        *(others.get(tensor.name, tensor) for tensor in own_tensors if tensor.name not in lost),
        *(tensor for tensor in others.values() if tensor.name not in own),
    )
    return tensors, ops


def check_alternatives(
    problem: str,
    own_tensors: Sequence[Tensor],
    own_ops: Sequence[ProblemOp],
    alternatives: Sequence[Alternative],
) -> None:
    """Any may be taken: none touches what is another's, and each alone is a problem, as all together are.

    What two of them could break between them all of them break.

    Raises:
        ProblemError: otherwise, of the problem of the name ``problem``.
    """
    if len({each.name for each in alternatives}) < len(alternatives):
        raise ProblemError(f"{problem}: two alternatives have the same name")
    ops, tensors = {op.name: op for op in own_ops}, {tensor.name for tensor in own_tensors}
    produced = {name for op in own_ops for name in op.outputs}
    seen: set[tuple[str, str]] = set()
    for alternative in alternatives:
        where = f"alternative {alternative.name}"
        changed = _changed(alternative)
        is_of_pages = _is_of_pages(alternative, own_tensors)
        if not (alternative.ops or (is_of_pages and alternative.tensors)) or len(set(changed)) < len(changed):
            raise ProblemError(f"{where}: it has no op, or the same twice")
        for kind, name in changed:
            if (kind, name) in seen:
                raise ProblemError(f"{where}: {kind} {name} is another alternative's as well")
            if kind == "op" and name not in ops:
                raise ProblemError(f"{where}: there is no op {name!r}")
        seen.update(changed)
        by_row = {name for op in alternative.ops for name in op.stored_updates}
        for op in alternative.ops:
            if op.updates != tuple(name for name in ops[op.name].updates if name not in by_row):
                raise ProblemError(f"{where}: op {op.name} updates other tensors than without it")
        for name in alternative.omits:
            if not by_row.issuperset(ops[name].updates):
                raise ProblemError(f"{where}: op {name} updates tensors and cannot be left out")
        if not by_row <= {each for name in alternative.touched for each in _changes(ops[name])}:
            raise ProblemError(f"{where}: it writes rows of other tensors than are updated without it")
        made = {name for op in alternative.ops for name in op.outputs}
        for tensor in () if is_of_pages else alternative.tensors:
            if tensor.name not in made or (tensor.name in tensors and tensor.name not in produced):
                raise ProblemError(f"{where}: tensor {tensor.name} is not made by its ops")
        _check_together(problem, own_tensors, own_ops, [alternative], where)
    if alternatives:
        _check_together(problem, own_tensors, own_ops, alternatives, "all alternatives together")


def check_units(problem: str, units: Sequence[Unit], ops: Iterable[ProblemOp]) -> None:
    """Names of units are unique, and ops run on those that there are.

    Raises:
        ProblemError: otherwise, of the problem of the name ``problem``.
    """
    known = {unit.name for unit in units}
    if len(known) < len(units):
        raise ProblemError(f"{problem}: two units have the same name")
    for op in ops:
        names = [each.unit for each in op.on] + ([op.unit] if op.unit else [])
        if not known.issuperset(names):
            raise ProblemError(f"op {op.name}: there is no unit {min({*names} - known)!r}")
        if len({*names}) < len(names) or (op.on and op.unit):
            raise ProblemError(f"op {op.name}: it names a unit twice, or one beside a choice")


def _is_of_pages(alternative: Alternative, tensors: Sequence[Tensor]) -> bool:
    """Whether it has no ops, and changes but how tensors that live within a step go to storage and back."""
    known = {tensor.name: tensor for tensor in tensors}

    def without_pages(tensor: Tensor) -> Tensor:
        return replace(tensor, page_in=None, page_out=None, stored_bytes=None, page_form=None)

    return not alternative.touched and all(
        each.name in known
        and each.initially is each.finally_ is None
        and without_pages(each) == without_pages(known[each.name])
        for each in alternative.tensors
    )


def _changes(op: ProblemOp) -> tuple[str, ...]:
    """Tensors that have another content after ``op``."""
    return (*op.updates, *op.stored_updates)


def _changed(alternative: Alternative) -> list[tuple[str, str]]:
    """Kind and name of the ops and tensors that are not as they are without it."""
    return [
        *(("op", name) for name in alternative.touched),
        *(("tensor", tensor.name) for tensor in alternative.tensors),
    ]


def _check_together(
    problem: str,
    own_tensors: Sequence[Tensor],
    own_ops: Sequence[ProblemOp],
    taken: Sequence[Alternative],
    where: str,
) -> None:
    try:
        check_structure(problem, *resolved_parts(own_tensors, own_ops, taken))
    except ProblemError as error:
        raise ProblemError(f"{where}: {error}") from None
