"""Levels of the search over copies in turn: one whose bound stands still gives way, and is gone back to."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from poet.clock import WorkClock
from poet.solvers.bounds.copies import _Level, _Turns
from poet.tuning import DEFAULT

TUNING = dataclasses.replace(DEFAULT.copies, patience_seconds=3.0, rise_share=0.01)


class Turns:
    """Of levels with such bounds after each round of a second, of 100 joules that are asked for.

    A level is over after its last bound.
    """

    def __init__(self, *levels: list[float], arcs: int = 1) -> None:
        self.arcs = arcs
        self.clock, self.bounds = WorkClock(), dict[str, Iterator[float]]()
        self.left = {chr(97 + number): len(level) for number, level in enumerate(levels)}
        self.opened = dict[int, str]()
        self.leading = 0.0
        self.turns = _Turns(self.unopened(levels), TUNING, self.clock)

    def unopened(self, levels: tuple[list[float], ...]) -> Iterator[_Level]:
        for number, joules in enumerate(levels):
            program: Any = SimpleNamespace(arcs=self.arcs)
            search: Any = object()
            level = _Level(program, search)
            name = self.opened[id(level)] = chr(97 + number)
            self.bounds[name] = iter(joules)
            yield level

    def rounds(self, most: int = 100) -> str:
        """The levels that rounds were of."""
        names = ""
        while len(names) < most and (level := self.turns.next()) is not None:
            name = self.opened[id(level)]
            names += name
            joules = next(self.bounds[name])
            self.left[name] -= 1
            self.clock.spend(engine_seconds=1.0)
            self.leading = max(self.leading, joules)
            more = self.left[name] > 0
            self.turns.tell(joules, more=more, leading_joules=self.leading, below_joules=100.0)
        return names


def test_a_bound_that_rises_goes_on_and_the_next_level_follows_when_it_is_over() -> None:
    turns = Turns([5.0 * number for number in range(8)], [50.0, 60.0])
    assert turns.rounds() == "aaaaaaaabb"


def test_one_that_stands_still_gives_way_and_never_comes_back_where_the_next_ends() -> None:
    """What follows more tells more: when it is over, nothing below it is left to find."""
    turns = Turns([10.0] * 50, [20.0, 30.0, 40.0])
    assert turns.rounds() == "aaaabbb"


def test_where_both_stand_still_they_go_on_for_longer_the_higher_one_first() -> None:
    turns = Turns([10.0] * 90, [12.0] * 90)
    assert turns.rounds(40) == "aaaa" + "bbbb" + "bbbbbbb" + "aaaaaaa" + "b" * 13 + "aaaaa"


def test_one_that_is_far_behind_waits_until_the_others_are_over() -> None:
    turns = Turns([20.0] * 20, [10.0] * 10)
    assert turns.rounds() == "aaaa" + "bbbb" + "a" * 16 + "b" * 6


def test_a_bound_that_will_soon_lead_is_waited_for() -> None:
    """A master program begins anew: 12 a second reach the 30 that are known."""
    turns = Turns([30.0] * 10, [12.0 * number for number in range(6)], [50.0] * 10)
    assert turns.rounds(14) == "aaaa" + "bbbbbb" + "cccc"


def test_where_memory_is_short_the_lowest_leaves() -> None:
    turns = Turns([30.0] * 90, [25.0] * 90, [28.0] * 90, arcs=int(TUNING.kept_factor * TUNING.most_arcs) // 2)
    assert turns.rounds(26) == "aaaabbbbcccc" + "aaaaaaa" + "ccccccc"
