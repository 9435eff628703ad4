"""From a model to training graphs: one per binding and optimizer, imported in worker processes.

A model is an ONNX file, a module, a saved plan (its graph and optimizer are given) or a saved problem
(everything is given). What an import gives is kept by content, so that a repeated sweep needs no torch.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from poet.errors import InputError, ModelError
from poet.ir.graph import Graph
from poet.ir.kernel_facts import KernelFacts
from poet.ir.micro import MicroBatches
from poet.ir.optimizer import OptimizerSpec
from poet.ir.strips import Gradients
from poet.planning.cache import Cache, code_digest, digest_of, pack, unpack
from poet.planning.prepared import Form, trace_model
from poet.util import codec
from poet.util.reading import open_regular, parse_json, printable_name
from poet.whatif.grid import BATCH, Binding
from poet.whatif.workers import Run, Task, given_up, thread_settings

if TYPE_CHECKING:
    from torch import Tensor, nn

    from poet.frontend.trace import TrainingStep

    Inputs = Tensor | Sequence[Tensor] | Callable[[int], Tensor | Sequence[Tensor]]
    """Example inputs of a module, or a function that gives them for a batch size."""

_log = logging.getLogger(__name__)

Wanted = tuple[Binding, OptimizerSpec, MicroBatches | None]
"""Sizes, an optimizer, and the pieces of a batch: which variant of a file is asked for."""
_ALIASES = {BATCH: slice(0, 1), "sequence": slice(1, 2), "resolution": slice(-2, None)}
_ERROR = "error"
Kept = TypeVar("Kept")


@dataclass(frozen=True, slots=True)
class TrainedAs:
    """What is trained and how, for every variant alike."""

    loss: str = "cross-entropy"
    train: tuple[str, ...] | None = None
    gradients: str = Gradients.STREAM.value


@dataclass(frozen=True, slots=True)
class ModelVariant:
    """A training step of the model.

    Attributes:
        graph: the step.
        kernels: what torch's kernels need for it.
        binding: sizes given to dynamic dimensions.
        optimizer: its name.
        batch: samples per step; ``None`` where the first input has no dimensions.
        micro: how the batch is trained in pieces; ``None``: as a whole.
        accumulation: what all pieces but the last do; ``None``: the batch is trained as a whole.
    """

    graph: Graph
    kernels: KernelFacts
    binding: Binding
    optimizer: str
    batch: int | None
    micro: MicroBatches | None = None
    accumulation: ModelVariant | None = None


def variant_of(
    graph: Graph,
    kernels: KernelFacts,
    binding: Binding,
    optimizer: str,
    micro: MicroBatches | None = None,
    accumulation: tuple[Graph, KernelFacts] | None = None,
) -> ModelVariant:
    """The record of a training ``graph``; its samples are the first dimension of its first input."""
    types = {value.name: value.type for value in graph.values}
    shape = types[graph.inputs[0]].shape if graph.inputs else ()
    batch = shape[0] * (1 if micro is None else micro.count) if shape else None
    beside = None if accumulation is None else variant_of(*accumulation, binding, optimizer)
    return ModelVariant(graph, kernels, binding, optimizer, batch, micro, beside)


VariantOf = Callable[[int], ModelVariant]
"""The model at a size of what grows."""


class OnnxModel:
    """An ONNX file whose variants are imported by workers and kept.

    Attributes:
        path: of the file.
        how: what is trained.
        cache: where graphs are kept.
        digest: of the file's bytes and those of the files that hold its weights.
    """

    def __init__(self, path: Path, how: TrainedAs, cache: Cache) -> None:
        self.path, self.how, self.cache = path, how, cache
        self.digest = _digest(path)

    def dimensions(self, words: str, run: Run) -> tuple[str, ...]:
        """The names to bind for ``batch``, ``sequence`` or ``resolution``; ``H+W`` stands for itself.

        Raises:
            ModelError: the model's first input has no such open dimension, or the model none of a name.
        """
        inputs = self._input_dimensions(run)
        first = inputs[0] if inputs else []
        if words not in _ALIASES:
            return self._named(words.split("+"), inputs)
        picked = first[_ALIASES[words]]
        if words == BATCH and picked and isinstance(picked[0], int):
            return ("N",)  # a first dimension that the file fixes is bound again by this name
        if not picked or not all(isinstance(name, str) for name in picked):
            raise ModelError(
                f"{self.path}: its first input, {first}, has no open dimension for {words!r}; export the "
                "model with one, or say its name as --bind does"
            )
        return tuple(dict.fromkeys(map(str, picked)))

    def _named(self, names: Sequence[str], inputs: Sequence[Sequence[int | str]]) -> tuple[str, ...]:
        """``names``, all of which must be open dimensions of the model's ``inputs``."""
        known = sorted({dim for dims in inputs for dim in dims if isinstance(dim, str)})
        for name in names:
            if name not in known:
                raise ModelError(
                    f"{self.path}: {name!r} is not an open dimension; open are: {', '.join(known) or 'none'}"
                )
        return tuple(dict.fromkeys(names))

    def variants(self, wanted: Sequence[Wanted], form: Form, run: Run) -> list[ModelVariant]:
        """One of each that is ``wanted``, in this order, all of one form.

        Raises:
            ModelError: the model cannot be imported with one of them.
        """
        found: dict[int, _Imported] = {}
        missing: list[int] = []
        for index, item in enumerate(wanted):
            kept = self._kept("graphs", self._key(item, form), _imported)
            if kept is None:
                missing.append(index)
            else:
                found[index] = kept
        _log.info("variants of the model: %d from the cache, %d to import", len(found), len(missing))
        tasks = [
            functools.partial(_import, str(self.path), *wanted[index], self.how, form) for index in missing
        ]
        for number, packed in run(tasks):
            binding, spec, micro = wanted[missing[number]]
            key = self._key(wanted[missing[number]], form)
            found[missing[number]] = _imported(self._checked(packed, key, "graphs"))
            sizes = "".join(f", {name}={size}" for name, size in binding)
            pieces = "" if micro is None else f", {micro} micro-batches"
            _log.info("imported: %s%s, %s%s", printable_name(self.path), sizes, spec.name, pieces)
        return [
            found[index].variant(binding, spec, micro) for index, (binding, spec, micro) in enumerate(wanted)
        ]

    def _input_dimensions(self, run: Run) -> list[list[int | str]]:
        """Per input its dimensions, from the cache or by a worker."""
        key = digest_of(self.digest, "dimensions", code_digest())
        kept = self._kept("dimensions", key, _dimensions)
        if kept is not None:
            return kept
        task: Task = functools.partial(_open_dimensions, str(self.path))
        return next(_dimensions(self._checked(packed, key, "dimensions")) for _, packed in run([task]))

    def _kept(self, kind: str, key: str, read: Callable[[Any], Kept]) -> Kept | None:
        """What is kept under ``key``; ``None``: nothing, or something else."""
        content = self.cache.read(kind, key)
        try:
            return None if content is None else read(parse_json(content))
        except (InputError, ValueError):
            return None

    def _checked(self, packed: bytes | None, key: str, kind: str) -> Any:
        """What a worker answered, kept; an error it met is raised here."""
        if packed is None:
            raise ModelError(f"{self.path}: {given_up('its import')}")
        data = unpack(packed)
        if isinstance(data, dict) and set(data) == {_ERROR}:
            raise ModelError(data[_ERROR])
        self.cache.keep(kind, key, packed)
        return data

    def _key(self, wanted: Wanted, form: Form) -> str:
        """Of one import; kernels were measured by as many threads as the processors and settings give."""
        binding, spec, micro = wanted
        measured_by = [len(os.sched_getaffinity(0)), *thread_settings()]
        pieces = "" if micro is None else str(micro)
        what = (sorted(binding), asdict(spec), pieces, asdict(self.how), asdict(form), measured_by)
        return digest_of(self.digest, *what, code_digest())


