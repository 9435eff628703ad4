"""A page file that fails when it is told to."""

from __future__ import annotations

import pytest

from poet.errors import PageFileError
from poet.runtime import Trainer


def fail_write(trainer: Trainer, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the ``number``-th write to the trainer's page file from now on fail; 0 is the next."""
    pages = trainer.page_file
    assert pages is not None
    write, count = pages.write, iter(range(10**6))

    def failing(name: str, data: memoryview) -> None:
        if next(count) == number:
            raise PageFileError(f"page file: {name} cannot be written (Input/output error)")
        write(name, data)

    monkeypatch.setattr(pages, "write", failing)
