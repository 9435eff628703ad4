"""What is wrong with a command line, in our words: unknown commands, values no option can take."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from poet.errors import InputError, nearest
from poet.files.kinds import FileKind, kind_of

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


def bad_value(error: typer.BadParameter) -> str:
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
