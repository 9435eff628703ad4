"""Checks of a schedule's first run: each result is held against what the graph says about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from poet.errors import ReplayError
from poet.graph import Call, Graph, Op, TensorType
from poet.runtime import kernels
from poet.runtime.kernels import arguments
from poet.runtime.kernels.cells import Cells, new_buffer, view_of


def with_checks(
    run: Callable[[], Any], op: Op, call: Call, cells: Cells, graph: Graph, oversized: set[str]
) -> Callable[[], Any]:
    """``run``, its results held against the graph: type, strides, size, no shared memory."""
    given = [cells.value(name) for name in call.refs()]

    def checked() -> Any:
        results = list(kernels.outputs_of(run()))
        if len(results) < len(op.outputs):
            raise ReplayError(f"op {op.name} gave {len(results)} tensors, the plan says {len(op.outputs)}")
        taken = {cells.contents[number].untyped_storage().data_ptr() for number in given}
        for place, name in enumerate(op.outputs):
            if name is None:
                continue
            result = _checked_result(op, name, results[place], cells.types[name])
            storage = result.untyped_storage()
            if storage.nbytes() > cells.sizes_bytes[graph.buffer_of(name)]:
                oversized.add(name)
                results[place] = _compact(result, cells.types[name])
            elif storage.nbytes() and storage.data_ptr() in taken:
                raise ReplayError(f"op {op.name}: {name} shares its memory with another tensor")
            taken.add(storage.data_ptr())
        return results

    return checked


def _checked_result(op: Op, name: str, result: torch.Tensor | None, kind: TensorType) -> torch.Tensor:
    if result is None:
        raise ReplayError(f"op {op.name}: {name} did not come out as a tensor")
    found = (result.dtype, tuple(result.shape), result.stride(), result.storage_offset())
    if found != (arguments.dtype(kind.dtype), kind.shape, kind.strides, kind.offset):
        raise ReplayError(
            f"op {op.name}: {name} came out as {result.dtype}{list(result.shape)} with strides "
            f"{result.stride()}, the plan says {kind} with strides {kind.strides}; "
            "solve again with this version of torch"
        )
    return result


def compacting(run: Callable[[], Any], op: Op, cells: Cells, oversized: set[str]) -> Callable[[], Any]:
    """``run``, with results that are small parts of a kernel's temporary moved into their own memory."""
    places = [
        (place, cells.types[name])
        for place, name in enumerate(op.outputs)
        if name is not None and name in oversized
    ]

    def compacted() -> Any:
        results = list(kernels.outputs_of(run()))
        for place, kind in places:
            results[place] = _compact(results[place], kind)
        return results

    return compacted


def _compact(result: torch.Tensor | None, kind: TensorType) -> torch.Tensor:
    """A copy of ``result`` in a storage of just its size."""
    assert result is not None
    copy = view_of(new_buffer(kind.extent_bytes).untyped_storage(), kind)
    return copy.copy_(result)
