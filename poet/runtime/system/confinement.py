"""A process that may not grow: its size when idle and a budget, by the kernel's word.

The data limit (``RLIMIT_DATA``, setrlimit(2)) bounds every private writable mapping of the process: the
heap, mapped tensors, arenas, stacks and buffers of libraries, touched or not. It needs no privileges.
"""

from __future__ import annotations

import gc
import mmap
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from poet.errors import ReplayError

HEADROOM_BYTES = 384 * 1024
"""Of the idle size: for small things of libraries and of the interpreter. How the heap is cut up by then
differs from run to run; between equal rehearsals its size differed by up to 190 KiB."""

_STATUS = Path("/proc/self/status")


@dataclass(frozen=True, slots=True)
class Confinement:
    """What the process may take from now on.

    Attributes:
        idle_bytes: private writable memory without any tensor.
        budget_bytes: what may come to it.
    """

    idle_bytes: int
    budget_bytes: int

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
            resource.setrlimit(resource.RLIMIT_DATA, (self.limit_bytes, self.limit_bytes))
        except (OSError, ValueError) as cause:
            raise ReplayError(f"the memory of this process cannot be limited ({cause})") from None


class Rehearsal:
    """Finds how large a process gets in a block that does what the process will do once it is confined.

    Beside tensors that is what libraries and the interpreter take for their tables, lists and objects, at
    the moment at which it is the most. The kernel keeps the largest size that the address space ever had
    (``VmPeak``, proc_pid_status(5)); pages that nobody may write fill the space up to that mark first, so
    that all that the block takes lies above it.

    Attributes:
        most_bytes: private writable memory at the fullest; there when the block has ended.
    """

    most_bytes = 0

    def __enter__(self) -> Self:
        gc.collect()
        fill_bytes = _status_bytes("VmPeak") - _status_bytes("VmSize")
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._fill = mmap.mmap(-1, fill_bytes, flags, mmap.PROT_READ) if fill_bytes > 0 else None
        self._begun_bytes = _status_bytes("VmSize") - data_bytes()
        return self

    def __exit__(self, *_: object) -> None:
        self.most_bytes = _status_bytes("VmPeak") - self._begun_bytes
        if self._fill is not None:
            self._fill.close()
        gc.collect()  # what was thrown away may be a circle; what comes takes its room

    def idle_bytes(self, tensors_bytes: int) -> int:
        """The size without the most bytes of tensors that the block held, and with room for small things.

        Libraries allocate such things all the time, and not all of them look at what they get: oneDNN writes
        to where the attributes of a convolution would be. So a refusal may only ever strike a tensor.
        """
        return self.most_bytes - tensors_bytes + HEADROOM_BYTES


def data_bytes() -> int:
    """Private writable memory of this process, as the data limit counts it; errors as of `Rehearsal`."""
    return _status_bytes("VmData")


def _status_bytes(key: str) -> int:
    """What ``/proc`` tells of this process.

    Raises:
        ReplayError: there is none.
    """
    try:
        lines = _STATUS.read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:")) * 1024
    except (OSError, StopIteration, ValueError):
        raise ReplayError("the memory of this process cannot be read: --enforce needs Linux") from None
