"""A plan as a program of `torch.export`: the schedule is the graph, updates are inside.

The calls are those that the replay makes, so that the bits are. `torch.fx` deletes each tensor after its last
use, no later than the schedule frees it. No pass of torch's runs over the graph: one that joins equal calls
would undo every recomputation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.utils._pytree as pytree
from torch import Tensor, fx, nn
from torch._export.verifier import TrainingIRVerifier
from torch.export import ExportedProgram, ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)

from poet.files import tensorfile
from poet.ir.graph import Call, Op
from poet.ir.named import named_parameters
from poet.plans.plan_file import PlanFile
from poet.programs.schedule import Walk, contents, traced
from poet.runtime import kernels
from poet.runtime.kernels.strips import StripRun


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written.

    Attributes:
        calls: of the graph.
        reruns: of ops that the schedule runs again.
        ram_bytes: that it holds at most, with its state, as the plan says.
        library: of kernels that its runtime lacks; ``None``: it lacks none.
    """

    calls: int
    reruns: int
    ram_bytes: int
    library: Path | None = None


def export_pt2(plan: str | Path, output: str | Path, *, state: str | Path | None = None) -> Exported:
    """Write the program of a plan's training step with its state, as `torch.export.save` does.

    Its module takes the model's inputs and targets, makes a step, which changes its own state, and gives the
    loss and the model's outputs. Needs no poet to run. What it pages lies in ``NAME.pages`` of the working
    folder, by the name of ``output``; processes that train at a time need folders of their own.

    Args:
        plan: path of the plan file.
        output: of the new file, written whole or not at all.
        state: a state that training with the plan saved; ``None``: the weights that the plan begins with.

    Raises:
        PlanError: the plan cannot be a program, or a file is damaged.
        PoetError: the file cannot be written.
    """
    with PlanFile(plan) as file:
        step, pages = file.plan, f"{Path(output).name}.pages"
        made = traced(step, _run, page_file=pages)
        parameters = {item.name for item in named_parameters(step.graph)}
        program = as_program(made, contents(file, state), parameters)
    with tensorfile.replaced(Path(output)) as target:
        torch.export.save(program, target)
    runs = sum(node.op == "call_function" for node in program.graph.nodes)
    return Exported(runs, step.trace.recomputed_runs, step.step_peak_ram_bytes)


def _run(op: Op, call: Call, walk: Walk) -> Sequence[Tensor | None]:
    if op.strip is not None:
        strip = StripRun(op.strip, op.outputs, walk.types, blank=walk.blank)
        return strip.run(walk.tensor, walk.scalars.__getitem__)
    kernel = kernels.OWN_KERNELS.get(call.target) or kernels.kernel(call.target)
    named = {key: walk.given(argument) for key, argument in call.kwargs}
    return kernels.outputs_of(kernel(*map(walk.given, call.args), **named))


def as_program(
    made: fx.GraphModule, state: dict[str, Tensor], parameters: set[str], *, mutated: Iterable[str] = ()
) -> ExportedProgram:
    """The program of a traced step whose first inputs are ``state``; ``parameters`` are some of its names.

    Its first results are the new contents of what is ``mutated``.
    """
    places = made.graph.find_nodes(op="placeholder")
    kinds = [InputKind.PARAMETER if name in parameters else InputKind.BUFFER for name in state]
    inputs = [
        InputSpec(kind, TensorArgument(node.name), name, True if kind is InputKind.BUFFER else None)
        for kind, node, name in zip(kinds, places, state, strict=False)
    ]
    given = places[len(state) :]
    inputs += [InputSpec(InputKind.USER_INPUT, TensorArgument(node.name), None) for node in given]
    results: list[fx.Node] = pytree.tree_leaves(made.graph.output_node().args[0])
    outputs = [
        OutputSpec(OutputKind.BUFFER_MUTATION, TensorArgument(node.name), name)
        for name, node in zip(mutated, results, strict=False)
    ]
    own = results[len(outputs) :]
    outputs += [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(node.name), None) for node in own]
    example = tuple(torch.zeros(node.meta["val"].shape, dtype=node.meta["val"].dtype) for node in given)
    call = ModuleCallSignature(
        inputs=[],  # their names would bind passes that rename nodes
        outputs=[],
        in_spec=pytree.tree_structure((example, {})),
        out_spec=pytree.tree_structure(tuple(own)),
    )
    held = {
        name: nn.Parameter(tensor, requires_grad=False) if name in parameters else tensor
        for name, tensor in state.items()
    }
    return ExportedProgram(
        made,
        made.graph,
        ExportGraphSignature(inputs, outputs),
        held,
        {},
        [ModuleCallEntry("", call)],
        example_inputs=(example, {}),
        verifiers=[TrainingIRVerifier],
    )
