"""An allocator that was compiled on another machine, and what must hold before it is loaded.

It is the file that ``$POET_ALLOCATOR`` names, or ``allocator.so`` in poet's cache folder. It is code, like
what else lies there, so nobody but this user and root may be able to write it. What it was made for is
read from its bytes: the machine from the head of the file, the rest from a text of ``allocator.cpp``,
beside which ``packed.cpp`` is compiled into the same file.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from poet.errors import InputError

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
