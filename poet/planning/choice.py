"""What a plan may choose to train: groups of parameters with scores, as files and from Python.

A file is TOML, one table a group::

    [[group]]
    train = ["features.3.*"]  # patterns as for --train
    channels = "0:16"         # optional: these output channels, rows of dim 0 of the parameters named
    score = 0.12              # contribution to learning, from 0 up, in any unit

Only the share of a group's score in the sum of all is used.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from poet.errors import InputError
from poet.util import codec
from poet.util.reading import LARGEST_AMOUNT, read_regular, shown

MAX_FILE_BYTES = 1 << 22
MOST_GROUPS = 4096
"""In one file: each is a decision of the search."""

_CHANNELS = re.compile(r"(\d{1,9}):(\d{1,9})")


@dataclass(frozen=True, slots=True)
class Group:
    """Parameters that are trained together or not at all.

    Attributes:
        train: patterns of parameter names, as for ``--train``.
        score: contribution to learning, at least 0; any unit.
        channels: ``"0:16"``: only rows 0 to 15 of dim 0 of each; ``None``: all.

    Raises:
        InputError: no patterns, no block of channels, or no score.
    """

    train: tuple[str, ...]
    score: float
    channels: str | None = None

    def __post_init__(self) -> None:
        if not self.train or not all(self.train):
            raise InputError("a group needs patterns of parameters: train = ['features.3.*']")
        if not (math.isfinite(self.score) and 0.0 <= self.score <= LARGEST_AMOUNT):
            raise InputError(f"{self.words}: score {self.score!r} is not a number from 0 up")
        found = _CHANNELS.fullmatch(self.channels or "0:1")
        if found is None or int(found[1]) >= int(found[2]):
            raise InputError(f"channels {shown(self.channels)} is no block; write channels = '0:16'")

    @property
    def patterns(self) -> tuple[str, ...]:
        """What trains this group by ``--train``: ``features.3.*[0:16]``."""
        block = "" if self.channels is None else f"[{self.channels}]"
        return tuple(f"{pattern}{block}" for pattern in self.train)

    @property
    def words(self) -> str:
        """Its patterns in a line."""
        return " ".join(self.patterns)


@dataclass(frozen=True, slots=True)
class Scores:
    """The groups of a file, at least one of which has a score above 0.

    Raises:
        InputError: there is none, or there are too many.
    """

    group: tuple[Group, ...]

    def __post_init__(self) -> None:
        if not any(group.score > 0 for group in self.group):
            raise InputError("no group has a score above 0, so there is nothing to choose by")
        if len(self.group) > MOST_GROUPS:
            raise InputError(f"{len(self.group)} groups are too many; join some, {MOST_GROUPS} are possible")

    @property
    def shares(self) -> tuple[float, ...]:
        """Per group its score's share of the sum."""
        whole = math.fsum(group.score for group in self.group)
        return tuple(group.score / whole for group in self.group)

    @staticmethod
    def of(given: str | Path | Scores | Iterable[Group]) -> Scores:
        """From what ``choose=`` takes: a file's path, or groups.

        Raises:
            InputError: it is not usable.
        """
        if isinstance(given, Scores):
            return given
        return Scores.load(given) if isinstance(given, str | Path) else Scores(tuple(given))

    @staticmethod
    def load(path: str | Path) -> Scores:
        """The scores in the file at ``path``.

        Raises:
            InputError: it cannot be read, or is no file of scores.
        """
        name = Path(path).name
        try:
            data: Any = tomllib.loads(read_regular(path, most_bytes=MAX_FILE_BYTES).decode("utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise InputError(f"{path}: not a readable TOML file of scores ({why or 'nested'})") from None
        if not isinstance(data.get("group"), list):
            raise InputError(f"{name}: it has no [[group]] with train and score")
        try:
            return codec.decode(Scores, data, where=name)
        except InputError as error:
            said = str(error)
            raise InputError(said if said.startswith(name) else f"{name}: {said}") from None

    def to_toml(self) -> str:
        """The file's text; `load` gives equal scores back."""
        lines = []
        for group in self.group:
            # a JSON text is a TOML text but for DEL, which TOML wants escaped
            train = json.dumps(group.train, ensure_ascii=False).replace("\x7f", "\\u007f")
            lines += ["[[group]]", f"train = {train}"]
            lines += [] if group.channels is None else [f'channels = "{group.channels}"']
            lines += [f"score = {float(group.score)!r}", ""]
        return "\n".join(lines)
