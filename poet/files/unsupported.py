"""What not every file system and kernel can do: file locks, and a folder that is flushed."""

from __future__ import annotations

import errno
import fcntl
import functools
import logging
import os
from pathlib import Path
from typing import IO

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
        "poet: files cannot be locked here (%s): two processes that write the same file would not notice",
        why,
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
