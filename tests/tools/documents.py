"""Runs the commands on the pages and compares what they print with what the pages say.

A fenced block opened by ```` ```console ```` holds commands (``$ ...``) and, under each, its stdout;
one opened by ```` ```console slow ```` takes minutes. Those of a page run in one folder, in order. The
text must be equal; a number may differ by `TOLERANCE` (kernels of another processor need other workspaces),
and on a line that tells what was measured here it may be any number. Where the fence says
``search``, a search within a time limit decides what is printed, and how far it gets depends on the
machine: there only the lines' labels must be the same.

    python tests/tools/documents.py --write [PAGE ...]    puts the true output into the pages
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = tuple(
    ROOT / name
    for name in (
        "README.md",
        "docs/index.md",
        "docs/microcontroller.md",
        "docs/budgets.md",
        "docs/what-if.md",
    )
)
"""Those with commands."""
TOLERANCE = 0.05
MEASURED = re.compile(r"measured|this machine|search|wall clock|imported in|epoch|accuracy")
"""Lines on which figures depend on this machine and this moment."""

_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")
_LINK = re.compile(
    r"""\]\(<?([^)\s>]+)>?(?:\s+"[^"]*")?\)|^\[[^\]]+\]:\s*(\S+)|(?:href|src)="([^"]+)\"""", re.MULTILINE
)
_SHARE = re.compile(r"\s{2}[\d.e-]+ %$")  # the last column of a table
_PREFIXED = re.compile(r"(\d+(?:\.\d+)?) (TiB|GiB|MiB|KiB|B|ks|s|ms|µs|ns|kJ|J|mJ|µJ|nJ)\b")
_FACTORS = {
    "TiB": 2.0**40, "GiB": 2.0**30, "MiB": 2.0**20, "KiB": 2.0**10, "B": 1.0,
    "ks": 1e3, "s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9,
    "kJ": 1e3, "J": 1.0, "mJ": 1e-3, "µJ": 1e-6, "nJ": 1e-9,
}  # fmt: skip


@dataclass(frozen=True)
class Example:
    """One command of a page.

    Attributes:
        command: for the shell.
        output: lines that the page shows under it.
        slow, searched: whether its block says so.
        line: of the page, from 1.
    """

    command: str
    output: tuple[str, ...]
    slow: bool
    searched: bool
    line: int


def examples(text: str) -> Iterator[Example]:
    """The commands of all console blocks, in order."""
    command: str | None = None
    output: list[str] = []
    start, words, inside = 0, list[str](), False
    for number, line in enumerate(text.splitlines(), 1):
        if inside and (line.startswith("$ ") or line == "```"):
            if command is not None:
                yield Example(command, tuple(output), "slow" in words, "search" in words, start)
            command, output, start = (line[2:], [], number) if line != "```" else (None, [], 0)
            inside = line != "```"
        elif inside and command is not None and command.endswith("\\") and not output:
            command = f"{command}\n{line.removeprefix('> ')}"
        elif inside:
            output.append(line)
        elif line.startswith("```console"):
            inside, words = True, line.split()[1:]


def run(command: str, folder: Path) -> tuple[str, ...]:
    """The lines that ``command`` prints to stdout, run by the shell in ``folder``.

    Raises:
        RuntimeError: it did not end with exit code 0; the message holds its stderr.
    """
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "100",
        "POET_NO_KEPT_PLANS": "1",
    }
    for name in ("examples", "tests"):
        if not (folder / name).exists():
            (folder / name).symlink_to(ROOT / name)
    done = subprocess.run(
        ["/bin/sh", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{command} ended with {done.returncode}:\n{done.stderr}")
    return tuple(line.rstrip() for line in done.stdout.splitlines())


def mismatch(example: Example, found: tuple[str, ...]) -> str | None:
    """How what ``example`` printed differs from what the page says, or ``None``."""
    if not example.searched:
        return difference(example.output, found)
    said, true = _labels(example.output), _labels(found)
    return None if said == true else f"labels only in one of page and output: {sorted(said ^ true)}"


def _labels(lines: tuple[str, ...]) -> set[str]:
    """First words of the lines; without those of plots, of tables of shares, and names of ops."""
    told = [line for line in lines if line.strip() and not _SHARE.search(line) and "│" not in line]
    words = {_NUMBER.sub("#", line.split()[0]) for line in told if not line[0].isspace()}
    return {word for word in words if re.fullmatch(r"[A-Za-z#-]+:?", word)}


def difference(expected: tuple[str, ...], found: tuple[str, ...]) -> str | None:
    """The first line that differs by more than the tolerance, or ``None``."""
    for index, (said, true) in enumerate(zip(expected, found, strict=False)):
        if not _same(said, true):
            return f"line {index + 1}:\n  page: {said}\n  true: {true}"
    if len(expected) != len(found):
        return f"the page shows {len(expected)} lines, the command prints {len(found)}"
    return None


def _same(said: str, true: str) -> bool:
    said, true = _without_prefixes(said), _without_prefixes(true)
    if _skeleton(said) != _skeleton(true):
        return False
    pairs = zip(_NUMBER.findall(said), _NUMBER.findall(true), strict=True)
    return bool(MEASURED.search(said)) or all(_near(float(a), float(b)) for a, b in pairs)


def _without_prefixes(line: str) -> str:
    """``1.5 KiB`` as ``1536 B``: a figure may cross from one prefix to the next."""
    return _PREFIXED.sub(lambda match: f"{float(match[1]) * _FACTORS[match[2]]:.6g} {match[2][-1]}", line)


def _skeleton(line: str) -> str:
    return " ".join(re.sub(r"[▁▂▃▄▅▆▇█ ]+", " ", _NUMBER.sub("#", line)).split())


def _near(a: float, b: float) -> bool:
    return abs(a - b) <= TOLERANCE * max(abs(a), abs(b)) + 1e-9


def rewritten(text: str, outputs: dict[int, tuple[str, ...]]) -> str:
    """``text`` with the output under the command at each line replaced."""
    lines = text.splitlines()
    for example in sorted(examples(text), key=lambda example: -example.line):
        if example.line in outputs:
            first = example.line + example.command.count("\n")
            lines[first : first + len(example.output)] = outputs[example.line]
    return "\n".join(lines) + "\n"


def links(text: str) -> list[tuple[str, str]]:
    """File and anchor of every link to this project; the file is empty for an anchor on the same page.

    Links are ``[text](target)`` and pictures, ``[name]: target``, and ``href`` and ``src`` of HTML.
    """
    prose = re.sub(r"`[^`\n]*`", "", _without_blocks(text))
    targets = (next(filter(None, match.groups())) for match in _LINK.finditer(prose))
    inside = (target for target in targets if not re.match(r"[a-z]+:", target))
    return [(file, anchor) for file, _, anchor in (target.partition("#") for target in inside)]


def anchors(text: str) -> set[str]:
    """Names that the headings of a page can be linked by, as code hosts and site builders make them."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", _without_blocks(text), flags=re.MULTILINE):
        found.add(re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-"))
    return found


def broken_links(page: Path, *, root: Path = ROOT) -> list[str]:
    """What is wrong with links of ``page``: no such file or heading, or it lies outside of ``root``."""
    wrong = []
    for file, anchor in links(page.read_text(encoding="utf-8")):
        target = (page.parent / file).resolve() if file else page.resolve()
        if not target.is_relative_to(root.resolve()):
            wrong.append(f"{page.name} links {file}, which is not in the repository")
        elif not target.exists():
            wrong.append(f"{page.name} links {file}, which does not exist")
        elif anchor and target.suffix == ".md" and anchor not in anchors(target.read_text(encoding="utf-8")):
            wrong.append(f"{page.name} links {file}#{anchor}, which is no heading there")
    return wrong


def _without_blocks(text: str) -> str:
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def main() -> None:
    """Run every command; with ``--write`` put what they print into the pages."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("pages", nargs="*", type=Path, help="default: all that have commands")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    for page in arguments.pages or PAGES:
        text = page.read_text(encoding="utf-8")
        outputs: dict[int, tuple[str, ...]] = {}
        with tempfile.TemporaryDirectory() as folder:
            for example in examples(text):
                print(f"{page.name}: $ {example.command}", file=sys.stderr)
                outputs[example.line] = run(example.command, Path(folder))
                print(mismatch(example, outputs[example.line]) or "as written", file=sys.stderr)
        if arguments.write:
            page.write_text(rewritten(text, outputs), encoding="utf-8")


if __name__ == "__main__":
    main()
