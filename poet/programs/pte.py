"""A plan as a program of ExecuTorch, for its unmodified wheel: the schedule in portable kernels, placed here.

Parameters and what the optimizer keeps are mutable buffers of the method and lie in its planned memory, as
everything does that the plan counts. Where a kernel may write over an operand, it does.
"""

from __future__ import annotations

import functools
import importlib.metadata
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch.utils._pytree as pytree
from torch import fx
from torch.export import ExportedProgram

from poet.errors import PlanError, PoetError
from poet.files import tensorfile
from poet.memory.layout import Block, check_layout, lay_out
from poet.plans.plan_file import PlanFile
from poet.plans.training_plan import Plan
from poet.programs import pages, portable
from poet.programs.pt2 import Exported, as_program
from poet.programs.row_major import RowMajorWalk, mutated
from poet.programs.schedule import STEPS, contents, traced
from poet.runtime.data.random_batches import Batch, random_batch
from poet.runtime.training.trainer import Trainer

WHEEL = "1.5.1"
"""The version of ExecuTorch whose kernels were held against PyTorch."""

_TOLERANCE = 1e-3  # of a loss: kernels sum in other orders

ALIGNMENT_BYTES = 16
"""What ExecuTorch aligns tensors to."""


def export_pte(plan: str | Path, output: str | Path, *, state: str | Path | None = None) -> Exported:
    """Write the method ``forward`` that makes a plan's training step on ExecuTorch.

    It takes the model's inputs and targets and gives the loss and the model's outputs. Before anything is
    written, two of its steps in ExecuTorch's runtime are held against the plan's. The bytes are those of the
    memory that the runtime plans with, all that the plan counts.

    Where the plan pages, a library with the kernels for that is written beside ``output``, as ``output.so``.
    A process loads it after ExecuTorch's runtime.

    Args:
        plan: path of the plan file.
        output: of the new file, written whole or not at all.
        state: a state that training with the plan saved; ``None``: the weights that the plan begins with.

    Raises:
        PlanError: the plan cannot be such a method or its loss comes out otherwise, or a file is damaged.
        PoetError: ExecuTorch is not installed, or the file cannot be written.
    """
    with PlanFile(plan) as file:
        step, traced_step = file.plan, traced(file.plan, portable.run, walk=RowMajorWalk)
        held = contents(file, state, whole=False)
    written = (*([STEPS] if STEPS in held else []), *mutated(step.graph))
    program = as_program(traced_step, held, set(), mutated=written)
    placing = Placing(plan_bytes(step), step.request.limits.ram_budget_bytes)
    method = with_executorch(program, placed_in=placing)
    library = Path(f"{output}.so") if step.slots else None
    kernels = pages.kernels() if step.slots else b""
    _check(step, method.buffer, plan, state)
    for path, content in ((library, kernels), (Path(output), method.buffer)):
        if path is not None:
            with tensorfile.replaced(path) as target:
                target.write(content)
    made = method.executorch_program.execution_plan[0]
    calls = sum(type(item.instr_args).__name__ == "KernelCall" for item in made.chains[0].instructions)
    return Exported(calls, step.trace.recomputed_runs, made.non_const_buffer_sizes[1], library)


def with_executorch(program: ExportedProgram, *, placed_in: Placing | None) -> Any:
    """ExecuTorch's manager of a program of portable operators; ``None``: it plans the memory itself.

    Raises:
        PoetError: ExecuTorch is not installed, or is of another version.
    """
    try:
        from executorch.exir import EdgeCompileConfig, EdgeProgramManager, ExecutorchBackendConfig
        from executorch.exir.passes import MemoryPlanningPass
        from executorch.exir.program._program import _generate_edge_program

        found = importlib.metadata.version("executorch")
    except ImportError as error:
        found = str(error)
    if found != WHEEL:
        way = "pip install 'poet-edge-training[executorch]'"
        raise PoetError(f"export pte needs ExecuTorch {WHEEL}: {way} (here: {found})")
    config = EdgeCompileConfig(_check_ir_validity=False)
    edge = EdgeProgramManager(_generate_edge_program(config, program), None, config)
    return edge.to_executorch(
        ExecutorchBackendConfig(
            memory_planning_pass=placed_in or MemoryPlanningPass(), emit_mutable_buffer_names=True
        )
    )


