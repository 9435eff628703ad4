"""Holds a shared library of an exported plan against PyTorch, step by step, on the same data.

The bits are not PyTorch's, as C adds in another order. So both make each step from the same state, PyTorch's
also in float64, and what a step changes in C may be as far from float64 as a multiple of PyTorch's own error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from poet.c99.interface import interface_of
from poet.c99.library import LibraryError, Step
from poet.c99.project import CProject, c_project, initial_contents
from poet.c99.vectors import PlainSteps
from poet.errors import InputError, NotExact, PlanError
from poet.plans.plan_file import PlanFile, plan_digest
from poet.plans.training_plan import Plan
from poet.runtime.data.random_batches import random_batch
from poet.runtime.data.samples import load_samples

ALLOWED = 8.0
"""How often PyTorch's own error in float32."""
FLOOR, LUCK, ROUNDING = 2.0**-21, 1e-4, 2.0**-22
"""Allowed in any case, as PyTorch may happen to be exact: the share of a loss, and of the largest change of
any tensor of that magnitude; the share of a tensor's own largest change; the share of its largest number."""
_ADAMW_NUMBERS = ("decay_factor", "step_size", "second_moment_correction")
_SMALLEST = 2.0**-126
"""Of floats that are normal: a share of it counts as nothing."""
_NOTHING = (0.0, "the loss")


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
    fewer: bool = False,
) -> LibraryReport:
    """Make some steps with a library and in PyTorch.

    Args:
        path: of the plan.
        shared: of the library, made from that plan. To load it runs its code: it must be your own.
        steps: to make.
        seed: of random batches, where there is no ``data``.
        data: samples to train on, in their order; `poet.runtime.data.samples.load_samples` says what it may
        be.
        page_file: for a step that pages.
        fewer: whether to make fewer steps where the samples fill no more batches.

    Raises:
        PlanError: the plan draws random numbers, so that its masks are not PyTorch's.
        InputError: the library is of another plan, or cannot be used; or the samples are too few.
    """
    with PlanFile(path) as file:
        project, kept, plan = c_project(file), initial_contents(file), file.plan
    _check_comparable(plan)
    batches = _batches(plan, steps, seed, data, fewer=fewer)
    _check_is_of(Path(shared), plan_digest(plan), Path(path))
    try:
        with Step(shared, pages=page_file) as step:
            return _compared(step, _Sides(plan, project), kept, batches)
    except LibraryError as error:
        raise InputError(str(error)) from None


def _check_is_of(shared: Path, digest: str, path: Path) -> None:
    """Refuse a mix-up of files before anything of ``shared`` runs; it is no protection against malice."""
    try:
        contents = shared.read_bytes()
    except OSError as error:
        raise InputError(f"{shared}: cannot be read ({error.strerror})") from None
    if not contents.startswith(b"\x7fELF"):
        raise InputError(f"{shared}: is not a shared library for this machine")
    if digest.encode("ascii") not in contents:
        raise InputError(f"{shared}: was made from another plan than {path}; export and build it again")


def _check_comparable(plan: Plan) -> None:
    if any(op.random for op in plan.graph.ops):
        raise PlanError(
            f"{plan.model.name}: its dropout draws other masks in C than in PyTorch, so that no step can be "
            "compared; plan it without dropout to check a library"
        )


