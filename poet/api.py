"""From a model to a plan, in the order of the data.

    planned = poet.plan("model.onnx", device="rpi4b", ram="64MiB")
    planned.save("plan.poet")

`poet.plan` is these stages, each a function of its own:

====================  ======================================================================
`prepare`             read or take the model, trace the training step, cost it on the device
`limits_of`           what a plan must stay within, from text as people write it
`solve_step`          search the schedule
`fit_step`            lay it out in one arena inside the budget; may search again with less
`plan_with`           put the plan together; neither searches nor runs anything
`with_accumulation`   optional: plan what all micro-batches of a step but the last do
`with_evaluation`     optional: plan the forward pass in evaluation mode beside it
`with_shapes`         optional: plan steps for batches of other shapes beside it
`with_budgets`        optional: plan the same training inside less RAM, to go to between steps
====================  ======================================================================

`plan_step` searches, lays out and puts the plan together.
"""

from __future__ import annotations

import enum
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poet.devices.profile import Profile
from poet.errors import InputError, one_of, spelled_out
from poet.micro import BATCH_NAMES, MicroBatches, micro_batches
from poet.optimizer import OptimizerSpec
from poet.planning.accumulated import candidates, least_energy, with_accumulation
from poet.planning.beside import TimeShares
from poet.planning.budgeted import check_reachable, smaller_budgets, with_budgets
from poet.planning.evaluated import with_evaluation
from poet.planning.planned import (
    Planned,
    fit_step,
    home_hint,
    limits_of,
    plan_step,
    plan_with,
    solve_step,
)
from poet.planning.prepared import Prepared, prepare
from poet.planning.saves_choice import without_choice
from poet.planning.shaped import with_shapes
from poet.problem import Limits, Objective, Pins, Place
from poet.progress import showing
from poet.solution import Progress, SolveOptions
from poet.strips import Gradients
from poet.untrained import loss_misfit

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from poet.frontend.losses import LossFunction

__all__ = [
    "Planned",
    "Prepared",
    "fit_step",
    "home_hint",
    "limits_of",
    "plan",
    "plan_step",
    "plan_with",
    "prepare",
    "solve_step",
    "with_accumulation",
    "with_budgets",
    "with_evaluation",
    "with_shapes",
]


class Omitted(enum.Enum):
    """The default of an argument that was not given, where ``None`` is an answer of its own."""

    OMITTED = "omitted"

    __repr__ = enum.Enum.__str__


OMITTED = Omitted.OMITTED


