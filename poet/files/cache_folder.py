"""The folder in which poet keeps what it made for one user: ``$XDG_CACHE_HOME/poet``, else ``~/.cache/poet``.

Code and answers are read from it again, so it is its owner's alone, whoever makes it first.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path

from poet.errors import InputError

_OWNER_ONLY = 0o700


def cache_folder() -> Path:
    """The user's, which need not be there yet.

    Raises:
        InputError: the user has no home.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):
        return Path(base) / "poet"
    try:
        home = Path.home()
    except RuntimeError:
        home = Path()
    if not home.is_absolute():
        raise InputError("there is no home folder to keep a cache in; set XDG_CACHE_HOME to a folder")
    return home / ".cache" / "poet"


def name_temporary_folder() -> None:
    """Name one where none can be written: torch asks for the name before it traces, and writes nothing."""
    try:
        tempfile.gettempdir()
    except OSError:
        tempfile.tempdir = os.sep
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.sep)


def make_folder(folder: Path) -> None:
    """Make ``folder`` and those above it that are missing, each for this user alone.

    Raises:
        OSError: one cannot be made.
    """
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for path in reversed(missing):
        with contextlib.suppress(FileExistsError):  # another process was faster; a file shows in the next
            path.mkdir(mode=_OWNER_ONLY)


def private_folder(folder: Path) -> Path:
    """``folder``, made if need be, after a check of its owner.

    One that others could read but not write to is closed to them: what lies in it is its owner's.

    Raises:
        InputError: it is a link, belongs to someone else or is open to others: what lies in it could
            have been put there by anyone.
    """
    try:
        make_folder(folder)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise InputError(f"the cache folder {folder} is not a folder of this user; remove it")
        if found.st_mode & 0o022:
            raise InputError(f"the cache folder {folder} is open to others; empty it and `chmod 700` it")
        if found.st_mode & 0o077:
            with contextlib.suppress(OSError):  # what is in a folder that cannot be written stays as it is
                folder.chmod(_OWNER_ONLY)
    except OSError as error:
        raise InputError(
            f"the cache folder {folder} cannot be made ({error.strerror}); set XDG_CACHE_HOME"
        ) from error
    return folder
