"""Which contents the search over copies follows: more and more of them, as far as there are few enough sets.

- By size, those of about one size together, while that makes few transitions.
- Then what the cheapest step that is known has no room for (`poet.solvers.bounds.overfull`): a few contents
  of a size tell it from plans where all of them would be too many.
- Contents that a rerun can make are followed from there to their next read alone, which makes fewer sets.
- Where such a step has room, all of the next size.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from poet.solvers.bounds.followed import Followed
from poet.solvers.bounds.overfull import overfull, to_follow
from poet.solvers.bounds.ram_paths import CheapestStep
from poet.solvers.bounds.ram_program import RamProgram, TooLarge
from poet.solvers.bounds.residents import residents, substitutes, too_dear, with_homes
from poet.solvers.instance.instance import Instance

Stages = frozenset[int]


class Levels:
    """The programs of one search, each of which follows all that those before it follow, and more.

    Args:
        instance: what to bound.
        budget_bytes: of RAM.
        below_joules: overhead of the best plan: what no plan below pages, and no rerun makes, is not
            followed: where it is, is known.
        finished: asked while a program is made; whether to stop.
        seconds_left: for the search; a program must take little of it.

    Attributes:
        least_bytes: of the smallest size of which all is followed; the largest where nothing is.
        step: the cheapest that the last program's search knows; to be set before it is asked for more.
    """

    def __init__(
        self,
        instance: Instance,
        budget_bytes: int,
        below_joules: float,
        finished: Callable[[], bool],
        seconds_left: Callable[[], float] = lambda: math.inf,
    ) -> None:
        self.instance, self.budget_bytes, self.below_joules = instance, budget_bytes, below_joules
        self.finished, self.seconds_left = finished, seconds_left
        self.tuning = instance.tuning.copies
        self.step: CheapestStep | None = None
        self._program_now: RamProgram | None = None
        self._known = too_dear(instance, below_joules)
        self._always: Stages = frozenset(range(len(instance.tasks) + 1))
        self._followed = dict[int, Stages]()  # by content, where
        self._lasting = self._in_all_or_none()
        self._sizes = deque(_levels(instance))
        self.least_bytes = max((content.bytes for content in instance.contents), default=0)

    def programs(self) -> Iterator[RamProgram]:
        """See the module's docstring; ends where there are too many sets."""
        while (program := self._following_one()) is not None:
            self._take(program)
            yield program

    def _in_all_or_none(self) -> frozenset[int]:
        """What is followed in all stages or in none: residents, and what may be there in place of one."""
        if not self.tuning.in_windows:
            return frozenset(range(len(self.instance.contents)))
        found = residents(self.instance)
        others = substitutes(self.instance, (), found).values()
        return with_homes(self.instance, {*found, *(c for one in others for c in one.stands_for)})

    def _following_one(self) -> RamProgram | None:
        return self._quick() or self._roomier() or self._whole()

    def _quick(self) -> RamProgram | None:
        """All of the next size, or of what has no room as much as can be, in few transitions."""
        quick_arcs = min(self.tuning.most_quick_arcs, self.tuning.most_arcs)
        new = self._next_size()
        if not new:
            return None
        return self._program(new, quick_arcs) or self._with_most(self._without_room(), quick_arcs)

    def _roomier(self) -> RamProgram | None:
        """Following what the cheapest step has no room for, in not many more transitions than before."""
        groups = self._without_room()
        if not groups or self._program_now is None:
            return None
        arcs = min(int(self.tuning.room_factor * self._program_now.arcs), self.tuning.most_arcs)
        return self._with_most(groups, arcs) or self._program(groups[0], self.tuning.most_arcs)

    def _whole(self) -> RamProgram | None:
        """All of the next size."""
        new = self._next_size()
        return self._program(new, self.tuning.most_arcs) if new else None

    def _without_room(self) -> list[dict[int, Stages]]:
        """What the cheapest step has no room for, in groups, and where."""
        if self._program_now is None or self.step is None or self.tuning.room_factor == 0.0:
            return []
        contents = self.instance.contents
        able = frozenset(content.number for content in contents) - self._known - self._wholly()
        sizes, lives = [content.bytes for content in contents], self._lives(able & self._lasting)
        for waiting in (False, True):
            found = [
                one._replace(contents=tuple(c for c in one.contents if c in able))
                for one in overfull(self.instance, self._program_now, self.step.path, waiting=waiting)
            ]
            groups = to_follow(found, sizes, lives)
            if groups:
                return [
                    {c: self._always if c in self._lasting else stages for c, stages in group.items()}
                    for group in groups
                ]
        return []

    def _next_size(self) -> dict[int, Stages]:
        """What is not followed yet of the next size of which there is something."""
        while self._sizes and not self._of_size(self._sizes[0]):
            self.least_bytes = self._sizes.popleft()
        return self._throughout(self._of_size(self._sizes[0]) if self._sizes else ())

    def _throughout(self, contents: Iterable[int]) -> dict[int, Stages]:
        """These, in all stages."""
        return dict.fromkeys(contents, self._always)

    def _wholly(self) -> frozenset[int]:
        """What is followed in all stages."""
        return frozenset(c for c, stages in self._followed.items() if stages == self._always)

    def _take(self, program: RamProgram) -> None:
        """``program`` is the last one."""
        windows = program.of.windows
        self._followed = {c: frozenset(windows.get(c, self._always)) for c in program.of.number}
        self._program_now, self.step = program, None
        self._next_size()

    def _of_size(self, size: int) -> frozenset[int]:
        """What is not followed yet of at least ``size`` bytes."""
        left_out = self._known | self._wholly()
        return frozenset(c.number for c in self.instance.contents if c.bytes >= size) - left_out

    def _lives(self, contents: Collection[int]) -> dict[int, int]:
        """Of each, the stages in which it exists."""
        of = self._following(self._throughout(contents))
        return {
            content: sum(alive >> place & 1 for alive in of.alive) for content, place in of.number.items()
        }

    def _with_most(self, groups: Iterable[Mapping[int, Stages]], most_arcs: int) -> RamProgram | None:
        """The program that follows the most of ``groups`` from the first on, by bisection; ``None``: none."""
        groups, none = list(groups), Stages()
        able, unable, best = 0, len(groups) + 1, None
        while able + 1 < unable:
            middle = (able + unable) // 2
            more = dict[int, Stages]()
            for group in groups[:middle]:
                more.update({c: more.get(c, none) | stages for c, stages in group.items()})
            found = self._program(more, most_arcs)
            able, unable = (able, middle) if found is None else (middle, unable)
            best = found or best
        return best

    def _following(self, where: Mapping[int, Stages]) -> Followed:
        contents = with_homes(self.instance, where)
        windows = {c: stages for c, stages in where.items() if stages != self._always}
        sizes = [content.bytes for content in self.instance.contents]
        least = min((sizes[content] for content in contents), default=1)
        others = frozenset(number for number, size in enumerate(sizes) if size >= least) - contents
        return Followed(self.instance, least, self.budget_bytes, left_out=others, windows=windows)

    def _program(self, more: Mapping[int, Stages], most_arcs: int) -> RamProgram | None:
        """Following ``more`` than the last one; ``None``: it is too large."""
        where = self._throughout(())
        for content in {*self._followed, *more}:
            where[content] = self._followed.get(content, Stages()) | more.get(content, Stages())
        of, tuning = self._following(where), self.tuning
        timely = tuning.pass_share * self.seconds_left() / (tuning.columns * tuning.arc_seconds)
        most_arcs = int(min(most_arcs, timely))
        try:
            return RamProgram(
                of,
                most_joules=self.below_joules - of.fixed_joules,
                most_arcs=most_arcs,
                parts=tuning.parts,
                finished=self.finished,
            )
        except TooLarge:
            return None


def _levels(instance: Instance) -> Iterator[int]:
    """Bytes of the smallest content that each level follows, those of about one size together."""
    sizes = sorted({content.bytes for content in instance.contents if content.bytes}, reverse=True)
    for size, following in zip(sizes, [*sizes[1:], 0], strict=True):
        if following * instance.tuning.copies.alike_factor <= size:
            yield size
