"""What trials of strips showed on this machine, from one process to the next.

A trial is a run of a kernel, which depends on the processor, on torch with its libraries and on what the
environment says to these. What it showed is kept in the user's cache folder, in one file for each
such machine, by the strip's digest: `known` has what is there, `remember` adds to it. Nothing depends on the
file: one that is missing, damaged or of another format says nothing, and one that cannot be written is left.

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
from collections.abc import Mapping
from contextlib import suppress
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


def digest_of(distinct: object) -> str:
    """The name of a trial of ``distinct``: the strip's signature, and whatever else it was."""
    return hashlib.sha256(repr(distinct).encode()).hexdigest()[:32]


def known() -> Mapping[str, Any]:
    """What trials showed here, by digest."""
    if os.environ.get(VARIABLE) == "anew":
        return {}
    with suppress(OSError, InputError):
        return _read(_path())
    return {}


def remember(found: Mapping[str, Any]) -> None:
    """Keep ``found``, JSON by digest, with what is there; the oldest is given up where it grows too long."""
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
        _log.info("what trials of strips showed is not kept: %s", error)


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
    return digest_of((_processor(), torch.__version__, torch.__config__.show(), _own_sources(), said))


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
    """Of the modules that run strips and try them."""
    here = Path(__file__).parent
    names = ("strips.py", "strip_trial.py", "trial_bench.py", "kernels.py", "recurrent.py")
    return hashlib.sha256(b"\0".join((here / name).read_bytes() for name in names)).hexdigest()
