"""Plans of small nets for the C exporter, without a search: any valid schedule, laid out in an arena."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor, nn

from helpers import hand_net
from helpers.schedules import random_schedule
from helpers.shuffled import movable, shuffled, with_arena
from poet.c99.exportable import uses_elements
from poet.c99.project import CProject, c_project
from poet.c99.rows import overwrites, wants_dense
from poet.frontend.trace import TrainingStep, trace_training_step
from poet.ir.kernel_facts import KernelFacts
from poet.ir.optimizer import OptimizerSpec
from poet.memory.layout import lay_out
from poet.passes.fused import with_norms_and_relus, with_padded_windows, with_updates_fused
from poet.passes.in_place import with_results_in_place
from poet.plans.plan_file import PlanFile, write_plan
from poet.plans.plan_parts import Arena
from poet.plans.training_plan import Plan
from poet.problem import Place
from poet.runtime.storage.state import raw_tensor

LIBRARY = KernelFacts("poet-c99", alignment_bytes=8)


@dataclass(frozen=True)
class CNet:
    """A traced step whose plans differ in their schedules alone."""

    step: TrainingStep

    def fused_everywhere(self) -> CNet:
        """The same net with norms and rectifiers as one, fused updates, whether or not that saves memory, and
        results in place.
        """
        graph = with_updates_fused(
            with_norms_and_relus(with_padded_windows(self.step.graph)), uses_elements, is_always=True
        )
        graph = with_results_in_place(graph, overwrites)
        return CNet(replace(self.step, graph=graph))

    def plan(
        self,
        seed: int | None = None,
        *,
        share: float = 0.4,
        pages: bool = False,
        homes: bool = False,
        moves: bool = False,
        repeats: bool = True,
        moved_share: float = 0.5,
    ) -> Plan:
        """One that keeps everything, or that drops and recomputes, or pages as well, as ``seed`` has it.

        With ``moves`` tensors move about in a larger arena, each with ``moved_share`` at each step. Without
        ``repeats`` nothing is recomputed.
        """
        graph = self.step.graph
        of = hand_net.problem(graph, parameters_in_storage=homes, kernels=LIBRARY)
        if homes:
            pass
        elif not pages:
            of = replace(of, tensors=tuple(replace(item, page_in=None, page_out=None) for item in of.tensors))
        else:  # as on a device with storage: what no op updates has a copy there from the start
            updated = {name for op in graph.ops for name in op.updates}
            kept = graph.persistent() - updated
            both = (replace(item, initially=Place.BOTH) if item.name in kept else item for item in of.tensors)
            of = replace(of, tensors=tuple(both))
        of = movable(replace(of, alignment_bytes=8))
        drawn = of if repeats else replace(of, ops=tuple(replace(op, recomputable=False) for op in of.ops))
        schedule = random_schedule(drawn, seed or 0, share=0.0 if seed is None else share)
        made = hand_net.plan(
            of,
            graph,
            schedule,
            optimizer=self.step.optimizer,
            loss=self.step.loss,
            slack=1.0,
            kernels=LIBRARY,
        )
        if moves:
            return with_arena(made, shuffled(made.demand, seed or 0, share=moved_share))
        laid = lay_out(made.demand.blocks, time_limit_seconds=0.05)
        return replace(made, arena=Arena(laid.arena_bytes, laid.offsets_bytes))

    def write(self, path: Path, plan: Plan) -> Path:
        """A plan file with the weights."""
        write_plan(path, plan, {name: raw_tensor(tensor) for name, tensor in self.step.tensors.items()})
        return path

    def project(
        self,
        folder: Path,
        seed: int | None = None,
        *,
        pages: bool = False,
        homes: bool = False,
        moves: bool = False,
    ) -> CProject:
        """The C of such a plan, written to a new folder; with ``homes`` parameters live in storage."""
        folder.parent.mkdir(parents=True, exist_ok=True)
        plan = self.plan(seed, pages=pages, homes=homes, moves=moves)
        with PlanFile(self.write(folder.parent / f"{folder.name}.poet", plan)) as file:
            made = c_project(file)
        made.write(folder)
        return made


def traced(
    module: nn.Module,
    inputs: Tensor | Sequence[Tensor],
    *,
    loss: str = "cross-entropy",
    optimizer: OptimizerSpec | None = None,
) -> CNet:
    """A net to plan for."""
    step = trace_training_step(
        module,
        inputs,
        loss=loss,
        optimizer=optimizer,
        wants_dense=wants_dense,
        measure=False,
        has_small_operators=True,
    )
    return CNet(step)
