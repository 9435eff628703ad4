"""What a step minimises, as people write it: the name of a loss, and its options behind a colon.

======================== ==========================================================================
``cross-entropy``        classes stand in dim 1, as in torch: [N,C], [N,C,T], [N,C,H,W]; [C] has one dim
``cross-entropy:dim=-1`` classes stand in the last dim, as sequence models give them: [N,T,C]
``mse``                  targets as large as the output
``bce-with-logits``      likewise, between 0 and 1
``output``               the model's first output is the loss, summed if it is no scalar
======================== ==========================================================================

The loss is that of the model's first output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from poet.errors import ModelError, nearest

LOSSES = ("cross-entropy", "mse", "bce-with-logits", "output")
DEFAULT_LOSS = LOSSES[0]

_OPTIONS = {"cross-entropy": ("dim",)}


@dataclass(frozen=True, slots=True)
class LossSpec:
    """A loss by name, with its options.

    Attributes:
        name: one of `LOSSES`.
        dim: of cross-entropy: in which of the output's dims the classes stand, from the end where
            negative; ``None``: where torch has them.
    """

    name: str
    dim: int | None = None

    @staticmethod
    def parse(text: str) -> LossSpec:
        """The loss in ``NAME`` or ``NAME:option=value,...``.

        Raises:
            ModelError: there is no such loss, it has no such option, or the value cannot be.
        """
        name, colon, written = text.partition(":")
        if name not in LOSSES:
            raise ModelError(f"loss {name!r} is not one of {', '.join(LOSSES)}{nearest(name, LOSSES)}")
        known, found = _OPTIONS.get(name, ()), {}
        for item in written.split(",") if colon else ():
            option, equals, value = item.partition("=")
            if option not in known:
                has = f"the options of {name} are: {', '.join(known)}" if known else f"{name} has no options"
                raise ModelError(f"loss {text!r}: {option!r} is not an option; {has}")
            if option in found:
                raise ModelError(f"loss {text!r} gives {option} twice")
            if not equals or not value.removeprefix("-").isdecimal() or len(value) > _LONGEST_NUMBER:
                raise ModelError(
                    f"loss {text!r}: {option} is a whole number; write for example {name}:dim=-1"
                )
            found[option] = int(value)
        return LossSpec(name, **found)

    def __str__(self) -> str:
        return self.name if self.dim is None else f"{self.name}:dim={self.dim}"

    def class_dim(self, dims: int) -> int:
        """In which dim of an output of ``dims`` dims the classes of cross-entropy stand, from 0.

        Raises:
            ModelError: the output has no such dim.
        """
        if not dims:
            raise ModelError(
                "cross-entropy needs scores of classes; the model's first output is a single number "
                "(loss 'output' minimises it)"
            )
        dim = min(1, dims - 1) if self.dim is None else self.dim
        if not -dims <= dim < dims:
            raise ModelError(f"loss '{self}': the model's first output has {dims} dims, and no dim {dim}")
        return dim % dims

    def class_dim_of(self, output: Sequence[int], targets: Sequence[int]) -> int | None:
        """The dim of the classes where ``targets`` are class numbers; ``None`` where they are not.

        Raises:
            ModelError: the output has no such dim.
        """
        if self.name != "cross-entropy":
            return None
        dim = self.class_dim(len(output))
        return dim if (*output[:dim], *output[dim + 1 :]) == tuple(targets) else None

    def reads(self, output: Sequence[int | str], dtype: str, targets: str | None = None) -> str:
        """What the loss reads, for people: the dim of the classes, how many, and the targets.

        Args:
            output: sizes of the model's first output, by number or by name.
            dtype: its element type.
            targets: their type, where it is known; not given: what the loss takes by itself.

        Raises:
            ModelError: the loss cannot be that of such an output.
        """
        if self.name == "output":
            summed = ", summed" if output else ""
            return f"the model's first output, {_type(dtype, output)}{summed}; no targets"
        if self.name != "cross-entropy":
            return f"{self.name}, targets {targets or _type(dtype, output)}"
        dim = self.class_dim(len(output))
        found = targets or _type("int64", (*output[:dim], *output[dim + 1 :]))
        hint = f"; classes last: {self.name}:dim=-1" if self.dim is None and len(output) == 3 else ""
        return f"cross-entropy over dim {dim}, {output[dim]} classes, targets {found}{hint}"


_LONGEST_NUMBER = 4  # characters; no tensor has so many dims


def _type(dtype: str, sizes: Sequence[int | str]) -> str:
    return f"{dtype}[{','.join(map(str, sizes))}]"
