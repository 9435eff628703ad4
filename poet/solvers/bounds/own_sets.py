"""The sets of copies whose own least joules of a step are known, and the cheapest of them."""

from __future__ import annotations

import math
from typing import TypeVar

Copies = TypeVar("Copies")


class OwnSets(dict[Copies, float]):
    """By set of copies, as a search holds it: joules of its page-outs and of the least step beside them."""

    @property
    def least_joules(self) -> float:
        """Of any; infinite where there is none."""
        return min(self.values(), default=math.inf)

    def cheapest(self, below_joules: float) -> Copies | None:
        """The first that takes the least, if that is below so many joules."""
        return min(self, key=self.__getitem__) if self.least_joules < below_joules else None
