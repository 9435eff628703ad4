"""What a sweep found, as frozen records: settings, points, plans and answers.

A `Setting` is one planning problem: the model at one batch size with one optimizer on one device. A `Point`
is a setting with a RAM budget and a deadline; its plan, where it has one, stands in `WhatIf.plans` and may
serve several points. An `Answer` is a sentence with the points it rests on.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from poet.devices.profile import Profile
from poet.errors import InputError, how_to_install
from poet.ir.micro import SUM, MicroBatches
from poet.problem import Limits, Problem
from poet.problem.schedule import Schedule
from poet.problem.solution import LowerBound, Status
from poet.util.brief import brief, shortened, told
from poet.util.units import IN_ORDER
from poet.whatif.grid import Question

if TYPE_CHECKING:
    import pandas

CellValue = str | int | float | None


class Verdict(enum.Enum):
    """What is known of a point: how a search for it ended, or that none was begun.

    The value is the sentence the user reads. The bound of a point may be that of a single solver, or
    that of a point with looser limits.
    """

    OPTIMAL = f"The plan is optimal {IN_ORDER}: it is at its bound."
    FEASIBLE = Status.FEASIBLE.value
    INFEASIBLE = Status.INFEASIBLE.value
    TIMEOUT = Status.TIMEOUT.value
    UNSOLVED = "The sweep was stopped before this point."

    @property
    def word(self) -> str:
        """``optimal``, ``feasible``, ``infeasible``, ``timeout`` or ``unsolved``."""
        return self.name.lower()


class Origin(enum.Enum):
    """Where a point's verdict comes from; the value is how a report puts it."""

    SEARCH = "its own search"
    CACHE = "its own search, in an earlier sweep"
    NEIGHBOUR = "the plan, the bound or the infeasibility of other points: by monotonicity"
    ARITHMETIC = "arithmetic: keeping everything fits, or nothing does"
    NONE = "nothing yet"


class Basis(enum.Enum):
    """What an answer rests on; the value is how a report puts it."""

    SOLVED = "solved"
    INTERPOLATED = "interpolated between solved points"
    MEASURED = "data prepared as measured on this machine"
    GIVEN = "computed from figures that were given"


@dataclass(frozen=True, slots=True)
class Setting:
    """One planning problem of the sweep.

    Attributes:
        device, device_title: name and title of the profile; of a saved problem its own source.
        binding: sizes given to the model's dynamic dimensions.
        batch: samples per step; ``None`` where the model does not show it.
        optimizer: its name; empty for a saved problem.
        problem: what is planned.
        profile: the device's figures; ``None`` for a saved problem.
        keep_everything_bytes: what plain training needs.
        lower_bound: RAM below which no schedule exists.
        ends: the problem with every figure of the device at its good and at its bad end; ``None``: no figures
            are known.
        micro: how a batch is trained in pieces; ``None``: as a whole.
        accumulating: of all pieces but the last, where they come one after the other: these sum gradients,
            and ``problem`` is that of the last, which updates; ``None``: ``problem`` is the whole step.
    """

    device: str
    device_title: str
    binding: tuple[tuple[str, int], ...]
    batch: int | None
    optimizer: str
    problem: Problem
    profile: Profile | None
    keep_everything_bytes: int
    lower_bound: LowerBound
    ends: tuple[Problem, Problem] | None = None
    micro: MicroBatches | None = None
    accumulating: Setting | None = None

    @property
    def label(self) -> str:
        """For people, e.g. ``rpi4b, N=4, adamw``."""
        pieces = "" if self.micro is None else self.pieces
        return ", ".join(filter(None, (self.device, self.sizes, self.optimizer, pieces)))

    @property
    def sizes(self) -> str:
        """Of its dynamic dimensions, e.g. ``N=4, L=64``."""
        return ", ".join(f"{name}={size}" for name, size in self.binding)

    @property
    def pieces(self) -> str:
        """For people, e.g. ``4 micro-batches, losses summed``."""
        if self.micro is None:
            return "whole batches"
        return f"{self.micro.count} micro-batches" + (", losses summed" if self.micro.loss == SUM else "")

    @property
    def schedules(self) -> tuple[tuple[Setting, int], ...]:
        """Those that a step runs, and how often: that which updates, then that which sums, if any."""
        if self.accumulating is None or self.micro is None:
            return ((self, 1),)
        return (self, 1), (self.accumulating, self.micro.count - 1)

    @property
    def compute_joules(self) -> float:
        """Of a step that runs every op once, all its pieces."""
        return sum(times * part.problem.compute_joules for part, times in self.schedules)

    @property
    def compute_seconds(self) -> float:
        """The same in seconds."""
        return sum(times * part.problem.compute_seconds for part, times in self.schedules)

    @property
    def micro_text(self) -> str | None:
        """As it is asked for, ``1`` of a whole batch; ``None`` where the batch is not known."""
        if self.micro is not None:
            return str(self.micro)
        return None if self.batch is None else "1"


