"""Running a model as exporters run it, and where in the model's source something happened."""

from __future__ import annotations

import contextlib
import linecache
import re
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

_NOT_THE_MODELS = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


@contextlib.contextmanager
def as_exporters_do() -> Iterator[None]:
    """Inside, a model is told that it is exported, so that it leaves out shortcuts that look at contents.

    ``torch.compiler.is_exporting()``, ``is_compiling()`` and ``torch.jit.is_tracing()`` are true.
    """
    compiler = torch.compiler
    core: Any = torch._C  # what `torch.jit.is_tracing` asks, by whatever name a model imported it
    before = compiler._is_compiling_flag, compiler._is_exporting_flag, core._is_tracing
    compiler._is_compiling_flag = compiler._is_exporting_flag = True
    core._is_tracing = lambda: True
    try:
        yield
    finally:
        compiler._is_compiling_flag, compiler._is_exporting_flag, core._is_tracing = before


def line_of(trace: TracebackType | None) -> str:
    """The innermost line of the model's own source in a traceback, as `` at net.py:12 (if x.all():)``."""
    found = ""
    while trace is not None:
        found = _place(trace.tb_frame.f_code.co_filename, trace.tb_lineno) or found
        trace = trace.tb_next
    return found


def line_in(stack_trace: str | None) -> str:
    """The same from a formatted traceback, as a traced node has one."""
    found = ""
    for file, number in _FRAME.findall(stack_trace or ""):
        found = _place(file, int(number)) or found
    return found


def _place(file: str, number: int) -> str:
    if file.startswith(_NOT_THE_MODELS) or file.startswith("<frozen"):
        return ""
    source = linecache.getline(file, number).strip()
    return f" at {Path(file).name}:{number}" + (f" ({source[:80]})" if source else "")
