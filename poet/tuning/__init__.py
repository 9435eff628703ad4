"""The constants that the planner's search is tuned with, each with the reason for its value.

None of them makes an answer wrong: every plan is judged and every bound is proven or confirmed whatever they
are. They decide where time goes, and so which plan and bound a search has when its time is up. A record is
passed along from `poet.solution.SolveOptions`; nothing deep inside reads a global one.

The reasons say why a value is of its size; none is claimed to be the best one. ``python
tests/benchmarks/tuning.py`` measures one field at a time against another value, or switched off where the
field has a value for that. Tolerances that a proof rests
on are no tuning: they stand where the proof is.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from poet.errors import InputError, nearest
from poet.tuning.bounds import (
    CopiesTuning,
    GridsTuning,
    WindowsTuning,
)
from poet.tuning.fitting import (
    FittingTuning,
)


@dataclass(frozen=True, slots=True)
class Tuning:
    """All of them, by the part of the planner that they are of; see there."""

    grids: GridsTuning = field(default_factory=GridsTuning)
    windows: WindowsTuning = field(default_factory=WindowsTuning)
    copies: CopiesTuning = field(default_factory=CopiesTuning)
    fitting: FittingTuning = field(default_factory=FittingTuning)

    def having(self, name: str, value: Any) -> Tuning:
        """The same but for the field ``name``, such as ``fitting.rounds``.

        Raises:
            InputError: there is no such field, or ``value`` is none of it.
        """
        group, tuned = _found(name)
        if _shape(value) != _shape(tuned.default) and value not in ((), tuned.metadata.get("off", ())):
            raise InputError(f"{name}: {value!r} is not of the form of {tuned.default!r}")
        changed = dataclasses.replace(getattr(self, group), **{tuned.name: value})
        return dataclasses.replace(self, **{group: changed})

    def without(self, name: str) -> Tuning:
        """The same with what the field ``name`` is for switched off.

        Raises:
            InputError: there is no such field, or it cannot be switched off.
        """
        tuned = _found(name)[1]
        if "off" not in tuned.metadata:
            raise InputError(f"{name} cannot be switched off; give another value than {tuned.default!r}")
        return self.having(name, tuned.metadata["off"])


DEFAULT = Tuning()
"""Where nobody asks for another."""


def tuned_fields() -> dict[str, dataclasses.Field[Any]]:
    """Every field by its name, such as ``fitting.rounds``."""
    return {
        f"{group.name}.{tuned.name}": tuned
        for group in dataclasses.fields(Tuning)
        for tuned in dataclasses.fields(type(getattr(DEFAULT, group.name)))
    }


def _found(name: str) -> tuple[str, dataclasses.Field[Any]]:
    known = tuned_fields()
    if name not in known:
        raise InputError(f"{name!r} is not a field of the tuning{nearest(name, known)}")
    return name.partition(".")[0], known[name]


def _shape(value: Any) -> Any:
    """Whether it is whole, a number, or a tuple of such."""
    if isinstance(value, tuple):
        return tuple({_shape(part) for part in value})
    return type(value)