@dataclass(frozen=True, slots=True)
class FoundPlan:
    """A schedule and what the simulator says it does in one training step, all its pieces together.

    Attributes:
        setting: index of its setting.
        schedule: what happens, in order; of micro-batches one after the other, what the last does.
        joules: of the step; ``compute_joules``, ``page_in_joules``, ``page_out_joules`` and
            ``idle_joules`` are its parts.
        seconds: of the step; the others are the engines' busy times.
        peak_ram_bytes: the largest RAM at any moment.
        recomputed_runs: compute steps beyond each op's first.
        read_bytes, written_bytes: from and to storage.
        worn_bytes: that the storage must erase for what is written, in whole erase blocks.
        solver: that found it.
        good_joules, bad_joules, good_seconds, bad_seconds: with every figure of the device at its good and at
            its bad end; ``None``: no figures are known.
        accumulating: what each piece but the last does; ``None``: ``schedule`` is the whole step.
    """

    setting: int
    schedule: Schedule
    joules: float
    compute_joules: float
    page_in_joules: float
    page_out_joules: float
    idle_joules: float
    seconds: float
    compute_seconds: float
    page_in_seconds: float
    page_out_seconds: float
    peak_ram_bytes: int
    recomputed_runs: int
    read_bytes: int
    written_bytes: int
    worn_bytes: int
    solver: str
    good_joules: float | None = None
    bad_joules: float | None = None
    good_seconds: float | None = None
    bad_seconds: float | None = None
    accumulating: Schedule | None = None

    __repr__ = brief


