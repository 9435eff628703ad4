"""A walk whose tensors all lie in row-major order, as those of ExecuTorch's portable kernels do."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from poet.errors import PlanError
from poet.ir.graph import Argument, Blank, Graph, Ref, TensorType, Value
from poet.programs import pages
from poet.programs.schedule import Walk, lasting
from poet.runtime.kernels import arguments


def mutated(graph: Graph) -> dict[str, str]:
    """What lives across steps and is changed by one: names as the program has them, and values."""
    changed = {name for op in graph.ops for name in op.updates}
    named = lasting(graph, whole=False).items()
    return {name: item.values[0] for name, item in named if graph.buffer_of(item.values[0]) in changed}


class RowMajorWalk(Walk):
    """A walk whose tensors all lie in row-major order: views are copies, but for those that only reshape."""

    _file: Tensor

    def tensor(self, value: str) -> Tensor:
        buffer, kind = self._values[value].buffer, self.types[value]
        held, whole = self._held[buffer][0], self._kinds[buffer]
        if (kind.shape, kind.strides, kind.offset) == (whole.shape, whole.strides, whole.offset):
            return held
        if not whole.is_contiguous or whole.offset:
            order = sorted(range(len(whole.shape)), key=lambda dim: (-whole.strides[dim], dim))
            if not whole.is_dense or whole.offset:
                raise PlanError(f"value {value} is a view with gaps; ExecuTorch has no such tensors")
            held = torch.permute_copy(held, order)
        if kind.is_contiguous and kind.elements == whole.elements:
            return torch.view_copy(held, kind.shape)
        return torch.as_strided_copy(held, kind.shape, kind.strides, kind.offset)

    def given(self, argument: Argument) -> Any:
        return argument if isinstance(argument, Blank) else super().given(argument)

    def transposed(self, argument: Argument) -> Tensor | None:
        """The matrix of which ``argument`` is the transpose, where that is what lies in memory."""
        if not isinstance(argument, Ref):
            return None
        kind, buffer = self.types[argument.value], self._values[argument.value].buffer
        whole = self._kinds[buffer]
        if len(kind.shape) != 2 or kind.offset or whole.offset or not whole.is_contiguous:
            return None
        if kind.strides != (1, kind.shape[0]) or kind.elements != whole.elements:
            return None
        return torch.view_copy(self._held[buffer][0], kind.shape[::-1])

    def write(self, argument: Argument, tensor: Tensor) -> Tensor:
        """Let a value be ``tensor`` from now on, what lives across steps in place; the value."""
        assert isinstance(argument, Ref)
        value = self._values[argument.value]
        held = self._held[value.buffer][0]
        if self._kinds[value.buffer] != value.type:
            raise PlanError(f"a step writes {argument.value}, a part of a tensor; plan with --gradients keep")
        if value.buffer in self._persistent:
            held.copy_(tensor)
            return held
        self._held[value.buffer] = tensor, 0
        return tensor

    def inside(self, inner: Mapping[str, Value]) -> RowMajorWalk:
        """The same walk, which knows the values inside a strip as well."""
        made = copy.copy(self)
        made._values = {**self._values, **inner}
        made.types = {**self.types, **{name: value.type for name, value in inner.items()}}
        return made

    @staticmethod
    def number(tensor: Tensor) -> Any:
        """As a tensor of float64, which kernels take in its place: powers of betas are near 1."""
        return tensor.to(torch.float64)

    def _page_out(self, value: str, offset_bytes: int) -> None:
        page, buffer = self.tensor(value), self._values[value].buffer
        if page.nbytes > self._sizes_bytes[buffer]:
            raise PlanError(f"{buffer} is paged and smaller than {value}; plan with --no-paging")
        self._file = pages.page_out(self._file, page, offset_bytes)

    def _page_in(self, value: str, offset_bytes: int) -> Tensor:
        kind = self.types[value]
        return pages.page_in(self._file, kind.shape, arguments.dtype(kind.dtype), offset_bytes)

    def walk(self) -> tuple[Tensor, ...]:
        self._file = torch.empty([0])
        results = super().walk()
        held = (self._held[self.graph.buffer_of(value)][0] for value in mutated(self.graph).values())
        return (*held, *results)

    def _as_planned(self, result: Tensor, kind: TensorType, size_bytes: int) -> Tensor:
        return result.contiguous()
