"""Options that several commands share, how their text is read, and unknown commands."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import re
import shlex
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_origin, get_type_hints

import typer
from typer.core import TyperGroup

from poet.errors import InputError, nearest
from poet.files.kinds import FileKind, kind_of
from poet.ir.loss import LOSSES, LossSpec
from poet.ir.micro import micro_batches
from poet.ir.optimizer import OptimizerSpec
from poet.ir.packed import BaseSpec
from poet.ir.strips import Gradients
from poet.problem import Objective, Place
from poet.util.reading import LARGEST_WHOLE, shown
from poet.util.units import parse_seconds

_Record = TypeVar("_Record")
_TYPER = "typer"


def option(help_: str, metavar: str | None = None, *names: str, default: Any = None, **more: Any) -> Any:
    """A field of a record that `takes` makes an option of; ``more`` as of `typer.Option`."""
    made = typer.Option(*names, metavar=metavar, help=help_, **more)
    return dataclasses.field(default=default, metadata={_TYPER: made})


def argument(help_: str, metavar: str) -> Any:
    """A field of a record that `takes` makes an argument of."""
    return dataclasses.field(metadata={_TYPER: typer.Argument(metavar=metavar, help=help_)})


def takes(record: type[_Record]) -> Callable[[Callable[[_Record], None]], Callable[..., None]]:
    """A command that takes a dataclass ``record``, with an option for each of its fields that is one.

    Such a field is made by `option`, or its annotation holds what typer reads.
    """
    kinds = get_type_hints(record, include_extras=True)
    parameters = []
    for field in dataclasses.fields(record):  # type: ignore[arg-type]
        kind, made = kinds[field.name], field.metadata.get(_TYPER)
        if made is not None and kind is bool:
            made.param_decls = (f"--{field.name.replace('_', '-')}",)  # without one that switches it off
        if made is not None or kind is typer.Context or get_origin(kind) is Annotated:
            default = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
            kind = kind if made is None else Annotated[kind, made]
            parameters.append(
                inspect.Parameter(
                    field.name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=kind
                )
            )

    def of(command: Callable[[_Record], None]) -> Callable[..., None]:
        @functools.wraps(command)
        def called(**given: Any) -> None:
            command(record(**given))

        del called.__wrapped__  # whose signature is another  # type: ignore[attr-defined]
        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {each.name: each.annotation for each in parameters}
        return called

    return of


class Home(StrEnum):
    """Where parameters and optimizer state are between steps."""

    RAM = "ram"
    STORAGE = "storage"
    AUTO = "auto"

    @property
    def place(self) -> Place:
        """The same as a problem says it."""
        return Place.EITHER if self is Home.AUTO else Place(self.value)


MOST_THREADS = 1024
_MOST_DIGITS = 18  # of a size; more do not fit into 64 bits


def _at_most(most: int) -> Callable[[typer.CallbackParam, int | list[int] | None], int | list[int] | None]:
    """Checks a whole number of an option, which a person may write with any number of digits."""

    def check(option: typer.CallbackParam, given: int | list[int] | None) -> int | list[int] | None:
        for number in given if isinstance(given, list) else [given]:
            if number is not None and abs(number) > most:
                raise InputError(f"{option.opts[0]} is {shown(number)}; give {most} or less")
        return given

    return check


whole = _at_most(LARGEST_WHOLE)
"""The callback of an option whose number torch, an engine or arithmetic takes: 64 bits."""
threads_callback = _at_most(MOST_THREADS)
"""The callback of an option that is a number of threads or processes."""

BindOption = Annotated[
    list[str] | None,
    typer.Option("--bind", metavar="NAME=SIZE", help="Size of a dynamic dimension, e.g. N=8; repeatable."),
]
JsonOption = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write the answer as JSON; - is stdout.")
]


def _loss(text: str | None) -> str | None:
    """The loss as `LossSpec` writes it, refused before anything else is looked at."""
    return None if text is None else str(LossSpec.parse(text))


def optimizer_callback(text: str | None) -> str | None:
    """The optimizer as it was written, refused before anything else is looked at."""
    if text is not None:
        OptimizerSpec.parse(text)
    return text


def micro_callback(text: str | None) -> str | None:
    """The micro-batches as they were written, refused before anything else is looked at."""
    if text is not None:
        micro_batches(text)
    return text


def base_callback(text: str | None) -> str | None:
    """The format of frozen weights as it was written, refused before anything else is looked at."""
    if text is not None:
        BaseSpec.parse(text)
    return text


def _function(text: str | None) -> str | None:
    """The function's name as it was written, refused where it is none."""
    from poet.files.tables import is_function

    if text is not None and not is_function(text):
        raise InputError(f"--module {text!r} is not MODULE:FUNCTION; write for example nets:small_net")
    return text


