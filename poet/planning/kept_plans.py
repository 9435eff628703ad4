"""Plans that `poet solve` found before, by the content of the model: the next question starts where they end.

What names a model's file is who reads what in its step, by name; costs and sizes are not part of it. So a
plan for another budget, device or batch is a start as well, where the simulator accepts it for what is asked
now: the best of them by that judge is the start. A bound is taken over only for the same problem, inside
limits that are no wider, and by the same code.

A file holds the last plans of a model, a folder those of the models that were asked about last. What others
could have written counts as missing (`poet.planning.cache`), and so does what cannot be read.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path

from poet.errors import InputError, InvalidSchedule
from poet.files.cache_folder import cache_folder
from poet.planning.cache import Cache, code_digest, digest_of, pack
from poet.problem import Limits, Objective, Problem
from poet.problem.schedule import Schedule
from poet.problem.simulator import simulate
from poet.problem.solution import KnownBound, Solution, SolveOptions, Start, amount_of, is_confirmed
from poet.util import codec
from poet.util.reading import parse_json

FORMAT = "poet-kept-plans"
FORMAT_VERSION = 1
MOST_PLANS = 12
"""Of one model: those of the last questions."""
MOST_MODELS = 32
"""In a folder: what was asked about longest ago goes first."""

_KIND = "plans"


@dataclass(frozen=True, slots=True)
class _Kept:
    """A plan as a file holds it; what the simulator says of it is computed again.

    Attributes:
        problem: hash of all that the problem says.
        limits: that it is inside.
        objective: that it takes little of.
        bound_joules: no plan inside the limits takes less, as far as was known.
        proof: who stands behind an optimal plan.
        code: hash of the sources that said so.
        solver: who found it.
        schedule: of it.
    """

    problem: str
    limits: Limits
    objective: str
    bound_joules: float
    proof: str
    code: str
    solver: str
    schedule: Schedule

    @property
    def question(self) -> tuple[str, Limits, str]:
        """That it answers; a later answer takes its place."""
        return self.problem, self.limits, self.objective


@dataclass(frozen=True, slots=True)
class _File:
    """The plans of one model, the last first."""

    format: str
    version: int
    plans: tuple[_Kept, ...]


def default_folder() -> Path:
    """``solve`` in poet's cache folder.

    Raises:
        InputError: the user has no home.
    """
    return cache_folder() / "solve"


class KeptPlans:
    """The plans in a folder.

    Args:
        folder: is made, for its owner alone, when first written to.

    Raises:
        InputError: the folder is another user's, or others may write there.
    """

    def __init__(self, folder: Path) -> None:
        self._cache = Cache(folder)

    def started(self, problem: Problem, limits: Limits, options: SolveOptions) -> SolveOptions:
        """``options`` with the best of the kept plans as the start, and with the best of the kept bounds.

        They stay as they are where no kept plan is valid here, or no bound holds here.
        """
        kept = self._read(problem)
        if not kept:
            return options
        best, least = None, float("inf")
        for each in kept:
            with contextlib.suppress(InvalidSchedule):
                trace = simulate(problem, each.schedule, limits)
                amount = amount_of(options.objective, trace)
                if amount < least:
                    best, least = each, amount
        start = options.start if best is None else Start(best.schedule, best.solver)
        return replace(options, start=replace(start, bound=self._bound(kept, problem, limits)))

    def keep(self, problem: Problem, limits: Limits, solution: Solution) -> None:
        """Keep the plan of ``solution``, if it has one; the longest kept of too many go.

        Raises:
            InputError: the folder cannot be written.
        """
        if solution.schedule is None:
            return
        of_energy = solution.objective is Objective.ENERGY  # only then the bound holds for these limits
        new = _Kept(
            problem=_content(problem),
            limits=limits,
            objective=solution.objective.value,
            bound_joules=solution.bound_joules if of_energy else problem.compute_joules,
            proof=solution.proof if of_energy else "",
            code=code_digest(),
            solver=solution.solver,
            schedule=solution.schedule,
        )
        others = [each for each in self._read(problem) if each.question != new.question]
        file = _File(FORMAT, FORMAT_VERSION, (new, *others[: MOST_PLANS - 1]))
        self._cache.write(_KIND, _structure(problem), pack(codec.encode(file)))
        self._drop_old()

    def _bound(self, kept: tuple[_Kept, ...], problem: Problem, limits: Limits) -> KnownBound | None:
        """The highest of the bounds that hold here.

        None that closed a gap as a single solver's bound: the plan is a start, and this search asks again.
        """
        content, code = _content(problem), code_digest()
        bounds = [
            KnownBound(problem, each.limits, each.bound_joules, each.proof)
            for each in kept
            if each.problem == content and each.code == code and (not each.proof or is_confirmed(each.proof))
        ]
        holding = [bound for bound in bounds if bound.holds_for(problem, limits)]
        return max(holding, key=lambda bound: bound.joules, default=None)

    def _read(self, problem: Problem) -> tuple[_Kept, ...]:
        content = self._cache.read(_KIND, _structure(problem))
        if content is None:
            return ()
        try:
            file = codec.decode(_File, parse_json(content), where=FORMAT)
        except (InputError, ValueError):
            return ()
        if (file.format, file.version) != (FORMAT, FORMAT_VERSION):
            return ()
        return file.plans

    def _drop_old(self) -> None:
        """Files beyond `MOST_MODELS`, those written longest ago first."""
        assert self._cache.folder is not None
        with contextlib.suppress(OSError):  # another process drops them as well
            files = sorted(
                (self._cache.folder / _KIND).glob("*.json.gz"), key=lambda path: path.stat().st_mtime
            )
            for path in files[: max(0, len(files) - MOST_MODELS)]:
                path.unlink()


def _structure(problem: Problem) -> str:
    """Hash of who reads what: the same for every device, batch and budget."""
    ops = [(op.name, op.inputs, op.outputs, op.updates, op.stored_updates) for op in problem.ops]
    return digest_of(ops, [tensor.name for tensor in problem.tensors])


def _content(problem: Problem) -> str:
    return digest_of(problem.to_json())
