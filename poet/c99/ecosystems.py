"""The exported step as a library of an ecosystem of boards: ESP-IDF, Zephyr, Arduino, PlatformIO."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from importlib import metadata

from poet.c99.project import CProject
from poet.c99.sources import filled
from poet.c99.targets import Ecosystem
from poet.errors import InputError, PoetError

_LIBRARY = re.compile(r"poet_(step|state|kernels|weights)\.[ch]")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")
_FLAGS = """/* Arduino gives a library no flags: the same bits everywhere, no errno of square roots. */
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=off", "no-math-errno")
#endif

"""


_EXAMPLES = {
    Ecosystem.ESP_IDF: "examples/train/main",
    Ecosystem.ZEPHYR: "samples/train/src",
    Ecosystem.ARDUINO: "examples/train",
    Ecosystem.PLATFORMIO: "examples/train/src",
}
"""Where an example's sources lie."""


def for_ecosystem(project: CProject, ecosystem: Ecosystem, *, name: str, model: str) -> CProject:
    """``project`` with the files that ``ecosystem`` takes as they are.

    Args:
        project: the plan as C.
        ecosystem: whose folder.
        name: of the folder, which is the library's.
        model: its name, for the manifest.

    Raises:
        InputError: no library can be called ``name``.
        PoetError: the installation lacks the licence.
    """
    if not _NAME.fullmatch(name):
        raise InputError(
            f"with --for the folder's name is the library's, and {name!r} is none: up to 63 letters, digits "
            "and _, a letter first, e.g. -o poet_step"
        )
    licence = metadata.distribution("poet-edge-training").read_text("licenses/LICENSE")
    if licence is None:
        raise PoetError(
            "the installation of poet lacks its LICENSE, which the folder needs; install it again"
        )
    sentence = f"A training step of {re.sub(r'[^A-Za-z0-9 ._-]', '_', model)[:80]}, planned by poet."
    own = _parts(filled(f"{ecosystem.value}.txt", NAME=name, SENTENCE=sentence))
    about, example = project.files["README.md"].partition("## Build")[0], _EXAMPLES[ecosystem]
    flags = _FLAGS if ecosystem is Ecosystem.ARDUINO else ""
    files = {
        **{
            f"src/{path}": flags * path.endswith(".c") + text
            for path, text in project.files.items()
            if _LIBRARY.fullmatch(path)
        },
        **{f"{example}/{path}": project.files[f"test/{path}"] for path in ("vectors.c", "vectors.h")},
        **{f"{example}/{path}": filled(path) for path in ("train.c", "train.h")},
        **own,
        "LICENSE": licence,
        "README.md": f"{about}## Build\n\n{own['README.md']}\n{filled('train.md')}",
    }
    return replace(project, files=files)


def _parts(text: str) -> Mapping[str, str]:
    """Files by path out of one text, where a line ``=== path`` begins each."""
    _, *rest = re.split(r"^=== (.+)\n", text, flags=re.MULTILINE)
    return dict(zip(rest[::2], rest[1::2], strict=True))
