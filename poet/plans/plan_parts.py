"""What a plan is made of: for which model and device, what was asked, how it was answered, where all lies."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from poet.errors import PlanError
from poet.ir.loss import LOGITS, LossSpec
from poet.ir.micro import MicroBatches
from poet.ir.strips import Gradients
from poet.memory.demand import Move
from poet.problem import Limits, Objective, PageForm
from poet.problem.search_record import NO_SEARCH, SearchRecord
from poet.util.brief import brief


@dataclass(frozen=True, slots=True)
class Model:
    """Which model the plan is for.

    Attributes:
        name: for people.
        kind: ``"onnx"`` or ``"module"``.
        sha256: of the model file, or of what stands for it; saved training states are bound to it.
        binding: sizes given to dynamic dimensions.
        output: ``"logits"``: what its last softmax or sigmoid is given, in place of the first output.
        lines: of its source, where it is known: the name of a tensor, and the line whose call makes it.
    """

    name: str
    kind: str
    sha256: str
    binding: tuple[tuple[str, int], ...] = ()
    output: str | None = None
    lines: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if self.output not in (None, LOGITS):
            raise PlanError(f"a model's output is {LOGITS!r} or left out, not {self.output!r}")
        if self.kind not in ("onnx", "module"):
            raise PlanError(f"a model is of kind 'onnx' or 'module', not {self.kind!r}")


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for; ``loss`` as `poet.ir.loss` reads it, ``train`` are patterns of parameters to train.

    ``gradients``: whether weight gradients were to be made block by block; the graph tells which are.
    ``micro``: how each batch is trained in pieces; ``None``: as a whole.
    ``allow``: forms in which what is paged may be rounded.
    """

    limits: Limits
    loss: str
    train: tuple[str, ...] = ("*",)
    gradients: Gradients = Gradients.STREAM
    micro: MicroBatches | None = None
    allow: tuple[PageForm, ...] = ()

    def __post_init__(self) -> None:
        LossSpec.parse(self.loss)


@dataclass(frozen=True, slots=True)
class Endurance:
    """What storage survives; ``None``: not known, or of no concern.

    Attributes:
        written_bytes: in its life, where a controller spreads writes over all blocks.
        cycles: erases of each block, where nothing does: then the block that is erased most ends it.
        block_bytes: what is erased at once.
    """

    written_bytes: float | None = None
    cycles: int | None = None
    block_bytes: int = 1


@dataclass(frozen=True, slots=True)
class Device:
    """What a report says about the device; costs stand in the plan's problem.

    Attributes:
        name, title: of the profile.
        ram_bytes, storage_bytes: what the device has.
        storage_page_bytes: the unit of writing to storage.
        endurance_bytes, endurance_cycles, erase_block_bytes: of storage, see `Endurance`.
        wear_levelled: whether something spreads writes over it; plans of before did not say so.
    """

    name: str
    title: str = ""
    ram_bytes: int | None = None
    storage_bytes: int | None = None
    storage_page_bytes: int | None = None
    endurance_bytes: float | None = None
    wear_levelled: bool = False
    endurance_cycles: int | None = None
    erase_block_bytes: int = 1

    def __post_init__(self) -> None:
        if min(self.erase_block_bytes, 1 if self.endurance_cycles is None else self.endurance_cycles) < 1:
            raise PlanError("a device erases blocks of 1 byte or more, each once or more often")

    @property
    def endurance(self) -> Endurance:
        """What its storage survives."""
        written_bytes = self.endurance_bytes if self.wear_levelled else None
        return Endurance(written_bytes, self.endurance_cycles, self.erase_block_bytes)


