"""Compile the allocator once per user and release of torch, or take one that was made elsewhere.

The library is built with the torch headers of the installed wheel by one compiler call, at first use.
It is kept in poet's cache folder (`poet.files.cache_folder`), which must belong to the user and be closed to
others, under a name that covers the source, the flags and torch's build. One that `build_for_copying` made
elsewhere must say that it is of this source, release of torch and processor.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from poet.errors import InputError
from poet.files.cache_folder import cache_folder, private_folder
from poet.files.tensorfile import replaced
from poet.util.reading import lock

VARIABLE = "POET_ALLOCATOR"
NAME = "allocator.so"
ROOT_ID = 0
COMMAND = "python -m poet.runtime.native --output FILE"

_MADE_FOR = re.compile(rb"poet allocator, source ([0-9a-f]+), torch ([0-9.]+), C\+\+11 ABI ([01]);\0")
_ELF = b"\x7fELF"
_MACHINES = {3: "x86", 40: "32-bit ARM", 62: "x86-64", 183: "aarch64", 243: "RISC-V"}
"""By the number in the head of the file; elf(5)."""


@dataclass(frozen=True, slots=True)
class MadeFor:
    """Where a library fits.

    Attributes:
        machine: of the processor.
        source: digest of all C++ that it is made of.
        torch_version: of the headers, ``"2.13.0"``.
        new_abi: whether strings are those of C++11.
    """

    machine: str
    source: str
    torch_version: str
    new_abi: bool

    def __str__(self) -> str:
        return f"{self.machine}, torch {self.torch_version}, C++11 ABI {int(self.new_abi)}"


def machine_of(head: bytes) -> str | None:
    """The processor that an ELF file, whose first bytes these are, is for."""
    if len(head) < 20 or head[:4] != _ELF:
        return None
    number = int.from_bytes(head[18:20], "little" if head[5] == 1 else "big")
    return _MACHINES.get(number, f"machine {number}")


def this_machine() -> str:
    """That of the running interpreter, whose kernel may be able to run others as well."""
    with Path("/proc/self/exe").open("rb") as program:
        return machine_of(program.read(20)) or "no ELF machine"


def made_for(library: Path) -> MadeFor:
    """What ``library`` says it was made for.

    Raises:
        InputError: it is no allocator of poet's.
        OSError: it cannot be read.
    """
    content = library.read_bytes()
    machine, told = machine_of(content[:20]), _MADE_FOR.search(content)
    if machine is None or told is None:
        raise InputError(f"{library} is no allocator of poet's; make one with `{COMMAND}`")
    source, torch_version, new_abi = (group.decode() for group in told.groups())
    return MadeFor(machine, source, torch_version, new_abi == "1")


def checked(library: Path, here: MadeFor) -> Path:
    """The absolute path of ``library``, which may be loaded where ``here`` holds.

    Raises:
        InputError: it is not there, others could have written it, or it was made for something else.
    """
    try:
        place = _private(library)
        found = made_for(place)
    except OSError as error:
        raise InputError(f"the allocator {library} cannot be read: {error.strerror}") from error
    for what, is_so, must_be in (
        ("", found.machine, here.machine),
        ("torch ", found.torch_version, here.torch_version),
        ("C++11 ABI ", int(found.new_abi), int(here.new_abi)),
    ):
        if is_so != must_be:
            raise InputError(
                f"the allocator {library} is for {what}{is_so}, here is {what}{must_be}; "
                f"make one for this with `{COMMAND}`"
            )
    if found.source != here.source:
        raise InputError(
            f"the allocator {library} is of another version of poet; make one with `{COMMAND}` of this one"
        )
    return place


def _private(library: Path) -> Path:
    """``library`` in its real folder, if nobody but this user or root can write either."""
    place = library.absolute().parent.resolve() / library.name
    for path, is_kind, kind in ((place.parent, stat.S_ISDIR, "folder"), (place, stat.S_ISREG, "file")):
        found = path.lstat()
        if not is_kind(found.st_mode) or found.st_uid not in (os.geteuid(), ROOT_ID):
            raise InputError(
                f"the allocator {library} is not used: {path} is not a {kind} of this user or root; "
                "copy the library itself into a folder of this user"
            )
        if found.st_mode & 0o022:
            raise InputError(
                f"the allocator {library} is not used: the {kind} {path} is open to others; `chmod go-w` it, "
                "if nobody else has put it there"
            )
    return place


SOURCE = Path(__file__).with_name("allocator.cpp")
_KERNELS = SOURCE.with_name("packed.cpp")
_COMPILERS = ("c++", "g++", "clang++")
_TORCH_LIBRARIES = ("-lc10", "-ltorch_cpu")
_COMPILE_SECONDS = 300


class Unavailable(Exception):
    """Why there is no native allocator, in words; `poet.runtime.native.load` turns it into a reason."""


Compiler = tuple[str, ...]
"""Its command."""


def build_library(cache: Path | None = None) -> Path:
    """The compiled allocator: the one made elsewhere, from ``cache``, or built now.

    Raises:
        Unavailable: no compiler, a compile error, a cache that cannot be trusted, or a library made
            elsewhere that cannot be or does not fit.
    """
    if not sys.platform.startswith("linux"):
        raise Unavailable(f"the native allocator is made for Linux, this is {sys.platform}")
    misfit = ""
    try:
        if named := os.environ.get(VARIABLE):
            return checked(Path(named), fits_here())
        folder = private_folder(cache or cache_folder())
    except InputError as error:
        raise Unavailable(str(error)) from error
    if os.path.lexists(folder / NAME):
        try:
            return checked(folder / NAME, fits_here())
        except InputError as error:
            misfit = str(error)
    library = folder / f"allocator-{_digest(_source_digest(), *_flags(), *_torch_build())}.so"
    if _is_file(library):
        return library
    if misfit and find_compiler() is None:
        raise Unavailable(misfit)
    compiler = needed_compiler()
    try:
        with _locked(folder):
            if not _is_file(library):
                _compile(compiler, library)
    except OSError as error:
        raise Unavailable(
            f"no allocator can be built in {folder} ({error.strerror or error}); set XDG_CACHE_HOME to a "
            f"folder that can be written, or {VARIABLE} to one that is made"
        ) from None
    return library


def build_for_copying(output: Path, *, compiler: str | None = None) -> MadeFor:
    """Compile the allocator into ``output``, for the processor of ``compiler`` and this release of torch.

    The installed torch's libraries are for this processor, so the compiler links against empty ones of their
    names: what the allocator takes from them is found where it is loaded.

    Raises:
        Unavailable: no compiler, or a compile error.
        PoetError: ``output`` cannot be written.
    """
    found = needed_compiler(compiler)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for name in ("c10", "torch_cpu"):
            library = folder / f"lib{name}.so"
            empty = ("-x", "c++", "-shared", "-fPIC", os.devnull, f"-Wl,-soname,{library.name}")
            call(found, [*empty, "-o", str(library)], library)
        built = folder / NAME
        call(
            found,
            [*_source(), "-Wl,--no-as-needed", f"-L{folder}", *_TORCH_LIBRARIES, "-o", str(built)],
            built,
        )
        try:
            result = made_for(built)
        except InputError as error:
            raise Unavailable(f"{found[0]} gives no ELF library") from error
        with replaced(output) as file:
            file.write(built.read_bytes())
    return result


def fits_here() -> MadeFor:
    """What a library made elsewhere must be made for."""
    return MadeFor(this_machine(), _source_digest(), torch_release(), torch.compiled_with_cxx11_abi())


def find_compiler(named: str | None = None) -> Compiler | None:
    """``named``, or ``$CXX``, else the first C++ compiler on the path."""
    name, text = ("CXX", os.environ.get("CXX", "")) if named is None else ("the compiler", named)
    try:
        chosen = shlex.split(text)
    except ValueError as error:
        raise Unavailable(
            f"{name} is {text!r}, which is no command ({error}); set it to a compiler"
        ) from None
    for command in [chosen] if chosen else [[name] for name in _COMPILERS]:
        program = shutil.which(command[0])
        if program is None:
            continue
        found = (program, *command[1:])
        try:
            subprocess.run([*found, "--version"], capture_output=True, timeout=60, check=True)
        except (OSError, subprocess.SubprocessError):
            continue
        return found
    return None


def needed_compiler(named: str | None = None) -> Compiler:
    """What `find_compiler` finds.

    Raises:
        Unavailable: it finds none.
    """
    if found := find_compiler(named):
        return found
    wanted = named or os.environ.get("CXX") or " or ".join(_COMPILERS)
    raise Unavailable(f"no C++ compiler was found ({wanted}); install one or set CXX")


def torch_release() -> str:
    """``"2.13.0"`` of ``"2.13.0+cpu"``."""
    found = re.match(r"\d+\.\d+\.\d+", torch.__version__)
    return found[0] if found else torch.__version__


def _flags() -> tuple[str, ...]:
    abi = int(torch.compiled_with_cxx11_abi())
    warnings = ("-Wall", "-Wextra")
    abi_flag = f"-D_GLIBCXX_USE_CXX11_ABI={abi}"
    return ("-shared", "-fPIC", "-std=c++17", "-O3", "-fvisibility=hidden", abi_flag, *warnings)


def _torch_build() -> tuple[str, ...]:
    return (torch.__version__, str(torch.version.git_version), torch.__config__.show(), platform.machine())


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _is_file(library: Path) -> bool:
    return library.is_file() and not library.is_symlink()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One builder at a time; the lock goes with the process that holds it."""
    with (folder / "lock").open("w") as file:
        lock(file, wait=True)
        yield


