"""What workers are made to do in tests."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path


def echo(number: int) -> bytes:
    """The number, after a while."""
    time.sleep(0.05)
    return str(number).encode()


def die() -> bytes:
    """Take the worker down."""
    os.kill(os.getpid(), signal.SIGKILL)
    return b""


def die_once(mark: str, number: int) -> bytes:
    """Take the worker down the first time."""
    if not Path(mark).exists():
        Path(mark).touch()
        die()
    return str(number).encode()


def hold(size: int) -> bytes:
    """Take ``size`` bytes."""
    return str(len(bytearray(size))).encode()


def stay(mark: str) -> bytes:
    """Write the worker's process number to ``mark``, and stay for minutes."""
    whole = Path(f"{mark}.part")
    whole.write_text(str(os.getpid()))
    whole.rename(mark)
    time.sleep(600)
    return b""


def torch_threads() -> bytes:
    """The number of threads that torch has in this worker."""
    import torch

    return str(torch.get_num_threads()).encode()
