"""The page benchmarks/results/models.json: today's plans, bounds and choices beside those of before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import median

from models_rows import (
    LOW_SECONDS,
    MIB,
    MODELS,
    Before,
    Bound,
    Placed,
    Planned,
    Reached,
    Row,
    Trial,
    Whole,
    before,
    title,
)

from poet.util.units import format_bytes, format_part, format_share

Column = tuple[str, Callable[[str, Before, Row], str]]
"""Its heading, and its cell for a model."""


def _overhead(plan: Planned) -> str:
    """The energy above running once; sums of it differ by their rounding."""
    return plan.status if plan.overhead is None else format_part(round(plan.overhead, 9) + 0.0)


def _moved(plan: Planned) -> str:
    return f"{plan.recomputed_runs} runs, {format_bytes(plan.written_bytes)}"


def _mib(amount: float) -> str:
    return format_bytes(round(amount * MIB))


def _verified(plan: Planned) -> str:
    return ", ".join(plan.verified) or "no plan"


def _bound(bound: Bound) -> str:
    return f"{format_bytes(bound.bytes)}: {bound.maker}"


def _packed_above(then: Before, row: Row) -> str:
    """Of keeping everything above the parameters: by which share packed saves and strips lower it."""
    return format_share(
        (row.keep_packed_bytes - row.parameter_bytes) / (then.keep_everything_mib * MIB - row.parameter_bytes)
        - 1
    )


PLANS: tuple[Column, ...] = (
    ("model", lambda name, _then, _row: title(name)),
    ("budget", lambda _name, _then, row: format_bytes(row.plan.budget_bytes)),
    ("above running once, before", lambda _name, then, _row: format_share(then.overhead_percent / 100)),
    ("now", lambda _name, _then, row: _overhead(row.plan)),
    ("status", lambda _name, _then, row: row.plan.status),
    ("gap", lambda _name, _then, row: "" if row.plan.gap is None else format_share(row.plan.gap)),
    (
        "recomputed, paged out, before",
        lambda _name, then, _row: f"{then.recomputed_runs} runs, {_mib(then.written_mib)}",
    ),
    ("now", lambda _name, _then, row: _moved(row.plan)),
    ("solve s", lambda _name, _then, row: f"{row.plan.solve_seconds:.1f}"),
    ("verify at 1, 2 threads", lambda _name, _then, row: _verified(row.plan)),
    ("budget at 15 %", lambda _name, _then, row: format_bytes(row.middle.budget_bytes)),
    (
        "above running once, before",
        lambda _name, then, _row: (
            "" if then.overhead_at_15_percent is None else format_share(then.overhead_at_15_percent / 100)
        ),
    ),
    ("now", lambda _name, _then, row: _overhead(row.middle)),
    ("budget at 5 %", lambda _name, _then, row: format_bytes(row.tight.budget_bytes)),
    (
        "recomputed, paged out, before",
        lambda _name, then, _row: f"{then.tight_recomputed_runs} runs, {_mib(then.tight_written_mib)}",
    ),
    ("now", lambda _name, _then, row: _moved(row.tight)),
    ("above running once", lambda _name, _then, row: _overhead(row.tight)),
    ("verify at 1, 2 threads", lambda _name, _then, row: _verified(row.tight)),
)
MEMORY: tuple[Column, ...] = (
    ("model", lambda name, _then, _row: title(name)),
    ("parameters", lambda _name, _then, row: format_bytes(row.parameter_bytes)),
    ("keep everything, before", lambda _name, then, _row: _mib(then.keep_everything_mib)),
    ("now", lambda _name, _then, row: format_bytes(row.keep_everything_bytes)),
    ("all saves packed", lambda _name, _then, row: format_bytes(row.keep_packed_bytes)),
    ("of that above parameters", lambda _name, then, row: _packed_above(then, row)),
    ("lower bound, before", lambda _name, then, _row: _mib(then.lower_bound_mib)),
    ("now", lambda _name, _then, row: format_bytes(row.lower_bound_bytes)),
    ("with placement chosen, all ops whole", lambda _name, _then, row: _bound(row.plain_homes_bound)),
    ("with placement chosen, now", lambda _name, _then, row: _bound(row.homes_bound)),
)
CHOICES: tuple[Column, ...] = (
    ("model", lambda name, _then, _row: title(name)),
    ("ops", lambda _name, _then, row: str(row.ops)),
    ("buffers", lambda _name, _then, row: str(row.buffers)),
    ("import s", lambda _name, _then, row: f"{row.import_seconds:.1f}"),
    (
        "gradients in strips",
        lambda _name, _then, row: _short_of(
            row.forms.strips, row.forms.strip_block_bytes, row.forms.strip_whole_bytes
        ),
    ),
    ("ops in slices", lambda _name, _then, row: str(row.forms.slices)),
    ("in-place updates", lambda _name, _then, row: str(row.forms.overwriting)),
    (
        "saves packed",
        lambda _name, _then, row: _short_of(
            row.forms.packed, row.forms.packed_bytes, row.forms.packed_whole_bytes
        ),
    ),
    ("parameters in parts", lambda _name, _then, row: str(row.parts)),
    ("weight gradients", lambda _name, _then, row: str(len(row.trials))),
    ("no strip", lambda _name, _then, row: str(len(row.trials) - len(_tried(row.trials)))),
    ("passed", lambda _name, _then, row: f"{_exact(row.trials)} of {len(_tried(row.trials))}"),
    ("in 16, 8, 4, 2 blocks", lambda _name, _then, row: ", ".join(map(str, _by_blocks(row.trials)))),
)


def _short_of(count: int, short_bytes: int, whole_bytes: int) -> str:
    return f"{count}: {format_bytes(short_bytes)} of {format_bytes(whole_bytes)}" if count else "0"


def _tried(trials: Iterable[Trial]) -> list[Trial]:
    return [trial for trial in trials if trial.blocks is not None]


def _exact(trials: Iterable[Trial]) -> int:
    return sum(bool(trial.blocks) for trial in trials)


def _by_blocks(trials: Sequence[Trial]) -> Iterator[int]:
    for blocks in (16, 8, 4, 2):
        yield sum(trial.blocks == blocks for trial in trials)


def _table(columns: Sequence[Column], rows: Mapping[str, Row], then: Mapping[str, Before]) -> Iterator[str]:
    yield f"| {' | '.join(heading for heading, _ in columns)} |"
    yield f"|---|{'---:|' * (len(columns) - 1)}"
    for name, row in rows.items():
        yield f"| {' | '.join(cell(name, then[name], row) for _, cell in columns)} |"


INTRODUCTION = """\
# Models

