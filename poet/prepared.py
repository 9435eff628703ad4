"""A training step with its costs on a device: what planning starts from."""

from __future__ import annotations

import hashlib
import json
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
from poet.errors import ModelError, one_of
from poet.files.reading import printable_name
from poet.kernel_facts import KernelFacts
from poet.optimizer import OptimizerSpec
from poet.problem import Place, Problem
from poet.training_plan import Model

if TYPE_CHECKING:
    from torch import Tensor, nn

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
    Arguments as for `poet.plan`.

    Raises:
        InputError: the model, the device or an option is not usable.
    """
    from poet.frontend.trace import trace_training_step

    start = time.perf_counter()
    at_home = one_of(Place, home, "home")
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
        import_seconds=import_seconds,
        model_path=source.path,
        names_remark=source.names_remark,
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