def _check(plan: Plan, program: bytes, path: str | Path, state: str | Path | None) -> None:
    """Hold the losses of two steps on random data against those of the plan's replay.

    Raises:
        PlanError: a kernel computes something else, or nothing.
    """
    batches = [random_batch(plan, seed) for seed in (0, 1)]
    every_found = _losses(program, batches)
    with Trainer.open(path, resume=state, arena=False) as trainer:
        for number, (batch, found) in enumerate(zip(batches, every_found, strict=True), 1):
            expected = trainer.step(*batch).loss
            if not math.isclose(found, expected, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE):
                raise PlanError(
                    f"{plan.model.name}: step {number} in ExecuTorch has the loss {found:.6g}, in the plan "
                    f"{expected:.6g}: a kernel of its wheel is wrong here; use `poet export pt2`"
                )


def _losses(program: bytes, batches: Sequence[Batch]) -> list[float]:
    """Those of a step with each batch, in ExecuTorch's runtime."""
    from executorch.runtime import Runtime

    try:
        method = Runtime.get().load_program(program).load_method("forward")
        leaves = ([item for item in pytree.tree_leaves(batch) if item is not None] for batch in batches)
        return [float(method.execute(given)[0]) for given in leaves]
    except RuntimeError as error:
        raise PlanError(f"ExecuTorch's runtime cannot make a step: {error}; use `poet export pt2`") from error


def plan_bytes(plan: Plan) -> int:
    """What a plan counts in all: its arena where it has one."""
    size_bytes = plan.step_peak_ram_bytes if plan.arena is None else plan.arena.size_bytes
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


class Placing:
    """ExecuTorch's pass for the places of tensors: `poet.memory.layout` inside the plan's bytes.

    A result lies where an operand did whose last use it is, or in what it is written back to, where its
    kernel reads each element before it writes it; the copy back is then no call.
    """

    def __init__(self, size_bytes: int, budget_bytes: int | None) -> None:
        """Prepare.

        Args:
            size_bytes: that the plan counts.
            budget_bytes: that it may, where kernels here make more temporaries; ``None``: any.
        """
        self.size_bytes, self.budget_bytes = size_bytes, budget_bytes
        self._unread: list[Any] = []

    def run(self, module: fx.GraphModule, signature: Any) -> Any:
        """What ExecuTorch calls, when every result has a tensor to be written to."""
        from executorch.exir.passes import MemoryPlanningPass

        for node in module.graph.find_nodes(op="placeholder"):
            node.meta["et_init_buffer"] = True
        self._share(module, signature)
        self._unread = _unread(module)
        return MemoryPlanningPass(memory_planning_algo=self._place).run(module, signature)

    def _share(self, module: fx.GraphModule, signature: Any) -> None:
        last = _last_uses(module)
        place = {node: number for number, node in enumerate(module.graph.nodes)}
        for node in list(module.graph.nodes):
            name, root = _name(node), _root(node)
            if root is not node:  # a view, of what may lie elsewhere now
                base = root.meta["spec"]
                spec = node.meta["spec"]
                node.meta["spec"] = type(spec)(getattr(base, "_base", base), spec.shape)
            elif name == "copy_":
                into, made = _operands(node)
                if _name(made) and len(made.users) == 1 and _may_overwrite(made, into):
                    made.meta["spec"] = into.meta["spec"]
                    for item in signature.output_specs:
                        item.arg.name = made.name if item.arg.name == node.name else item.arg.name
                    node.replace_all_uses_with(made)
                    module.graph.erase_node(node)
            elif name in portable.IN_PLACE:
                for operand in filter(functools.partial(_is_alike, node), _operands(node)):
                    root = _root(operand)
                    is_last = root.op != "placeholder" and last[root] == place[node]
                    if is_last and _may_overwrite(node, operand):
                        node.meta["spec"] = operand.meta["spec"]
                        break
        output = module.graph.output_node()  # else what is written back would lie there once more at the end
        output.meta["spec"] = fx.node.map_arg(output.args[0], lambda node: node.meta["spec"])
        module.recompile()

    def _place(self, _: int, specs: Any, *rest: Any) -> list[int]:
        unread = set(map(id, self._unread))
        every = [spec for spec in specs if type(spec).__name__ != "_ViewSpec" and id(spec) not in unread]
        blocks = [
            Block(str(number), None, spec.nbytes(), (tuple(spec.lifetime),), ALIGNMENT_BYTES)
            for number, spec in enumerate(every)
        ]
        layout = lay_out(blocks, enough_bytes=self.size_bytes)
        check_layout(layout)
        blank_bytes = max((spec.nbytes() for spec in self._unread), default=0)
        size_bytes = max(self.size_bytes, layout.arena_bytes, blank_bytes)
        if self.budget_bytes is not None and size_bytes > max(self.size_bytes, self.budget_bytes):
            raise PlanError(
                f"ExecuTorch's kernels need {size_bytes:,} bytes for this schedule, more than the "
                f"plan's budget of {self.budget_bytes:,}; plan with another --ram, or use export pt2"
            )
        for number, (spec, offset) in enumerate(zip(every, layout.offsets_bytes, strict=True)):
            spec.mem_id, spec.mem_offset, spec.mem_obj_id = 1, offset, number
        for spec in self._unread:
            spec.mem_id, spec.mem_offset, spec.mem_obj_id = 1, 0, 0
        return [0, size_bytes]


