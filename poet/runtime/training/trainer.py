"""Training from a plan file: the part that an app embeds.

A `Trainer` holds the tensors that live across steps and replays the plan's schedule on each batch.
Updates are made in place, so what an error leaves behind depends on when it strikes. Before the
step's first update of a parameter or of module state, the training state is still that of the last
committed step and the trainer goes on. After it, the trainer refuses to go on and says so: reopen
from the last `Trainer.save`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from poet.errors import InputError
from poet.ir.graph import TensorType
from poet.plans.plan_file import PlanFile
from poet.plans.training_plan import Plan
from poet.runtime.data.given import Buckets, Given
from poet.runtime.kernels.guards import check_calls
from poet.runtime.steps.instructions import Tap
from poet.runtime.steps.lasting import ArenaUse, joining_tap
from poet.runtime.storage import state
from poet.runtime.storage.state import open_saved
from poet.runtime.system.memory import return_freed_memory
from poet.runtime.system.outputs import StepResult, Stopwatch
from poet.runtime.training.evaluation import Batch, EvaluationResult
from poet.runtime.training.rates import DrivenOptimizer, Rates
from poet.runtime.training.training_state import ShapeImprover, ShapePlanner, TrainingState
from poet.runtime.trials.forms import check_exact
from poet.util.reading import check_apart

__all__ = ["StepResult", "Trainer"]


class Trainer(TrainingState):
    """A plan that is open for training; make one with `Trainer.open`.

    Attributes:
        shape_planner: plans steps for batches of shapes that the plan has none for, as
            `poet.ShapePlanner` does; ``None``: such batches are refused.
    """

    def __init__(
        self,
        plan: Plan,
        source: state.Source,
        *,
        path: Path | None = None,
        page_file: str | Path | None = None,
        arena: ArenaUse = True,
    ) -> None:
        super().__init__(plan, source, path=path, page_file=page_file, arena=arena)
        self._rates = Rates(plan.optimizer, self._open.hyperparameters)
        self.shape_planner: ShapePlanner | None = None
        self._buckets: Buckets | None = None

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        page_file: str | Path | None = None,
        learning_rate: float | None = None,
        seed: int | None = None,
        resume: str | Path | None = None,
        weights: Mapping[str, torch.Tensor] | None = None,
        arena: ArenaUse = True,
        allow_nan: bool = False,
    ) -> Trainer:
        """Open the plan at ``path`` for training.

        Freed memory is given back to the system from here on, for the whole process (see
        `poet.runtime.system.memory`).

        Args:
            path: of the plan file.
            page_file: where tensors are paged; ``None``: an unnamed file in the plan's folder. Put it
                on real storage: a RAM disk saves no RAM.
            learning_rate: in place of the plan's, but for parameter groups with one of their own.
            seed: of dropout and the like: the bits that plain PyTorch gives after
                ``torch.manual_seed(seed)``, from a generator of the trainer's own: other threads may draw,
                and train, meanwhile. ``None``: the process's generator goes on, which every thread that
                draws shares.
            resume: a file written by `save`, to go on from there: with its count of steps and its generator,
                unless ``seed`` is another than that of the training that was saved.
            weights: parameters and module state by the module's names, as `state_dict` gives them, to begin
                with in place of the plan's.
            arena: place the memory of steps with the native allocator, where it can be compiled and the
                budget holds it: the same bits, faster than the heap. One such trainer per process; `memory`
                gives the outcome. ``"require"``: make no step that does not lie at the plan's places.
            allow_nan: whether targets may be NaN or infinite, and `poet.runtime.runs.fit.fit` goes on where
                the loss is.

        Raises:
            PlanError: a file is damaged, of another version, or does not fit.
            PageFileError: the page file cannot be had.
            InputError: the page file is the plan or the state to resume; or ``weights`` are of another model,
                or given beside ``resume``.
            ReplayError: an arena is required and cannot be had; or an op that runs in strips gives other bits
                here than it gives whole.
        """
        return_freed_memory()
        with PlanFile(path) as file:
            return cls.of(
                file,
                page_file=page_file,
                learning_rate=learning_rate,
                seed=seed,
                resume=resume,
                weights=weights,
                arena=arena,
                allow_nan=allow_nan,
            )

    @classmethod
    def of(
        cls,
        file: PlanFile,
        *,
        page_file: str | Path | None = None,
        learning_rate: float | None = None,
        seed: int | None = None,
        resume: str | Path | None = None,
        weights: Mapping[str, torch.Tensor] | None = None,
        arena: ArenaUse = True,
        allow_nan: bool = False,
    ) -> Trainer:
        """`open`, for a plan file that is open already; it may be closed afterwards."""
        check_apart({"page_file": page_file}, reads={"the plan": file.path, "resume": resume})
        for graph in (file.plan.graph, *(other.plan.graph for other in file.plan.auxiliaries)):
            check_calls(graph)  # before a form is tried
            check_exact(graph)
        with contextlib.ExitStack() as opened:
            source: state.Source = state.FromPlan(file, seed=seed, weights=weights)
            if resume is not None:
                if weights is not None:
                    raise InputError("a training that is resumed has its own weights; give one of the two")
                source = opened.enter_context(open_saved(resume, file, seed=seed))
            trainer = cls(file.plan, source, path=file.path, page_file=page_file, arena=arena)
        trainer.allow_nan = allow_nan
        if learning_rate is not None:
            trainer.learning_rate = replace(file.plan.optimizer, lr=learning_rate).lr
        return trainer

    @property
    def allow_nan(self) -> bool:
        """Whether targets may be NaN or infinite."""
        return self._open.given.allow_nan

    @allow_nan.setter
    def allow_nan(self, allowed: bool) -> None:
        self._open.allow_nan(allowed)

    @property
    def buckets(self) -> Buckets | None:
        """What batches of a shape without a step are padded with, before one is planned; ``None``: nothing.

        Raises:
            InputError: set to values that cannot be, or that the loss would count.
        """
        return self._buckets

    @buckets.setter
    def buckets(self, buckets: Buckets | None) -> None:
        if buckets is not None:
            if not isinstance(buckets, Buckets):
                raise InputError('buckets is set to poet.runtime.Buckets({"tokens": 0, ...}), or to None')
            buckets.check(self.plan)
        self._buckets = buckets

    @property
    def learning_rates(self) -> tuple[float, ...]:
        """Of the next step: of what is in no parameter group, then of the plan's groups in their order."""
        return self._rates.now

    @learning_rates.setter
    def learning_rates(self, rates: Sequence[float]) -> None:
        self._rates.now = tuple(rates)

    @property
    def learning_rate(self) -> float:
        """The first of `learning_rates`; may be set between steps."""
        return self.learning_rates[0]

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        self.learning_rates = (rate, *self.learning_rates[1:])

    @property
    def optimizer(self) -> DrivenOptimizer:
        """What a scheduler of `torch.optim.lr_scheduler` takes, to change the learning rates of steps.

        Its groups have ``momentum`` or ``betas`` as well, which schedulers that cycle them change, and which
        may be set by hand.
        """
        return self._rates.optimizer

    @property
    def input_types(self) -> tuple[TensorType, ...]:
        """What each step takes: the model's inputs, then the targets."""
        return self._open.given.types

    def step(
        self,
        inputs: Given,
        targets: Given | None = None,
        *,
        on_gradient: Tap | None = None,
        on_instruction: Callable[[int], object] | None = None,
    ) -> StepResult:
        """Train on one batch, of the plan's shape or of another that the plan has a step for.

        Where the plan has micro-batches, that is a whole batch, or the last micro-batch of one whose others
        were given to `accumulate`. The result's loss is the mean over what was given here, its predictions
        are those of the last micro-batch.

        Args:
            inputs: of the model, in its order: tensors, arrays of numpy, memory-mapped files; copied.
            targets: of the loss, if the plan's loss has any, in their order; copied.
            on_gradient: sees every gradient as it is made; with micro-batches, the sum that updates.
            on_instruction: called before each instruction with the index of its step in the schedule; with
                micro-batches, in that of the last one.

        Raises:
            Infeasible: the ``shape_planner`` finds no room for a batch of this shape; nothing has happened.
            InputError: a tensor has another shape or type than the plan's, or holds a class or a row that
                there is not, or a target that is not finite; nothing has happened.
            ReplayError: the step failed; see the module's docstring for the training state. Or this is a
                fork of the process that loaded torch; nothing has happened.
        """
        self._open.check_may_run()
        if self.shape_planner is not None:
            self._prepare(inputs, targets, self.shape_planner, self._buckets)
        clock = self._stopwatch()
        number = self.steps + 1
        loss, outputs = self._open.step(
            number,
            inputs,
            targets,
            self._rates.scalars(number),
            buckets=self._buckets,
            on_gradient=on_gradient and joining_tap(self.plan.graph, on_gradient),
            on_instruction=on_instruction,
        )
        self._steps = number
        self._rates.step_done()
        return clock.result(loss, outputs)

    def improve_shapes(self, improver: ShapeImprover) -> bool:
        """Between steps, at leisure: let ``improver`` search longer for one shape; the bits stay.

        Args:
            improver: `poet.ShapePlanner.improve` does so.

        Returns:
            Whether batches of some shape take less energy from now on.
        """
        self._open.check_may_run()
        improved = improver(self.plan)
        if improved is not None:
            self._open.add_shape(improved)
        return improved is not None

    def accumulate(self, inputs: Given, targets: Given | None = None) -> StepResult:
        """Add the gradients of one micro-batch to the sums; `step` with the last one of the batch updates.

        Nothing else changes but module state.

        Args:
            inputs: of the model, a micro-batch of the plan's shapes; copied.
            targets: of the loss; copied.

        Raises:
            PlanError: the plan has no micro-batches.
            InputError, ReplayError: as of `step`.
        """
        clock = self._stopwatch()
        self._open.check_may_run()
        self._open.accumulation.check()
        given = self._open.given.checked(inputs, targets)
        number = self.steps + 1
        loss, outputs = self._open.accumulate(number, given, self._rates.scalars(number))
        return clock.result(loss, outputs)

    def predict(self, inputs: Given) -> tuple[torch.Tensor, ...]:
        """The model's outputs in evaluation mode: the bits that it gives after ``module.eval()``.

        Made inside the plan's RAM; nothing is trained. The outputs are copies, and the caller's.

        Args:
            inputs: of the model, a batch of the plan's shapes; copied.

        Raises:
            PlanError: the plan has no evaluation.
            InputError, ReplayError: as of `step`.
        """
        self._open.check_may_run()
        return self._open.evaluations.predict(inputs)

    def evaluate(self, batches: Iterable[Batch], metrics: Sequence[str] | None = None) -> EvaluationResult:
        """Loss and metrics of the model in evaluation mode over ``batches``, inside the plan's RAM.

        Args:
            batches: inputs and targets of the plan's shapes. One may have fewer samples: it is filled up with
                its first ones, which are not counted; its loss takes some forward passes more.
            metrics: names (``accuracy``, ``top-5``, ``mae``, ``iou``); not given: what suits the targets.

        Raises:
            PlanError: the plan has no evaluation.
            InputError: a tensor is not of the plan's shape, or there is no such metric; or a batch has fewer
                samples, and the output for one depends on the others.
            ReplayError: as of `step`.
        """
        self._open.check_may_run()
        return self._open.evaluations.evaluate(batches, metrics)

    def check_evaluates(self) -> None:
        """Do nothing if `predict` and `evaluate` are possible.

        Raises:
            PlanError: the plan has no evaluation.
        """
        self._open.evaluations.check()

    def _stopwatch(self) -> Stopwatch:
        return Stopwatch(lambda: self._open.waited_seconds)
