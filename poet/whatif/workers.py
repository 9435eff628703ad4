"""Searches in parallel, by joblib: on local processes, or on a Dask cluster named by its scheduler.

A task and its answer travel as bytes, so that they depend on no shared folder and on nothing that only one
worker holds: the task of a worker that died is run again by another. Answers are validated here and kept.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import logging
import os
import resource
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from joblib import Parallel, delayed, parallel_config
from joblib.externals.loky import get_reusable_executor
from joblib.externals.loky.process_executor import BrokenProcessPool

from poet.errors import InputError, how_to_install
from poet.planning.cache import (
    Cache,
    SolvedCell,
    cached_cell,
    cell_key,
    digest_of,
    judge_cell,
    pack,
    pack_solution,
    unpack,
)
from poet.problem import Limits, Problem
from poet.problem.solution import SolveOptions, Start
from poet.solvers import solve
from poet.util import children, interrupts
from poet.util.units import format_joules

MEMORY_SHARE = 0.8
"""Of the machine's memory that all local workers may take together, where no bound is given."""
CONNECT_SECONDS = 5
_log = logging.getLogger(__name__)

_TRIES_TOGETHER = 2  # after that each task is tried alone, so that the one to blame is found

Task = Callable[[], bytes]
"""A `functools.partial` of a function of a module and arguments that travel."""


@dataclass(frozen=True, slots=True)
class Workers:
    """Who works.

    Attributes:
        jobs: local processes; 1: this one, unless its memory is to be bounded.
        cluster: a Dask scheduler, e.g. ``tcp://10.0.0.1:8786``, in place of local processes.
        memory_bytes: data that a local worker may hold; ``None``: its part of `MEMORY_SHARE`.
    """

    jobs: int = 1
    cluster: str | None = None
    memory_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise InputError(f"{self.jobs} jobs; expected 1 or more")

    @property
    def in_this_process(self) -> bool:
        """Whether tasks are run here, one after the other."""
        return self.cluster is None and self.jobs == 1 and self.memory_bytes is None

    @property
    def bound_bytes(self) -> int | None:
        """The memory bound of one worker; ``None`` where this process or a cluster works."""
        if self.cluster is not None or self.in_this_process:
            return None
        if self.memory_bytes is not None:
            return self.memory_bytes
        machine_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return int(machine_bytes * MEMORY_SHARE) // self.jobs


def default_jobs() -> int:
    """One worker per processor that this process may use."""
    return len(os.sched_getaffinity(0))


Run = Callable[[Sequence[Task]], Iterator[tuple[int, bytes | None]]]
"""Runs tasks; gives the index and the answer of each as it comes, ``None`` for one that takes its
worker down every time."""


@contextlib.contextmanager
def working(workers: Workers) -> Iterator[Run]:
    """What runs tasks on ``workers``; local processes end with it.

    Raises:
        InputError: no scheduler answers at the cluster's address, or Dask is not installed.
    """
    if workers.in_this_process:
        yield _run_here
    elif workers.cluster is not None:
        with (
            children.safe_path(),
            _client(workers.cluster) as client,
            parallel_config(backend="dask", client=client),
        ):
            yield _run_on_cluster
    else:
        local = {"initializer": _begin, "initargs": (os.getpid(), thread_settings())}
        with children.safe_path(), parallel_config(backend="loky", **local):
            try:
                yield functools.partial(_run_in_processes, workers)
            finally:
                get_reusable_executor().shutdown(wait=True, kill_workers=True)


THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def thread_settings() -> tuple[str | None, ...]:
    """The values of `THREAD_VARIABLES` here: with the number of processors, what torch's threads follow from.

    Kernels need more workspace with more threads, and a plan that a sweep finds is replayed with as many as
    a plan of its own would be. joblib gives its workers fewer; they take these instead.
    """
    return tuple(os.environ.get(name) for name in THREAD_VARIABLES)


def _begin(parent: int, settings: Sequence[str | None]) -> None:
    """Begin a local worker, before anything in it imports torch."""
    children.end_with_parent(parent)
    for name, value in zip(THREAD_VARIABLES, settings, strict=True):
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


# --- three ways to run ------------------------------------------------------------------------


def _run_here(tasks: Sequence[Task]) -> Iterator[tuple[int, bytes | None]]:
    """One after the other. A search ends on Ctrl-C with its best plan; the sweep is to end then too."""
    asked = interrupts.times_asked()
    with interrupts.answered(interrupts.end):
        for index, task in enumerate(tasks):
            answer = task()
            if interrupts.times_asked() > asked:
                raise KeyboardInterrupt
            yield index, answer


def _run_in_processes(workers: Workers, tasks: Sequence[Task]) -> Iterator[tuple[int, bytes | None]]:
    """On local processes; when one is killed the rest is run by new ones, at last one task at a time."""
    left = dict(enumerate(tasks))
    for _ in range(_TRIES_TOGETHER):
        try:
            for index, answer in _parallel(left, jobs=workers.jobs, memory_bytes=workers.bound_bytes):
                del left[index]
                yield index, answer
            return
        except BrokenProcessPool:
            get_reusable_executor().shutdown(wait=True, kill_workers=True)
    for index in list(left):
        try:
            yield from _parallel({index: left[index]}, jobs=1, memory_bytes=workers.bound_bytes)
        except BrokenProcessPool:
            get_reusable_executor().shutdown(wait=True, kill_workers=True)
            yield index, None


def _run_on_cluster(tasks: Sequence[Task]) -> Iterator[tuple[int, bytes | None]]:
    """On a cluster; its scheduler runs a task again whose worker died, some three times."""
    from distributed import KilledWorker

    try:
        yield from _parallel(dict(enumerate(tasks)), jobs=-1, memory_bytes=None)
    except KilledWorker as error:
        raise InputError(f"the cluster's workers die ({error}); what is done is kept") from None


