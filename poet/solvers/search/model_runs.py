"""Event models solved for one search: relaxed ones for bounds, exact ones for plans."""

from __future__ import annotations

import math
from collections.abc import Sequence

from poet.solvers.engines import Effort, Outcome, available_engines, run_engine
from poet.solvers.event_model.emit import schedule_of
from poet.solvers.event_model.model import EventModel, build, matrix_of
from poet.solvers.event_model.start import values_of
from poet.solvers.instance.instance import Instance
from poet.solvers.instance.timeline import timeline_of
from poet.solvers.search.finders import model_by, relaxed_by
from poet.solvers.search.slots_of_plans import reruns_of
from poet.solvers.search.standing import Claim, Standing


class ModelRuns:
    """Solves models by ``engine``; what comes of them goes to ``standing``."""

    def __init__(self, standing: Standing, engine: str) -> None:
        self.standing, self.engine, self.tuning = standing, engine, standing.tuning
        self._ended = set[tuple[bool, frozenset[tuple[int, tuple[int, ...]]]]]()  # see `solve_exactly`

    def own_reruns(self) -> dict[int, set[int]]:
        """Per stage, the reruns of the best plan."""
        schedule = self.standing.best.schedule
        return {} if schedule is None else reruns_of(self.standing.instance, schedule)

    def solve_exactly(self, offered: dict[int, tuple[int, ...]], other_engine: bool = False) -> bool:
        """The best plan whose reruns all have a slot in ``offered``; whether the engine came to its end.

        A model of the same slots is not solved by the same engine again.
        """
        standing, key = self.standing, (other_engine, frozenset(offered.items()))
        if key in self._ended:
            return True
        model = build(timeline_of(standing.instance, offered))
        engine = self._second_engine(model) if other_engine else None
        done = self.run(model, bounding=False, engine=engine).done
        if standing.finished():
            return done
        if standing.problem.background_storage and standing.limits.deadline_seconds is not None:
            done &= self.run(build(timeline_of(standing.serial, offered)), bounding=False).done
        if done:
            self._ended.add(key)
        return done

    def improve(
        self, instance: Instance, offered: dict[int, tuple[int, ...]], seconds: float, *, contains_best: bool
    ) -> Outcome:
        """The best plan of a problem that allows less, if it is better than the best so far.

        Args:
            instance: of that problem, whose ops are those of the search's.
            offered: its reruns, by stage.
            seconds: that the engine may take.
            contains_best: whether the best plan so far, with its reruns offered, is one of that problem's.
        """
        model, trace = build(timeline_of(instance, offered)), self.standing.best.trace
        if contains_best or trace is None:
            return self.run(model, bounding=False, seconds=seconds)
        return self.run(model, bounding=False, seconds=seconds, below_joules=trace.joules)

    def relax(self, model: EventModel) -> Outcome:
        """Solve a relaxed model; where HiGHS leaves it open, CP-SAT, which learns from conflicts, unless what
        HiGHS has shown is far below the best bound.
        """
        seconds, second = self._model_seconds(), self._second_engine(model)
        if second is None or seconds is None:
            return self.run(model, bounding=True)
        outcome = self.run(model, bounding=True, seconds=self.tuning.first_engine_share * seconds)
        if outcome.done or outcome.infeasible or self.standing.finished():
            return outcome
        known_joules = self.standing.bound.joules - self.standing.baseline_joules
        if outcome.values is not None and outcome.bound_joules < self.tuning.second_share * known_joules:
            return outcome
        again = self.run(model, bounding=True, engine=second)
        return again if again.values is not None or again.infeasible else outcome

    def relax_for(self, share: float, model: EventModel, other_engine: bool) -> Outcome:
        """Solve a relaxed model in ``share`` of the time left, by another engine where that is asked for."""
        left = self.standing.seconds_left()
        seconds = None if math.isinf(left) else share * left
        other = self._second_engine(model) if other_engine else None
        return self.run(model, bounding=True, engine=other, seconds=seconds)

    def run(
        self,
        model: EventModel,
        *,
        bounding: bool,
        engine: str | None = None,
        seconds: float | None = None,
        below_joules: float | None = None,
    ) -> Outcome:
        """Solve one model by an engine; takes over its plans and, if it is relaxed, its bound.

        Where the best plan is none of an exact model's, ``below_joules`` is what its plans must stay below.
        """
        standing = self.standing
        engine, seconds = engine or self.engine, self._model_seconds() if seconds is None else seconds
        if below_joules is not None:
            matrix = matrix_of(model).cut_off(below_joules - standing.baseline_joules)
        else:
            schedule = standing.best.schedule
            matrix = matrix_of(model, None if schedule is None else values_of(model, schedule))

        def watch(values: Sequence[float] | None, bound: float) -> bool:
            if values is not None:
                standing.consider(schedule_of(model, values), model_by(engine), is_ours=not bounding)
            if bounding:
                standing.take_bound(bound, relaxed_by(engine), claim)
            standing.report()
            return standing.enough()

        claim = Claim(model, engine)
        outcome = run_engine(engine, matrix, self.effort(seconds), watcher=watch)
        if outcome.values is not None:
            standing.consider(schedule_of(model, outcome.values), model_by(engine), is_ours=not bounding)
        if outcome.infeasible and below_joules is None:
            standing.empty = claim
        elif bounding:
            standing.take_bound(outcome.bound_joules, relaxed_by(engine), claim)
        standing.report()
        standing.stopped = standing.stopped or outcome.interrupted
        return outcome

    def effort(self, seconds: float | None, most_seconds: float | None = None) -> Effort:
        """For an engine; ``most_seconds`` not given: all that is left."""
        standing, options = self.standing, self.standing.options
        # the gap at which an engine may stop: a part of the gap that counts as closed
        allowed_joules = options.allowed_gap_joules(standing.bound.joules, standing.baseline_joules)
        return Effort(
            seconds=seconds,
            threads=options.threads,
            seed=standing.seed,
            absolute_joules=self.tuning.engine_gap_share * allowed_joules,
            relative=0.0,
            most_seconds=standing.seconds_left() if most_seconds is None else most_seconds,
            tuning=options.tuning,
            clock=standing.clock,
        )

    def _second_engine(self, model: EventModel) -> str | None:
        """CP-SAT, where it is there, HiGHS is the first engine, and the model is one of whole numbers."""
        is_auto = self.standing.options.engine == "auto" and self.engine == "highs"
        return "cpsat" if is_auto and "cpsat" in available_engines() and not model.held else None

    def _model_seconds(self) -> float | None:
        """Seconds that one model may take; ``None``: any."""
        seconds, tuning = self.standing.seconds_left(), self.tuning
        if math.isinf(seconds):
            return None
        floor_seconds = min(seconds, tuning.model_floor_seconds)
        return max(seconds * tuning.model_share, floor_seconds, tuning.model_least_seconds)
