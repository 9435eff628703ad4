"""Two plans side by side: what changed in the question, in the figures, and tensor by tensor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from poet.plans.training_plan import Plan
from poet.problem.solution import SAYS_FILE
from poet.report import DASH, FORMATS, Column, listed, page_table, table
from poet.report.html import PageContent, render
from poet.report.html.charts import ACCENT, QUIET, Spec, ladder
from poet.report.schedule_rows import tensor_fates
from poet.util.units import format_bytes, format_count, format_more, format_share

ABSENT = "absent"
"""The decision on a tensor that the other plan does not have."""


@dataclass(frozen=True, slots=True)
class Term:
    """Something that was asked for, in words, where the plans differ."""

    what: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Change:
    """A figure of both plans.

    Attributes:
        what: the figure's name.
        unit: of the amounts: ``B``, ``s``, ``J`` or empty for a count.
        before, after: of one step; ``None``: not stated.
    """

    what: str
    unit: str
    before: float | None
    after: float | None

    @property
    def share(self) -> float | None:
        """The change as a part of what it was."""
        if self.before is None or self.after is None or self.before == 0:
            return None
        return self.after / self.before - 1.0


@dataclass(frozen=True, slots=True)
class Move:
    """A tensor that the plans treat differently; decisions as in `poet.report.schedule_rows`, or `ABSENT`."""

    tensor: str
    role: str
    bytes: int
    before: str
    after: str
    before_words: str
    after_words: str


@dataclass(frozen=True, slots=True)
class PlanDiff:
    """What changed from one plan to another.

    Attributes:
        before, after: names of the plans.
        terms: what was asked differently.
        changes: the figures, changed or not.
        moves: tensors treated differently, largest first.
        same_tensors: how many are treated alike.
    """

    before: str
    after: str
    terms: tuple[Term, ...]
    changes: tuple[Change, ...]
    moves: tuple[Move, ...]
    same_tensors: int


def diff_plans(before: Plan, after: Plan, *, names: tuple[str, str]) -> PlanDiff:
    """What changed from ``before`` to ``after``, which need not be plans of one model."""
    moves, same = _moves(before, after)
    return PlanDiff(*names, tuple(_terms(before, after)), tuple(_changes(before, after)), moves, same)


def _terms(before: Plan, after: Plan) -> Iterator[Term]:
    for what, words in _TERMS:
        old, new = words(before), words(after)
        if old != new:
            yield Term(what, old, new)


def _or_none(amount: float | None, unit: str) -> str:
    return "none" if amount is None else FORMATS[unit](amount)


def _allowed(allowed: bool) -> str:
    return "allowed" if allowed else "not allowed"


def _pins(plan: Plan) -> str:
    pins = plan.request.limits.pins
    chosen = {
        "keep": pins.keep,
        "recompute": pins.recompute,
        "page": pins.page,
        "never page": pins.never_page,
    }
    return "; ".join(f"{way} {', '.join(names)}" for way, names in chosen.items() if names) or "none"


_TERMS: tuple[tuple[str, Callable[[Plan], str]], ...] = (
    ("model", lambda plan: plan.model.name),
    ("model file (SHA-256)", lambda plan: plan.model.sha256[:12]),
    ("sizes", lambda plan: ", ".join(f"{name}={size}" for name, size in plan.model.binding) or "none"),
    ("device", lambda plan: plan.device.name),
    ("kernels", lambda plan: plan.problem.kernels),
    ("loss", lambda plan: plan.request.loss),
    ("optimizer", lambda plan: plan.optimizer.name),
    ("trained parameters", lambda plan: ", ".join(plan.request.train)),
    ("RAM budget", lambda plan: _or_none(plan.request.limits.ram_budget_bytes, "B")),
    ("deadline", lambda plan: _or_none(plan.request.limits.deadline_seconds, "s")),
    ("write budget", lambda plan: _or_none(plan.request.limits.written_budget_bytes, "B")),
    ("energy budget", lambda plan: _or_none(plan.request.limits.joules_budget, "J")),
    ("recomputation", lambda plan: _allowed(plan.request.limits.recompute)),
    ("paging", lambda plan: _allowed(plan.request.limits.paging)),
    ("pins", _pins),
    ("proof", lambda plan: f"{SAYS_FILE}{plan.outcome.status}"),
    ("solver", lambda plan: f"{SAYS_FILE}{plan.outcome.solver}"),
    ("made by", lambda plan: f"{SAYS_FILE}poet {plan.poet_version}"),
)


def _changes(before: Plan, after: Plan) -> Iterator[Change]:
    for what, unit, amount in _FIGURES:
        yield Change(what, unit, amount(before), amount(after))


_FIGURES: tuple[tuple[str, str, Callable[[Plan], float | None]], ...] = (
    ("RAM budget", "B", lambda plan: plan.request.limits.ram_budget_bytes),
    ("RAM at the peak", "B", lambda plan: plan.trace.peak_ram_bytes),
    ("energy", "J", lambda plan: plan.trace.joules),
    (f"{SAYS_FILE}energy bound", "J", lambda plan: plan.outcome.bound_joules),
    ("compute energy", "J", lambda plan: plan.trace.compute_joules),
    ("page-in energy", "J", lambda plan: plan.trace.page_in_joules),
    ("page-out energy", "J", lambda plan: plan.trace.page_out_joules),
    ("idle energy", "J", lambda plan: plan.trace.idle_joules),
    ("time", "s", lambda plan: plan.trace.seconds),
    ("recomputed runs", "", lambda plan: plan.trace.recomputed_runs),
    ("paged in", "B", lambda plan: plan.trace.read_bytes),
    ("paged out", "B", lambda plan: plan.trace.written_bytes),
    (f"{SAYS_FILE}plain training needs", "B", lambda plan: plan.prediction.plain_peak_ram_bytes),
    (f"{SAYS_FILE}lower bound on RAM", "B", lambda plan: plan.prediction.lower_bound_ram_bytes),
)


def _moves(before: Plan, after: Plan) -> tuple[tuple[Move, ...], int]:
    old = {fate.name: fate for fate in tensor_fates(before.problem, before.schedule, before.trace)}
    new = {fate.name: fate for fate in tensor_fates(after.problem, after.schedule, after.trace)}
    moves, same = [], 0
    for name in dict.fromkeys((*old, *new)):
        was, is_now = old.get(name), new.get(name)
        known = is_now or was
        assert known is not None, "the name is of one of them"
        before_words, after_words = (fate.words if fate else ABSENT for fate in (was, is_now))
        if before_words == after_words:
            same += 1
            continue
        moves.append(
            Move(
                name,
                known.role,
                known.bytes,
                was.decision if was else ABSENT,
                is_now.decision if is_now else ABSENT,
                before_words,
                after_words,
            )
        )
    return tuple(sorted(moves, key=lambda move: (-move.bytes, move.tensor))), same


# --- for people ---------------------------------------------------------------------------------


def format_amount(amount: float | None, unit: str) -> str:
    """``amount`` in its unit; a dash where there is none."""
    if amount is None:
        return DASH
    return FORMATS[unit](amount) if unit else f"{amount:g}"


def format_change(change: Change) -> str:
    """By how much, as a share where there is one: ``"−12.3 %"``."""
    if change.before == change.after:
        return "same"
    if change.share is None:
        return "new" if change.before in (None, 0) else "gone"
    if change.share >= 1.0:
        return f"{format_count(1.0 + change.share)} times"
    return f"{'+' if change.share > 0 else '−'}{format_share(abs(change.share))}"


def headline(diff: PlanDiff) -> str:
    """One sentence: what happened to energy, time and RAM."""
    figures = {change.what: change for change in diff.changes}
    words = []
    for what, noun in (("energy", "energy"), ("time", "time"), ("RAM at the peak", "RAM")):
        share = figures[what].share
        if share:
            words.append(f"{format_more(share)} {noun}")
    if not words:
        return "Both plans take the same energy, time and RAM"
    return f"Compared with {diff.before}, {diff.after} takes {', '.join(words)}"


def moves_by_kind(diff: PlanDiff) -> tuple[tuple[str, str, int, int], ...]:
    """Before, after, number of tensors and bytes; most bytes first."""
    numbers, sizes = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for move in diff.moves:
        numbers[move.before, move.after] += 1
        sizes[move.before, move.after] += move.bytes
    return tuple((*kind, numbers[kind], size_bytes) for kind, size_bytes in sizes.most_common())


def _ends(change: Change) -> tuple[str, ...]:
    return tuple(format_amount(amount, change.unit) for amount in (change.before, change.after))


def change_columns(diff: PlanDiff) -> tuple[Column, ...]:
    """Of a table of `PlanDiff.changes`."""
    return (
        Column("per step", "what"),
        Column(diff.before, lambda change: _ends(change)[0], "right"),
        Column(diff.after, lambda change: _ends(change)[1], "right"),
        Column("change", format_change, "right"),
    )


def term_columns(diff: PlanDiff, heading: str = "") -> tuple[Column, ...]:
    """Of a table of `PlanDiff.terms`."""
    return Column(heading, "what"), Column(diff.before, "before"), Column(diff.after, "after")


def diff_report(diff: PlanDiff, *, every_tensor: bool = False) -> RenderableType:
    """The difference as text; single tensors only with ``every_tensor``."""
    parts: list[RenderableType] = [Text(f"{headline(diff)}.", style="bold"), Text()]
    parts.append(table(diff.changes, *change_columns(diff)))
    if diff.terms:
        parts += [Text(), table(diff.terms, *term_columns(diff, "asked or answered differently"), left=3)]
    parts += [Text(), _moves_table(diff)]
    if every_tensor and diff.moves:
        columns = (
            Column("tensor", "tensor"), Column("role", "role"), Column("bytes", "bytes", "B"),
            Column(diff.before, "before_words"), Column(diff.after, "after_words"),
        )  # fmt: skip
        parts += [Text(), table(diff.moves, *columns, left=2)]
    return Group(*parts)


def _moves_table(diff: PlanDiff) -> RenderableType:
    if not diff.moves:
        return Text(f"all {diff.same_tensors} tensors are treated alike")
    rows = [
        (
            f"{before} → {after}" if before != after else f"{before}, another number of times",
            str(number),
            format_bytes(size_bytes),
        )
        for before, after, number, size_bytes in moves_by_kind(diff)
    ]
    return listed([*rows, ("treated alike", str(diff.same_tensors), "")], "tensors", "number", "bytes")


def diff_data(diff: PlanDiff) -> dict[str, Any]:
    """The difference as a JSON-ready object."""
    data = asdict(diff)
    for row, change in zip(data["changes"], diff.changes, strict=True):
        row["share"] = change.share
    return data


# --- the page ---------------------------------------------------------------------------------

CHARTED = ("energy", "time", "RAM at the peak")
_KINDS = (
    Column("was", lambda row: row[0]),
    Column("is", lambda row: row[1] if row[1] != row[0] else f"{row[1]}, another number of times"),
    Column("tensors", lambda row: row[2], "n"),
    Column("bytes", lambda row: row[3], "B"),
)


def diff_page(diff: PlanDiff, *, command: str = "") -> str:
    """The page as text.

    Raises:
        InputError: the packages of the extra ``report`` are not there.
    """
    columns = (
        Column("tensor", "tensor", code=True),
        Column("role", "role", choice=True),
        Column("size", "bytes", "B"),
        Column("was", "before", choice=True),
        Column("is", "after", choice=True),
        Column(f"in {diff.before}", "before_words"),
        Column(f"in {diff.after}", "after_words"),
    )
    charts = {f"change-{number}": _chart(diff, what) for number, what in enumerate(CHARTED)}
    context = {
        "title": f"{diff.before} and {diff.after}",
        "headline": f"{headline(diff)}.",
        "diff": diff,
        "changes": page_table(diff.changes, *change_columns(diff)),
        "terms": page_table(diff.terms, *term_columns(diff)),
        "kinds": page_table(moves_by_kind(diff), *_KINDS),
        "charts": dict(zip(charts, CHARTED, strict=True)),
        "commands": [("this page", command)] if command else [],
    }
    tables = {"moves": page_table(diff.moves, *columns, sort=2, noun="tensors")}
    return render("diff.html", PageContent(charts, tables), context)


def _chart(diff: PlanDiff, what: str) -> Spec:
    change = next(change for change in diff.changes if change.what == what)
    amounts = (diff.before, change.before or 0.0, QUIET), (diff.after, change.after or 0.0, ACCENT)
    return ladder(amounts, unit=change.unit)
