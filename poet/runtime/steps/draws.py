"""The random numbers of a training: from a generator of its own, or from the process's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from poet.plans.training_plan import Plan
from poet.runtime.steps.companions import companions


class Draws:
    """What the random ops of a plan draw from.

    Attributes:
        generator: of the training; ``None``: that of the process, which every thread that draws shares.
    """

    def __init__(self, plan: Plan, random_state: torch.Tensor | None) -> None:
        self.generator: torch.Generator | None = None
        if random_state is not None:
            self.generator = torch.Generator()
            self.generator.set_state(random_state)
        graphs = [plan.graph, *(companion.graph for _, companion in companions(plan))]
        self._is_random = any(op.random for graph in graphs for op in graph.ops)

    def state(self) -> torch.Tensor | None:
        """The generator's state; ``None`` where nothing draws."""
        if not self._is_random:
            return None
        return torch.get_rng_state() if self.generator is None else self.generator.get_state()

    @contextlib.contextmanager
    def undone_on_failure(self) -> Iterator[None]:
        """A block that fails takes nothing from the training's own generator."""
        if not self._is_random or self.generator is None:
            yield
            return
        before = self.generator.clone_state()  # no tensor, for which a full arena has no room
        try:
            yield
        except BaseException:
            self.generator.set_state(before.get_state())
            raise
