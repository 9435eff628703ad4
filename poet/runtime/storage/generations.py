"""Two generations of a saved state: the newest, and the one before it.

A save replaces the file at its path as a whole, so that a power cut leaves the old one or the new one. What
it cannot prevent is a file that the storage damages later. Then the one before it is still there.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from poet.errors import PlanError, PoetError
from poet.plans.plan_file import PlanFile
from poet.runtime.storage.state import Saved

_log = logging.getLogger("poet.runtime")


def previous_of(path: str | Path) -> Path:
    """Where the generation before that at ``path`` stands."""
    path = Path(path)
    return path.with_name(f"{path.name}.previous")


class Generations:
    """What a training has saved where, so that only a state known to be good becomes the previous one."""

    def __init__(self, resumed_from: Path | None) -> None:
        self._intact = None if resumed_from is None else resumed_from.absolute()

    def before_save(self, path: Path) -> None:
        """What is at ``path`` becomes the previous generation, if this training saved it or began with it.

        Raises:
            PoetError: the folder cannot be written.
        """
        if self._intact == path.absolute() and path.exists():
            _keep_as_previous(path)

    def after_save(self, path: Path) -> None:
        """The newest state is at ``path``; one of another training beside it is none before it."""
        previous = previous_of(path).absolute()
        if self._intact not in (path.absolute(), previous):
            previous.unlink(missing_ok=True)
        self._intact = path.absolute()


def _keep_as_previous(path: Path) -> None:
    """By a second name at first, so that there is a good state under either name at every instant."""
    previous = previous_of(path)
    second_name = path.with_name(f".{previous.name}-{os.getpid()}")
    try:
        try:
            second_name.unlink(missing_ok=True)
            os.link(path, second_name)
        except OSError:  # file systems of memory cards have no hard links
            path.replace(previous)
        else:
            second_name.replace(previous)
    except OSError as cause:
        raise PoetError(f"{previous}: cannot be written ({cause.strerror or cause})") from None


def open_saved(path: str | Path, plan: PlanFile, *, seed: int | None = None) -> Saved:
    """The state at ``path``; where that cannot be used, the generation before it, and the log says so.

    Raises:
        PlanError: as of `Saved`, about the file at ``path``.
    """
    try:
        return Saved(path, plan, seed=seed)
    except PlanError as error:
        previous = previous_of(path)
        if not previous.exists():
            raise
        try:
            saved = Saved(previous, plan, seed=seed)
        except PlanError:
            raise error from None
        _log.warning(
            "poet: %s; going on from the generation before it, %s, after step %d",
            error,
            previous,
            saved.steps,
        )
        return saved
