"""The relaxation in whole numbers, at more and more moments, held to what the end of the step costs.

With few moments on its grids the relaxation (`poet.solvers.bounds.relaxation`) is solved in whole
numbers in seconds, and its answer tells where it pretends:
`poet.solvers.bounds.refinement.pretended_moments`. Those moments get on the grids, and it is solved
again. Where RAM is tightest, towards the end of the step, ever more moments would be wanted; there an
endgame (`poet.solvers.bounds.suffix_program`) says exactly what each set of large contents costs, and
rows hold the program to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from poet.solvers.bounds.refinement import pretended_moments
from poet.solvers.bounds.relaxation import Bound, bound_overhead, laid_out, relaxation_of
from poet.solvers.bounds.suffix_cuts import EndgameCuts
from poet.solvers.bounds.suffix_program import Endgame, endgame, first_moment, trackable
from poet.solvers.engines.highs_process import HighsProcess
from poet.solvers.engines.linear import Answer
from poet.solvers.engines.matrix import Matrix
from poet.solvers.instance.instance import Instance

_MOST_STATES = (50_000, 400_000)  # of one stage of an endgame, in turn
_LEAST_SHARE = 4  # the smallest content that is tracked, as a part of the largest
_SLOWER = 10.0  # what more states cost, by times
_FEWEST_STAGES = 4  # that an endgame must last
_LEVELS = (1.0,)  # before the endgame, one moment at a time
_GAP = 1e-5  # of a program's joules, at which it counts as solved
_LONGEST_SECONDS = 600.0  # of one program where there is no time limit
_LISTEN_SECONDS = 0.02


def outlook(
    instance: Instance,
    child: HighsProcess,
    *,
    most_joules: float,
    seconds_left: Callable[[], float],
    finished: Callable[[], bool],
    seed: int = 0,
) -> Iterator[Bound]:
    """Bounds on the overhead, each with the answer that it is from, until ``finished`` or nothing is new.

    But for the first one they are an engine's word, in whole numbers.

    Args:
        instance: what to bound.
        child: solves the programs.
        most_joules: of overhead, from which on it does not matter how much more a plan takes; ``inf``:
            no endgames.
        seconds_left: of the child's clock, that may still be used.
        finished: whether to stop; asked all the time.
        seed: of choices by chance.
    """
    first = bound_overhead(instance, seconds=seconds_left(), clock=child.clock)
    yield first
    rows = first.relaxation.moments
    if first.overhead_joules == math.inf or not rows:
        return
    moments = frozenset({rows[int(np.argmax(first.answer.prices[: len(rows)]))]})
    games, seconds = set[int | None](), 0.0
    for most_states in _MOST_STATES:
        if finished() or _SLOWER * seconds > 0.5 * seconds_left():
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
        more = True
        while more and not finished():
            bound = first
            for bound in bounds_at(instance, child, moments, cuts, seconds_left, finished):
                yield bound
            if bound.answer.values is None or not bound.answer.done:
                return
            unsaid = pretended_moments(instance, bound, levels=_LEVELS, latest=latest)
            unsaid = unsaid or pretended_moments(instance, bound)
            more, moments = bool(unsaid), moments | unsaid


def last_game(
    instance: Instance, most_joules: float, most_states: int, finished: Callable[[], bool] = lambda: False
) -> Endgame | None:
    """Of the largest contents, from as early on as no stage has too many states; ``None`` if that is late."""
    sizes = [instance.contents[c].bytes for c in trackable(instance, 1)]
    if instance.limits.ram_budget_bytes is None or not sizes or not 0.0 < most_joules < math.inf:
        return None
    tracked = trackable(instance, max(sizes) // _LEAST_SHARE)
    moment = first_moment(instance, tracked, most_states=most_states)
    if moment > len(instance.tasks) - _FEWEST_STAGES:
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
    """Solve the program with these moments until its answer pays what the endgame says."""
    ahead = set[int]() if cuts is None else {cuts.game.moment}
    layout = laid_out(instance, moments | ahead)
    joined = None if cuts is None else cuts.join(layout)
    relaxation = relaxation_of(layout)
    while not finished():
        answer = _solved(child, layout.program.matrix(), seconds_left(), finished)
        yield Bound(relaxation.fixed_joules + answer.bound, moments, relaxation, answer)
        if answer.values is None or cuts is None or joined is None or not cuts.add(joined, answer.values):
            return


def _solved(child: HighsProcess, matrix: Matrix, seconds: float, finished: Callable[[], bool]) -> Answer:
    """In whole numbers; ``finished`` is asked all the time."""
    child.begin(matrix, min(seconds, _LONGEST_SECONDS), relative_gap=_GAP)
    while not child.news.ended and not finished():
        child.listen(_LISTEN_SECONDS)
    news = child.news
    if news.exhausted and news.values is None:
        return Answer(math.inf, None, np.zeros(0), done=True)
    return Answer(max(0.0, news.bound_joules), news.values, np.zeros(0), news.exhausted)
