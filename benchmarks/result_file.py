"""What benchmarks found, as data: results/NAME.json, with the commit of the checkout that found it.

A script gives a page of Markdown to `write`: headings, paragraphs and tables.
`python -m benchmarks show NAME` prints it again.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from poet.util.codec import decode, encode

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
Cell = int | float | str
_BLOCK = re.compile(r"^(?:```(?s:.*?)^```|#.*|\|.*(?:\n\|.*)*|.+(?:\n(?!\||#|- ).+)*)", re.MULTILINE)
"""Code, a heading, a table, a paragraph or point of a list."""
_WHOLE = re.compile(r"-?\d+|-?\d{1,3}(?:,\d{3})+")
_FRACTION = re.compile(r"-?\d+\.\d+(?:e[+-]\d+)?|-?\d+e[+-]\d+")


@dataclass(frozen=True, slots=True)
class Table:
    """Rows, and what is to be known of them.

    Attributes:
        title: none where it goes on with what is above it.
        remarks: paragraphs above the rows, in Markdown.
        columns: their headings; none where there are remarks alone.
        rows: a cell per column, a number where it is a bare one.
    """

    title: str = ""
    remarks: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Cell, ...], ...] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"{self.title}: {len(row)} cells in {len(self.columns)} columns: {row}")

    def __str__(self) -> str:
        parts = [*([f"## {self.title}"] if self.title else []), *self.remarks]
        if self.columns:
            lines = [self.columns, ("---",) * len(self.columns), *self.rows]
            parts.append("\n".join(f"| {' | '.join(map(str, line))} |" for line in lines))
        return "\n\n".join(parts)


@dataclass(frozen=True, slots=True)
class Result:
    """What a benchmark found.

    Attributes:
        name: of the file.
        title: what was looked at.
        commit: of the checkout, with ``+`` where files of it were changed.
        command: that finds it again.
        remarks: paragraphs of method, machine and limits, in Markdown.
        tables: in the order of reading.
    """

    name: str
    title: str
    commit: str
    command: str
    remarks: tuple[str, ...]
    tables: tuple[Table, ...]

    def __str__(self) -> str:
        parts = [f"# {self.title}", f"Commit {self.commit}.", *self.remarks, *map(str, self.tables)]
        return "\n\n".join(parts) + "\n"


def parse(name: str, page: str, *, commit: str = "") -> Result:
    """The record of a page of Markdown: its title comes first, its command is the first that it names."""
    command = re.search(r"`(python -m benchmarks [^`]*)`", page)
    if command is None:
        raise ValueError(f"{name}: its page names no `python -m benchmarks` command")
    parts: list[Table] = []
    for block in _BLOCK.findall(page):
        if block.startswith("#") or parts[-1].columns:
            parts.append(Table())
        parts[-1] = _with(parts[-1], block)
    head, *tables = parts
    if head.columns:
        tables.insert(0, replace(head, title="", remarks=()))
    return Result(name, head.title, commit, command[1], head.remarks, tuple(tables))


def _with(table: Table, block: str) -> Table:
    if block.startswith("#"):
        return replace(table, title=block.lstrip("# "))
    lines = [line.strip() for line in block.splitlines()]
    if not block.startswith("|"):
        text = block if block.startswith("```") else " ".join(lines)
        return replace(table, remarks=(*table.remarks, text))
    columns, _, *rows = (tuple(cell.strip() for cell in line[1:-1].split("|")) for line in lines)
    return replace(table, columns=columns, rows=tuple(tuple(map(_cell, row)) for row in rows))


def _cell(text: str) -> Cell:
    if _WHOLE.fullmatch(text):
        return int(text.replace(",", ""))
    return float(text) if _FRACTION.fullmatch(text) else text


def write(path: Path, page: str) -> None:
    """Put a page's record into ``path``, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    text = json.dumps(encode(parse(path.stem, page, commit=_commit())), indent=1, ensure_ascii=False)
    text = re.sub(r"(?<=\[)\n {5}|\n {4}(?=\])", "", text)  # each row of a table on a line
    new.write_text(re.sub(r"\n {5}", " ", text) + "\n", encoding="utf-8")
    os.replace(new, path)


def is_kept(path: Path, page: str) -> bool:
    """Whether the record in ``path`` is that of the page, whichever commit it is of."""
    kept = read(path)
    return kept == parse(path.stem, page, commit=kept.commit)


def read(path: Path) -> Result:
    """The record in ``path``."""
    return decode(Result, json.loads(path.read_text(encoding="utf-8")), where=path.name)


def rows_of_others(path: Path, names: Collection[str]) -> list[list[str]]:
    """Of each table in ``path``, the rows as Markdown whose first cell is none of ``names``."""
    tables = read(path).tables if path.exists() else ()
    return [
        [f"| {' | '.join(map(str, row))} |" for row in table.rows if row[0] not in names]
        for table in tables
        if table.columns
    ]


def _commit() -> str:
    """Of the checkout; results do not count as changes of it."""
    git = ["git", "-C", str(ROOT)]
    named = [*git, "rev-parse", "--short", "HEAD"]
    found = subprocess.run(named, capture_output=True, text=True, check=False)
    changed = [*git, "diff", "--quiet", "HEAD", "--", ".", ":!benchmarks/results"]
    if found.returncode:
        return "unknown"
    return found.stdout.strip() + ("+" if subprocess.run(changed, check=False).returncode else "")
