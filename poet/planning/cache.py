"""Answers by content: what was once imported or solved is read again and checked.

A file's name is the hash of what its content depends on: the problem, the limits, the options and poet's
own code. Files are gzipped JSON in a folder of their owner alone. One that is damaged, that others could
have written, or that the simulator does not accept counts as missing.

`KeptPlans` are those that `poet solve` found before: the next question starts where they end. What names a
model's file is who reads what in its step, by name; costs and sizes are not part of it. So a plan for another
budget, device or batch is a start as well, where the simulator accepts it for what is asked now: the best of
them by that judge is the start. A bound is taken over only for the same problem, inside limits that are no
wider, and by the same code.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import hashlib
import io
import json
import logging
import math
import os
import secrets
import zlib
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from poet.errors import InputError, InvalidSchedule
from poet.files.cache_folder import cache_folder, make_folder
from poet.problem import Limits, Objective, Problem
from poet.problem.schedule import Schedule
from poet.problem.simulator import Trace, simulate
from poet.problem.solution import (
    KnownBound,
    Solution,
    SolveOptions,
    Start,
    Status,
    amount_of,
    is_confirmed,
)
from poet.solvers.portfolio.state import refutes
from poet.util import codec
from poet.util.reading import others_may_write, parse_json, read_own
from poet.version import __version__

_log = logging.getLogger(__name__)

FORMAT, PLANS_FORMAT = "poet-what-if-answer", "poet-kept-plans"
FORMAT_VERSION = 1
MOST_PLANS = 12
"""Of one model: those of the last questions."""
MOST_MODELS = 32
"""In a folder: what was asked about longest ago goes first."""
MAX_FILE_BYTES = 1 << 27
"""Of JSON that is read from one file; a step of 100,000 entries takes some 8 MB."""


class Cache:
    """A folder of answers.

    Attributes:
        folder: is made, for its owner alone, when first written to; ``None``: nothing is kept.

    Raises:
        InputError: the folder is another user's, or others may write there.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder, self._is_kept = folder, True
        try:
            why = "" if folder is None else others_may_write(folder.stat())
        except OSError:
            return  # it is made, or fails to be, when first written to
        if why:
            raise InputError(
                f"{folder}: the cache cannot be trusted ({why}); make it yours alone (chmod 700) or name "
                "another folder (XDG_CACHE_HOME, or --cache of poet what-if)"
            )

    def read(self, kind: str, key: str) -> bytes | None:
        """The content kept under ``key``, unzipped; ``None``: there is none that can be trusted."""
        if self.folder is None:
            return None
        path = self._path(kind, key)
        try:
            if others_may_write(path.parent.stat()):
                return None
            with gzip.GzipFile(fileobj=io.BytesIO(read_own(path, most_bytes=MAX_FILE_BYTES))) as file:
                content = file.read(MAX_FILE_BYTES + 1)
        except (OSError, EOFError, ValueError, zlib.error):
            return None
        return content if 0 < len(content) <= MAX_FILE_BYTES else None

    def keep(self, kind: str, key: str, packed: bytes) -> None:
        """As `write`; where the folder cannot be written there is one warning, and nothing more is kept."""
        try:
            if self._is_kept:
                self.write(kind, key, packed)
        except InputError as error:
            self._is_kept = False
            _log.warning("poet: answers are not kept: %s", error)

    def write(self, kind: str, key: str, packed: bytes) -> None:
        """Keep ``packed``, a gzip file's content, under ``key``: whole or not at all.

        Raises:
            InputError: the folder cannot be written.
        """
        if self.folder is None:
            return
        path = self._path(kind, key)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            make_folder(path.parent)
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(packed)
            os.replace(temporary, path)
        except OSError as error:
            raise InputError(
                f"{path.parent}: the cache cannot be written ({error.strerror or error}); "
                "name another folder (XDG_CACHE_HOME, or --cache of poet what-if)"
            ) from None
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()

    def _path(self, kind: str, key: str) -> Path:
        assert self.folder is not None
        return self.folder / kind / f"{key}.json.gz"


def users_cache() -> Cache:
    """That of this user; where there is no folder for it, a warning, and nothing is kept."""
    try:
        return Cache(default_folder())
    except InputError as error:
        _log.warning("poet: answers are not kept: %s", error)
        return Cache(None)


def default_folder() -> Path:
    """``what-if`` in poet's cache folder.

    Raises:
        InputError: the user has no home.
    """
    return cache_folder() / "what-if"


# --- keys -------------------------------------------------------------------------------------


@functools.cache
def code_digest() -> str:
    """Hash of poet's version and sources, and of the versions of the engines."""
    digest = hashlib.sha256(__version__.encode())
    package = Path(__file__).parents[1]
    for source in sorted(path for path in package.rglob("*") if path.suffix in (".py", ".cpp")):
        digest.update(str(source.relative_to(package)).encode() + source.read_bytes())
    for engine in ("highspy", "pulp", "ortools"):
        try:
            digest.update(f"{engine} {version(engine)}".encode())
        except PackageNotFoundError:
            digest.update(f"{engine} none".encode())
    return digest.hexdigest()


