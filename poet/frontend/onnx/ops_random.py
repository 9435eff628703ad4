"""Operator rows: random numbers, drawn from torch's generator as torch's own functions draw them.

Exporters write ``torch.rand``, ``torch.randn_like`` and ``torch.bernoulli`` as these nodes, and dropout in
place as several of them, which `poet.frontend.onnx.fuse` puts together again. A node's own seed is not
followed: a step is seeded as a whole.
"""

from __future__ import annotations

import math

import torch

from poet.frontend.onnx.node import Built, Node, row
from poet.frontend.onnx.reader import DTYPES


@row("RandomUniform", "RandomUniformLike", random=True, ignored=("seed",))
def _uniform(node: Node) -> Built:
    shape, dtype = _made(node)
    low, high = node.real("low", 0.0), node.real("high", 1.0)
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise node.error(f"low {low} and high {high} are no range")
    return lambda: torch.empty(shape, dtype=dtype).uniform_(low, high)


@row("RandomNormal", "RandomNormalLike", random=True, ignored=("seed",))
def _normal(node: Node) -> Built:
    shape, dtype = _made(node)
    mean, scale = node.real("mean", 0.0), node.real("scale", 1.0)
    if not (math.isfinite(mean) and math.isfinite(scale) and scale >= 0):
        raise node.error(f"mean {mean} and scale {scale} are no normal distribution")
    return lambda: torch.empty(shape, dtype=dtype).normal_(mean, scale)


@row("Bernoulli", random=True, ignored=("seed",))
def _bernoulli(node: Node) -> Built:
    dtype = _dtype(node, node.meta(0).dtype)
    return lambda x: torch.bernoulli(x).to(dtype)


def _made(node: Node) -> tuple[list[int], torch.dtype]:
    """Shape and type of what a node makes from nothing, or like an input of which only these are read."""
    if node.proto.op_type.endswith("Like"):
        meta = node.meta(0)
        node.drop(0)
        default = meta.dtype if meta.dtype.is_floating_point else torch.float32
        return list(meta.shape), _dtype(node, default)
    shape = node.rebind_shape(node.int_list("shape"))
    if any(size < 0 for size in shape):
        raise node.error(f"a shape of {shape}")
    return shape, _dtype(node, torch.float32)


def _dtype(node: Node, default: torch.dtype) -> torch.dtype:
    number = node.integer("dtype", 0)
    if number and number not in DTYPES:
        raise node.error(f"element type {number} is not supported")
    dtype = DTYPES[number] if number else default
    if node.proto.op_type != "Bernoulli" and not dtype.is_floating_point:
        raise node.error(f"random numbers of type {str(dtype).removeprefix('torch.')}; expected a float type")
    return dtype