def plan(
    model: str | Path | nn.Module | torch.export.ExportedProgram,
    example_inputs: Tensor | Sequence[Tensor] | None = None,
    *,
    device: str | Path | Profile,
    ram: str | int | Omitted | None = OMITTED,
    deadline: str | float | Omitted | None = OMITTED,
    loss: str | LossFunction = "cross-entropy",
    targets: Tensor | Sequence[Tensor] | None = None,
    optimizer: str | OptimizerSpec | torch.optim.Optimizer = "sgd",
    train: Iterable[str] | None = None,
    clip_norm: float | None = None,
    clip_value: float | None = None,
    output: str | None = None,
    bind: Mapping[str, int] | None = None,
    names: str | Path | nn.Module | Mapping[str, Tensor] | None = None,
    recompute: bool | Omitted = OMITTED,
    paging: bool | Omitted = OMITTED,
    written: str | int | Omitted | None = OMITTED,
    energy: str | float | Omitted | None = OMITTED,
    pins: Pins | Omitted | None = OMITTED,
    home: Place | str = Place.RAM,
    gradients: Gradients | str = Gradients.STREAM,
    minimise: Objective | str | Omitted = OMITTED,
    time_limit_seconds: float | Omitted | None = OMITTED,
    progress: bool | Progress | None = False,
    limits: Limits | None = None,
    options: SolveOptions | None = None,
    evaluation: bool = True,
    micro: int | str | MicroBatches | None = None,
    shapes: Sequence[Tensor | Sequence[Any] | Mapping[str, int]] = (),
    budgets: Sequence[str | int] = (),
) -> Planned:
    """Plan one training step of ``model`` on ``device`` inside ``ram``.

    What the plan must stay within is said either in single arguments (``ram``, ``deadline``, ``recompute``,
    ``paging``, ``written``, ``energy``, ``pins``) or as one record, ``limits``; how to search, either in
    single arguments (``minimise``, ``time_limit_seconds``) or as one record, ``options``.

    Args:
        model: path of an ONNX file, a module on the CPU in the mode in which it is to train, or a program
            of ``torch.export``, which trains in the mode in which it was exported and has no other.
        example_inputs: for a module: tensors of the shapes of every step.
        device: profile by name, file or record.
        ram: budget for all tensors, in bytes or as text (``"64MiB"``); ``None``: unlimited. Needed
            unless ``limits`` is given.
        deadline: for one step: seconds, ``"20ms"``, or ``"1.3x"`` of running every op once; default none.
        loss: by name, with options behind a colon (see `poet.loss`), of the model's first output:
            ``"cross-entropy:label_smoothing=0.1"``. Classes stand in dim 1, as in torch;
            ``cross-entropy:dim=-1`` where they are last ([N,T,C]). Or a function or module
            ``loss(outputs, targets)``, which is given what the model returns and the targets, and gives a
            single number.
        targets: examples of the loss's targets, one tensor or several. Needed where ``loss`` is a function
            that reads any; what they hold does not matter.
        optimizer: by name, with options behind a colon (``"rmsprop:alpha=0.9"``), a specification with its
            settings, or a new optimizer of torch with its parameter groups, of this module's parameters.
        clip_norm: the norm of all gradients together is brought down to this, as by
            `torch.nn.utils.clip_grad_norm_`.
        clip_value: gradients are clamped to this first, as by `torch.nn.utils.clip_grad_value_`.
        train: patterns of parameter names; not given: all that require a gradient, and none of an ONNX
            file's weights in Constant nodes.
        output: ``"logits"``: the first output is what the model's last softmax, log_softmax or sigmoid is
            given, which losses of scores are made for. ``None``: as the model gives it.
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
        gradients: ``"stream"`` (default): weight gradients are made and used block by block where that gives
            the same bits; ``"keep"``: each exists whole; ``"logits"``: as ``"stream"``, and the last layer
            makes its logits with their cross-entropy in strips, and hands none to the caller.
        minimise: ``"energy"`` (default), ``"time"``, ``"ram"`` or ``"writes"``.
        time_limit_seconds: of all searches together, default 20; ``None``: until proven.
        progress: whether to show the stage, the best plan so far and its gap on stderr: one line that is
            rewritten on a terminal, elsewhere a line for each stage. Or a function, which is called with the
            best plan's amount, the bound, the gap and the seconds of the search.
        limits: instead of single arguments, for example another plan's ``planned.plan.request.limits``.
        options: instead of single arguments; it also has the engine, threads, seed and gaps.
        evaluation: whether to plan the forward pass in evaluation mode as well, for `Trainer.predict` and
            `Trainer.evaluate`. Where that cannot be done, a warning says why.
        micro: how many micro-batches a batch is trained in: ``example_inputs`` are of the whole batch, whose
            samples stand in the first dimension. ``"auto"``: as many as take the least energy; ``"4:sum"``:
            the loss is not divided by their number. ``None``: the batch is trained as a whole.
        shapes: other shapes that the plan is to have steps for, each not larger than ``example_inputs``:
            example inputs (or pairs of inputs and ``targets``), for an ONNX file sizes of dimensions,
            ``{"N": 8}``.
        budgets: less RAM, in bytes or as text, for which the file is to have plans as well, so that
            `Trainer.set_budget` goes to them without a search. Where none is found inside one of them, a
            warning says why.

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
    smaller_budgets(limits.ram_budget_bytes if limits else short_limits["ram"], budgets)
    short_options = _given(
        "options", options, SolveOptions, minimise=minimise, time_limit_seconds=time_limit_seconds,
    )  # fmt: skip
    if "minimise" in short_options:
        short_options["objective"] = one_of(Objective, short_options.pop("minimise"), "minimise")

    asked_options = options or SolveOptions(**short_options)
    asked, each_shape = micro_batches(micro), 1 + evaluation
    preparing = partial(
        prepare,
        model,
        device=device,
        loss=loss,
        optimizer=optimizer,
        clip_norm=clip_norm,
        clip_value=clip_value,
        train=train,
        output=output,
        home=home,
        names=names,
        gradients=gradients,
        has_shapes=bool(shapes),
        evaluation=evaluation and not isinstance(asked, str),  # else of the best alone, afterwards
    )
    beside = (asked is not None) + evaluation + each_shape * len(shapes) + len(budgets)
    tried = 1
    if isinstance(asked, str):
        samples = samples_of(example_inputs, bind or {})
        tried = sum(1 for _ in candidates(samples, asked))
    shares = TimeShares(asked_options.time_limit_seconds, beside, asked_options.clock)

    def planned_with(pieces: MicroBatches | None) -> Planned:
        prepared = preparing(example_inputs, bind=bind, targets=targets, micro=pieces)
        inside = limits or limits_of(prepared.problem, **short_limits)
        check_reachable(prepared.problem, inside, budgets)
        seconds = shares.first()
        first_options = asked_options
        if seconds is not None:
            first_options = replace(asked_options, time_limit_seconds=seconds / tried)
        made = plan_step(
            without_choice(prepared) if budgets else prepared,
            inside,
            first_options,
        )
        return with_accumulation(made, time_limit_seconds=shares.each(asked is not None) / tried)

    if shapes and asked is not None:
        raise InputError("several shapes and micro-batches are not planned together; leave one out")
    limit_seconds = asked_options.time_limit_seconds
    with showing(progress, objective=asked_options.objective, limit_seconds=limit_seconds) as shown:
        asked_options = replace(asked_options, progress=shown or asked_options.progress)
        # before a long search
        others = [preparing(**_other_shape(item, bind or {}, targets)) for item in shapes]
        if isinstance(asked, str):
            planned, _ = least_energy(samples, asked, planned_with)
        else:
            planned = planned_with(asked)
        misfit = loss_misfit(planned.plan.graph, planned.plan.request.loss)
        for remark in filter(None, (planned.prepared.names_remark, planned.ram_remark, misfit)):
            warnings.warn(spelled_out(remark), stacklevel=2)
        if evaluation:
            planned = with_evaluation(planned, time_limit_seconds=shares.each(1))
        has_evaluation = evaluation and planned.plan.evaluation is not None
        seconds = shares.each(each_shape * len(shapes))
        planned = with_shapes(planned, others, evaluation=has_evaluation, time_limit_seconds=seconds)
        seconds = shares.each(len(budgets))
        planned = with_budgets(planned, budgets, time_limit_seconds=seconds, options=asked_options)
        if planned.budgets_remark:
            warnings.warn(spelled_out(planned.budgets_remark), stacklevel=2)
        if evaluation and planned.evaluation_remark:
            warnings.warn(spelled_out(planned.evaluation_remark), stacklevel=2)
    return planned


def _other_shape(
    item: Tensor | Sequence[Any] | Mapping[str, int], bind: Mapping[str, int], targets: object
) -> dict[str, Any]:
    """What `prepare` is given for another shape: a file's sizes, inputs, or a pair of inputs and targets."""
    if isinstance(item, Mapping):
        return {"bind": {**bind, **item}}
    if targets is None:
        return {"example_inputs": item}
    if isinstance(item, tuple) and len(item) == 2:
        return {"example_inputs": item[0], "targets": item[1]}
    raise InputError("where targets are given, each of shapes is a pair: example inputs, example targets")


def samples_of(inputs: Tensor | Sequence[Tensor] | None, bind: Mapping[str, int]) -> int:
    """Of a batch: in the first dimension of a module's inputs, or as an ONNX file's batch is bound.

    Raises:
        InputError: neither says it.
    """
    if inputs is None:
        bound = [bind[name] for name in BATCH_NAMES if name in bind]
        if not bound:
            raise InputError("micro-batches of an ONNX file need its batch: --batch 32, or bind={'N': 32}")
        return bound[0]
    from torch import Tensor

    first = inputs if isinstance(inputs, Tensor) else inputs[0]
    return int(first.shape[0]) if first.dim() else 0


def _given(record: str, whole: object, kind: type, **short: Any) -> dict[str, Any]:
    """The single arguments that were given; none where the ``whole`` record was.

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
