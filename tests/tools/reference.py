"""Writes the reference pages from what they describe: commands, Python API, operators.

python tests/tools/reference.py --write    puts docs/commands.md, docs/api.md and docs/operators.md in place
"""

from __future__ import annotations

import argparse
import enum
import importlib
import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from poet.cli.main import app
from typer.main import get_command

import poet
import poet.runtime
from poet.c99.rows import KERNELS
from poet.frontend.onnx.build import TABLES  # noqa: F401  fills ROWS
from poet.frontend.onnx.node import ROWS as ONNX_ROWS
from poet.ir import loss, operators
from poet.ir.optimizer import OptimizerSpec
from poet.ir.optimizer_kinds import KINDS, OPTIONS

ROOT = Path(__file__).parents[2]
EXIT_CODES = {
    0: "done", 1: "not exact or not finite", 2: "bad input", 3: "infeasible", 4: "out of time without a plan",
    130: "interrupted before the first plan", 143: "ended by SIGTERM", 129: "ended by SIGHUP",
}  # fmt: skip
TARGETS = {
    "cross-entropy": "classes, or probabilities as large as the output",
    "nll": "classes; the model gives log-probabilities, or with `log=yes` probabilities",
    "focal": "classes: (1 - p)^gamma times cross-entropy",
    "mse": "as large as the output", "l1": "as large as the output", "huber": "as large as the output",
    "smooth-l1": "as large as the output", "bce": "likewise, 0 to 1; the model gives probabilities",
    "bce-with-logits": "likewise, 0 to 1; the model gives scores",
    "kl-div": "probabilities; the model gives log-probabilities",
    "distillation": "a teacher's scores: T² KL(teacher, student) of softened scores",
    "ctc": "classes [N,S], anything below 0 behind the last; the model gives scores [N,T,C]",
    "output": "none: the model's first output is the loss",
}  # fmt: skip
"""What the targets of each loss are."""

OF_FILES = {"load", "from_json", "to_json"}
"""Methods that are listed of records of problems and graphs."""

LONGEST = 100
"""Characters of a signature; of a longer one the list of parameters has the defaults."""

SHARED = 60
"""Characters of an option from which on it is described once for all commands that have it."""

_SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Yields):$", re.MULTILINE)


def line(text: str) -> str:
    """Text on one line."""
    return " ".join(text.split()).replace("``", "`")


def paragraphs(text: str) -> str:
    """Text without the ends of its lines inside paragraphs; lists and code stay as they are."""
    parts = inspect.cleandoc(text).split("\n\n")
    joined = (part if re.search(r"^(?: |- )", part, re.MULTILINE) else line(part) for part in parts)
    return "\n\n".join(joined).replace("``", "`")


def commands_page() -> str:
    """docs/commands.md, from the command tree."""
    lines = [
        "# Command line\n",
        "Made by `make reference` from the commands themselves. `poet COMMAND --help` prints the same.\n",
        "Sizes are written `256KiB` or `1MB`, times `20ms` or `1.3x` of running every op once.",
        "Errors are one line on stderr. Progress goes to stderr: the stage, the best plan and its gap.",
        "Ctrl-C ends a search with its best plan, and a training after the step in flight.",
        "Files are written whole or not at all.",
        "`poet --install-completion` completes commands, options and device names.\n",
        f"Exit codes: {', '.join(f'{code} {means}' for code, means in EXIT_CODES.items())}.",
        "A default is in brackets behind its option.",
    ]
    leaves = [(path, command, list(_options(command))) for path, command in _leaves(get_command(app), ())]
    counted = Counter(option for _, _, options in leaves for option in options)
    shared = {option for option, count in counted.items() if count > 1 and len(option) > SHARED}
    lines.append("\n## Shared options\n")
    lines += [option for option in counted if option in shared]
    for path, command, options in leaves:
        lines += [f"\n## {' '.join(('poet', *path))}\n", paragraphs(command.help or ""), ""]
        lines += [option for option in options if option not in shared]
        if again := [_names(option) for option in options if option in shared]:
            lines.append(f"- [shared](#shared-options): {', '.join(again)}")
    return "\n".join(lines) + "\n"


