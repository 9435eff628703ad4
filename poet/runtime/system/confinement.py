"""A process that may not grow: its size when idle and a budget, by the kernel's word.

The data limit (``RLIMIT_DATA``, setrlimit(2)) bounds every private writable mapping of the process: the
heap, mapped tensors, arenas, stacks and buffers of libraries, touched or not. It needs no privileges.
"""

from __future__ import annotations

import gc
import resource
from dataclasses import dataclass
from pathlib import Path

from poet.errors import ReplayError
from poet.runtime.system.memory import keep_headroom

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


def data_bytes() -> int:
    """Private writable memory of this process, as the data limit counts it.

    Raises:
        ReplayError: there is no ``/proc`` to read it from.
    """
    try:
        lines = _STATUS.read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmData:")) * 1024
    except (OSError, StopIteration, ValueError):
        raise ReplayError("the memory of this process cannot be read: --enforce needs Linux") from None


def idle_bytes() -> int:
    """`data_bytes` with nothing unused in it but room for small things: of the heap 120 KiB, of the
    interpreter about 250.

    Libraries allocate such things all the time, and not all of them look at what they get: oneDNN writes
    to where the attributes of a convolution would be. So a refusal may only ever strike a tensor.
    """
    gc.collect()
    keep_headroom()
    return data_bytes()
