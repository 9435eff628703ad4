"""How a module is called and what it returns: nested tuples, lists and mappings, and the tensors in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from poet.errors import InputError


@dataclass(frozen=True, slots=True, eq=False)
class Structure:
    """A tree of containers: its shape, and what of its leaves is no tensor.

    Attributes:
        spec: torch's record of the containers.
        leaves: in order; ``None`` in the places of tensors.
        places: of the tensors among the leaves.
    """

    spec: pytree.TreeSpec
    leaves: tuple[object, ...]
    places: tuple[int, ...]

    @staticmethod
    def of(tree: object) -> Structure:
        """The structure of ``tree``."""
        leaves, spec = pytree.tree_flatten(tree)
        places = tuple(place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor))
        kept = (None if isinstance(leaf, Tensor) else leaf for leaf in leaves)
        return Structure(spec, tuple(kept), places)

    def tensors(self, tree: object, what: str) -> list[Tensor]:
        """The tensors of a tree of this structure.

        Raises:
            InputError: it has another structure, or another leaf that is no tensor; ``what`` names it.
        """
        leaves, spec = pytree.tree_flatten(tree)
        same = spec == self.spec and all(
            isinstance(leaf, Tensor) if place in self.places else _is_same(leaf, self.leaves[place])
            for place, leaf in enumerate(leaves)
        )
        if not same:
            raise InputError(
                f"{what} {_shown(leaves)} where the example inputs had {self._shown()}; wrap the module "
                "again for other arguments"
            )
        return [leaves[place] for place in self.places]

    def filled(self, tensors: Sequence[object]) -> Any:
        """The tree with these tensors in their places."""
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        return pytree.tree_unflatten(leaves, self.spec)

    def _shown(self) -> str:
        tensor = torch.empty(0)
        return _shown([tensor if place in self.places else leaf for place, leaf in enumerate(self.leaves)])


def arguments_of(example_inputs: object) -> tuple[tuple[object, ...], dict[str, object]]:
    """Positional and keyword arguments of a call: of a tensor, a sequence, or a mapping of names."""
    if isinstance(example_inputs, Mapping):
        return (), {str(name): item for name, item in example_inputs.items()}
    if isinstance(example_inputs, Sequence):
        return tuple(example_inputs), {}
    return (example_inputs,), {}


def _is_same(one: object, other: object) -> bool:
    return type(one) is type(other) and bool(one == other)


def _shown(leaves: Sequence[object]) -> str:
    words = ["a tensor" if isinstance(leaf, Tensor) else repr(leaf)[:40] for leaf in leaves]
    return f"({', '.join(words)})"
