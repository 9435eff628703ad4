"""A training step written out by hand: two linear layers, relu, mean squared error, SGD.

It stands for what tracing makes, so that the runtime's tests need no tracing.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from helpers.schedules import keep_everything, random_schedule
from poet.files.tensorfile import RawTensor
from poet.ir.graph import (
    Argument,
    Buffer,
    Call,
    Graph,
    Op,
    Parameter,
    Ref,
    Role,
    Symbol,
    TensorType,
    Value,
    floats_within,
)
from poet.ir.kernel_facts import KernelFacts
from poet.ir.optimizer import OptimizerSpec
from poet.planning.beside import at_home
from poet.plans.plan_file import write_plan
from poet.plans.plan_parts import Device, Model, Request, SearchOutcome
from poet.plans.training_plan import Plan, make_plan
from poet.problem import Limits, PageForm, Place, Problem, ProblemOp, Tensor, Transfer
from poet.problem.homes import decided
from poet.problem.schedule import Schedule
from poet.problem.simulator import simulate
from poet.runtime.storage.state import raw_tensor

if TYPE_CHECKING:
    from poet.frontend.trace import TrainingStep

BATCH, WIDTH = 8, 64


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.second(torch.relu(self.first(x)))
        return result


def net(seed: int = 0) -> Net:
    torch.manual_seed(seed)
    return Net()


def batch(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(BATCH, WIDTH, generator=generator) for _ in range(2))  # type: ignore[return-value]


class _Writer:
    """Collects buffers, values and ops."""

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self.values: list[Value] = []
        self.ops: list[Op] = []

    def new(self, name: str, shape: tuple[int, ...], role: Role) -> str:
        type_ = TensorType("float32", shape, _strides(shape))
        self.buffers.append(Buffer(f"b_{name}", type_.extent_bytes, role))
        self.values.append(Value(name, f"b_{name}", type_))
        return name

    def transposed(self, name: str) -> str:
        base = next(value for value in self.values if value.name == name)
        type_ = TensorType("float32", base.type.shape[::-1], base.type.strides[::-1])
        self.values.append(Value(f"{name}_t", base.buffer, type_))
        return f"{name}_t"

    def op(self, name: str, shape: tuple[int, ...], role: Role, target: str, *args: Argument) -> str:
        self.new(name, shape, role)
        self.ops.append(Op(f"op_{name}", Call(target, args), (name,)))
        return name


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return tuple(strides) if shape else ()


def graph() -> Graph:
    w, rows = _Writer(), (BATCH, WIDTH)
    act, grad = Role.ACTIVATION, Role.GRADIENT
    for name in ("x", "y"):
        w.new(name, rows, Role.INPUT)
    for layer in ("first", "second"):
        w.new(f"{layer}.weight", (WIDTH, WIDTH), Role.PARAMETER)
        w.new(f"{layer}.bias", (WIDTH,), Role.PARAMETER)
    first_t, second_t = w.transposed("first.weight"), w.transposed("second.weight")
    w.op("a", rows, act, "aten.addmm.default", Ref("first.bias"), Ref("x"), Ref(first_t))
    w.op("h", rows, Role.SAVED, "aten.relu.default", Ref("a"))
    w.op("p", rows, act, "aten.addmm.default", Ref("second.bias"), Ref("h"), Ref(second_t))
    w.op("loss", (), act, "aten.mse_loss.default", Ref("p"), Ref("y"), 1)
    w.op("one", (), act, "poet.full", (), (), Symbol("dtype", "float32"), 1.0)
    w.op("gp", rows, act, "aten.mse_loss_backward.default", Ref("one"), Ref("p"), Ref("y"), 1)
    gp_t = w.transposed("gp")
    w.op("gh", rows, act, "aten.mm.default", Ref("gp"), Ref("second.weight"))
    parameters = []
    for layer, source, source_t, given in (("second", "gp", gp_t, "h"), ("first", "ga", "ga_t", "x")):
        if layer == "first":
            w.op("ga", rows, act, "aten.threshold_backward.default", Ref("gh"), Ref("h"), 0)
            w.transposed("ga")
        w.op(f"d_{layer}.weight", (WIDTH, WIDTH), grad, "aten.mm.default", Ref(source_t), Ref(given))
        w.op(f"d_{layer}.bias", (1, WIDTH), grad, "aten.sum.dim_IntList", Ref(source), (0,), True)
        w.values.append(Value(f"g_{layer}.bias", f"b_d_{layer}.bias", TensorType("float32", (WIDTH,), (1,))))
        for kind, gradient in (("weight", f"d_{layer}.weight"), ("bias", f"g_{layer}.bias")):
            name = f"{layer}.{kind}"
            call = OptimizerSpec("sgd").update(name, gradient, ())
            w.ops.append(Op(f"update_{name}", call, (), updates=(f"b_{name}",), repeatable=False))
            parameters.append(Parameter(name, name, gradient))
    order = [f"{layer}.{kind}" for layer in ("first", "second") for kind in ("weight", "bias")]
    return Graph(
        name="hand net",
        buffers=tuple(w.buffers),
        values=tuple(w.values),
        ops=tuple(w.ops),
        inputs=("x", "y"),
        targets=1,
        loss="loss",
        predictions=("p",),
        parameters=tuple(sorted(parameters, key=lambda parameter: order.index(parameter.name))),
    )


KERNELS = KernelFacts("", alignment_bytes=64)
"""Those of no library in particular, of which nothing is known but what torch's align to."""