@dataclass(frozen=True, slots=True)
class Choice:
    """What was chosen to be trained, and how good that is.

    Attributes:
        groups: patterns of each that was chosen, in a line.
        candidates: how many there were to choose from.
        contribution: share of all scores.
        bound: no set contributes more; where ``at_least`` is given, none that contributes so much takes fewer
            joules per step than this.
        at_least: the share that was to be reached at least energy; ``None``: the most was asked for.
    """

    groups: tuple[str, ...]
    candidates: int
    contribution: float
    bound: float
    at_least: float | None = None

    def __post_init__(self) -> None:
        shares = (self.contribution, *([self.bound] if self.at_least is None else [self.at_least]))
        if not all(0 <= share <= 1 for share in shares) or not 0 <= self.bound < math.inf:
            raise PlanError("a choice of what to train has shares from 0 to 1, and a bound from 0 up")


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    """How the search for the schedule ended.

    Attributes:
        status: ``"optimal"`` or ``"feasible"``.
        bound_joules: no schedule takes less, among those that ``bound_scope`` names.
        bound_scope: what the bound holds for.
        baseline_joules: of running every op once with no transfer.
        gap, overhead_gap: shares of the joules, and of the joules above the baseline, that a better
            schedule could save at most.
        solver: that found the schedule.
        solve_seconds: wall clock of the search.
        objective: what the schedule takes the least of.
        objective_bound: where that is not energy: no schedule takes less of it, in seconds or bytes.
        proof: who stands behind an optimal plan, beside the engine that found it; may be empty.
        record: what the search did and when.
        is_online: whether an online policy made the schedule, because no search had one in time.
        choice: of what to train; ``None``: that was given.
    """

    status: str
    bound_joules: float
    bound_scope: str
    baseline_joules: float
    gap: float
    overhead_gap: float
    solver: str
    solve_seconds: float
    objective: Objective = Objective.ENERGY
    objective_bound: float | None = None
    proof: str = ""
    record: SearchRecord = NO_SEARCH
    is_online: bool = False
    choice: Choice | None = None

    def __post_init__(self) -> None:
        if self.status not in ("optimal", "feasible"):
            raise PlanError(f"a plan is 'optimal' or 'feasible', not {self.status!r}")


@dataclass(frozen=True, slots=True)
class PriceEnds:
    """What a step takes where a device is good and where it is bad; what is stated lies between."""

    good_seconds: float
    bad_seconds: float
    good_joules: float
    bad_joules: float


@dataclass(frozen=True, slots=True)
class PriceRange(PriceEnds):
    """What a step takes with every figure of the device at its good and at its bad end.

    The schedule is the same at both.

    ``likely``: between which ends it lies in nine cases of ten (`poet.devices.spread.likely_ends`); ``None``:
    not known.
    """

    likely: PriceEnds | None = None


@dataclass(frozen=True, slots=True)
class MeasuredShare:
    """How much of a step's computing was measured op by op on the device; the rest follows from classes.

    Attributes:
        ops: that have measured times.
        seconds_share: of running every op once, what these take.
        extrapolated: names of the others.
    """

    ops: int
    seconds_share: float
    extrapolated: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Prediction:
    """What one training step takes.

    Attributes:
        peak_ram_bytes, seconds, joules: of the plan, by the simulator.
        plain_peak_ram_bytes: that plain training needs, keeping every tensor to its last use.
        lower_bound_ram_bytes: below which no schedule exists.
        range: as far as the device's figures may be off; ``None``: not known.
        measured: which ops have measured times; ``None``: the device's profile has none.
    """

    peak_ram_bytes: int
    seconds: float
    joules: float
    plain_peak_ram_bytes: int | None = None
    lower_bound_ram_bytes: int | None = None
    range: PriceRange | None = None
    measured: MeasuredShare | None = None


@dataclass(frozen=True, slots=True)
class PageSlot:
    """A tensor's place in the page file, in bytes from the first slot."""

    tensor: str
    offset_bytes: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Arena:
    """Places in RAM for all that the schedule asks for, in one piece of memory.

    Attributes:
        size_bytes: of the piece.
        offsets_bytes: from its start, one per block of `poet.memory.demand.demand_of`; where blocks lie
            at first.
        moves: blocks that get another place within the step, in the order of its steps.
    """

    size_bytes: int
    offsets_bytes: tuple[int, ...]
    moves: tuple[Move, ...] = ()

    __repr__ = brief
