"""A sweep as CSV and as JSON: one row per point."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import fields, is_dataclass
from typing import Any

from poet.errors import spelled_out
from poet.util import codec
from poet.version import __version__
from poet.whatif.result import COLUMNS, Setting, WhatIf

FORMAT = "poet-what-if"
FORMAT_VERSION = 1


def to_csv(result: WhatIf) -> str:
    """The rows as CSV with a header; an infinite flash life is ``inf``."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in result.rows():
        writer.writerow({key: spelled_out(x) if isinstance(x, str) else x for key, x in row.items()})
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
        "points": result.rows(),
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
        "schedules": {str(number): codec.encode(result.plans[number].schedule) for number in shown},
        "accumulating_schedules": {
            str(number): codec.encode(made)
            for number in shown
            if (made := result.plans[number].accumulating) is not None
        },
    }
    return {key: _finite(item) for key, item in data.items()}


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
        "micro": setting.micro_text,
        "ops": len(problem.ops),
        "tensors": len(problem.tensors),
        "compute_seconds": setting.compute_seconds,
        "compute_joules": setting.compute_joules,
        "keep_everything_bytes": setting.keep_everything_bytes,
        "lower_bound_bytes": setting.lower_bound.bytes,
        "kernels": problem.kernels,
    }


def _record(record: object) -> dict[str, Any]:
    """A frozen record with every field, those at their default too."""
    assert is_dataclass(record)
    return {item.name: _plain(getattr(record, item.name)) for item in fields(record)}


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return _record(value)
    return codec.encode(value)


def _finite(value: Any) -> Any:
    """``value`` with ``None`` for what JSON has no number for."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list) else value
