"""Files that were not made here: untrusted text and JSON, paths that name one file, locks and flushes.

A path may be a pipe that nobody writes to or a device without an end, so only regular files are opened. JSON
may be nested 100,000 deep, hold numbers of any size or millions of empty lists, which take a hundred
times their text in RAM: it is weighed before it is parsed.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import io
import itertools
import json
import logging
import math
import os
import re
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, cast

from poet.errors import InputError

MOST_ITEMS = 4_000_000
"""Commas and opening brackets in one JSON text. The plan of a net of 1,000 ops has some 250,000."""

MOST_DIMENSIONS = 64
"""Of a tensor. torch has no more, and each doubles the size that a product must be reckoned with."""

LARGEST_WHOLE = (1 << 63) - 1
"""What a whole number in a file may be; sizes and offsets have 64 bits everywhere."""

LARGEST_AMOUNT = 1e30
LEAST_AMOUNT = 1e-30
"""What an amount of seconds, joules or watts may be, so that sums and products of them stay finite."""

_KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def open_regular(path: str | os.PathLike[str], *, buffering: int = -1) -> io.BufferedReader | io.FileIO:
    """The file at ``path``, opened for reading; what is no file is refused without waiting for it.

    Raises:
        OSError: it cannot be opened, or is a folder, a pipe, a socket or a device; ``strerror`` says which.
    """
    try:
        # without waiting for a writer of a pipe; reading a file waits for its bytes all the same
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except ValueError as error:  # a path with a zero byte
        raise OSError(errno.EINVAL, str(error), os.fspath(path)) from None
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            kind = next((name for test, name in _KINDS if test(mode)), "no file")
            raise OSError(errno.EINVAL, f"it is {kind}, not a file", os.fspath(path))
        return cast("io.BufferedReader | io.FileIO", os.fdopen(descriptor, "rb", buffering=buffering))
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: str | os.PathLike[str], *, most_bytes: int) -> bytes:
    """The content of the file at ``path``.

    Raises:
        OSError: as `open_regular`, or it is larger than ``most_bytes``.
    """
    with open_regular(path) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {most_bytes} bytes", os.fspath(path))
    return content


def others_may_write(found: os.stat_result) -> str:
    """Why a file's or folder's content may be someone else's; empty: only this user could write it."""
    if found.st_uid != os.geteuid():
        return "it belongs to another user"
    if found.st_mode & 0o022:
        return "others may write there"
    return ""


def read_own(path: str | os.PathLike[str], *, most_bytes: int) -> bytes:
    """The content of the file at ``path``, which nobody but this user could have written.

    Raises:
        OSError: as `read_regular`, or the file is another user's, or others may write to it.
    """
    with open_regular(path) as file:
        why = others_may_write(os.fstat(file.fileno()))
        content = b"" if why else file.read(most_bytes + 1)
    if why:
        raise OSError(errno.EPERM, why, os.fspath(path))
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {most_bytes} bytes", os.fspath(path))
    return content


def printable_name(path: os.PathLike[str]) -> str:
    """The stem of a file's name as text: bytes in it that are not UTF-8 become question marks."""
    stem = os.path.splitext(os.path.basename(os.fspath(path)))[0]
    return stem.encode("utf-8", "replace").decode()


def parse_json(text: str | bytes | bytearray, *, unique: bool = False) -> Any:
    """What a JSON text says.

    Args:
        text: as text or UTF-8.
        unique: refuse objects with a name twice.

    Raises:
        ValueError: it is not JSON, or larger, deeper or stranger than any file of ours: infinite numbers,
            or names that are no text (half of a pair of UTF-16). The message is one line.
    """
    raw = text.encode() if isinstance(text, str) else text
    if raw.count(b",") + raw.count(b"[") + raw.count(b"{") > MOST_ITEMS:
        raise ValueError(f"it has more than {MOST_ITEMS} items")
    hook = _without_repetitions if unique else None
    try:
        data = json.loads(raw.decode(), object_pairs_hook=hook, parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if _SURROGATE.search(raw):
        try:
            json.dumps(data, ensure_ascii=False).encode()
        except (UnicodeEncodeError, RecursionError):
            raise ValueError("a name or text in it is not valid Unicode") from None
    return data


def is_whole(number: object) -> bool:
    """Whether ``number`` is a whole number, not ``True`` or ``False``, of at most 64 bits."""
    return type(number) is int and -LARGEST_WHOLE - 1 <= number <= LARGEST_WHOLE


def shown(data: object, most: int = 60) -> str:
    """``data`` as Python writes it, cut after ``most`` characters: what a message says was found."""
    try:
        text = repr(data)
    except RecursionError:
        return "something nested too deeply to show"
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _without_repetitions(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = dict(pairs)
    if len(names) < len(pairs):
        raise ValueError("a name stands twice")
    return names


def _refuse(word: str) -> float:
    raise ValueError(f"{word} is not a number of JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"the number {digits[:20]} is too large")
    return number


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


_NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL})
_NOT_OF_FOLDERS = frozenset(
    {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF, errno.EISDIR, errno.EACCES, errno.EPERM}
)
_log = logging.getLogger(__name__)


def lock(file: IO[bytes] | IO[str] | int, *, wait: bool) -> bool:
    """Lock an open file until it is closed; ``False``, and a warning once, where there are no locks.

    Raises:
        OSError: `BlockingIOError` where another has it and there is no ``wait``.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        _warn(error.strerror)
        return False
    return True


@functools.cache
def _warn(why: str) -> None:
    _log.warning(
        "poet: files cannot be locked here (%s): two processes that write the same file would not notice", why
    )


def flush_folder(folder: Path) -> None:
    """Make the names in ``folder`` outlive a power cut, where the file system can do that.

    CIFS and FUSE may refuse it. A file that was flushed before and then renamed is whole all the same.

    Raises:
        OSError: the storage failed.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in _NOT_OF_FOLDERS:
            raise


class Closing(ABC):
    """Something open, which the end of a ``with`` block closes."""

    @abstractmethod
    def close(self) -> None:
        """Give back what is held; a second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
