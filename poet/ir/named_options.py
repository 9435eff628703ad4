"""``NAME:option=value,...``: how losses, optimizers and schedules of learning rates are written."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from poet.errors import InputError


def options_of(
    where: str, name: str, written: str, known: Collection[str], error: type[InputError] = InputError
) -> Iterator[tuple[str, str]]:
    """Each option of ``option=value,...`` with its value, which is empty where none is written.

    Args:
        where: what a message begins with, such as ``loss 'mse:dim=1'``.
        name: what has the options.
        written: what stands behind the colon.
        known: the options that ``name`` has.
        error: that is raised.

    Raises:
        InputError: an option is not ``known``, or is given twice.
    """
    seen = set[str]()
    for item in written.split(","):
        option, _, value = item.partition("=")
        if option not in known:
            has = f"the options of {name} are: {', '.join(known)}" if known else f"{name} has no options"
            raise error(f"{where}: {option!r} is not an option; {has}")
        if option in seen:
            raise error(f"{where} gives {option} twice")
        seen.add(option)
        yield option, value