def digest_of(*parts: object) -> str:
    """Hash of JSON-ready ``parts``, the same in every process."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def cell_key(problem_digest: str, limits: Limits, options: SolveOptions) -> str:
    """The name of a search's answer. What the search began with is not part of it: a better start
    makes no answer wrong.
    """
    asked = repr(replace(options, start=Start(), progress=None))
    return digest_of(problem_digest, asdict(limits), asked, code_digest())


# --- answers as files -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SolvedCell:
    """A search's answer, validated.

    Attributes:
        status: how it ended.
        schedule, trace: the plan; ``None`` without one.
        bound_joules: no plan within the limits costs less.
        solver: who found the plan.
        solve_seconds: wall clock of the search.
        message: why there is no plan, or what would help.
    """

    status: Status
    schedule: Schedule | None
    trace: Trace | None
    bound_joules: float
    solver: str
    solve_seconds: float
    message: str = ""


@dataclass(frozen=True, slots=True)
class _Stored:
    """A `SolvedCell` as a file holds it: what the simulator says is not stored but computed again."""

    format: str
    version: int
    status: str
    bound_joules: float
    solver: str
    solve_seconds: float
    message: str
    schedule: Schedule | None


def pack(data: object) -> bytes:
    """``data`` as a gzipped JSON file, the same bytes for the same data."""
    return gzip.compress(json.dumps(data, separators=(",", ":")).encode(), compresslevel=6, mtime=0)


def unpack(packed: bytes) -> Any:
    """What `pack` was given."""
    return json.loads(gzip.decompress(packed))


def pack_solution(solution: Solution) -> bytes:
    """A search's answer as a file's content."""
    bound_joules = solution.bound_joules if math.isfinite(solution.bound_joules) else 0.0
    told = solution.solver, solution.solve_seconds, solution.message, solution.schedule
    return pack(codec.encode(_Stored(FORMAT, FORMAT_VERSION, solution.status.word, bound_joules, *told)))


def judge_cell(content: bytes, problem: Problem, limits: Limits, *, where: str) -> SolvedCell:
    """The answer in an unzipped file, its schedule simulated again.

    Raises:
        InputError: the file is damaged or of another version.
        InvalidSchedule: the simulator does not accept its schedule.
    """
    try:
        data = parse_json(content)
    except ValueError as error:
        raise InputError(f"{where}: not a readable answer ({error})") from None
    stored = codec.decode(_Stored, data, where=where)
    if (stored.format, stored.version) != (FORMAT, FORMAT_VERSION):
        raise InputError(f"{where}: not a {FORMAT} file of version {FORMAT_VERSION}")
    words = {status.word: status for status in Status}
    planned = stored.status in ("optimal", "feasible")
    if stored.status not in words or planned != (stored.schedule is not None):
        raise InputError(f"{where}: the status {stored.status!r} contradicts the rest of the file")
    trace = None if stored.schedule is None else simulate(problem, stored.schedule, limits)
    if trace is not None and refutes(trace.joules, stored.bound_joules):
        raise InputError(f"{where}: its bound is above what its own plan takes")
    status, bound_joules = words[stored.status], stored.bound_joules
    told = stored.solver, stored.solve_seconds, stored.message
    return SolvedCell(status, stored.schedule, trace, bound_joules, *told)


def cached_cell(cache: Cache, key: str, problem: Problem, limits: Limits) -> SolvedCell | None:
    """The answer kept under ``key``; ``None``: there is none that can be trusted."""
    content = cache.read("answers", key)
    if content is None:
        return None
    try:
        return judge_cell(content, problem, limits, where=f"answers/{key[:12]}")
    except (InputError, InvalidSchedule):
        return None


# --- plans of a model -------------------------------------------------------------------------


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


class KeptPlans:
    """The plans in a folder, ``solve`` in poet's cache folder where none is given.

    Raises:
        InputError: the folder is another user's, or others may write there; or the user has no home.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._cache = Cache(folder or cache_folder() / "solve")

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
        file = _File(PLANS_FORMAT, FORMAT_VERSION, (new, *others[: MOST_PLANS - 1]))
        self._cache.write("plans", _structure(problem), pack(codec.encode(file)))
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
        content = self._cache.read("plans", _structure(problem))
        if content is None:
            return ()
        try:
            file = codec.decode(_File, parse_json(content), where=PLANS_FORMAT)
        except (InputError, ValueError):
            return ()
        if (file.format, file.version) != (PLANS_FORMAT, FORMAT_VERSION):
            return ()
        return file.plans

    def _drop_old(self) -> None:
        """Files beyond `MOST_MODELS`, those written longest ago first."""
        assert self._cache.folder is not None
        with contextlib.suppress(OSError):  # another process drops them as well
            files = sorted(
                (self._cache.folder / "plans").glob("*.json.gz"), key=lambda path: path.stat().st_mtime
            )
            for path in files[: max(0, len(files) - MOST_MODELS)]:
                path.unlink()


def _structure(problem: Problem) -> str:
    """Hash of who reads what: the same for every device, batch and budget."""
    ops = [(op.name, op.inputs, op.outputs, op.updates, op.stored_updates) for op in problem.ops]
    return digest_of(ops, [tensor.name for tensor in problem.tensors])


def _content(problem: Problem) -> str:
    return digest_of(problem.to_json())
