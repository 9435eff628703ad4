"""The sweep: every setting's grid from coarse to fine, each search begun with a neighbour's plan.

Cells of one round of bisection are searched in parallel. Which they are, and what they begin with, depends
on earlier rounds alone: an interrupted sweep goes the same way when repeated. The simulator validates each
answer in this process, and each plan again under the limits of every point it serves.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from poet.planning.cache import Cache, SolvedCell
from poet.problem import Limits
from poet.problem.simulator import Trace, simulate
from poet.problem.solution import SolveOptions, Start
from poet.solvers.heuristics.policies import keep_everything
from poet.util.units import IN_ORDER, format_bytes, format_joules, format_share
from poet.whatif.knowledge import Candidate, Cell, Knowledge, Known, joined, parts_of, validated
from poet.whatif.result import FoundPlan, Origin, Point, Setting, Verdict
from poet.whatif.usage import wear_of
from poet.whatif.workers import Run, Solver, Wanted, given_up

_log = logging.getLogger(__name__)

KEEP_EVERYTHING = -1  # in place of a point: the plan that needs no search
_ORIGINS = (Origin.NONE, Origin.SEARCH, Origin.CACHE, Origin.NEIGHBOUR, Origin.ARITHMETIC)
"""Of the schedules of a step, that which comes first here is the origin of its point."""


@dataclass(frozen=True, slots=True)
class SweepProgress:
    """How far a sweep is.

    Attributes:
        done, total: points decided, and all of them.
        seconds: since the start.
        seconds_left: if the rest takes as long per search as what was searched; ``None``: too early.
        doing: what is being done.
    """

    done: int
    total: int
    seconds: float
    seconds_left: float | None
    doing: str


Report = Callable[[SweepProgress], None]


class Swept(NamedTuple):
    """Points and the plans that serve them."""

    points: tuple[Point, ...]
    plans: tuple[FoundPlan, ...]


@dataclass(slots=True)
class _Part:
    """One schedule of a point that is to be found, and how that went."""

    point: int
    cell: Cell
    limits: Limits
    setting: Setting
    knowledge: Knowledge
    name: str
    origin: Origin = Origin.NONE
    warm_start: int | None = None
    solve_seconds: float = 0.0
    message: str = ""

    @property
    def known(self) -> Known:
        return self.knowledge.best(self.limits)

    @property
    def source(self) -> Origin:
        """Where what is known comes from."""
        known = self.known
        if self.origin is not Origin.NONE:
            return self.origin
        if known.infeasible and known.message not in (message for _, message in self.knowledge.barriers):
            return Origin.ARITHMETIC
        if known.plan is not None and known.plan.cell == KEEP_EVERYTHING and known.closed:
            return Origin.ARITHMETIC
        return Origin.NONE if known.plan is None and not known.infeasible else Origin.NEIGHBOUR


@dataclass(slots=True)
class Sweep:
    """A running sweep; `swept` gives what is known at any time.

    Attributes:
        settings: what is planned, each one schedule or two (`poet.whatif.knowledge`).
        grids: the cells of each.
        options: of every search.
        cache: where answers are kept.
        jobs: searches at a time, for the time left.
        report: called after each search.
    """

    settings: Sequence[Setting]
    grids: Sequence[Sequence[Cell]]
    options: SolveOptions
    cache: Cache
    jobs: int = 1
    report: Report | None = None
    points: list[tuple[int, tuple[_Part, ...]]] = field(init=False, default_factory=list)
    started: float = field(init=False, default_factory=time.monotonic)
    searched: list[float] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        for number, (setting, grid) in enumerate(zip(self.settings, self.grids, strict=True)):
            knowledge = [_knowledge(part, self.options) for part, _ in setting.schedules]
            for cell in grid:
                index = len(self.points)
                parts: list[_Part] = []
                for part, known in zip(parts_of(setting, cell.limits), knowledge, strict=True):
                    name = f"point {index}{', all micro-batches but the last' * bool(parts)}"
                    parts.append(_Part(index, cell, part.limits, part.setting, known, name))
                self.points.append((number, tuple(parts)))

    def run(self, run: Run) -> bool:
        """Decide every cell; false where Ctrl-C came first. What is known then stays known."""
        solver = Solver(self.options, self.cache, run)
        _log.info("the sweep begins: settings %d, points %d", len(self.settings), len(self.points))
        try:
            for level in range(1 + max((cell.level for grid in self.grids for cell in grid), default=0)):
                self._round(level, solver)
        except KeyboardInterrupt:
            _log.info("the sweep was interrupted")
            return False
        _log.info("the sweep ends after %.3f s", time.monotonic() - self.started)
        return True

    def _round(self, level: int, solver: Solver) -> None:
        """Search the cells of one level that do not follow from others."""
        for part in self._open(level):
            answer = solver.cached(_wanted(part))
            if answer is not None and not part.knowledge.refutes(part.limits, answer):
                self._take(part, answer, Origin.CACHE)
        parts = list(self._open(level))
        left = Counter(part.point for part in self._open(None))
        decided = len(self.points) - len(left)
        _log.info(
            "round %d: %d of %d points are decided, %d to search",
            level + 1, decided, len(self.points), len(parts),
        )  # fmt: skip
        wanted = []
        for part in parts:
            plan = part.known.plan
            part.warm_start = None if plan is None or plan.cell == KEEP_EVERYTHING else plan.cell
            start = part.warm_start
            begins = "" if start is None else f"; its search begins with the plan of point {start}"
            _log.info("%s is %s%s", part.name, self._title(part), begins)
            wanted.append(_wanted(part))
        self._say(level, left)
        for index, found in solver.search(wanted):
            part = parts[index]
            if found is None:
                part.origin, part.message = Origin.SEARCH, given_up("The search")
                _log.info("%s: %s", part.name, part.message)
            else:
                self.searched.append(found.solve_seconds)
                self._take(part, found, Origin.SEARCH)
            left[part.point] -= 1
            self._say(level, left)

    def _take(self, part: _Part, answer: SolvedCell, origin: Origin) -> None:
        """Note an answer, and what is known of its part now."""
        part.knowledge.add(part.point, part.limits, answer)
        part.origin, part.solve_seconds, part.message = origin, answer.solve_seconds, answer.message
        known = part.known
        told = [_verdict(known, origin).word]
        if known.joules is not None:
            told.append(format_joules(known.joules))
            told.append("" if known.closed else f"gap {format_share(_gap(known) or 0.0)}")
        told.append("from the cache" if origin is Origin.CACHE else f"{answer.solve_seconds:.3f} s")
        _log.info("%s: %s", part.name, ", ".join(filter(None, told)))

    def _open(self, level: int | None) -> Iterator[_Part]:
        """Parts of ``level`` (``None``: any) that are neither searched nor follow from what is known."""
        for _, parts in self.points:
            for part in parts:
                wanted = level in (None, part.cell.level) and part.origin is Origin.NONE
                if wanted and not part.known.closed:
                    yield part

    def _title(self, part: _Part) -> str:
        """For people: its setting, RAM budget and deadline."""
        budget = part.limits.ram_budget_bytes
        ram = "any RAM" if budget is None else format_bytes(budget)
        setting, _ = self.points[part.point]
        return f"{self.settings[setting].label} in {ram}, {part.cell.deadline or 'no deadline'}"

    def _say(self, level: int, undecided: Counter[int]) -> None:
        if self.report is None:
            return
        total, left = len(self.points), +undecided
        mean = sum(self.searched) / len(self.searched) if self.searched else None
        seconds = time.monotonic() - self.started
        seconds_left = None if mean is None else mean * left.total() / self.jobs
        self.report(SweepProgress(total - len(left), total, seconds, seconds_left, f"round {level + 1}"))

    def swept(self) -> Swept:
        """Points and plans as known now, every plan validated under the limits of each of its points."""
        plans: dict[tuple[int, ...], int] = {}
        found: list[FoundPlan] = []
        points: list[Point] = []
        for number, parts in self.points:
            setting, limits = self.settings[number], parts[0].cell.limits
            each = tuple(part.knowledge for part in parts)
            known = joined(setting, limits, tuple(part.known for part in parts), each)
            plan = None
            if known.plans:
                validated(setting, limits, known.plans)
                plan = plans.setdefault((number, *(made.cell for made in known.plans)), len(plans))
                if plan == len(found):
                    found.append(found_plan(number, setting, *known.plans))
            points.append(self._point(number, parts, known, plan))
        return Swept(tuple(points), tuple(found))

    def _point(self, number: int, parts: Sequence[_Part], known: Known, plan: int | None) -> Point:
        origin = min((part.source for part in parts), key=_ORIGINS.index)
        origin = Origin.NEIGHBOUR if known.neighbours else origin
        told = next((part.message for part in parts if part.message), "")
        return Point(
            setting=number,
            limits=parts[0].cell.limits,
            deadline=parts[0].cell.deadline,
            verdict=_verdict(known, origin),
            origin=origin,
            plan=plan,
            bound_joules=known.bound_joules,
            gap=_gap(known),
            overhead_gap=_gap(known, above_joules=self.settings[number].compute_joules),
            warm_start=parts[0].warm_start,
            solve_seconds=sum(part.solve_seconds for part in parts),
            message=known.message or ("" if known.joules is not None else told),
        )


def _wanted(part: _Part) -> Wanted:
    """The search of a part, begun with the cheapest plan that is known to fit."""
    plan = part.known.plan
    start = Start() if plan is None else Start(plan.schedule, plan.solver)
    return Wanted(part.setting.problem, part.limits, part.name, start)


def _knowledge(setting: Setting, options: SolveOptions) -> Knowledge:
    """What is known before any search: the least RAM, and the plan that keeps everything."""
    floor, problem = setting.lower_bound, setting.problem
    where = f"op {floor.op}" if floor.op is not None else "the start or the end of the step"
    least = f"{floor.bytes} bytes ({format_bytes(floor.bytes)})"
    message = f"No schedule {IN_ORDER} needs less than {least}, for {where}."
    knowledge = Knowledge(problem, floor.bytes, message, options)
    schedule = keep_everything(problem, Limits())
    if schedule is not None:
        trace = simulate(problem, schedule)
        knowledge.plans.append(Candidate(KEEP_EVERYTHING, schedule, trace, "keep-everything"))
    return knowledge


def _verdict(known: Known, origin: Origin) -> Verdict:
    if known.infeasible:
        return Verdict.INFEASIBLE
    if known.joules is not None:
        return Verdict.OPTIMAL if known.closed else Verdict.FEASIBLE
    return Verdict.UNSOLVED if origin is Origin.NONE else Verdict.TIMEOUT


def _gap(known: Known, *, above_joules: float = 0.0) -> float | None:
    """The share of a plan's joules above ``above_joules`` that a better plan could save at most."""
    if known.joules is None:
        return None
    open_joules, whole = known.joules - known.bound_joules, known.joules - above_joules
    if open_joules <= 1e-9 * known.joules:  # rounding
        return 0.0
    return min(1.0, open_joules / whole) if whole > 0.0 else 1.0