def problem(
    of: Graph,
    *,
    parameters_in_storage: bool = False,
    kernels: KernelFacts = KERNELS,
    form: PageForm | None = None,
) -> Problem:
    """Every op costs a millisecond, every transfer two; buffers are paged where they may be.

    ``form``: in which all that may be rounded goes to storage.
    """
    handed_over = {of.buffer_of(name) for name in (of.loss, *of.predictions)}
    persistent = of.persistent()
    tensors = []
    for buffer in of.buffers:
        initially = finally_ = None
        if buffer.name in persistent:
            initially = finally_ = Place.STORAGE if parameters_in_storage else Place.RAM
        elif buffer.name in handed_over:
            finally_ = Place.RAM
        cost = Transfer(2e-3, 1e-3)
        tensors.append(
            Tensor(
                buffer.name, buffer.size_bytes, cost, cost, buffer.role.value, initially, finally_,
                page_form=form if buffer.name in floats_within(of) else None,
            )
        )  # fmt: skip
    ops = [
        ProblemOp(
            op.name,
            of.reads(op.call),
            of.writes(op),
            1e-3,
            1e-3,
            kernels.of(op.name).workspace_bytes,
            tuple(name for name in op.updates if name not in op.stored),
            of.reads(op.recall) if op.recall is not None else None,
            op.recall is not None,
            op.random,
            op.stored,
            stored_updates=tuple(name for name in op.updates if name in op.stored),
        )
        for op in of.ops
    ]
    return Problem(of.name, tuple(tensors), tuple(ops), kernels=kernels.library)


def plan(
    of: Problem,
    what: Graph,
    schedule: Schedule,
    *,
    optimizer: OptimizerSpec | None = None,
    loss: str = "mse",
    slack: float = 0.0,
    kernels: KernelFacts = KERNELS,
) -> Plan:
    """A plan whose budget is what the schedule needs, and ``slack`` times that."""
    peak_ram_bytes = simulate(of, schedule).peak_ram_bytes
    return make_plan(
        model=Model(what.name, "module", "0" * 64),
        request=Request(Limits(ram_budget_bytes=int(peak_ram_bytes * (1 + slack))), loss),
        device=Device("bench"),
        outcome=SearchOutcome("feasible", 0.0, "whole problem", of.compute_joules, 1.0, 1.0, "by hand", 0.0),
        graph=what,
        kernels=kernels,
        optimizer=optimizer or OptimizerSpec("sgd", lr=0.1),
        problem=decided(of, schedule),
        schedule=schedule,
    )


def beside(of: Plan, what: Graph, *, seed: int, share: float = 0.5) -> Plan:
    """A plan of ``what``, an auxiliary schedule of ``of``, by chance; its budget has room for both."""
    problem_beside = at_home(problem(what), of)
    schedule = random_schedule(problem_beside, seed, share=share)
    found = plan(problem_beside, what, schedule, optimizer=of.optimizer, loss=of.request.loss)
    budget_bytes = max(found.trace.peak_ram_bytes, of.request.limits.ram_budget_bytes or 0)
    limits = replace(of.request.limits, ram_budget_bytes=budget_bytes)
    return replace(found, request=replace(found.request, limits=limits), model=of.model)


def stored(module: nn.Module) -> dict[str, RawTensor]:
    return {name: raw_tensor(parameter) for name, parameter in module.named_parameters()}


def write(
    path: Path,
    schedule: Schedule | None = None,
    *,
    parameters_in_storage: bool = False,
    form: PageForm | None = None,
) -> Plan:
    """A plan file of the net with seed 0."""
    what = graph()
    of = problem(what, parameters_in_storage=parameters_in_storage, form=form)
    made = plan(of, what, schedule if schedule is not None else keep_everything(of))
    write_plan(path, made, stored(net()))
    return made


def paging_plan(seed: int = 3) -> Plan:
    """A plan that recomputes and pages."""
    what = graph()
    of = problem(what)
    return plan(of, what, random_schedule(of, seed))


def write_step(
    path: Path,
    step: TrainingStep,
    seed: int | None = 1,
    *,
    share: float = 0.5,
    in_storage: bool = False,
    slack: float = 1.0,
    form: PageForm | None = None,
) -> Plan:
    """A plan file of a traced step with a random schedule, or for ``None`` with one that keeps everything."""
    of = problem(step.graph, parameters_in_storage=in_storage, kernels=step.kernels, form=form)
    schedule = keep_everything(of) if seed is None else random_schedule(of, seed, share=share)
    made = plan(
        of, step.graph, schedule, optimizer=step.optimizer, loss=step.loss, slack=slack, kernels=step.kernels
    )
    write_plan(path, made, {name: raw_tensor(tensor) for name, tensor in step.tensors.items()})
    return made
