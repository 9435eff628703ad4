"""A process that may not grow: its size when idle and a budget, by the kernel's word.

The data limit (``RLIMIT_DATA``, setrlimit(2)) bounds every private writable mapping of the process: the
heap, mapped tensors, arenas, stacks and buffers of libraries, touched or not. It needs no privileges.
Where a memory group can be had (cgroup v2, see `poet.enforce.groups`), the process is put into one from
its first instruction on, and `Confinement` bounds that as well: it also counts the page cache and
what the kernel holds for the process.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import resource
from dataclasses import dataclass
from pathlib import Path

from poet.errors import ReplayError

_STATUS = Path("/proc/self/status")


@dataclass(frozen=True, slots=True)
class Confinement:
    """What the process may take from now on.

    Attributes:
        idle_bytes: private writable memory without any tensor.
        budget_bytes: what may come to it.
        group: folder of the process's memory group, or ``None``.
    """

    idle_bytes: int
    budget_bytes: int
    group: Path | None = None

    @property
    def limit_bytes(self) -> int:
        """Of private writable memory."""
        return self.idle_bytes + self.budget_bytes

    def enforce(self) -> None:
        """From here on the kernel refuses more; there is no way back for this process.

        Raises:
            ReplayError: the system does not let a process limit itself.
        """
        try:
            if self.group is not None:
                now_bytes = int((self.group / "memory.current").read_text())
                (self.group / "memory.max").write_text(str(now_bytes + self.budget_bytes))
            resource.setrlimit(resource.RLIMIT_DATA, (self.limit_bytes, self.limit_bytes))
        except (OSError, ValueError) as cause:
            raise ReplayError(f"the memory of this process cannot be limited ({cause})") from None


def data_bytes() -> int:
    """Private writable memory of this process, as the data limit counts it.

    Raises:
        ReplayError: there is no ``/proc`` to tell.
    """
    try:
        lines = _STATUS.read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmData:")) * 1024
    except (OSError, StopIteration, ValueError):
        raise ReplayError("the memory of this process cannot be read: --enforce needs Linux") from None


def idle_bytes() -> int:
    """`data_bytes`, after everything that is not in use has been given back."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)
    return data_bytes()
