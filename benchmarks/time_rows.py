"""What `time_table` measures of a net: plans of least time in two budgets, their steps here, and imports.

Activation memory is what keeping everything takes less what is in RAM all the time: parameters, what an
optimizer and modules keep, and inputs.
"""

from __future__ import annotations

import resource
import statistics
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from models_table import model_file
from workers import WARM_STEPS, Worker, in_turn, ratio

if TYPE_CHECKING:
    from poet.planning.planned import Planned as MadePlan
    from poet.planning.prepared import Prepared
    from poet.problem import Problem

DEVICE = "x86-host"
SHARES = {0.5: 0.05, 0.3: 0.1}
"""Of the activation memory, and how much slower than keeping everything the median plan may be there."""
MEASURED = ("resnet18", "mobilenet_v2", "vit", "unet", "squeezenet", "inception_v1")
ROUNDS, ROUND_SECONDS = 10, 20.0
"""Of steps in turn: at least that many, and as many as that time has."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A net inside a share of its activation memory; ``None`` and 0 where there is no plan.

    Attributes:
        share: of the activation memory.
        always_bytes: in RAM all the time; ``kept_bytes``: what keeping everything takes, these included.
        least_bytes: below which no schedule exists.
        limit_seconds: of the search, in the processor's time.
        status: of the answer; of no plan, why.
        slower: than running every op once without a transfer, as a share of that; so all below.
        bound: no plan is less.
        more_energy: of the plan, above running every op once, as a share of that.
        recomputed_runs, read_bytes, written_bytes: of a step.
        moves: of tensors within the arena; ``moved``: the part of ``slower`` that these
            are; ``None``: not known.
        is_from_heap: whether no arena was found.
    """

    share: float
    budget_bytes: int
    always_bytes: int
    kept_bytes: int
    least_bytes: int
    limit_seconds: float
    status: str
    slower: float | None = None
    bound: float | None = None
    more_energy: float | None = None
    recomputed_runs: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    moves: int = 0
    moved: float | None = None
    is_from_heap: bool = False

    @property
    def has_schedules(self) -> bool:
        """Whether the budget is not below the lower bound."""
        return self.budget_bytes >= self.least_bytes


@dataclass(frozen=True, slots=True)
class Measured:
    """Steps of a plan here, one thread, in turn with those of the plan that keeps everything.

    Attributes:
        share: of the activation memory.
        kept_seconds: of a step that keeps everything, the median of its own seconds.
        slower: the median of the paired ratios of own seconds, less 1.
        busy: the same of the processor's seconds alone, without waits for storage.
        waited_seconds: for storage in a step, the median.
        rounds: that were timed.
        is_equal: whether all parameters had the same bits after as many steps.
    """

    share: float
    kept_seconds: float
    slower: float
    busy: float
    waited_seconds: float
    rounds: int
    is_equal: bool


def planned(name: str, limit_seconds: float, plans: Path, *, long_forms: bool = False) -> list[Planned]:
    """Plans of least time of a net; the files of those that `measured` takes are left in ``plans``.

    Args:
        name: of the net.
        limit_seconds: of each search, in the processor's time.
        plans: a folder.
        long_forms: count the activation memory of plain training, where nothing is saved in bits and bytes,
            and leave no files. There are no rows where that is the same.
    """
    from poet.planning.ram_survey import budget_between, keep_everything_bytes
    from poet.planning.step_search import offered
    from poet.problem import Limits, Place
    from poet.solvers import minimum_ram_bytes

    prepared = prepared_with(name, "stream")
    problem, choices = prepared.problem, offered(prepared, Limits())
    always_bytes = sum(
        problem.aligned_bytes(tensor.bytes) for tensor in problem.tensors if tensor.initially is Place.RAM
    )
    kept_bytes = keep_everything_bytes(choices if long_forms else problem)
    if long_forms and kept_bytes == keep_everything_bytes(problem):
        return []
    files = plans if name in MEASURED and not long_forms else None
    if files is not None:
        _plan(prepared, None, limit_seconds).save(plan_path(files, name, None))
    return [
        _row(
            Planned(
                share=share,
                budget_bytes=budget_between(always_bytes, kept_bytes, share),
                always_bytes=always_bytes,
                kept_bytes=kept_bytes,
                least_bytes=minimum_ram_bytes(choices, Limits()).bytes,
                limit_seconds=limit_seconds,
                status="the budget is below the lower bound",
            ),
            prepared,
            choices,
            file=None if files is None else plan_path(files, name, share),
        )
        for share in SHARES
    ]


