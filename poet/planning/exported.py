"""Trained weights on their way back: a state dict for the module, or the ONNX file that they came from."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from poet.errors import PlanError
from poet.files import tensorfile
from poet.ir.calls import TensorType, contiguous
from poet.ir.graph import Graph
from poet.ir.named import Joined, named_parameters, packed_values
from poet.plans.plan_file import PlanFile
from poet.runtime.kernels import arguments
from poet.runtime.kernels.dequantised import as_used
from poet.runtime.storage.state import FromPlan, Saved, pieces


@dataclass(frozen=True, slots=True)
class ExportedModel:
    """What was written.

    Attributes:
        tensors: weights in it.
        steps: of training that they have behind them.
        check: what onnxruntime said, for people; of a state dict empty.
    """

    tensors: int
    steps: int
    check: str = ""


def export_state(plan: str | Path, output: str | Path, *, state: str | Path | None = None) -> ExportedModel:
    """Write parameters and module state for ``module.load_state_dict(..., strict=True)``, as safetensors.

    Tensors that the module has under several names stand under each. They pass through a buffer of 1 MiB;
    packed ones whole, as the float32 that they stand for.

    Args:
        plan: path of the plan file.
        output: of the new file, written whole or not at all.
        state: a state that training with the plan saved; ``None``: the weights that the plan begins with.

    Raises:
        PlanError: a file is damaged, or the state is of another plan's model.
        PoetError: the file cannot be written.
    """
    with PlanFile(plan) as file, opened(file, state) as source:
        names, packed = _state_names(file.plan.graph), packed_values(file.plan.graph)

        def of_value(value: str) -> Iterable[memoryview]:
            if value not in packed:
                return source.stretches(value)
            found = torch.empty(packed[value].packed_shape, dtype=torch.uint8)
            source.fill(value, found)
            return [as_used(found, packed[value]).numpy().data.cast("B")]

        def stretches(name: str) -> Iterator[memoryview]:
            return itertools.chain.from_iterable(map(of_value, names[name].values))

        def type_of(item: Joined) -> TensorType:
            how = packed.get(item.values[0])
            return item.type if how is None else contiguous("float32", (item.type.shape[0], *how.shape[1:]))

        tensorfile.write_streamed(
            Path(output), {name: type_of(item) for name, item in names.items()}, stretches, {}
        )
        return ExportedModel(len(names), source.steps)


def export_onnx(plan: str | Path, output: str | Path, *, state: str | Path | None = None) -> ExportedModel:
    """Write the ONNX file that the plan was made from, with trained weights.

    The graph is the file's own, each weight an initialiser, in evaluation mode: batch norm by its running
    statistics, dropout off. Where onnxruntime is installed, the new file's outputs are held against those of
    the trained module before anything is written.

    Args:
        plan: path of the plan file.
        output: of the new file, written whole or not at all.
        state: a state that training with the plan saved; ``None``: the weights that the plan begins with.

    Raises:
        PlanError: the plan was made from a module, or as for `export_state`.
        ModelError: onnxruntime computes something else.
        PoetError: the file cannot be written.
    """
    from poet.frontend.onnx.importer import checked_by_onnxruntime, filled

    with PlanFile(plan) as file:
        structure = file.structure()
        if structure is None:
            raise PlanError(
                f"{file.path.name} was planned from a module and carries no ONNX structure; "
                "use `poet export state`, and torch.onnx.export on the module"
            )
        tensors, steps = _trained(file, state)
    model, count = filled(structure, tensors)
    check = checked_by_onnxruntime(model, structure, tensors)
    with tensorfile.replaced(Path(output)) as target:
        target.write(model)
    return ExportedModel(count, steps, check)


def _trained(file: PlanFile, state: str | Path | None) -> tuple[dict[str, Tensor], int]:
    """Parameters, module state and constants, by every name of each, and the steps behind them."""
    with opened(file, state) as source:
        found: dict[tuple[str, ...], Tensor] = {}
        names = _every_name(file.plan.graph)
        for item in names.values():
            if item.values not in found:
                found[item.values] = torch.empty(item.type.shape, dtype=arguments.dtype(item.type.dtype))
                for value, part in pieces(item, found[item.values]):
                    source.fill(value, part)
        packed = {item.content.values: item.packed for item in named_parameters(file.plan.graph)}
        used = {values: as_used(tensor, packed.get(values)) for values, tensor in found.items()}
        return {name: used[item.values] for name, item in names.items()}, source.steps


@contextlib.contextmanager
def opened(file: PlanFile, state: str | Path | None) -> Iterator[FromPlan | Saved]:
    """What ``state`` has, or the plan where it is none."""
    if state is None:
        yield FromPlan(file)
        return
    with Saved(state, file) as saved:
        yield saved


def _state_names(graph: Graph) -> dict[str, Joined]:
    """What stands behind each name of the module's state dict."""
    types = {value.name: value.type for value in graph.values}
    named = {item.name: item.content for item in named_parameters(graph)}
    return named | {name: Joined(name, types[value], (value,)) for name, value in graph.states}


def _every_name(graph: Graph) -> Mapping[str, Joined]:
    types = {value.name: value.type for value in graph.values}
    constants = {name: Joined(name, types[value], (value,)) for name, value in graph.constants}
    return constants | _state_names(graph)