TrainOption = Annotated[
    list[str] | None,
    typer.Option(metavar="GLOB", help="Parameters to train, e.g. 'layer4.*'; repeatable; default all."),
]
GradientsOption = Annotated[
    Gradients | None,
    typer.Option(
        help="stream: weight gradients block by block where that is exact (default); keep: whole; logits: "
        "stream, and a last layer with its cross-entropy in strips."
    ),
]
NoRecomputeOption = Annotated[bool, typer.Option("--no-recompute", help="Run every op once.")]
NoPagingOption = Annotated[bool, typer.Option("--no-paging", help="Move nothing to storage.")]
LossOption = Annotated[
    str | None,
    typer.Option(
        metavar="LOSS",
        help=f"{', '.join(LOSSES[:-1])} or {LOSSES[-1]}; default {LOSSES[0]}. Options behind a colon: "
        f"{LOSSES[0]}:dim=-1,label_smoothing=0.1,weight=1/2 (dim=-1 where classes are last).",
        callback=_loss,
    ),
]
PageFileOption = Annotated[
    Path | None,
    typer.Option(metavar="PATH", help="Where tensors are paged; default: an unnamed file beside the plan."),
]
ThreadsOption = Annotated[
    int | None, typer.Option(min=1, help="For torch; default: all cores.", callback=threads_callback)
]
ModuleOption = Annotated[
    str | None,
    typer.Option(
        metavar="MODULE:FUNCTION",
        help="For a plan made from a module: a function that gives the module, or it, the loss and example "
        "inputs. It is your own code and runs as such.",
        callback=_function,
    ),
]
AllowOverBudgetOption = Annotated[
    bool,
    typer.Option("--allow-over-budget", help="Go on where steps hold more memory than the plan's budget."),
]
HtmlOption = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Write a page that needs no network.")
]
VerboseOption = Annotated[bool, typer.Option("-v", "--verbose", help="Show on stderr what the search does.")]
LogOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write all that the search does here, line by line.")
]
PlanArgument = Annotated[Path, typer.Argument(metavar="PLAN", help="A plan file made by `poet solve -o`.")]


def command_line(context: typer.Context) -> str:
    """The line that was called, for pages that say how they were made."""
    return shlex.join(["poet", *(context.obj or ())])


def device_names(incomplete: str) -> list[str]:
    """Devices that come with poet, for the shell's completion."""
    from poet.devices.load import profile_names

    return [name for name in profile_names() if name.startswith(incomplete)]


def read_storage(given: Iterable[str] | None) -> tuple[str | None, str | None]:
    """The part and the size of ``--storage``, each given once at most; sizes begin with a digit.

    Raises:
        InputError: two parts or two sizes.
    """
    sizes = [text for text in given or () if text[:1].isdigit()]
    parts = [text for text in given or () if not text[:1].isdigit()]
    for found, what in ((sizes, "size"), (parts, "part")):
        if len(found) > 1:
            raise InputError(f"--storage {found[1]}: one {what} is given already, {found[0]}")
    return next(iter(parts), None), next(iter(sizes), None)


def read_bindings(bindings: Iterable[str] | None) -> dict[str, int]:
    """``["N=8"]`` as ``{"N": 8}``.

    Raises:
        InputError: one is not NAME=SIZE with a whole SIZE from 1 up.
    """
    sizes: dict[str, int] = {}
    for binding in bindings or ():
        name, _, size = binding.partition("=")
        if not name or not size.isdecimal() or len(size) > _MOST_DIGITS or int(size) < 1:
            raise InputError(f"--bind {binding!r} is not NAME=SIZE; write for example --bind N=8")
        sizes[name] = int(size)
    return sizes


def with_batch(sizes: dict[str, int], batch: int | None) -> dict[str, int]:
    """``sizes`` of dimensions, and that of the batch where ``--batch`` gives it.

    Raises:
        InputError: the batch is given twice.
    """
    from poet.ir.micro import BATCH_NAMES

    if batch is None:
        return sizes
    for name in BATCH_NAMES:
        if name in sizes:
            raise InputError(f"--batch and --bind {name}= say the same thing twice")
    return sizes | {BATCH_NAMES[0]: batch}


