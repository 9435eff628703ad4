"""A training step with its costs on a device: what planning starts from."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from poet.brief import shortened, told
from poet.devices.costs import build_problem, kernels_on
from poet.devices.load import load_profile
from poet.devices.profile import Profile
from poet.errors import InputError, ModelError, one_of
from poet.files.reading import printable_name
from poet.kernel_facts import KernelFacts
from poet.micro import MicroBatches
from poet.optimizer import OptimizerSpec
from poet.plan_parts import Model
from poet.problem import Place, Problem
from poet.strips import Gradients

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from poet.frontend.losses import LossFunction
    from poet.frontend.trace import TrainingStep

_log = logging.getLogger(__name__)

BATCH_NAMES = ("N", "batch")
"""Names by which the first dimension of an ONNX file is bound, even where the file fixes it."""


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

    def __repr__(self) -> str:
        graph = self.step.graph
        parts = f"{len(graph.ops)} ops, {len(graph.buffers)} buffers"
        return told(self, f"{shortened(self.model.name)} on {self.profile.name}: {parts}, {self.step.loss}")


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
    has_shapes: bool = False,
) -> Prepared:
    """Read or take the model, trace its training step, and cost it on the device.

    While it is traced, every kernel is run by itself on this machine, for its workspace and its time.
    Arguments as for `poet.plan`; ``has_shapes``: steps of several shapes share the parameters, which are then
    in no parts, since those that give every bit may differ from shape to shape.

    Raises:
        InputError: the model, the device or an option is not usable.
    """
    from poet.c99.rows import overwrites
    from poet.c99.statements import LIBRARY, uses_elements
    from poet.frontend.trace import trace_training_step

    start = time.perf_counter()
    at_home = one_of(Place, home, "home")
    in_blocks = one_of(Gradients, gradients, "gradients")
    profile = device if isinstance(device, Profile) else load_profile(device)
    is_c99 = profile.kernels.name == LIBRARY
    patterns = None if train is None else tuple(train)
    is_file = isinstance(model, str | Path)
    source = _source(model, example_inputs, _piece_bound(dict(bind or {}), micro if is_file else None), names)
    inputs = source.inputs if is_file else _pieces(source.inputs, micro)
    examples = None if targets is None else _pieces(targets, micro)
    if isinstance(optimizer, str):
        spec = OptimizerSpec.parse(optimizer)
    elif isinstance(optimizer, OptimizerSpec):
        spec = optimizer
    else:
        spec, patterns = _taken(optimizer, source.module, patterns)
    step = trace_training_step(
        source.module,
        inputs,
        loss=loss,
        optimizer=spec,
        train=patterns,
        targets=examples,
        name=source.identity.name if source.identity else None,
        input_names=source.input_names,
        gradients=in_blocks,
        uses_elements=uses_elements if is_c99 else None,
        overwrites=overwrites if is_c99 else None,
        micro=micro,
        in_parts=at_home is not Place.RAM and profile.storage is not None and not has_shapes,
    )
    kernels = kernels_on(profile, step.graph, step.kernels)
    import_seconds = time.perf_counter() - start
    _log.info("%s: %d ops traced in %.3g s", shortened(step.graph.name), len(step.graph.ops), import_seconds)
    return Prepared(
        model=source.identity or _module_identity(step),
        structure=source.structure,
        step=step,
        profile=profile,
        kernels=kernels,
        problem=build_problem(step.graph, profile, kernels, home=at_home),
        train=patterns or ("*",),
        gradients=in_blocks,
        import_seconds=import_seconds,
        model_path=source.path,
        names_remark=source.names_remark,
        module=(source.module, inputs),
        micro=micro,
    )


def _piece_bound(bind: dict[str, int], micro: MicroBatches | None) -> dict[str, int]:
    """Of a file's bound sizes, those of one micro-batch: shapes that depend on the batch follow from them.

    Raises:
        InputError: the batch is not bound, or cannot be divided so.
    """
    if micro is None:
        return bind
    name = next((name for name in BATCH_NAMES if name in bind), None)
    if name is None:
        raise InputError("micro-batches of an ONNX file need its batch: --batch 32, or bind={'N': 32}")
    if bind[name] % micro.count:
        raise InputError(
            f"a batch of {bind[name]} samples cannot be divided into {micro.count} micro-batches"
        )
    return bind | {name: bind[name] // micro.count}


def _pieces(tensors: Tensor | Sequence[Tensor], micro: MicroBatches | None) -> Tensor | Sequence[Tensor]:
    """Of a batch, what its first micro-batch has; samples stand in the first dimension.

    Raises:
        InputError: the samples of a tensor cannot be divided so.
    """
    if micro is None:
        return tensors
    from torch import Tensor

    if isinstance(tensors, Tensor):
        return _piece(tensors, micro.count)
    return tuple(_piece(tensor, micro.count) for tensor in tensors)


def _piece(tensor: Tensor, count: int) -> Tensor:
    samples = tensor.shape[0] if tensor.dim() else 0
    if not samples or samples % count:
        raise InputError(
            f"a batch of {samples} samples cannot be divided into {count} micro-batches of one size"
        )
    return tensor[: samples // count]


def _taken(
    optimizer: torch.optim.Optimizer, module: nn.Module, patterns: tuple[str, ...] | None
) -> tuple[OptimizerSpec, tuple[str, ...] | None]:
    """The settings of an optimizer of torch, and what it trains, where that is not all that can be."""
    from poet.frontend.optimizers import spec_of

    if patterns is not None:
        raise InputError("the optimizer's groups say what is trained; leave train out")
    spec, trained = spec_of(optimizer, module)
    usual = sum(parameter.requires_grad for parameter in module.parameters())
    return spec, None if len(trained) == usual else trained


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
    model: str | Path | nn.Module | torch.export.ExportedProgram,
    example_inputs: Tensor | Sequence[Tensor] | None,
    bind: dict[str, int],
    names: str | Path | nn.Module | Mapping[str, Tensor] | None,
) -> _Source:
    if not isinstance(model, str | Path):
        from poet.frontend.exported_programs import as_module

        model, example_inputs = as_module(model, example_inputs)
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
    """A module has no file: what stands for it is the training step traced from it."""
    return Model(step.graph.name, "module", step.digest)
