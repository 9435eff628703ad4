"""Holds a shared library of an exported plan against PyTorch, step by step, on the same data.

The bits are not PyTorch's, as C adds in another order. So both make each step from the same state, PyTorch's
also in float64, and what a step changes in C may be as far from float64 as a multiple of PyTorch's own error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

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
            return _Comparison(step, plan, project).report(kept, batches)
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
    if data is None:
        drawn = [random_batch(plan, seed + number) for number in range(steps)]
        parts = [(*inputs, *_several(targets)) for inputs, targets in drawn]
    else:
        samples = load_samples(data, plan)
        rows = len(samples.staged[0])
        if fewer:
            steps = max(1, min(steps, samples.count // rows))
        if samples.count < rows * steps:
            raise InputError(f"{data}: {samples.count} samples are too few for {steps} steps of {rows}")
        chosen = (torch.arange(rows * number, rows * (number + 1)) for number in range(steps))
        parts = [tuple(tensor.clone() for part in samples.batch(item) for tensor in part) for item in chosen]
    return [dict(zip(plan.graph.inputs, tensors, strict=True)) for tensors in parts]


def _several(targets: Tensor | Sequence[Tensor] | None) -> Sequence[Tensor]:
    return () if targets is None else (targets,) if isinstance(targets, Tensor) else targets


class _Comparison:
    """A library beside its plan.

    Attributes:
        names: index of each buffer in the library.
        watched: buffers whose change is compared: the value that each holds, and whether its numbers are like
            the squares of gradients. Of AdamW these are the moments, not the parameters: where the true
            gradient is zero, as of a bias before batch norm, the update makes noise as large as any other.
            Those are held against the moments of the step that made them.
    """

    def __init__(self, step: Step, plan: Plan, project: CProject) -> None:
        self.step, self.plan, self.graph, self.interface = step, plan, plan.graph, project.interface
        self.names = {span.name: index for index, span in enumerate(project.spans)}
        self.types = {value.name: value.type for value in self.graph.values}
        self.is_adamw = plan.optimizer.name == "adamw"
        parameters = () if self.is_adamw else ((item.value, item.value) for item in self.graph.parameters)
        found = {value: (name, False) for value, name in parameters}
        states = (pair for item in self.graph.parameters for pair in item.optimizer_state)
        found |= {value: (value, kind == "exp_avg_sq") for kind, value in states}
        found |= {value: (name, False) for name, value in self.graph.states}
        by_buffer = {self.graph.buffer_of(value): watched for value, watched in found.items()}
        self.watched = {buffer: item for buffer, item in by_buffer.items() if buffer in self.names}

    def report(self, kept: Mapping[str, Tensor], batches: Sequence[Mapping[str, Tensor]]) -> LibraryReport:
        """Each step by all three, from PyTorch's state."""
        found, tensors = [], len(self.watched)
        for number, given in enumerate(batches):
            plain, exact = (
                PlainSteps(self.graph, self.plan.optimizer, kept, is_double=is_double)
                for is_double in (False, True)
            )
            plain.steps = exact.steps = number
            for buffer, index in self.names.items():
                self.step.put(index, np.frombuffer(kept[buffer].numpy().tobytes(), dtype=np.float32))
            plain.fill(given)
            exact.fill(given)
            self._fill(given)
            losses = self.step.train(), plain.step(), exact.step()
            updates = self._updates(kept, number + 1) if self.is_adamw else []
            tensors = len(self.watched) + len(updates)
            worst = max(*self._distances(kept, plain.tensors, exact.tensors), *updates, _NOTHING)
            allowed = ALLOWED * abs(losses[1] - losses[2]) + FLOOR * (1.0 + abs(losses[2]))
            worst = max(worst, (_share(abs(losses[0] - losses[2]), allowed), "the loss"))
            found.append(LibraryStep(*losses, *worst))
            kept = {name: plain.tensors[name].clone() for name in kept}
        return LibraryReport(tuple(found), tensors)

    def _fill(self, given: Mapping[str, Tensor]) -> None:
        for index, (name, _) in enumerate(self.interface.inputs):
            self.step.set_input(index, given[name].numpy())
        if self.interface.target is not None:
            target = given[self.interface.target[0]].numpy()
            fill = self.step.set_target if self.interface.classes is None else self.step.set_classes
            fill(target)

    def _updates(self, kept: Mapping[str, Tensor], number: int) -> list[tuple[float, str]]:
        """Of each parameter of AdamW how far it is from the update, in float64, by the library's own moments.

        Args:
            kept: what step ``number``, counted from 1, began with.
            number: of the step that the library has just made.
        """
        now, eps = self.plan.optimizer.hyperparameters(number), self.plan.optimizer.epsilon
        keep, size, correction = (now[name] for name in _ADAMW_NUMBERS)
        found = []
        for item in self.graph.parameters:
            states, buffer = dict(item.optimizer_state), self.graph.buffer_of(item.value)
            if not states.keys() >= {"exp_avg", "exp_avg_sq"} or buffer not in self.names:
                continue
            values = (item.value, states["exp_avg"], states["exp_avg_sq"])
            made, mean, square = map(self._of_library, values)
            before = self._view(item.value, kept[buffer].double())
            if not before.numel():
                continue
            change = size * mean / (square.sqrt() / correction + eps)
            error = (made - (before * keep - change)).abs()
            worst = float((error / (ROUNDING * 2.0 * (before.abs() + change.abs()) + _SMALLEST)).max())
            found.append((math.inf if math.isnan(worst) else worst, item.value))
        return found

    def _of_library(self, value: str) -> Tensor:
        flat = self.step.kept(self.names[self.graph.buffer_of(value)])
        if flat is None:
            raise LibraryError(f"{value} is a constant in the library, and is trained in the plan")
        return self._view(value, torch.from_numpy(flat).double())

    def _view(self, value: str, flat: Tensor) -> Tensor:
        kind = self.types[value]
        return flat.as_strided(kind.shape, kind.strides, kind.offset)

    def _distances(
        self, kept: Mapping[str, Tensor], plain: Mapping[str, Tensor], exact: Mapping[str, Tensor]
    ) -> list[tuple[float, str]]:
        """Of each tensor how far the library is from float64, as a share of what is allowed, and its name."""
        largest = {False: 0.0, True: 0.0}
        changes = {buffer: (exact[buffer].double() - kept[buffer].double()).abs() for buffer in self.watched}
        for buffer, (_, is_square) in self.watched.items():
            if kept[buffer].is_floating_point() and changes[buffer].numel():
                largest[is_square] = max(largest[is_square], float(changes[buffer].max()))
        found = []
        for buffer, (name, is_square) in self.watched.items():
            bits, before = self.step.kept(self.names[buffer]), kept[buffer]
            if bits is None or not before.numel():
                continue
            by_c = torch.from_numpy(bits).view(before.dtype)
            if not before.is_floating_point():
                found.append((0.0 if torch.equal(by_c, plain[buffer]) else math.inf, name))
                continue
            error = float((by_c.double() - exact[buffer]).abs().max())
            allowed = ALLOWED * float((plain[buffer].double() - exact[buffer]).abs().max())
            allowed += ROUNDING * float(before.abs().max()) + LUCK * float(changes[buffer].max())
            found.append((_share(error, allowed + FLOOR * largest[is_square]), name))
        return found


def _share(error: float, allowed: float) -> float:
    """Infinite where one of them is not finite: then nothing was compared."""
    if not (math.isfinite(error) and math.isfinite(allowed)):
        return math.inf
    return error / allowed if allowed else (0.0 if error == 0.0 else math.inf)
