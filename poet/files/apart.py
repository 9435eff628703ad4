"""Which file a path means: what is written must not take the place of what is read, nor of other output.

Two paths are one file where the system says so: by device and inode, so that links count, and where
there is no file yet by the folder's and the name in it.
"""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from poet.errors import InputError

Paths = str | Path | Iterable[Path] | None


def check_apart(writes: Mapping[str, Paths], *, reads: Mapping[str, Paths] | None = None) -> None:
    """Refuse to write a file that is read, or that is written twice, before the work begins.

    Args:
        writes: paths by what the user calls them, e.g. ``-o``; ``None`` stands for none.
        reads: likewise; what is not there cannot be lost.

    Raises:
        InputError: names both.
    """
    written = list(_named(writes))
    for (name, path), (other_name, other) in itertools.product(written, _named(reads or {})):
        if other.exists() and is_same_file(path, other):
            where = "" if str(other) == str(path) else f", {other}"
            raise InputError(f"{path}: {name} would overwrite {other_name}{where}; give it another path")
    for (name, path), (other_name, other) in itertools.combinations(written, 2):
        if is_same_file(path, other):
            where = "" if str(other) == str(path) else f" ({other})"
            raise InputError(f"{path}: {name} and {other_name}{where} name the same file; give each its own")


def check_is_file(path: Path) -> None:
    """Refuse to put a file in the place of a folder, a device, a pipe or a socket.

    Raises:
        InputError: says which it is.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):  # there is nothing
        return
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a device, a pipe or a socket"
        raise InputError(f"{path}: cannot be written (it is {kind})")


def is_same_file(one: Path, other: Path) -> bool:
    """Whether writing to one path changes what the other names, now or once both are there."""
    return _identity(one) == _identity(other)


def _identity(path: Path) -> tuple[object, ...]:
    try:
        found = path.stat()
    except (OSError, ValueError):
        return _place(path)
    return found.st_dev, found.st_ino


def _place(path: Path) -> tuple[object, ...]:
    """Of a file that is not there: its folder and its name, where links end."""
    try:
        ended = Path(os.path.realpath(path))
        folder = ended.parent.stat()
    except (OSError, ValueError):
        return (str(path),)
    return folder.st_dev, folder.st_ino, ended.name


def _named(paths: Mapping[str, Paths]) -> Iterator[tuple[str, Path]]:
    for name, given in paths.items():
        if isinstance(given, str | Path):
            yield name, Path(given)
        elif given is not None:
            yield from ((name, path) for path in given)