@dataclass(frozen=True, slots=True)
class Point:
    """One cell of the grid.

    Attributes:
        setting: index of its setting.
        limits: the RAM budget, the deadline and the permissions.
        deadline: as it was asked for (``1.3x``, ``20ms``); ``None``: no deadline.
        verdict: what is known.
        origin: where from.
        plan: index of its plan; ``None`` without one.
        bound_joules: no plan of the point costs less.
        gap, overhead_gap: shares of the joules, and of the joules above running every op once, that
            a better plan could save at most; ``None`` without a plan.
        warm_start: index of the point whose plan the search began with; ``None``: from nothing.
        solve_seconds: wall clock of its own search; 0 without one.
        message: why it is infeasible, or what would help.
    """

    setting: int
    limits: Limits
    deadline: str | None
    verdict: Verdict
    origin: Origin
    plan: int | None
    bound_joules: float
    gap: float | None
    overhead_gap: float | None
    warm_start: int | None = None
    solve_seconds: float = 0.0
    message: str = ""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a plan means in daily use; ``None`` where the question or the profile does not say.

    Attributes:
        joules_per_sample: of training.
        session_joules, session_seconds: of one session, data stalls included.
        battery_share_per_session: of a full charge.
        sessions_per_charge: whole sessions.
        budget_steps: steps that the energy budget buys, per its period.
        budget_samples, budget_epochs: the same in samples and in passes over the data set.
        flash_life_steps, flash_life_years: until the storage is worn out; infinite where nothing is
            written.
        session_grams: of carbon dioxide at the grid's intensity.
    """

    joules_per_sample: float | None
    session_joules: float
    session_seconds: float
    battery_share_per_session: float | None
    sessions_per_charge: int | None
    budget_steps: int | None
    budget_samples: int | None
    budget_epochs: float | None
    flash_life_steps: float | None
    flash_life_years: float | None
    session_grams: float | None


@dataclass(frozen=True, slots=True)
class DataStall:
    """How fetching and preparing a step's input changes the step (after DS-Analyzer).

    Attributes:
        point: index of the point.
        bound_by: ``compute``, ``paging`` or ``data``: what, made free, would shorten the step most.
        step_seconds: of the step with its data; ``plan_seconds`` is without.
        fetch_seconds, prepare_seconds: of one step's input.
        stall_seconds: of the step, spent waiting for data.
        flash_seconds: that pages and data together keep the storage busy.
        stall_joules: of fetching, preparing and waiting.
        cache_bytes: the size of the data cache asked about; ``None``: none was.
        cached_share: of the data set that it holds.
        cached_step_seconds: of the step with that cache.
    """

    point: int
    bound_by: str
    plan_seconds: float
    step_seconds: float
    fetch_seconds: float
    prepare_seconds: float
    stall_seconds: float
    flash_seconds: float
    stall_joules: float
    cache_bytes: int | None = None
    cached_share: float | None = None
    cached_step_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Marginal:
    """What one change to a point buys, by solving again with it.

    Attributes:
        point: index of the point that is changed.
        change: e.g. ``64 KiB more RAM`` or ``twice the flash bandwidth``.
        joules_before, joules_after, seconds_before, seconds_after: of the step; per sample where the
            change is of the batch size. ``None`` after: no plan was found.
        saved_share: of the joules; negative: it costs more.
        certain: whether the saving is larger than both gaps, so that better plans could not undo it.
    """

    point: int
    change: str
    joules_before: float
    joules_after: float | None
    seconds_before: float
    seconds_after: float | None
    saved_share: float | None
    certain: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """A question of the team, answered in a sentence.

    Attributes:
        question: a short key: ``least-ram``, ``least-energy``, ``which-device``, ``energy-budget``,
            ``battery``, ``flash-life``, ``wall-time``, ``carbon``, ``largest-...``,
            ``marginal-value``, ``data-stalls``.
        sentence: the answer.
        basis: what it rests on.
        points: indices of the points it rests on.
        figures: the numbers of the sentence, by name with the unit at its end.
    """

    question: str
    sentence: str
    basis: Basis
    points: tuple[int, ...] = ()
    figures: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A sweep: everything that was asked, planned and answered.

    Attributes:
        question: what was asked.
        settings, points, plans: what was planned; indices elsewhere point into these.
        usages: per point, what its plan means in daily use; ``None`` without a plan.
        stalls: data stalls of the chosen points, where data were asked about.
        marginals: what changes of the chosen point buy.
        answers: most important first; the first is the headline.
        chosen: index of the point that the headline is about; ``None``: nothing fits.
        complete: whether nothing was left out by an interruption.
        sweep_seconds: wall clock.
        searched, from_cache, by_monotonicity: how many points were decided in which way.
    """

    question: Question
    settings: tuple[Setting, ...]
    points: tuple[Point, ...]
    plans: tuple[FoundPlan, ...]
    usages: tuple[Usage | None, ...]
    stalls: tuple[DataStall, ...]
    marginals: tuple[Marginal, ...]
    answers: tuple[Answer, ...]
    chosen: int | None
    complete: bool
    sweep_seconds: float
    searched: int
    from_cache: int
    by_monotonicity: int

    def __repr__(self) -> str:
        parts = f"{len(self.settings)} settings, {len(self.points)} points, {len(self.plans)} plans"
        return told(
            self, f"for {shortened(self.question.model)}: {parts}{'' if self.complete else '; stopped early'}"
        )

    def setting_of(self, point: Point) -> Setting:
        """The planning problem of ``point``."""
        return self.settings[point.setting]

    def plan_of(self, point: Point) -> FoundPlan | None:
        """The plan of ``point``, if it has one."""
        return None if point.plan is None else self.plans[point.plan]

    def planned(self, *, usable: bool = False) -> Iterator[tuple[int, Point, FoundPlan]]:
        """Index, point and plan of every point that has one; ``usable``: see `is_usable`."""
        for index, point in enumerate(self.points):
            plan = self.plan_of(point)
            if plan is not None and (not usable or self.is_usable(point, plan)):
                yield index, point, plan

    def of_chosen(self) -> tuple[Point, Setting, FoundPlan, Usage]:
        """The chosen point with all that belongs to it; there must be one."""
        assert self.chosen is not None
        point, usage = self.points[self.chosen], self.usages[self.chosen]
        plan = self.plan_of(point)
        assert plan is not None
        assert usage is not None
        return point, self.setting_of(point), plan, usage

    def leanest(self, index: int) -> int:
        """The point with a plan of the same setting and deadline that has the least RAM budget."""
        alike = self.points[index].setting, self.points[index].deadline
        return min(
            (point.limits.ram_budget_bytes or 0, number)
            for number, point, _ in self.planned()
            if (point.setting, point.deadline) == alike
        )[1]

    def highlighted(self) -> tuple[int, ...]:
        """The chosen point and the leanest like it, of which more is said; empty: none is chosen."""
        return () if self.chosen is None else tuple(dict.fromkeys((self.chosen, self.leanest(self.chosen))))

    def per_sample(self, index: int) -> float:
        """Joules per sample of a point with a plan, or per step where the batch is not known."""
        plan = self.plan_of(self.points[index])
        assert plan is not None
        return plan.joules / (self.setting_of(self.points[index]).batch or 1)

    def is_there(self, point: Point, plan: FoundPlan) -> bool:
        """Whether the device has the RAM that the plan takes; larger budgets ask about another board."""
        profile = self.setting_of(point).profile
        return profile is None or plan.peak_ram_bytes <= profile.memory.ram_bytes.value

    def is_usable(self, point: Point, plan: FoundPlan) -> bool:
        """Whether, besides, at least one step is within the energy budget."""
        budget = self.question.duty.energy_budget
        affordable = budget is None or plan.joules <= budget.joules * (1 + 1e-12)
        return affordable and self.is_there(point, plan)

    def rows(self) -> list[dict[str, CellValue]]:
        """One dict per point, with `COLUMNS` as keys."""
        return [_row(self, index, point) for index, point in enumerate(self.points)]

    def to_pandas(self) -> pandas.DataFrame:
        """`rows` as a DataFrame.

        Raises:
            InputError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise InputError(f"to_pandas needs pandas; {how_to_install('pandas')}") from None
        return pandas.DataFrame(self.rows())


_PLAN = tuple(
    item.name for item in fields(FoundPlan) if item.name not in ("setting", "schedule", "accumulating")
)
_POINT = (
    "deadline", "bound_joules", "gap", "overhead_gap", "plan", "warm_start", "solve_seconds", "message",
)  # fmt: skip
_USAGE = tuple(item.name for item in fields(Usage))
COLUMNS = (
    "point", "device", "binding", "batch", "optimizer", "micro", "ram_budget_bytes", "deadline",
    "deadline_seconds", "verdict", "origin", "bound_joules", "gap", "overhead_gap", *_PLAN, *_USAGE,
    "plan", "warm_start", "solve_seconds", "message",
)  # fmt: skip
"""Of a row, in order; docs/what-if.md describes them. Empty: not known, or without a plan."""


def _row(result: WhatIf, index: int, point: Point) -> dict[str, CellValue]:
    setting = result.setting_of(point)
    row = {
        "point": index,
        "binding": " ".join(f"{name}={size}" for name, size in setting.binding),
        "micro": setting.micro_text,
        "ram_budget_bytes": point.limits.ram_budget_bytes,
        "deadline_seconds": point.limits.deadline_seconds,
        "verdict": point.verdict.word,
        "origin": point.origin.name.lower(),
        **attributes(setting, ("device", "batch", "optimizer")),
        **attributes(point, _POINT),
        **attributes(result.plan_of(point), _PLAN),
        **attributes(result.usages[index], _USAGE),
    }
    return {name: row[name] for name in COLUMNS}


def attributes(record: object, names: tuple[str, ...]) -> dict[str, CellValue]:
    """Attributes of a ``record``; ``None`` of each where there is no record."""
    return {name: None if record is None else getattr(record, name) for name in names}
