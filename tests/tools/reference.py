"""Writes the reference pages from what they describe: commands, Python API, operators.

python tests/tools/reference.py --write    puts docs/commands.md, docs/api.md and docs/operators.md in place
"""

from __future__ import annotations

import argparse
import enum
import importlib
import inspect
import re
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

RECORDS = {"poet.problem", "poet.ir.optimizer", "poet.problem.solution"}
"""Modules of records, whose methods are left out."""

_LONG = 80
"""Characters of an option's meaning that are not said twice."""

_SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Yields):$", re.MULTILINE)


def cell(text: str) -> str:
    """Text for a table, on one line."""
    return " ".join(text.split()).replace("|", "\\|").replace("``", "`")


def paragraphs(text: str) -> str:
    """Text without the ends of its lines inside paragraphs; lists and code stay as they are."""
    parts = inspect.cleandoc(text).split("\n\n")
    joined = (part if "\n " in part or "::" in part else " ".join(part.split()) for part in parts)
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
        "| exit code | means |",
        "|--:|---|",
        *(f"| {code} | {means} |" for code, means in EXIT_CODES.items()),
    ]
    seen: dict[tuple[str, str], str] = {}
    for path, command in _leaves(get_command(app), ()):
        lines += _command(path, command, seen)
    return "\n".join(lines) + "\n"


