"""Holds a shared library of an exported plan against PyTorch, step by step, on the same data.

The bits are not PyTorch's, as C adds in another order. So both make each step from the same state, PyTorch's
also in float64, and what a step changes in C may be as far from float64 as a multiple of PyTorch's own error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from poet.c99.interface import interface_of
from poet.c99.library import LibraryError, Step
from poet.c99.project import CProject, c_project, initial_contents
from poet.c99.vectors import PlainSteps
from poet.errors import InputError, NotExact, PlanError
from poet.plan_file import PlanFile, plan_digest
from poet.runtime.samples import load_samples
from poet.training_plan import Plan
from poet.verification import random_batch

ALLOWED = 8.0
"""How often PyTorch's own error in float32."""
FLOOR, LUCK, ROUNDING = 2.0**-21, 1e-4, 2.0**-22
"""Allowed in any case, as PyTorch may happen to be exact: the share of a loss, and of the largest change of
any tensor; the share of a tensor's own largest change; the share of its largest number."""


@dataclass(frozen=True, slots=True)
class LibraryStep:
    """One step, made by all three from the same state.

    Attributes:
        loss, torch_loss, exact_loss: of the library, of PyTorch in float32 and in float64.
        distance: of the tensor that is farthest from float64, and of the loss, as a share of what is allowed.
        farthest: that tensor, or the loss.
    """

    loss: float
    torch_loss: float
    exact_loss: float
    distance: float
    farthest: str


@dataclass(frozen=True, slots=True)
class LibraryReport:
    """The steps, and how many tensors were compared after each."""

    steps: tuple[LibraryStep, ...]
    tensors: int

    @property
    def is_right(self) -> bool:
        """Whether everything was within what is allowed."""
        return all(step.distance <= 1.0 for step in self.steps)

    def require(self) -> None:
        """Do nothing if the library is right.

        Raises:
            NotExact: names the step and the tensor.
        """
        for number, step in enumerate(self.steps, 1):
            if not step.distance <= 1.0:
                raise NotExact(
                    f"step {number}: {step.farthest} is {step.distance:.3g} times as far from float64 "
                    "as the library may be"
                )


def check_library(
    path: str | Path,
    shared: str | Path,
    *,
    steps: int = 3,
    seed: int = 0,
    data: str | Path | None = None,
    page_file: str | Path | None = None,
) -> LibraryReport:
    """Make some steps with a library and in PyTorch.

    Args:
        path: of the plan.
        shared: of the library, made from that plan.
        steps: to make.
        seed: of random batches, where there is no ``data``.
        data: samples to train on, in their order; `poet.runtime.samples.load_samples` says what it may be.
        page_file: for a step that pages.

    Raises:
        PlanError: the plan draws random numbers, so that its masks are not PyTorch's.
        InputError: the library is of another plan, or cannot be used; or the samples are too few.
    """
    with PlanFile(path) as file:
        project, kept, plan = c_project(file), initial_contents(file), file.plan
    _check_comparable(plan)
    batches = _batches(plan, steps, seed, data)
    try:
        step = Step(shared, pages=page_file)
        if step.plan != plan_digest(plan):
            raise InputError(f"{shared}: was made from another plan than {path}; export and build it again")
        return _compared(step, _Sides(plan, project), kept, batches)
    except LibraryError as error:
        raise InputError(str(error)) from None


def _check_comparable(plan: Plan) -> None:
    if any(op.random for op in plan.graph.ops):
        raise PlanError(
            f"{plan.model.name}: its dropout draws other masks in C than in PyTorch, so that no step can be "
            "compared; plan it without dropout to check a library"
        )


def _batches(plan: Plan, steps: int, seed: int, data: str | Path | None) -> list[dict[str, Tensor]]:
    """Inputs and target of each step, by value."""
    names = plan.graph.inputs
    if data is None:
        drawn = starmap(_flat, (random_batch(plan, seed + number) for number in range(steps)))
        return [dict(zip(names, tensors, strict=True)) for tensors in drawn]
    samples = load_samples(data, plan)
    rows = len(samples.staged[0])
    if samples.count < rows * steps:
        raise InputError(f"{data}: {samples.count} samples are too few for {steps} steps of {rows}")
    chosen = (torch.arange(rows * number, rows * (number + 1)) for number in range(steps))
    taken = ([tensor.clone() for part in samples.batch(item) for tensor in part] for item in chosen)
    return [dict(zip(names, tensors, strict=True)) for tensors in taken]


def _flat(inputs: Sequence[Tensor], targets: Tensor | Sequence[Tensor] | None) -> list[Tensor]:
    if targets is None:
        return list(inputs)
    return [*inputs, *([targets] if isinstance(targets, Tensor) else targets)]


