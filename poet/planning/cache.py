"""Answers by content: what was once imported or solved is read again and checked.

A file's name is the hash of what its content depends on: the problem, the limits, the options and poet's
own code. Files are gzipped JSON in a folder of their owner alone. One that is damaged, that others could
have written, or that the simulator does not accept counts as missing.
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
from poet.problem import Limits, Problem
from poet.problem.schedule import Schedule
from poet.problem.simulator import Trace, simulate
from poet.problem.solution import Solution, SolveOptions, Start, Status
from poet.solvers.portfolio.state import refutes
from poet.util import codec
from poet.util.reading import others_may_write, parse_json, read_own
from poet.version import __version__

_log = logging.getLogger(__name__)

FORMAT = "poet-what-if-answer"
FORMAT_VERSION = 1
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
