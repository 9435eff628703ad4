"""The sweep: every setting's grid from coarse to fine, each search begun with a neighbour's plan.

Cells of one round of bisection are independent of each other and are searched in parallel; which they
are, and what they begin with, depends on earlier rounds alone, so that a sweep that was interrupted
goes the same way when it is repeated. The simulator validates each answer in this process, and
each plan again under the limits of every point that it serves.
"""

from __future__ import annotations

import functools
import gzip
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from poet.problem import Limits
from poet.simulator import simulate
from poet.solution import SolveOptions, Start
from poet.solvers.heuristics.policies import keep_everything
from poet.units import IN_ORDER, format_bytes, format_joules, format_share
from poet.whatif.cache import Cache, SolvedCell, cached_cell, cell_key, digest_of, judge_cell, pack
from poet.whatif.knowledge import Candidate, Cell, Knowledge, Known
from poet.whatif.pieces import Joined, joined, judged, origin_of, parts_of
from poet.whatif.result import FoundPlan, Origin, Point, Setting, Verdict
from poet.whatif.usage import found_plan
from poet.whatif.workers import Run, Task, given_up, search

_log = logging.getLogger(__name__)

KEEP_EVERYTHING = -1  # in place of a cell: the plan that needs no search


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


@dataclass(frozen=True, slots=True)
class Swept:
    """Points and the plans that serve them."""

    points: tuple[Point, ...]
    plans: tuple[FoundPlan, ...]


@dataclass(slots=True)
class _Done:
    """How one cell was decided."""

    origin: Origin = Origin.NONE
    warm_start: int | None = None
    solve_seconds: float = 0.0
    message: str = ""


