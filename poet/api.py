"""From a model to a plan, in the order of the data.

    planned = poet.plan("model.onnx", device="rpi4b", ram="64MiB")
    planned.save("plan.poet")

`poet.plan` is these stages, each a function of its own:

====================  ======================================================================
`prepare`             read or take the model, trace the training step, cost it on the device
`limits_of`           what a plan must stay within, from text as people write it
`solve_step`          search the schedule
`fit_step`            lay it out in one arena inside the budget; may search again with less
`measured_on_host`    optional: run a few training steps here and time the ops in them
`plan_with`           put the plan together; neither searches nor runs anything
====================  ======================================================================

`plan_step` runs the last four.
"""

from __future__ import annotations

import enum
import hashlib
import json
import math
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from poet.brief import shortened, told
from poet.devices.costs import build_problem, deadline_seconds, kernels_on
from poet.devices.load import load_profile
from poet.devices.profile import Profile
from poet.errors import Infeasible, InputError, ModelError, OutOfTime, nearest
from poet.files.apart import check_apart
from poet.files.reading import printable_name
from poet.fit_layout import Fitted, fit, searching
from poet.kernel_facts import KernelFacts
from poet.optimizer import OptimizerSpec
from poet.plan_file import write_plan
from poet.problem import Limits, Objective, Pins, Place, Problem
from poet.ram_survey import keep_everything_bytes
from poet.solution import Progress, Solution, SolveOptions, Status
from poet.solvers import minimum_ram_bytes
from poet.solvers.search.explain import answered
from poet.summary import as_html, as_text, summary_rows
from poet.training_plan import Device, Model, Plan, Request, SearchOutcome, make_plan
from poet.units import format_bytes, parse_bytes, parse_joules

if TYPE_CHECKING:
    from torch import Tensor, nn

    from poet.frontend.trace import TrainingStep


_Word = TypeVar("_Word", Place, Objective)


class Omitted(enum.Enum):
    """The default of an argument that was not given, where ``None`` is an answer of its own."""

    OMITTED = "omitted"

    __repr__ = enum.Enum.__str__


OMITTED = Omitted.OMITTED


