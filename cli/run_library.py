"""``poet run --c-library``: a shared library of the exported step, held against PyTorch on a run's data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from poet.errors import InputError

from .output import answer

MOST_STEPS = 20


def check_on_data(
    plan_file: Path,
    c_library: Path,
    data: Path,
    page_file: Path | None,
    json_file: Path | None,
    beside: Mapping[str, object],
) -> None:
    """Make a step of each of the first batches in C and in PyTorch; nothing is trained or saved.

    Args:
        plan_file: of which the library was made.
        c_library: to load it runs its code.
        data: samples, taken in their order.
        page_file: for a step that pages.
        json_file: for the report.
        beside: options of a run by name, of which none may be given.

    Raises:
        InputError: an option of training was given, or as `poet.c99.library_check.check_library` says.
        NotExact: the library is wrong.
    """
    if given := [name for name, value in beside.items() if value]:
        raise InputError(f"{given[0]} cannot be with --c-library, which compares steps and trains nothing")
    from poet.c99.library_check import check_library
    from poet.report.verify import library_data, library_report

    report = check_library(plan_file, c_library, steps=MOST_STEPS, data=data, page_file=page_file, fewer=True)
    answer(library_report(report), lambda: library_data(report), json_file=json_file)
    report.require()