def _unread(module: fx.GraphModule) -> list[Any]:
    """The tensors whose contents no kernel touches: given for their shapes, or for what is not wanted."""
    found = []
    for node in list(module.graph.nodes):
        name = _name(node)
        if name in ("empty", "_empty_dim_order"):
            alloc = node.kwargs["out"]
            alloc.meta["spec"] = node.meta["spec"]
            node.replace_all_uses_with(alloc)
            module.graph.erase_node(node)
            found.append(alloc.meta["spec"])
        elif name == "convolution_backward":
            wanted = zip(node.args[-1], node.meta["spec"], strict=True)
            found += [spec for is_wanted, spec in wanted if spec is not None and not is_wanted]
    module.recompile()
    return found


def _name(node: Any) -> str:
    """Of the kernel that a node calls; empty: it calls none."""
    schema = getattr(getattr(node, "target", None), "_schema", None)
    return "" if schema is None else schema.name.partition("::")[2]


def _operands(node: fx.Node) -> list[fx.Node]:
    """The tensors that a kernel reads, by their places; none within lists."""
    return [item for item in node.args if isinstance(item, fx.Node)]


def _root(node: fx.Node) -> fx.Node:
    """What a node without a kernel views."""
    while node.op == "call_function" and not _name(node) and "view" in str(node.target):
        node = _operands(node)[0]
    return node


def _memory(node: fx.Node) -> Any:
    """What stands for the memory of a node."""
    spec = _root(node).meta.get("spec")
    return getattr(spec, "_base", spec)


def _is_alike(node: fx.Node, other: fx.Node) -> bool:
    """Whether both are tensors of one shape and type."""
    mine, theirs = (getattr(item.meta.get("spec"), "shape", None) for item in (node, other))
    return mine is not None and mine == theirs and node.meta["spec"].dtype == other.meta["spec"].dtype


def _may_overwrite(node: fx.Node, target: fx.Node) -> bool:
    """Whether the kernel of ``node`` may write where ``target`` lies: it reads nothing there, or in step."""
    read = [item for item in _operands(node) if _memory(item) is _memory(target)]
    return all(_is_alike(node, item) for item in read) and (not read or _name(node) in portable.IN_PLACE)


def _last_uses(module: fx.GraphModule) -> dict[fx.Node, int]:
    """Per node that has memory, the number of the last one that reads it."""
    last: dict[fx.Node, int] = {}
    for number, node in enumerate(module.graph.nodes):
        for operand in node.all_input_nodes:
            last[_root(operand)] = number
    return last
