"""Training from a plan file: the part that an app embeds.

A `Trainer` holds the tensors that live across steps and replays the plan's schedule on each batch.
Updates are made in place, so what an error leaves behind depends on when it strikes. Before the
step's first update of a parameter or of module state, the training state is still that of the last
committed step and the trainer goes on. After it, the trainer refuses to go on and says so: reopen
from the last `Trainer.save`.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from poet.brief import brief
from poet.closing import Closing
from poet.errors import InputError, PlanError, PoetError, ReplayError
from poet.files.apart import check_apart
from poet.graph import TensorType
from poet.plan_file import PlanFile
from poet.problem import Place
from poet.runtime import program, ranges, state
from poet.runtime.background import Background, Timed
from poet.runtime.cells import Cells, new_buffer
from poet.runtime.driven import DrivenOptimizer
from poet.runtime.evaluation import (
    Batch,
    EvaluationResult,
    EvaluationTally,
    Evaluator,
    chosen_metrics,
    counted_batches,
    slots_with_evaluation,
)
from poet.runtime.generations import Generations, open_saved
from poet.runtime.guards import check_calls
from poet.runtime.memory import PeakMeter, return_freed_memory
from poet.runtime.native.library import BETWEEN_STEPS
from poet.runtime.page_file import PageFile
from poet.runtime.placed import PlacedSteps
from poet.runtime.process import check_computes, check_owns_pages
from poet.runtime.program import Program
from poet.runtime.strip_trial import check_strips
from poet.schedule import Compute, Free, Step
from poet.training_plan import Plan, stored_values

Tap = Callable[[str, torch.Tensor], None]
"""Called with a parameter's name and its gradient, which is only there during the call."""


