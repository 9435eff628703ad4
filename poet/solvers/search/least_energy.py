"""The search for least energy: greedy plans at once, then the members of the portfolio in turns.

Each member is one idea, a generator that pauses often. The one that has used least of the time goes next, for
twice as long as in its last turn; who brought something goes again at once, and who has nothing left to try
leaves. So a search that needs one long piece gets it, whatever the size of the problem, and nobody waits long
(turns of solvers: Moffitt, "MiniMalloc", ASPLOS 2023, section 5; shares: Waldspurger and Weihl, "Stride
scheduling", 1995). Members do not know each other; what one finds another reads from the shared state.

The simulator validates every schedule before it counts, and every bound is checked against its
joules. "Optimal" is reported only if the simulator accepts the plan and a bound for the whole problem
matches it. "Infeasible" is reported only if a lower bound on RAM or time shows it by arithmetic, or if
a relaxation has no solution and no plan was found. What one engine says alone is confirmed by a proof in
certified linear programs or by another engine, or the answer says that it is not.
"""

from __future__ import annotations

import contextlib
import enum
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from poet.problem import Limits, Problem
from poet.problem.schedule import Schedule
from poet.problem.solution import Solution, SolveOptions, Status
from poet.solvers.engines import choose_engine
from poet.solvers.engines.proof import Confidence, Confirmation, confirm
from poet.solvers.heuristics.greedy import greedy
from poet.solvers.instance.instance import Metered
from poet.solvers.portfolio.local_search import local_search
from poet.solvers.portfolio.neighbourhoods import neighbourhoods
from poet.solvers.portfolio.relaxations import linear_relaxation, resident_sets, whole_relaxation
from poet.solvers.portfolio.retention_intervals import effort_of, retention_intervals
from poet.solvers.portfolio.state import GREEDY, REFUTED, Claim, SearchState, Steps, model_by, refutes
from poet.solvers.search.messages import (
    STOPPED,
    conflict_sentence,
    impossible_sentence,
    no_plan_sentence,
    time_up_sentence,
)
from poet.util.children import counted_from_here

_log = logging.getLogger(__name__)

Member = Callable[[SearchState], Steps]
"""Works on the state that it is given, pauses where its turn may end, and returns where nothing is left."""

Seated = tuple[str, Member, float]
"""A member with its name and its share of the time, in any unit."""

MEMBERS: tuple[Seated, ...] = (
    ("linear relaxation and list schedules along it", linear_relaxation, 2.0),
    ("exact models over retention intervals", retention_intervals, 2.0),
    ("relaxation in whole numbers", whole_relaxation, 2.0),
    ("local search", local_search, 3.0),
    ("neighbourhoods", neighbourhoods, 3.0),
    ("resident sets", resident_sets, 1.0),
)
"""With shares of the time: provers have half of what makers of plans have."""

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

GREEDY_SECONDS = 1.0
"""For greedy plans at most, and a quarter of the time; without, a large step has no other member's plan."""

PROOF_SECONDS = 1.0
"""For a proof of our own at most, and a tenth of the search; else a second engine has no time.

That one has twice this where the search took less; without, it is stopped on small programs.
"""

_EXACT = Confirmation(Confidence.EXACT).words


@counted_from_here()
def solve(
    problem: Problem,
    limits: Limits | None = None,
    options: SolveOptions | None = None,
    *,
    metered: Metered | None = None,
    members: Sequence[Seated] | None = None,
) -> Solution:
    """The plan of ``problem`` of least energy inside ``limits`` that the time allows, with a bound.

    First runs keep the listed order. Ctrl-C ends the search and keeps the best plan. Other objectives and the
    energy budget are reduced to this search by `poet.solvers.search.objectives`. ``members``: of the
    portfolio, if not all; with fewer, plans cost more and bounds are lower, and all that is said holds.

    Raises:
        InputError: the engine named in ``options`` is not available.
    """
    options = options or SolveOptions()
    engine = choose_engine(options.engine, threads=options.threads, clock=options.clock)
    search = _Search(SearchState(problem, limits or Limits(), options, engine, metered))
    try:
        return search.run(MEMBERS if members is None else members)
    except KeyboardInterrupt:
        search.state.stopped = True
        return search.answer(STOPPED)


