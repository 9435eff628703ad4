"""What a trainer is made of, from files: the plan's checks, the state to begin with, the page file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from poet.files.apart import check_apart
from poet.plans.plan_file import PlanFile
from poet.runtime.kernels.guards import check_calls
from poet.runtime.steps.companions import companions
from poet.runtime.storage import state
from poet.runtime.storage.generations import open_saved
from poet.runtime.storage.page_file import PageFile
from poet.runtime.training.pages import open_pages
from poet.runtime.trials.logits_trial import check_logits
from poet.runtime.trials.part_trial import check_parts
from poet.runtime.trials.row_trial import check_row_updates
from poet.runtime.trials.strip_trial import check_strips


@contextmanager
def beginning(
    file: PlanFile, *, page_file: str | Path | None, seed: int | None, resume: str | Path | None
) -> Iterator[tuple[state.Source, PageFile | None]]:
    """The state that a training begins with, and the page file, which an error in the block closes.

    Arguments and errors as of `poet.runtime.Trainer.open`.
    """
    plan = file.plan
    check_apart({"page_file": page_file}, reads={"the plan": file.path, "resume": resume})
    with contextlib.ExitStack() as undo:
        for graph in (plan.graph, *(companion.graph for _, companion in companions(plan))):
            check_calls(graph)  # before a strip is tried
            check_strips(graph)
            check_parts(graph)
            check_row_updates(graph)
            check_logits(graph)
        source: state.Source = state.FromPlan(file, seed=seed)
        if resume is not None:
            source = undo.enter_context(open_saved(resume, file, seed=seed))
        pages = open_pages(plan, file.path.parent, page_file)
        try:
            yield source, pages
        except BaseException:
            if pages is not None:
                pages.close()
            raise
