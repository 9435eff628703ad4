"""Which process works: a fork copies memory and files, but none of the threads that torch computes with."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from poet.errors import ReplayError

_LOADED_IN = os.getpid()


def is_fork() -> bool:
    """Whether this process was forked from one that had loaded torch."""
    return os.getpid() != _LOADED_IN


def check_computes() -> None:
    """Refuse to compute where an op would wait for ever for threads that a fork has not copied.

    Raises:
        ReplayError: this is a fork of a process that had loaded torch, and several threads are asked for.
    """
    if is_fork() and torch.get_num_threads() > 1:
        raise ReplayError(
            f"process {os.getpid()} is a fork of one that had loaded torch, whose threads are not copied: a "
            "step would wait for them for ever; call torch.set_num_threads(1) in it, or start it by "
            "multiprocessing's spawn"
        )


def check_owns_pages(opened_in: int) -> None:
    """Refuse a page file that another process opened, which may be using it.

    Raises:
        ReplayError: this process is a fork of it.
    """
    if os.getpid() != opened_in:
        raise ReplayError(
            f"the trainer's page file belongs to process {opened_in}, of which this one is a fork; open a "
            "trainer here, with a page file of its own"
        )


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """The block computes with ``count`` threads of torch; afterwards as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class OpThreads:
    """Inside the block ops may ask for their own number of torch's threads; afterwards all is as before."""

    def __init__(self) -> None:
        self._main = torch.get_num_threads()

    def __enter__(self) -> None:
        self._main = torch.get_num_threads()

    def __exit__(self, *error: object) -> None:
        self.use(None)

    def use(self, count: int | None) -> None:
        """From here on, ``count`` threads; ``None``: as many as outside the block."""
        count = count or self._main
        if torch.get_num_threads() != count:
            torch.set_num_threads(count)
            check_computes()


def likely_thread_counts() -> tuple[int, ...]:
    """With which a step is likely to run: torch's number now, one, and that of this machine's cores."""
    threads = torch.get_num_threads()
    if is_fork():  # it has no further threads to compute with
        return (threads,)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return tuple(dict.fromkeys((threads, 1, cores)))
