"""The plan that a training runs on, and its way to another one.

What lives across steps passes through an unnamed file between the two, so that two plans never hold it at
once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from poet.errors import InputError, ReplayError
from poet.ir.calls import contiguous
from poet.ir.graph import ITEM_BYTES, Graph
from poet.plans.page_slots import slots_for
from poet.plans.plan_parts import PageSlot
from poet.plans.planned_step import stored_values
from poet.plans.training_plan import Plan, Shape
from poet.runtime.data.given import Buckets, Given, as_tensors
from poet.runtime.steps.lasting import ArenaUse
from poet.runtime.storage import state
from poet.runtime.storage.page_file import PageFile
from poet.runtime.storage.state import bytes_of, fill_from
from poet.runtime.storage.transfers import Pieces, elements_of
from poet.runtime.training import open_plan as page_files
from poet.runtime.training.budgets import Budgets, Planner
from poet.runtime.training.open_plan import OpenPlan
from poet.runtime.training.shapes import ShapeImprover, ShapePlanner, types_of
from poet.util.reading import Closing


class Spill(Closing):
    """All that a training needs to go on with another plan; checked when it is read back.

    Attributes:
        steps: made so far.
        seed: of the training.
        random_state: of its own generator; ``None``: it draws from the process's.
    """

    def __init__(
        self,
        graph: Graph,
        fetch: Callable[[str], torch.Tensor],
        folder: Path,
        *,
        steps: int,
        seed: int | None,
        generator: torch.Generator | None,
    ) -> None:
        """Write every value that lives across steps.

        Args:
            graph: of the plan so far.
            fetch: the tensor of one of its values; it is let go before the next is asked for.
            folder: for the file, which vanishes when this is closed.
            steps: made so far.
            seed: of the training.
            generator: of the training.

        Raises:
            PageFileError: there is no room.
        """
        self.steps, self.seed = steps, seed
        self.random_state = None if generator is None else generator.get_state()
        self._types = stored_values(graph)
        sizes = {name: kind.elements * ITEM_BYTES[kind.dtype] for name, kind in self._types.items()}
        self._file = PageFile(slots_for(sizes), path=None, folder=folder, buffer_bytes=0)
        try:
            for name in sizes:
                self._file.write(name, bytes_of(fetch(name).detach().contiguous()))
        except BaseException:
            self.close()
            raise

    def fill(self, value: str, target: torch.Tensor) -> None:
        """Write the content of the graph's ``value`` into ``target``."""
        fill_from(self._file, value, target)

    def place_of(self, value: str) -> tuple[int, int] | None:
        """See `poet.runtime.storage.state.Source`; it vanishes."""
        return None

    def pieces(self, value: str) -> Iterator[torch.Tensor]:
        """The elements of the graph's ``value`` in C order, as `poet.runtime.storage.transfers.Pieces`."""
        kind = contiguous(self._types[value].dtype, self._types[value].shape)
        for stretch in self._file.pieces(value, ITEM_BYTES[kind.dtype]):
            yield elements_of(stretch, kind)

    def close(self) -> None:
        """Let the file go; a second call does nothing."""
        self._file.close()


