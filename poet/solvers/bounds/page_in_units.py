"""What page-ins take in each column of a `RamProgram`, each of which is a set of copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from poet.solvers.bounds.followed import Followed
from poet.solvers.bounds.ram_stages import CAP, Values


class PageInUnits:
    """Of followed contents, for several sets of copies.

    Args:
        of: what is followed.
        free: the sets, as bits: contents whose page-outs are paid for.
        units: of joules, rounded down.
        page_outs_too: each page-in is charged with a page-out as well.
    """

    def __init__(
        self, of: Followed, free: Sequence[int], units: Callable[[float], int], *, page_outs_too: bool
    ) -> None:
        self._first_use = {first: use for first, _, use in of.homes}
        self._paid = dict[int, Values]()  # by content that has a copy in any
        lasts = {first: last for first, last, _ in of.homes}
        for content, joules in enumerate(of.page_in):
            last = lasts.get(content)
            if last == content:  # no op updates it: it has a copy wherever it is at home
                paid = [True] * len(free)
            else:
                copies = 1 << content | (0 if last is None else 1 << last)
                paid = [bool(one & copies) for one in free]
            joules += of.page_out[content] if page_outs_too else 0.0
            if joules < np.inf and any(paid):
                self._paid[content] = np.where(paid, units(joules), CAP).astype(np.int32)
        self._first = dict[int, Values]()  # where a home is chosen, up to the first use
        for first, last, _ in of.homes:
            if first in self._paid:
                in_storage = [one >> last & 1 for one in free]
                self._first[first] = np.where(in_storage, 0, self._paid[first]).astype(np.int32)

    def at(self, number: int, content: int) -> Values | None:
        """In a stage, or the first that it stands for, per column; ``None``: it has no copy in any."""
        if content in self._first and number <= self._first_use[content]:
            return self._first[content]
        return self._paid.get(content)


def copies_read(of: Followed, content: int, free: int) -> int:
    """The copies, as bits, that a page-in of a followed content needs, of those in ``free``."""
    for first, last, _ in of.homes:
        if content == first and (first == last or free >> last & 1):
            return free & 1 << last
    return 1 << content