_SUMS = (
    "joules", "compute_joules", "page_in_joules", "page_out_joules", "idle_joules", "seconds",
    "compute_seconds", "page_in_seconds", "page_out_seconds", "recomputed_runs", "read_bytes",
    "written_bytes",
)  # fmt: skip
"""Of a trace, what the schedules of a step add up to."""


def found_plan(
    number: int, setting: Setting, plan: Candidate, accumulating: Candidate | None = None
) -> FoundPlan:
    """The record of a validated plan of the setting with that ``number``.

    ``accumulating`` is what each micro-batch but the last does, where they come one after the other.
    """
    plans = (plan,) if accumulating is None else (plan, accumulating)
    runs = [(times, part, made) for (part, times), made in zip(setting.schedules, plans, strict=True)]

    def whole(name: str, traces: Sequence[Trace]) -> float:
        each = zip(runs, traces, strict=True)
        amount: float = sum(times * getattr(trace, name) for (times, _, _), trace in each)
        return amount

    traces = [made.trace for _, _, made in runs]
    ends: dict[str, float] = {}
    if all(part.ends is not None for _, part, _ in runs):
        for at, side in enumerate(("good", "bad")):
            there = [
                simulate(part.ends[at], made.schedule) for _, part, made in runs if part.ends is not None
            ]
            ends |= {f"{side}_{name}": whole(name, there) for name in ("joules", "seconds")}
    beside = None if accumulating is None else accumulating.schedule
    return FoundPlan(
        setting=number,
        schedule=plan.schedule,
        **{name: whole(name, traces) for name in _SUMS},  # type: ignore[arg-type]
        peak_ram_bytes=max(trace.peak_ram_bytes for trace in traces),
        worn_bytes=wear_of(setting, plan.schedule, beside).bytes,
        solver=", ".join(dict.fromkeys(made.solver for _, _, made in runs)),
        accumulating=beside,
        **ends,  # type: ignore[arg-type]
    )
