"""What a training has between two steps: its tensors by their names, its files, the plan that it runs on.

On the way to another plan what lives across steps passes through an unnamed file, so that two plans never
hold it at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from poet.errors import Infeasible, InvalidSchedule, OutOfTime, OverBudget, PlanError, ReplayError
from poet.ir.calls import TensorType, contiguous
from poet.ir.graph import ITEM_BYTES, Graph
from poet.ir.named import named_parameters, packed_values
from poet.plans.page_slots import slots_for
from poet.plans.plan_parts import Request
from poet.plans.planned_step import stored_values
from poet.plans.training_plan import Plan, Shape
from poet.problem import Objective
from poet.runtime import native
from poet.runtime.data.given import Buckets, Given, as_tensors, types_of
from poet.runtime.kernels.dequantised import as_used
from poet.runtime.steps.lasting import ArenaUse, LastingTensors
from poet.runtime.storage import state
from poet.runtime.storage.page_file import PageFile
from poet.runtime.storage.state import Generations, bytes_of, fill_from
from poet.runtime.storage.transfers import Pieces, elements_of
from poet.runtime.system.memory import Peak, PeakMeter
from poet.runtime.training.open_plan import OpenPlan
from poet.util.reading import Closing, check_apart
from poet.util.units import format_bytes, parse_bytes

Planner = Callable[[Plan, int], Plan]
"""Makes the plan for another budget, as `poet.plan_again` does."""

ShapePlanner = Callable[[Plan, Sequence[TensorType]], Shape]
"""Plans a step for inputs and targets of these types beside a plan's, as `poet.ShapePlanner` does."""

ShapeImprover = Callable[[Plan], Shape | None]
"""Gives a shape of a plan a step that takes less energy, if it finds one."""


class Spill(Closing):
    """All that a training needs to go on with another plan; checked when it is read back.

    Attributes:
        steps: made so far.
        seed: of the training.
        random_state: of its own generator; ``None``: it draws from the process's.
    """

    def __init__(
        self,
        graph: Graph,
        fetch: Callable[[str], torch.Tensor],
        folder: Path,
        *,
        steps: int,
        seed: int | None,
        generator: torch.Generator | None,
    ) -> None:
        """Write every value that lives across steps.

        Args:
            graph: of the plan so far.
            fetch: the tensor of one of its values; it is let go before the next is asked for.
            folder: for the file, which vanishes when this is closed.
            steps: made so far.
            seed: of the training.
            generator: of the training.

        Raises:
            PageFileError: there is no room.
        """
        self.steps, self.seed = steps, seed
        self.random_state = None if generator is None else generator.get_state()
        self._types = stored_values(graph)
        sizes = {name: kind.elements * ITEM_BYTES[kind.dtype] for name, kind in self._types.items()}
        self._file = PageFile(slots_for(sizes), path=None, folder=folder, buffer_bytes=0)
        try:
            for name in sizes:
                self._file.write(name, bytes_of(fetch(name).detach().contiguous()))
        except BaseException:
            self.close()
            raise

    def fill(self, value: str, target: torch.Tensor) -> None:
        """Write the content of the graph's ``value`` into ``target``."""
        fill_from(self._file, value, target)

    def place_of(self, value: str) -> tuple[int, int] | None:
        """See `poet.runtime.storage.state.Source`; it vanishes."""
        return None

    def pieces(self, value: str) -> Iterator[torch.Tensor]:
        """The elements of the graph's ``value`` in C order, as `poet.runtime.storage.transfers.Pieces`."""
        kind = contiguous(self._types[value].dtype, self._types[value].shape)
        for stretch in self._file.pieces(value, ITEM_BYTES[kind.dtype]):
            yield elements_of(stretch, kind)

    def close(self) -> None:
        """Let the file go; a second call does nothing."""
        self._file.close()


