"""The application: registers the commands and turns errors into one line and an exit code."""

from __future__ import annotations

import errno
import os
import re
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from poet.errors import INTERRUPTED, PoetError, explained, nearest
from poet.util import interrupts
from poet.util.streams import drop_unread, say
from poet.version import __version__

from . import check, contributions, devices, explain, export, run, solve, what_if
from .options import Group

TRACEBACK_VARIABLE = "POET_TRACEBACK"

_UNREAD = (errno.EPIPE, errno.EIO)
"""What writing to a pipe without a reader, or to a terminal that is gone, gives."""


class Commands(Group):
    """A group whose errors are one line on stderr, never a traceback."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command line; exits with its code, or returns it where not ``standalone_mode``."""
        arguments = list(sys.argv[1:] if args is None else args) or ["--help"]
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="replace")  # a terminal without "µ" still gets its report
        try:
            extra.setdefault("obj", tuple(arguments))
            code = super().main(
                arguments, prog_name or "poet", complete_var, False, windows_expand_args, **extra
            )
            sys.stdout.flush()
        except Exception as error:
            if drop_unread() and isinstance(error, OSError) and error.errno in _UNREAD:
                code = INTERRUPTED if interrupts.was_told() else 1
            else:
                code, line = _outcome(error)
                say(f"poet: {line}", err=True)
        if code == INTERRUPTED:
            say("poet: interrupted", err=True)
            code = interrupts.exit_code()
        if standalone_mode:
            sys.exit(code)
        return code


def _outcome(error: Exception) -> tuple[int, str]:
    """Exit code and the line to print."""
    if os.environ.get(TRACEBACK_VARIABLE):
        for line in "".join(traceback.format_exception(error)).splitlines():
            say(line, err=True)
    if isinstance(error, ModuleNotFoundError):
        error = explained(error) or error
    if isinstance(error, PoetError):
        return error.exit_code, _one_line(str(error))
    if isinstance(error, typer.BadParameter):
        return error.exit_code, _one_line(_bad_value(error))
    if isinstance(error, typer.TyperException):
        return error.exit_code, _one_line(error.format_message())
    if isinstance(error, typer.Abort):
        return 1, "aborted"
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename is not None else ""
        return 2, _one_line(f"{place}{error.strerror or error}")
    if isinstance(error, MemoryError):
        return 2, "out of memory on this machine"
    where = f"set {TRACEBACK_VARIABLE}=1 to see where"
    return 1, _one_line(f"internal error, please report it ({where}): {type(error).__name__}: {error}")


def _bad_value(error: typer.BadParameter) -> str:
    """What is wrong with the value of an option: what was found, and what is expected.

    The parser checks values with a validation library; its messages are about Python.
    """
    cause, param = error.__cause__, error.param
    errors = getattr(cause, "errors", None)
    found = next(iter(errors()), None) if errors is not None else None
    if found is None or param is None:
        return error.format_message()
    name = param.opts[-1] if param.opts[-1].startswith("-") else (param.metavar or param.opts[-1].upper())
    given, limits = found.get("input"), found.get("ctx", {})
    if found["type"] == "value_error":  # of a choice: "'x' is not one of 'a', 'b'."
        choices = re.findall(r"'([^']*)'", str(limits.get("error", "")).partition("is not one of")[2])
        return f"{name} {given!r} is not one of {', '.join(choices)}{nearest(str(given), choices)}"
    if found["type"].startswith("int_"):
        return f"{name} {given!r} is not a whole number"
    if found["type"].startswith("float_"):
        return f"{name} {given!r} is not a number"
    if found["type"] == "greater_than_equal":
        return f"{name} {given!r} is too small; expected {limits['ge']:g} or more"
    if found["type"] == "less_than_equal":
        return f"{name} {given!r} is too large; expected {limits['le']:g} or less"
    return error.format_message()


def _one_line(message: str) -> str:
    return " ".join(message.split())


def _show_version(wanted: bool) -> None:
    if wanted:
        say(f"poet {__version__}")
        raise typer.Exit


def _examples(lines: Sequence[str]) -> str:
    """The end of a command's help; the backspace keeps the lines as they are."""
    return "\n".join(("\b", "Examples:", *(f"  {line}" for line in lines)))


app = typer.Typer(
    name="poet",
    cls=Commands,
    rich_markup_mode=None,
    context_settings={"max_content_width": 100},
    help="Plan the training of a neural network for a device with too little RAM, and run the plan.",
    epilog="Sizes: 256KiB, 1MB. Times: 20ms, 1.3x. Exit codes: 0 done, 2 bad input, 3 infeasible, "
    "4 out of time without a plan.",
)


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


for command, examples in (
    (check.check, check.EXAMPLES),
    (check.fit, check.FIT_EXAMPLES),
    (solve.solve, solve.EXAMPLES),
    (contributions.contributions, contributions.EXAMPLES),
    (explain.explain, explain.EXAMPLES),
    (explain.diff, explain.DIFF_EXAMPLES),
    (run.run, run.EXAMPLES),
    (explain.verify, explain.VERIFY_EXAMPLES),
    (what_if.what_if, what_if.EXAMPLES),
):
    app.command(epilog=_examples(examples))(command)
app.add_typer(devices.app, name="devices", epilog=_examples(devices.EXAMPLES))
app.add_typer(export.app, name="export", epilog=_examples(export.EXAMPLES))