def _compile(compiler: Compiler, library: Path) -> None:
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        built = Path(scratch) / library.name
        libraries = (f"-L{Path(torch.__file__).parent / 'lib'}", *_TORCH_LIBRARIES)
        call(compiler, [*_source(), *libraries, "-o", str(built)], built)
        built.replace(library)


def _source() -> list[str]:
    """What to compile, and how."""
    root = Path(torch.__file__).parent
    headers = [root / "include", root / "include" / "torch" / "csrc" / "api" / "include"]
    if not headers[0].is_dir():
        raise Unavailable(f"the installed torch has no C++ headers ({headers[0]})")
    told = f"-DPOET_SOURCE={_source_digest()}"
    return [*_flags(), told, *(f"-isystem{header}" for header in headers), str(SOURCE), str(_KERNELS)]


def _source_digest() -> str:
    return _digest(SOURCE.read_text(), _KERNELS.read_text())


def call(compiler: Compiler, arguments: Sequence[str], built: Path) -> None:
    """Make ``built``.

    Raises:
        Unavailable: a compile error.
    """
    try:
        done = subprocess.run(
            [*compiler, *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_COMPILE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{compiler[0]} did not finish: {error}") from error
    if done.returncode or not built.exists():
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        raise Unavailable(f"{compiler[0]} failed: {(lines or ['no message'])[0]}")
