"""Dynamic discretisation discovery: bounds from the windows relaxation on finer and finer grids.

After Boland, Hewitt, Marshall and Savelsbergh (2017). The windows relaxation
(`poet.solvers.bounds.relaxation`) is solved in whole numbers with few moments on its grids, which
takes seconds. The moments at which its solution under-counts memory
(`poet.solvers.bounds.refinement.pretended_moments`) are added to the grids, and it is solved again. Where
these are in vain, those are added at which its solution, played through as a step, lacks RAM
(`poet.solvers.bounds.played`).
Towards the end of the step, where RAM is tightest, this would need too many moments. There a suffix
dynamic program (`poet.solvers.bounds.suffix_program`) gives the least joules to the end of the step
for each set of large tensor versions in RAM, and cuts (`poet.solvers.bounds.suffix_cuts`) add these
values to the relaxation.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator

import numpy as np

from poet.solvers.bounds.played import Played
from poet.solvers.bounds.refinement import pretended_moments
from poet.solvers.bounds.relaxation import laid_out, relaxation_of
from poet.solvers.bounds.suffix_cuts import EndgameCuts
from poet.solvers.bounds.suffix_program import Endgame, endgame, first_moment, trackable
from poet.solvers.bounds.windows_bound import Bound, bound_overhead
from poet.solvers.engines.highs_process import HighsProcess
from poet.solvers.engines.linear import LinearAnswer
from poet.solvers.engines.matrix import Matrix
from poet.solvers.instance.instance import Instance
from poet.tuning.bounds import DiscretisationTuning

_log = logging.getLogger(__name__)


def refined_bounds(
    instance: Instance,
    child: HighsProcess,
    *,
    most_joules: float,
    seconds_left: Callable[[], float],
    finished: Callable[[], bool],
    seed: int = 0,
) -> Iterator[Bound]:
    """Yield bounds on the overhead in joules, on finer and finer grids, each with the solution it is from.

    The first bound is summed from duals by our own code; the others are the engine's dual bounds of the
    program in whole numbers. Ends when ``finished``, when a program was not solved to its gap, or when no
    moment is worth adding and no larger suffix program can be afforded.

    Args:
        instance: what to bound.
        child: the process that solves the programs.
        most_joules: overhead at which the values of the suffix program are capped; ``inf``: no suffix
            program.
        seconds_left: of the child's clock, that may still be used.
        finished: whether to stop; polled all the time.
        seed: of random choices.
    """
    tuning = instance.tuning.discretisation
    first = bound_overhead(instance, seconds=seconds_left(), clock=child.clock)
    yield first
    rows = first.relaxation.moments
    if first.overhead_joules == math.inf or not rows:
        return
    moments = frozenset({rows[int(np.argmax(first.answer.prices[: len(rows)]))]})
    games, seconds = set[int | None](), 0.0
    progress = 1.0 + instance.tuning.grids.progress_share
    for most_states in tuning.stage_states:
        if finished() or tuning.slower_factor * seconds > tuning.game_share * seconds_left():
            return
        began = child.clock.now()
        game = last_game(instance, most_joules, most_states, finished)
        seconds = child.clock.now() - began
        begin = None if game is None else game.moment
        if begin in games or (games and game is None):
            return
        games.add(begin)
        cuts, latest = None, len(instance.tasks)
        if game is not None:
            cuts, latest = EndgameCuts(game, seed), game.moment - 1
        more, best_joules = True, 0.0
        while more and not finished():
            bound = first
            for bound in bounds_at(instance, child, moments, cuts, seconds_left, finished):
                yield bound
            if bound.answer.values is None or not bound.answer.done:
                return
            unsaid = pretended_moments(instance, bound, levels=tuning.level_shares, latest=latest)
            unsaid = unsaid or pretended_moments(instance, bound)
            if not unsaid or bound.overhead_joules <= progress * best_joules:
                unsaid |= Played(instance, bound).lacking_moments(tuning.counterexamples)
            best_joules = max(best_joules, bound.overhead_joules)
            more, moments = bool(unsaid), moments | unsaid


def last_game(
    instance: Instance, most_joules: float, most_states: int, finished: Callable[[], bool] = lambda: False
) -> Endgame | None:
    """The suffix program of the largest tensor versions that begins earliest with ``most_states`` per stage.

    ``None`` without a RAM budget, a version to track or a finite ``most_joules``; where it would cover
    too few stages; where it says nothing, all values being 0; and where ``finished`` ended it.
    """
    sizes = [instance.contents[c].bytes for c in trackable(instance, 1)]
    if instance.limits.ram_budget_bytes is None or not sizes or not 0.0 < most_joules < math.inf:
        return None
    tracked = trackable(instance, max(sizes) // instance.tuning.discretisation.tracked_divisor)
    moment = first_moment(instance, tracked, most_states=most_states)
    if moment > len(instance.tasks) - instance.tuning.discretisation.fewest_stages:
        return None
    game = endgame(instance, moment, tracked, most_joules=most_joules, finished=finished)
    return game if game is not None and game.tables[0].joules.any() else None


def bounds_at(
    instance: Instance,
    child: HighsProcess,
    moments: frozenset[int],
    cuts: EndgameCuts | None,
    seconds_left: Callable[[], float],
    finished: Callable[[], bool],
) -> Iterator[Bound]:
    """Solve the program with ``moments`` on its grids; add violated suffix cuts and solve again.

    Yields a bound after each solve; ends when the solution violates no cut.
    """
    ahead = set[int]() if cuts is None else {cuts.game.moment}
    layout = laid_out(instance, moments | ahead)
    joined = None if cuts is None else cuts.join(layout)
    relaxation = relaxation_of(layout)
    while not finished():
        answer = _solved(
            child, layout.program.matrix(), seconds_left(), finished, instance.tuning.discretisation
        )
        overhead = relaxation.fixed_joules + answer.bound
        _log.info(
            "windows relaxation, whole numbers at %d moments, %s: overhead at least %.9g%s",
            len(moments), "no suffix cuts" if cuts is None else "with suffix cuts", overhead,
            "" if answer.done else ", cut short",
        )  # fmt: skip
        yield Bound(overhead, moments, relaxation, answer)
        if answer.values is None or cuts is None or joined is None or not cuts.add(joined, answer.values):
            return


def _solved(
    child: HighsProcess,
    matrix: Matrix,
    seconds: float,
    finished: Callable[[], bool],
    tuning: DiscretisationTuning,
) -> LinearAnswer:
    """Solve ``matrix`` in whole numbers in the child process; ``finished`` is polled meanwhile."""
    child.begin(matrix, min(seconds, tuning.longest_program_seconds), relative_gap=tuning.gap_share)
    while not child.news.ended and not finished():
        child.listen(tuning.listen_seconds)
    news = child.news
    if news.exhausted and news.values is None:
        return LinearAnswer(math.inf, None, np.zeros(0), done=True)
    return LinearAnswer(max(0.0, news.bound_joules), news.values, np.zeros(0), news.exhausted)