def _leaves(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield path, command
        return
    for name, each in inner.items():
        yield from _leaves(each, (*path, name))


def _options(command: Any) -> Iterator[str]:
    """A line for each argument and then for each option: how it is written, its default, what it means."""
    shown = [item for item in command.params if not getattr(item, "hidden", False) and item.name != "help"]
    given = [item for item in shown if not item.opts[0].startswith("-")]
    for item in given:
        yield f"- `{_metavar(item)}`: {line(getattr(item, 'help', '') or '')}"
    for item in (item for item in shown if item not in given):
        names = _quoted((*item.opts, *item.secondary_opts))
        if not item.is_flag:
            names = f"{names[:-1]} {_metavar(item)}`"
        default = _default(item)
        yield f"- {names}{f' ({default})' if default else ''}: {line(item.help or '')}"


def _names(option: str) -> str:
    """How an option is called, of its line."""
    return re.sub(r" [^`]+`", "`", option.removeprefix("- ").partition(": ")[0].partition(" (")[0])


def _metavar(item: Any) -> str:
    kind = item.type_descriptor.annotation
    if inspect.isclass(kind) and issubclass(kind, enum.Enum):
        return "|".join(str(each.value) for each in kind)
    return str(item.metavar or item.name.upper())


def _default(item: Any) -> str:
    default = None if callable(item.default) else getattr(item.default, "value", item.default)
    if getattr(item, "show_default", None) and isinstance(item.show_default, str):
        return line(item.show_default)
    if default in (None, (), [], False, "") or item.is_flag or not isinstance(default, (str, int, float)):
        return ""
    return f"`{default}`"


def api_page() -> str:
    """docs/api.md, from signatures and docstrings."""
    lines = [
        "# Python API\n",
        "Made by `make reference` from the docstrings.",
        "Names of `poet` need the extra `plan`; `poet.runtime` needs torch and numpy alone.",
    ]
    for module in (poet, poet.runtime):
        lines.append(f"\n## {module.__name__}")
        for name in sorted(each for each in module.__all__ if not each.startswith("__")):
            lines += _member(f"{module.__name__}.{name}", getattr(module, name))
    lines.append("\n## poet.errors")
    errors = importlib.import_module("poet.errors")
    lines.append("")
    for name, item in vars(errors).items():
        if inspect.isclass(item) and issubclass(item, Exception) and item.__module__ == errors.__name__:
            lines.append(f"- `{name}`: {line(_summary(item))}")
    return "\n".join(lines) + "\n"


def _member(name: str, item: Any) -> Iterator[str]:
    parts = _SECTION.split(inspect.cleandoc(item.__doc__ or ""))
    sections = list(zip(parts[1::2], parts[2::2], strict=True))
    words: dict[str, str] = {}
    yield f"\n### {name}\n"
    if inspect.isclass(item) and issubclass(item, enum.Enum):
        yield f"One of {_quoted(repr(each.value) for each in item)}.\n"
    elif callable(item):
        words = _words(item)
        signature = ", ".join(words.values())
        described = {each for _, text in sections for names, _ in _rows(text) for each in names.split(", ")}
        if len(signature) > LONGEST and {*words} - {"*"} <= described:
            signature = f"{signature.partition('*, ')[0]}*, ..." if "*" in words else ""
        else:
            words = {}
        if signature:
            yield f"`{name.rpartition('.')[2]}({signature})`\n"
    yield paragraphs(parts[0])
    yield from _sections(sections, words)
    if not inspect.isclass(item):
        return
    of_files = item.__module__.startswith(("poet.problem", "poet.ir"))
    methods = {method: found for method, found in _methods(item) if not of_files or method in OF_FILES}
    if rows := [f"- `{text}`: {line(_summary(each))}" for text, each in methods.values() if _summary(each)]:
        yield "\nMembers:\n"
        yield from rows


def _sections(sections: Iterable[tuple[str, str]], words: dict[str, str]) -> Iterator[str]:
    """Lists of what is given, raised and returned; with defaults where ``words`` has them."""
    is_list = False
    for kind, text in sections:
        if kind in ("Returns", "Yields"):
            yield f"\n*{kind}*: {line(text)}"
            is_list = False
        for names, meaning in _rows(text) if kind in ("Args", "Attributes", "Raises") else ():
            told = ", ".join(words.get(each, each) for each in names.split(", "))
            if not is_list:
                yield ""
            is_list = True
            yield f"- {'raises ' if kind == 'Raises' else ''}`{told}`: {line(meaning)}"


def _rows(text: str) -> list[tuple[str, str]]:
    """Name and meaning of each entry of a docstring's section."""
    return re.findall(r"^    (\S[^:]*): (.*(?:\n {8,}.*)*)", text.strip("\n"), re.MULTILINE)


def _methods(item: type) -> Iterator[tuple[str, tuple[str, Any]]]:
    for base in reversed(item.__mro__):
        if not base.__module__.startswith("poet"):
            continue
        for name, each in vars(base).items():
            if name.startswith("_"):
                continue
            if isinstance(each, (property, classmethod, staticmethod)) or inspect.isfunction(each):
                function: Any = getattr(each, "fget", None) or getattr(each, "__func__", each)
                plain = isinstance(each, property)
                yield name, (name if plain else f"{name}{_short(function)}", function)


def _short(function: Callable[..., Any]) -> str:
    found = inspect.signature(function).parameters.values()
    words = [each.name for each in found if each.name not in ("self", "cls")]
    return f"({', '.join(words)})"


def _words(item: Any) -> dict[str, str]:
    """How each parameter stands in a signature, with its default; ``*`` before those of keywords alone."""
    words: dict[str, str] = {}
    for each in inspect.signature(item).parameters.values():
        if each.kind is each.KEYWORD_ONLY:
            words.setdefault("*", "*")
        if each.name != "self":
            stars = "**" if each.kind is each.VAR_KEYWORD else "*" if each.kind is each.VAR_POSITIONAL else ""
            given = "" if each.default is each.empty else f"={_value(each.default)}"
            words[each.name] = f"{stars}{each.name}{given}"
    return words


def _value(default: Any) -> str:
    own = type(default).__module__.startswith("poet")
    text = f'"{default}"' if isinstance(default, str) else str(default) if own else repr(default)
    return "..." if text.startswith("<") or "OMITTED" in text.upper() or len(text) > 40 else text


def _summary(item: Any) -> str:
    return inspect.cleandoc(item.__doc__ or "").split("\n\n")[0]


def operators_page() -> str:
    """docs/operators.md, from the tables that the importer, the runtime and the exporter use."""
    in_c = _bases(KERNELS)
    of_all = [each for each in _settings("sgd") if all(each in _settings(name) for name in OPTIONS)]
    own = {name: [each for each in _settings(name) if each not in of_all] for name in OPTIONS}
    of_losses = vars(loss)["_OPTIONS"]
    lines = [
        "# Operators, losses, optimizers\n",
        "Made by `make reference` from the tables in the code.",
        "A loss or an optimizer is written by name, with options behind a colon: `adamw:lr=1e-3`.\n",
        "## Losses\n",
        "A loss by name is that of the model's first output; [training loops](training-loops.md#losses).\n",
        "| loss | targets | options |\n|---|---|---|",
        *(f"| `{name}` | {TARGETS[name]} | {_quoted(options)} |" for name, options in of_losses.items()),
        "\n## Optimizers\n",
        f"All take {_quoted(of_all)}; `lr` is 0.001 where none is given.",
        "Other numbers are defaults, `=yes` turns a switch on.\n",
        "| optimizer | options | tensors that it may keep per parameter |\n|---|---|---|",
        *(
            f"| `{name}` | {_quoted(own[name])} | {_quoted(KINDS[name].states.split()) or 'none'} |"
            for name in OPTIONS
        ),
        "\n## ONNX\n",
        "Operators of ONNX files that are imported:\n",
        _listed(ONNX_ROWS),
        "\nAn attribute that an operator's row does not understand is refused.",
        "So is what the operator set of the file does not define.",
        "Indices that come with the data may count from the end; rows of a weight are numbered from 0.",
        "\n## In a plan\n",
        f"The allow-list has {len(operators.ATEN)} operators of PyTorch (`torch.ops.aten`) and poet's own.",
        "A plan with another one is refused.",
        "The two lists leave out overloads and operators of backward.\n",
        "## In C99\n",
        "Operators that also have a C kernel ([train on a microcontroller](microcontroller.md)).",
        "`poet check model.onnx --kernels poet-c99` lists those that a model lacks.\n",
        _listed(in_c),
        "\n## In PyTorch alone\n",
        _listed(_bases((*operators.ATEN, *operators.OWN)) - in_c),
    ]
    return "\n".join(lines) + "\n"


def _bases(names: Iterable[str]) -> set[str]:
    """Names of operators without ``aten``, overloads and those of backward."""
    found = {re.sub(r"^aten\.(\w+).*", r"\1", name) for name in names}
    return {name for name in found if "backward" not in name}


def _listed(names: Iterable[str]) -> str:
    return f"`{' '.join(sorted(names))}`"


def _quoted(names: Any) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _settings(name: str) -> list[str]:
    spec = OptimizerSpec(name)
    return [f"{each}{_usual(each, spec.in_force(each))}" for each in OPTIONS[name]]


def _usual(option: str, value: object) -> str:
    """``=value`` as usual, where that is not 0; how a switch is written."""
    if isinstance(value, bool):
        return "=yes"
    if option == "lr" or value == 0.0:
        return ""
    return "=" + ("/".join(map(str, value)) if isinstance(value, tuple) else f"{value:g}")


PAGES: dict[str, Callable[[], str]] = {
    "commands.md": commands_page,
    "api.md": api_page,
    "operators.md": operators_page,
}


def main() -> None:
    """Write the pages, or say which of them are not as they should be."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--write", action="store_true")
    write = parser.parse_args().write
    for name, made in PAGES.items():
        path, text = ROOT / "docs" / name, made()
        if write:
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            print(f"docs/{name} is out of date: make reference")


if __name__ == "__main__":
    main()
