"""The exactness matrix: nets, losses, optimizers and techniques, planned in every way, have PyTorch's bits.

Every two values of different axes that fit together occur together in some case (pairwise covering): in the
fast half those of a schedule and another short axis, in the slow half nearly all. `exact_axes` has the
values; a new net, loss, optimizer or technique is a line there. Each case makes a plan and asserts that its
technique is in the plan; then losses, outputs, gradients, parameters and all state are compared with those
of plain PyTorch by `poet.verification.verify`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from exact_axes import (
    LOSSES,
    MODES,
    NETS,
    NORMED,
    OPTIMIZERS,
    OWN_LOSS,
    QUICK,
    TECHNIQUES,
    TEN_CLASSES,
    Technique,
    built,
    by_row,
    optimizer_of,
)
from helpers import hand_net
from helpers.pairwise import Case, covering
from helpers.schedules import keep_everything, random_schedule
from helpers.shuffled import movable, shuffled, with_arena
from torch import nn

from poet import api
from poet.frontend.evaluation import trace_evaluation
from poet.frontend.trace import TrainingStep, trace_training_step
from poet.ir.loss import LOSSES as EVERY_LOSS
from poet.ir.loss import LossSpec
from poet.ir.micro import MicroBatches
from poet.ir.optimizer_kinds import KINDS
from poet.memory.demand import demand_of
from poet.memory.layout import lay_out
from poet.planning.ram_survey import budget_between, keep_everything_bytes
from poet.plans.plan_file import read_plan, write_plan
from poet.plans.plan_parts import Arena, Request
from poet.plans.training_plan import Plan
from poet.problem import Limits
from poet.problem.schedule import PageIn
from poet.problem.simulator import simulate
from poet.problem.solution import SolveOptions
from poet.runtime import Trainer, native
from poet.runtime.storage.state import raw_tensor
from poet.runtime.system.process import torch_threads
from poet.solvers import minimum_ram_bytes
from poet.solvers.instance.incumbent import overlap
from poet.verification import verify

PIECES = 2
IN_ARENA = ("arena", "moved")
SHORT = {
    "technique": tuple(TECHNIQUES),
    "mode": tuple(MODES),
    "schedule": ("by chance", "kept"),
    "placement": ("heap", "storage", "background", *(IN_ARENA if native.available() else ())),
    "beside": ("alone", "evaluation", "micro-batches"),
    "threads": (1, 2),
}
LONG = {"net": tuple(NETS), "loss": LOSSES, "optimizer": tuple(OPTIMIZERS)}
BY_C = ("sgd", "sgd, decay", "momentum", "adamw")
NO_EVALUATION = ("own-state",)
"""They write what lives across steps."""


def fits(case: Case) -> bool:
    """Whether values, perhaps not yet of every axis, can be had together."""

    def is_any(axis: str, *values: object) -> bool:
        return axis in case and case[axis] in values

    def is_other(axis: str, *values: object) -> bool:
        return axis in case and case[axis] not in values

    technique = TECHNIQUES.get(case.get("technique", ""), TECHNIQUES["none"])
    name, net = case.get("technique"), case.get("net")
    has_train = "train" in technique.options or net == "frozen"
    clips_or_groups = is_any("optimizer", "clipped norm", "clipped values", "groups", "groups of momentum")
    return not any(
        (
            net and technique.nets is not None and net not in technique.nets,
            is_other("loss", OWN_LOSS) and net and net not in TEN_CLASSES,
            is_other("loss", OWN_LOSS) and net == "frozen" and ":" in case["loss"],
            is_other("loss", OWN_LOSS) and name == "C kernels",
            is_other("loss", OWN_LOSS) and technique.nets is not None and not technique.nets & TEN_CLASSES,
            is_any("mode", "frozen norms", "norm weights") and net and net not in NORMED,
            is_any("mode", "biases") and net == "sums",
            is_other("mode", "as built") and (has_train or name not in (None, "none")),
            is_any("optimizer", "groups", "groups of momentum") and has_train,
            is_any("optimizer", "groups", "groups of momentum") and is_other("mode", "as built"),
            name == "C kernels" and is_other("optimizer", *BY_C),
            name == "C kernels" and is_other("placement", "heap", "storage"),
            name == "C kernels" and is_other("beside", "alone"),
            name in ("row reads", "row updates") and is_other("placement", "storage"),
            name in ("row reads", "row updates") and is_other("beside", "alone"),
            name == "row updates" and is_other("optimizer", "sgd"),
            name in ("parts", "row reads", "strips") and clips_or_groups,
            name == "strips" and "optimizer" in case and OPTIMIZERS[case["optimizer"]].maximize,
            is_any("placement", *IN_ARENA) and is_other("beside", "alone"),
            is_any("beside", "evaluation") and net in NO_EVALUATION,
            is_any("schedule", "planned") and name not in (None, "none", "in place", "C kernels"),
            is_any("schedule", "planned") and is_other("placement", "arena", "storage"),
        )
    )


AXES = {**SHORT, **LONG}


def crossed_fast(one: str, other: str) -> bool:
    """Schedules with the other short axes; of the long axes and of modes, each value once."""
    return "schedule" in (one, other) and {one, other} <= SHORT.keys() - {"mode"}


def crossed_slow(one: str, other: str) -> bool:
    """All pairs but those of a net with an optimizer or a loss."""
    return one in SHORT or other in SHORT or {one, other} == {"loss", "optimizer"}


FAST = covering(AXES | {"net": [*filter(QUICK.__contains__, NETS)]}, fits, crossed=crossed_fast)


@cache
def slow() -> list[Case]:
    """Schedules of the planner's own as well."""
    return covering({**AXES, "schedule": (*SHORT["schedule"], "planned")}, fits, crossed=crossed_slow)


