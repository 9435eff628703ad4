"""An arena inside the budget for one schedule: at fixed places, at places by CP-SAT, or with moves."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

from poet.homes import DecidedProblem
from poet.kernel_facts import KernelFacts
from poet.memory.demand import Demand, demand_of
from poet.memory.layout import Layout, lay_out, lower_bound_bytes
from poet.planning.arena_room import ArenaRoom, is_mapped
from poet.planning.exact_layout import exact_layout
from poet.planning.moved_places import moved_places
from poet.plans.plan_parts import Arena
from poet.problem import Limits
from poet.schedule import Schedule
from poet.simulator import Trace
from poet.solution import SolveOptions

_LEAST_EXACT_SECONDS = 1.0  # its process has to come up
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LaidOut:
    """A schedule with fixed places.

    Attributes:
        schedule: what was laid out.
        demand: what it asks for.
        layout: where that lies.
        ram_bytes: that the arena takes.
        room_bytes: how large it may be.
    """

    schedule: Schedule
    demand: Demand
    layout: Layout
    ram_bytes: int
    room_bytes: int

    @property
    def arena(self) -> Arena:
        """As a plan has it."""
        return Arena(self.layout.arena_bytes, self.layout.offsets_bytes)

    @property
    def lacking_bytes(self) -> int:
        """By how much what is live at once exceeds the room, so that moves do not help; 0: only gaps do."""
        return max(0, self.layout.lower_bound_bytes - self.room_bytes)


class ArenaSearch:
    """Searches for places, within the time limit of a plan.

    Args:
        problem: of the schedules.
        limits: inside which plans with moves must be.
        options: with the time limit for everything.
        kernels: whose workspaces the problem counts, where more is known about them.
        spent_seconds: of the time limit, before this.

    Attributes:
        room: what the budget leaves for arenas.
        may_move: whether tensors may be moved within one.
    """

    def __init__(
        self,
        problem: DecidedProblem,
        limits: Limits,
        options: SolveOptions,
        kernels: KernelFacts | None,
        *,
        spent_seconds: float,
    ) -> None:
        self.problem, self.limits, self.options = problem, limits, options
        self.kernels, self.tuning = kernels, options.tuning.fitting
        self.room = ArenaRoom(limits.ram_budget_bytes, is_mapped(kernels))
        self.may_move = self.tuning.moving_seconds > 0 and any(tensor.move for tensor in problem.tensors)
        self._started = options.clock.now() - spent_seconds
        self._exact_seconds = min(self.tuning.exact_seconds, self.tuning.exact_share * self.left_seconds())

    def spent_seconds(self) -> float:
        """Of the time limit, so far."""
        return self.options.clock.now() - self._started

    def left_seconds(self) -> float:
        """Of the time limit; negative where it is over, infinite without one."""
        limit_seconds = self.options.time_limit_seconds
        return math.inf if limit_seconds is None else limit_seconds - self.spent_seconds()

    def laid_out(self, schedule: Schedule, *, most_seconds: float = math.inf) -> LaidOut:
        """Fixed places for what ``schedule`` asks for, found in ``most_seconds`` at most."""
        demand = demand_of(self.problem, schedule, self.kernels)
        room_bytes = self.room.arena_bytes(schedule, demand)
        layout = lay_out(
            demand.blocks,
            enough_bytes=max(room_bytes, 0),
            time_limit_seconds=min(self._layout_seconds(demand, room_bytes), most_seconds),
        )
        ram_bytes = self.room.taken_bytes(demand, layout.offsets_bytes, layout.arena_bytes)
        return LaidOut(schedule, demand, layout, ram_bytes, room_bytes)

    def missing_bytes(self, laid: LaidOut) -> int:
        """What an arena of fixed places lacks of RAM; 0 or less: it fits."""
        return laid.ram_bytes - self.room.left_bytes(laid.schedule)

    def placed_exactly(self, laid: LaidOut) -> Arena | None:
        """Fixed places inside the room, where CP-SAT finds some."""
        seconds = self._exact_seconds
        if seconds < _LEAST_EXACT_SECONDS or laid.lacking_bytes:
            return None
        before = self.options.clock.now()
        found = exact_layout(
            laid.layout.blocks,
            laid.room_bytes,
            near_bytes=laid.layout.offsets_bytes,
            time_limit_seconds=seconds,
            clock=self.options.clock,
        )
        self._exact_seconds -= self.options.clock.now() - before
        if found.is_impossible:
            _log.info("fixed places do not fit, which is proven")
        if found.layout is None:
            return None
        return Arena(found.layout.arena_bytes, found.layout.offsets_bytes)

    def with_moves(
        self, laid: LaidOut, *, most_seconds: float = math.inf, less_than_joules: float = math.inf
    ) -> tuple[Arena, Trace] | None:
        """Places inside the room where tensors may move, and what a step then takes.

        ``None``: none are found whose moves take less than ``less_than_joules``.
        """
        if not self.may_move or laid.lacking_bytes or less_than_joules <= 0.0:
            return None
        moved = moved_places(
            self.problem,
            laid.schedule,
            laid.demand,
            laid.room_bytes,
            limits=self.limits,
            guide_bytes=laid.layout.offsets_bytes,
            less_than_joules=less_than_joules,
            time_limit_seconds=min(self._seconds_for_moves(), most_seconds),
        )
        if moved is None:
            return None
        found, trace = moved
        return Arena(found.arena_bytes, found.offsets_bytes, found.moves), trace

    def _layout_seconds(self, demand: Demand, room_bytes: int) -> float:
        """For one layout: a share of the time that is left, and little where no places can be enough."""
        seconds = self.tuning.layout_seconds
        if self.limits.ram_budget_bytes is None:
            return seconds
        if lower_bound_bytes(demand.blocks) > room_bytes:  # with the page buffer, mostly: solved again
            seconds *= self.tuning.hopeless_share
        return min(seconds, max(self.tuning.layout_share * self.left_seconds(), self.tuning.least_seconds))

    def _seconds_for_moves(self) -> float:
        """For one search for moves, which make a plan fit at all: never less than one needs."""
        share_seconds = self.tuning.layout_share * self.left_seconds()
        return min(self.tuning.moving_seconds, max(share_seconds, self.tuning.moving_least_seconds))
