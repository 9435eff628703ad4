"""The commands on the pages print what the pages say they print, and every link leads somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from documents import PAGES, ROOT, Example, broken_links, difference, examples, links, mismatch, run
from poet.cli.main import app
from typer.main import get_command

COMMANDS: Any = get_command(app)
ALL_PAGES = (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Path]:
    return {page: tmp_path_factory.mktemp(page.stem) for page in PAGES}


def _cases() -> list[object]:
    return [
        pytest.param(
            page, example, marks=[pytest.mark.slow] if example.slow else [], id=f"{page.stem}:{example.line}"
        )
        for page in PAGES
        for example in examples(page.read_text(encoding="utf-8"))
    ]


@pytest.mark.parametrize(("page", "example"), _cases())
def test_a_command_prints_what_its_page_says(page: Path, example: Example, folders: dict[Path, Path]) -> None:
    found = run(example.command, folders[page])
    if example.searched and mismatch(example, found) is not None:  # a busy machine left no time for a proof
        found = run(example.command, folders[page])
    assert mismatch(example, found) is None


def test_every_link_leads_somewhere() -> None:
    assert [line for page in ALL_PAGES for line in broken_links(page)] == []


def test_every_file_of_the_project_that_a_page_names_is_there() -> None:
    """But for the changelog, which speaks of files as they were."""
    named = re.compile(r"`((?:poet|cli|tests|examples|docs)/[\w./-]+\.\w+)")
    for page in ALL_PAGES:
        if page.name != "CHANGELOG.md":
            files = named.findall(page.read_text(encoding="utf-8"))
            assert [name for name in files if not (ROOT / name).is_file()] == [], page


def test_a_broken_link_of_any_kind_is_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# Here\n```\n# not a heading\n```\n## `poet run`, and more\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](other.md#here) [b](other.md#poet-run-and-more) [c](#top) [d](https://example.com/x#y)\n# Top\n"
        "`[e](code.md)`\n```\n[f](block.md)\n```\n![g](picture.png) [h](other.md#not-a-heading)\n"
        '[i](gone.md "title") [j](#nowhere) <img src="gone.svg">\n[k]: gone.txt\n[l](../outside.md)\n'
    )
    found = [
        line.removeprefix("page.md links ").partition(",")[0] for line in broken_links(page, root=tmp_path)
    ]
    assert found == [
        "picture.png", "other.md#not-a-heading", "gone.md", "#nowhere", "gone.svg", "gone.txt",
        "../outside.md",
    ]  # fmt: skip


def test_every_picture_is_on_a_page() -> None:
    shown = {
        (page.parent / file).resolve()
        for page in ALL_PAGES
        for file, _ in links(page.read_text(encoding="utf-8"))
        if file.endswith((".png", ".svg"))
    }
    assert shown == {path for kind in ("png", "svg") for path in (ROOT / "docs").rglob(f"*.{kind}")}


def test_the_readme_is_a_door() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    named = {file for file, _ in links(text)}
    assert "docs/index.md" in named
    assert "CONTRIBUTING.md" in named


def test_every_page_can_be_reached_from_the_index() -> None:
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r" ([\w-]+\.md)$", site, flags=re.MULTILINE)
    assert sorted(listed) == sorted(page.name for page in (ROOT / "docs").glob("*.md"))


def test_a_wrong_figure_or_word_is_found() -> None:
    said = ("energy  1.50 KiB of 8 J",)
    assert difference(said, ("energy  1538 B of 8 J",)) is None
    assert difference(said, ("energy  1.50 KiB of 9 J",)) is not None
    assert difference(said, ("power  1.50 KiB of 8 J",)) is not None
    assert difference(said, (*said, "more")) is not None
    assert difference(("search  2 s",), ("search  200 s",)) is None


def test_every_command_that_a_page_shows_is_one() -> None:
    """In blocks that are not run, and in the text: the command is there, and its options are."""
    for page in ALL_PAGES:
        text = re.sub(r"\\\n>?\s*", "", page.read_text(encoding="utf-8"))
        blocks = re.findall(r"^ *```(?:sh.*)?\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)
        prose = [] if page.name == "CHANGELOG.md" else re.findall(r"`(poet [a-z-]+ [^`]*)`", text)
        for line in (*(line.strip() for block in blocks for line in block.splitlines()), *prose):
            words = shlex.split(line)[1:] if line.startswith("poet ") else []
            command = COMMANDS
            while words and (inner := getattr(command, "commands", None)):
                assert words[0] in inner, f"{page.name}: {line}"
                command = inner[words.pop(0)]
            known = {option for parameter in command.params for option in parameter.opts}
            assert {word for word in words if word.startswith("--")} <= known, f"{page.name}: {line}"


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_scripts_of_a_page_run(page: Path, tmp_path: Path) -> None:
    """Blocks whose title is ``example.py``, one after the other."""
    blocks = re.findall(
        r'^```python title="example.py"\n(.*?)^```',
        page.read_text(encoding="utf-8"),
        re.MULTILINE | re.DOTALL,
    )
    for block in blocks:
        (tmp_path / "script.py").write_text(block)
        run("python script.py", tmp_path)
