"""Proof by trial that a plan is exact: some steps through the plan, the same in plain PyTorch.

Both sides see the same batches and draw from equally seeded generators. After each step the loss, the
predictions, every gradient, every updated parameter, every module state and every tensor of the
optimizer are compared bit for bit, where units of the plan have their own numbers of threads with those in
plain PyTorch as well; then those of a step of each other shape that the plan has; then
the outputs and the loss in evaluation mode, where the plan has one, of every shape; at the end the
same, of one step, inside each other budget that the plan has.

A plan that rounds pages is not exact. Its schedule is compared so with whole pages. Then the plan itself is
held against the same replay with such pages kept in RAM and rounded by torch, and its gradients against plain
PyTorch's from the same state: how far off they are is measured, not promised.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from poet.c99.exportable import LIBRARY as C99
from poet.errors import PlanError
from poet.frontend.eager import lent, original
from poet.frontend.losses import LossFunction
from poet.frontend.plain import check_is_planned
from poet.frontend.traced_operators import small_operators
from poet.plans.plan_file import PlanFile
from poet.problem.schedule import Compute, PageIn
from poet.runtime import Trainer
from poet.runtime.data.random_batches import Batch, batches_of, random_step
from poet.runtime.system.process import torch_threads
from poet.verification.reports import VerifyReport
from poet.verification.rough_pages import Rounded
from poet.verification.sides import compared

_LEAST_STEPS = 3
_gradient_error = operator.attrgetter("gradient_error")


def verify(
    path: str | Path,
    *,
    module: nn.Module | None = None,
    loss: LossFunction | None = None,
    batches: Sequence[Batch] | None = None,
    data: str | Path | None = None,
    steps: int = 3,
    threads: Sequence[int] = (1, 2),
    seed: int = 0,
    page_file: str | Path | None = None,
    arena: bool = True,
    allow_over_budget: bool = False,
) -> VerifyReport:
    """Train with the plan at ``path`` and with plain PyTorch, and compare.

    Args:
        path: of the plan file.
        module: the model that was planned, in the mode it was planned in; it is not changed. Not
            given: the model is built from the ONNX structure that the plan carries.
        loss: that was planned, where it is a function or module; the plan knows those of `poet.ir.loss`.
        batches: to train on, in turn; not given: those of ``data``, or random ones.
        data: samples to train on in their order, and over again where they are too few for all steps; see
            `poet.runtime.data.samples.load_samples`.
        steps: to make, of a ``module`` at least three, since what Python keeps may matter from the second on;
            of each other shape that the plan has, and inside each other budget, one more.
        threads: numbers of threads to try.
        seed: of random batches and of dropout.
        page_file: see `poet.runtime.Trainer.open`.
        arena: likewise; in use from the first step on, or from the fifth where its places are found here.
        allow_over_budget: whether steps may hold more than the plan's budget.

    Raises:
        OverBudget: every bit was the same; but with as many threads as the plan was measured with, a step or
            an evaluation held more tensor memory than the budget.
        PlanError: the plan is not usable, or carries no structure and no module is given.
        InputError: the samples do not fit the plan, the model fails on a batch, or the module is another.
    """
    with PlanFile(path) as file:
        plan = file.plan
        reference = _from_structure(file) if module is None else original(module)
    if module is not None:
        check_is_planned(reference, plan.graph)
    steps = steps if module is None else max(steps, _LEAST_STEPS)
    if batches is None and data is not None:
        batches = batches_of(data, plan, steps)
    given = tuple(batches or (random_step(plan, seed + number) for number in range(steps)))
    comparisons, rounding = [], None
    is_rounded = any(each.rounded for each in (plan, *plan.budgets))
    criterion = loss or plan.request.loss
    for count in threads:
        with (
            torch_threads(count),
            small_operators(are_wanted=plan.kernels.library == C99),
            torch.random.fork_rng(devices=[]),
            lent(reference),
        ):
            with _opened(path, seed, page_file, arena, is_whole=is_rounded) as trainer:
                trainer.allow_over_budget = allow_over_budget or count != plan.kernels.threads
                comparison = compared(trainer, reference, given, steps, seed, criterion)
            if is_rounded and comparison.difference is None:
                with (
                    _opened(path, seed, page_file, arena) as trainer,
                    _opened(path, seed, None, False) as other,
                ):
                    trainer.allow_over_budget = allow_over_budget or count != plan.kernels.threads
                    rounded = Rounded(trainer, other, reference, criterion, seed)
                    comparison = rounded.compared(given, steps, before=comparison.tensors)
                    rounding = max(rounding or rounded.report, rounded.report, key=_gradient_error)
            comparisons.append(comparison)
    runs = Counter(type(step) for step in plan.schedule)
    return VerifyReport(
        steps=steps,
        recomputed_runs=runs[Compute] - len(plan.graph.ops),
        page_ins=runs[PageIn],
        comparisons=tuple(comparisons),
        shapes=len(plan.shapes),
        budgets=len(plan.budgets),
        rounding=rounding,
    )


def _opened(
    path: str | Path, seed: int, page_file: str | Path | None, arena: bool, *, is_whole: bool = False
) -> Trainer:
    """The plan, open for training; with nothing rounded in storage where it ``is_whole``."""
    with PlanFile(path) as file:
        if is_whole:
            file.plan = file.plan.with_whole_pages()
        return Trainer.of(file, seed=seed, page_file=page_file, arena=arena)


def _from_structure(file: PlanFile) -> nn.Module:
    structure = file.structure()
    if structure is None:
        raise PlanError(
            f"{file.path.name} was planned from a module and carries no ONNX structure; name the module: "
            "--module MODULE:FUNCTION, or poet.verify(path, module=...)"
        )
    from poet.frontend.onnx.importer import load_onnx_structure

    return load_onnx_structure(structure).module
