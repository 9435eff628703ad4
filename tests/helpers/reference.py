"""The plainest way to run a graph: each op once, in order, everything kept. The judge of cleverer ways."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from poet.ir.graph import Graph, Op
from poet.runtime import kernels
from poet.runtime.kernels import arguments


def run_graph(
    graph: Graph,
    tensors: Mapping[str, Tensor],
    inputs: Mapping[str, Tensor],
    hyperparameters: Mapping[str, float],
    *,
    after_op: Callable[[int, Op, dict[str, Tensor]], None] | None = None,
) -> dict[str, Tensor]:
    """Run one training step.

    Args:
        graph: the step.
        tensors: by value name: parameters, states, constants, optimizer state. Updated in place.
        inputs: by value name: the model's inputs and the targets.
        hyperparameters: the optimizer's scalars of this step.
        after_op: called after each op with its index, the op and all values so far.

    Returns:
        Every value by name.
    """
    by_buffer: dict[str, list[str]] = {}
    types = {value.name: value.type for value in graph.values}
    for value in graph.values:
        by_buffer.setdefault(value.buffer, []).append(value.name)
    present: dict[str, Tensor] = {}

    def add(name: str, tensor: Tensor) -> None:
        present[name] = tensor
        for view in by_buffer[graph.buffer_of(name)]:
            if view not in present:
                type_ = types[view]
                is_alike = type_.dtype == types[name].dtype
                flat = tensor if is_alike else tensor.view(arguments.dtype(type_.dtype))
                present[view] = flat.as_strided(type_.shape, type_.strides, type_.offset)

    with torch.no_grad():
        for name, tensor in {**tensors, **inputs}.items():
            add(name, tensor)
        for index, op in enumerate(graph.ops):
            results = kernels.run(op.call, present.__getitem__, hyperparameters.__getitem__)
            for output, result in zip(op.outputs, results, strict=False):
                if output is not None and result is not None:
                    add(output, result)
            if after_op is not None:
                after_op(index, op, present)
    return present
