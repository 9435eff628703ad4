"""From a model to its training step with its costs on a device: what planning starts from."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

from poet.devices.device_problem import build_problem, kernels_on
from poet.devices.load import load_profile
from poet.devices.profile import Profile
from poet.errors import InputError, ModelError, PlanError, PoetError, one_of
from poet.files.kinds import FileKind, kind_of
from poet.ir.graph import Graph
from poet.ir.kernel_facts import KernelFacts
from poet.ir.micro import BATCH_NAMES, MicroBatches
from poet.ir.optimizer import OptimizerSpec
from poet.ir.packed import BaseSpec, Packed
from poet.ir.strips import Gradients
from poet.plans.plan_parts import Model
from poet.problem import PageForm, Place, Problem
from poet.problem.progress import IMPORT, stage
from poet.util.brief import shortened, told
from poet.util.reading import printable_name

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from poet.frontend.evaluation import EvaluationStep
    from poet.frontend.losses import LossFunction
    from poet.frontend.trace import TrainingStep
    from poet.passes.base import Weights


@dataclass(frozen=True, slots=True)
class Form:
    """What of a device, and of where parameters live, a training graph depends on.

    Attributes:
        for_c99: it is a graph for the kernels of poet's C99: an update runs element by element with its
            gradient, and results overwrite operands that nothing else reads.
        in_parts: large parameters may be several tensors of rows, as storage takes them.
        in_short_forms: backward may read bits and bytes in place of what plain training saves, and write
            gradients over what they are made from.
    """

    for_c99: bool = False
    in_parts: bool = False
    in_short_forms: bool = True


@dataclass(frozen=True, slots=True)
class Traced:
    """A training step and where it comes from.

    Attributes:
        step: the training step and the tensors it starts from.
        model: which model it is.
        structure: the ONNX file without its weights; ``None`` for a module.
        train: patterns of the parameters that are trained.
        gradients: whether those of weights were to be made block by block.
        module: that was traced, and its example inputs; ``None``: it is not at hand.
        path: where the model was read from; ``None`` for a module.
        names_remark: what of the given names could not be matched; empty if all was.
        micro: how each batch is trained in pieces; ``None``: as a whole.
    """

    step: TrainingStep
    model: Model
    structure: bytes | None
    train: tuple[str, ...]
    gradients: Gradients
    module: tuple[nn.Module, Tensor | Sequence[Tensor]] | None = None
    path: Path | None = None
    names_remark: str = ""
    micro: MicroBatches | None = None


class TraceOptions(TypedDict, total=False):
    """What `trace_model` is given by name, beside the form; as `poet.plan` has it."""

    loss: str | LossFunction
    optimizer: str | OptimizerSpec | torch.optim.Optimizer
    train: Iterable[str] | None
    bind: Mapping[str, int] | None
    names: str | Path | nn.Module | Mapping[str, Tensor] | None
    targets: Tensor | Sequence[Tensor] | None
    gradients: Gradients | str
    micro: MicroBatches | None
    output: str | None
    clip_norm: float | None
    clip_value: float | None
    base: BaseSpec | str | None
    weights: str | Path | None


def trace_model(
    model: str | Path | nn.Module | torch.export.ExportedProgram,
    example_inputs: Tensor | Sequence[Tensor] | None = None,
    *,
    form: Form,
    loss: str | LossFunction = "cross-entropy",
    optimizer: str | OptimizerSpec | torch.optim.Optimizer = "sgd",
    train: Iterable[str] | None = None,
    bind: Mapping[str, int] | None = None,
    names: str | Path | nn.Module | Mapping[str, Tensor] | None = None,
    targets: Tensor | Sequence[Tensor] | None = None,
    gradients: Gradients | str = Gradients.STREAM,
    micro: MicroBatches | None = None,
    output: str | None = None,
    clip_norm: float | None = None,
    clip_value: float | None = None,
    base: BaseSpec | str | None = None,
    weights: str | Path | None = None,
) -> Traced:
    """Read or take the model and trace its training step, in the form that is asked for.

    While it is traced, every kernel is run by itself on this machine, for its workspace and its time.
    Arguments as for `poet.plan`.

    Raises:
        InputError: the model or an option is not usable.
    """
    from poet.c99.exportable import uses_elements
    from poet.c99.rows import overwrites, wants_dense
    from poet.frontend.eager import original
    from poet.frontend.gguf_weights import gguf_weights
    from poet.frontend.losses import with_output
    from poet.frontend.trace import trace_training_step
    from poet.passes.base import base_of

    in_blocks = one_of(Gradients, gradients, "gradients")
    patterns = None if train is None else tuple(train)
    is_file = isinstance(model, str | Path) and kind_of(Path(model)) is not FileKind.EXPORTED
    source = _source(model, example_inputs, _piece_bound(dict(bind or {}), micro if is_file else None), names)
    inputs = source.inputs if is_file else _pieces(source.inputs, micro)
    examples = None if targets is None else _pieces(targets, micro)
    spec, patterns = _taken(optimizer, source.module, patterns)
    module = with_output(original(source.module), output)
    remark = _constants_remark(source.constants) if patterns is None else ""
    contents, unread = ({}, "") if weights is None else gguf_weights(weights, module)
    contents = {**source.packed, **contents}
    for_c99 = form.for_c99
    step = trace_training_step(
        module, inputs, loss=loss, optimizer=spec.clipped(clip_norm=clip_norm, clip_value=clip_value),
        train=patterns, targets=examples, name=source.identity.name if source.identity else source.name,
        input_names=source.input_names, gradients=in_blocks, micro=micro, weights=contents,
        uses_elements=uses_elements if for_c99 else None, overwrites=overwrites if for_c99 else None,
        wants_dense=wants_dense if for_c99 else None, has_small_operators=for_c99,
        in_parts=form.in_parts, in_short_forms=form.in_short_forms,
        base=BaseSpec.parse(base) if isinstance(base, str) else base,
    )  # fmt: skip
    stored = {name: how for name, (_, how) in contents.items() if how is not None}
    again = _packed_again({**dict.fromkeys(source.quantised), **stored}, base_of(step.graph))
    identity = source.identity or Model(step.graph.name, "module", step.digest)
    identity = replace(identity, output=output, lines=tuple(step.lines.items()))
    said, train = "; ".join(filter(None, (source.names_remark, remark, unread, again))), patterns or ("*",)
    return Traced(
        step, identity, source.structure, train, in_blocks, (module, inputs), source.path, said, micro
    )


def _constants_remark(names: Sequence[str]) -> str:
    """What is said of weights that an ONNX file has in Constant nodes."""
    if not names:
        return ""
    count = f"{len(names)} weights lie in Constant nodes and are"
    count = "1 weight lies in a Constant node and is" if len(names) == 1 else count
    shown = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
    return f"{count} not trained ({shown}); name what to train: --train {names[0]}, train=[{names[0]!r}]"


def _packed_again(stored: Mapping[str, Packed | None], packed: Mapping[str, Packed]) -> str:
    """What is said of weights that were ``stored`` in few bits and are ``packed`` in other ones."""
    again = [name for name, how in stored.items() if name in packed and packed[name] != how]
    if not again:
        return ""
    count = "1 weight is" if len(again) == 1 else f"{len(again)} weights are"
    shown = ", ".join(again[:4]) + (", ..." if len(again) > 4 else "")
    return (
        f"{count} stored in few bits that are not those of base {packed[again[0]].format}, and packed again, "
        f"which rounds once more ({shown})"
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
    optimizer: str | OptimizerSpec | torch.optim.Optimizer,
    module: nn.Module,
    patterns: tuple[str, ...] | None,
) -> tuple[OptimizerSpec, tuple[str, ...] | None]:
    """The settings of an optimizer, and what is trained; one of torch says it, where that is not all."""
    from poet.frontend.plain import spec_of

    if isinstance(optimizer, str | OptimizerSpec):
        return OptimizerSpec.parse(optimizer) if isinstance(optimizer, str) else optimizer, patterns
    if patterns is not None:
        raise InputError("the optimizer's groups say what is trained; leave train out")
    spec, trained = spec_of(optimizer, module)
    usual = sum(parameter.requires_grad for parameter in module.parameters())
    return spec, None if len(trained) == usual else trained


@dataclass(frozen=True, slots=True)
class _Source:
    """A module to trace; the others where it comes from a file."""

    module: nn.Module
    inputs: Tensor | Sequence[Tensor]
    identity: Model | None = None
    structure: bytes | None = None
    input_names: tuple[str, ...] | None = None
    path: Path | None = None
    names_remark: str = ""
    name: str | None = None
    constants: tuple[str, ...] = ()
    packed: Weights = field(default_factory=dict)
    quantised: tuple[str, ...] = ()


def _source(
    model: str | Path | nn.Module | torch.export.ExportedProgram,
    example_inputs: Tensor | Sequence[Tensor] | None,
    bind: dict[str, int],
    names: str | Path | nn.Module | Mapping[str, Tensor] | None,
) -> _Source:
    if not isinstance(model, str | Path):
        from poet.frontend.program_file import as_module

        model, example_inputs = as_module(model, example_inputs)
        if example_inputs is None:
            raise ModelError("a module needs example_inputs, tensors of the shapes of every step")
        if bind:
            raise ModelError("a module has no dimensions to bind; its example_inputs say the sizes")
        if names is not None:
            raise ModelError("a module has its own names; names are for an ONNX file")
        return _Source(model, example_inputs)
    if example_inputs is not None:
        raise ModelError(f"{model}: a file brings its own input shapes; leave example_inputs out")
    path = Path(model)
    if kind_of(path) is FileKind.EXPORTED:
        from poet.frontend.program_file import read_program

        what = f"{path}: an exported program has"
        if bind:
            raise ModelError(f"{what} no dimensions to bind; export it for these sizes")
        if names is not None:
            raise ModelError(f"{what} its module's names; names are for an ONNX file")
        program = read_program(path)
        name = printable_name(path)
        return _Source(program.module, program.inputs, input_names=program.input_names, name=name)
    from poet.frontend.onnx.importer import load_onnx, strip_weights

    imported = load_onnx(path, bind=bind, names=names)
    return _Source(
        module=imported.module,
        inputs=imported.example_inputs(),
        identity=Model(printable_name(path), "onnx", imported.digest, tuple(sorted(bind.items()))),
        structure=strip_weights(imported),
        input_names=tuple(item.name for item in imported.inputs),
        path=path,
        names_remark=imported.remark,
        constants=imported.constants,
        packed={name: (rows, how) for name, rows, how in imported.packed_weights()},
        quantised=imported.quantised_names(),
    )


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared(Traced):
    """A training step with its costs on a device: all that planning needs.

    Attributes:
        profile: the device.
        kernels: what the device's kernels need.
        problem: the step's costs there.
        import_seconds: wall clock of reading, tracing and measuring.
        home: of parameters between steps, as ``problem`` has it.
        offered: the problem of whose choices ``problem`` is one; ``None``: nothing was to choose.
        evaluation: the forward pass in evaluation mode, or why there is none; ``None``: not traced yet.
        page_forms: in which what is paged may be rounded.
    """

    profile: Profile
    kernels: KernelFacts
    problem: Problem
    import_seconds: float
    home: Place = Place.RAM
    offered: Problem | None = None
    evaluation: EvaluationStep | PoetError | None = None
    page_forms: tuple[PageForm, ...] = ()

    def __repr__(self) -> str:
        graph = self.step.graph
        parts = f"{len(graph.ops)} ops, {len(graph.buffers)} buffers"
        return told(self, f"{shortened(self.model.name)} on {self.profile.name}: {parts}, {self.step.loss}")

    def problem_of(self, graph: Graph, host_kernels: KernelFacts) -> Problem:
        """What another graph costs on the device, with its storage."""
        kernels = kernels_on(self.profile, graph, host_kernels)
        found = build_problem(graph, self.profile, kernels, home=self.home, page_forms=self.page_forms)
        return replace(found, storage_capacity_bytes=self.problem.storage_capacity_bytes)

    def with_step(self, step: TrainingStep) -> Prepared:
        """Another step on the device."""
        kernels = kernels_on(self.profile, step.graph, step.kernels)
        problem = self.problem_of(step.graph, step.kernels)
        return replace(self, step=step, kernels=kernels, problem=problem)


def form_on(profile: Profile, home: Place, *, has_shapes: bool = False) -> Form:
    """The form of a graph for ``profile``'s device, with parameters at ``home`` between steps.

    Where steps of several shapes share the parameters (``has_shapes``), these are in no parts: those that
    give every bit may differ from shape to shape. Nor does backward read bits then, whose number of bytes
    is no formula of the sizes.
    """
    from poet.c99.exportable import LIBRARY

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
    home: Place | str = Place.RAM,
    has_shapes: bool = False,
    evaluation: bool = False,
    allow: Iterable[PageForm | str] = (),
    **options: Unpack[TraceOptions],
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
    page_forms = tuple(
        one_of(PageForm, form, "allow") for form in ([allow] if isinstance(allow, str) else allow)
    )
    profile = device if isinstance(device, Profile) else load_profile(device)
    form = form_on(profile, at_home, has_shapes=has_shapes)
    traced = trace_model(model, example_inputs, form=form, **options)
    step = traced.step
    kernels = kernels_on(profile, step.graph, step.kernels)
    import_seconds = time.perf_counter() - start
    _log.info("%s: %d ops traced in %.3g s", shortened(step.graph.name), len(step.graph.ops), import_seconds)
    prepared = Prepared(
        **{item.name: getattr(traced, item.name) for item in fields(traced)},
        profile=profile,
        kernels=kernels,
        problem=build_problem(step.graph, profile, kernels, home=at_home, page_forms=page_forms),
        import_seconds=import_seconds,
        home=at_home,
        page_forms=page_forms,
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


def training_less(prepared: Prepared, trained: Collection[str], *, measure: bool = False) -> Prepared:
    """``prepared`` as it were if only ``trained`` of its trained parameters were, without tracing again.

    For searches: it has other names, and where the model computes otherwise for a frozen parameter, that of a
    trained one. Where the device has kernels of its own, nothing is known of PyTorch's without ``measure``.

    Raises:
        ModelError: nothing of it gets a gradient.
    """
    assert prepared.step.source is not None
    step = prepared.step.source.step(trained, measure=measure)
    return replace(prepared.with_step(step), evaluation=None)
