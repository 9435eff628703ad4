"""What a training has between two steps: its tensors by their names, its files, the budget it is held to."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import torch

from poet.errors import OverBudget
from poet.ir.named import named_parameters
from poet.plans.training_plan import Plan
from poet.runtime import native
from poet.runtime.steps.lasting import LastingTensors
from poet.runtime.storage import state
from poet.runtime.storage.generations import Generations
from poet.runtime.storage.page_file import PageFile
from poet.runtime.system.memory import Peak, PeakMeter
from poet.runtime.training.budgets import Planner
from poet.runtime.training.session import Session
from poet.util.reading import Closing, check_apart
from poet.util.units import format_bytes, parse_bytes


class TrainingState(Closing):
    """The part of a `poet.runtime.Trainer` that makes no steps.

    Attributes:
        allow_over_budget: whether `check_budget` lets steps pass that held more than the budget.
    """

    def __init__(self, session: Session, generations: Generations) -> None:
        self._session, self._generations = session, generations
        self.allow_over_budget = False

    @property
    def _tensors(self) -> LastingTensors:
        return self._session.open.tensors

    @property
    def steps(self) -> int:
        """Made so far."""
        return self._session.steps

    @property
    def seed(self) -> int | None:
        """Of the training."""
        return self._session.seed

    @property
    def plan(self) -> Plan:
        """What steps replay."""
        return self._session.open.plan

    @property
    def budgets_bytes(self) -> tuple[int, ...]:
        """Budgets, rising, for which there is a plan: of the file, and those that were planned since."""
        return self._session.budgets_bytes

    @property
    def may_go_on(self) -> bool:
        """Whether another step may be made; not where a step, or a change of the budget, failed halfway."""
        return self._tensors.broken is None

    @property
    def page_file(self) -> PageFile | None:
        """Where the plan pages to, or ``None`` where it does not."""
        return self._session.open.pages

    def set_budget(self, ram: str | int, *, planner: Planner | None = None) -> None:
        """Go on inside another budget, from the next step on; the bits stay those of an undisturbed training.

        Takes the plan of least energy (or time, RAM, writes: what the plan that was opened is to take the
        least of) among the one that was opened, those of earlier budgets, and, where a
        ``planner`` is given and they leave something to gain, a new one. What lives across steps passes
        through an unnamed file, so that two plans never hold it at once; `plan` is the one that runs.

        Args:
            ram: budget in bytes or as text (``"32MiB"``).
            planner: makes plans for other budgets: ``poet.plan_again``, which needs memory of its
                own for its search.

        Raises:
            Infeasible: no plan fits; training may go on as it was.
            OutOfTime: none fits, and the planner found none in time; likewise.
            ReplayError: gradients of micro-batches are summed; or a step failed halfway; or neither the other
                plan nor the one before could be opened: then `save` and this are all that is possible.
            PageFileError: there is no room for the state, or for the new plan's page file; likewise.
        """
        self._session.set_budget(parse_bytes(ram) if isinstance(ram, str) else ram, planner)

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
        self._session.check_has_state()
        self._session.check_between_steps("save")
        self.check_save_path(path)
        if keep_previous:
            self._generations.before_save(Path(path))
        state.save(
            Path(path),
            self.plan,
            self._session.pieces,
            steps=self.steps,
            random_state=self._session.open.draws.state(),
            seed=self.seed,
        )
        if keep_previous:
            self._generations.after_save(Path(path))

    def not_finite(self) -> str | None:
        """The name of a trained tensor, or of updated module state, that holds NaN or an infinity.

        ``None`` where none does. What no op updates is left out: a mask may well hold infinities.
        """
        self._session.check_has_state()
        return state.not_finite(self.plan.graph, self._session.pieces)

    def check_save_path(self, path: str | Path) -> None:
        """Refuse a path at which `save` would destroy what the trainer was made from or pages to.

        Raises:
            InputError: it is the plan or the page file.
        """
        pages = None if self.page_file is None else self.page_file.path
        check_apart(
            {"the saved state": path}, reads={"the plan": self._session.plan_path, "the page file": pages}
        )

    @property
    def memory(self) -> str:
        """For reports: where the memory of steps comes from."""
        placed = self._tensors.placed
        return "heap" if placed is None else placed.how

    @property
    def is_settled(self) -> bool:
        """Whether the memory of steps comes from where it will come from from now on."""
        return self._tensors.placed is None or self._tensors.placed.is_settled

    @contextlib.contextmanager
    def peak_meter(self) -> Iterator[PeakMeter]:
        """Measures the peak of tensor memory over the steps in a ``with`` block, as the plan counts it.

        That is every byte that torch is given within a step or an evaluation, hidden temporaries included,
        what stands across steps, and the whole arena, used or not. Without the native allocator, or with
        ``arena=False``, it is the kernel's mark, which has pages of the interpreter and of libraries in it.
        """
        meter, counting = PeakMeter(self.held_bytes), self._tensors.placed
        if counting is None or not native.available():
            with meter:
                yield meter
            return
        counting.peak_bytes = None
        yield meter
        found = [item and item.peak_bytes for item in (counting, self._tensors.placed)]
        meter.peak = Peak(max((size for size in found if size), default=None), is_counted=True)

    def check_budget(self, peak: Peak | None = None) -> None:
        """Do nothing if what was measured lies inside the plan's budget, or ``allow_over_budget`` is set.

        Nor where the plan counts other kernels than those that run here, as of a microcontroller.

        Args:
            peak: as a `peak_meter` found it; ``None``: of the steps and evaluations since the last one began.

        Raises:
            OverBudget: more tensor memory was held at once.
        """
        placed, budget_bytes = self._tensors.placed, self.plan.request.limits.ram_budget_bytes
        if peak is None:
            peak = Peak(None if placed is None else placed.peak_bytes, is_counted=True)
        if budget_bytes is None or self.plan.kernels.threads is None or self.allow_over_budget:
            return
        if above_bytes := peak.above(budget_bytes):
            unplanned = "kernels asked for more than was planned; plan on this machine"
            raise OverBudget(
                f"steps held {peak} of tensors, {format_bytes(above_bytes)} above the budget of "
                f"{format_bytes(budget_bytes)}: {(placed and placed.obstacle) or unplanned}; more RAM, or "
                "--allow-over-budget (allow_over_budget), lets it pass"
            )

    @property
    def held_bytes(self) -> int:
        """Between steps: tensors that live across them, the page buffer, and the arena once it is in use."""
        return self._tensors.held_bytes

    def close(self) -> None:
        """Give the memory and the page file back; a second call does nothing."""
        self._session.close()
