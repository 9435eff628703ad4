"""The tensors that live across steps, in RAM at their planned places or in the page file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor

from poet.errors import ReplayError
from poet.ir.calls import TensorType, contiguous
from poet.ir.graph import Graph
from poet.ir.named import Joined, named_parameters
from poet.plans.planned_step import lasting_values, stored_values
from poet.plans.training_plan import Plan
from poet.problem import Place
from poet.problem.schedule import Free
from poet.runtime.kernels.cells import Cells, memory_of, new_buffer, view_of
from poet.runtime.steps import instructions, program
from poet.runtime.steps.instructions import Moving, Tap
from poet.runtime.steps.placed import PlacedSteps
from poet.runtime.storage import state
from poet.runtime.storage.background import Pager
from poet.runtime.storage.page_file import PageFile
from poet.runtime.storage.transfers import elements_of, pieces_of, unit_bytes
from poet.runtime.system.outputs import Outputs


def joined(item: Joined, fetch: Callable[[str], Tensor]) -> Tensor:
    """All of ``item``: what ``fetch`` gives of its one value, or a new tensor of its parts, one at a time.

    Raises:
        ReplayError: there is no memory for it.
    """
    if not item.bounds:
        return fetch(item.values[0])
    whole = _empty(item)
    for value, part in state.pieces(item, whole):
        part.copy_(fetch(value))
    return whole


def _empty(item: Joined) -> Tensor:
    return view_of(new_buffer(item.type.extent_bytes).untyped_storage(), item.type)


def joining_tap(graph: Graph, tap: Tap) -> Tap:
    """What takes gradients of the graph's parameters and gives ``tap`` those of the module's.

    Parts are put together; the whole is given once its last part was made.
    """
    owners = {
        part: (named.content, number)
        for named in named_parameters(graph)
        for number, part in enumerate(named.parts)
        if named.content.bounds
    }
    wholes: dict[str, Tensor] = {}
    missing: dict[str, set[int]] = {}

    def take(name: str, gradient: Tensor) -> None:
        if name not in owners:
            tap(name, gradient)
            return
        item, number = owners[name]
        if item.name not in wholes:
            wholes[item.name] = _empty(item)
            missing[item.name] = set(range(len(item.bounds)))
        start, stop = item.bounds[number]
        wholes[item.name][start:stop].copy_(gradient)
        missing[item.name].discard(number)
        if not missing[item.name]:
            tap(item.name, wholes.pop(item.name))

    return take


ArenaUse = bool | Literal["require"]
"""Whether the memory of steps is placed; see `poet.runtime.Trainer.open`."""


class LastingTensors:
    """What a plan keeps across steps.

    Attributes:
        cells: of the training step, which hold it in between.
        held: buffers of it that are in RAM between steps.
        placed: where the memory of steps comes from; ``None``: from the heap.
        moving: who makes moves within the arena, while steps lie there.
        broken: why there is no state of a whole step any more; ``None``: there is one.
    """

    def __init__(self, plan: Plan, cells: Cells, pages: PageFile | None) -> None:
        self.cells = cells
        self._plan, self._pages = plan, pages
        self._pager = None if pages is None else Pager(pages, is_background=False)
        self._persistent = plan.graph.persistent()
        self.held = frozenset(program.initially_in_ram(plan)) & self._persistent
        self.placed: PlacedSteps | None = None
        self.moving = Moving()
        self.broken: str | None = None
        self._counted: dict[bool, int] = {}  # see `_counted_bytes`

    def check_usable(self) -> None:
        """Do nothing if the state is that of a whole step.

        Raises:
            ReplayError: it is not.
        """
        if self.broken is not None:
            raise ReplayError(
                f"the trainer cannot go on: {self.broken}; reopen it with resume= from the last save"
            )

    # --- their beginning ---

    def fill(self, source: state.Source, *, arena: ArenaUse) -> None:
        """Fill the buffers, and put copies into storage where the plan has them.

        Those that do not begin a step in RAM pass through it first, before any arena takes its share.
        """
        graph = self._plan.graph
        values: dict[str, list[str]] = {}
        stored_names = stored_values(graph)
        updated = {name for op in graph.ops for name in op.updates}
        for name in lasting_values(graph):
            values.setdefault(graph.buffer_of(name), []).append(name)
        slots = {slot.tensor for slot in self._plan.slots}
        stored = {
            tensor.name
            for tensor in self._plan.problem.tensors
            if tensor.initially in (Place.STORAGE, Place.BOTH) and tensor.name in slots
        }
        for buffer in sorted(values, key=lambda name: name in self.held):
            if arena and self.placed is None and buffer in self.held:
                self.placed = self._placing(arena)
            self.cells.install(buffer, self._home_of(buffer))
            for name in filter(stored_names.__contains__, values[buffer]):
                source.fill(name, self.cells.contents[self.cells.value(name)])
            if buffer in stored and self._pager is not None:
                types = [(name, stored_names.get(name)) for name in values[buffer]]
                if buffer in updated or not self._stays(buffer, types, source):
                    instructions.page_out(buffer, self.cells, self._pager)
            if buffer not in self.held:
                self.cells.clear(buffer)
        if arena and self.placed is None:
            self.placed = self._placing(arena)

    def _stays(
        self, buffer: str, types: Sequence[tuple[str, TensorType | None]], source: state.Source
    ) -> bool:
        """Whether storage has a buffer that no op writes where ``source`` keeps it: it is read there."""
        (name, kind), *others = types
        place, size_bytes = source.place_of(name), self.cells.sizes_bytes[buffer]
        if place is None or kind is None or others or self._pages is None:
            return False
        if kind != contiguous(kind.dtype, kind.shape) or kind.extent_bytes != size_bytes:
            return False
        return self._pages.find_in(*place, buffer, memory_of(self.cells.raw(buffer))[:size_bytes])

    def _placing(self, arena: ArenaUse) -> PlacedSteps:
        limit_bytes = self._arena_limit_bytes()
        return PlacedSteps(
            self._plan,
            limit_bytes,
            is_required=arena == "require",
            moving=self.moving,
            standing_bytes=self._counted_bytes,
        )

    def _home_of(self, buffer: str) -> torch.Tensor:
        """Zeroed memory for a buffer, at its planned place if it has one."""
        size_bytes = self.cells.sizes_bytes[buffer]
        planned = None if self.placed is None else self.placed.empty(buffer, size_bytes)
        return new_buffer(size_bytes, zeroed=True) if planned is None else planned.zero_()

    # --- between steps ---

    def copy(self, value: str) -> torch.Tensor:
        """A tensor of the caller's own."""
        self.check_usable()
        is_held = self.cells.holds(self._plan.graph.buffer_of(value))
        return self.fetched(value).clone() if is_held else self.fetched(value)

    def copy_of(self, item: Joined) -> torch.Tensor:
        """Likewise, of all that makes it up."""
        self.check_usable()
        return joined(item, self.fetched if item.bounds else self.copy)

    def fetched(self, value: str) -> torch.Tensor:
        """The tensor itself where it is in RAM, else one that was fetched for the caller."""
        buffer = self._plan.graph.buffer_of(value)
        if self.cells.holds(buffer) or self._pager is None:
            kept: torch.Tensor = self.cells.contents[self.cells.value(value)]
            return kept
        instructions.page_in(buffer, self.cells, self._pager)
        fetched: torch.Tensor = self.cells.contents[self.cells.value(value)]
        self.cells.clear(buffer)
        return fetched

    def pieces(self, value: str) -> Iterator[torch.Tensor]:
        """Its elements in C order, in tensors of one dimension that are gone when the next is asked for.

        What is in storage passes through the page buffer; only what lies there in an order without rows
        is fetched whole.
        """
        buffer, kind = self._plan.graph.buffer_of(value), self.cells.types[value]
        unit = unit_bytes(kind, self.cells.sizes_bytes[buffer])
        if self.cells.holds(buffer) or self._pages is None or unit is None:
            yield from pieces_of(self.fetched(value))
            return
        for stretch in self._pages.pieces(buffer, unit):
            yield elements_of(stretch, kind)

    def restore(self, cells: Cells, pages: Pager | None) -> None:
        """After a step that failed before it changed any: exactly those in RAM that begin a step there.

        Args:
            cells: of that step.
            pages: where it pages.
        """
        for buffer in sorted(self._persistent):
            if buffer not in self.held:
                cells.clear(buffer)
            elif not cells.holds(buffer) and pages is not None:
                instructions.page_in(buffer, cells, pages)
                pages.drain()

    @contextmanager
    def lent_to(self, cells: Cells) -> Iterator[None]:
        """The block has what is in RAM in other ``cells``, those of another schedule on the same tensors."""
        try:
            for buffer in self.held:
                cells.install(buffer, self.cells.raw(buffer))
                self.cells.clear(buffer)
            yield
        finally:
            for buffer in self.held:
                if cells.holds(buffer):
                    self.cells.install(buffer, cells.raw(buffer))
                elif self.broken is None and not self.cells.holds(buffer):
                    self.broken = f"{buffer} was lost"
            for buffer in cells.of_buffer:
                cells.clear(buffer)

    def hand_over(self, outputs: Sequence[torch.Tensor]) -> Outputs:
        """The outputs of a step that was made, for the caller."""
        return Outputs(outputs) if self.placed is None else self.placed.hand_over(outputs)

    # --- their memory ---

    @property
    def held_bytes(self) -> int:
        """Between steps: tensors that live across them, the page buffer, and the arena once it is in use."""
        arena_bytes = 0 if self.placed is None else self.placed.resident_bytes
        return arena_bytes + self._standing_bytes(beside_arena=arena_bytes > 0)

    def _arena_limit_bytes(self) -> int | None:
        """What is left of the budget beside the tensors that stay where they are and the page buffer."""
        budget_bytes = self._plan.request.limits.ram_budget_bytes
        return None if budget_bytes is None else budget_bytes - self._standing_bytes(beside_arena=True)

    def _counted_bytes(self, beside_arena: bool) -> int:
        """`_standing_bytes`, and what whole pages take beside them."""
        if beside_arena not in self._counted:
            padding_bytes = 0 if self.placed is None else self.placed.padding_bytes(self.cells.sizes_bytes)
            self._counted[beside_arena] = self._standing_bytes(beside_arena=beside_arena) + padding_bytes
        return self._counted[beside_arena]

    def _standing_bytes(self, *, beside_arena: bool) -> int:
        """What is held between steps: tensors, and the page buffer.

        Tensors that are dropped and fetched within the step end in the arena, where there is one.
        """
        dropped = {step.tensor for step in self._plan.schedule if isinstance(step, Free)}
        standing = self.held - dropped if beside_arena else self.held
        buffer_bytes = 0 if self._pages is None else self._pages.buffer_bytes
        return buffer_bytes + sum(self.cells.sizes_bytes[name] for name in standing)

    def close(self) -> None:
        """Give the memory back; a second call does nothing."""
        for buffer in self.cells.of_buffer:
            self.cells.clear(buffer)
        if self.placed is not None:
            self.placed.close()
        self.broken = "it is closed"
