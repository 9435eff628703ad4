"""Searches outside the grid: kept, judged, and run in parallel like those of the sweep."""

from __future__ import annotations

import functools
import gzip
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from poet.problem import Limits, Problem
from poet.schedule import Schedule
from poet.solution import SolveOptions, Start
from poet.units import format_joules
from poet.whatif.cache import Cache, SolvedCell, cached_cell, cell_key, digest_of, judge_cell, pack
from poet.whatif.workers import Run, Task, given_up, search

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A problem to solve inside limits; ``name`` is for the log, ``start`` is a plan to begin with."""

    problem: Problem
    limits: Limits
    name: str
    start: Schedule | None = None


@dataclass(frozen=True, slots=True)
class Solver:
    """What solves: the options of every search, the cache, and the workers."""

    options: SolveOptions
    cache: Cache
    run: Run

    def solve(self, wanted: Sequence[Wanted]) -> list[SolvedCell | None]:
        """The judged answers, in order; ``None`` where a search took its worker down."""
        found: list[SolvedCell | None] = [None] * len(wanted)
        keys: dict[int, str] = {}
        tasks: list[Task] = []
        for index, item in enumerate(wanted):
            data = item.problem.to_json()
            key = cell_key(digest_of(data), item.limits, self.options)
            found[index] = cached_cell(self.cache, key, item.problem, item.limits)
            if found[index] is None:
                keys[index] = key
                start = Start(item.start, "the plan of another point")
                options = replace(self.options, start=start, progress=None)
                tasks.append(functools.partial(search, pack(data), item.limits, options, item.name))
            else:
                _log.info("%s: answered by the cache", item.name)
        places = list(keys)
        for number, packed in self.run(tasks):
            if packed is not None:
                item = wanted[places[number]]
                content = gzip.decompress(packed)
                found[places[number]] = judge_cell(content, item.problem, item.limits, where="worker")
                self.cache.keep("answers", keys[places[number]], packed)
            _log.info("%s: %s", wanted[places[number]].name, _outcome(found[places[number]]))
        return found


def _outcome(answer: SolvedCell | None) -> str:
    """For the log."""
    if answer is None:
        return given_up("the search")
    took = f"after {answer.solve_seconds:.3f} s"
    plan = "no plan" if answer.trace is None else f"a plan that takes {format_joules(answer.trace.joules)}"
    return f"{plan}, {answer.status.name.lower()}, {took}"