def module_inputs(example_inputs: Inputs | None, batch: int | None) -> Tensor | Sequence[Tensor] | None:
    """The inputs of a module with that ``batch``; ``None``: as they were given.

    Raises:
        ModelError: a batch size is given without a function of it.
    """
    if callable(example_inputs):
        return example_inputs(batch or 1)
    if batch is not None:
        raise ModelError("batch sizes of a module need example_inputs to be a function of the batch size")
    return example_inputs


def module_variant(
    module: nn.Module,
    inputs: Tensor | Sequence[Tensor] | None,
    wanted: Wanted,
    how: TrainedAs,
    form: Form,
) -> ModelVariant:
    """The ``module`` with those ``inputs``, traced in this process.

    Raises:
        ModelError: it cannot be traced.
    """
    binding, spec, micro = wanted
    step = trace_model(
        module,
        inputs,
        form=form,
        loss=how.loss,
        optimizer=spec,
        train=how.train,
        gradients=how.gradients,
        micro=micro,
    ).step
    return _made(step).variant(binding, spec, micro)


# --- what workers do --------------------------------------------------------------------------


def _import(
    path: str,
    binding: Binding,
    spec: OptimizerSpec,
    micro: MicroBatches | None,
    how: TrainedAs,
    form: Form,
) -> bytes:
    """The packed training graph of the file at ``path`` with its kernels' facts; else what is wrong."""
    try:
        step = trace_model(
            path,
            form=form,
            loss=how.loss,
            optimizer=spec,
            train=how.train,
            bind=dict(binding),
            gradients=how.gradients,
            micro=micro,
        ).step
    except InputError as error:
        return pack({_ERROR: str(error)})
    return pack(codec.encode(_made(step)))


