"""Compile the allocator once per user, and load nothing that is not what was compiled.

The library is built with the torch headers of the installed wheel by one compiler call, at first use.
It is kept in poet's cache folder (`poet.files.cache_folder`), which must belong to the user and be closed to
others. Its file name holds two keys and its own SHA-256: the first key covers the source, the flags and
torch's build, the second the compiler. Without a compiler, a library that another compiler built
from the same source for the same torch will do.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from poet.errors import InputError
from poet.files.cache_folder import cache_folder, private_folder

SOURCE = Path(__file__).with_name("allocator.cpp")
_COMPILERS = ("c++", "g++", "clang++")
_COMPILE_SECONDS = 300


class Unavailable(Exception):
    """Why there is no native allocator, in words; `poet.runtime.native.load` turns it into a reason."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """A command and what it says about its version."""

    command: tuple[str, ...]
    version: str


def build_library(cache: Path | None = None) -> Path:
    """The compiled allocator, from ``cache`` or built now.

    Raises:
        Unavailable: no compiler, a compile error, or a cache that cannot be trusted.
    """
    if not sys.platform.startswith("linux"):
        raise Unavailable(f"the native allocator is made for Linux, this is {sys.platform}")
    try:
        folder = private_folder(cache or cache_folder())
    except InputError as error:
        raise Unavailable(str(error)) from error
    compiler = find_compiler()
    prefix = f"allocator-{_digest(SOURCE.read_text(), *_flags(), *_torch_build())}"
    if compiler is None:
        return _find(folder, f"{prefix}-*.so") or _no_compiler()
    prefix += f"-{_digest(*compiler.command, compiler.version)}"
    with _locked(folder):
        return _find(folder, f"{prefix}-*.so") or _compile(compiler, folder, prefix)


def find_compiler() -> Compiler | None:
    """``$CXX``, else the first C++ compiler on the path."""
    try:
        chosen = shlex.split(os.environ.get("CXX", ""))
    except ValueError as error:
        raise Unavailable(
            f"CXX is {os.environ['CXX']!r}, which is no command ({error}); set it to a compiler"
        ) from None
    for command in [chosen] if chosen else [[name] for name in _COMPILERS]:
        program = shutil.which(command[0])
        if program is None:
            continue
        try:
            asked = subprocess.run(
                [program, *command[1:], "--version"],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=60,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            continue
        return Compiler((program, *command[1:]), asked.stdout.strip())
    return None


def torch_release() -> str:
    """``"2.13.0"`` of ``"2.13.0+cpu"``."""
    found = re.match(r"\d+\.\d+\.\d+", torch.__version__)
    return found[0] if found else torch.__version__


def _flags() -> tuple[str, ...]:
    abi = int(torch.compiled_with_cxx11_abi())
    warnings = ("-Wall", "-Wextra")
    return (
        "-shared",
        "-fPIC",
        "-std=c++17",
        "-O2",
        "-fvisibility=hidden",
        f"-D_GLIBCXX_USE_CXX11_ABI={abi}",
        *warnings,
    )


def _torch_build() -> tuple[str, ...]:
    return (torch.__version__, str(torch.version.git_version), torch.__config__.show(), platform.machine())


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _no_compiler() -> Path:
    wanted = os.environ.get("CXX") or " or ".join(_COMPILERS)
    raise Unavailable(f"no C++ compiler was found ({wanted}); install one or set CXX")


def _find(folder: Path, pattern: str) -> Path | None:
    """A library of that name whose content is what its name says; others are removed."""
    for library in sorted(folder.glob(pattern)):
        if not library.is_symlink() and library.name.endswith(f"-{_content_digest(library)}.so"):
            return library
        library.unlink(missing_ok=True)
    return None


def _content_digest(library: Path) -> str:
    return hashlib.sha256(library.read_bytes()).hexdigest()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One builder at a time; the lock goes with the process that holds it."""
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _compile(compiler: Compiler, folder: Path, prefix: str) -> Path:
    root = Path(torch.__file__).parent
    headers = [root / "include", root / "include" / "torch" / "csrc" / "api" / "include"]
    if not headers[0].is_dir():
        raise Unavailable(f"the installed torch has no C++ headers ({headers[0]})")
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        built = Path(scratch) / "allocator.so"
        command = [*compiler.command, *_flags(), *(f"-isystem{header}" for header in headers)]
        command += [str(SOURCE), f"-L{root / 'lib'}", "-lc10", "-ltorch_cpu", "-o", str(built)]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_COMPILE_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unavailable(f"{compiler.command[0]} did not finish: {error}") from error
        if done.returncode or not built.exists():
            lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
            raise Unavailable(f"{compiler.command[0]} failed: {(lines or ['no message'])[0]}")
        library = folder / f"{prefix}-{_content_digest(built)}.so"
        built.replace(library)
    return library