def _parallel(
    tasks: dict[int, Task], *, jobs: int, memory_bytes: int | None
) -> Iterator[tuple[int, bytes | None]]:
    """Run ``tasks`` by joblib, which would run a single job in this process: that one gets a pool too."""
    calls = [delayed(_in_worker)(index, task, memory_bytes) for index, task in tasks.items()]
    run = Parallel(
        n_jobs=2 if jobs == 1 else jobs,
        batch_size=1,
        pre_dispatch=1 if jobs == 1 else "2*n_jobs",
        return_as="generator_unordered",
    )
    with contextlib.closing(run(calls)) as answers:
        for answer in answers:
            yield answer
            if interrupts.was_told():
                raise KeyboardInterrupt


def _in_worker(index: int, task: Task, memory_bytes: int | None) -> tuple[int, bytes | None]:
    """``task`` in a worker, whose memory is bounded."""
    if memory_bytes is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        bound = memory_bytes if hard == resource.RLIM_INFINITY else min(memory_bytes, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (bound, hard))
    try:
        return index, task()
    except MemoryError:
        return index, None


@contextlib.contextmanager
def _client(address: str) -> Iterator[Any]:
    """A connection to the Dask scheduler at ``address``."""
    try:
        from distributed import Client
    except ImportError:
        raise InputError(f"a cluster needs Dask; {how_to_install('cluster')}") from None
    _check_address(address)
    try:
        client = Client(address, timeout=CONNECT_SECONDS, set_as_default=False)  # type: ignore[no-untyped-call]
    except (OSError, ValueError, TimeoutError) as error:
        raise InputError(f"no Dask scheduler answers at {address} ({error})") from None
    with client:
        yield client


def _check_address(address: str) -> None:
    """Refuse what names no scheduler: a client made of it fails and complains again when it is collected."""
    from distributed.comm.addressing import parse_address, parse_host_port
    from distributed.comm.registry import get_backend

    try:
        scheme, location = parse_address(address)
        get_backend(scheme)
        if scheme != "inproc":
            parse_host_port(location)
    except ValueError as error:
        raise InputError(
            f"{address!r} names no Dask scheduler ({error}); write tcp://10.0.0.1:8786"
        ) from None


# --- searches ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Wanted:
    """A problem to solve inside limits; ``name`` is for the log, ``start`` is what to begin with."""

    problem: Problem
    limits: Limits
    name: str
    start: Start = field(default_factory=Start)


@dataclass(frozen=True, slots=True)
class Solver:
    """What solves: the options of every search, the cache of answers, and the workers."""

    options: SolveOptions
    cache: Cache
    run: Run
    _packed: dict[int, tuple[Problem, bytes, str]] = field(init=False, default_factory=dict, compare=False)

    def cached(self, item: Wanted) -> SolvedCell | None:
        """The answer of an earlier search."""
        return cached_cell(self.cache, self._key(item), item.problem, item.limits)

    def search(self, wanted: Sequence[Wanted]) -> Iterator[tuple[int, SolvedCell | None]]:
        """Index and answer of each as it comes; ``None`` where a search took its worker down."""
        tasks = []
        for item in wanted:
            options = replace(self.options, start=item.start, progress=None)
            _, packed, _ = self._of(item.problem)
            tasks.append(functools.partial(search, packed, item.limits, options, item.name))
        for index, packed_answer in self.run(tasks):
            item, answer = wanted[index], None
            if packed_answer is not None:
                content = gzip.decompress(packed_answer)
                answer = judge_cell(content, item.problem, item.limits, where="worker")
                self.cache.keep("answers", self._key(item), packed_answer)
            yield index, answer

    def solve(self, wanted: Sequence[Wanted]) -> list[SolvedCell | None]:
        """The answers in order, from the cache where they are there."""
        found = [self.cached(item) for item in wanted]
        missing = [index for index, answer in enumerate(found) if answer is None]
        for item, answer in zip(wanted, found, strict=True):
            if answer is not None:
                _log.info("%s: answered by the cache", item.name)
        for number, answer in self.search([wanted[index] for index in missing]):
            found[missing[number]] = answer
            _log.info("%s: %s", wanted[missing[number]].name, _outcome(answer))
        return found

    def _key(self, item: Wanted) -> str:
        return cell_key(self._of(item.problem)[2], item.limits, self.options)

    def _of(self, problem: Problem) -> tuple[Problem, bytes, str]:
        """A problem, packed once however often it is searched, and its hash."""
        if id(problem) not in self._packed:
            data = problem.to_json()
            self._packed[id(problem)] = problem, pack(data), digest_of(data)
        return self._packed[id(problem)]


def search(problem: bytes, limits: Limits, options: SolveOptions, name: str) -> bytes:
    """Solve a packed problem; the packed answer. The log of the process that searches calls it ``name``."""
    _log.info("%s: the search begins", name)
    return pack_solution(solve(_unpacked(problem), limits, options))


@functools.lru_cache(maxsize=2)
def _unpacked(problem: bytes) -> Problem:
    return Problem.from_json(unpack(problem))


def _outcome(answer: SolvedCell | None) -> str:
    """For the log."""
    if answer is None:
        return given_up("the search")
    plan = "no plan" if answer.trace is None else f"a plan that takes {format_joules(answer.trace.joules)}"
    return f"{plan}, {answer.status.name.lower()}, after {answer.solve_seconds:.3f} s"


def given_up(what: str) -> str:
    """The message of a task that took its worker down."""
    return (
        f"{what} took more memory than a worker may, or its worker was killed; give --worker-memory more, "
        "or fewer --jobs."
    )
