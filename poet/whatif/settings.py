"""What a sweep plans: settings, from a model, devices, sizes and optimizers, and the grid of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poet.api import limits_of, samples_of
from poet.devices.device_problem import build_problem, kernels_on
from poet.devices.load import load_profile
from poet.devices.profile import Profile
from poet.devices.spread import SIDES, at_ends, uncertain_groups
from poet.errors import InputError, ProfileError
from poet.ir.loss import DEFAULT_LOSS
from poet.ir.micro import BATCH_NAMES, MicroBatches, candidates
from poet.ir.optimizer import OptimizerSpec
from poet.ir.strips import Gradients
from poet.planning.cache import Cache
from poet.planning.prepared import Form, form_on
from poet.planning.ram_survey import keep_everything_bytes
from poet.plans.plan_file import read_plan
from poet.problem import Limits, Place, Problem
from poet.solvers import minimum_ram_bytes
from poet.util.reading import printable_name
from poet.util.units import parse_factor
from poet.whatif import grid
from poet.whatif.grid import BATCH, Axis, Binding, Question
from poet.whatif.knowledge import Cell, levels
from poet.whatif.models import (
    ModelVariant,
    OnnxModel,
    TrainedAs,
    VariantOf,
    Wanted,
    module_inputs,
    module_variant,
    variant_of,
)
from poet.whatif.result import Setting
from poet.whatif.workers import Run, Workers, working

if TYPE_CHECKING:
    from torch import nn

    from poet.whatif.models import Inputs

DEFAULT_OPTIMIZER = "sgd"
WHOLE = (None,)
"""The micro-batches of a sweep that asks about none."""
MOST_POINTS = 100_000
PLACES_MUST_AGREE = (
    "micro-batches one after the other have two schedules, which must agree where parameters live: give "
    "--home ram or storage"
)


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

    def told(self, settings: Sequence[Setting]) -> dict[str, Any]:
        """What a `Question` says of the model and its ``settings``."""
        return {
            "model": self.name,
            "devices": tuple(dict.fromkeys(setting.device for setting in settings)),
            "bindings": tuple(dict.fromkeys(setting.binding for setting in settings)),
            "optimizers": tuple(dict.fromkeys(setting.optimizer for setting in settings)),
            "micro": tuple(dict.fromkeys(setting.micro_text or "1" for setting in settings)),
            "train": self.how.train or ("*",),
            "loss": self.how.loss,
        }

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
            raise InputError(PLACES_MUST_AGREE)
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
        with working(Workers(self.workers.jobs)) as run:  # whose memory ends before the searches begin
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


# --- problems of devices ----------------------------------------------------------------------


def setting_of(
    problem: Problem,
    *,
    profile: Profile | None = None,
    variant: ModelVariant | None = None,
    device: tuple[str, str] | None = None,
    accumulating: Setting | None = None,
) -> Setting:
    """The record of a ``problem``; ``device`` is a name and a title where there is no profile.

    ``accumulating`` is that of all micro-batches but the last, where ``variant`` has them one by one.
    """
    name, title = device or (
        (profile.name, profile.title) if profile is not None else (problem.name, problem.source)
    )
    lower_bound = minimum_ram_bytes(problem, Limits())
    keep_bytes = keep_everything_bytes(problem)
    if accumulating is not None:
        lower_bound = max(lower_bound, accumulating.lower_bound, key=lambda bound: bound.bytes)
        keep_bytes = max(keep_bytes, accumulating.keep_everything_bytes)
    return Setting(
        device=name,
        device_title=title,
        binding=variant.binding if variant is not None else (),
        batch=variant.batch if variant is not None else None,
        optimizer=variant.optimizer if variant is not None else "",
        problem=problem,
        profile=profile,
        keep_everything_bytes=keep_bytes,
        lower_bound=lower_bound,
        ends=None if profile is None or variant is None else _ends(problem, variant, profile),
        micro=None if variant is None else variant.micro,
        accumulating=accumulating,
    )


def _ends(problem: Problem, variant: ModelVariant, profile: Profile) -> tuple[Problem, Problem]:
    """``problem`` with every figure of ``profile`` at its good and at its bad end."""
    moved = uncertain_groups(profile)
    good, bad = (at_ends(problem, variant.graph, profile, dict.fromkeys(moved, side)) for side in SIDES)
    return good, bad


def problem_of(variant: ModelVariant, profile: Profile, home: Place) -> Problem:
    """The planning problem of a training step on ``profile``'s device."""
    kernels = kernels_on(profile, variant.graph, variant.kernels)
    return build_problem(variant.graph, profile, kernels, home=home)


