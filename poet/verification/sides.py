"""A plan and plain PyTorch side by side: given the same batches, what each makes of them."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from poet.errors import InputError, NotExact, PoetError
from poet.frontend.losses import LossFunction, with_output
from poet.frontend.plain import PlainTrainer
from poet.ir.named import named_parameters
from poet.plans.training_plan import Plan, shape_words
from poet.runtime import Trainer
from poet.runtime.data.random_batches import Batch, random_batch
from poet.runtime.steps.replay import first_line
from poet.util.units import format_bytes
from poet.verification.reports import BitComparison
from poet.verification.unit_threads import threads_of

Pairs = Iterator[tuple[str, Tensor, Tensor]]
"""What a step or an evaluation gave, as (name, of the plan, of plain PyTorch)."""


def compared(
    trainer: Trainer,
    module: nn.Module,
    batches: Sequence[Batch],
    steps: int,
    seed: int,
    loss: str | LossFunction,
) -> BitComparison:
    """So many steps of a plan, then one inside each of its other budgets, against plain PyTorch."""
    plan, threads, count = trainer.plan, torch.get_num_threads(), 0
    plain, plainly = plain_from(trainer, module, loss, seed)
    sides = Sides(trainer, plain, plainly, batches, seed)
    for name, ours, theirs in itertools.chain(sides.steps(steps), *map(sides.inside, plan.budgets)):
        count += 1
        difference = difference_of(ours, theirs)
        if difference is not None:
            return BitComparison(threads, count, f"{name} {difference}")
    return BitComparison(threads, count, None)


def plain_from(
    trainer: Trainer, module: nn.Module, loss: str | LossFunction, seed: int
) -> tuple[PlainTrainer, nn.Module]:
    """Plain PyTorch from the state of ``trainer`` on, and what it trains."""
    plan, plainly = trainer.plan, with_output(module, trainer.plan.model.output)
    take_over(plainly, trainer)
    named = (item for item in named_parameters(plan.graph) if item.is_trained)
    trained = [name for item in named for name in item.blocks or (item.name,)]
    plain = PlainTrainer(plainly, loss=loss, optimizer=plan.optimizer, trained=trained)
    torch.manual_seed(seed)
    return plain, plainly


def take_over(module: nn.Module, trainer: Trainer) -> None:
    """Give ``module`` the parameters and module state that ``trainer`` has."""
    everything = tensors_of(module)
    with torch.no_grad():
        for name, tensor in trainer.named_tensors():
            everything[name].copy_(tensor)


@dataclass(frozen=True, slots=True)
class Sides:
    """A plan that is open for training, and plain PyTorch with the same tensors."""

    trainer: Trainer
    plain: PlainTrainer
    module: nn.Module
    batches: Sequence[Batch]
    seed: int

    def steps(self, count: int) -> Pairs:
        """So many steps, one of each other shape, then the evaluations, and their peak."""
        plan, batches = self.trainer.plan, self.batches
        for number in range(1, count + 1):
            yield from _called(f"step {number}: ", self.step(*batches[(number - 1) % len(batches)]))
        others = [(item, shape_words(item.step.graph, item.step.model)) for item in plan.shapes]
        drawn = [_batch_of(shape.step, batches, self.seed) for shape, _ in others]
        for (_, words), batch in zip(others, drawn, strict=True):
            yield from _called(f"step for {words}: ", self.step(*batch))
        if plan.evaluation is not None:
            first, micro = batches[0], plan.request.micro
            first = first if micro is None else micro_batches(*first, micro.count)[0]
            yield from _called("evaluation: ", self.evaluation(*first))
        for (shape, words), batch in zip(others, drawn, strict=True):
            if shape.evaluation is not None:
                yield from _called(f"evaluation for {words}: ", self.evaluation(*batch))
        self.trainer.check_budget()

    def inside(self, other: Plan) -> Pairs:
        """One step inside the budget of ``other``, with its auxiliary schedules; training goes on there."""
        budget_bytes = other.request.limits.ram_budget_bytes or 0
        self.trainer.set_budget(budget_bytes)
        yield from _called(f"inside {format_bytes(budget_bytes)}, ", self.steps(1))

    def step(self, inputs: tuple[Tensor, ...], targets: Tensor | tuple[Tensor, ...] | None) -> Pairs:
        """One step on each side."""
        trainer, plain = self.trainer, self.plain
        gradients: dict[str, Tensor] = {}
        micro = trainer.plan.request.micro
        pieces = [(inputs, targets)] if micro is None else micro_batches(inputs, targets, micro.count)
        divisor = 1 if micro is None else micro.divisor
        handed = None if trainer.plan.graph.predictions else 0  # logits in strips are handed to nobody
        with accepting():
            plain.look(pieces[0][0])
            with threads_of(trainer.plan):
                results = plain.step_in_pieces(pieces, divisor=divisor)
        *earlier, (loss, outputs) = results
        for number, (piece, (theirs, their_outputs)) in enumerate(zip(pieces[:-1], earlier, strict=True), 1):
            summed = trainer.accumulate(*piece)
            yield f"the loss of micro-batch {number}", torch.tensor(summed.loss, dtype=theirs.dtype), theirs
            for place, (ours, output) in enumerate(
                zip(summed.predictions, their_outputs[:handed], strict=True)
            ):
                yield f"output {place} of micro-batch {number}", ours, output
        result = trainer.step(
            *pieces[-1], on_gradient=lambda name, gradient: gradients.update({name: gradient.clone()})
        )
        yield "the loss", torch.tensor(result.loss, dtype=loss.dtype), loss
        for place, (ours, theirs) in enumerate(zip(result.predictions, outputs[:handed], strict=True)):
            yield f"output {place}", ours, theirs
        if gradients.keys() != plain.gradients.keys():
            raise NotExact(
                f"only one side has a gradient of {min(gradients.keys() ^ plain.gradients.keys())}"
            )
        for name, gradient in gradients.items():
            yield f"the gradient of {name}", gradient, plain.gradients[name]
        everything = tensors_of(self.module)
        for name, ours in trainer.named_tensors():
            yield name, ours, everything[name]
        states = trainer.optimizer_state()
        for (parameter, name), theirs in plain.optimizer_state().items():
            yield f"{name} of {parameter}", states[parameter][name], theirs

    def evaluation(self, inputs: tuple[Tensor, ...], targets: Tensor | tuple[Tensor, ...] | None) -> Pairs:
        """The model in evaluation mode on each side, after the steps: outputs and loss."""
        trainer, plain = self.trainer, self.plain
        with accepting():
            outputs = plain.predict(inputs)
        for number, (ours, theirs) in enumerate(zip(trainer.predict(inputs), outputs, strict=True)):
            yield f"output {number}", ours, theirs
        found, loss = trainer.evaluate([(inputs, targets)], []).loss, plain.evaluate(inputs, targets)
        ours = torch.tensor(torch.nan if found is None else found, dtype=loss.dtype)
        yield "the loss", ours, loss if bool(loss.isfinite()) else torch.full_like(loss, torch.nan)


def _called(where: str, pairs: Pairs) -> Pairs:
    for name, ours, theirs in pairs:
        yield where + name, ours, theirs


def _batch_of(step: Plan, batches: Sequence[Batch], seed: int) -> Batch:
    """One of ``batches`` that has the shapes of ``step``, else a random one."""
    wanted = [kind.shape for kind in step.given_types]
    last = len(wanted) - step.graph.targets
    alike = (batch for batch in batches if [tuple(item.shape) for item in batch[0]] == wanted[:last])
    return next(alike, None) or random_batch(step, seed)


def micro_batches(
    inputs: tuple[Tensor, ...], targets: Tensor | tuple[Tensor, ...] | None, count: int
) -> list[Batch]:
    """A batch as its micro-batches."""
    split = zip(*(tensor.chunk(count) for tensor in inputs), strict=True)
    if targets is None:
        return [(piece, None) for piece in split]
    if isinstance(targets, Tensor):
        return list(zip(split, targets.chunk(count), strict=True))
    wanted = zip(*(tensor.chunk(count) for tensor in targets), strict=True)
    return list(zip(split, wanted, strict=True))


@contextlib.contextmanager
def accepting() -> Iterator[None]:
    """A batch that plain PyTorch cannot train on either is said in one line."""
    try:
        yield
    except PoetError:
        raise
    except Exception as error:
        raise InputError(
            f"plain PyTorch fails on the batch that both sides are given: {first_line(error)}; where it is a "
            "random one, give samples of yours (poet verify --data FILE, data= or batches= in Python)"
        ) from error


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, also buffers that a state dict leaves out: a plan has them all."""
    return {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }


def difference_of(ours: Tensor, theirs: Tensor) -> str | None:
    """How two tensors differ in type or in any bit, or ``None``."""
    theirs = theirs.detach()
    if (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
        return f"is {ours.dtype}{list(ours.shape)}, in plain PyTorch {theirs.dtype}{list(theirs.shape)}"
    bits = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (ours, theirs)]
    if torch.equal(*bits):
        return None
    differing = int((bits[0] != bits[1]).reshape(ours.numel(), -1).any(dim=1).sum())
    largest = float((ours.double() - theirs.double()).abs().max())
    return f"differs from plain PyTorch in {differing} of {ours.numel()} elements, by up to {largest:.3g}"
