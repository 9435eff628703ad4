"""Other ways to choose what to train: by score per byte, and by evolution, as published for small devices.

Both are given a test of whether a set of groups fits, and no bound follows from either.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

Groups = frozenset[int]
Fits = Callable[[Groups], bool]


def by_score_per_byte(shares: Sequence[float], sizes_bytes: Sequence[int], fits: Fits) -> Groups:
    """Groups from the best share per byte down, each taken if it still fits.

    As TinyTrain ranks layers and channels by Fisher information per memory (Kwon et al. 2024).
    """
    taken = Groups()
    for group in sorted(range(len(shares)), key=lambda group: -shares[group] / max(sizes_bytes[group], 1)):
        if fits(taken | {group}):
            taken |= {group}
    return taken


def by_evolution(
    shares: Sequence[float], fits: Fits, *, evaluations: int = 1000, population: int = 50, seed: int = 0
) -> Iterator[Groups]:
    """The sets that fit of an evolutionary search, the best first.

    Tournaments of two, uniform crossover, one mutation on average; what does not fit loses. As the sparse
    updates of MCUNetV3 are found (Lin et al. 2022).

    Args:
        shares: per group its contribution.
        fits: whether a set does; each call is an evaluation.
        evaluations: in all.
        population: sets that are kept from one generation to the next.
        seed: of every random choice.
    """
    rng, every = random.Random(seed), range(len(shares))
    found: dict[Groups, float] = {}

    def value(groups: Groups) -> float:
        share = sum(shares[group] for group in groups)
        if groups not in found:
            found[groups] = share if fits(groups) else -share
        return found[groups]

    def child(one: Groups, other: Groups) -> Groups:
        mixed = {group for group in every if group in (one if rng.random() < 0.5 else other)}
        return Groups(mixed ^ {group for group in every if rng.random() < 1 / len(shares)})

    alive = [Groups(g for g in every if rng.random() < rng.random()) for _ in range(population)]
    alive.sort(key=value, reverse=True)
    idle = 0
    while len(found) < evaluations and idle < evaluations:
        parents = [max(rng.sample(alive, 2), key=value) for _ in range(2)]
        born = child(parents[0], parents[1])
        idle = idle + 1 if born in found else 0
        value(born)
        alive = sorted({*alive, born}, key=value, reverse=True)[:population]
    yield from sorted((groups for groups, share in found.items() if share > 0), key=value, reverse=True)
