"""Trials of equal bits: whether another form of some calls gives on this machine what the calls give.

A form runs on random tensors beside what it replaces, and every bit is compared: when a model is imported, to
choose forms (`is_exact`); when a plan is opened, on the machine that will train (`refuse_inexact`). What was
found is kept for later imports, in one file per machine; ``POET_TRIALS=anew`` has every process try again.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import platform
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from poet.errors import InputError, PlanError, ReplayError
from poet.files.cache_folder import cache_folder, private_folder
from poet.runtime.system.memory import available_bytes
from poet.runtime.system.process import likely_thread_counts, torch_threads
from poet.util.reading import parse_json, read_own

VARIABLE = "POET_TRIALS"
_FORMAT = "poet-trials-1"
_MOST_BYTES = 1 << 24
_MOST_ENTRIES = 20_000
_LIBRARIES = ("ATEN_", "DNNL_", "ONEDNN_", "MKL_", "OMP_", "KMP_", "GOMP_", "OPENBLAS_")
"""Beginnings of the names of variables that choose kernels or how these work."""

FAILURES = (RuntimeError, AttributeError, IndexError, TypeError, ValueError, PlanError)
"""What kernels and the runtime say of arguments that they do not take."""

_RAM_SHARE = 0.5  # of what is available, that a trial may take
_TILE_ELEMENTS = 500_009  # a prime: no two rows of a tensor that is filled with tiles are alike
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

_log = logging.getLogger("poet.runtime")
_exact: dict[tuple[object, int], bool] = {}  # by a trial's key and the number of threads
_tile: list[Tensor] = []
_known: dict[str, Any] = {}  # what earlier processes found out
_new: dict[str, Any] = {}  # and this one


@dataclass(frozen=True, slots=True)
class Trial:
    """One form of some calls, to be tried against the calls themselves.

    Attributes:
        key: equal for trials of the same work, in all processes.
        needed_bytes: of memory while it runs.
        run: whether every bit is the same, at torch's number of threads.
        without: the option with which a plan has no such form.
    """

    key: object
    needed_bytes: Callable[[], int]
    run: Callable[[], bool]
    without: str = "--gradients keep"

    @property
    def fits(self) -> bool:
        """Whether this machine has the memory to run it."""
        return self.needed_bytes() <= _RAM_SHARE * available_bytes()


def is_exact(trial: Trial, thread_counts: Iterable[int] | None = None) -> bool:
    """Whether a form is exact here; what is known already is not tried again, see `recalled`.

    ``False`` where this machine has no memory to try it, or no kernel for it.

    Args:
        trial: of the form.
        thread_counts: numbers of threads; not given: one, torch's number and that of all cores.
    """
    for threads in likely_thread_counts() if thread_counts is None else thread_counts:
        digest = digest_of(("exact", trial.key, threads))
        found = _exact.get((trial.key, threads), told(digest))
        if not isinstance(found, bool):
            try:
                found = trial.fits and _tried(trial, threads)
            except FAILURES:
                return False
            if (trial.key, threads) in _exact:
                note(digest, found)
        if not found:
            return False
    return True


def refuse_inexact(trials: Iterable[tuple[str, Trial]]) -> None:
    """Refuse forms that give other bits on this machine, at torch's number of threads.

    What this machine has no memory to try is not tried, and logged.

    Args:
        trials: each with what it is of, in words.

    Raises:
        ReplayError: says of which.
    """
    threads, untried = torch.get_num_threads(), dict[str, None]()
    for what, trial in trials:
        try:
            if (trial.key, threads) not in _exact and not trial.fits:
                untried[what] = None
                continue
            found = _tried(trial, threads)
        except FAILURES as error:
            raise ReplayError(f"{what} cannot run here: {error}") from None
        if not found:
            raise ReplayError(
                f"{what} gives other bits here, with {threads} threads, than plain PyTorch; plan on this "
                f"machine with as many threads, {VARIABLE}=anew in the environment, or with {trial.without}"
            )
    if untried:
        _log.warning(
            "poet: %d forms of ops were not tried against plain PyTorch, for want of memory (%s first)",
            len(untried),
            next(iter(untried)),
        )


def _tried(trial: Trial, threads: int) -> bool:
    """Whether it is exact with so many threads; once per process."""
    key = trial.key, threads
    if key not in _exact:
        with torch_threads(threads), torch.no_grad():
            _exact[key] = trial.run()
    return _exact[key]


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether both have one type, one shape and the same bits."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    kind = _INTEGERS[one.element_size()]
    return torch.equal(one.view(kind), other.view(kind))


def random_elements(count: int, element: torch.dtype, *, below: int = 1, shift: int = 0) -> Tensor:
    """``count`` elements: normally distributed, or whole numbers from 0 to below ``below``; always the same.

    ``shift``: another gives other numbers.
    """
    content = torch.empty(count, dtype=element)
    if not element.is_floating_point:
        return content.random_(0, max(below, 1), generator=torch.Generator().manual_seed(count))
    if not _tile:
        _tile.append(torch.randn(_TILE_ELEMENTS, generator=torch.Generator().manual_seed(0)))
    tile = _tile[0].roll(shift) if shift else _tile[0]
    for start in range(0, count, _TILE_ELEMENTS):
        part = content[start : start + _TILE_ELEMENTS]
        part.copy_(tile[: len(part)])
    return content


# --- what earlier processes found out -------------------------------------------------------------


def digest_of(distinct: object) -> str:
    """The name of a trial of ``distinct``: the signature of what was tried, and whatever else it was."""
    return hashlib.sha256(repr(distinct).encode()).hexdigest()[:32]


@contextmanager
def recalled() -> Iterator[None]:
    """In the block, `told` has what earlier processes found out; what it notes is left to later ones."""
    _known.update(known())
    try:
        yield
    finally:
        remember(_new)
        _new.clear()
        _known.clear()


def told(digest: str) -> Any:
    """What an earlier process found out; ``...`` where none did, and outside of `recalled`."""
    return _known.get(digest, ...)


def note(digest: str, found: Any) -> None:
    """Leave ``found``, which is JSON, to later processes when this block of `recalled`, or the next, ends."""
    _new[digest] = found


def known() -> Mapping[str, Any]:
    """What trials showed here, by digest."""
    if os.environ.get(VARIABLE) == "anew":
        return {}
    with suppress(OSError, InputError):
        return _read(_path())
    return {}


def remember(found: Mapping[str, Any]) -> None:
    """Keep ``found``, JSON by digest, with what is there; the oldest is dropped where it grows too long."""
    if not found or os.environ.get(VARIABLE) == "anew":
        return
    try:
        path = _path()
        private_folder(path.parent)
        kept = list({**_read(path), **found}.items())[-_MOST_ENTRIES:]
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            temporary.write_text(json.dumps({"format": _FORMAT, "found": dict(kept)}))
            os.replace(temporary, path)
        finally:
            with suppress(OSError):
                temporary.unlink()
    except (OSError, InputError) as error:
        _log.info("what trials showed is not kept: %s", error)


def _path() -> Path:
    return cache_folder() / "trials" / f"{machine_digest()}.json"


def _read(path: Path) -> dict[str, Any]:
    try:
        data = parse_json(read_own(path, most_bytes=_MOST_BYTES))
    except (OSError, ValueError):
        return {}
    if not isinstance(data, dict) or data.get("format") != _FORMAT:
        return {}
    found = data.get("found")
    return found if isinstance(found, dict) else {}


def machine_digest() -> str:
    """Of all that a kernel's bits and time depend on beside what it is given."""
    said = sorted(item for item in os.environ.items() if item[0].startswith(_LIBRARIES))
    return digest_of(
        (_processor(), torch.__version__, torch.__config__.show(), _own_sources(), _settings(), said)
    )


def _settings() -> tuple[str, bool, bool]:
    """What a process told torch that has it choose other kernels."""
    return (
        torch.get_float32_matmul_precision(),
        bool(torch.backends.mkldnn.enabled),
        torch.are_deterministic_algorithms_enabled(),
    )


@functools.cache
def _processor() -> str:
    """Its architecture, model, instructions and number of cores."""
    found: list[str] = []
    with suppress(OSError):
        told = Path("/proc/cpuinfo").read_text(errors="replace")
        lines = r"^(?:model name|Model|cpu family|model|stepping|flags|Features|CPU part)\s*:.*$"
        found = sorted(set(re.findall(lines, told, re.MULTILINE)))
    return repr((platform.machine(), torch.backends.cpu.get_cpu_capability(), os.cpu_count(), found))


@functools.cache
def _own_sources() -> str:
    """Of the modules that run forms, say what they divide, and try them."""
    package = Path(__file__).parents[2]
    folders = (package / "runtime" / "trials", package / "runtime" / "kernels")
    files = [file for folder in folders for file in sorted(folder.glob("*.py"))]
    files += [package / "runtime" / "native" / "packed.cpp"]
    files += [package / "ir" / name for name in ("strips.py", "wholes.py", "operators.py")]
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()
