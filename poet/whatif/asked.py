"""What a sweep is asked about: the model, its devices and optimizers, and who does the work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from poet.api import samples_of
from poet.devices.load import load_profile
from poet.devices.profile import Profile
from poet.errors import InputError
from poet.files.reading import printable_name
from poet.loss import DEFAULT_LOSS
from poet.micro import BATCH_NAMES, MicroBatches, candidates
from poet.optimizer import OptimizerSpec
from poet.planning.prepared import Form, form_on
from poet.problem import Place, Problem
from poet.strips import Gradients
from poet.whatif import grid
from poet.whatif.cache import Cache
from poet.whatif.grid import Binding
from poet.whatif.largest import Axis, VariantOf
from poet.whatif.models import (
    BATCH,
    ModelVariant,
    OnnxModel,
    TrainedAs,
    Wanted,
    module_inputs,
    module_variant,
)
from poet.whatif.result import Setting
from poet.whatif.settings import HOMES_MUST_AGREE, plan_settings, setting_of, settings_of
from poet.whatif.workers import Run, Workers, working

if TYPE_CHECKING:
    from torch import nn

    from poet.whatif.models import Inputs


DEFAULT_OPTIMIZER = "sgd"
WHOLE = (None,)
"""The micro-batches of a sweep that asks about none."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be planned, where, and by whom."""

    model: str | Path | nn.Module
    example_inputs: Inputs | None
    profiles: tuple[Profile, ...]
    specs: tuple[OptimizerSpec, ...]
    how: TrainedAs
    batch: str | None
    bind: tuple[str, ...]
    axes: tuple[Axis, ...]
    home: Place
    cache: Cache
    workers: Workers
    micro: tuple[MicroBatches | str | None, ...] = WHOLE

    @property
    def path(self) -> Path | None:
        """Of the model's file; ``None`` for a module."""
        return Path(self.model) if isinstance(self.model, str | Path) else None

    @property
    def name(self) -> str:
        """For people."""
        return printable_name(self.path) if self.path is not None else type(self.model).__name__

    @property
    def importers(self) -> Workers:
        """Local workers that import; they end before the searches begin, and their memory with them."""
        return Workers(self.workers.jobs)

    def settings(self) -> list[Setting]:
        """What is planned: one setting per device, binding, optimizer and number of micro-batches."""
        path = self.path
        self._refuse_micro()
        if path is not None and path.suffix in (".json", ".poet"):
            if self.batch is not None or self.bind:
                raise InputError(
                    f"{path.name} has its sizes; leave batch and bind out, or give the ONNX model"
                )
            self._refuse_what_the_file_says(path)
            if path.suffix == ".poet":
                return plan_settings(path, self.profiles, self.home)
            if self.profiles:
                raise InputError(f"{path.name} is a planning problem, which has its costs; leave device out")
            problem = Problem.load(path)
            if problem.alternatives:
                raise InputError(
                    f"{path.name} has alternatives, which what-if does not know; poet solve does"
                )
            return [setting_of(problem)]
        if not self.profiles:
            raise InputError("a model needs a device; `poet devices list` shows the names")
        forms = dict.fromkeys(form_on(profile, self.home) for profile in self.profiles)
        variants = {form: self._variants(form) for form in forms}
        return [
            setting
            for profile in self.profiles
            for setting in settings_of(variants[form_on(profile, self.home)], [profile], self.home)
        ]

    def _refuse_micro(self) -> None:
        """Micro-batches that no plan has.

        Raises:
            InputError: their schedules would not agree where parameters live, or the question has none.
        """
        if self.micro != WHOLE and self.home is Place.EITHER:
            raise InputError(HOMES_MUST_AGREE)
        for axis in self.axes:
            if self.micro != WHOLE:
                raise InputError(f"--largest {axis.name} asks about whole batches; leave --micro out")

    def _refuse_what_the_file_says(self, path: Path) -> None:
        """A saved plan or problem has its loss, its optimizer and its sizes; a problem has its homes too.

        Raises:
            InputError: something else is asked of it.
        """
        for axis in self.axes:
            raise InputError(f"--largest {axis.name} needs an ONNX model with that dimension open")
        said = (
            ("optimizer", "optimizer", self.specs != (OptimizerSpec(DEFAULT_OPTIMIZER),)),
            ("loss", "loss", self.how.loss != DEFAULT_LOSS),
            ("train", "trained parameters", self.how.train is not None),
            ("micro", "micro-batches", self.micro != WHOLE),
            ("gradients", "gradients", self.how.gradients != Gradients.STREAM.value),
            ("home", "homes", self.home is not Place.RAM and (path.suffix == ".json" or not self.profiles)),
        )
        for option, what, given in said:
            if given:
                raise InputError(f"{path.name} has its {what} already; leave {option} out")

    def _variants(self, form: Form) -> list[ModelVariant]:
        """The model with each binding, optimizer and number of pieces, in the ``form`` of some devices."""
        path = self.path
        if path is None:
            return self._of_module(form)
        onnx = OnnxModel(path, self.how, self.cache)
        with working(self.importers) as run:
            for axis in self.axes:
                onnx.dimensions(axis.name, run)
            found = grid.bindings(self.batch, self.bind, lambda: onnx.dimensions(BATCH, run)[0])
            wanted = [item for binding in found for item in self._wanted(binding, self._bound(binding))]
            return onnx.variants(wanted, form, run)

    def _of_module(self, form: Form) -> list[ModelVariant]:
        """The same of a module."""
        for axis in self.axes:
            if axis.name != BATCH:
                raise InputError(f"--largest {axis.name} needs an ONNX model with that dimension open")
        made = []
        for batch in [None] if self.batch is None else grid.counts(self.batch, "batch"):
            inputs = module_inputs(self.example_inputs, batch)
            if inputs is None and self.micro != WHOLE:
                raise InputError("micro-batches of a module need example_inputs, whose batch they divide")
            samples = 0 if inputs is None else samples_of(inputs, {})
            made += [
                module_variant(self._module(), inputs, item, self.how, form)
                for item in self._wanted(() if batch is None else ((BATCH, batch),), samples)
            ]
        return made

    def _bound(self, binding: Binding) -> int:
        """Samples of a batch of a file with that ``binding``; 0 where no micro-batches are asked about.

        Raises:
            InputError: they are, and the binding has no batch by a name that they go by.
        """
        if self.micro == WHOLE:
            return 0
        names = [name for name, _ in binding]
        if self.batch is not None and not {*names} & {*BATCH_NAMES}:
            raise InputError(
                f"the batch of {self.name} is called {names[0]!r}; micro-batches need it to be "
                f"{' or '.join(BATCH_NAMES)}"
            )
        return samples_of(None, dict(binding))

    def _wanted(self, binding: Binding, samples: int) -> Iterator[Wanted]:
        """What to import with a ``binding`` whose batch has so many ``samples``.

        Raises:
            InputError: the batch cannot be divided as it is asked.
        """
        pieces: dict[MicroBatches | None, None] = {}
        for one in self.micro:
            if isinstance(one, str):
                pieces |= dict.fromkeys(candidates(samples, one))
                continue
            if one is not None and (not samples or samples % one.count):
                raise InputError(
                    f"a batch of {samples} samples cannot be divided into {one.count} micro-batches; leave "
                    "that size or that number out, or ask for --micro auto"
                )
            pieces[one] = None
        for spec in self.specs:
            for one in pieces:
                yield binding, spec, one

    def variant_by_size(self, axis: Axis, profile: Profile, fixed: Binding, run: Run) -> VariantOf:
        """A function from a size of ``axis`` to the model's variant of that size for ``profile``'s device."""
        form = form_on(profile, self.home)
        path, spec = self.path, self.specs[0]
        if path is None:
            return lambda size: module_variant(
                self._module(),
                module_inputs(self.example_inputs, size),
                (((BATCH, size),), spec, None),
                self.how,
                form,
            )
        onnx = OnnxModel(path, self.how, self.cache)
        names = onnx.dimensions(axis.name, run)
        others = tuple((name, size) for name, size in fixed if name not in names)

        def variant(size: int) -> ModelVariant:
            binding = (*others, *((name, size) for name in names))
            return onnx.variants([(binding, spec, None)], form, run)[0]

        return variant

    def _module(self) -> nn.Module:
        assert not isinstance(self.model, str | Path)
        return self.model


def profiles_of(device: str | Path | Profile | Sequence[str | Path | Profile]) -> tuple[Profile, ...]:
    """The profiles that ``device`` names: one, several, or several names with commas between."""
    if isinstance(device, Profile):
        return (device,)
    if isinstance(device, str):
        return tuple(load_profile(name) for name in grid.words(device, "--device"))
    if isinstance(device, Path):
        return (load_profile(device),)
    return tuple(profile for item in device for profile in profiles_of(item))


def specs_of(optimizer: str | OptimizerSpec | Sequence[str | OptimizerSpec]) -> tuple[OptimizerSpec, ...]:
    """The optimizers that ``optimizer`` names: one, several, or several names with commas between."""
    if isinstance(optimizer, OptimizerSpec):
        return (optimizer,)
    if isinstance(optimizer, str):
        return tuple(OptimizerSpec(name) for name in grid.words(optimizer, "--optimizer"))
    return tuple(spec for item in optimizer for spec in specs_of(item))
