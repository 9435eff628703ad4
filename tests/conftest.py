"""What every test is held to."""

from __future__ import annotations

import functools
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator

import pytest
import typer
import typer.testing

# Before torch is loaded, and for the processes that tests start: a worker of the tests on each core, and
# threads that wait for one another, cost more than the work. A test of two threads asks for two.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# A search must not start from what another test, or whoever runs the tests, found before.
os.environ["POET_NO_KEPT_PLANS"] = "1"

# Each process makes its own trials of strips, and leaves nothing of them in the user's cache.
os.environ.setdefault("POET_TRIALS", "anew")

# A shell that starts the tests in the background has them, and all that they start, ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Each command line of a test would build the parser of every command anew: longer than most commands take.
setattr(typer.testing, "_get_command", functools.cache(typer.main.get_command))  # noqa: B010

_BEGAN = time.monotonic()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where the time for all tests is limited, those for which none is left are skipped, and say so."""
    parser.addoption("--begin-within", type=float, metavar="SECONDS", help="Skip what has not begun by then.")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """See `pytest_addoption`."""
    allowed = item.config.getoption("--begin-within")
    if allowed is not None and time.monotonic() - _BEGAN > allowed:
        pytest.skip("no time was left")


class _Listener(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.heard.append(record.getMessage())


@pytest.fixture(autouse=True)
def rejections() -> Iterator[list[str]]:
    """Schedules of ours that the judge rejected: none, unless a test that makes some clears the list."""
    listener, logger = _Listener(), logging.getLogger("poet.solvers.instance.incumbent")
    logger.addHandler(listener)
    yield listener.heard
    logger.removeHandler(listener)
    assert not listener.heard, "a schedule of ours broke a rule that its maker looks after"


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """torch, where it is loaded, computes with one thread unless the test sets another number."""
    _set_one_thread()
    yield
    _set_one_thread()


def _set_one_thread() -> None:
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)