@dataclass(slots=True)
class Sweep:
    """A running sweep; `points` gives what is known at any time.

    Attributes:
        settings: what is planned, of one problem or of two (`poet.whatif.pieces`).
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
    parts: list[Setting] = field(init=False)
    owners: list[int] = field(init=False)
    cells: list[list[Cell]] = field(init=False)
    knowledge: list[Knowledge] = field(init=False)
    done: list[list[_Done]] = field(init=False)
    started: float = field(init=False)
    searched: list[float] = field(init=False)
    undecided: Counter[int] = field(init=False, default_factory=Counter)

    def __post_init__(self) -> None:
        in_two = [n for n, setting in enumerate(self.settings) if setting.accumulating is not None]
        beside = [self.settings[n].accumulating for n in in_two]
        self.parts = [*self.settings, *(part for part in beside if part is not None)]
        self.owners = [*range(len(self.settings)), *in_two]
        self.cells = [self._cells_of(number) for number in range(len(self.parts))]
        self.knowledge = [_knowledge(part, self.options) for part in self.parts]
        self.done = [[_Done() for _ in grid] for grid in self.cells]
        self.started, self.searched = time.monotonic(), []

    def _cells_of(self, part: int) -> list[Cell]:
        """The cells of a part's setting, each with the part's limits."""
        owner = self.owners[part]
        second = part >= len(self.settings)
        shares = [tuple(parts_of(self.settings[owner], cell.limits)) for cell in self.grids[owner]]
        return [
            replace(cell, limits=share[second].limits)
            for cell, share in zip(self.grids[owner], shares, strict=True)
        ]

    def run(self, run: Run) -> bool:
        """Decide every cell; false where Ctrl-C came first. What is known then stays known."""
        digests = [digest_of(part.problem.to_json()) for part in self.parts]
        packed = [pack(part.problem.to_json()) for part in self.parts]
        _log.info("the sweep begins: settings %d, points %d", len(self.settings), self._total)
        try:
            for level in range(1 + max((cell.level for grid in self.cells for cell in grid), default=0)):
                self._round(level, digests, packed, run)
        except KeyboardInterrupt:
            _log.info("the sweep was interrupted")
            return False
        _log.info("the sweep ends after %.3f s", time.monotonic() - self.started)
        return True

    def _round(self, level: int, digests: Sequence[str], packed: Sequence[bytes], run: Run) -> None:
        """Search the cells of one level that do not follow from others."""
        keys = {}
        for place in self._open(level):
            limits = self._limits(place)
            keys[place] = cell_key(digests[place[0]], limits, self.options)
            known = cached_cell(self.cache, keys[place], self.parts[place[0]].problem, limits)
            if known is not None and not self.knowledge[place[0]].refutes(limits, known):
                self._take(place, known, Origin.CACHE)
        places = list(self._open(level))
        tasks: list[Task] = []
        for place in places:
            start = self._known(place).plan
            self._done(place).warm_start = self._index(place[0], start)
            begin = Start() if start is None else Start(start.schedule, start.solver)
            options = replace(self.options, start=begin, progress=None)
            name = self._name(place)
            tasks.append(functools.partial(search, packed[place[0]], self._limits(place), options, name))
        self.undecided = Counter(self._number(place) for place in self._open(None))
        self._log_round(level, places)
        self._say(level)
        for index, answer in run(tasks):
            self._receive(places[index], keys[places[index]], answer)
            self.undecided[self._number(places[index])] -= 1
            self._say(level)

    def _receive(self, place: tuple[int, int], key: str, answer: bytes | None) -> None:
        """Judge and keep what a worker answered."""
        if answer is None:
            self._done(place).origin = Origin.SEARCH
            self._done(place).message = given_up("The search")
            _log.info("%s: %s", self._name(place), self._done(place).message)
            return
        content = gzip.decompress(answer)
        judged = judge_cell(content, self.parts[place[0]].problem, self._limits(place), where="worker")
        self.cache.keep("answers", key, answer)
        self.searched.append(judged.solve_seconds)
        self._take(place, judged, Origin.SEARCH)

    def _take(self, place: tuple[int, int], answer: SolvedCell, origin: Origin) -> None:
        self.knowledge[place[0]].add(place[1], self._limits(place), answer)
        done = self._done(place)
        done.origin, done.solve_seconds, done.message = origin, answer.solve_seconds, answer.message
        self._log_outcome(place)

    # --- the log ---

    def _log_round(self, level: int, places: Sequence[tuple[int, int]]) -> None:
        """What is decided before the searches of a round, and which points they are for."""
        decided = self._total - len(+self.undecided)
        _log.info(
            "round %d: %d of %d points are decided, %d to search",
            level + 1,
            decided,
            self._total,
            len(places),
        )
        for place in places:
            start = self._done(place).warm_start
            begins = "" if start is None else f"; its search begins with the plan of point {start}"
            _log.info("%s is %s%s", self._name(place), self._title(place), begins)

    def _log_outcome(self, place: tuple[int, int]) -> None:
        """What is known of a point once its search has ended or the cache has answered."""
        done, known = self._done(place), self._known(place)
        alone = joined(self.parts[place[0]], self._limits(place), (known,), ())
        told = [_verdict(alone, done.origin).word]
        if alone.joules is not None:
            told.append(format_joules(alone.joules))
            told.append("" if known.closed else f"gap {format_share(_gap(alone) or 0.0)}")
        told.append("from the cache" if done.origin is Origin.CACHE else f"{done.solve_seconds:.3f} s")
        _log.info("%s: %s", self._name(place), ", ".join(filter(None, told)))

    def _title(self, place: tuple[int, int]) -> str:
        """A point for people: its setting, RAM budget and deadline."""
        cell = self.cells[place[0]][place[1]]
        budget = cell.limits.ram_budget_bytes
        ram = "any RAM" if budget is None else format_bytes(budget)
        return f"{self.settings[self.owners[place[0]]].label} in {ram}, {cell.deadline or 'no deadline'}"

    # --- what is known ---

    def _open(self, level: int | None) -> Iterator[tuple[int, int]]:
        """Cells of ``level`` (``None``: any) that are neither searched nor follow from what is known."""
        for part, grid in enumerate(self.cells):
            for index, cell in enumerate(grid):
                place = (part, index)
                wanted = level in (None, cell.level) and self._done(place).origin is Origin.NONE
                if wanted and not self._known(place).closed:
                    yield place

    def _limits(self, place: tuple[int, int]) -> Limits:
        return self.cells[place[0]][place[1]].limits

    def _known(self, place: tuple[int, int]) -> Known:
        return self.knowledge[place[0]].best(self._limits(place))

    def _done(self, place: tuple[int, int]) -> _Done:
        return self.done[place[0]][place[1]]

    def _index(self, part: int, plan: Candidate | None) -> int | None:
        """The index, among the points of all settings, of the cell whose search found ``plan``."""
        if plan is None or plan.cell == KEEP_EVERYTHING:
            return None
        return self._number((part, plan.cell))

    def _number(self, place: tuple[int, int]) -> int:
        """The index, among the points of all settings, of that which a cell is of."""
        return sum(len(grid) for grid in self.grids[: self.owners[place[0]]]) + place[1]

    def _name(self, place: tuple[int, int]) -> str:
        """A search for people."""
        which = ", all micro-batches but the last" if place[0] >= len(self.settings) else ""
        return f"point {self._number(place)}{which}"

    @property
    def _total(self) -> int:
        """How many points there are."""
        return sum(len(grid) for grid in self.grids)

    def _say(self, level: int) -> None:
        if self.report is None:
            return
        total, left = self._total, +self.undecided
        mean = sum(self.searched) / len(self.searched) if self.searched else None
        self.report(
            SweepProgress(
                done=total - len(left),
                total=total,
                seconds=time.monotonic() - self.started,
                seconds_left=None if mean is None else mean * left.total() / self.jobs,
                doing=f"round {level + 1}",
            )
        )

    # --- the answer ---

    def swept(self) -> Swept:
        """Points and plans as known now, every plan judged under the limits of each of its points."""
        plans: dict[tuple[int, ...], int] = {}
        found: list[FoundPlan] = []
        points: list[Point] = []
        for number, setting in enumerate(self.settings):
            parts = [part for part, owner in enumerate(self.owners) if owner == number]
            knowledge = tuple(self.knowledge[part] for part in parts)
            for index, cell in enumerate(self.grids[number]):
                known = tuple(self._known((part, index)) for part in parts)
                point = joined(setting, cell.limits, known, knowledge)
                plan = None
                if point.plans:
                    judged(setting, cell.limits, point.plans)
                    plan = plans.setdefault((number, *(made.cell for made in point.plans)), len(plans))
                    if plan == len(found):
                        found.append(found_plan(number, setting, *point.plans))
                points.append(self._point(number, index, [(part, index) for part in parts], point, plan))
        return Swept(tuple(points), tuple(found))

    def _point(
        self, setting: int, index: int, places: list[tuple[int, int]], known: Joined, plan: int | None
    ) -> Point:
        cell, done = self.grids[setting][index], [self._done(place) for place in places]
        origins = tuple(self._origin(place) for place in places)
        origin = Origin.NEIGHBOUR if known.neighbours else origin_of(origins)
        told = next((each.message for each in done if each.message), "")
        return Point(
            setting=setting,
            limits=cell.limits,
            deadline=cell.deadline,
            verdict=_verdict(known, origin),
            origin=origin,
            plan=plan,
            bound_joules=known.bound_joules,
            gap=_gap(known),
            overhead_gap=_gap(known, above_joules=self.settings[setting].compute_joules),
            warm_start=done[0].warm_start,
            solve_seconds=sum(each.solve_seconds for each in done),
            message=known.message or ("" if known.joules is not None else told),
        )

    def _origin(self, place: tuple[int, int]) -> Origin:
        """Where what is known of a cell comes from."""
        known, knowledge = self._known(place), self.knowledge[place[0]]
        if self._done(place).origin is not Origin.NONE:
            return self._done(place).origin
        if known.infeasible and known.message not in (message for _, message in knowledge.barriers):
            return Origin.ARITHMETIC
        if known.plan is not None and known.plan.cell == KEEP_EVERYTHING and known.closed:
            return Origin.ARITHMETIC
        return Origin.NONE if known.plan is None and not known.infeasible else Origin.NEIGHBOUR


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


def _verdict(known: Joined, origin: Origin) -> Verdict:
    if known.infeasible:
        return Verdict.INFEASIBLE
    if known.joules is not None:
        return Verdict.OPTIMAL if known.closed else Verdict.FEASIBLE
    return Verdict.UNSOLVED if origin is Origin.NONE else Verdict.TIMEOUT


def _gap(known: Joined, *, above_joules: float = 0.0) -> float | None:
    """The share of a plan's joules above ``above_joules`` that a better plan could save at most."""
    if known.joules is None:
        return None
    open_joules, whole = known.joules - known.bound_joules, known.joules - above_joules
    if open_joules <= 1e-9 * known.joules:  # rounding
        return 0.0
    return min(1.0, open_joules / whole) if whole > 0.0 else 1.0