def _leaves(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield path, command
        return
    for name, each in inner.items():
        yield from _leaves(each, (*path, name))


def _command(path: tuple[str, ...], command: Any, seen: dict[tuple[str, str], str]) -> Iterator[str]:
    name = " ".join(("poet", *path))
    shown = [item for item in command.params if not getattr(item, "hidden", False) and item.name != "help"]
    given = [item for item in shown if not item.opts[0].startswith("-")]
    options = [item for item in shown if item.opts[0].startswith("-")]
    words = [_metavar(item) for item in given]
    yield f"\n## {name}\n"
    yield f"`{' '.join([name, *words, *(['[OPTIONS]'] if options else [])])}`\n"
    yield paragraphs(command.help or "")
    if shown:
        yield "\n| option | means | default |\n|---|---|---|"
    for item in given:
        yield f"| `{_metavar(item)}` | {cell(getattr(item, 'help', '') or '')} | |"
    for item in options:
        names = ", ".join(f"`{word}`" for word in (*item.opts, *item.secondary_opts))
        value = "" if item.is_flag else f" `{_metavar(item)}`"
        means = _seen(seen, names, cell(item.help or ""), name)
        yield f"| {names}{value.replace('|', chr(92) + '|')} | {means} | {_default(item)} |"


def _seen(seen: dict[tuple[str, str], str], names: str, means: str, command: str) -> str:
    """What an option means, or where it says so if that is long."""
    first = seen.setdefault((names, means), command)
    again = first != command and len(means) > _LONG
    return f"see [{first}](#{first.replace(' ', '-')})" if again else means


def _metavar(item: Any) -> str:
    kind = item.type_descriptor.annotation
    if inspect.isclass(kind) and issubclass(kind, enum.Enum):
        return "|".join(str(each.value) for each in kind)
    return str(item.metavar or item.name.upper())


def _default(item: Any) -> str:
    default = None if callable(item.default) else getattr(item.default, "value", item.default)
    if getattr(item, "show_default", None) and isinstance(item.show_default, str):
        return cell(item.show_default)
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
    lines.append("\n| error | raised where |\n|---|---|")
    for name, item in vars(errors).items():
        if inspect.isclass(item) and issubclass(item, Exception) and item.__module__ == errors.__name__:
            lines.append(f"| `{name}` | {cell(_summary(item))} |")
    return "\n".join(lines) + "\n"


def _member(name: str, item: Any) -> Iterator[str]:
    yield f"\n### {name}\n"
    if inspect.isclass(item) and issubclass(item, enum.Enum):
        yield f"One of {_quoted(repr(each.value) for each in item)}.\n"
    elif callable(item):
        yield f"```python\n{_signature(name.rpartition('.')[2], item)}\n```\n"
    yield from _docstring(item)
    if not inspect.isclass(item) or item.__module__ in RECORDS:
        return
    rows = [f"| `{method}` | {cell(_summary(each))} |" for method, each in _methods(item) if _summary(each)]
    if rows:
        yield "\n| member | does |\n|---|---|"
        yield from rows


def _methods(item: type) -> Iterator[tuple[str, Any]]:
    for base in reversed(item.__mro__):
        if not base.__module__.startswith("poet"):
            continue
        for name, each in vars(base).items():
            if name.startswith("_"):
                continue
            if isinstance(each, (property, classmethod, staticmethod)) or inspect.isfunction(each):
                function: Any = getattr(each, "fget", None) or getattr(each, "__func__", each)
                plain = isinstance(each, property)
                yield name if plain else f"{name}{_short(function)}", function


def _short(function: Callable[..., Any]) -> str:
    found = inspect.signature(function).parameters.values()
    words = [each.name for each in found if each.name not in ("self", "cls")]
    return f"({', '.join(words)})"


def _signature(name: str, item: Any) -> str:
    found = inspect.signature(item)
    words, starred = [], False
    for each in found.parameters.values():
        if each.kind is each.KEYWORD_ONLY and not starred:
            words.append("*")
            starred = True
        starred = starred or each.kind is each.VAR_POSITIONAL
        if each.name != "self":
            text = f"{'*' if each.kind is each.VAR_POSITIONAL else ''}{each.name}"
            words.append(text if each.default is each.empty else f"{text}={_value(each.default)}")
    line = f"{name}({', '.join(words)})"
    if len(line) <= 100:
        return line
    return f"{name}(\n" + "".join(f"    {word},\n" for word in words) + ")"


def _value(default: Any) -> str:
    own = type(default).__module__.startswith("poet")
    text = f'"{default}"' if isinstance(default, str) else str(default) if own else repr(default)
    return "..." if " at 0x" in text or "OMITTED" in text.upper() or len(text) > 40 else text


def _summary(item: Any) -> str:
    return inspect.cleandoc(item.__doc__ or "").split("\n\n")[0]


def _docstring(item: Any) -> Iterator[str]:
    parts = _SECTION.split(inspect.cleandoc(item.__doc__ or ""))
    yield paragraphs(parts[0])
    for kind, text in zip(parts[1::2], parts[2::2], strict=True):
        rows = re.findall(r"^    (\S[^:]*): (.*(?:\n {8,}.*)*)", text.strip("\n"), re.MULTILINE)
        if kind in ("Args", "Attributes", "Raises") and rows:
            yield f"\n| {'error' if kind == 'Raises' else 'name'} | meaning |\n|---|---|"
            yield from (f"| `{name}` | {cell(meaning)} |" for name, meaning in rows)
        elif kind in ("Returns", "Yields"):
            yield f"\n*{kind}*: {' '.join(text.split())}"


def operators_page() -> str:
    """docs/operators.md, from the tables that the importer, the runtime and the exporter use."""
    own = sorted(operators.OWN)
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
        "`lr` is 0.001 where none is given. Other numbers are defaults, `=yes` turns a switch on.\n",
        "| optimizer | options | tensors that it may keep per parameter |\n|---|---|---|",
        *(
            f"| `{name}` | {_settings(name)} | {_quoted(KINDS[name].states.split()) or 'none'} |"
            for name in OPTIONS
        ),
        "\n## ONNX\n",
        "Operators of ONNX files that are imported:\n",
        f"`{' '.join(sorted(ONNX_ROWS))}`",
        "\nAn attribute that an operator's row does not understand is refused.",
        "So is what the operator set of the file does not define.",
        "Indices that come with the data may count from the end; rows of a weight are numbered from 0.",
        "\n## In a plan\n",
        f"The allow-list: {len(operators.ATEN)} operators of PyTorch (`torch.ops.aten`),",
        "and these of poet's own. A plan with another one is refused.",
        "The lists below leave out overloads and operators of backward.\n",
        _quoted(own),
        "\n<details><summary>Operators of PyTorch</summary>\n",
        _bases(operators.ATEN),
        "\n</details>",
        "\n## In C99\n",
        "Operators with a C kernel ([train on a microcontroller](microcontroller.md)).",
        "`poet check model.onnx --kernels poet-c99` lists those that a model lacks.\n",
        _bases(KERNELS),
    ]
    return "\n".join(lines) + "\n"


def _bases(names: Iterable[str]) -> str:
    """Names of operators without ``aten``, overloads and those of backward, in one line."""
    found = {re.sub(r"^aten\.(\w+).*", r"\1", name) for name in names}
    return f"`{' '.join(sorted(name for name in found if 'backward' not in name))}`"


def _quoted(names: Any) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _settings(name: str) -> str:
    spec = OptimizerSpec(name)
    return _quoted(f"{each}{_usual(each, spec.in_force(each))}" for each in OPTIONS[name])


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
