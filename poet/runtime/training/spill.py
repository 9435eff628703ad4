"""The training state in an unnamed file, while one plan's memory makes room for another's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from poet.calls import contiguous
from poet.closing import Closing
from poet.graph import ITEM_BYTES, Graph
from poet.plans.lasting_values import stored_values
from poet.plans.page_slots import slots_for
from poet.runtime.storage.page_file import PageFile
from poet.runtime.storage.pieces import elements_of
from poet.runtime.storage.state import bytes_of, fill_from


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
        """The elements of the graph's ``value`` in C order, as `poet.runtime.storage.pieces.Pieces`."""
        kind = contiguous(self._types[value].dtype, self._types[value].shape)
        for stretch in self._file.pieces(value, ITEM_BYTES[kind.dtype]):
            yield elements_of(stretch, kind)

    def close(self) -> None:
        """Let the file go; a second call does nothing."""
        self._file.close()
