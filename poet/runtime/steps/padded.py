"""A tensor that fills a part of its place in a step."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Padded:
    """A tensor that is smaller than its place in a step, and what stands behind it there."""

    tensor: torch.Tensor
    value: float

    def put(self, target: torch.Tensor) -> None:
        """Copy it into the beginning of ``target``, along every dim, and the value into the rest."""
        part = target.fill_(self.value)
        for dim, size in enumerate(self.tensor.shape):
            part = part.narrow(dim, 0, size)
        part.copy_(self.tensor)