Made by `python -m benchmarks models-table`:
the nine `light_*` networks of the onnx package at batch 1 and eight nets
exported from plain torch in training mode (`examples/zoo`, batch 1). All parameters are trained by SGD on
`rpi4b-xnnpack`; a search has {seconds:.0f} s of a core ({low_seconds:.0f} s for the tightest budget) and
one thread. *Before* is the version that ran every op whole
(`examples/models_before.json`): without strips (`docs/techniques.md`), slices, packed saves,
in-place updates
and parameters in parts. **Budgets are the bytes of then**: 40, 15 and 5 % of the way from the lower bound
to keeping everything, as both were before.
"""
PLANS_TEXT = """\
## Plans

*Above running once* is a plan's energy above running every op once, *gap* how far its energy may be above
the best plan's. *Equal* means that loss, predictions, gradients, parameters and states of a step are
those of plain PyTorch bit for bit (`torch.equal`), with one thread and with two. Plans at 15 % were not
verified; those of before are of searches of 6 to 15 s, on the planning problem alone.

A plan has an arena inside its budget, which plans of before did not have: tensors are moved within it, or
the plan is searched again with bytes reserved, where gaps leave no room.
"""
MEMORY_TEXT = """\
## RAM

*Keep everything* and *lower bound* are with parameters kept in RAM. *All saves packed*: with
bits and bytes (`docs/techniques.md`) wherever they can stand for what
backward reads; the
next column compares that with before, both without the parameters. *With placement chosen* is the lower bound
as by `--home auto`, with the op that makes it: all ops whole as by `--gradients keep`, and as now.
"""
WHOLE_TEXT = """\
## The same costs and planner, every op whole

Since the table of before was made, poet's rules for what ops cost have changed (running SqueezeNet's once
took 0.561 J then and takes 1.126 J with every op whole now), an LSTM became an op for each layer (1.448 J
in thousands of ops then, 0.618 J now), and the planner is another. These plans are of today, at the first
budget, with `--gradients keep`: no strips, slices, packed saves or in-place updates. *Energy* is of
a step, transfers included.
"""
REACHED_TEXT = """\
## In the least RAM

Plans in exactly the bytes of the lower bound with placement chosen: their energy above running every op once,
with all transfers, what they page out in a step, the arena in which their steps run, and whether a step is
equal.
"""
PLACED_TEXT = """\
## In the least RAM with an arena