def settings_of(variants: Iterable[ModelVariant], profiles: Sequence[Profile], home: Place) -> list[Setting]:
    """One per device and variant, in this order."""
    made = list(variants)
    return [_on_device(variant, profile, home) for profile in profiles for variant in made]


def _on_device(variant: ModelVariant, profile: Profile, home: Place) -> Setting:
    """A variant with its costs on ``profile``'s device, and what its pieces but the last do."""
    beside = None if variant.accumulation is None else _on_device(variant.accumulation, profile, home)
    problem = problem_of(variant, profile, home)
    return setting_of(problem, profile=profile, variant=variant, accumulating=beside)


def plan_settings(path: Path, profiles: Sequence[Profile], home: Place) -> list[Setting]:
    """Of a saved plan: its own problem, or its graph costed on other devices.

    Raises:
        InputError: it has two schedules, whose homes would be chosen apart.
    """
    plan = read_plan(path)
    beside = plan.accumulation
    if beside is not None and home is Place.EITHER:
        raise InputError(PLACES_MUST_AGREE)
    variant = variant_of(
        plan.graph,
        plan.replayed_kernels,
        plan.model.binding,
        plan.optimizer.name,
        plan.request.micro,
        None if beside is None else (beside.graph, beside.replayed_kernels),
    )
    if profiles:
        return settings_of([variant], profiles, home)
    try:
        known = load_profile(plan.device.name)
    except ProfileError:
        known = None
    same = known is not None and problem_of(variant, known, home) == plan.problem
    profile, device = known if same else None, (plan.device.name, plan.device.title)
    pieces = None
    if beside is not None:
        pieces = setting_of(beside.problem, profile=profile, variant=variant.accumulation, device=device)
    return [setting_of(plan.problem, profile=profile, variant=variant, device=device, accumulating=pieces)]


def _keep_bytes(setting: Setting) -> int:
    """What plain training needs, or all the RAM of the device where that is less but enough for a plan."""
    if setting.profile is None or setting.profile.memory.ram_bytes.value < setting.lower_bound.bytes:
        return setting.keep_everything_bytes
    return min(setting.keep_everything_bytes, setting.profile.memory.ram_bytes.value)


def _deadline_seconds(text: str | None, setting: Setting) -> float | None:
    """Of a step, all its pieces; a factor is of running every op once."""
    factor = None if text is None else parse_factor(text)
    if factor is not None and setting.accumulating is not None:
        return factor * setting.compute_seconds
    return limits_of(setting.problem, ram=None, deadline=text).deadline_seconds


def grid_of(setting: Setting, question: Question) -> list[Cell]:
    """The cells of a setting: each RAM budget with each deadline, budgets ascending.

    Raises:
        InputError: the grid is too large, or an axis cannot be read.
    """
    budgets = grid.ram_budgets(
        question.ram, least_bytes=setting.lower_bound.bytes, keep_bytes=_keep_bytes(setting)
    )
    limits = [(text, _deadline_seconds(text, setting)) for text in question.deadlines]
    limits.sort(key=lambda item: (item[1] is None, item[1]))
    if len(budgets) * len(limits) > MOST_POINTS:
        raise InputError(
            f"{len(budgets)} budgets and {len(limits)} deadlines: more than {MOST_POINTS} points"
        )
    rows, columns = levels(len(budgets)), levels(len(limits))
    return [
        Cell(
            Limits(
                ram_budget_bytes=budget,
                deadline_seconds=seconds,
                recompute=question.recompute,
                paging=question.paging,
            ),
            text,
            max(row, column),
        )
        for budget, row in zip(budgets, rows, strict=True)
        for (text, seconds), column in zip(limits, columns, strict=True)
    ]
