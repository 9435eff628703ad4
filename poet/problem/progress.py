"""What a call shows of its work on stderr: the stage, the seconds, the best plan so far and its gap.

    with showing(True, limit_seconds=20.0) as progress:
        stage("search")  # from anywhere below
        solve(problem, limits, SolveOptions(progress=progress))

On a terminal that is one line that is rewritten. Elsewhere each stage has a line, and the first plan has one;
what ends within `QUIET_SECONDS` shows none.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar

from poet.problem import Objective
from poet.problem.solution import Progress, format_amount
from poet.util.streams import say
from poet.util.units import format_share

IMPORT = "import"
"""The stage before the time limit begins."""

QUIET_SECONDS = 2.0
"""Of a call without a terminal, before its first line; at 0, calls that fail at once show stages as well."""


class _Line:
    """Where a call is; a `Progress` that a search may report to."""

    def __init__(self, objective: Objective, limit_seconds: float | None) -> None:
        self._objective, self._limit_seconds = objective, limit_seconds
        self._stage, self._plan, self._began = "", "", time.monotonic()
        self._quiet_until = self._began + QUIET_SECONDS
        self._is_due = self._is_limited = False
        self._terminal = ExitStack()
        self._is_rewritten = sys.stderr.isatty()
        if self._is_rewritten:
            from rich.console import Console
            from rich.live import Live
            from rich.text import Text

            self._terminal.enter_context(
                Live(
                    console=Console(stderr=True),
                    transient=True,
                    redirect_stdout=False,
                    get_renderable=lambda: Text(str(self)),
                )
            )

    def __call__(self, best: float | None, bound: float, gap: float | None, seconds: float) -> None:
        if best is None:
            return
        self._is_due = self._is_due or not self._plan
        open_gap = "" if gap is None else f", gap {format_share(gap)}"
        self._plan = f": best {format_amount(self._objective, best)}{open_gap}"
        self._show()

    def __str__(self) -> str:
        has_limit = self._limit_seconds is not None and self._is_limited
        limit = f" of {self._limit_seconds:g} s" if has_limit else " s"
        return f"{time.monotonic() - self._began:6.1f}{limit}  {self._stage}{self._plan}"

    def stage(self, name: str) -> None:
        if name != self._stage:
            if name == IMPORT:
                self._plan = ""  # another model follows
            elif not self._is_limited:
                self._began, self._is_limited = time.monotonic(), True
            self._stage, self._is_due = name, True
            self._show()

    def end(self) -> None:
        self._terminal.close()

    def _show(self) -> None:
        if self._is_due and not self._is_rewritten and time.monotonic() >= self._quiet_until:
            self._is_due = False
            say(str(self), err=True)


_LINE: ContextVar[_Line | None] = ContextVar("line", default=None)


@contextmanager
def showing(
    progress: bool | Progress | None,
    *,
    objective: Objective = Objective.ENERGY,
    limit_seconds: float | None = None,
) -> Iterator[Progress | None]:
    """While the block runs, show stages and plans if ``progress`` is true; gives what a search reports to.

    Args:
        progress: a function is what a search reports to, and nothing is shown.
        objective: whose amounts are reported.
        limit_seconds: of all that follows the import; ``None``: there is no limit.
    """
    if not isinstance(progress, bool) or not progress:
        yield progress or None
        return
    line = _Line(objective, limit_seconds)
    token = _LINE.set(line)
    try:
        yield line
    finally:
        _LINE.reset(token)
        line.end()


def stage(name: str) -> None:
    """From here on this is what the call does, for whoever is shown it."""
    line = _LINE.get()
    if line is not None:
        line.stage(name)


@contextmanager
def unshown() -> Iterator[None]:
    """In the block, stages are not shown: they are of many small searches."""
    token = _LINE.set(None)
    try:
        yield
    finally:
        _LINE.reset(token)


def ended() -> None:
    """Take the line off the terminal: a report follows."""
    line = _LINE.get()
    if line is not None:
        line.end()