class _Search:
    """One search, from the first plan to its answer.

    Attributes:
        refuted_by: in words, who refuted the bound after it had closed the gap; empty where nobody did.
    """

    def __init__(self, state: SearchState) -> None:
        self.state, self.refuted_by = state, ""

    def run(self, members: Sequence[Seated]) -> Solution:
        state = self.state
        if impossible := impossible_sentence(state.instance):
            return self._no_plan(impossible, _EXACT)
        self._start()
        state.first = state.best.schedule
        while True:  # again where an engine erred, and its word was refuted
            take_turns(state, members)
            refuted, state.refuted = state.refuted, False
            if refuted and state.best.trace is None:
                confirmation = self._confirmed_no_plan()
                if state.best.trace is None and confirmation.confidence is not Confidence.REFUTED:
                    message = conflict_sentence(state.problem, state.limits, confirmation)
                    return self._no_plan(message, confirmation.words)
            if state.stopped:
                return self.answer(STOPPED)
            proof = self._proof_of_bound()
            if state.finished() or not (refuted or self.refuted_by):
                return self.answer("", proof)

    def answer(self, message: str, proof: str = "") -> Solution:
        """What is known now; ``message`` for the user, if empty what more time may bring to a gap."""
        state, best, bound_joules = self.state, self.state.best, self.state.bound.joules
        in_time = state.seconds_left() > 0.0
        if best.trace is None:
            status = Status.TIMEOUT
            message = message or no_plan_sentence(state.problem, state.limits, in_time=in_time)
        elif state.closed(bound_joules):
            status = Status.OPTIMAL
        else:
            status = Status.FEASIBLE
            if self.refuted_by and not message:
                message = f"{self.refuted_by[0].upper()}{self.refuted_by[1:]}: the gap is open again."
            elif not message and not in_time:  # else it stopped at ``enough_joules``
                plan, bound = best.found_after_seconds, state.bound.after_seconds
                message = time_up_sentence(state.engine, plan_seconds=plan, bound_seconds=bound)
        return Solution(
            status=status,
            schedule=best.schedule,
            trace=best.trace,
            bound_joules=bound_joules if best.trace is None else min(bound_joules, best.trace.joules),
            baseline_joules=state.baseline_joules,
            solve_seconds=state.clock.now() - state.started,
            solver=model_by(state.engine) if best.trace is None else best.found_by,
            message=message,
            proof=proof,
            was_interrupted=state.stopped,
            record=state.recorder.record(),
        )

    def _no_plan(self, message: str, proof: str) -> Solution:
        """That there is none, and who says so."""
        self.state.best.forget()
        return replace(self.answer(message, proof), status=Status.INFEASIBLE)

    def _start(self) -> None:
        """The caller's plan, and greedy ones."""
        state, start = self.state, self.state.options.start
        if start.schedule is not None:
            state.consider(start.schedule, start.by, is_ours=False)
            if state.finished():  # an earlier search proved it
                return

        def found(schedule: Schedule | None) -> None:
            state.consider(schedule, GREEDY)

        with state.recorder.phase("greedy plans"):
            schedule = greedy(
                state.problem,
                state.limits,
                seconds=min(GREEDY_SECONDS, state.seconds_left() / 4.0),
                most_seconds=state.seconds_left(),
                rejections=state.recorder.rejections,
                clock=state.clock,
                found=found,
            )
            found(schedule)

    # --- second opinions on what one engine says ---

    def _confirmed_no_plan(self) -> Confirmation:
        """On the model that has no solution, as a single solver says."""
        if self.state.empty is None:  # it follows from duals of a linear program, summed by our own code
            return Confirmation(Confidence.EXACT)
        with self.state.recorder.phase("second opinion that there is no plan"):
            return self._confirm(self.state.empty, None)

    def _proof_of_bound(self) -> str:
        """What proves the bound of an optimal plan, in words; empty if it is not proven optimal."""
        state, bound, known = self.state, self.state.bound, self.state.known
        if state.best.trace is None or not state.closed(bound.joules):
            return ""
        joules, claim = state.best.trace.joules, bound.claim
        if known is not None and bound.joules <= known.joules and not refutes(joules, known.joules):
            return known.words
        if bound.alone:
            return Confirmation(Confidence.ALONE, ("highs",)).words
        if claim is None:
            return _EXACT
        if not state.options.confirm:
            return Confirmation(Confidence.ALONE, (claim.engine,)).words
        allowed = joules - state.options.allowed_gap_joules(joules, state.baseline_joules)
        with state.recorder.phase("second opinion on the bound"):
            confirmation = self._confirm(claim, allowed - state.baseline_joules)
        if confirmation.confidence is Confidence.REFUTED:
            self.refuted_by = confirmation.words
        if self.refuted_by and confirmation.confidence in (Confidence.REFUTED, Confidence.ALONE):
            bound.forget()
            state.recorder.bound(bound.joules, REFUTED)
        return confirmation.words

    def _confirm(self, claim: Claim, below: float | None) -> Confirmation:
        """A second opinion, in about the time that the search took."""
        state = self.state
        spent_seconds, left_seconds = state.clock.now() - state.started, state.seconds_left()
        if left_seconds <= 0.0:
            return Confirmation(Confidence.ALONE, (claim.engine,))
        proof_seconds = min(max(spent_seconds, PROOF_SECONDS) / 10.0, PROOF_SECONDS, left_seconds / 2.0)
        left_seconds -= proof_seconds
        second_seconds = min(max(spent_seconds, 2.0 * PROOF_SECONDS), left_seconds)
        return confirm(
            claim.program(),
            claim.engine,
            effort_of(state, second_seconds, left_seconds),
            proof_seconds=proof_seconds,
            below_joules=None if below is None else below - claim.fixed_joules,
        )


