"""From a model to a plan, in the order of the data.

    planned = poet.plan("model.onnx", device="rpi4b", ram="64MiB")
    planned.save("plan.poet")

`poet.plan` is `planned_as` of a `PlanRequest`, whose stages are functions of their own:

====================  ======================================================================
`prepare`             read or take the model, trace the training step, cost it on the device
`limits_of`           what a plan must stay within, from text as people write it
`plan_step`           search the schedule, lay it out in one arena, put the plan together
`with_accumulation`   optional: plan what all micro-batches of a step but the last do
`with_evaluation`     optional: plan the forward pass in evaluation mode beside it
`with_shapes`         optional: plan steps for batches of other shapes beside it
`with_budgets`        optional: plan the same training inside less RAM, to go to between steps
====================  ======================================================================
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from poet.errors import Infeasible, spelled_out
from poet.ir.named import loss_misfit
from poet.planning.auxiliary import with_accumulation, with_budgets, with_evaluation, with_shapes
from poet.planning.pipeline import PlanRequest, planned_as, samples_of
from poet.planning.planned import Planned, limits_of, plan_step
from poet.planning.prepared import Prepared, prepare

__all__ = [
    "PlanRequest",
    "Planned",
    "Prepared",
    "limits_of",
    "plan",
    "plan_step",
    "planned_as",
    "prepare",
    "samples_of",
    "with_accumulation",
    "with_budgets",
    "with_evaluation",
    "with_shapes",
]


_Arguments = ParamSpec("_Arguments")
_Record = TypeVar("_Record")
_Result = TypeVar("_Result")


def _taking(
    record: Callable[_Arguments, _Record],
) -> Callable[[Callable[[_Record], _Result]], Callable[_Arguments, _Result]]:
    """A function of the arguments that make a ``record``, from one of the record."""

    def of(function: Callable[[_Record], _Result]) -> Callable[_Arguments, _Result]:
        @functools.wraps(function)
        def called(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
            return function(record(*args, **kwargs))

        called.__signature__ = inspect.signature(record)  # type: ignore[attr-defined]
        return called

    return of


_ADVICE = 'Try micro="auto", which trains the batch in pieces, home="storage", or a smaller batch.'


@_taking(PlanRequest)
def plan(request: PlanRequest) -> Planned:  # noqa: D417  the arguments are the fields of the request
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
        loss: by name, with options behind a colon (see `poet.ir.loss`), of the model's first output:
            ``"cross-entropy:label_smoothing=0.1"``. Classes stand in dim 1, as in torch;
            ``cross-entropy:dim=-1`` where they are last ([N,T,C]). Or a function or module
            ``loss(outputs, targets)``, which is given what the model returns and the targets, and gives a
            single number.
        targets: examples of the loss's targets, one tensor or several. Needed where ``loss`` is a function
            that reads any; what they hold does not matter.
        optimizer: by name, with options behind a colon (``"rmsprop:alpha=0.9"``), a specification with its
            settings, or a new optimizer of torch with its parameter groups, of this module's parameters.
        clip_norm: of all gradients together, as by `torch.nn.utils.clip_grad_norm_`.
        clip_value: of each gradient, applied first, as by `torch.nn.utils.clip_grad_value_`.
        train: patterns of parameter names; not given: all that require a gradient, and none of an ONNX
            file's weights in Constant nodes. ``conv1.weight[0:16]``: only these output channels, rows of
            dim 0, whose gradient has the bits of these rows of the whole's.
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
        storage: what storage holds, in bytes or as text; default: as the device has it.
        home: where parameters and optimizer state are between steps: ``"ram"``, ``"storage"``, or
            ``"either"``, as the plan chooses.
        gradients: ``"stream"`` (default): weight gradients are made and used block by block where that gives
            the same bits; ``"keep"``: each exists whole; ``"logits"``: as ``"stream"``, and the last layer
            makes its logits with their cross-entropy in strips, and hands none to the caller.
        allow: ``["bf16-pages"]``, ``["int8-pages"]`` or both: what is paged within a step may be rounded to
            fewer bytes, tensor by tensor, where that costs less. Such a plan gives other gradients than
            plain PyTorch, and says so.
        minimise: ``"energy"`` (default), ``"time"``, ``"ram"`` or ``"writes"``.
        time_limit_seconds: of all searches together, default 20; ``None``: until proven.
        progress: whether to show the stage, the best plan so far and its gap on stderr. Or a function,
            which is called with the best plan's amount, the bound, the gap and the seconds of the search.
        limits: instead of single arguments, for example another plan's ``planned.plan.request.limits``.
        options: instead of single arguments; it also has the engine, threads, seed and gaps.
        evaluation: whether to plan evaluation as well, for `Trainer.predict` and `Trainer.evaluate`. Where
            that cannot be done, a warning says why.
        micro: how many micro-batches a batch is trained in; ``example_inputs`` are of the whole batch,
            samples in dim 0. ``"auto"``: as many as take the least energy; ``"4:sum"``: the loss is not
            divided by their number. ``None``: the batch as a whole.
        shapes: other shapes that the plan is to have steps for, each not larger than ``example_inputs``:
            example inputs (or pairs of inputs and ``targets``), for an ONNX file sizes of dimensions,
            ``{"N": 8}``.
        budgets: less RAM, in bytes or as text, for which the file is to have plans as well, for
            `Trainer.set_budget`. Where none is found inside one of them, a warning says why.
        base: frozen weights in fewer bits: ``"q4_0"``, ``"q8_0"`` or ``"int8"``; ``"q4_0:except=*.head.*"``
            leaves some out, by patterns. What is trained goes on from the weights that these stand for.
        weights: a GGUF file, whose tensors take the place of the model's, by name.
        choose: groups of parameters with scores, or a file of them (`poet.planning.choice`), of which the
            plan trains the best set, as if ``train`` named it; with ``most`` or ``at_least``.
        most: of ``choose``: as much of all scores as the limits allow.
        at_least: of ``choose``: this share of all scores, at the least energy.

    Raises:
        InputError: the model, the device or an option is not usable, or is given in both forms.
        Infeasible: no plan exists inside the limits; the message names what binds.
        OutOfTime: the time limit passed before any plan was found.
    """
    try:
        planned, _ = planned_as(request)
    except Infeasible as error:
        if not isinstance(request.ram, str | int) or request.micro is not None:
            raise
        raise Infeasible(f"{error} {_ADVICE}") from None
    misfit = loss_misfit(planned.plan.graph, planned.plan.request.loss)
    for remark in (
        planned.prepared.names_remark, planned.ram_remark, misfit, planned.budgets_remark,
        planned.evaluation_remark,
    ):  # fmt: skip
        if remark:
            warnings.warn(spelled_out(remark), stacklevel=3)
    return planned
