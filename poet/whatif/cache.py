"""Answers by content: what was once imported or solved is read again, whole and checked.

A file's name is the hash of everything its content depends on: the problem, the limits, the options of
the search and the code that answers. Files are gzipped JSON, written to a temporary name and renamed; one
that cannot be read, or that the simulator does not accept, counts as missing.

The simulator judges plans; that there is none, or none that costs less, is a searcher's word. So every file
carries a seal, made with a key that only this user can read, and counts as missing without: what is
read is what this user's own searches and imports wrote under that name, wherever the folder came from.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gzip
import hashlib
import hmac
import io
import json
import logging
import math
import os
import secrets
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from poet import codec
from poet.errors import InputError, InvalidSchedule
from poet.files.cache_folder import cache_folder, make_folder
from poet.files.reading import others_may_write, parse_json, read_own
from poet.problem import Limits, Problem
from poet.schedule import Schedule
from poet.simulator import Trace, simulate
from poet.solution import Solution, SolveOptions, Start, Status
from poet.solvers.portfolio.state import refutes
from poet.version import __version__

_log = logging.getLogger(__name__)

FORMAT = "poet-what-if-answer"
FORMAT_VERSION = 1
MAX_FILE_BYTES = 1 << 27
"""Of JSON that is read from one file; a step of 100,000 entries takes some 8 MB."""

SOLVING = (
    "solvers", "files", "problem.py", "schedule.py", "simulator.py", "solution.py", "homes.py", "pins.py",
    "codec.py", "units.py", "errors.py", "extras.py", "children.py", "brief.py", "graph.py",
    "graph_parts.py", "graph_checks.py", "calls.py", "strips.py", "wholes.py", "operators.py",
    "search_record.py", "progress.py", "clock.py", "closing.py", "freed_memory.py", "held_memory.py",
    "alternatives.py", "problem_parts.py", "problem_choices.py", "interrupts.py", "streams.py",
)  # fmt: skip
"""What an answer depends on: the searches and all that they import."""

IMPORTING = (
    "planning/prepared.py", "devices", "progress.py", "frontend", "passes", "c99/rows.py", "c99/rules",
    "c99/statements.py", "c99/calls.py",
    "runtime", "files", "calls.py", "strips.py", "graph.py", "graph_parts.py", "graph_checks.py",
    "operators.py",
    "kernel_facts.py", "kernel_allocations.py", "named_options.py", "optimizer.py",
    "optimizer_kinds.py", "optimizer_steps.py", "optimizer_text.py", "loss.py", "micro.py",
    "untrained.py", "codec.py", "errors.py", "units.py", "version.py", "brief.py", "children.py", "extras.py",
    "memory", "plans", "problem.py", "schedule.py", "simulator.py", "solution.py",
    "search_record.py", "homes.py", "pins.py", "clock.py", "closing.py", "wholes.py", "named.py",
    "alternatives.py", "problem_parts.py", "problem_choices.py", "interrupts.py", "streams.py",
)  # fmt: skip
"""What an imported graph and its kernels' facts depend on; with all that `poet.planning.prepared` imports."""

_ENGINES = ("highspy", "pulp", "ortools")


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
    """A `SolvedCell` as a file holds it: what the simulator says is not stored but computed again."""

    format: str
    version: int
    status: str
    bound_joules: float
    solver: str
    solve_seconds: float
    message: str
    schedule: Schedule | None


