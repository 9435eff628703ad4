"""Training from a plan file: the part that an app embeds.

A `Trainer` holds the tensors that live across steps and replays the plan's schedule on each batch.
Updates are made in place, so what an error leaves behind depends on when it strikes. Before the
step's first update of a parameter or of module state, the training state is still that of the last
committed step and the trainer goes on. After it, the trainer refuses to go on and says so: reopen
from the last `Trainer.save`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from poet.brief import brief
from poet.closing import Closing
from poet.errors import InputError, ReplayError
from poet.files.apart import check_apart
from poet.graph import TensorType
from poet.named import named_parameters
from poet.plan_file import PlanFile
from poet.runtime import state
from poet.runtime.budgets import Budgets, Planner
from poet.runtime.companions import companions
from poet.runtime.driven import DrivenOptimizer
from poet.runtime.evaluation import Batch, EvaluationResult
from poet.runtime.generations import Generations, open_saved
from poet.runtime.given import Given
from poet.runtime.guards import check_calls
from poet.runtime.joining import joining_tap
from poet.runtime.lasting import ArenaUse, LastingTensors
from poet.runtime.memory import PeakMeter, return_freed_memory
from poet.runtime.open_plan import OpenPlan
from poet.runtime.page_file import PageFile
from poet.runtime.pages import open_pages
from poet.runtime.part_trial import check_parts
from poet.runtime.rates import Rates
from poet.runtime.replay import Tap
from poet.runtime.spill import Spill
from poet.runtime.strip_trial import check_strips
from poet.training_plan import Plan
from poet.units import parse_bytes


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one training step gave.

    Attributes:
        loss: before the update.
        predictions: the model's outputs; keeping them keeps their memory.
        seconds: wall clock of the step.
        own_seconds: processor time of the thread that made it, and its waits for storage: what the step would
            have taken on a machine with nothing else to do.
    """

    loss: float
    predictions: tuple[torch.Tensor, ...]
    seconds: float
    own_seconds: float

    __repr__ = brief