class Session(Closing):
    """A training from its first plan to its last.

    Attributes:
        open: the plan that runs.
        steps: made so far.
        seed: of the training.
        plan_path: of the file that it began with; ``None``: it began with none.
    """

    def __init__(
        self, plan: Plan, source: state.Source, *, pages: PageFile | None, arena: ArenaUse, announces: bool
    ) -> None:
        """Open ``plan``; arguments and errors as of `OpenPlan`."""
        self.steps, self.seed = source.steps, source.seed
        self.open = OpenPlan(plan, source, pages=pages, arena=arena, announces=announces)
        self.plan_path: Path | None = None
        self._page_path: str | Path | None = None
        self._arena = arena
        self._budgets = Budgets(plan)
        self._spill: Spill | None = None  # the state, where a change of budget left no plan open

    def began_with(self, path: Path, page_path: str | Path | None) -> None:
        """Which files the first plan and its page file are."""
        self.plan_path, self._page_path = path, page_path

    def check_has_state(self) -> None:
        """Do nothing if there is the state of a whole step, in memory or in a file.

        Raises:
            ReplayError: there is none.
        """
        if self._spill is None:
            self.open.tensors.check_usable()

    @property
    def budgets_bytes(self) -> tuple[int, ...]:
        """Budgets, rising, for which there is a plan; see `poet.runtime.training.budgets.Budgets`."""
        return self._budgets.sizes_bytes

    def check_between_steps(self, what: str) -> None:
        """Do nothing if no step is in flight; ``what`` is to be done.

        Raises:
            ReplayError: gradients of micro-batches are summed.
        """
        if self.open.accumulation.count:
            raise ReplayError(
                f"step {self.steps + 1} is under way, with the gradients of "
                f"{self.open.accumulation.count} micro-batches summed; {what} after its last one"
            )

    @property
    def pieces(self) -> Pieces:
        """Gives a value that lives across steps; see `poet.runtime.steps.lasting.LastingTensors.pieces`."""
        return self.open.tensors.pieces if self._spill is None else self._spill.pieces

    def set_budget(self, ram_bytes: int, planner: Planner | None) -> None:
        """Go on inside another budget; see `poet.runtime.Trainer.set_budget`."""
        self.check_has_state()
        self.check_between_steps("change the budget")
        if self.plan_path is None:
            raise InputError("only a trainer of a plan file changes its budget")
        chosen = self._budgets.plan_for(ram_bytes, planner)
        if chosen != replace(self.open.plan, budgets=()) or self._spill is not None:
            self._change_to(chosen, self.plan_path.parent)

    def prepare(
        self,
        inputs: Given,
        targets: Given | None,
        planner: ShapePlanner,
        buckets: Buckets | None = None,
    ) -> None:
        """Have a step for batches of this shape, a new one if there is none.

        Raises:
            InputError, Infeasible, OutOfTime: none can be had; nothing has happened.
            PageFileError: there is no room for what it pages; likewise.
        """
        if not self.open.takes(inputs, targets, buckets):
            types = types_of((*as_tensors(inputs), *as_tensors(targets)))
            self._add(planner(self.open.plan, types))

    def improve(self, improver: ShapeImprover) -> bool:
        """Let ``improver`` search longer for one shape; whether that found something better."""
        improved = improver(self.open.plan)
        if improved is not None:
            self._add(improved)
        return improved is not None

    def _add(self, shape: Shape) -> None:
        self.open.add_shape(shape, self._new_pages)
        self._budgets.keep(self.open.plan, shape)

    def _new_pages(self, slots: Sequence[PageSlot]) -> PageFile:
        folder = Path() if self.plan_path is None else self.plan_path.parent
        path = None if self._page_path is None else Path(self._page_path)
        return PageFile(slots, path=path, folder=folder, buffer_bytes=0)

    def _change_to(self, plan: Plan, folder: Path) -> None:
        """What lives across steps is in ``_spill`` from here on until a plan is open again."""
        before = self.open
        if self._spill is None:
            self._spill = Spill(
                before.plan.graph,
                before.tensors.fetched,
                folder if self._page_path is None else Path(self._page_path).absolute().parent,
                steps=self.steps,
                seed=self.seed,
                generator=before.draws.generator,
            )
        try:
            before.close()
            self.open = self._opened(plan, self._spill, folder)
        except BaseException as error:
            before.tensors.broken = (
                f"a change of the budget failed ({error}), and its plan could not be opened again; "
                "save() and set_budget() are still possible"
            )
            with contextlib.suppress(Exception):
                self.open = self._opened(before.plan, self._spill, folder)
            self.open.tensors.check_usable()
            raise
        finally:
            if self.open is not before:
                self._spill.close()
                self._spill = None

    def _opened(self, plan: Plan, source: state.Source, folder: Path) -> OpenPlan:
        pages = page_files.open_pages(plan, folder, self._page_path)
        try:
            made = OpenPlan(plan, source, pages=pages, arena=self._arena, announces=True)
        except BaseException:
            if pages is not None:
                pages.close()
            raise
        made.allow_nan(self.open.given.allow_nan)
        return made

    def close(self) -> None:
        """Give the memory and the page file back; a second call does nothing."""
        self.open.close()
        if self._spill is not None:
            self._spill.close()
            self._spill = None