def _id(case: Case) -> str:
    return "-".join(str(case[axis]) for axis in ("net", "technique", "schedule", "placement", "optimizer"))


# --- one case ---------------------------------------------------------------------------------


def _module(case: Case) -> tuple[nn.Module, tuple[str, ...] | None]:
    """In its mode, with patterns of what is trained."""
    module = built(case["net"], case["loss"])
    trained = MODES[case["mode"]](module)
    return module, trained or TECHNIQUES[case["technique"]].options.get("train") or NETS[case["net"]].train


def _options(case: Case, module: nn.Module, train: tuple[str, ...] | None) -> dict[str, Any]:
    net = NETS[case["net"]]
    first = next(name for name, item in module.named_parameters() if item.requires_grad)
    own = case["loss"] == OWN_LOSS
    return {
        "loss": net.loss if own else case["loss"],
        "targets": net.targets() if own else None,
        "optimizer": optimizer_of(case["optimizer"], first),
        "train": train,
        "micro": MicroBatches(PIECES) if case["beside"] == "micro-batches" else None,
    }


def _step(case: Case, technique: Technique) -> TrainingStep:
    module, train = _module(case)
    inputs, options = NETS[case["net"]].inputs(), _options(case, module, train)
    if technique.device is not None:
        return api.prepare(module, inputs, device=technique.device, evaluation=False, **options).step
    options |= {**technique.options, "train": train}
    options["measure"] = options.get("measure", True) or case["placement"] in IN_ARENA
    step = trace_training_step(module, inputs, **options)
    return by_row(step) if case["technique"].startswith("row ") else step


def _drawn(case: Case, step: TrainingStep) -> Plan:
    """A plan whose schedules recompute and page by chance, or keep everything."""
    share = 0.5 if case["schedule"] == "by chance" else 0.0
    in_storage = case["placement"] in ("storage", "background")
    of = hand_net.problem(step.graph, parameters_in_storage=in_storage, kernels=step.kernels)
    of = replace(of, background_storage=case["placement"] == "background")
    if case["placement"] in IN_ARENA:
        of = movable(replace(of, alignment_bytes=64))
    schedule = random_schedule(of, 1, share=share) if share else keep_everything(of)
    if case["placement"] == "background":  # transfers are issued as early as there is room
        schedule = overlap(of, schedule, simulate(of, schedule).peak_ram_bytes)
    plan = hand_net.plan(
        of, step.graph, schedule, optimizer=step.optimizer, loss=step.loss, slack=1.0, kernels=step.kernels
    )
    if case["placement"] == "moved":
        return with_arena(plan, shuffled(plan.demand, 1))
    if case["placement"] == "arena":
        layout = lay_out(demand_of(of, schedule, step.kernels).blocks, time_limit_seconds=0.0)
        plan = replace(plan, arena=Arena(layout.arena_bytes, layout.offsets_bytes))
        limits = Limits(ram_budget_bytes=max(plan.arena_ram_bytes, plan.trace.peak_ram_bytes))
        return replace(plan, request=Request(limits, step.loss))
    if case["beside"] == "micro-batches":
        assert step.accumulation is not None
        found = hand_net.beside(plan, step.accumulation.graph, seed=2, share=share)
        request = replace(plan.request, limits=found.request.limits, micro=MicroBatches(PIECES))
        return replace(plan, request=request, accumulation=found)
    if case["beside"] == "evaluation":
        evaluation = trace_evaluation(_module(case)[0], NETS[case["net"]].inputs(), step, measure=False)
        found = hand_net.beside(plan, evaluation.graph, seed=2, share=share)
        return replace(plan, request=replace(plan.request, limits=found.request.limits), evaluation=found)
    return plan


