"""Answers by content: what was once imported or solved is read again, whole and checked.

A file's name is the hash of everything its content depends on: the problem, the limits, the options of
the search and the code that answers. Files are gzipped JSON, written to a temporary name and renamed; one
that cannot be read, or that the simulator does not accept, counts as missing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gzip
import hashlib
import json
import math
import os
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from poet import codec
from poet.cache_folder import cache_folder, make_folder
from poet.errors import InputError, InvalidSchedule
from poet.problem import Limits, Problem
from poet.schedule import Schedule, schedule_from_data, schedule_to_data
from poet.simulator import Trace, simulate
from poet.solution import Solution, SolveOptions, Status
from poet.version import __version__

FORMAT = "poet-what-if-answer"
FORMAT_VERSION = 1
MAX_FILE_BYTES = 1 << 28
"""Of JSON that is read from one file; a step of 100,000 entries takes some 8 MB."""

SOLVING = (
    "solvers", "problem.py", "schedule.py", "simulator.py", "solution.py", "homes.py", "pins.py", "codec.py",
    "units.py", "errors.py", "extras.py", "children.py",
)  # fmt: skip
"""What an answer depends on: the searches and all that they import."""

IMPORTING = (
    "api.py", "frontend", "runtime", "graph.py", "operators.py", "kernel_facts.py", "kernel_allocations.py",
    "optimizer.py", "codec.py", "errors.py", "units.py", "version.py",
    "training_plan.py", "plan_file.py", "training_run.py", "tensorfile.py", "demand.py", "layout.py",
    "host.py", "problem.py", "schedule.py", "simulator.py", "solution.py", "homes.py", "pins.py",
)  # fmt: skip
"""What an imported graph and its kernels' facts depend on; of what ``api.py`` imports, these alone."""
_ENGINES = ("highspy", "pulp", "ortools")
_NOT_IN_KEY = ("start", "start_by", "progress")


@dataclass(frozen=True, slots=True)
class SolvedCell:
    """A search's answer, judged.

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
    """A `SolvedCell` as a file holds it: what the simulator says is not stored but made anew."""

    format: str
    version: int
    status: str
    bound_joules: float
    solver: str
    solve_seconds: float
    message: str
    schedule: Any


class Cache:
    """A folder of answers.

    Attributes:
        folder: is made, for its owner alone, when first written to; ``None``: nothing is kept.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def read(self, kind: str, key: str) -> bytes | None:
        """The content kept under ``key``, unzipped; ``None``: there is none, or it is damaged."""
        if self.folder is None:
            return None
        try:
            with gzip.open(self._path(kind, key), "rb") as file:
                content = file.read(MAX_FILE_BYTES + 1)
        except (OSError, EOFError, ValueError):
            return None
        return content if len(content) <= MAX_FILE_BYTES else None

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
            temporary.write_bytes(packed)
            os.replace(temporary, path)
        except OSError as error:
            raise InputError(
                f"{path.parent}: the cache cannot be written ({error.strerror or error}); "
                "name another folder by --cache"
            ) from None
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()

    def _path(self, kind: str, key: str) -> Path:
        assert self.folder is not None
        return self.folder / kind / f"{key}.json.gz"


def default_folder() -> Path:
    """``what-if`` in poet's cache folder.

    Raises:
        InputError: the user has no home.
    """
    return cache_folder() / "what-if"


# --- keys -------------------------------------------------------------------------------------


@functools.cache
def code_digest(rooms: tuple[str, ...]) -> str:
    """Hash of the sources in ``rooms`` of the package, its version and the engines' versions."""
    digest = hashlib.sha256(__version__.encode())
    for room in rooms:
        for source in _sources(files("poet").joinpath(room)):
            digest.update(source.name.encode() + source.read_bytes())
    for engine in _ENGINES:
        try:
            digest.update(f"{engine} {version(engine)}".encode())
        except PackageNotFoundError:
            digest.update(f"{engine} none".encode())
    return digest.hexdigest()


def _sources(place: Traversable) -> Iterable[Traversable]:
    if place.is_file():
        return [place] if place.name.endswith((".py", ".cpp")) else []
    inside = sorted(place.iterdir(), key=lambda entry: entry.name)
    return [source for entry in inside if entry.name != "__pycache__" for source in _sources(entry)]


def digest_of(*parts: object) -> str:
    """Hash of JSON-ready ``parts``, the same in every process."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def cell_key(problem_digest: str, limits: Limits, options: SolveOptions) -> str:
    """The name of a search's answer. What the search began with is not part of it: a better start
    makes no answer wrong.
    """
    asked = {
        field.name: codec.encode(getattr(options, field.name))
        for field in dataclasses.fields(options)
        if field.name not in _NOT_IN_KEY
    }
    return digest_of(problem_digest, dataclasses.asdict(limits), asked, code_digest(SOLVING))


# --- answers as files -------------------------------------------------------------------------


def pack(data: object) -> bytes:
    """``data`` as a gzipped JSON file, the same bytes for the same data."""
    return gzip.compress(json.dumps(data, separators=(",", ":")).encode(), compresslevel=6, mtime=0)


def unpack(packed: bytes) -> Any:
    """What `pack` was given."""
    return json.loads(gzip.decompress(packed))


def pack_solution(solution: Solution) -> bytes:
    """A search's answer as a file's content."""
    return pack(
        codec.encode(
            _Stored(
                FORMAT,
                FORMAT_VERSION,
                solution.status.word,
                solution.bound_joules if math.isfinite(solution.bound_joules) else 0.0,
                solution.solver,
                solution.solve_seconds,
                solution.message,
                None if solution.schedule is None else schedule_to_data(solution.schedule),
            )
        )
    )


def judge_cell(content: bytes, problem: Problem, limits: Limits, *, where: str) -> SolvedCell:
    """The answer in an unzipped file, its schedule judged anew.

    Raises:
        InputError: the file is damaged or of another version.
        InvalidSchedule: the simulator does not accept its schedule.
    """
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not a readable answer ({error})") from None
    stored = codec.decode(_Stored, data, where=where)
    if (stored.format, stored.version) != (FORMAT, FORMAT_VERSION):
        raise InputError(f"{where}: not a {FORMAT} file of version {FORMAT_VERSION}")
    words = {status.word: status for status in Status}
    planned = stored.status in ("optimal", "feasible")
    if stored.status not in words or planned != (stored.schedule is not None):
        raise InputError(f"{where}: the status {stored.status!r} contradicts the rest of the file")
    schedule = None if stored.schedule is None else schedule_from_data(stored.schedule, where=where)
    return SolvedCell(
        words[stored.status],
        schedule,
        None if schedule is None else simulate(problem, schedule, limits),
        stored.bound_joules,
        stored.solver,
        stored.solve_seconds,
        stored.message,
    )


def cached_cell(cache: Cache, key: str, problem: Problem, limits: Limits) -> SolvedCell | None:
    """The answer kept under ``key``; ``None``: there is none that can be trusted."""
    content = cache.read("answers", key)
    if content is None:
        return None
    try:
        return judge_cell(content, problem, limits, where=f"answers/{key[:12]}")
    except (InputError, InvalidSchedule):
        return None