# --- turns ---


class _Turn(enum.Enum):
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


def take_turns(state: SearchState, members: Sequence[Seated]) -> None:
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
            turn = _Turn.BETTER
            while turn is _Turn.BETTER and not _is_over(state):
                turn = _step(state, seat)
            for each in seats:
                each.waits = turn is _Turn.WAITS and (each.waits or each is seat)
            if turn is _Turn.EXHAUSTED:
                seats.remove(seat)
                _log.info("exhausted: %s", seat.name)
            elif turn is _Turn.WAITS:  # behind all others
                seat.used_seconds = max(each.used_seconds for each in seats)
            else:
                seat.budget_seconds *= BUDGET_FACTOR


def _step(state: SearchState, seat: _Seat) -> _Turn:
    """One turn of a member."""
    before, began = state.open_joules(), state.clock.now()
    state.turn_end = began + min(seat.budget_seconds, state.seconds_left())
    turn = _Turn.EXHAUSTED
    with state.recorder.phase(seat.name):
        for waits in seat.going:
            state.clock.spend(engine_seconds=PAUSE_SECONDS)
            if waits or state.finished() or state.refuted or state.clock.now() >= state.turn_end:
                turn = _Turn.WAITS if waits else _Turn.NOTHING
                break
    state.report()
    if turn is _Turn.NOTHING and state.open_joules() < (1.0 - WORTH_SHARE) * before:
        turn = _Turn.BETTER
    seat.used_seconds += max(state.clock.now() - began, LEAST_SECONDS) / seat.share
    return turn


def _is_over(state: SearchState) -> bool:
    return state.finished() or (state.refuted and state.best.trace is None)
