"""The README's commands print what it says they print, and it names what exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from readme import README, ROOT, Example, difference, examples, mismatch, rewritten, run

TEXT = README.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("readme")


def _cases() -> list[object]:
    return [
        pytest.param(example, marks=[pytest.mark.slow] if example.slow else [], id=f"line{example.line}")
        for example in examples(TEXT)
    ]


@pytest.mark.parametrize("example", _cases())
def test_a_command_prints_what_the_readme_says(example: Example, folder: Path) -> None:
    found = run(example.command, folder)
    assert mismatch(example, found) is None


def test_every_file_that_the_readme_links_exists() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", TEXT)
    assert links
    for link in links:
        assert (ROOT / link).exists(), link


def test_the_reader_of_the_readme_reads() -> None:
    text = "a\n```console\n$ one \\\n> two\nout 1\nout 2\n$ three\n```\n```console slow\n$ four\nx\n```\n"
    found = list(examples(text))
    assert [example.command for example in found] == ["one \\\ntwo", "three", "four"]
    assert [example.output for example in found] == [("out 1", "out 2"), (), ("x",)]
    assert [example.slow for example in found] == [False, False, True]
    assert rewritten(text, {3: ("new",), 7: ("a", "b")}) == text.replace("out 1\nout 2", "new").replace(
        "$ three", "$ three\na\nb"
    )


def test_a_wrong_figure_or_word_is_found() -> None:
    said = ("energy  1.50 KiB of 8 J",)
    assert difference(said, ("energy  1538 B of 8 J",)) is None
    assert difference(said, ("energy  1.50 KiB of 9 J",)) is not None
    assert difference(said, ("power  1.50 KiB of 8 J",)) is not None
    assert difference(said, (*said, "more")) is not None
    assert difference(("search  2 s",), ("search  200 s",)) is None


def test_of_a_search_only_the_labels_count() -> None:
    said = ("energy  1 J", "    1 KiB │▅▅", "gradient  2 B  7 %")
    example = Example("x", said, slow=True, searched=True, line=1)
    assert mismatch(example, ("energy  2 J", "    3 KiB │▅", "workspace  2 B  9 %")) is None
    assert mismatch(example, ("power  2 J",)) is not None