def _row(asked: Planned, prepared: Prepared, choices: Problem, *, file: Path | None) -> Planned:
    """``asked`` with its plan, which is saved as ``file``."""
    from poet.errors import Infeasible, OutOfTime
    from poet.problem.homes import decided
    from poet.problem.simulator import judge

    print(f"{prepared.model.name}: {asked.share:.0%}, {asked.budget_bytes} B", file=sys.stderr, flush=True)
    if not asked.has_schedules:
        return asked
    try:
        made = _plan(prepared, asked.budget_bytes, asked.limit_seconds)
    except (Infeasible, OutOfTime) as error:
        return replace(asked, status=f"no plan: {error}")
    if file is not None:
        made.save(file)
    schedule = made.solution.schedule
    assert schedule is not None
    without_moves = judge(decided(made.prepared.problem, schedule), schedule)
    bound, plan, once_seconds = made.solution.objective_bound, made.plan, choices.compute_seconds
    return replace(
        asked,
        status=made.solution.status.word,
        slower=made.seconds / once_seconds - 1.0,
        bound=None if bound is None else bound / once_seconds - 1.0,
        more_energy=made.joules / choices.compute_joules - 1.0,
        recomputed_runs=plan.trace.recomputed_runs,
        read_bytes=plan.trace.read_bytes,
        written_bytes=plan.trace.written_bytes,
        moves=0 if plan.arena is None else len(plan.arena.moves),
        moved=(made.seconds - without_moves.seconds) / once_seconds,
        is_from_heap=not plan.has_fitting_arena,
    )


def _plan(prepared: Prepared, budget_bytes: int | None, limit_seconds: float) -> MadePlan:
    """Of least time, inside ``budget_bytes``; ``None``: nothing limits the RAM."""
    from helpers.clocks import OwnTime

    from poet.planning.planned import plan_step
    from poet.problem import Limits, Objective
    from poet.problem.solution import SolveOptions

    options = SolveOptions(objective=Objective.TIME, time_limit_seconds=limit_seconds, clock=OwnTime())
    return plan_step(prepared, Limits(ram_budget_bytes=budget_bytes), options)


def plan_path(plans: Path, name: str, share: float | None) -> Path:
    """The plan file of a net at a share of its activation memory; ``None``: it keeps everything."""
    return plans / f"{name}-{'kept' if share is None else f'{share:.0%}'.rstrip('%')}.poet"


def measured(name: str, plans: Path, *, seconds: float = ROUND_SECONDS) -> list[Measured]:
    """Steps of the plans of `planned` in turn, each in a process of its own, from the same random batch.

    Args:
        name: of the net.
        plans: the folder of their files.
        seconds: for so long, and `ROUNDS` rounds at least.
    """
    import torch

    from poet.plans.plan_file import read_plan
    from poet.runtime.data.random_batches import random_batch

    paths = [plan_path(plans, name, share) for share in (None, *SHARES)]
    there = [path for path in paths if path.exists()]
    inputs, targets = random_batch(read_plan(there[0]), seed=1)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        torch.save([*inputs, targets], folder / "batch.pt")
        workers = [stack.enter_context(Worker(str(path), name, 1, folder)) for path in there]
        for worker in workers:
            for _ in range(WARM_STEPS):
                worker.ask("step")
        answers = in_turn(workers, seconds=seconds, least=ROUNDS)
        digests = [worker.ask("digest")["digest"] for worker in workers]
    own, busy = (
        [[answer[of] for answer in of_plan] for of_plan in answers]
        for of in ("own_seconds", "processor_seconds")
    )
    shares = [share for share, path in zip(SHARES, paths[1:], strict=True) if path in there]
    return [
        Measured(
            share=share,
            kept_seconds=statistics.median(own[0]),
            slower=ratio((own[number], own[0])) - 1.0,
            busy=ratio((busy[number], busy[0])) - 1.0,
            waited_seconds=statistics.median(
                max(a - b, 0.0) for a, b in zip(own[number], busy[number], strict=True)
            ),
            rounds=len(own[number]),
            is_equal=digests[number] == digests[0],
        )
        for number, share in enumerate(shares, start=1)
    ]


def processor_seconds() -> float:
    """Of this process and of those that it has waited for."""
    own, others = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime


def imported(name: str, gradients: str) -> float:
    """Processor seconds of `poet.api.prepare` in this process, with gradients kept or in strips."""
    begun: list[float] = []
    prepared_with(name, gradients, begun=begun)
    return processor_seconds() - begun[0]


def prepared_with(name: str, gradients: str, *, begun: list[float] | None = None) -> Prepared:
    """The net on `DEVICE`; ``begun`` is given the processor seconds before the file is read."""
    import torch

    from poet import api

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        path, bind, loss = model_file(name, Path(folder))
        if begun is not None:
            begun.append(processor_seconds())
        return api.prepare(path, device=DEVICE, loss=loss, bind=bind, gradients=gradients)
