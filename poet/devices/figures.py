"""A figure of a profile: value, kind of knowledge, source and uncertainty; its unit ends its name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from poet.ir.op_spec import OpClass as OpClass
from poet.util.reading import LARGEST_AMOUNT, LARGEST_WHOLE, LEAST_AMOUNT

_POSITIVE = frozenset(
    {
        "flops_per_second",
        "bandwidth_bytes_per_second",
        "bus_bytes_per_second",
        "cores",
        "clock_hertz",
        "fp32_lanes",
        "convolution_block_channels",
        "page_bytes",
        "block_bytes",
        "alignment_bytes",
        "ram_bytes",
        "capacity_bytes",
    }
)
"""Figures that divide, or without which there would be nothing."""


Kind = Literal["measured", "datasheet", "vendor-doc", "standard", "published", "derived", "assumed"]
"""Where a figure comes from: a measurement, a maker's data sheet or other document, a standard, a
publication's own model, a calculation from such figures, or a guess that says so."""


PRIOR_FACTOR: dict[Kind, float] = {
    "measured": 1.2, "datasheet": 1.2, "vendor-doc": 1.2, "standard": 1.2,
    "published": 2.0, "derived": 2.0, "assumed": 5.0,
}  # fmt: skip
"""Per kind, the factor by which a figure without a stated uncertainty may be off either way. The
spread between honest laboratories on one chip is 14 %; between kernel libraries it is far more."""


UNITS = {
    "flops_per_second": "FLOP/s", "bytes_per_second": "B/s", "seconds": "s", "watts": "W",
    "joules": "J", "bytes": "B", "cycles": "cycles", "hertz": "Hz", "cores": "cores", "lanes": "lanes",
    "channels": "channels",
    "ratio": "times",
}  # fmt: skip
"""Endings of figure names and the unit that each stands for."""


PARENT: dict[OpClass, OpClass] = {
    OpClass.CONVOLUTION: OpClass.MATMUL,
    OpClass.CONVOLUTION_BACKWARD: OpClass.CONVOLUTION,
    OpClass.DEPTHWISE: OpClass.CONVOLUTION,
    OpClass.DEPTHWISE_BACKWARD: OpClass.DEPTHWISE,
    OpClass.GROUPED: OpClass.CONVOLUTION,
    OpClass.POINTWISE: OpClass.CONVOLUTION,
    OpClass.POINTWISE_BACKWARD: OpClass.CONVOLUTION_BACKWARD,
    OpClass.POOLING: OpClass.REDUCTION,
    OpClass.GELU: OpClass.TRANSCENDENTAL,
    OpClass.BATCH_NORM: OpClass.REDUCTION,
    OpClass.BATCH_NORM_BACKWARD: OpClass.BATCH_NORM,
    OpClass.ADAPTIVE_UPDATE: OpClass.ELEMENTWISE,
    OpClass.RANDOM: OpClass.ELEMENTWISE,
    OpClass.TANH: OpClass.TRANSCENDENTAL,
    OpClass.SHORT_ROWS: OpClass.TRANSCENDENTAL,
}
"""The class whose figures hold where a profile has none for a class: its kernels are often the same."""


def unit_of(field: str) -> str:
    """The unit that ends the name of a figure, e.g. ``"B/s"`` for ``bandwidth_bytes_per_second``."""
    return next(unit for ending, unit in UNITS.items() if field == ending or field.endswith("_" + ending))


class Record(BaseModel):
    """Frozen, strict, and without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


A_LIST_TOO = BeforeValidator(lambda data: tuple(data) if isinstance(data, list) else data)
Range = Annotated[tuple[float, float], A_LIST_TOO]
Words = Annotated[tuple[str, ...], A_LIST_TOO]


class Figure(Record):
    """One number and what is known about it.

    Attributes:
        value: in the unit that ends the figure's name.
        kind: see `Kind`.
        source: who says so, as text.
        locator: where in the source: page, table, row, commit, conditions.
        uncertainty: relative, 0 to 1 (0: exact by definition or by count).
        range: lowest and highest credible value, in place of ``uncertainty``.
        note: anything a reader should know.
    """

    value: float = Field(ge=0, le=LARGEST_AMOUNT)
    kind: Kind
    source: str = Field(min_length=1)
    locator: str | None = None
    uncertainty: float | None = Field(default=None, ge=0, lt=1)
    range: Range | None = None
    note: str | None = None

    @model_validator(mode="after")
    def _check_range(self) -> Self:
        if self.range is not None:
            if self.uncertainty is not None:
                raise ValueError("an uncertainty and a range; give one of them")
            if not 0 <= self.range[0] <= self.value <= self.range[1] <= LARGEST_AMOUNT:
                raise ValueError(f"the range {list(self.range)} does not contain the value {self.value:g}")
        for end in (self.value, *self.interval):
            if end > LARGEST_AMOUNT or 0 < end < LEAST_AMOUNT:
                raise ValueError(f"it may be {end:g}; expected 0, or {LEAST_AMOUNT:g} to {LARGEST_AMOUNT:g}")
        return self

    @property
    def interval(self) -> tuple[float, float]:
        """Lowest and highest credible value: stated, or the prior of the figure's kind."""
        if self.range is not None:
            return self.range
        if self.uncertainty is not None:
            return self.value * (1 - self.uncertainty), self.value * (1 + self.uncertainty)
        factor = PRIOR_FACTOR[self.kind]
        return self.value / factor, self.value * factor

    @property
    def stated(self) -> bool:
        """Whether the profile states the uncertainty, so that no prior stands in for it."""
        return self.range is not None or self.uncertainty is not None


class Count(Figure):
    """A figure that is a whole number."""

    value: int = Field(ge=0, le=LARGEST_WHOLE)


class Whole(Record):
    """What a file says: figures that divide, or without which there is nothing, may not be 0."""

    @model_validator(mode="after")
    def _check_positive(self) -> Self:
        for path, figure in figures_of(self, ()):
            is_computing = "compute" in path and path[-1] == "active_watts"
            if (path[-1] in _POSITIVE or is_computing) and figure.interval[0] == 0:
                may_be = "is" if figure.value == 0 else "may be"
                raise ValueError(f"{'.'.join(path)} {may_be} 0; expected more")
        return self


def figures_of(record: BaseModel, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Figure]]:
    for name in type(record).model_fields:
        value = getattr(record, name)
        if isinstance(value, Figure):
            yield (*path, name), value
        elif isinstance(value, BaseModel):
            yield from figures_of(value, (*path, name))
        elif isinstance(value, tuple):
            for index, item in enumerate(value):
                if isinstance(item, BaseModel):
                    yield from figures_of(item, (*path, name, str(index)))