def _batches(
    plan: Plan, steps: int, seed: int, data: str | Path | None, *, fewer: bool
) -> list[dict[str, Tensor]]:
    """Inputs and target of each step, by value."""
    names = plan.graph.inputs
    if data is None:
        drawn = starmap(_flat, (random_batch(plan, seed + number) for number in range(steps)))
        return [dict(zip(names, tensors, strict=True)) for tensors in drawn]
    samples = load_samples(data, plan)
    rows = len(samples.staged[0])
    if fewer:
        steps = max(1, min(steps, samples.count // rows))
    if samples.count < rows * steps:
        raise InputError(f"{data}: {samples.count} samples are too few for {steps} steps of {rows}")
    chosen = (torch.arange(rows * number, rows * (number + 1)) for number in range(steps))
    taken = ([tensor.clone() for part in samples.batch(item) for tensor in part] for item in chosen)
    return [dict(zip(names, tensors, strict=True)) for tensors in taken]


def _flat(inputs: Sequence[Tensor], targets: Tensor | Sequence[Tensor] | None) -> list[Tensor]:
    if targets is None:
        return list(inputs)
    return [*inputs, *([targets] if isinstance(targets, Tensor) else targets)]


class _Watched(NamedTuple):
    """What a buffer holds, and of which magnitude: numbers like gradients, or their squares."""

    name: str
    magnitude: str


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

    def watched(self) -> dict[str, _Watched]:
        """Buffers whose change is compared, and what they hold.

        Of AdamW the moments, not the parameters: where the true gradient is zero, as of a bias before batch
        norm, the update makes noise as large as any other. `updates` holds those against the moments.
        """
        found: dict[str, _Watched] = {}
        if not self.is_adamw:
            found = {item.value: _Watched(item.value, "") for item in self.graph.parameters}
        states = (pair for item in self.graph.parameters for pair in item.optimizer_state)
        found |= {value: _Watched(value, "square" if kind == "exp_avg_sq" else "") for kind, value in states}
        found |= {value: _Watched(name, "") for name, value in self.graph.states}
        return {self.graph.buffer_of(value): watched for value, watched in found.items()}

    @property
    def is_adamw(self) -> bool:
        """Whether parameters are held against the moments of the step that made them."""
        return self.plan.optimizer.name == "adamw"

    def updates(
        self, step: Step, names: Mapping[str, int], kept: Mapping[str, Tensor], number: int
    ) -> list[tuple[float, str]]:
        """Of each parameter of AdamW how far it is from the update, in float64, by the library's own moments.

        Args:
            step: of the library, just made.
            names: index of each buffer in the library.
            kept: what the step began with.
            number: of the step, from 1.
        """
        if not self.is_adamw:
            return []
        now = self.plan.optimizer.hyperparameters(number)
        keep, size, correction = (now[name] for name in _ADAMW_NUMBERS)
        eps = self.plan.optimizer.epsilon
        found = []
        for item in self.graph.parameters:
            states = dict(item.optimizer_state)
            if (
                not states.keys() >= {"exp_avg", "exp_avg_sq"}
                or self.graph.buffer_of(item.value) not in names
            ):
                continue
            values = (item.value, states["exp_avg"], states["exp_avg_sq"])
            made, mean, square = (self._of_library(step, names, value) for value in values)
            before = self._view(item.value, kept[self.graph.buffer_of(item.value)].double())
            if not before.numel():
                continue
            change = size * mean / (square.sqrt() / correction + eps)
            error = (made - (before * keep - change)).abs()
            shares = error / (ROUNDING * 2.0 * (before.abs() + change.abs()) + _SMALLEST)
            worst = float(shares.max())
            found.append((worst if worst == worst else float("inf"), item.value))
        return found

    def _of_library(self, step: Step, names: Mapping[str, int], value: str) -> Tensor:
        flat = step.kept(names[self.graph.buffer_of(value)])
        if flat is None:
            raise LibraryError(f"{value} is a constant in the library, and is trained in the plan")
        return self._view(value, torch.from_numpy(flat).double())

    def _view(self, value: str, flat: Tensor) -> Tensor:
        kind = self.types[value]
        return flat.as_strided(kind.shape, kind.strides, kind.offset)

    def fill(self, step: Step, given: Mapping[str, Tensor]) -> None:
        """Give a library's step its inputs and target."""
        for index, (name, _) in enumerate(self.interface.inputs):
            step.set_input(index, given[name].numpy())
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
    watched = {buffer: item for buffer, item in sides.watched().items() if buffer in names}
    found, tensors = [], len(watched)
    for number, given in enumerate(batches):
        plain, exact = (sides.plain(kept, number, is_double=is_double) for is_double in (False, True))
        for buffer, index in names.items():
            step.put(index, np.frombuffer(kept[buffer].numpy().tobytes(), dtype=np.float32))
        plain.fill(given)
        exact.fill(given)
        sides.fill(step, given)
        losses = step.train(), plain.step(), exact.step()
        after = {buffer: step.kept(names[buffer]) for buffer in watched}
        updates = sides.updates(step, names, kept, number + 1)
        tensors = len(watched) + len(updates)
        worst = max(*_distances(watched, kept, (plain.tensors, exact.tensors), after), *updates, _NOTHING)
        allowed = ALLOWED * abs(losses[1] - losses[2]) + FLOOR * (1.0 + abs(losses[2]))
        worst = max(worst, (_share(abs(losses[0] - losses[2]), allowed), "the loss"))
        found.append(LibraryStep(*losses, *worst))
        kept = {name: plain.tensors[name].clone() for name in kept}
    return LibraryReport(tuple(found), tensors)


def _distances(
    watched: Mapping[str, _Watched],
    kept: Mapping[str, Tensor],
    sides: tuple[Mapping[str, Tensor], Mapping[str, Tensor]],
    after: Mapping[str, np.ndarray[tuple[int], np.dtype[np.float32]] | None],
) -> list[tuple[float, str]]:
    """Of each tensor how far the library is from float64, as a share of what is allowed, and its name."""
    plain, exact = sides
    changes = {buffer: exact[buffer].double() - kept[buffer].double() for buffer in watched}
    largest: dict[str, float] = {}
    for buffer, (_, kind) in watched.items():
        if kept[buffer].is_floating_point() and changes[buffer].numel():
            largest[kind] = max(largest.get(kind, 0.0), float(changes[buffer].abs().max()))
    found = []
    for buffer, (name, kind) in watched.items():
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
        found.append((_share(error, allowed + FLOOR * largest[kind]), name))
    return found


def _share(error: float, allowed: float) -> float:
    """Infinite where one of them is not finite: then nothing was compared."""
    if not (math.isfinite(error) and math.isfinite(allowed)):
        return math.inf
    return error / allowed if allowed else (0.0 if error == 0.0 else math.inf)