def read_shapes(shapes: Iterable[str] | None) -> dict[str, list[int]]:
    """``["N=1,8,32", "L=64,128"]`` as sizes by dimension.

    Raises:
        InputError: one is not NAME=SIZE,SIZE, or a dimension is given twice.
    """
    found: dict[str, list[int]] = {}
    for text in shapes or ():
        name, _, sizes = text.partition("=")
        every = sizes.split(",")
        are_sizes = all(item.isdecimal() and len(item) <= _MOST_DIGITS and int(item) for item in every)
        if not name or not are_sizes:
            raise InputError(f"--shape {text!r} is not NAME=SIZE,SIZE; write for example --shape N=1,8,32")
        if name in found:
            raise InputError(f"--shape {name} is given twice; write all its sizes in one")
        found[name] = sorted({int(size) for size in every})
    return found


def read_trade_off(text: str | None) -> tuple[Objective, Objective] | None:
    """The two objectives of ``ram,energy``.

    Raises:
        InputError: there are not two, one is unknown, or both are the same.
    """
    if text is None:
        return None
    words = [objective.value for objective in Objective]
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in words:
            known = ", ".join(words)
            raise InputError(f"--trade-off {text!r}: {name!r} is not one of {known}{nearest(name, words)}")
    if len(names) != 2 or names[0] == names[1]:
        raise InputError(f"--trade-off {text!r} is not two objectives; write for example ram,energy")
    return Objective(names[0]), Objective(names[1])


def read_time_limit(text: str) -> float | None:
    """Seconds of a ``--time-limit``; ``none`` searches until proven."""
    seconds = None if text == "none" else parse_seconds(text)
    if seconds is not None and (seconds <= 0 or not math.isfinite(seconds)):
        raise InputError(f"--time-limit {text!r} leaves no time; write for example 60s, or none")
    return seconds


# --- commands that do not exist ---------------------------------------------------------------

_MEANT = {
    "plan": "solve", "optimise": "solve", "optimize": "solve", "train": "run", "exec": "run",
    "show": "explain", "info": "explain", "inspect": "explain", "report": "explain", "compare": "diff",
    "sweep": "what-if", "test": "verify", "prove": "verify", "device": "devices", "profiles": "devices",
    "trace": "export trace", "help": "--help", "version": "--version", "ls": "list", "check": "validate",
}  # fmt: skip
"""What people call commands that have another name here."""

_TAKEN_BY = {
    FileKind.ONNX: "poet solve {} --device rpi4b",
    FileKind.PROBLEM: "poet solve {} --ram 1MiB",
    FileKind.PLAN: "poet explain {}",
    FileKind.PROFILE: "poet devices validate {}",
}
_KIND_OF_SUFFIX = {
    ".onnx": FileKind.ONNX,
    ".json": FileKind.PROBLEM,
    ".poet": FileKind.PLAN,
    ".toml": FileKind.PROFILE,
}


class Group(TyperGroup):
    """Commands that are suggested where one does not exist; without any, they are listed."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The help instead of an error where no command is given."""
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help())
            ctx.exit()
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is named first.

        Raises:
            InputError: there is none of this name; the line says which was meant, or which there are.
        """
        name = args[0] if args else ""
        is_unknown = name and not name.startswith("-") and self.get_command(ctx, name) is None
        if is_unknown and not ctx.resilient_parsing:
            raise InputError(f"No such command {name!r}. {_instead(name, sorted(self.commands))}")
        return super().resolve_command(ctx, args)


def _instead(name: str, known: list[str]) -> str:
    path = Path(name)
    kind = kind_of(path) or _KIND_OF_SUFFIX.get(path.suffix.lower())
    if kind in _TAKEN_BY:
        return f"A command comes before a file, for example: {_TAKEN_BY[kind].format(name)}"
    meant = _MEANT.get(name.lower(), "")
    if not meant.startswith("--") and meant.split(" ")[0] not in known:
        close = re.search(r"'(.+)'", nearest(name.lower().replace("_", "-"), known))
        meant = close[1] if close else ""
    listed = ", ".join(known)
    return f"Did you mean {meant!r}?" if meant else f"The commands are {listed}."