@dataclass(frozen=True, slots=True)
class Prepared:
    """A training step with its costs on a device: all that planning needs.

    Attributes:
        model: which model it is.
        structure: the ONNX file without its weights; ``None`` for a module.
        step: the traced training step and the tensors it starts from.
        profile: the device.
        kernels: what the device's kernels need.
        problem: the step's costs there.
        train: patterns of the parameters that are trained.
        import_seconds: wall clock of reading, tracing and measuring.
        model_path: where the model was read from; ``None`` for a module.
        names_remark: what of the given names could not be matched; empty if all was.
    """

    model: Model
    structure: bytes | None
    step: TrainingStep
    profile: Profile
    kernels: KernelFacts
    problem: Problem
    train: tuple[str, ...]
    import_seconds: float
    model_path: Path | None = None
    names_remark: str = ""

    def __repr__(self) -> str:
        graph = self.step.graph
        parts = f"{len(graph.ops)} ops, {len(graph.buffers)} buffers"
        return told(self, f"{shortened(self.model.name)} on {self.profile.name}: {parts}, {self.step.loss}")


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan together with the weights it starts from.

    Attributes:
        plan: what to save and to explain.
        solution: how the search ended.
        prepared: what it was made from.
    """

    plan: Plan
    solution: Solution
    prepared: Prepared

    @property
    def peak_ram_bytes(self) -> int:
        """The most RAM that a step holds."""
        return self.plan.prediction.peak_ram_bytes

    @property
    def joules(self) -> float:
        """Of one step."""
        return self.plan.prediction.joules

    @property
    def seconds(self) -> float:
        """Of one step on the device."""
        return self.plan.prediction.seconds

    def summary(self) -> str:
        """What the plan is for, what a step takes and how good that is, in a dozen lines."""
        return as_text(summary_rows(self.plan))

    def __repr__(self) -> str:
        return f"<Planned {repr(self.plan).partition(' ')[2]}"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return as_html(summary_rows(self.plan), title=f"Plan for {self.plan.model.name}")

    def save(self, path: str | Path) -> None:
        """Write the plan file, whole or not at all.

        Raises:
            InputError: ``path`` is a file that the plan was made from.
            PoetError: the folder cannot be written or is full.
        """
        from poet.runtime.state import raw_tensor

        check_apart({"the plan": path}, reads=self._sources(Path(path)))
        stored = {name: raw_tensor(tensor) for name, tensor in self.prepared.step.tensors.items()}
        write_plan(path, self.plan, stored, structure=self.prepared.structure)

    def _sources(self, path: Path) -> dict[str, Path | list[Path]]:
        """The files that it was made from: all that writing to ``path`` could destroy."""
        model = self.prepared.model_path
        if model is None:
            return {}
        from poet.frontend.onnx.reader import data_files

        return {"the model": model, "the model's weights": data_files(model, [path])}


def plan(
    model: str | Path | nn.Module,
    example_inputs: Tensor | Sequence[Tensor] | None = None,
    *,
    device: str | Path | Profile,
    ram: str | int | Omitted | None = OMITTED,
    deadline: str | float | Omitted | None = OMITTED,
    loss: str = "cross-entropy",
    optimizer: str | OptimizerSpec = "sgd",
    train: Iterable[str] | None = None,
    bind: Mapping[str, int] | None = None,
    names: str | Path | nn.Module | Mapping[str, Tensor] | None = None,
    recompute: bool | Omitted = OMITTED,
    paging: bool | Omitted = OMITTED,
    written: str | int | Omitted | None = OMITTED,
    energy: str | float | Omitted | None = OMITTED,
    pins: Pins | Omitted | None = OMITTED,
    home: Place | str = Place.RAM,
    minimise: Objective | str | Omitted = OMITTED,
    time_limit_seconds: float | Omitted | None = OMITTED,
    progress: Progress | Omitted | None = OMITTED,
    limits: Limits | None = None,
    options: SolveOptions | None = None,
    measure_host: bool = True,
) -> Planned:
    """Plan one training step of ``model`` on ``device`` inside ``ram``.

    What the plan must stay within is said either in short forms (``ram``, ``deadline``, ``recompute``,
    ``paging``, ``written``, ``energy``, ``pins``) or as one record, ``limits``; how to search, either in
    short forms (``minimise``, ``time_limit_seconds``, ``progress``) or as one record, ``options``.

    Args:
        model: path of an ONNX file, or a module on the CPU in the mode in which it is to train.
        example_inputs: for a module: tensors of the shapes of every step.
        device: profile by name, file or record.
        ram: budget for all tensors, in bytes or as text (``"64MiB"``); ``None``: unlimited. Needed
            unless ``limits`` is given.
        deadline: for one step: seconds, ``"20ms"``, or ``"1.3x"`` of running every op once; default none.
        loss: ``cross-entropy``, ``mse``, ``bce-with-logits`` or ``output``, of the model's first output.
            Classes stand in dim 1, as in torch; ``cross-entropy:dim=-1`` where they are last ([N,T,C]).
        optimizer: ``sgd``, ``momentum``, ``adamw``, or a specification with its settings.
        train: patterns of parameter names; not given: all that require a gradient.
        bind: sizes of an ONNX file's dynamic dimensions.
        names: for an ONNX file: the module that was exported, its state dict, or a file of it (``.pt`` or
            ``.safetensors``), so that what is trained has its names, and what it froze stays frozen.
        recompute: whether ops may run again; default yes.
        paging: whether tensors may move to storage; default yes.
        written: what a step may write to storage, in bytes or as text; default unlimited.
        energy: joules that a step may take, as a number or as text (``"1.5mJ"``); default unlimited.
        pins: tensors to keep, recompute or page, by patterns of names.
        home: where parameters and optimizer state are between steps: ``"ram"``, ``"storage"``, or
            ``"either"``, as the plan chooses.
        minimise: ``"energy"`` (default), ``"time"``, ``"ram"`` or ``"writes"``.
        time_limit_seconds: of the search, default 60; ``None``: until proven.
        progress: called with best plan, bound, gap and seconds.
        limits: instead of the short forms, for example another plan's ``planned.plan.request.limits``.
        options: instead of the short forms; it also has the engine, threads, seed and gaps.
        measure_host: whether to run a few training steps on this machine, for predictions of how long steps
            take here (see `measured_on_host`).

    Raises:
        InputError: the model, the device or an option is not usable, or is given in both forms.
        Infeasible: no plan exists inside the limits; the message names what binds.
        OutOfTime: the time limit passed before any plan was found.
    """
    short_limits = _given(
        "limits", limits, Limits, ram=ram, deadline=deadline, recompute=recompute, paging=paging,
        written=written, energy=energy, pins=pins,
    )  # fmt: skip
    if limits is None and "ram" not in short_limits:
        raise InputError(
            'poet.plan needs a RAM budget: ram="64MiB" (ram=None: unlimited), or limits=poet.Limits(...)'
        )
    short_options = _given(
        "options", options, SolveOptions, minimise=minimise, time_limit_seconds=time_limit_seconds,
        progress=progress,
    )  # fmt: skip
    if "minimise" in short_options:
        short_options["objective"] = _one_of(Objective, short_options.pop("minimise"), "minimise")
    prepared = prepare(
        model,
        example_inputs,
        device=device,
        loss=loss,
        optimizer=optimizer,
        train=train,
        bind=bind,
        home=home,
        names=names,
    )
    if prepared.names_remark:
        warnings.warn(prepared.names_remark, stacklevel=2)
    return plan_step(
        prepared,
        limits or limits_of(prepared.problem, **short_limits),
        options or SolveOptions(**short_options),
        measure_host=measure_host,
    )


def _given(record: str, whole: object, kind: type, **short: Any) -> dict[str, Any]:
    """The short forms that were given; none where the ``whole`` record was.

    Raises:
        InputError: both were, or the record is of another kind.
    """
    given = {name: value for name, value in short.items() if value is not OMITTED}
    if whole is not None and not isinstance(whole, kind):
        raise InputError(
            f"{record} is a poet.{kind.__name__}, not of type {type(whole).__name__}; "
            f"write {record}=poet.{kind.__name__}(...)"
        )
    if whole is not None and given:
        raise InputError(
            f"{', '.join(given)} and {record} say the same thing twice; "
            f"leave {record} out, or put all of it into {record}=poet.{kind.__name__}(...)"
        )
    return given


def prepare(
    model: str | Path | nn.Module,
    example_inputs: Tensor | Sequence[Tensor] | None = None,
    *,
    device: str | Path | Profile,
    loss: str = "cross-entropy",
    optimizer: str | OptimizerSpec = "sgd",
    train: Iterable[str] | None = None,
    bind: Mapping[str, int] | None = None,
    home: Place | str = Place.RAM,
    names: str | Path | nn.Module | Mapping[str, Tensor] | None = None,
) -> Prepared:
    """Read or take the model, trace its training step, and cost it on the device.

    While it is traced, every kernel is run by itself on this machine, for its workspace and its time.
    Arguments as for `plan`.

    Raises:
        InputError: the model, the device or an option is not usable.
    """
    from poet.frontend.trace import trace_training_step

    start = time.perf_counter()
    at_home = _one_of(Place, home, "home")
    profile = device if isinstance(device, Profile) else load_profile(device)
    spec = OptimizerSpec(optimizer) if isinstance(optimizer, str) else optimizer
    patterns = None if train is None else tuple(train)
    source = _source(model, example_inputs, dict(bind or {}), names)
    step = trace_training_step(
        source.module,
        source.inputs,
        loss=loss,
        optimizer=spec,
        train=patterns,
        name=source.identity.name if source.identity else None,
        input_names=source.input_names,
    )
    kernels = kernels_on(profile, step.graph, step.kernels)
    return Prepared(
        model=source.identity or _module_identity(step),
        structure=source.structure,
        step=step,
        profile=profile,
        kernels=kernels,
        problem=build_problem(step.graph, profile, kernels, home=at_home),
        train=patterns or ("*",),
        import_seconds=time.perf_counter() - start,
        model_path=source.path,
        names_remark=source.names_remark,
    )


def limits_of(
    problem: Problem,
    *,
    ram: str | int | None,
    deadline: str | float | None = None,
    recompute: bool = True,
    paging: bool = True,
    written: str | int | None = None,
    energy: str | float | None = None,
    pins: Pins | None = None,
) -> Limits:
    """Limits from numbers or from text as people write it.

    Raises:
        InputError: a text is not a size, a deadline or an energy.
    """
    joules = parse_joules(energy) if isinstance(energy, str) else energy
    if joules is not None and not 0.0 < joules < math.inf:
        raise InputError(f"{energy!r} is not an energy budget; write for example 1.5mJ")
    return Limits(
        ram_budget_bytes=parse_bytes(ram) if isinstance(ram, str) else ram,
        deadline_seconds=deadline_seconds(deadline, problem) if isinstance(deadline, str) else deadline,
        recompute=recompute,
        paging=paging,
        written_budget_bytes=parse_bytes(written) if isinstance(written, str) else written,
        joules_budget=joules,
        pins=pins or Pins(),
    )


def plan_step(
    prepared: Prepared, limits: Limits, options: SolveOptions | None = None, *, measure_host: bool = True
) -> Planned:
    """Solve, fit into the arena, measure this machine unless ``measure_host`` is false, make the plan.

    Raises:
        Infeasible: no plan exists inside the limits.
        OutOfTime: none was found in time.
    """
    options = options or SolveOptions()
    fitted = fit_step(prepared, limits, solve_step(prepared, limits, options), options)
    return plan_with(measured_on_host(prepared) if measure_host else prepared, limits, fitted)


def solve_step(prepared: Prepared, limits: Limits, options: SolveOptions | None = None) -> Solution:
    """Search the schedule; where there is none, the answer's message says what would help.

    Some of the time limit is left for `fit_step`.
    """
    options = options or SolveOptions()
    return answered(prepared.problem, limits, searching(options, limits))


def fit_step(
    prepared: Prepared, limits: Limits, solution: Solution, options: SolveOptions | None = None
) -> Fitted:
    """Lay ``solution``, of ``prepared.problem`` and ``limits``, out in one arena inside the budget.

    Where the schedule's tensors leave too large gaps, it is searched again, with ``options`` and the missing
    bytes held back (see `poet.fit_layout`).

    Raises:
        Infeasible: the answer is that no plan exists.
        OutOfTime: the answer holds no plan.
        KeyboardInterrupt: it holds none because Ctrl-C ended the search.
    """
    if solution.status is Status.INFEASIBLE:
        hint = home_hint(prepared, limits)
        raise Infeasible(" ".join(filter(None, (solution.message or solution.status.value, hint))))
    fitted = fit(prepared.problem, limits, solution, options or SolveOptions(), kernels=prepared.kernels)
    if fitted is None and solution.was_interrupted:
        raise KeyboardInterrupt
    if fitted is None:
        raise OutOfTime(solution.message or solution.status.value)
    return fitted


def measured_on_host(prepared: Prepared) -> Prepared:
    """``prepared`` with per-op seconds from real training steps on this machine (see `poet.rehearsal`).

    Runs a few steps that keep everything, on random data. The times serve predictions for this machine; the
    schedule does not depend on them. Without this stage a plan has the times of each kernel by itself, from
    the import. These also stay where a step takes too long here, or more RAM than is free.
    """
    from poet.rehearsal import rehearsed

    timed = rehearsed(prepared.step)
    on_device = timed if prepared.kernels == prepared.step.kernels else prepared.kernels
    return replace(prepared, step=replace(prepared.step, kernels=timed), kernels=on_device)


def plan_with(prepared: Prepared, limits: Limits, fitted: Fitted) -> Planned:
    """Put the plan together from what `fit_step` gave for ``prepared`` and ``limits``.

    Nothing is searched and nothing is run. The homes of tensors are as the schedule has them.

    Raises:
        OutOfTime: the schedule has no gap to a bound.
    """
    prepared = replace(prepared, problem=fitted.problem)
    solution = fitted.solution
    if solution.schedule is None or solution.gap is None or solution.overhead_gap is None:
        raise OutOfTime(solution.message or solution.status.value)
    made = make_plan(
        model=prepared.model,
        request=Request(limits=limits, loss=prepared.step.loss, train=prepared.train),
        device=_device_summary(prepared.profile),
        outcome=SearchOutcome(
            status=solution.status.word,
            bound_joules=solution.bound_joules,
            bound_scope=solution.bound_scope,
            baseline_joules=solution.baseline_joules,
            gap=solution.gap,
            overhead_gap=solution.overhead_gap,
            solver=solution.solver,
            solve_seconds=solution.solve_seconds,
            objective=solution.objective,
            objective_bound=solution.objective_bound,
            proof=solution.proof,
            class_bound=solution.class_bound,
            record=solution.record,
        ),
        graph=prepared.step.graph,
        kernels=prepared.kernels,
        optimizer=prepared.step.optimizer,
        problem=fitted.problem,
        schedule=solution.schedule,
        plain_peak_ram_bytes=keep_everything_bytes(prepared.problem),
        lower_bound_ram_bytes=minimum_ram_bytes(prepared.problem, limits).bytes,
        arena=fitted.arena,
        host_kernels=prepared.step.kernels,
    )
    return Planned(made, solution, prepared)


def _one_of(words: type[_Word], given: _Word | str, option: str) -> _Word:
    try:
        return words(given)
    except ValueError:
        known = [str(word.value) for word in words]
        close = nearest(str(given), known)
        raise InputError(f"{option} {given!r} is not one of {', '.join(known)}{close}") from None


def home_hint(prepared: Prepared, limits: Limits) -> str:
    """How much less RAM is possible with parameters at home in storage; empty where that is no way out."""
    profile, budget_bytes = prepared.profile, limits.ram_budget_bytes
    if profile.storage is None or budget_bytes is None:
        return ""
    elsewhere = build_problem(prepared.step.graph, profile, prepared.kernels, home=Place.EITHER)
    least, now = minimum_ram_bytes(elsewhere, limits), minimum_ram_bytes(prepared.problem, limits)
    at_home_in_ram = all(tensor.initially is not Place.STORAGE for tensor in prepared.problem.tensors)
    if least.bytes >= now.bytes or not at_home_in_ram:
        return ""
    verb = "may be enough" if least.bytes <= budget_bytes else "is not enough"
    return (
        f"With parameters at home in storage (--home storage or auto) as little as "
        f"{format_bytes(least.bytes)} is possible, so the budget {verb}."
    )


@dataclass(frozen=True, slots=True)
class _Source:
    """A module to trace; ``identity``, ``structure`` and ``input_names`` where it comes from a file."""

    module: nn.Module
    inputs: Tensor | Sequence[Tensor]
    identity: Model | None = None
    structure: bytes | None = None
    input_names: tuple[str, ...] | None = None
    path: Path | None = None
    names_remark: str = ""


def _source(
    model: str | Path | nn.Module,
    example_inputs: Tensor | Sequence[Tensor] | None,
    bind: dict[str, int],
    names: str | Path | nn.Module | Mapping[str, Tensor] | None,
) -> _Source:
    if not isinstance(model, str | Path):
        if example_inputs is None:
            raise ModelError("a module needs example_inputs, tensors of the shapes of every step")
        if bind:
            raise ModelError("a module has no dimensions to bind; its example_inputs say the sizes")
        if names is not None:
            raise ModelError("a module has its own names; names are for an ONNX file")
        return _Source(model, example_inputs)
    if example_inputs is not None:
        raise ModelError(f"{model}: an ONNX file brings its own input shapes; leave example_inputs out")
    from poet.frontend.onnx.importer import load_onnx, strip_weights

    path = Path(model)
    imported = load_onnx(path, bind=bind, names=names)
    return _Source(
        module=imported.module,
        inputs=imported.example_inputs(),
        identity=Model(printable_name(path), "onnx", imported.digest, tuple(sorted(bind.items()))),
        structure=strip_weights(imported),
        input_names=tuple(item.name for item in imported.inputs),
        path=path,
        names_remark=imported.remark,
    )


def _module_identity(step: TrainingStep) -> Model:
    """A module has no file: what stands for it is the training step traced from it.

    Without the weights, and without what this machine's kernels need and take.
    """
    text = json.dumps(step.graph.to_json(), sort_keys=True)
    return Model(step.graph.name, "module", hashlib.sha256(text.encode()).hexdigest())


def _device_summary(profile: Profile) -> Device:
    storage = profile.storage
    capacity = storage.capacity_bytes if storage is not None else None
    return Device(
        name=profile.name,
        title=profile.title,
        ram_bytes=int(profile.memory.ram_bytes.value),
        storage_bytes=int(capacity.value) if capacity is not None else None,
        storage_page_bytes=int(storage.page_bytes.value) if storage is not None else None,
        endurance_bytes=storage.lifetime_written_bytes if storage is not None else None,
    )