@dataclass(frozen=True, slots=True)
class _Imported:
    """What a worker hands over and the cache keeps: a graph, the facts of torch's kernels, and what sums."""

    graph: Graph
    kernels: KernelFacts
    accumulation: _Imported | None = None

    def variant(self, binding: Binding, spec: OptimizerSpec, micro: MicroBatches | None) -> ModelVariant:
        """The same as a variant of the model."""
        beside = self.accumulation
        summing = None if beside is None else (beside.graph, beside.kernels)
        return variant_of(self.graph, self.kernels, binding, spec.name, micro, summing)


def _made(step: TrainingStep) -> _Imported:
    """What an import gave."""
    beside = step.accumulation
    return _Imported(
        step.graph, step.kernels, None if beside is None else _Imported(beside.graph, beside.kernels)
    )


def _imported(data: Any) -> _Imported:
    """What `_import` packed.

    Raises:
        InputError: ``data`` is not of that form.
    """
    return codec.decode(_Imported, data, where="an imported graph")


def _dimensions(data: Any) -> list[list[int | str]]:
    """What `_open_dimensions` packed.

    Raises:
        InputError: ``data`` is not of that form.
    """
    found = codec.decode_value(tuple[tuple[int | str, ...], ...], data, where="dimensions")
    return [list(dims) for dims in found]


def _open_dimensions(path: str) -> bytes:
    """Per input its dimensions: sizes, and names of open ones."""
    from poet.frontend.onnx.importer import input_dims
    from poet.frontend.onnx.reader import read_onnx

    try:
        return pack([list(entry.dims) for entry in input_dims(read_onnx(path))])
    except InputError as error:
        return pack({_ERROR: str(error)})


def _digest(path: Path) -> str:
    """Hash of the file at ``path`` and of those beside it whose name it holds: its external weights."""
    try:
        with open_regular(path) as model:
            content = model.read()
        digest = hashlib.sha256(content)
        for sibling in sorted(path.parent.iterdir()):
            if sibling != path and sibling.name.encode() in content and sibling.is_file():
                with sibling.open("rb") as file:
                    digest.update(sibling.name.encode() + hashlib.file_digest(file, "sha256").digest())
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror or error})") from None
    return digest.hexdigest()
