"""What trials of strips and of parts showed on this machine, from one process to the next.

A trial is a run of a kernel, which depends on the processor, on torch with its libraries and on what the
environment says to these. What it showed is kept in the user's cache folder, in one file for each
such machine, by the digest of what was tried: in a block of `recalled`, `told` has what is there and what is
given to `note` is added at its end. Nothing depends on the file: one that is missing, damaged or of another
format says nothing, and one that cannot be written is left.

``POET_TRIALS=anew`` in the environment has every process make its own trials.
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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from poet.errors import InputError
from poet.files.cache_folder import cache_folder, private_folder
from poet.files.reading import parse_json, read_own

VARIABLE = "POET_TRIALS"
_FORMAT = "poet-trials-1"
_MOST_BYTES = 1 << 24
_MOST_ENTRIES = 20_000
_LIBRARIES = ("ATEN_", "DNNL_", "ONEDNN_", "MKL_", "OMP_", "KMP_", "GOMP_", "OPENBLAS_")
"""Beginnings of the names of variables that choose kernels or how these work."""

_log = logging.getLogger("poet.runtime")
_known: dict[str, Any] = {}  # what earlier processes found out
_new: dict[str, Any] = {}  # and this one


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
    """Of the modules that run strips and parts, say what they divide, and try them."""
    package = Path(__file__).parents[2]
    trials, kernels = package / "runtime" / "trials", package / "runtime" / "kernels"
    files = (
        *(trials / name for name in ("strips.py", "strip_trial.py", "part_trial.py", "trial_bench.py")),
        *(kernels / name for name in ("__init__.py", "overwriting.py", "packed.py", "logits.py")),
        *(kernels / name for name in ("recurrent.py", "tables.py")),
        package / "runtime" / "native" / "packed.cpp",
        *(package / name for name in ("wholes.py", "operators.py")),
    )
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()
