"""Training steps of exported C beside PyTorch's in float32 and in float64, on the same samples.

*Locked*: every step starts from PyTorch's state, and the gradients are compared. *Free*: the three train on
from the same weights, and their losses are compared.

An input of a rectifier that is zero but for rounding lies on either side, and the gradient has a jump there:
no error of rounding. So C and PyTorch in float32 are each compared with a step in float64 that has every
rectifier on the same side as they. No two tensors of the C step share a place, so that its sides can be read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers.c_build import CStep, build
from helpers.c_plans import traced
from helpers.shuffled import with_arena
from poet.c99.project import c_project, initial_contents
from poet.c99.vectors import PlainSteps
from poet.ir.graph import Graph, Op
from poet.ir.optimizer import OptimizerSpec
from poet.plans.plan_file import PlanFile
from poet.plans.plan_parts import Arena

ALLOWED, LUCK, FLOOR = 8.0, 1e-4, 2.0**-21
"""How often PyTorch's own error. Beside it, as PyTorch may happen to be exact (a bias of two classes has two
elements, one the negative of the other): the share of a gradient's largest element, and of the largest of
any. A gradient below that second share is zero but for rounding, as that of a bias before batch norm."""
RECTIFIER, SMALLEST = "aten.relu.default", 2.0**-200


@dataclass(frozen=True, slots=True)
class Errors:
    """The distances of one gradient from float64 in one step, each the largest over its elements.

    Attributes:
        parameter: whose gradient it is.
        of_c, of_torch: the distances.
        largest: element of the gradient in float64.
        largest_of_any: likewise, over all gradients of the step.
    """

    parameter: str
    of_c: float
    of_torch: float
    largest: float
    largest_of_any: float

    @property
    def is_zero(self) -> bool:
        """Whether the gradient is zero but for rounding."""
        return self.largest < FLOOR * self.largest_of_any

    @property
    def ratio(self) -> float:
        """How often PyTorch's own error, with nothing beside; 0 where C is exact."""
        return self.of_c / self.of_torch if self.of_torch else (math.inf if self.of_c else 0.0)

    @property
    def share(self) -> float:
        """Of what is allowed; up to 1 is right."""
        allowed = ALLOWED * self.of_torch + LUCK * self.largest + FLOOR * self.largest_of_any
        return self.of_c / allowed if allowed else (math.inf if self.of_c else 0.0)


@dataclass(frozen=True, slots=True)
class LockedStep:
    """One step from PyTorch's state.

    Attributes:
        errors: of each gradient.
        ratio: of the Euclidean distances of all gradients together.
        flips, torch_flips: how many elements C, and PyTorch in float32, had on another side of a rectifier
            than float64.
    """

    errors: tuple[Errors, ...]
    ratio: float
    flips: int
    torch_flips: int


@dataclass(frozen=True, slots=True)
class FreeStep:
    """Losses of one step of three runs: of C, and of PyTorch in float32 and in float64."""

    of_c: float
    of_torch: float
    exact: float


def farthest(steps: Sequence[FreeStep]) -> tuple[float, float]:
    """How far the losses of C, and those of PyTorch in float32, were from float64 at most."""
    of_c = max(abs(step.of_c - step.exact) for step in steps)
    return of_c, max(abs(step.of_torch - step.exact) for step in steps)


