"""What takes RAM though a search over sets does not follow it: residents; and what homes to choose are."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from poet.solvers.instance.candidates import last_use_stages, worth_rerunning
from poet.solvers.instance.instance import Content, Instance


@dataclass(frozen=True, slots=True)
class Home:
    """Of a tensor of which the plan chooses whether it is at home in RAM or in storage.

    At home in RAM it is there when the step begins and when it ends. At home in storage its last content is
    written, and its first one, which has a copy, is read before the first run that needs it: a *copy* of the
    last content stands for that. It is taken to be one more freedom: with it, the first content may be in RAM
    from the start as well, so that a tensor at home in RAM may have it too, whose last content leaves and
    comes back for the end.

    Attributes:
        contents: of the tensor, in order; only one where no op updates it.
        stored_joules: of the copy of the last content: its page-out, where it is another than the first, and
            a page-in of the first one, which is free then up to its first use. Where something reads the
            last one besides, a plan may have the copy without that page-in, and it is not counted.
        first_use: stage of the first run that reads the first content.
    """

    contents: tuple[int, ...]
    stored_joules: float
    first_use: int


def homes(instance: Instance) -> dict[int, Home]:
    """By first content, those that the plan chooses."""
    contents, found = instance.contents, dict[int, Home]()
    read = {content for task in instance.tasks for content in (*task.reads, *task.rerun_reads)}
    for last in contents:
        if not last.comes_home or last.home is None:
            continue
        first = contents[last.home]
        use = min((task.number for task in instance.tasks if first.number in task.reads), default=-1)
        joules = 0.0 if last is first else page_out_joules(last)
        if use >= 0 and first.page_in is not None and (last is first or last.number not in read):
            joules += first.page_in.joules
        found[first.number] = Home(tuple(range(first.number, last.number + 1)), joules, use)
    return found


@dataclass(frozen=True, slots=True)
class Resident:
    """A content that is not followed, and that stays in RAM until the last first run that reads it, unless it
    is paged, which costs something: no rerun makes it, or none does any more.

    The first content of a tensor whose home is chosen stands for all of them, until the end of the step.

    Attributes:
        bytes: that it takes.
        birth, last: it is in RAM in the stages after ``birth`` up to ``last``.
        away_joules: of a page-out and of the page-in that brings it back, as something needs it at last;
            ``None``: it can be paged in no plan. Where a tensor's home is chosen: the least joules with which
            one of its contents may leave RAM.
        stands_for: other contents, one of which may be there in its place; what frees it is a copy of any.
    """

    bytes: int
    birth: int
    last: int
    away_joules: float | None
    stands_for: tuple[int, ...] = ()


def residents(instance: Instance, followed: Collection[int] = ()) -> dict[int, Resident]:
    """By content, those that are not among ``followed``.

    What a rerun makes is one from the last stage on in which that can run: predictions, once the weights of
    the last layer are updated.
    """
    worth, last, found = worth_rerunning(instance), _last_needs(instance), dict[int, Resident]()
    for first, home in homes(instance).items():
        left = [_left_joules(instance, instance.contents[content]) for content in home.contents[:-1]]
        joules = min(home.stored_joules, *left, math.inf)
        if first not in followed and joules > 0.0:
            found[first] = Resident(instance.contents[first].bytes, -1, len(instance.tasks), joules)
    for content in instance.contents:
        if content.number in followed or content.number not in last or content.home is not None:
            continue
        if _is_stored(content):
            continue
        since = content.birth
        if content.producer in worth:
            since = max(since, instance.tasks[content.producer or 0].last_rerun_stage)
        away_joules = _away_joules(content)
        if away_joules != 0.0 and since < last[content.number]:
            found[content.number] = Resident(content.bytes, since, last[content.number], away_joules)
    return found


def _left_joules(instance: Instance, content: Content) -> float:
    """Of a version that an update ends: of its page-out, and of its page-in where that update reads it."""
    returns = content.death < len(instance.tasks) and content.number in instance.tasks[content.death].reads
    page_in_joules = content.page_in.joules if returns and content.page_in is not None else 0.0
    return page_out_joules(content) + page_in_joules


def substitutes(
    instance: Instance, followed: Collection[int], there: Mapping[int, Resident]
) -> dict[int, Resident]:
    """By content, those of ``there`` that stay longer: what a rerun makes of them alone is needed at last.

    Where the loss is to be there at the end, either it stays or the targets do, of which it is made again: in
    the stages in which the targets are not read any more one of both is in RAM, unless one is paged. They
    are one resident, since a plan that pages the targets has both for one price.
    """
    last, found, used = _last_needs(instance), dict[int, Resident](), set[int]()
    worth, contents = worth_rerunning(instance), instance.contents
    for task in instance.tasks:
        if any(output in followed for output in task.outputs):
            used.update(task.rerun_reads)  # such a rerun counts what it reads by itself
    for number, until in last.items():
        content = contents[number]
        if number in followed or number in there or content.producer not in worth or _is_stored(content):
            continue
        task = instance.tasks[content.producer or 0]
        if any(output in followed for output in task.outputs):
            continue  # a rerun for those makes it as well
        for source in task.rerun_reads:
            own = there.get(source)
            is_open = contents[source].producer in worth or contents[source].home is not None
            if own is None or source in used or is_open:
                continue
            prices = [price for price in (own.away_joules, _away_joules(content)) if price is not None]
            in_time = content.birth <= own.last < until
            if in_time and content.bytes >= own.bytes and 0.0 not in prices:
                least_joules = min(prices, default=None)
                found[source] = Resident(own.bytes, own.birth, until, least_joules, (number,))
                used.add(source)
                break
    return found


def _last_needs(instance: Instance) -> dict[int, int]:
    """By content, the last first run that reads it, or the end of the step where it is to be in RAM then."""
    end = len(instance.tasks)
    last = {content.number: end for content in instance.contents if content.ends_in_ram}
    for task in instance.tasks:
        last.update((c, task.number) for c in task.reads if last.get(c, -1) < task.number)
    return last


def _is_stored(content: Content) -> bool:
    """Whether it has a copy in storage, or must have one, for nothing."""
    appears = content.birth < 0 and not content.starts_in_ram
    return content.ends_stored or content.starts_stored or appears


def _away_joules(content: Content) -> float | None:
    """Of its page-out and of a page-in; 0 where that writes nothing; ``None``: it can be paged in no plan."""
    if content.page_in is None or content.page_out is None:
        return None
    page_out = page_out_joules(content)
    return page_out + content.page_in.joules if page_out > 0.0 else 0.0


def too_dear(instance: Instance, below_joules: float) -> frozenset[int]:
    """Contents that stay in RAM from birth to their last read, in every plan of less overhead than this.

    Nothing makes them again, and a page-out and a page-in take ``below_joules`` or more. What a rerun may
    read after the last first run that does is not among them.
    """
    last_use = last_use_stages(instance, worth_rerunning(instance))
    return with_homes(
        instance,
        (
            number
            for number, one in residents(instance).items()
            if (one.away_joules is None or one.away_joules >= below_joules)
            and one.birth == instance.contents[number].birth
            and one.last >= min(last_use[number], instance.contents[number].death)
        ),
    )


def with_homes(instance: Instance, contents: Iterable[int]) -> frozenset[int]:
    """``contents``, and all others of each tensor among them whose home is chosen."""
    found, chosen = set(contents), homes(instance)
    for content in tuple(found):
        home = instance.contents[content].home
        if home is not None:
            found.update(chosen[home].contents)
    return frozenset(found)


def page_out_joules(content: Content) -> float:
    """Of a content's page-out; 0 where it needs none, or can have none."""
    return 0.0 if content.starts_stored or content.page_out is None else content.page_out.joules