class Cache:
    """A folder of answers.

    Attributes:
        folder: is made, for its owner alone, when first written to; ``None``: nothing is kept.

    Raises:
        InputError: the folder is another user's, or others may write there.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder, self._is_kept = folder, True
        if folder is not None:
            _check_own(folder)

    def read(self, kind: str, key: str) -> bytes | None:
        """The content kept under ``key``, unzipped; ``None``: there is none, or none that this user wrote."""
        if self.folder is None:
            return None
        path = self._path(kind, key)
        try:
            if others_may_write(path.parent.stat()):
                return None
            packed = _opened(read_own(path, most_bytes=MAX_FILE_BYTES), f"{kind}/{key}")
        except (OSError, InputError):
            return None
        return None if packed is None else _unzipped(packed)

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
        sealed = _sealed(packed, f"{kind}/{key}")
        try:
            make_folder(path.parent)
            _write_own(temporary, sealed)
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


# --- source of the proof ----------------------------------------------------------------------

_SEAL_BYTES = 32
_COMMENT = 0x10  # flag of a gzip header that a text follows its ten bytes (RFC 1952)


def _check_own(folder: Path) -> None:
    try:
        why = others_may_write(folder.stat())
    except OSError:
        return  # it is made, or fails to be, when first written to
    if why:
        raise InputError(
            f"{folder}: the cache cannot be trusted ({why}); make it yours alone (chmod 700) or name another "
            "folder (XDG_CACHE_HOME, or --cache of poet what-if)"
        )


def _sealed(packed: bytes, name: str) -> bytes:
    """``packed``, as `pack` made it, with its seal as a comment in its header."""
    seal = _seal(packed, name).hex().encode()
    return packed[:3] + bytes([_COMMENT]) + packed[4:10] + seal + b"\0" + packed[10:]


def _opened(sealed: bytes, name: str) -> bytes | None:
    """What `_sealed` was given; ``None``: the seal is not this user's, or is that of something else."""
    end = 10 + 2 * _SEAL_BYTES
    packed = sealed[:3] + b"\0" + sealed[4:10] + sealed[end + 1 :]
    given = sealed[10:end]
    is_sealed = sealed[3:4] == bytes([_COMMENT]) and sealed[end : end + 1] == b"\0"
    return packed if is_sealed and hmac.compare_digest(given, _seal(packed, name).hex().encode()) else None


def _seal(packed: bytes, name: str) -> bytes:
    return hmac.digest(_user_key(cache_folder() / "what-if.key"), name.encode() + b"\0" + packed, "sha256")


@functools.cache
def _user_key(path: Path) -> bytes:
    """The secret of this user's seals, made at first use; without it all that was kept counts as missing."""
    for _ in range(2):
        with contextlib.suppress(OSError):
            if len(key := read_own(path, most_bytes=_SEAL_BYTES)) == _SEAL_BYTES:
                return key
            path.unlink()  # damaged
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            make_folder(path.parent)
            _check_own(path.parent)
            _write_own(temporary, secrets.token_bytes(_SEAL_BYTES))
            with contextlib.suppress(FileExistsError):  # another process was first: its key is everyone's
                os.link(temporary, path)
        except OSError as error:
            raise InputError(
                f"{path}: the key of poet's cache cannot be written ({error.strerror or error}); set "
                "XDG_CACHE_HOME to a folder of yours"
            ) from None
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()
    raise InputError(f"{path}: the key of poet's cache cannot be read; remove it")


def _write_own(path: Path, content: bytes) -> None:
    """Write a new file that nobody else can read or write."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


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
    asked = repr(dataclasses.replace(options, start=Start(), progress=None))
    return digest_of(problem_digest, dataclasses.asdict(limits), asked, code_digest(SOLVING))


# --- answers as files -------------------------------------------------------------------------


def pack(data: object) -> bytes:
    """``data`` as a gzipped JSON file, the same bytes for the same data."""
    return gzip.compress(json.dumps(data, separators=(",", ":")).encode(), compresslevel=6, mtime=0)


def unpack(packed: bytes) -> Any:
    """What `pack` was given."""
    return json.loads(gzip.decompress(packed))


def _unzipped(packed: bytes) -> bytes | None:
    """What a gzip file holds; ``None``: it is damaged, or larger than anything of ours."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(packed)) as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except (OSError, EOFError, ValueError, zlib.error):
        return None
    return content if len(content) <= MAX_FILE_BYTES else None


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
                solution.schedule,
            )
        )
    )


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
    schedule = stored.schedule
    trace = None if schedule is None else simulate(problem, schedule, limits)
    if trace is not None and refutes(trace.joules, stored.bound_joules):
        raise InputError(f"{where}: its bound is above what its own plan takes")
    return SolvedCell(
        words[stored.status],
        schedule,
        trace,
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
