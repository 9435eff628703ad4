"""Mixed-integer rounding of the memory rows: how many tensor versions of one size fit together."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator

from poet.solvers.event_model.affine import Affine

_EXACT = 1e-9  # relative, within which a share counts as whole


def packing(rows: Iterable[Affine], *, sizes: int) -> Iterator[Affine]:
    """Σ (⌊b/d⌋ + max(0, (frac(b/d) - f) / (1 - f)))·x ≤ ⌊budget/d⌋, f = frac(budget/d), d a size.

    The mixed-integer rounding of Σ b·x ≤ budget (Nemhauser and Wolsey, 1990): it holds for x of 0s
    and 1s, as all columns of a memory row are in every plan. A budget of 7.5 contents of one size
    keeps 7 of them, where in the linear program the row itself allows half of another. The ``sizes``
    commonest of a row are tried.
    """
    for row in rows:
        terms = {column: size for column, size in row.terms.items() if size}
        budget = -row.constant
        if budget <= 0.0 or min(terms.values(), default=0.0) < 0.0 or sum(terms.values()) <= budget:
            continue
        for unit, _ in Counter(terms.values()).most_common(sizes):
            cut = _rounded(terms, budget, unit)
            if cut is not None:
                yield cut


def _rounded(sizes: dict[int, float], budget: float, unit: float) -> Affine | None:
    whole = math.floor(budget / unit + _EXACT)
    spare = budget / unit - whole
    if not _EXACT < spare < 1.0 - _EXACT:
        return None
    cut = Affine(-float(whole))
    for column, size in sizes.items():
        share = math.floor(size / unit + _EXACT)
        weight = share + max(0.0, (size / unit - share - spare) / (1.0 - spare))
        if weight > _EXACT:
            cut.terms[column] = weight
    return cut if sum(cut.terms.values()) > whole + _EXACT else None