ArenaUse = bool | Literal["require"]
"""Whether the memory of steps is placed; see `Trainer.open`."""


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
        self.plan = plan
        self.steps = tensors.steps
        self.seed = tensors.seed
        self._rates = list(plan.optimizer.rates)
        self._driven: DrivenOptimizer | None = None
        self.allow_nan = False
        state.check_fillable(plan.graph)
        check_calls(plan.graph)
        if plan.evaluation is not None:
            check_calls(plan.evaluation.graph)
        self._pages = pages
        self._cells = Cells(plan.graph)
        in_background = pages is not None and plan.problem.background_storage
        self._pager: Timed | None = None
        if pages is not None:
            self._pager = Timed(Background(pages) if in_background else pages)
        graphs = [each.graph for each in (plan, plan.evaluation) if each is not None]
        self._is_random = any(op.random for graph in graphs for op in graph.ops)
        self._generator = _generator_at(tensors.random_state)
        self._program: Program = program.compile_plan(
            plan, self._cells, pages=self._pager, generator=self._generator
        )
        unknown = self._cells.hyperparameters - plan.optimizer.hyperparameters(1).keys()
        if unknown:
            raise PlanError(f"optimizer {plan.optimizer.name} has no hyperparameter {min(unknown)!r}")
        self._evaluator: Evaluator | None = None
        self._is_checked = False
        self._plan_path: Path | None = None
        self._generations = Generations(tensors.path if isinstance(tensors, state.Saved) else None)
        self._opened_in = os.getpid()
        self._inputs = tuple(self._input(name) for name in plan.graph.inputs)
        self._rules = ranges.rules(plan.graph)
        self._persistent = plan.graph.persistent()
        self._held = frozenset(program.initially_in_ram(plan)) & self._persistent
        self._broken: str | None = None
        self._placed: PlacedSteps | None = None
        self._announces = announces
        with contextlib.ExitStack() as undo:
            undo.callback(self._end_placing)
            self._load(tensors, arena=arena)
            undo.pop_all()

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
            check_calls(plan.graph)  # before a strip is tried
            check_strips(plan.graph)
            source: state.Source = state.FromPlan(file, seed=seed)
            if resume is not None:
                source = undo.enter_context(open_saved(resume, file, seed=seed))
            pages = _open_pages(plan, file.path.parent, page_file)
            try:
                trainer = cls(plan, source, pages=pages, arena=arena, announces=True)
            except BaseException:
                if pages is not None:
                    pages.close()
                raise
        trainer._plan_path = file.path
        trainer.allow_nan = allow_nan
        if learning_rate is not None:
            trainer.learning_rate = replace(plan.optimizer, lr=learning_rate).lr
        return trainer

    @property
    def learning_rates(self) -> tuple[float, ...]:
        """Of the next step: of what is in no parameter group, then of the plan's groups in their order."""
        return tuple(self._rates if self._driven is None else self._driven.rates)

    @learning_rates.setter
    def learning_rates(self, rates: Sequence[float]) -> None:
        if len(rates) != len(self._rates):
            raise InputError(f"{len(rates)} learning rates were given, the plan has {len(self._rates)}")
        self._rates = list(rates)
        if self._driven is not None:
            for group, rate in zip(self._driven.param_groups, self._rates, strict=True):
                group["lr"] = rate

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
        if self._driven is None:
            self._driven = DrivenOptimizer(self.plan.optimizer, self._rates)
        return self._driven

    @property
    def input_types(self) -> tuple[TensorType, ...]:
        """What each step takes: the model's inputs, then the targets."""
        return tuple(kind for _, kind in self._inputs)

    @property
    def page_file(self) -> PageFile | None:
        """Where the plan pages to, or ``None`` where it does not."""
        return self._pages

    def step(
        self,
        inputs: torch.Tensor | Sequence[torch.Tensor],
        targets: torch.Tensor | Sequence[torch.Tensor] | None = None,
        *,
        on_gradient: Tap | None = None,
        on_instruction: Callable[[int], object] | None = None,
    ) -> StepResult:
        """Train on one batch.

        Args:
            inputs: of the model, in its order; copied.
            targets: of the loss, if the plan's loss has any, in their order; copied.
            on_gradient: sees every gradient as it is made.
            on_instruction: called before each instruction with the index of its step in the schedule.

        Raises:
            InputError: a tensor has another shape or type than the plan's, or holds a class or a row that
                there is not, or a target that is not finite; nothing has happened.
            ReplayError: the step failed; see the module's docstring for the training state. Or this is a
                fork of the process that loaded torch; nothing has happened.
        """
        started, own_seconds = time.perf_counter(), -self._own_seconds()
        self._check_may_run()
        given = self._checked_inputs(inputs, targets)
        self._cells.set_hyperparameters(
            self.plan.optimizer.hyperparameters(self.steps + 1, lr=self.learning_rates)
        )
        placed = (
            contextlib.nullcontext()
            if self._placed is None
            else self._placed.step(is_watchable=on_gradient is None)
        )
        with torch.no_grad(), self._drawing(), placed:
            self._begin(given)
            self._run(on_gradient, on_instruction)
            result = self._hand_over()
        self.steps += 1
        if self._driven is not None:
            self._driven.step()
        if not self._is_checked:
            self._is_checked = True
            self._program = program.compile_plan(
                self.plan, self._cells, pages=self._pager, generator=self._generator, after=self._program
            )
        own_seconds += self._own_seconds()
        return StepResult(*result, seconds=time.perf_counter() - started, own_seconds=own_seconds)

    def predict(self, inputs: torch.Tensor | Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """The model's outputs in evaluation mode: the bits that it gives after ``module.eval()``.

        Made inside the plan's RAM; nothing is trained. The outputs are copies, and the caller's.

        Args:
            inputs: of the model, a batch of the plan's shapes; copied.

        Raises:
            PlanError: the plan has no evaluation.
            InputError, ReplayError: as of `step`.
        """
        # the originals lie where the next step needs the room
        return tuple(output.clone() for output in self._forward(inputs, None)[1])

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
        size = self.input_types[0].shape[0] if self.input_types[0].shape else 0
        tally = EvaluationTally(chosen_metrics(self.plan, metrics))
        for given, samples in counted_batches(batches, size):
            self._evaluate_batch(given, samples, tally, is_whole=samples == size)
        return tally.result()

    def check_evaluates(self) -> None:
        """Do nothing if `predict` and `evaluate` are possible.

        Raises:
            PlanError: the plan has no evaluation.
        """
        if self._evaluator is None:
            self._evaluator = Evaluator(self.plan, self._cells, self._pager)

    def parameters(self) -> dict[str, torch.Tensor]:
        """Copies of the parameters, by the module's names."""
        return {item.name: self._copy(item.value) for item in self.plan.graph.parameters}

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Copies of parameters and module state, as ``module.load_state_dict`` takes them."""
        return self.parameters() | {name: self._copy(value) for name, value in self.plan.graph.states}

    def optimizer_state(self) -> dict[str, dict[str, torch.Tensor]]:
        """Copies of the optimizer's tensors, by parameter and by torch's name for them."""
        return {
            parameter.name: {name: self._copy(value) for name, value in parameter.optimizer_state}
            for parameter in self.plan.graph.parameters
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
        self._check_usable()
        self.check_save_path(path)
        if keep_previous:
            self._generations.before_save(Path(path))
        state.save(
            Path(path),
            self.plan,
            self._fetched,
            steps=self.steps,
            random_state=self._random_now(),
            seed=self.seed,
        )
        if keep_previous:
            self._generations.after_save(Path(path))

    def not_finite(self) -> str | None:
        """The name of a trained tensor, or of updated module state, that holds NaN or an infinity.

        ``None`` where none does. What no op updates is left out: a mask may well hold infinities.
        """
        self._check_usable()
        updated = {buffer for op in self.plan.graph.ops for buffer in op.updates}
        for value, name in state.saved_names(self.plan.graph).items():
            if self.plan.graph.buffer_of(value) not in updated:
                continue
            tensor = self._fetched(value)
            if not tensor.numel() or not tensor.is_floating_point():
                continue
            if not all(bool(item.isfinite()) for item in torch.aminmax(tensor)):  # NaN wins both
                return name
        return None

    def check_save_path(self, path: str | Path) -> None:
        """Refuse a path at which `save` would destroy what the trainer was made from or pages to.

        Raises:
            InputError: it is the plan or the page file.
        """
        pages = None if self._pages is None else self._pages.path
        check_apart({"the saved state": path}, reads={"the plan": self._plan_path, "the page file": pages})

    @property
    def memory(self) -> str:
        """For reports: where the memory of steps comes from."""
        return "heap" if self._placed is None else self._placed.how

    def peak_meter(self) -> PeakMeter:
        """Measures the peak of tensor memory over the steps in a ``with`` block, as the plan counts it."""
        return PeakMeter(self.held_bytes)

    @property
    def held_bytes(self) -> int:
        """Between steps: tensors that live across them, the page buffer, and the arena once it is in use."""
        arena_bytes = 0 if self._placed is None else self._placed.resident_bytes
        return arena_bytes + self._standing_bytes(beside_arena=arena_bytes > 0)

    def close(self) -> None:
        """Give the memory and the page file back; a second call does nothing."""
        if self._pager is not None:
            self._pager.close()  # what is under way needs its memory and the file to the end
        for buffer in self._cells.of_buffer:
            self._cells.clear(buffer)
        self._end_placing()
        if self._pages is not None:
            self._pages.close()
        self._broken = "it is closed"

    # --- one evaluation ---

    def _evaluate_batch(
        self, given: Sequence[torch.Tensor], samples: int, tally: EvaluationTally, *, is_whole: bool
    ) -> None:
        """In a function of its own, so that the outputs have given up their places when the next begins."""
        targets = self.plan.graph.targets
        inputs, wanted = given[: len(given) - targets], given[len(given) - targets :]
        loss, outputs = self._forward(inputs, wanted, samples=samples)
        only = wanted[0] if targets == 1 else None
        tally.add(loss, outputs[0], only, samples, is_whole=is_whole)

    def _forward(
        self,
        inputs: torch.Tensor | Sequence[torch.Tensor],
        targets: torch.Tensor | Sequence[torch.Tensor] | None,
        *,
        samples: int | None = None,
    ) -> tuple[float, tuple[torch.Tensor, ...]]:
        self._check_may_run()
        given = self._checked_inputs(inputs, targets, needs_targets=targets is not None, samples=samples)
        self.check_evaluates()
        assert self._evaluator is not None
        try:
            with torch.no_grad(), self._drawing():
                return self._evaluator.run(given, placed=self._placed, generator=self._generator)
        except BaseException as error:
            if not all(self._cells.holds(buffer) for buffer in self._held):
                self._broken = f"an evaluation failed ({error})"
            if isinstance(error, PoetError) or not isinstance(error, Exception):
                raise
            raise ReplayError(f"an evaluation failed: {_first_line(error)}") from error

    # --- one step ---

    def _check_may_run(self) -> None:
        self._check_usable()
        check_computes()
        if self._pages is not None:
            check_owns_pages(self._opened_in)
        if self._placed is not None and self._placed.refusal:
            raise ReplayError(self._placed.refusal)

    def _own_seconds(self) -> float:
        return time.thread_time() + (0.0 if self._pager is None else self._pager.waited_seconds)

    def _checked_inputs(
        self,
        inputs: torch.Tensor | Sequence[torch.Tensor],
        targets: torch.Tensor | Sequence[torch.Tensor] | None,
        *,
        needs_targets: bool = True,
        samples: int | None = None,
    ) -> tuple[torch.Tensor, ...]:
        """The tensors in their order, after they were looked at; ``samples`` where the batch has fewer."""
        given = (inputs,) if isinstance(inputs, torch.Tensor) else tuple(inputs)
        given += (targets,) if isinstance(targets, torch.Tensor) else tuple(targets or ())
        wanted = (
            self._inputs if needs_targets else self._inputs[: len(self._inputs) - self.plan.graph.targets]
        )
        if len(given) != len(wanted):
            names = ", ".join(name for name, _ in wanted)
            raise InputError(f"{len(given)} tensors were given, the plan takes {len(wanted)}: {names}")
        for tensor, (name, kind) in zip(given, wanted, strict=True):
            shape = kind.shape if samples is None else (samples, *kind.shape[1:])
            if (str(tensor.dtype), tuple(tensor.shape)) != (f"torch.{kind.dtype}", shape):
                found = f"{str(tensor.dtype).removeprefix('torch.')}[{','.join(map(str, tensor.shape))}]"
                raise InputError(f"{name} is {found}, the plan takes {kind}")
        for tensor, (name, _) in zip(given, wanted, strict=True):
            if name in self._rules:
                ranges.check(name, tensor, self._rules[name], allow_nan=self.allow_nan)
        return given

    def _begin(self, given: Sequence[torch.Tensor]) -> None:
        for name, tensor in zip(self.plan.graph.inputs, given, strict=True):
            buffer = self.plan.graph.buffer_of(name)
            self._cells.install(buffer, new_buffer(self._cells.sizes_bytes[buffer]))
            self._cells.contents[self._cells.value(name)].copy_(tensor)

    def _run(self, on_gradient: Tap | None, on_instruction: Callable[[int], object] | None) -> None:
        index = -1
        in_tap = False
        taps = self._program.gradients if on_gradient else {}
        mark = None if self._placed is None else self._placed.mark
        try:
            for index, run in self._program.instructions:
                if mark is not None:
                    mark(index + 1)
                if on_instruction is not None:
                    on_instruction(index)
                if on_gradient is None or index not in taps:
                    run()
                    continue
                if mark is not None:
                    mark(BETWEEN_STEPS)  # what is allocated for the caller is not the step's
                for tap in taps[index]:
                    tap.open()
                if mark is not None:
                    mark(index + 1)
                run()
                in_tap = True
                if mark is not None:
                    mark(BETWEEN_STEPS)
                for tap in taps[index]:
                    on_gradient(tap.name, tap.take())
                in_tap = False
        except BaseException as error:
            self._recover(index, error)
            if in_tap or isinstance(error, PoetError) or not isinstance(error, Exception):
                raise
            what = _in_words(self.plan.schedule[index])
            raise ReplayError(f"step {self.steps + 1} failed at {what}: {_first_line(error)}") from error

    def _recover(self, index: int, error: BaseException) -> None:
        """Go back to the last committed step after a failure at instruction ``index``, if possible."""
        for buffer in () if self._pager is None else self._pager.give_up():
            self._cells.clear(buffer)
        for buffer in self._cells.of_buffer:
            if buffer not in self._persistent:
                self._cells.clear(buffer)
        if index >= self._program.first_update:
            self._broken = f"step {self.steps + 1} failed halfway ({error})"
            return
        try:
            self._restore_residents()
        except ReplayError as second:
            self._broken = f"step {self.steps + 1} failed ({error}) and so did the way back ({second})"

    def _restore_residents(self) -> None:
        """Between steps: exactly the buffers in RAM that begin a step there."""
        for buffer in sorted(self._persistent):
            if buffer not in self._held:
                self._cells.clear(buffer)
            elif not self._cells.holds(buffer) and self._pages is not None:
                program.page_in(buffer, self._cells, self._pages)

    def _hand_over(self) -> tuple[float, tuple[torch.Tensor, ...]]:
        graph, contents = self.plan.graph, self._cells.contents
        loss = float(contents[self._cells.value(graph.loss)])
        predictions = tuple(contents[self._cells.value(name)] for name in graph.predictions)
        for buffer in self._cells.of_buffer:
            if buffer not in self._held:
                self._cells.clear(buffer)
        return loss, predictions

    @contextlib.contextmanager
    def _drawing(self) -> Iterator[None]:
        """A step that fails takes nothing from the trainer's generator."""
        if not self._is_random or self._generator is None:
            yield
            return
        before = self._generator.get_state()
        try:
            yield
        except BaseException:
            self._generator.set_state(before)
            raise

    # --- what lives across steps ---

    def _load(self, tensors: state.Source, *, arena: ArenaUse) -> None:
        """Fill the buffers that live across steps, and put copies into storage where the plan has them.

        Those that do not begin a step in RAM pass through it first, before any arena takes its share.
        """
        graph = self.plan.graph
        values: dict[str, list[str]] = {}
        for name in stored_values(graph):
            values.setdefault(graph.buffer_of(name), []).append(name)
        slots = {slot.tensor for slot in self.plan.slots}
        stored = {
            tensor.name
            for tensor in self.plan.problem.tensors
            if tensor.initially in (Place.STORAGE, Place.BOTH) and tensor.name in slots
        }
        for buffer in sorted(values, key=lambda name: name in self._held):
            if arena and self._placed is None and buffer in self._held:
                self._placed = self._placing(arena)
            self._cells.install(buffer, self._home_of(buffer))
            for name in values[buffer]:
                tensors.fill(name, self._cells.contents[self._cells.value(name)])
            if buffer in stored and self._pages is not None:
                program.page_out(buffer, self._cells, self._pages)
            if buffer not in self._held:
                self._cells.clear(buffer)
        if arena and self._placed is None:
            self._placed = self._placing(arena)

    def _placing(self, arena: ArenaUse) -> PlacedSteps:
        return PlacedSteps(
            self.plan,
            self._arena_limit_bytes(),
            is_required=arena == "require",
            announces=self._announces,
        )

    def _home_of(self, buffer: str) -> torch.Tensor:
        """Zeroed memory for a buffer that lives across steps, at its planned place if it has one."""
        size_bytes = self._cells.sizes_bytes[buffer]
        planned = None if self._placed is None else self._placed.empty(buffer, size_bytes)
        return new_buffer(size_bytes, zeroed=True) if planned is None else planned.zero_()

    def _end_placing(self) -> None:
        if self._placed is not None:
            self._placed.close()

    def _copy(self, value: str) -> torch.Tensor:
        self._check_usable()
        is_held = self._cells.holds(self.plan.graph.buffer_of(value))
        return self._fetched(value).clone() if is_held else self._fetched(value)

    def _fetched(self, value: str) -> torch.Tensor:
        """The tensor itself where it is in RAM, else one that was fetched for the caller."""
        buffer = self.plan.graph.buffer_of(value)
        if self._cells.holds(buffer) or self._pages is None:
            kept: torch.Tensor = self._cells.contents[self._cells.value(value)]
            return kept
        program.page_in(buffer, self._cells, self._pages)
        fetched: torch.Tensor = self._cells.contents[self._cells.value(value)]
        self._cells.clear(buffer)
        return fetched

    def _random_now(self) -> torch.Tensor | None:
        if not self._is_random:
            return None
        return torch.get_rng_state() if self._generator is None else self._generator.get_state()

    def _input(self, name: str) -> tuple[str, TensorType]:
        return name, self._cells.types[name]

    def _arena_limit_bytes(self) -> int | None:
        """What is left of the budget beside the tensors that stay where they are and the page buffer."""
        budget_bytes = self.plan.request.limits.ram_budget_bytes
        return None if budget_bytes is None else budget_bytes - self._standing_bytes(beside_arena=True)

    def _standing_bytes(self, *, beside_arena: bool) -> int:
        """What is held between steps: tensors, and the page buffer.

        Tensors that are dropped and fetched within the step end in the arena, where there is one.
        """
        dropped = {step.tensor for step in self.plan.schedule if isinstance(step, Free)}
        standing = self._held - dropped if beside_arena else self._held
        buffer_bytes = 0 if self._pages is None else self._pages.buffer_bytes
        return buffer_bytes + sum(self._cells.sizes_bytes[name] for name in standing)

    def _check_usable(self) -> None:
        if self._broken is not None:
            raise ReplayError(
                f"the trainer cannot go on: {self._broken}; reopen it with resume= from the last save"
            )


def _generator_at(random_state: torch.Tensor | None) -> torch.Generator | None:
    if random_state is None:
        return None
    generator = torch.Generator()
    generator.set_state(random_state)
    return generator


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _in_words(step: Step) -> str:
    if isinstance(step, Compute):
        return f"running {step.op}"
    return f"{type(step).__name__} of {step.tensor}"


def _open_pages(plan: Plan, folder: Path, page_file: str | Path | None) -> PageFile | None:
    slots = slots_with_evaluation(plan)
    if not slots:
        return None
    path = None if page_file is None else Path(page_file)
    return PageFile(slots, path=path, folder=folder, buffer_bytes=plan.page_buffer_bytes)