class _Sides:
    """What of a plan both sides know."""

    def __init__(self, plan: Plan, project: CProject) -> None:
        self.plan, self.graph, self.project = plan, plan.graph, project
        self.interface = interface_of(plan.graph, project.statements)
        self.types = {value.name: value.type for value in self.graph.values}

    def plain(self, kept: Mapping[str, Tensor], steps: int, *, is_double: bool) -> PlainSteps:
        """PyTorch, about to make the step after ``steps``."""
        runner = PlainSteps(self.graph, self.plan.optimizer, kept, is_double=is_double)
        runner.steps = steps
        return runner

    def watched(self) -> dict[str, str]:
        """Buffers whose change is compared, and what they hold.

        Of AdamW the mean of the gradients: where the true gradient is zero, as of a bias before batch norm,
        its update makes noise as large as any other, and so does the mean of squares.
        """
        of_adamw = self.plan.optimizer.name == "adamw"
        found = {} if of_adamw else {item.value: item.value for item in self.graph.parameters}
        states = (pair for item in self.graph.parameters for pair in item.optimizer_state)
        found |= {value: value for kind, value in states if kind != "exp_avg_sq"}
        found |= {value: name for name, value in self.graph.states}
        return {self.graph.buffer_of(value): name for value, name in found.items()}

    def fill(self, step: Step, given: Mapping[str, Tensor]) -> None:
        """Give a library's step its inputs and target."""
        for (name, _), view in zip(self.interface.inputs, step.inputs, strict=True):
            view[:] = given[name].numpy().ravel()
        if self.interface.target is None:
            return
        target = given[self.interface.target[0]].numpy()
        if self.interface.classes is None:
            step.set_target(target)
        else:
            step.set_classes(target)


def _compared(
    step: Step, sides: _Sides, kept: Mapping[str, Tensor], batches: Sequence[Mapping[str, Tensor]]
) -> LibraryReport:
    names = {span.name: index for index, span in enumerate(sides.project.spans)}
    watched = {buffer: name for buffer, name in sides.watched().items() if buffer in names}
    found = []
    for number, given in enumerate(batches):
        plain, exact = (sides.plain(kept, number, is_double=is_double) for is_double in (False, True))
        for buffer, index in names.items():
            step.put(index, np.frombuffer(kept[buffer].numpy().tobytes(), dtype=np.float32))
        plain.fill(given)
        exact.fill(given)
        sides.fill(step, given)
        losses = step.train(), plain.step(), exact.step()
        after = {buffer: step.kept(names[buffer]) for buffer in watched}
        worst = max(_distances(watched, kept, (plain.tensors, exact.tensors), after))
        allowed = ALLOWED * abs(losses[1] - losses[2]) + FLOOR * (1.0 + abs(losses[2]))
        worst = max(worst, (_share(abs(losses[0] - losses[2]), allowed), "the loss"))
        found.append(LibraryStep(*losses, *worst))
        kept = {name: plain.tensors[name].clone() for name in kept}
    return LibraryReport(tuple(found), len(watched))


def _distances(
    watched: Mapping[str, str],
    kept: Mapping[str, Tensor],
    sides: tuple[Mapping[str, Tensor], Mapping[str, Tensor]],
    after: Mapping[str, np.ndarray[tuple[int], np.dtype[np.float32]] | None],
) -> list[tuple[float, str]]:
    """Of each tensor how far the library is from float64, as a share of what is allowed, and its name."""
    plain, exact = sides
    changes = {buffer: exact[buffer].double() - kept[buffer].double() for buffer in watched}
    floats = [changes[buffer] for buffer in watched if kept[buffer].is_floating_point()]
    largest = max((float(change.abs().max()) for change in floats if change.numel()), default=0.0)
    found = []
    for buffer, name in watched.items():
        bits, before = after[buffer], kept[buffer]
        if bits is None or not before.numel():
            continue
        by_c = torch.from_numpy(bits).view(before.dtype)
        if not before.is_floating_point():
            found.append((0.0 if torch.equal(by_c, plain[buffer]) else float("inf"), name))
            continue
        error = float((by_c.double() - exact[buffer]).abs().max())
        allowed = ALLOWED * float((plain[buffer].double() - exact[buffer]).abs().max())
        allowed += ROUNDING * float(before.abs().max()) + LUCK * float(changes[buffer].abs().max())
        found.append((_share(error, allowed + FLOOR * largest), name))
    return found or [(0.0, "the loss")]


def _share(error: float, allowed: float) -> float:
    """Infinite for what is not a number."""
    if not error <= allowed:
        return error / allowed if allowed and error == error else float("inf")
    return error / allowed if allowed else 0.0
