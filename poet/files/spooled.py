"""Samples from a function of the user's own, ``module:function``: an iterable, written to a file once.

The function runs as any code of the user's does; nothing else that poet reads is executed. Its samples go to
an unnamed file, from which they are read in any order, so that they are shuffled and gone on with like those
of a file.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import IO

import numpy as np

from poet.errors import InputError
from poet.files.columns import Array, Column, StoredColumn, unnamed_file


def is_function(text: str) -> bool:
    """Whether ``text`` names a function, as ``module:function``, and not a file."""
    module, colon, function = text.partition(":")
    named = bool(colon) and function.isidentifier() and all(part.isidentifier() for part in module.split("."))
    return named and not Path(text).exists()


def spooled_columns(text: str, names: list[str], folder: Path) -> dict[str, Column]:
    """The samples of the iterable that ``module:function`` gives, as columns called ``names``.

    Args:
        text: the function's name; its module is looked for in the working folder too.
        names: of the arrays of a sample, in their order.
        folder: where the unnamed files are.

    Raises:
        InputError: there is no such function, it fails, or a sample has other arrays than the first.
    """
    module, _, name = text.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), name, None)
    except Exception as error:
        raise InputError(f"{text}: the module {module} cannot be imported ({_line(error)})") from None
    if not callable(found):
        raise InputError(f"{text}: {module} has no function {name}")
    files: list[IO[bytes]] = []
    kinds: list[tuple[tuple[int, ...], np.dtype[np.generic]]] = []
    count = 0
    try:
        for count, sample in enumerate(_samples(found(), text), 1):
            arrays = _arrays(sample, len(names), text)
            if not files:
                kinds = [(item.shape, item.dtype) for item in arrays]
                files = [unnamed_file(folder) for _ in arrays]
            if [(item.shape, item.dtype) for item in arrays] != kinds:
                raise InputError(f"{text}: sample {count} has arrays of another shape or type than the first")
            for file, item in zip(files, arrays, strict=True):
                file.write(item.tobytes())
        if not files:
            raise InputError(f"{text}: it gives no samples")
    except BaseException as error:
        for file in files:
            file.close()
        if isinstance(error, InputError) or not isinstance(error, Exception):
            raise
        raise InputError(f"{text}: sample {count + 1} fails ({_line(error)})") from None
    return {
        name: StoredColumn(file, text, 0, (count, *shape), dtype)
        for name, file, (shape, dtype) in zip(names, files, kinds, strict=True)
    }


def _samples(given: object, text: str) -> Iterable[object]:
    if not isinstance(given, Iterable):
        raise InputError(f"{text}: it gives {type(given).__name__}, not an iterable of samples")
    return given


def _arrays(sample: object, count: int, text: str) -> list[Array]:
    parts = list(sample) if isinstance(sample, tuple | list) else [sample]
    if len(parts) != count:
        raise InputError(f"{text}: a sample has {len(parts)} arrays, the plan takes {count}")
    arrays: list[Array] = [np.asarray(part) for part in parts]
    for item in arrays:
        if item.dtype.kind not in "biuf":
            raise InputError(f"{text}: a sample has elements of type {item.dtype}, which are no numbers")
    return arrays


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
