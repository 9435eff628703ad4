"""What page-ins take in each column of a `RamProgram`, each of which is a set of copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from poet.solvers.bounds.followed import Followed
from poet.solvers.bounds.ram_stages import CAP, Values


def page_in_units(of: Followed, free: Sequence[int], units: Callable[[float], int]) -> Values:
    """Of followed contents, for several sets of copies, a column each; `CAP` where one has no copy.

    Rows are as `page_in_row` says.

    Args:
        of: what is followed.
        free: the sets, as bits: contents whose page-outs are paid for.
        units: of joules, rounded down.
    """
    many = len(of.followed)
    found = np.full((2 * many, len(free)), CAP, dtype=np.int32)
    lasts = {first: last for first, last, _ in of.homes}
    for content, joules in enumerate(of.page_in):
        last = lasts.get(content)
        copies = 1 << content | (0 if last is None else 1 << last)
        # what no op updates has a copy wherever it is at home
        paid = [last == content or bool(one & copies) for one in free]
        if joules < np.inf:
            found[content, paid] = units(joules)
    for first, last, _ in of.homes:
        in_storage = [bool(one >> last & 1) for one in free]
        found[many + first] = found[first]
        if of.page_in[first] < np.inf:
            found[many + first, in_storage] = 0
    return found


def page_in_row(of: Followed, number: int, content: int) -> int:
    """Of a content's page-in, in a stage or the first that it stands for: another where its tensor's home is
    chosen, up to the first use.
    """
    first_use = {first: use for first, _, use in of.homes}
    return content + len(of.followed) if number <= first_use.get(content, -1) else content


def copies_read(of: Followed, content: int, free: int) -> int:
    """The copies, as bits, that a page-in of a followed content needs, of those in ``free``."""
    for first, last, _ in of.homes:
        if content == first and (first == last or free >> last & 1):
            return free & 1 << last
    return 1 << content
