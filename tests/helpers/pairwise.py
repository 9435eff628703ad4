"""Few combinations of many options, in which every two options that fit together occur together."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

Case = dict[str, Any]


def covering(
    axes: Mapping[str, Sequence[Any]],
    fits: Callable[[Case], bool] = lambda case: True,
    *,
    crossed: Callable[[str, str], bool] = lambda one, other: True,
    tries: int = 20,
) -> list[Case]:
    """Cases of one value per axis, greedily few (Cohen et al. 1997, "The AETG system").

    Args:
        axes: the values of each axis by its name.
        fits: whether values, not yet of every axis, may occur together.
        crossed: whether every two values of two axes occur together; in any case each value occurs.
        tries: after so many vain ones a pair counts as one that cannot be.
    """
    rng = random.Random(0)
    wanted = [
        ((one, a), (other, b))
        for one, other in combinations(axes, 2)
        if crossed(one, other)
        for a in axes[one]
        for b in axes[other]
    ]
    wanted += [((name, value),) * 2 for name, values in axes.items() for value in values]
    left = dict.fromkeys(pair for pair in wanted if fits(dict(pair)))

    def gain(case: Case, name: str, value: Any) -> int:
        order = list(axes)
        pairs = (
            (item, (name, value)) if order.index(item[0]) < order.index(name) else ((name, value), item)
            for item in case.items()
        )
        return sum(pair in left for pair in pairs) + (((name, value),) * 2 in left)

    def filled(case: Case) -> Case | None:
        for name in rng.sample(list(axes), len(axes)):
            if name in case:
                continue
            values = [value for value in axes[name] if fits({**case, name: value})]
            if not values:
                return None
            rng.shuffle(values)
            case[name] = max(values, key=lambda value: gain(case, name, value))
        return {name: case[name] for name in axes}

    found: list[Case] = []
    while left:
        pair = next(iter(left))
        case = next(filter(None, (filled(dict(pair)) for _ in range(tries))), None)
        left.pop(pair)
        if case is None:
            continue
        found.append(case)
        for covered in (*combinations(case.items(), 2), *((item,) * 2 for item in case.items())):
            left.pop(covered, None)
    return found