class Curves:
    """A net as exported C, with everything kept, and its graph in PyTorch.

    SGD with momentum: where the momentum is zero before a step, it is the gradient after it, unrounded.
    """

    def __init__(self, module: nn.Module, inputs: Tensor, folder: Path, *, loss: str, lr: float) -> None:
        self.spec = OptimizerSpec("momentum", lr=lr)
        net = traced(module, inputs, loss=loss, optimizer=self.spec)
        self.graph: Graph = net.step.graph
        plan = net.plan()
        ends = list(accumulate(-(-block.size_bytes // 8) * 8 for block in plan.demand.blocks))
        plan = with_arena(plan, Arena(ends[-1], (0, *ends[:-1])))
        self.places = {
            block.tensor: place // 4
            for block, place in zip(plan.demand.blocks, (0, *ends), strict=False)
            if block.tensor is not None
        }
        with PlanFile(net.write(folder.with_suffix(".poet"), plan)) as file:
            project, self.kept = c_project(file), initial_contents(file)
        project.write(folder)
        self.step = CStep(project, build(folder, "-O2"), graph=self.graph)
        self.momenta = {
            parameter.value: self.graph.buffer_of(value)
            for parameter in self.graph.parameters
            for _, value in parameter.optimizer_state
        }

    def plain(self, kept: Mapping[str, Tensor], *, is_double: bool) -> PlainSteps:
        """PyTorch, about to make a step from ``kept``."""
        return PlainSteps(self.graph, self.spec, kept, is_double=is_double)

    def put(self, kept: Mapping[str, Tensor]) -> None:
        """Give C the state ``kept``."""
        for span in self.step.project.spans:
            flat = kept[span.name]
            self.step.arena[span.word : span.word + span.words] = flat.view(torch.float32).numpy()

    def locked(self, batches: Sequence[Mapping[str, Tensor]]) -> list[LockedStep]:
        """A step for each of ``batches``, each from the state that PyTorch's step before it made."""
        kept, found = dict(self.kept), []
        for given in batches:
            kept |= {buffer: torch.zeros_like(kept[buffer]) for buffer in self.momenta.values()}
            self.step.begin()
            self.put(kept)
            plain = self.plain(kept, is_double=False)
            for side in (plain, self.step):
                side.fill(given)
                side.step()
            found.append(self._compared(plain, kept, given))
            kept = {name: plain.tensors[name].clone() for name in kept}
        return found

    def _compared(
        self, plain: PlainSteps, kept: Mapping[str, Tensor], given: Mapping[str, Tensor]
    ) -> LockedStep:
        """The step that C and ``plain`` just made, each against float64 on its own sides of rectifiers."""
        made = self.step.kept()
        of_c = {name: torch.from_numpy(made[buffer]) for name, buffer in self.momenta.items()}
        rights = [self._exact(kept, given, sides) for sides in (self._sides(), _sides(plain))]
        apart, of_torch = (
            {name: tensor.double() - right.tensors[self.momenta[name]] for name, tensor in by.items()}
            for by, right in zip((of_c, self._gradients(plain)), rights, strict=True)
        )
        largest = {name: float(item.abs().max()) for name, item in self._gradients(rights[0]).items()}
        of_any = max(largest.values())
        far, torch_far = (
            {name: float(item.abs().max()) for name, item in by.items()} for by in (apart, of_torch)
        )
        errors = tuple(Errors(name, far[name], torch_far[name], largest[name], of_any) for name in largest)
        return LockedStep(errors, _length(apart) / _length(of_torch), *(right.flips for right in rights))

    def _exact(self, kept: Mapping[str, Tensor], given: Mapping[str, Tensor], sides: _Masks) -> _Sided:
        """PyTorch in float64 after a step from ``kept``, with every rectifier on its side."""
        exact = _Sided(self.graph, self.spec, kept, sides)
        exact.fill(given)
        exact.step()
        return exact

    def _sides(self) -> _Masks:
        """Which elements of each rectifier's output are above zero in the step that C just made."""
        types, found = {value.name: value.type for value in self.graph.values}, {}
        for made, _ in _rectified(self.graph):
            flat, kind = self.step.arena[self.places[self.graph.buffer_of(made)] :], types[made]
            found[made] = torch.from_numpy(flat).as_strided(kind.shape, kind.strides, kind.offset) > 0
        return found

    def _gradients(self, of: PlainSteps) -> dict[str, Tensor]:
        return {name: of.tensors[buffer] for name, buffer in self.momenta.items()}

    def free(self, batches: Sequence[Mapping[str, Tensor]]) -> list[FreeStep]:
        """The three train on, a step for each of ``batches``."""
        self.step.begin()
        sides = (self.step, self.plain(self.kept, is_double=False), self.plain(self.kept, is_double=True))
        found = []
        for given in batches:
            for side in sides:
                side.fill(given)
            found.append(FreeStep(*(side.step() for side in sides)))
        return found


def _length(apart: Mapping[str, Tensor]) -> float:
    """The Euclidean length of all tensors together."""
    return math.sqrt(sum(float(item.square().sum()) for item in apart.values()))


_Masks = Mapping[str, Tensor]


def _rectified(graph: Graph) -> list[tuple[str, str]]:
    """Output and input of each rectifier, by value."""
    found = []
    for op in graph.ops:
        if op.call.target == RECTIFIER:
            (made,), (given,) = op.outputs, op.call.refs()
            assert made is not None
            found.append((made, given))
    return found


def _sides(plain: PlainSteps) -> _Masks:
    """Which elements of each rectifier's output are above zero in a step that was just made."""
    return {made: plain.value(made) > 0 for made, _ in _rectified(plain.graph)}


class _Sided(PlainSteps):
    """A step in float64 that has every rectifier on a given side.

    Attributes:
        flips: how many elements their own sign would have had on the other side.
    """

    def __init__(self, graph: Graph, spec: OptimizerSpec, kept: Mapping[str, Tensor], sides: _Masks) -> None:
        super().__init__(graph, spec, kept, is_double=True)
        self.sides, self.flips = sides, 0

    def run(self, op: Op, scalars: Mapping[str, float]) -> None:
        """Run one op; a rectifier gives its input, or zero, as its side is."""
        super().run(op, scalars)
        if op.call.target == RECTIFIER:
            (made,), (given,) = op.outputs, op.call.refs()
            assert made is not None
            x, above = self.value(given), self.sides[made]
            self.flips += int(((x > 0) != above).sum())
            # what is above by rounding alone has to count as above on the way back
            self.value(made).copy_(torch.where(above, x.clamp(min=SMALLEST), 0.0))


def digit_batches(curves: Curves, count: int) -> list[dict[str, Tensor]]:
    """Batches of the digits that scikit-learn brings along, as a net's input and target, by value.

    Images of 8 x 8 are enlarged to an input of [N, C, H, W], the same in each channel; one of [N, C] is what
    an image of 20 x 32 has, or 8 x 8. One of [N, T, C] or [N, C, T] has rows in turn. Without classes the
    target is the input.
    """
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    images = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8) / 8.0 - 1.0
    types = {value.name: value.type for value in curves.graph.values}
    given, target = curves.graph.inputs
    shape, classes = types[given].shape, curves.step.project.interface.classes
    found = []
    for step in range(count):
        rows = torch.arange(step * shape[0], (step + 1) * shape[0]) % len(images)
        x = _sized(images[rows], shape)
        found.append({given: x, target: torch.tensor(labels)[rows] % classes if classes else x.clone()})
    return found


def _sized(images: Tensor, shape: Sequence[int]) -> Tensor:
    """``images`` of [N, 1, 8, 8] in the shape of an input."""
    size = shape[2:] if len(shape) == 4 else (20, 32) if shape[1:] == (640,) else (8, 8)
    enlarged = images if size == (8, 8) else F.interpolate(images, tuple(size), mode="bilinear")
    return enlarged.expand(-1, shape[1], -1, -1).clone() if len(shape) == 4 else enlarged.reshape(*shape)
