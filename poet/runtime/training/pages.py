"""The page file of a trainer and who moves what is paged."""

from __future__ import annotations

from pathlib import Path

from poet.graph import stored_row_bytes
from poet.plans.training_plan import Plan
from poet.runtime.steps.companions import slots_of
from poet.runtime.storage.background import Background, Timed
from poet.runtime.storage.page_file import PageFile


def open_pages(plan: Plan, folder: Path, page_file: str | Path | None) -> PageFile | None:
    """The page file of ``plan``; ``None`` where it pages nothing.

    Args:
        plan: to train with.
        folder: for an unnamed file.
        page_file: its path; ``None``: an unnamed one.

    Raises:
        PageFileError: it cannot be had.
    """
    slots = slots_of(plan)
    if not slots:
        return None
    path = None if page_file is None else Path(page_file)
    return PageFile(
        slots,
        path=path,
        folder=folder,
        buffer_bytes=plan.page_buffer_bytes,
        row_bytes=stored_row_bytes(plan.graph),
    )


def pager_of(plan: Plan, pages: PageFile) -> Timed:
    """Moves what ``plan`` pages, beside its ops where the plan counts on that."""
    return Timed(Background(pages) if plan.problem.background_storage else pages)
