"""The rows of benchmarks/results/models.json, and where they are kept until the page is made of them.

What plans were and needed before ops ran in strips, slices and parts stands in models_before.json, as the
page showed it then: rows of now are made with the same bytes and stand beside it.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from poet.errors import InputError
from poet.planning.ram_survey import budget_between
from poet.util import codec

MIB = 1 << 20
SHARE = 0.4
"""The first budget's place, from the lower bound (0) to keeping everything (1), as both were before."""
MIDDLE_SHARE = 0.15
"""That of a second plan, which is not verified."""
LOW_SHARE, LOW_SECONDS = 0.05, 5.0
"""That of a third, so tight that it pages as well, and the time for its search; it is verified too."""
LIGHT = (
    "bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet",
    "squeezenet", "vgg19", "zfnet512",
)  # fmt: skip
EXPORTS = ("resnet18", "mobilenet_v2", "bert", "vit", "unet", "lstm", "convnext", "gpt")
MODELS = LIGHT + EXPORTS


@dataclass(frozen=True)
class Before:
    """A model in the version that ran every op whole; energies in per cent above running every op once.

    Attributes:
        keep_everything_mib, lower_bound_mib: parameters kept in RAM.
        budget_mib: at `SHARE`, as the page showed it; `budget_bytes` has the bytes.
        overhead_percent, recomputed_runs, written_mib: of the plan at `SHARE`, after a search of 10 s.
        overhead_at_15_percent: of a plan at `MIDDLE_SHARE`, after 6 to 15 s; ``None``: there was none.
        tight_recomputed_runs, tight_written_mib: of the plan at `LOW_SHARE`, after 5 s.
    """

    keep_everything_mib: float
    lower_bound_mib: float
    budget_mib: float
    overhead_percent: float
    recomputed_runs: int
    written_mib: float
    tight_recomputed_runs: int
    tight_written_mib: float
    overhead_at_15_percent: float | None

    def budget_bytes(self, share: float) -> int:
        """The budget at ``share``: the same bytes then and now."""
        return budget_between(int(self.lower_bound_mib * MIB), int(self.keep_everything_mib * MIB), share)


@dataclass(frozen=True)
class Planned:
    """A plan inside a budget; ``None`` and 0 where none was found, which ``status`` then says.

    Attributes:
        overhead: the plan's energy above running every op once, as a share of the latter, ``once_joules``.
        verified: for one and two threads "equal" or the first difference; empty where nothing was compared.
    """

    budget_bytes: int
    status: str
    gap: float | None = None
    overhead: float | None = None
    recomputed_runs: int = 0
    written_bytes: int = 0
    solve_seconds: float = 0.0
    verified: tuple[str, ...] = ()
    once_joules: float | None = None


@dataclass(frozen=True)
class Bound:
    """The RAM below which no schedule exists, and the op that needs it."""

    bytes: int
    maker: str


@dataclass(frozen=True)
class Forms:
    """How the ops of a graph run and what they save; bytes of what never exists whole, and of what does."""

    strips: int
    strip_whole_bytes: int
    strip_block_bytes: int
    slices: int
    overwriting: int
    packed: int
    packed_whole_bytes: int
    packed_bytes: int


@dataclass(frozen=True)
class Trial:
    """A weight gradient of 256 KiB or more, run whole and in blocks on random tensors.

    Attributes:
        parameter: the first one whose gradient is made so.
        digest: of calls and types, alike for alike gradients of all models.
        bytes: of the gradient.
        blocks: the most of 16, 8, 4 and 2 that give every bit with one and with two threads; 0: none does;
            ``None``: no strip can be made of its ops.
    """

    parameter: str
    digest: str
    bytes: int
    blocks: int | None


@dataclass(frozen=True)
class Row:
    """What one model gave; sizes in bytes, times in seconds.

    Attributes:
        time_limit_seconds: of a search, `LOW_SECONDS` at most for the last plan.
        keep_everything_bytes: with everything that backward reads saved as it is.
        keep_packed_bytes: with whatever can be saved in bits and bytes saved so.
        lower_bound_bytes: parameters kept in RAM.
        homes_bound: parameters at home where the plan likes; ``plain_homes_bound``: with gradients kept.
        parts: parameters in parts, where the plan chooses homes.
        forms: of the graph of the first plan.
    """

    time_limit_seconds: float
    ops: int
    buffers: int
    import_seconds: float
    parameter_bytes: int
    keep_everything_bytes: int
    keep_packed_bytes: int
    lower_bound_bytes: int
    homes_bound: Bound
    plain_homes_bound: Bound
    parts: int
    forms: Forms
    plan: Planned
    middle: Planned
    tight: Planned
    trials: tuple[Trial, ...]


@dataclass(frozen=True)
class Whole:
    """A plan of today with ``--gradients keep``, at the first budget: every op whole, the rest as now.

    It is not verified. Costs of ops have changed since the table of before was made, so shares of running
    once of then and of now differ by more than strips do.
    """

    time_limit_seconds: float
    plan: Planned


@dataclass(frozen=True)
class Reached:
    """A plan in exactly the bytes of the lower bound with placement chosen.

    Attributes:
        plan: verified with one and two threads.
        arena_bytes: in which its steps run; 0: they run from the heap.
    """

    time_limit_seconds: float
    plan: Planned
    arena_bytes: int = 0


@dataclass(frozen=True)
class Placed:
    """The first of a few budgets from the lower bound with placement chosen on whose plan has an arena.

    Attributes:
        bound_bytes: the lower bound.
        plan: verified with one and two threads; of the largest budget tried, where none has an arena.
        arena_bytes: 0: none has one.
        peak_bytes: the most that steps of a process of their own held, arena and page buffer included.
    """

    time_limit_seconds: float
    bound_bytes: int
    plan: Planned
    arena_bytes: int = 0
    peak_bytes: int = 0


Kept = TypeVar("Kept", Row, Whole, Reached, Placed)


def before() -> dict[str, Before]:
    """Of each model, from the file beside this one."""
    path = Path(__file__).with_name("models_before.json")
    data = json.loads(path.read_text(encoding="utf-8"))
    return {name: codec.decode(Before, row, where=f"{path.name}: {name}") for name, row in data.items()}


def keep_row(folder: Path, name: str, row: Row | Whole | Reached | Placed) -> None:
    """Write a row under a temporary name, then rename it: a row is there whole or not at all."""
    replace_text(_path(folder, name, type(row)), json.dumps(codec.encode(row), indent=1) + "\n")


def kept_row(folder: Path, name: str, time_limit_seconds: float, kind: type[Kept]) -> Kept | None:
    """The row of ``name``; ``None``: there is none of this form, made with this time limit."""
    path = _path(folder, name, kind)
    try:
        row = codec.decode(kind, json.loads(path.read_text(encoding="utf-8")), where=path.name)
    except (FileNotFoundError, ValueError, InputError):
        return None
    return row if row.time_limit_seconds == time_limit_seconds else None


def _path(folder: Path, name: str, kind: type[Row | Whole | Reached | Placed]) -> Path:
    return folder / f"{name}{'' if kind is Row else f'-{kind.__name__.lower()}'}.json"


def replace_text(path: Path, text: str) -> None:
    """Write ``text`` under a temporary name in the same folder, then rename it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def title(name: str) -> str:
    """As the page calls a model."""
    return f"light_{name}" if name in LIGHT else name
