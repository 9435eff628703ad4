"""A sweep as JSON, as CSV and as a pandas DataFrame: one row per point, the same columns in all three.

docs/what-if.md describes the columns; a test holds it against `COLUMNS`.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import math
from typing import TYPE_CHECKING, Any

from poet import codec
from poet.errors import InputError
from poet.extras import how_to_install
from poet.schedule import schedule_to_data
from poet.version import __version__
from poet.whatif.result import FoundPlan, Point, Setting, Usage, WhatIf

if TYPE_CHECKING:
    import pandas

FORMAT = "poet-what-if"
FORMAT_VERSION = 1

Cell = str | int | float | None

_PLAN = (
    "joules", "compute_joules", "page_in_joules", "page_out_joules", "idle_joules", "seconds",
    "compute_seconds", "page_in_seconds", "page_out_seconds", "peak_ram_bytes", "recomputed_runs",
    "read_bytes", "written_bytes", "worn_bytes", "solver",
)  # fmt: skip
_USAGE = (
    "joules_per_sample", "session_joules", "session_seconds", "battery_share_per_session",
    "sessions_per_charge", "budget_steps", "budget_samples", "budget_epochs", "flash_life_steps",
    "flash_life_years", "session_grams",
)  # fmt: skip
COLUMNS = (
    "point", "device", "binding", "batch", "optimizer", "ram_budget_bytes", "deadline", "deadline_seconds",
    "verdict", "origin", "bound_joules", "gap", "overhead_gap", *_PLAN, *_USAGE,
    "plan", "warm_start", "solve_seconds", "message",
)  # fmt: skip
"""Of a row, in order. Units end the names; empty: not known or without a plan."""


def rows(result: WhatIf) -> list[dict[str, Cell]]:
    """One dict per point, with `COLUMNS` as keys."""
    return [_row(result, index, point) for index, point in enumerate(result.points)]


def to_csv(result: WhatIf) -> str:
    """The rows as CSV with a header; an infinite flash life is ``inf``."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows(result))
    return text.getvalue()


def to_json(result: WhatIf) -> dict[str, Any]:
    """JSON-ready objects: the question, the settings, the rows, the answers, and the plans they refer to.

    An infinite number, such as the life of a flash that nothing is written to, is ``null`` here.
    """
    spoken_of = {index for answer in result.answers for index in answer.points}
    shown = sorted({plan for index in spoken_of if (plan := result.points[index].plan) is not None})
    data = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "poet": __version__,
        "question": _question(result),
        "complete": result.complete,
        "sweep_seconds": result.sweep_seconds,
        "searched": result.searched,
        "from_cache": result.from_cache,
        "by_monotonicity": result.by_monotonicity,
        "chosen": result.chosen,
        "settings": [_setting(setting) for setting in result.settings],
        "points": rows(result),
        "answers": [
            {
                "question": answer.question,
                "sentence": answer.sentence,
                "basis": answer.basis.name.lower(),
                "points": list(answer.points),
                "figures": dict(answer.figures),
            }
            for answer in result.answers
        ],
        "marginals": [_record(marginal) for marginal in result.marginals],
        "stalls": [_record(stall) for stall in result.stalls],
        "schedules": {str(number): schedule_to_data(result.plans[number].schedule) for number in shown},
    }
    return {key: _finite(item) for key, item in data.items()}


def to_pandas(result: WhatIf) -> pandas.DataFrame:
    """The rows as a DataFrame.

    Raises:
        InputError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError:
        raise InputError(f"to_pandas needs pandas; {how_to_install('pandas')}") from None
    return pandas.DataFrame(rows(result), columns=list(COLUMNS))


def _row(result: WhatIf, index: int, point: Point) -> dict[str, Cell]:
    setting, plan, usage = result.setting_of(point), result.plan_of(point), result.usages[index]
    return {
        "point": index,
        "device": setting.device,
        "binding": " ".join(f"{name}={size}" for name, size in setting.binding),
        "batch": setting.batch,
        "optimizer": setting.optimizer,
        "ram_budget_bytes": point.limits.ram_budget_bytes,
        "deadline": point.deadline,
        "deadline_seconds": point.limits.deadline_seconds,
        "verdict": point.verdict.word,
        "origin": point.origin.name.lower(),
        "bound_joules": point.bound_joules,
        "gap": point.gap,
        "overhead_gap": point.overhead_gap,
        **_fields(plan, _PLAN),
        **_fields(usage, _USAGE),
        "plan": point.plan,
        "warm_start": point.warm_start,
        "solve_seconds": point.solve_seconds,
        "message": point.message,
    }


def _fields(record: FoundPlan | Usage | None, names: tuple[str, ...]) -> dict[str, Cell]:
    return {name: None if record is None else getattr(record, name) for name in names}


def _question(result: WhatIf) -> dict[str, Any]:
    data = _record(result.question)
    options = result.question.options
    data["options"] = {
        "time_limit_seconds": options.time_limit_seconds,
        "engine": options.engine,
        "threads": options.threads,
        "seed": options.seed,
        "relative_gap": options.relative_gap,
        "overhead_gap": options.overhead_gap,
    }
    return data


def _setting(setting: Setting) -> dict[str, Any]:
    problem = setting.problem
    return {
        "device": setting.device,
        "device_title": setting.device_title,
        "binding": dict(setting.binding),
        "batch": setting.batch,
        "optimizer": setting.optimizer,
        "ops": len(problem.ops),
        "tensors": len(problem.tensors),
        "compute_seconds": problem.compute_seconds,
        "compute_joules": problem.compute_joules,
        "keep_everything_bytes": setting.keep_everything_bytes,
        "lower_bound_bytes": setting.lower_bound.bytes,
        "kernels": problem.kernels,
    }


def _record(record: object) -> dict[str, Any]:
    """A frozen record with every field, those at their default too."""
    assert dataclasses.is_dataclass(record)
    return {field.name: _plain(getattr(record, field.name)) for field in dataclasses.fields(record)}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _record(value)
    return codec.encode(value)


def _finite(value: Any) -> Any:
    """``value`` with ``None`` for what JSON has no number for."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list) else value
