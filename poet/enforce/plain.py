"""The plain half of an enforced run: ``python -m poet.enforce.plain REQUEST``.

The same model, data, loss, optimizer and threads as the plan's, in plain PyTorch: the module's own forward,
``loss.backward()``, `torch.optim`. Without a limit it makes two steps, of which the second is measured;
then it gives back everything but the model, is confined like the plan's child, and tries again. The
model's own bytes are part of the budget, as they are in the plan's.
"""

from __future__ import annotations

import sys

import torch
from torch import nn

from poet.errors import PlanError
from poet.frontend.losses import Loss, LossFunction, as_loss, with_output
from poet.frontend.onnx.importer import load_onnx_structure
from poet.frontend.plain import check_is_planned, own_module, torch_optimizer
from poet.ir.named import named_parameters
from poet.plans.plan_file import PlanFile
from poet.plans.run_request import RunRequest
from poet.plans.training_plan import Plan
from poet.runtime.kernels.dequantised import as_used
from poet.runtime.runs.confined import Emit, run_child
from poet.runtime.runs.fit import Samples, load_samples
from poet.runtime.storage.state import FromPlan, pieces
from poet.runtime.system.confinement import Confinement, Rehearsal
from poet.runtime.system.memory import PeakMeter

_STEPS_OF_ONE_OPTIMIZER = 2
_CONFINED_ROUNDS = 2


def try_plain(request: RunRequest, emit: Emit) -> None:
    """Train in plain PyTorch, first unconfined, then confined.

    Raises:
        PlanError: the plan carries no structure from which the module could be built, and none is named.
        InputError: the module that is named is another, or cannot be had.
    """
    with PlanFile(request.plan) as file:
        plan = file.plan
        module, own_loss = _module(file, request.module)
        module = with_output(module, plan.model.output)
        _fill(module, file)
        samples = load_samples(request.data, plan, allow_nan=request.allow_nan)
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    model_bytes = sum(tensor.untyped_storage().nbytes() for tensor in tensors.values())
    loss = as_loss(own_loss or plan.request.loss)
    _train(module, plan, loss, samples)
    with Rehearsal() as rehearsal, PeakMeter(model_bytes) as meter:
        _train(module, plan, loss, samples)
    idle_bytes = rehearsal.idle_bytes(meter.peak.bytes or model_bytes)
    confinement = Confinement(idle_bytes, request.budget_bytes)
    confinement.enforce()
    emit("confined", {"idle_bytes": confinement.idle_bytes, "peak_bytes": meter.peak.bytes})
    for _ in range(_CONFINED_ROUNDS):
        emit("step", {"steps": _train(module, plan, loss, samples)})


def _module(file: PlanFile, named: str | None) -> tuple[nn.Module, LossFunction | None]:
    """The module that was planned, and its loss where that is the user's own."""
    if named is not None:
        module, loss = own_module(named)
        check_is_planned(module, file.plan.graph)
        return module, loss
    structure = file.structure()
    if structure is None:
        raise PlanError(
            f"{file.path.name} was planned from a module and carries no ONNX structure, so that plain "
            "PyTorch cannot be set beside it; name the module: --module MODULE:FUNCTION"
        )
    return load_onnx_structure(structure).module, None


def _fill(module: nn.Module, file: PlanFile) -> None:
    """The weights and states with which the plan begins."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    graph, source = file.plan.graph, FromPlan(file)
    with torch.no_grad():
        for parameter in named_parameters(graph):
            target, packed = tensors[parameter.name], parameter.packed
            found = target if packed is None else torch.empty(packed.packed_shape, dtype=torch.uint8)
            for value, part in pieces(parameter.content, found):
                source.fill(value, part)
            if packed is not None:
                target.copy_(as_used(found, packed))
        owned = {item.value for item in graph.parameters}
        for name, value in graph.states:
            if value not in owned:  # else another name of a parameter
                source.fill(value, tensors[name])


def _train(module: nn.Module, plan: Plan, loss_of: Loss, samples: Samples) -> int:
    """Make two steps with a new optimizer: in the second, its state is there while the activations are.

    Gradients are given back before each forward pass, as is usual, and everything but the
    parameters' values afterwards.
    """
    trained = {item.name for item in named_parameters(plan.graph) if item.is_trained}
    for name, item in module.named_parameters():
        item.requires_grad_(name in trained)
    parameters = {name: item for name, item in module.named_parameters() if name in trained}
    optimizer = torch_optimizer(plan.optimizer, parameters)
    micro = plan.request.micro
    pieces = 1 if micro is None else micro.count
    inputs, targets = samples.batch(torch.arange(len(samples.staged[0])))
    for _ in range(_STEPS_OF_ONE_OPTIMIZER):
        optimizer.zero_grad(set_to_none=True)
        for _ in range(pieces):
            loss = loss_of.of(module(*inputs), targets)
            (loss if micro is None else loss / micro.divisor).backward()  # type: ignore[no-untyped-call]
            del loss
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return _STEPS_OF_ONE_OPTIMIZER


if __name__ == "__main__":
    sys.exit(run_child(try_plain, sys.argv[1:]))
