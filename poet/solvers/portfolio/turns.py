"""A portfolio of solvers that share one incumbent and one bound, in turns of doubling budgets.

Each member is one idea, a generator that pauses often. The one that has used least of the time goes next, for
twice as long as in its last turn; who brought something goes again at once, and who has nothing left to try
leaves. So a search that needs one long piece gets it, whatever the size of the problem, and nobody waits long
(turns of solvers: Moffitt, "MiniMalloc", ASPLOS 2023, section 5; shares: Waldspurger and Weihl, "Stride
scheduling", 1995). Members do not know each other; what one finds another reads from the shared state.
"""

from __future__ import annotations

import contextlib
import enum
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from poet.solvers.portfolio.state import SearchState, Steps

_log = logging.getLogger(__name__)

BUDGET_FACTOR = 2.0
"""From round to round; with 1, a program that needs longer than a turn would wait for ever."""

FIRST_SECONDS = 0.1
"""Of a turn in the first round, and ``OP_SECONDS`` more for each op; halving it costs rounds, no plans."""

OP_SECONDS = 1e-3

WORTH_SHARE = 0.01
"""Of what is open, that a turn must close for its member to go again; at 0, crumbs hold the others up."""

LEAST_SECONDS = 0.01
"""That any turn counts, so that one in which nothing is counted does not come again for ever."""

PAUSE_SECONDS = 1e-4
"""That a pause counts where work is counted; else a turn of uncounted work has no end."""

Member = Callable[[SearchState], Steps]
"""Works on the state that it is given, pauses where its turn may end, and returns where nothing is left."""

Seated = tuple[str, Member, float]
"""A member with its name and its share of the time, in any unit."""


class Turn(enum.Enum):
    """What a member's turn brought."""

    BETTER = "better"
    NOTHING = "nothing"
    WAITS = "waits"
    EXHAUSTED = "exhausted"


@dataclass(slots=True)
class _Seat:
    """A member, the share of the time that it is to have, and what it has used.

    Attributes:
        used_seconds: so far, over its share.
        budget_seconds: of its next turn.
        waits: it waits, and nobody has worked since.
    """

    name: str
    share: float
    going: Steps
    budget_seconds: float
    used_seconds: float = 0.0
    waits: bool = False


def run(state: SearchState, members: Sequence[Seated]) -> None:
    """Give ``members`` turns until the search is finished, or nobody has anything left to try."""
    first_seconds = FIRST_SECONDS + OP_SECONDS * len(state.instance.tasks)
    with contextlib.ExitStack() as stack:
        seats = [
            _Seat(name, share, stack.enter_context(contextlib.closing(member(state))), first_seconds)
            for name, member, share in members
        ]
        while seats and not _is_over(state):
            seat = min(seats, key=lambda each: each.used_seconds)
            state.alone = all(each is seat or each.waits for each in seats)
            turn = Turn.BETTER
            while turn is Turn.BETTER and not _is_over(state):
                turn = _step(state, seat)
            for each in seats:
                each.waits = turn is Turn.WAITS and (each.waits or each is seat)
            if turn is Turn.EXHAUSTED:
                seats.remove(seat)
                _log.info("exhausted: %s", seat.name)
            elif turn is Turn.WAITS:  # behind all others
                seat.used_seconds = max(each.used_seconds for each in seats)
            else:
                seat.budget_seconds *= BUDGET_FACTOR


def _step(state: SearchState, seat: _Seat) -> Turn:
    """One turn of a member."""
    before, began = state.open_joules(), state.clock.now()
    state.turn_end = began + min(seat.budget_seconds, state.seconds_left())
    turn = Turn.EXHAUSTED
    with state.recorder.phase(seat.name):
        for waits in seat.going:
            state.clock.spend(engine_seconds=PAUSE_SECONDS)
            if waits or state.finished() or state.refuted or state.clock.now() >= state.turn_end:
                turn = Turn.WAITS if waits else Turn.NOTHING
                break
    state.report()
    if turn is Turn.NOTHING and state.open_joules() < (1.0 - WORTH_SHARE) * before:
        turn = Turn.BETTER
    seat.used_seconds += max(state.clock.now() - began, LEAST_SECONDS) / seat.share
    return turn


def _is_over(state: SearchState) -> bool:
    return state.finished() or (state.refuted and state.best.trace is None)