def _plan(case: Case, path: Path) -> Plan:
    """The plan of ``case``, which is written to ``path``."""
    technique = TECHNIQUES[case["technique"]]
    if case["schedule"] != "planned":
        step = _step(case, technique)
        plan = _drawn(case, step)
        write_plan(path, plan, {name: raw_tensor(tensor) for name, tensor in step.tensors.items()})
        return plan
    module, train = _module(case)
    inputs, options = NETS[case["net"]].inputs(), _options(case, module, train)
    if options["micro"] is not None:  # `prepare` is given a whole batch
        inputs = tuple(torch.cat([item] * PIECES) for item in inputs)
        whole = options["targets"]
        options["targets"] = None if whole is None else torch.cat([whole] * PIECES)
    home = "storage" if case["placement"] == "storage" else "ram"
    prepared = api.prepare(
        module, inputs, device=technique.device or "rpi4b", home=home,
        evaluation=case["beside"] == "evaluation", **options,
    )  # fmt: skip
    most, least = keep_everything_bytes(prepared.problem), minimum_ram_bytes(prepared.problem).bytes
    limits = Limits(ram_budget_bytes=budget_between(least, most, 0.3))
    planned = api.plan_step(prepared, limits, SolveOptions(time_limit_seconds=1.0))
    planned = api.with_accumulation(planned, time_limit_seconds=1.0)
    if case["beside"] == "evaluation":
        planned = api.with_evaluation(planned, time_limit_seconds=1.0)
    planned.save(path)
    return read_plan(path)


def check(case: Case, path: Path) -> None:
    """Plan, see that everything asked for is in the plan, train, compare."""
    threads = case["threads"]
    torch.manual_seed(0)  # of nets' example inputs
    with torch_threads(threads), TECHNIQUES[case["technique"]].in_tiny_nets():
        plan = _plan(case, path)
        assert TECHNIQUES[case["technique"]].occurs(plan.graph)
        assert (plan.accumulation is not None) == (case["beside"] == "micro-batches")
        assert (plan.evaluation is not None) == (case["beside"] == "evaluation")
        pages = any(isinstance(step, PageIn) for step in plan.schedule)
        if case["schedule"] == "by chance":
            assert plan.trace.recomputed_runs > 0 or pages
        if case["placement"] == "moved" and case["schedule"] == "by chance":
            assert plan.trace.moves > 0
        if case["placement"] in IN_ARENA and case["schedule"] != "planned":
            Trainer.open(path, arena="require").close()
        module, _ = _module(case)
        steps = 7 if "radam" in case["optimizer"] else 3  # its steps have another form from the sixth on
        # what two threads ask for at a time is left to chance; budgets have tests of their own
        verify(path, module=module, steps=steps, threads=(threads,), allow_over_budget=True).require()


@pytest.mark.parametrize("case", FAST, ids=_id)
def test_a_plan_has_the_bits_of_plain_pytorch(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path / "net.poet")


@pytest.mark.slow
@pytest.mark.parametrize("part", range(40))
def test_every_pair_has_the_bits_of_plain_pytorch(part: int, tmp_path: Path) -> None:
    for case in slow()[part::40]:
        try:
            check(case, tmp_path / "net.poet")
        except Exception as error:
            raise AssertionError(f"of {case}") from error


def test_every_pair_that_fits_occurs() -> None:
    for cases, crossed in ((FAST, crossed_fast), (slow(), crossed_slow)):
        seen = {pair for case in cases for pair in combinations(case.items(), 2)}
        for one, other in combinations(AXES, 2):
            pairs = (((one, a), (other, b)) for a in AXES[one] for b in AXES[other] if crossed(one, other))
            assert not [pair for pair in pairs if fits(dict(pair)) and pair not in seen]
    for axis, values in AXES.items():
        assert {case[axis] for case in FAST} >= ({*values} & QUICK if axis == "net" else {*values})
        assert {case[axis] for case in slow()} >= {*values}


def test_every_loss_and_optimizer_is_tried() -> None:
    own = {net.loss for net in NETS.values()}
    assert {LossSpec.parse(text).name for text in own | {*LOSSES} - {OWN_LOSS}} == {*EVERY_LOSS}
    assert {spec.name for spec in OPTIMIZERS.values()} == {*KINDS}