class Trainer(Closing):
    """A plan that is open for training; make one with `Trainer.open`."""

    def __init__(
        self,
        plan: Plan,
        tensors: state.Source,
        *,
        pages: PageFile | None,
        arena: ArenaUse = True,
        announces: bool = False,
    ) -> None:
        self.steps = tensors.steps
        self.seed = tensors.seed
        self._rates = Rates(plan.optimizer)
        self._open = OpenPlan(plan, tensors, pages=pages, arena=arena, announces=announces)
        self._plan_path: Path | None = None
        self._page_path: str | Path | None = None
        self._arena = arena
        self._budgets = Budgets(plan)
        self._spill: Spill | None = None  # the state, where a change of budget left no plan open
        self._generations = Generations(tensors.path if isinstance(tensors, state.Saved) else None)

    @property
    def plan(self) -> Plan:
        """What steps replay."""
        return self._open.plan

    @property
    def _tensors(self) -> LastingTensors:
        return self._open.tensors

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        page_file: str | Path | None = None,
        learning_rate: float | None = None,
        seed: int | None = None,
        resume: str | Path | None = None,
        arena: ArenaUse = True,
        allow_nan: bool = False,
    ) -> Trainer:
        """Open the plan at ``path`` for training.

        Freed memory is given back to the system from here on, for the whole process (see
        `poet.runtime.memory`).

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
            arena: place the memory of steps with the native allocator, where it can be compiled and the
                budget holds it: the same bits, faster than the heap. One such trainer per process; `memory`
                gives the outcome. ``"require"``: make no step that does not lie at the plan's places.
            allow_nan: whether targets may be NaN or infinite, and `poet.runtime.fit.fit` goes on where the
                loss is.

        Raises:
            PlanError: a file is damaged, of another version, or does not fit.
            PageFileError: the page file cannot be had.
            InputError: the page file is the plan or the state to resume.
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
        arena: ArenaUse = True,
        allow_nan: bool = False,
    ) -> Trainer:
        """`open`, for a plan file that is open already; it may be closed afterwards."""
        plan = file.plan
        check_apart({"page_file": page_file}, reads={"the plan": file.path, "resume": resume})
        with contextlib.ExitStack() as undo:
            for graph in (plan.graph, *(companion.graph for _, companion in companions(plan))):
                check_calls(graph)  # before a strip is tried
                check_strips(graph)
                check_parts(graph)
            source: state.Source = state.FromPlan(file, seed=seed)
            if resume is not None:
                source = undo.enter_context(open_saved(resume, file, seed=seed))
            pages = open_pages(plan, file.path.parent, page_file)
            try:
                trainer = cls(plan, source, pages=pages, arena=arena, announces=True)
            except BaseException:
                if pages is not None:
                    pages.close()
                raise
        trainer._plan_path, trainer._page_path = file.path, page_file
        trainer.allow_nan = allow_nan
        if learning_rate is not None:
            trainer.learning_rate = replace(plan.optimizer, lr=learning_rate).lr
        return trainer

    @property
    def allow_nan(self) -> bool:
        """Whether targets may be NaN or infinite."""
        return self._open.given.allow_nan

    @allow_nan.setter
    def allow_nan(self, allowed: bool) -> None:
        self._open.allow_nan(allowed)

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
        """What a scheduler of `torch.optim.lr_scheduler` takes, to change the learning rates of steps."""
        return self._rates.optimizer

    @property
    def input_types(self) -> tuple[TensorType, ...]:
        """What each step takes: the model's inputs, then the targets."""
        return self._open.given.types

    @property
    def page_file(self) -> PageFile | None:
        """Where the plan pages to, or ``None`` where it does not."""
        return self._open.pages

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
            InputError: a tensor has another shape or type than the plan's, or holds a class or a row that
                there is not, or a target that is not finite; nothing has happened.
            ReplayError: the step failed; see the module's docstring for the training state. Or this is a
                fork of the process that loaded torch; nothing has happened.
        """
        clock = _Stopwatch(self._own_seconds)
        self._open.check_may_run()
        number = self.steps + 1
        loss, predictions = self._open.step(
            number,
            inputs,
            targets,
            self._rates.scalars(number),
            on_gradient=on_gradient and joining_tap(self.plan.graph, on_gradient),
            on_instruction=on_instruction,
        )
        self.steps = number
        self._rates.step_done()
        return StepResult(loss, predictions, *clock.seconds())

    def accumulate(self, inputs: Given, targets: Given | None = None) -> StepResult:
        """Add the gradients of one micro-batch to the sums; `step` with the last one of the batch updates.

        Nothing else changes but module state. The model's outputs are copies, and the caller's.

        Args:
            inputs: of the model, a micro-batch of the plan's shapes; copied.
            targets: of the loss; copied.

        Raises:
            PlanError: the plan has no micro-batches.
            InputError, ReplayError: as of `step`.
        """
        clock = _Stopwatch(self._own_seconds)
        self._open.check_may_run()
        given = self._open.given.checked(inputs, targets)
        number = self.steps + 1
        loss, outputs = self._open.accumulate(number, given, self._rates.scalars(number))
        # the originals lie where the next micro-batch needs the room
        return StepResult(loss, tuple(output.clone() for output in outputs), *clock.seconds())

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
                its first ones, which are not counted, and its loss is not either.
            metrics: names (``accuracy``, ``top-5``, ``mae``, ``iou``); not given: what suits the targets.

        Raises:
            PlanError: the plan has no evaluation.
            InputError: a tensor is not of the plan's shape, or there is no such metric.
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

    def set_budget(self, ram: str | int, *, planner: Planner | None = None) -> None:
        """Go on inside another budget, from the next step on; the bits stay those of an undisturbed training.

        Takes the plan of least energy among the one that was opened, those of earlier budgets, and, where a
        ``planner`` is given and they leave something to gain, a new one. What lives across steps passes
        through an unnamed file, so that two plans never hold it at once; `plan` is the one that runs.

        Args:
            ram: budget in bytes or as text (``"32MiB"``).
            planner: makes plans for other budgets: ``poet.replanning.plan_again``, which needs memory of its
                own for its search.

        Raises:
            Infeasible: no plan fits; training may go on as it was.
            OutOfTime: none fits, and the planner found none in time; likewise.
            ReplayError: gradients of micro-batches are summed; or a step failed halfway; or neither the other
                plan nor the one before could be opened: then `save` and this are all that is possible.
            PageFileError: there is no room for the state, or for the new plan's page file; likewise.
        """
        self._check_has_state()
        self._check_between_steps("change the budget")
        if self._plan_path is None:
            raise InputError("only a trainer of a plan file changes its budget")
        ram_bytes = parse_bytes(ram) if isinstance(ram, str) else ram
        chosen = self._budgets.plan_for(ram_bytes, planner)
        if chosen != self.plan or self._spill is not None:
            self._change_to(chosen, self._plan_path.parent)

    def _change_to(self, plan: Plan, folder: Path) -> None:
        """What lives across steps is in ``_spill`` from here on until a plan is open again."""
        before = self._open
        if self._spill is None:
            self._spill = Spill(
                before.plan.graph,
                before.tensors.fetched,
                folder if self._page_path is None else Path(self._page_path).absolute().parent,
                steps=self.steps,
                seed=self.seed,
                generator=before.draws.generator,
            )
        try:
            before.close()
            self._open = self._opened(plan, self._spill, folder)
        except BaseException as error:
            before.tensors.broken = (
                f"a change of the budget failed ({error}), and its plan could not be opened again; "
                "save() and set_budget() are still possible"
            )
            with contextlib.suppress(Exception):
                self._open = self._opened(before.plan, self._spill, folder)
            self._tensors.check_usable()
            raise
        finally:
            if self._open is not before:
                self._spill.close()
                self._spill = None

    def _opened(self, plan: Plan, source: state.Source, folder: Path) -> OpenPlan:
        pages = open_pages(plan, folder, self._page_path)
        try:
            made = OpenPlan(plan, source, pages=pages, arena=self._arena, announces=True)
        except BaseException:
            if pages is not None:
                pages.close()
            raise
        made.allow_nan(self.allow_nan)
        return made

    def _check_has_state(self) -> None:
        if self._spill is None:
            self._tensors.check_usable()

    def _check_between_steps(self, what: str) -> None:
        if self._open.accumulation.count:
            raise ReplayError(
                f"step {self.steps + 1} is under way, with the gradients of "
                f"{self._open.accumulation.count} micro-batches summed; {what} after its last one"
            )

    def parameters(self) -> dict[str, torch.Tensor]:
        """Copies of the parameters, by the module's names."""
        return {item.name: self._tensors.copy_of(item.content) for item in named_parameters(self.plan.graph)}

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Copies of parameters and module state, as ``module.load_state_dict`` takes them."""
        return self.parameters() | {name: self._tensors.copy(value) for name, value in self.plan.graph.states}

    def optimizer_state(self) -> dict[str, dict[str, torch.Tensor]]:
        """Copies of the optimizer's tensors, by parameter and by torch's name for them."""
        return {
            parameter.name: {name: self._tensors.copy_of(item) for name, item in parameter.optimizer_state}
            for parameter in named_parameters(self.plan.graph)
            if parameter.optimizer_state
        }

    def save(self, path: str | Path, *, keep_previous: bool = False) -> None:
        """Write the training state as a safetensors file, whole or not at all.

        With ``keep_previous`` the state that was at ``path`` stays beside it, as ``<path>.previous``, and
        opening with ``resume=path`` takes it where the newer one is damaged.

        Parameters and module state stand under the module's names. `Trainer.open` goes on from it,
        with this plan or another for the same model, training set and optimizer.

        Raises:
            InputError: ``path`` is the plan or the page file.
            PoetError: the folder cannot be written or is full; an old file at ``path`` is kept.
            ReplayError: a step failed halfway, so that there is no state to save.
        """
        self._check_has_state()
        self._check_between_steps("save")
        self.check_save_path(path)
        if keep_previous:
            self._generations.before_save(Path(path))
        state.save(
            Path(path),
            self.plan,
            self._tensors.fetched if self._spill is None else self._spill.fetched,
            steps=self.steps,
            random_state=self._open.draws.state(),
            seed=self.seed,
        )
        if keep_previous:
            self._generations.after_save(Path(path))

    def not_finite(self) -> str | None:
        """The name of a trained tensor, or of updated module state, that holds NaN or an infinity.

        ``None`` where none does. What no op updates is left out: a mask may well hold infinities.
        """
        return self._tensors.not_finite()

    def check_save_path(self, path: str | Path) -> None:
        """Refuse a path at which `save` would destroy what the trainer was made from or pages to.

        Raises:
            InputError: it is the plan or the page file.
        """
        pages = None if self.page_file is None else self.page_file.path
        check_apart({"the saved state": path}, reads={"the plan": self._plan_path, "the page file": pages})

    @property
    def memory(self) -> str:
        """For reports: where the memory of steps comes from."""
        placed = self._tensors.placed
        return "heap" if placed is None else placed.how

    def peak_meter(self) -> PeakMeter:
        """Measures the peak of tensor memory over the steps in a ``with`` block, as the plan counts it."""
        return PeakMeter(self.held_bytes)

    @property
    def held_bytes(self) -> int:
        """Between steps: tensors that live across them, the page buffer, and the arena once it is in use."""
        return self._tensors.held_bytes

    def close(self) -> None:
        """Give the memory and the page file back; a second call does nothing."""
        self._open.close()
        if self._spill is not None:
            self._spill.close()
            self._spill = None

    def _own_seconds(self) -> float:
        return time.thread_time() + self._open.waited_seconds


class _Stopwatch:
    """Wall clock and own seconds since it was made."""

    def __init__(self, own: Callable[[], float]) -> None:
        self._own = own
        self._began = time.perf_counter(), own()

    def seconds(self) -> tuple[float, float]:
        return time.perf_counter() - self._began[0], self._own() - self._began[1]