class TrainingState(Closing):
    """The part of a `poet.runtime.Trainer` that makes no steps.

    Attributes:
        allow_over_budget: whether `check_budget` lets steps pass that held more than the budget.
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
        """Open the plan, of the file at ``path``; arguments and errors as of `OpenPlan`."""
        self._steps, self._seed = source.steps, source.seed
        self._plan_path, self._page_path, self._arena = path, page_file, arena
        self._open = self._opened(plan, source)
        self._generations = Generations(source.path if isinstance(source, state.Saved) else None)
        self._budgets = Budgets(plan)
        self._spill: Spill | None = None  # the state, where a change of budget left no plan open
        self.allow_over_budget = False

    @property
    def _tensors(self) -> LastingTensors:
        return self._open.tensors

    @property
    def _pieces(self) -> Pieces:
        """Gives a value that lives across steps; see `poet.runtime.steps.lasting.LastingTensors.pieces`."""
        return self._tensors.pieces if self._spill is None else self._spill.pieces

    @property
    def steps(self) -> int:
        """Made so far."""
        return self._steps

    @property
    def seed(self) -> int | None:
        """Of the training."""
        return self._seed

    @property
    def plan(self) -> Plan:
        """What steps replay."""
        return self._open.plan

    @property
    def budgets_bytes(self) -> tuple[int, ...]:
        """Budgets, rising, for which there is a plan: of the file, and those that were planned since."""
        return self._budgets.sizes_bytes

    @property
    def may_go_on(self) -> bool:
        """Whether another step may be made; not where a step, or a change of the budget, failed halfway."""
        return self._tensors.broken is None

    @property
    def page_file(self) -> PageFile | None:
        """Where the plan pages to, or ``None`` where it does not."""
        return self._open.pages

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
        self._check_has_state()
        self._check_between_steps("change the budget")
        chosen = self._budgets.plan_for(parse_bytes(ram) if isinstance(ram, str) else ram, planner)
        is_other = replace(chosen, shapes=()) != replace(self.plan, shapes=(), budgets=())
        if is_other or self._spill is not None:
            self._change_to(chosen)

    def parameters(self) -> dict[str, torch.Tensor]:
        """Copies of the parameters, by the module's names; packed ones as the float32 that they stand for."""
        named = named_parameters(self.plan.graph)
        return {item.name: as_used(self._tensors.copy_of(item.content), item.packed) for item in named}

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Copies of parameters and module state, as ``module.load_state_dict`` takes them."""
        return dict(self.named_tensors())

    def named_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """What `state_dict` holds, one copy after the other: never all of them in memory."""
        for item in named_parameters(self.plan.graph):
            yield item.name, as_used(self._tensors.copy_of(item.content), item.packed)
        packed = packed_values(self.plan.graph)
        for name, value in self.plan.graph.states:
            yield name, as_used(self._tensors.copy(value), packed.get(value))

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
            self._pieces,
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
        self._check_has_state()
        return state.not_finite(self.plan.graph, self._pieces)

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
        self._open.close()
        if self._spill is not None:
            self._spill.close()
            self._spill = None

    # --- inside ---

    def _check_has_state(self) -> None:
        """Do nothing if there is the state of a whole step, in memory or in a file.

        Raises:
            ReplayError: there is none.
        """
        if self._spill is None:
            self._tensors.check_usable()

    def _check_between_steps(self, what: str) -> None:
        """Do nothing if no step is in flight; ``what`` is to be done.

        Raises:
            ReplayError: gradients of micro-batches are summed.
        """
        if count := self._open.accumulation.count:
            raise ReplayError(
                f"step {self.steps + 1} has begun, with the gradients of {count} micro-batches summed; "
                f"{what} after its last one"
            )

    def _prepare(
        self, inputs: Given, targets: Given | None, planner: ShapePlanner, buckets: Buckets | None = None
    ) -> None:
        """Have a step for batches of this shape, a new one if there is none.

        Raises:
            InputError, Infeasible, OutOfTime: none can be had; nothing has happened.
            PageFileError: there is no room for what it pages; likewise.
        """
        if not self._open.takes(inputs, targets, buckets):
            self._open.add_shape(planner(self.plan, types_of((*as_tensors(inputs), *as_tensors(targets)))))

    def _change_to(self, plan: Plan) -> None:
        """What lives across steps is in ``_spill`` from here on until a plan is open again."""
        before = self._open
        if self._spill is None:
            page_folder = None if self._page_path is None else Path(self._page_path).absolute().parent
            self._spill = Spill(
                before.plan.graph,
                before.tensors.fetched,
                page_folder or self._folder,
                steps=self.steps,
                seed=self.seed,
                generator=before.draws.generator,
            )
        try:
            before.close()
            self._open = self._opened(plan, self._spill)
        except BaseException as error:
            before.tensors.broken = (
                f"a change of the budget failed ({error}), and its plan could not be opened again; "
                "save() and set_budget() are still possible"
            )
            with contextlib.suppress(Exception):
                self._open = self._opened(before.plan, self._spill)
            self._tensors.check_usable()
            raise
        finally:
            if self._open is not before:
                self._spill.close()
                self._spill = None
                self._open.allow_nan(before.given.allow_nan)

    def _opened(self, plan: Plan, source: state.Source) -> OpenPlan:
        return OpenPlan(plan, source, folder=self._folder, page_file=self._page_path, arena=self._arena)

    @property
    def _folder(self) -> Path:
        """Of the plan."""
        return Path() if self._plan_path is None else self._plan_path.parent


class Budgets:
    """Plans for one training, of which the one that takes the least inside a budget is taken."""

    def __init__(self, plan: Plan) -> None:
        """Begin with the plan that was opened, and those that its file has for other budgets."""
        self._opened = replace(plan, budgets=()) if plan.budgets else plan
        self._made: dict[int, Plan] = {  # by the budget that each was made for
            made_for: made for made in plan.budgets if (made_for := made.request.limits.ram_budget_bytes)
        }

    @property
    def sizes_bytes(self) -> tuple[int, ...]:
        """The budgets, rising, that plans were made for."""
        opened_bytes = self._opened.request.limits.ram_budget_bytes
        return tuple(sorted({*self._made} | ({opened_bytes} if opened_bytes is not None else set())))

    def plan_for(self, ram_bytes: int, planner: Planner | None) -> Plan:
        """That which takes least inside ``ram_bytes``: the plan opened, one made before, or a new one.

        The least of what the opened one was to take the least of, then of energy.

        A new one is made where none of the others fits, or each that does was made for a smaller budget or by
        an online policy, for want of a search.

        Raises:
            Infeasible: none fits, and none can be made.
            OutOfTime: none fits, and the planner found none in time.
        """
        opened_bytes = self._opened.request.limits.ram_budget_bytes
        asked = [(opened_bytes, self._opened), *self._made.items()]
        fitting = [
            (made_for, plan) for made_for, made in asked if (plan := within(made, ram_bytes)) is not None
        ]
        may_gain = all(
            plan.outcome.is_online or (made_for is not None and made_for < ram_bytes)
            for made_for, plan in fitting
        )
        known = [plan for _, plan in fitting]
        objective = self._opened.outcome.objective

        def amounts(plan: Plan) -> tuple[float, float]:
            return _step_amount(plan, objective), plan.step_joules

        if planner is not None and may_gain:
            try:
                made, before = planner(self._opened, ram_bytes), self._made.get(ram_bytes)
                if before is None or amounts(made) < amounts(before):
                    self._made[ram_bytes] = made
                known.append(made)
            except (Infeasible, OutOfTime):
                if not known:
                    raise
        if not known:
            raise Infeasible(
                f"the plan takes {format_bytes(min(plan.held_bytes for _, plan in asked))}, more than "
                f"{format_bytes(ram_bytes)}; give set_budget planner=poet.plan_again, or plan "
                "for less RAM"
            )
        return min(known, key=amounts)


def _step_amount(plan: Plan, objective: Objective) -> float:
    """What a whole step takes of ``objective``: joules, seconds or bytes."""
    if objective is Objective.ENERGY:
        return plan.step_joules
    if objective is Objective.TIME:
        return plan.step_seconds
    return float(plan.step_peak_ram_bytes if objective is Objective.RAM else plan.step_written_bytes)


def _bounded(part: Plan, ram_bytes: int) -> Plan:
    return replace(part, request=_request(part, ram_bytes))


def _request(plan: Plan, ram_bytes: int) -> Request:
    return replace(plan.request, limits=replace(plan.request.limits, ram_budget_bytes=ram_bytes))


def within(plan: Plan, ram_bytes: int) -> Plan | None:
    """``plan`` as one for this budget; ``None``: it takes more."""
    try:
        others = [replace(other, plan=_bounded(other.plan, ram_bytes)) for other in plan.auxiliaries]
        made = plan.with_auxiliaries(others, request=_request(plan, ram_bytes))
    except (PlanError, InvalidSchedule):
        return None
    is_placed = made.has_fitting_arena or not plan.has_fitting_arena
    return made if is_placed and made.held_bytes <= ram_bytes else None
