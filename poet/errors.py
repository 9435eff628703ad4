"""Everything that can go wrong, as one tree.

    PoetError                     a sentence for the user; exit code 2
    ├── InputError                a file or an argument is not usable
    │   ├── ModelError            an ONNX file or module cannot be read or traced
    │   │   └── UnsupportedOperator   names the operator and its node
    │   ├── ProfileError          a hardware profile breaks its schema
    │   ├── ProblemError          a planning problem breaks its format
    │   ├── GraphError            a graph is not well formed
    │   ├── KernelFactsError      what is said about kernels cannot be
    │   ├── PlanError             a plan file is damaged, hostile or of another version
    │   └── MissingPackage        an optional package is not installed
    ├── InvalidSchedule           the simulator's verdict: which step breaks which rule
    ├── Infeasible                no schedule exists inside the limits; exit code 3
    ├── OutOfTime                 the time limit passed before any plan was found; exit code 4
    ├── NotExact                  replay and plain PyTorch differ; exit code 1
    ├── NotFinite                 the loss or the trained state is NaN or infinite; exit code 1
    ├── OverBudget                steps held more memory than their budget; exit code 1
    └── ReplayError               replay had to stop
        └── PageFileError         the page file is full, gone, short or damaged

A message names the thing, what was found, what was expected, and the way out.
"""

from __future__ import annotations

import difflib
import enum
from collections.abc import Iterable
from importlib.util import find_spec
from typing import TypeVar

Word = TypeVar("Word", bound=enum.Enum)

LONGEST_MESSAGE = 1000
"""Characters. What a stranger's file calls its parts stands in messages, and may be of any length."""


INTERRUPTED = 130
"""The exit code of what Ctrl-C ended, which is what shells say of it."""


class PoetError(Exception):
    """Base of all errors a user meets; ``str(error)`` is the line to print.

    It is one line: what would end it is a blank, other characters that would steer a terminal are spelled
    out, and what is too long loses its middle.
    """

    exit_code = 2

    def __init__(self, message: str = "") -> None:
        super().__init__(_readable(message))


class InputError(PoetError):
    """A file or an argument is not usable as it is."""


class ModelError(InputError):
    """An ONNX file or an ``nn.Module`` cannot be read, bound or traced."""


class UnsupportedOperator(ModelError):
    """The model uses an operator that has no row in the operator table."""


class ProfileError(InputError):
    """A hardware profile breaks its schema."""


class ProblemError(InputError):
    """A planning problem breaks its format or contradicts itself."""


class GraphError(InputError):
    """A graph is not well formed."""


class KernelFactsError(InputError):
    """What is said about kernels is not well formed or cannot be."""


class PlanError(InputError):
    """A plan file is damaged, hostile, of another version, or belongs to another model."""


class MissingPackage(InputError, ModuleNotFoundError):
    """An optional package is not installed; the message says how to install it."""


class InvalidSchedule(PoetError):
    """The simulator's verdict on a schedule that breaks a rule.

    ``rule`` is the short name of the rule (see :mod:`poet.problem.simulator`), ``step`` the index of the
    step that breaks it, or the schedule's length where the end state does.
    """

    def __init__(self, message: str, *, rule: str, step: int) -> None:
        super().__init__(message)
        self.rule = rule
        self.step = step


class Infeasible(PoetError):
    """No schedule exists inside the limits; the message names what binds and what would work."""

    exit_code = 3


class OutOfTime(PoetError):
    """The time limit passed before any plan was found."""

    exit_code = 4


class NotExact(PoetError):
    """Replay and plain PyTorch gave different bits."""

    exit_code = 1


class NotFinite(PoetError):
    """Training came to a loss, or to a state, that is not a finite number."""

    exit_code = 1


class OverBudget(PoetError):
    """Steps held more tensor memory than the budget that they were planned for."""

    exit_code = 1


class ReplayError(PoetError):
    """Replay had to stop; training state is that of the last committed step."""


class PageFileError(ReplayError):
    """The page file is full, gone, short or damaged."""


def _readable(message: str) -> str:
    if len(message) > LONGEST_MESSAGE:
        message = f"{message[: LONGEST_MESSAGE - 300]} ... {message[-290:]}"
    return message if message.isprintable() else spelled_out(" ".join(message.split()))


def spelled_out(text: str, *, keep: str = "") -> str:
    """``text`` with an escape for each character that does not print as itself, but for those to ``keep``.

    Control characters, ends of lines, marks of direction: a name out of a file steers no terminal, turns no
    words around and begins no line.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else ascii(c)[1:-1] for c in text)


def nearest(name: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` for the known name most like ``name``, or ``""`` if none is close."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {matches[0]!r}?" if matches else ""


def one_of(words: type[Word], given: Word | str, option: str) -> Word:
    """The member of ``words`` that ``given`` is, or is the value of.

    Raises:
        InputError: none is; the message lists them under the name ``option``.
    """
    try:
        return words(given)
    except ValueError:
        known = [str(word.value) for word in words]
        close = nearest(str(given), known)
        raise InputError(f"{option} {given!r} is not one of {', '.join(known)}{close}") from None


# --- what is not installed --------------------------------------------------------------------

PLAN_PACKAGES = ("highspy", "joblib", "numba", "onnx", "pulp", "pydantic", "rich", "scipy", "typer")
"""What planning and the commands import beyond torch and numpy: the extra ``plan``."""


def how_to_install(*extras: str) -> str:
    """The command that adds the named extras of ``pyproject.toml``, and where to run it.

    Poet is installed from a clone: ``poet`` on the public index is another project's package, so no message
    may send anybody there.
    """
    return f"pip install '.[{','.join(extras)}]' in a clone of poet"


def check_installed(package: str) -> None:
    """For a room that cannot do without ``package``, one of `PLAN_PACKAGES`.

    Raises:
        MissingPackage: it is not installed.
    """
    if find_spec(package) is None:
        raise _missing(package)


def explained(error: ModuleNotFoundError) -> MissingPackage | None:
    """The line for a user where what could not be imported belongs to the extra ``plan``."""
    package = (error.name or "").partition(".")[0]
    if isinstance(error, MissingPackage) or package not in PLAN_PACKAGES:
        return None
    return _missing(package)


def _missing(package: str) -> MissingPackage:
    """Names all that are missing, so that nobody installs them one by one."""
    absent = sorted({package, *(name for name in PLAN_PACKAGES if find_spec(name) is None)})
    verb = "are" if len(absent) > 1 else "is"
    return MissingPackage(
        f"planning and the commands need {', '.join(absent)}, which {verb} not installed: "
        + how_to_install("plan")
    )
