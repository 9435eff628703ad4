"""What storage can do to a training run, and what it leaves behind.

    python -m benchmarks faults            the table of results/faults.json
    python -m benchmarks faults --write    puts it there

Each fault strikes the second step of a small net, or the save after it, once with transfers that block and
once in the background. The first step was saved. Some faults are real (a file is cut, overwritten or
removed, a size limit is set); where a device would have to fail, the system call of the page file
returns the error that the kernel gives then.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import resource
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

import torch
from helpers import hand_net
from helpers.schedules import random_schedule
from torch import Tensor

from poet.errors import PoetError, ReplayError
from poet.plans.plan_file import write_plan
from poet.problem.simulator import simulate
from poet.runtime import Trainer
from poet.solvers.instance.incumbent import overlap

RESULT = Path(__file__).parents[2] / "benchmarks" / "results" / "faults.json"
HEAD = """# Faults of storage

What storage can do to the second step of a small net, or to its save, and what is left
(`python -m benchmarks faults --write`):

"""
SEED = 7  # of a schedule that writes and reads before the first update and after it

Injection = Callable[[Path], contextlib.AbstractContextManager[object]]
"""Given the page file's path: the fault lasts as long as the block."""


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong.

    Attributes:
        name: for the table.
        inject: see `Injection`.
        strikes: ``"opening"`` a second trainer, ``"step"`` two, or ``"saving"`` it.
        harmless: training goes on as if nothing had been.
    """

    name: str
    inject: Injection
    strikes: str = "step"
    harmless: bool = False


@dataclass(frozen=True)
class Result:
    """What a fault did.

    Attributes:
        reported: the line a user sees, without the folder; empty: none.
        left: the training state afterwards, in words.
        is_intact: whether training went on, or was resumed, with the bits of an undisturbed run.
    """

    reported: str
    left: str
    is_intact: bool


# --- injections -------------------------------------------------------------------------------


def _failing(call: str, number: int, *, at: int = 0) -> Injection:
    """The ``at``-th call of ``os.<call>`` on the page file and all after it fail with errno ``number``."""

    @contextlib.contextmanager
    def inject(pages: Path) -> Iterator[None]:
        true, count = getattr(os, call), iter(range(10**6))

        def fails(file: int | Path, *given: object, **named: object) -> object:
            if _is(file, pages) and next(count) >= at:
                raise OSError(number, os.strerror(number))
            return true(file, *given, **named)

        with mock.patch.object(os, call, fails):
            yield

    return inject


def _short(call: str, size_bytes: int) -> Injection:
    """Every transfer of the page file moves at most so many bytes."""

    @contextlib.contextmanager
    def inject(pages: Path) -> Iterator[None]:
        true: Callable[..., int] = getattr(os, call)

        def short(file: int, data: memoryview | list[memoryview], at: int) -> int:
            if not _is(file, pages):
                return true(file, data, at)
            cut = [data[0][:size_bytes]] if isinstance(data, list) else data[:size_bytes]
            return true(file, cut, at) if size_bytes else 0

        with mock.patch.object(os, call, short):
            yield

    return inject


def _is(file: int | Path, pages: Path) -> bool:
    """Whether a descriptor or path is the page file, which may be removed already."""
    if isinstance(file, int):
        return os.readlink(f"/proc/self/fd/{file}").removesuffix(" (deleted)") == str(pages)
    return Path(file) == pages


def _on_reading(change: Callable[[Path], object]) -> Injection:
    """``change`` is done to the file right before the first read."""

    @contextlib.contextmanager
    def inject(pages: Path) -> Iterator[None]:
        true = os.preadv
        done: list[object] = []

        def reads(file: int, *given: object) -> int:
            if _is(file, pages) and not done:
                done.append(change(pages))
            moved: int = true(file, *given)  # type: ignore[arg-type]
            return moved

        with mock.patch.object(os, "preadv", reads):
            yield

    return inject


def _overwrite(pages: Path) -> None:
    with pages.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * (pages.stat().st_size - 4096))


@contextlib.contextmanager
def _size_limit(pages: Path) -> Iterator[None]:
    """The kernel lets no file of this process grow beyond 4 KiB (RLIMIT_FSIZE)."""
    del pages
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextlib.contextmanager
def _no_flush(pages: Path) -> Iterator[None]:
    def fails(file: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    del pages
    with mock.patch.object(os, "fsync", fails):
        yield


FAULTS = (
    Fault("no room for the page file (size limit)", _size_limit, "opening"),
    Fault("no permission to open it", _failing("open", errno.EACCES), "opening"),
    Fault("read-only file system", _failing("open", errno.EROFS), "opening"),
    Fault("device full at the first write", _failing("pwrite", errno.ENOSPC)),
    Fault("device full at the fourth write", _failing("pwrite", errno.ENOSPC, at=3)),
    Fault("I/O error at the first write", _failing("pwrite", errno.EIO)),
    Fault("I/O error at the last writes", _failing("pwrite", errno.EIO, at=9)),
    Fault("I/O error at the first read", _failing("preadv", errno.EIO)),
    Fault("short writes", _short("pwrite", 4096), harmless=True),
    Fault("short reads", _short("preadv", 4096), harmless=True),
    Fault("a device that takes no more bytes", _short("pwrite", 0)),
    Fault("the file is cut to one page", _on_reading(lambda pages: os.truncate(pages, 4096))),
    Fault("the file is overwritten", _on_reading(_overwrite)),
    Fault("the file is removed", _on_reading(Path.unlink), harmless=True),
    Fault("no room for the saved state (size limit)", _size_limit, "saving"),
    Fault("I/O error while the state is flushed", _no_flush, "saving"),
)


# --- a trial ----------------------------------------------------------------------------------


def write_net(path: Path, *, background: bool, in_storage: bool = False) -> None:
    """The plan of the hand-written net that is put to the test."""
    what = hand_net.graph()
    of = replace(hand_net.problem(what, parameters_in_storage=in_storage), background_storage=background)
    schedule = random_schedule(of, SEED)
    if background:
        schedule = overlap(of, schedule, simulate(of, schedule).peak_ram_bytes)
    write_plan(path, hand_net.plan(of, what, schedule), hand_net.stored(hand_net.net()))


def undisturbed(plan: Path) -> dict[str, Tensor]:
    """The parameters after two steps."""
    with Trainer.open(plan) as trainer:
        for number in range(2):
            trainer.step(*hand_net.batch(number))
        return trainer.parameters()


def try_fault(fault: Fault, folder: Path, *, background: bool, in_storage: bool = False) -> Result:
    """One step and its save; then a step in which ``fault`` strikes; then what is left is used."""
    plan, pages, saved = folder / "plan.poet", folder / "pages", folder / "state.safetensors"
    write_net(plan, background=background, in_storage=in_storage)
    expected = undisturbed(plan)
    with Trainer.open(plan, page_file=pages) as trainer:
        trainer.step(*hand_net.batch(0))
        trainer.save(saved)
        committed = trainer.parameters()
        reported = _struck(fault, trainer, folder)
        left, is_intact = _what_is_left(trainer, committed, expected)
    if is_intact is None:
        with Trainer.open(plan, page_file=pages, resume=saved) as trainer:
            trainer.step(*hand_net.batch(1))
            is_intact = _same(trainer.parameters(), expected)
    return Result(reported.replace(f"{folder}{os.sep}", ""), left, is_intact)


def _struck(fault: Fault, trainer: Trainer, folder: Path) -> str:
    """The error while ``fault`` lasts, in the step or in what comes after it."""
    if fault.strikes == "saving":
        trainer.step(*hand_net.batch(1))
    pages = folder / ("other-pages" if fault.strikes == "opening" else "pages")
    with fault.inject(pages):
        try:
            if fault.strikes == "opening":
                Trainer.open(folder / "plan.poet", page_file=pages).close()
            elif fault.strikes == "saving":
                trainer.save(folder / "state.safetensors")
            else:
                trainer.step(*hand_net.batch(1))
        except PoetError as error:
            return str(error)
    return ""


def _what_is_left(
    trainer: Trainer, committed: dict[str, Tensor], expected: dict[str, Tensor]
) -> tuple[str, bool | None]:
    """The trainer's state in words, and whether it goes on exactly; ``None``: it has to be resumed."""
    try:
        found = trainer.parameters()
    except ReplayError:
        return "the last save; resumed from there", None
    if trainer.steps == 2:
        return "the step is done", _same(found, expected)
    is_committed = _same(found, committed)
    trainer.step(*hand_net.batch(1))
    left = "the last step; the trainer goes on" if is_committed else "another one"
    return left, is_committed and _same(trainer.parameters(), expected)


def _same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in found)


# --- the table --------------------------------------------------------------------------------


def table() -> str:
    """Markdown; a row per fault and way of transfer."""
    lines = [
        "| injected | transfers | reported | training state afterwards | same bits as undisturbed |",
        "|---|---|---|---|---|",
    ]
    for fault in FAULTS:
        rows: dict[str, list[str]] = {}
        for background in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                result = try_fault(fault, Path(folder), background=background)
            told = f"`{result.reported}`" if result.reported else "nothing"
            row = f"{told} | {result.left} | {'yes' if result.is_intact else '**no**'}"
            rows.setdefault(row, []).append("background" if background else "blocking")
        lines += [f"| {fault.name} | {', '.join(ways)} | {row} |" for row, ways in rows.items()]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print the table, or put it among the results of benchmarks."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--write", action="store_true", help=f"into {RESULT.name}")
    if not parser.parse_args().write:
        sys.stdout.write(table())
        return
    from result_file import write

    write(RESULT, HEAD + table())


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