A plan needs its tensors' bytes; an arena needs places for them as well, and what pages wants a buffer of
64 KiB beside it. Budgets tried, in this order: the bound; the bound and a page buffer, in whole pages; 1, 3,
10 and 20 % more than the bound beside the buffer. The first whose plan has an arena. *Measured peak*: the
most that three steps in a process of their own held, arena and page buffer included, as torch's allocator
counts.
"""
CHOICES_TEXT = """\
## What runs in strips, and what passed its trial

Of the graph of the first plan: how many gradients run in strips, and the bytes that exist of them at once
of those that never exist whole; tensors saved as bits or bytes, and what they take of what they would
take whole. *Parameters in parts* are those of `--home auto`. *Weight gradients* are the distinct ones of
weights from 256 KiB. No *strip* is made of what comes from a kernel that cannot make a part of it, as
those of grouped and transposed convolutions and of whole LSTM layers, or of what has a further reader.
The others were run whole and in blocks on random tensors, with one thread and with two: *passed* did
those that give every bit in 2 blocks or more, counted by the most blocks. Fewer run in strips than pass:
what runs so may add 2 % to the step's time.
"""


def document(
    rows: Mapping[str, Row],
    time_limit_seconds: float,
    failed: Mapping[str, str],
    *,
    whole: Mapping[str, Whole] | None = None,
    reached: Mapping[str, Reached] | None = None,
    placed: Mapping[str, Placed] | None = None,
) -> str:
    """The page: of the rows that exist, with the names of those that do not.

    Args:
        rows: by name of the model.
        whole: likewise; the page has no such table where there are none.
        reached: likewise.
        placed: likewise.
        time_limit_seconds: of a search.
        failed: what was said where a row was tried and not made.
    """
    then = before()
    ordered = {name: rows[name] for name in MODELS if name in rows}
    lines = [
        INTRODUCTION.format(seconds=time_limit_seconds, low_seconds=min(LOW_SECONDS, time_limit_seconds)),
        *_missing(ordered, failed),
        *_summary(ordered, then),
        *_whole_summary(ordered, whole or {}),
        "",
        PLANS_TEXT,
        *_table(PLANS, ordered, then),
        "",
        *_whole_lines(ordered, {name: whole[name] for name in MODELS if whole and name in whole}),
        MEMORY_TEXT,
        *_table(MEMORY, ordered, then),
        "",
        *_reached_lines({name: reached[name] for name in MODELS if reached and name in reached}),
        *_placed_lines({name: placed[name] for name in MODELS if placed and name in placed}),
        CHOICES_TEXT,
        *_table(CHOICES, ordered, then),
        "",
        *_trial_lines(ordered),
    ]
    return "\n".join(lines) + "\n"


def _joules(plan: Planned) -> str:
    if plan.once_joules is None or plan.overhead is None:
        return plan.status
    return f"{plan.once_joules * (1 + plan.overhead):.4g} J"


def _whole_summary(rows: Mapping[str, Row], whole: Mapping[str, Whole]) -> Iterator[str]:
    """How many plans take less than those of today with every op whole."""
    pairs = [
        (row.plan.once_joules * (1 + row.plan.overhead), other.once_joules * (1 + other.overhead))
        for name, row in rows.items()
        if name in whole
        and (other := whole[name].plan).once_joules is not None
        and other.overhead is not None
        if row.plan.once_joules is not None and row.plan.overhead is not None
    ]
    if pairs:
        yield (
            "- Beside plans of today with every op whole, at the first budget: "
            f"{sum(now < then for now, then in pairs)} of {len(pairs)} take less energy; "
            f"median {format_share(1 - median(now / then for now, then in pairs))} less."
        )


def _whole_lines(rows: Mapping[str, Row], whole: Mapping[str, Whole]) -> Iterator[str]:
    if not whole:
        return
    yield WHOLE_TEXT
    yield "| model | budget | above running once, every op whole | gap | now | energy, every op whole | now |"
    yield f"|---|{'---:|' * 6}"
    for name, item in whole.items():
        plan, now = item.plan, rows[name].plan if name in rows else None
        cells = (
            title(name), format_bytes(plan.budget_bytes), _overhead(plan),
            "" if plan.gap is None else format_share(plan.gap), _overhead(now) if now else "not made",
            _joules(plan), _joules(now) if now else "not made",
        )  # fmt: skip
        yield f"| {' | '.join(cells)} |"
    yield ""


def _reached_lines(rows: Mapping[str, Reached]) -> Iterator[str]:
    if not rows:
        return
    yield REACHED_TEXT
    yield "| model | budget | status | above running once | paged out | arena | verify at 1, 2 threads |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    for name, row in rows.items():
        plan = row.plan
        arena = format_bytes(row.arena_bytes) if row.arena_bytes else "from the heap"
        cells = (
            title(name), format_bytes(plan.budget_bytes), plan.status, _overhead(plan),
            format_bytes(plan.written_bytes), arena if plan.overhead is not None else "", _verified(plan),
        )  # fmt: skip
        yield f"| {' | '.join(cells)} |"
    yield ""
    missing = [title(name) for name in MODELS if name not in rows]
    if missing:
        yield f"Not made: {', '.join(missing)}."
        yield ""


def _placed_lines(rows: Mapping[str, Placed]) -> Iterator[str]:
    if not rows:
        return
    yield PLACED_TEXT
    yield (
        "| model | lower bound | budget | above the bound | above running once | paged out | arena "
        "| measured peak | verify at 1, 2 threads |"
    )
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    for name, row in rows.items():
        plan = row.plan
        more = plan.budget_bytes / row.bound_bytes - 1
        cells = (
            title(name), format_bytes(row.bound_bytes), format_bytes(plan.budget_bytes),
            format_part(round(more, 9)), _overhead(plan), format_bytes(plan.written_bytes),
            format_bytes(row.arena_bytes) if row.arena_bytes else "none",
            format_bytes(row.peak_bytes) if row.arena_bytes else "", _verified(plan),
        )  # fmt: skip
        yield f"| {' | '.join(cells)} |"
    yield ""
    inside = [name for name, row in rows.items() if 0 < row.peak_bytes <= row.plan.budget_bytes]
    yield f"Measured peaks inside their budgets: {len(inside)} of {len(rows)}."
    yield ""


def _missing(rows: Mapping[str, Row], failed: Mapping[str, str]) -> Iterator[str]:
    missing = [name for name in MODELS if name not in rows]
    if missing:
        told = [title(name) + (f" ({failed[name]})" if name in failed else "") for name in missing]
        yield f"**Not made, {len(missing)} of {len(MODELS)} rows:** {', '.join(told)}."
        yield ""


def _summary(rows: Mapping[str, Row], then: Mapping[str, Before]) -> Iterator[str]:
    """What the rows say together."""
    planned = {name: row for name, row in rows.items() if row.plan.overhead is not None}
    if not planned:
        return
    now = {name: 100 * (row.plan.overhead or 0.0) for name, row in planned.items()}
    worse = [title(name) for name in planned if now[name] > then[name].overhead_percent]
    middle_then = median(then[name].overhead_percent for name in planned)
    compared = [plan for row in rows.values() for plan in (row.plan, row.tight) if plan.verified]
    equal = sum(set(plan.verified) == {"equal"} for plan in compared)
    yield (
        f"- Above running once at the first budget: median {format_share(median(now.values()) / 100)}, "
        f"{format_share(middle_then / 100)} before; "
        f"above before: {', '.join(worse) if worse else 'none'} of {len(planned)}."
    )
    yield f"- {equal} of {len(compared)} verified plans are equal to plain PyTorch at 1 and 2 threads."


def _trial_lines(rows: Mapping[str, Row]) -> Iterator[str]:
    """Of all models together: gradients that differ, and each that was refused."""
    distinct = {trial.digest: trial for row in rows.values() for trial in row.trials}
    tried = _tried(distinct.values())
    counts = ", ".join(
        f"{count} in {blocks}" for blocks, count in zip((16, 8, 4, 2), _by_blocks(tried), strict=True)
    )
    yield (
        f"Of {len(distinct)} gradients that differ in calls or types, of {len(rows)} models, "
        f"{len(tried)} were tried and {_exact(tried)} passed: {counts} blocks."
    )
    refused = [
        f"`{trial.parameter}` of {title(name)} ({format_bytes(trial.bytes)})"
        for name, row in rows.items()
        for trial in row.trials
        if trial.blocks == 0
    ]
    yield f"Other bits in any number of blocks: {', '.join(refused) if refused else 'none'}."
    whole = [
        f"{len(names)} of {title(name)} (`{names[0]}`{' and others' if len(names) > 1 else ''})"
        for name, row in rows.items()
        if (names := [trial.parameter for trial in row.trials if trial.blocks is None])
    ]
    yield f"No strip: {', '.join(whole) if whole else 'none'}."
