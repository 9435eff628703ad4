"""Pages of programs for ExecuTorch: operators on a tensor that stands for a file, and their kernels.

The tensor has no elements. A page-out changes it and a page-in reads it, so that no pass may join them or
change their order.
"""

from __future__ import annotations

import ctypes
import functools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from poet.errors import PlanError
from poet.runtime.native import build

_SOURCE = Path(__file__).with_name("pages.cpp")
_FLAGS = ("-shared", "-fPIC", "-std=c++17", "-O2", "-fvisibility=hidden")

_LIBRARY: Any = torch.library.Library("poet", "FRAGMENT")  # type: ignore[no-untyped-call]
_READ = "Tensor file, int[] shape, ScalarType dtype, int offset_bytes"
_LIBRARY.define("page_out_(Tensor(a!) self, Tensor page, int offset_bytes) -> Tensor(a!)")
_LIBRARY.define(f"page_in({_READ}) -> Tensor")
_LIBRARY.define(f"page_in.out({_READ}, *, Tensor(a!) out) -> Tensor(a!)")
_LIBRARY.impl("page_out_", lambda file, *_: file, "Meta")
_LIBRARY.impl("page_in", lambda _, shape, dtype, __: torch.empty(shape, dtype=dtype, device="meta"), "Meta")


def page_out(file: Tensor, page: Tensor, offset_bytes: int) -> Tensor:
    """The file after ``page`` was written to it."""
    changed: Tensor = torch.ops.poet.page_out_(file, page, offset_bytes)
    return changed


def page_in(file: Tensor, shape: Sequence[int], element: torch.dtype, offset_bytes: int) -> Tensor:
    """What was written there."""
    page: Tensor = torch.ops.poet.page_in(file, shape, element, offset_bytes)
    return page


@functools.cache
def kernels() -> bytes:
    """The library of the kernels for the ExecuTorch that is installed; this process has loaded it.

    Raises:
        PlanError: it cannot be compiled here.
    """
    import executorch.runtime

    root = Path(executorch.__path__[0])
    headers = [root / "include", root / "include/executorch/runtime/core/portable_type/c10"]
    given = [*_FLAGS, *(f"-isystem{folder}" for folder in headers)]
    with tempfile.TemporaryDirectory() as scratch:
        library = Path(scratch) / "pages.so"
        given += [str(_SOURCE), f"-L{root / 'lib'}", "-l:libexecutorch.so", "-o", str(library)]
        try:
            build.call(build.needed_compiler(), given, library)
            ctypes.CDLL(str(library))
        except (build.Unavailable, OSError) as error:
            raise PlanError(
                f"ExecuTorch's runtime has no kernels for pages, and they cannot be compiled here: {error}; "
                "or plan with --no-paging"
            ) from error
        return library.read_bytes()
