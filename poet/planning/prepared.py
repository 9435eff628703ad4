"""A training step with its costs on a device: what planning starts from."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from poet.brief import shortened, told
from poet.devices.device_problem import build_problem, kernels_on
from poet.devices.load import load_profile
from poet.devices.profile import Profile
from poet.errors import PlanError, PoetError, one_of
from poet.kernel_facts import KernelFacts
from poet.micro import MicroBatches
from poet.optimizer import OptimizerSpec
from poet.planning.traced import Form, trace_model
from poet.plans.plan_parts import Model
from poet.problem import Place, Problem
from poet.progress import IMPORT, stage
from poet.strips import Gradients

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from poet.frontend.evaluation import EvaluationStep
    from poet.frontend.losses import LossFunction
    from poet.frontend.trace import TrainingStep

_log = logging.getLogger(__name__)


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
        gradients: whether those of weights were to be made block by block.
        import_seconds: wall clock of reading, tracing and measuring.
        model_path: where the model was read from; ``None`` for a module.
        names_remark: what of the given names could not be matched; empty if all was.
        module: that was traced, and its example inputs; ``None``: it is not at hand.
        micro: how each batch is trained in pieces; ``None``: as a whole.
        home: of parameters between steps, as ``problem`` has it.
        evaluation: the forward pass in evaluation mode, or why there is none; ``None``: not traced yet.
        offered: the problem of whose choices ``problem`` is one; ``None``: nothing was to choose.
    """

    model: Model
    structure: bytes | None
    step: TrainingStep
    profile: Profile
    kernels: KernelFacts
    problem: Problem
    train: tuple[str, ...]
    gradients: Gradients
    import_seconds: float
    model_path: Path | None = None
    names_remark: str = ""
    module: tuple[nn.Module, Tensor | Sequence[Tensor]] | None = None
    micro: MicroBatches | None = None
    home: Place = Place.RAM
    offered: Problem | None = None
    evaluation: EvaluationStep | PoetError | None = None

    def __repr__(self) -> str:
        graph = self.step.graph
        parts = f"{len(graph.ops)} ops, {len(graph.buffers)} buffers"
        return told(self, f"{shortened(self.model.name)} on {self.profile.name}: {parts}, {self.step.loss}")


def form_on(profile: Profile, home: Place, *, has_shapes: bool = False) -> Form:
    """The form of a graph for ``profile``'s device, with parameters at ``home`` between steps.

    Where steps of several shapes share the parameters (``has_shapes``), these are in no parts: those that
    give every bit may differ from shape to shape. Nor does backward read bits then, whose number of bytes
    is no formula of the sizes.
    """
    from poet.c99.statements import LIBRARY

    return Form(
        for_c99=profile.kernels.name == LIBRARY,
        in_parts=home is not Place.RAM and profile.storage is not None and not has_shapes,
        in_short_forms=not has_shapes,
    )


def prepare(
    model: str | Path | nn.Module | torch.export.ExportedProgram,
    example_inputs: Tensor | Sequence[Tensor] | None = None,
    *,
    device: str | Path | Profile,
    loss: str | LossFunction = "cross-entropy",
    optimizer: str | OptimizerSpec | torch.optim.Optimizer = "sgd",
    train: Iterable[str] | None = None,
    bind: Mapping[str, int] | None = None,
    home: Place | str = Place.RAM,
    names: str | Path | nn.Module | Mapping[str, Tensor] | None = None,
    targets: Tensor | Sequence[Tensor] | None = None,
    gradients: Gradients | str = Gradients.STREAM,
    micro: MicroBatches | None = None,
    output: str | None = None,
    has_shapes: bool = False,
    evaluation: bool = False,
    clip_norm: float | None = None,
    clip_value: float | None = None,
) -> Prepared:
    """Read or take the model, trace its training step, and cost it on the device.

    While it is traced, every kernel is run by itself on this machine, for its workspace and its time.
    Arguments as for `poet.plan`; ``has_shapes``: steps of several shapes share the parameters, which are then
    in no parts, since those that give every bit may differ from shape to shape; ``evaluation``: the forward
    pass in evaluation mode is traced as well, so that no search waits for that.

    Raises:
        InputError: the model, the device or an option is not usable.
    """
    stage(IMPORT)
    start = time.perf_counter()
    at_home = one_of(Place, home, "home")
    profile = device if isinstance(device, Profile) else load_profile(device)
    traced = trace_model(
        model,
        example_inputs,
        form=form_on(profile, at_home, has_shapes=has_shapes),
        loss=loss,
        optimizer=optimizer,
        train=train,
        bind=bind,
        names=names,
        targets=targets,
        gradients=gradients,
        micro=micro,
        output=output,
        clip_norm=clip_norm,
        clip_value=clip_value,
    )
    step = traced.step
    kernels = kernels_on(profile, step.graph, step.kernels)
    import_seconds = time.perf_counter() - start
    _log.info("%s: %d ops traced in %.3g s", shortened(step.graph.name), len(step.graph.ops), import_seconds)
    prepared = Prepared(
        model=traced.model,
        structure=traced.structure,
        step=step,
        profile=profile,
        kernels=kernels,
        problem=build_problem(step.graph, profile, kernels, home=at_home),
        train=traced.train,
        gradients=traced.gradients,
        import_seconds=import_seconds,
        model_path=traced.path,
        names_remark=traced.names_remark,
        module=traced.module,
        micro=micro,
        home=at_home,
    )
    return replace(prepared, evaluation=_traced_evaluation(prepared)) if evaluation else prepared


def evaluation_step(prepared: Prepared) -> EvaluationStep:
    """The forward pass in evaluation mode, as the training step that was chosen reads its tables.

    Raises:
        PoetError: it cannot be had.
    """
    from poet.frontend.evaluation import by_row

    step = prepared.evaluation or _traced_evaluation(prepared)
    if isinstance(step, PoetError):
        raise step
    return by_row(step, prepared.step.graph)


def _traced_evaluation(prepared: Prepared) -> EvaluationStep | PoetError:
    from poet.frontend.evaluation import trace_evaluation

    if prepared.module is None:
        return PlanError("the model is not at hand")
    try:
        measures = prepared.step.kernels.threads is not None
        return trace_evaluation(*prepared.module, prepared.step, measure=measures)
    except PoetError as error:
        return error
