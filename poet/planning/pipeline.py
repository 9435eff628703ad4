"""From a request to its plan: read and check, prepare, search, lay out, plan the auxiliary schedules."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poet.devices.profile import Profile
from poet.errors import Infeasible, InputError, OutOfTime, one_of
from poet.ir.micro import BATCH_NAMES, MicroBatches, candidates, micro_batches
from poet.ir.optimizer import OptimizerSpec
from poet.ir.packed import BaseSpec
from poet.ir.strips import Gradients
from poet.planning.auxiliary import (
    check_reachable,
    smaller_budgets,
    with_accumulation,
    with_budgets,
    with_evaluation,
    with_shapes,
)
from poet.planning.beside import TimeShares
from poet.planning.choice import Group, Scores
from poet.planning.choosing import chosen
from poet.planning.planned import Planned, Stages, limits_of, plan_step
from poet.planning.prepared import Prepared, prepare
from poet.planning.step_search import without_choice
from poet.problem import Limits, Objective, PageForm, Pins, Place
from poet.problem.progress import showing
from poet.problem.solution import Progress, SolveOptions
from poet.util.units import parse_bytes

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from poet.frontend.losses import LossFunction


class Omitted(enum.Enum):
    """The default of an argument that was not given, where ``None`` is an answer of its own."""

    OMITTED = "omitted"

    __repr__ = enum.Enum.__str__


OMITTED = Omitted.OMITTED

_PREPARED = (
    "device", "loss", "optimizer", "clip_norm", "clip_value", "train", "output", "home", "names", "gradients",
    "base", "weights", "allow",
)  # fmt: skip
"""Fields that every step of the model is prepared with."""


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """A model, a device, and what its training must stay within; the fields are `poet.plan`'s arguments."""

    model: str | Path | nn.Module | torch.export.ExportedProgram
    example_inputs: Tensor | Sequence[Tensor] | None = None
    _: KW_ONLY
    device: str | Path | Profile
    ram: str | int | Omitted | None = OMITTED
    deadline: str | float | Omitted | None = OMITTED
    loss: str | LossFunction = "cross-entropy"
    targets: Tensor | Sequence[Tensor] | None = None
    optimizer: str | OptimizerSpec | torch.optim.Optimizer = "sgd"
    train: Iterable[str] | None = None
    clip_norm: float | None = None
    clip_value: float | None = None
    output: str | None = None
    bind: Mapping[str, int] | None = None
    names: str | Path | nn.Module | Mapping[str, Tensor] | None = None
    recompute: bool | Omitted = OMITTED
    paging: bool | Omitted = OMITTED
    written: str | int | Omitted | None = OMITTED
    energy: str | float | Omitted | None = OMITTED
    pins: Pins | Omitted | None = OMITTED
    storage: str | int | None = None
    home: Place | str = Place.RAM
    gradients: Gradients | str = Gradients.STREAM
    allow: Iterable[PageForm | str] = ()
    minimise: Objective | str | Omitted = OMITTED
    time_limit_seconds: float | Omitted | None = OMITTED
    progress: bool | Progress | None = False
    limits: Limits | None = None
    options: SolveOptions | None = None
    evaluation: bool = True
    micro: int | str | MicroBatches | None = None
    shapes: Sequence[Tensor | Sequence[Any] | Mapping[str, int]] = ()
    budgets: Sequence[str | int] = ()
    base: BaseSpec | str | None = None
    weights: str | Path | None = None
    choose: str | Path | Scores | Sequence[Group] | None = None
    most: bool = False
    at_least: float | None = None

    def __post_init__(self) -> None:
        self._check_choice()
        short = self._short_limits()
        if self.limits is None and "ram" not in short:
            raise InputError(
                'poet.plan needs a RAM budget: ram="64MiB" (ram=None: unlimited), or limits=poet.Limits(...)'
            )
        smaller_budgets(self.limits.ram_budget_bytes if self.limits else short["ram"], self.budgets)
        _ = self.search_options
        if self.pieces is not None and self.shapes:
            raise InputError("several shapes and micro-batches are not planned together; leave one out")

    def _check_choice(self) -> None:
        """Refuse what does not go with a choice of what to train."""
        if self.choose is None:
            if self.most or self.at_least is not None:
                raise InputError("most and at_least (--most, --at-least) are of choose: --choose scores.toml")
            return
        if self.most == (self.at_least is not None):
            raise InputError("choose needs one of most=True (--most) and at_least=0.8 (--at-least 0.8)")
        if self.at_least is not None and not 0 < self.at_least <= 1:
            raise InputError(f"at least {self.at_least} is no share of all scores; write for example 0.8")
        whole = ("--train", self.train), ("--micro", self.micro), ("--shape", self.shapes or None)
        for name, given in whole:
            if given is not None:
                raise InputError(
                    f"choose says what to train, in a batch of one shape as a whole; leave {name} out"
                )
        if not isinstance(self.optimizer, str | OptimizerSpec):
            raise InputError(
                "an optimizer with parameters says what is trained; give choose an optimizer by name"
            )

    @property
    def search_options(self) -> SolveOptions:
        """How all searches together are made."""
        names = ("minimise", "time_limit_seconds")
        short = self._given("options", self.options, SolveOptions, names)
        if "minimise" in short:
            short["objective"] = one_of(Objective, short.pop("minimise"), "minimise")
        return self.options or SolveOptions(**short)

    @property
    def pieces(self) -> MicroBatches | str | None:
        """The micro-batches; a text where as many as take the least energy are asked for."""
        return micro_batches(self.micro)

    def counts(self) -> list[MicroBatches | None]:
        """The numbers of micro-batches that are tried."""
        pieces = self.pieces
        if not isinstance(pieces, str):
            return [pieces]
        return list(candidates(samples_of(self.example_inputs, self.bind or {}), pieces))

    def prepared(self, micro: MicroBatches | None = None, **other: Any) -> Prepared:
        """The training step of the request's own shape, with ``other`` fields; errors as of `prepare`."""
        own = {"example_inputs": self.example_inputs, "bind": self.bind, "targets": self.targets}
        return self._prepared(micro, **own | other)

    def other_shapes(self) -> list[Prepared]:
        """The same for each other shape.

        Raises:
            InputError: a shape is not one that the model takes.
        """
        return [self._prepared(None, **self._shape(item)) for item in self.shapes]

    def inside(self, prepared: Prepared) -> tuple[Prepared, Limits]:
        """``prepared`` with the storage that is asked for, and what its plan must stay within.

        Raises:
            InputError: a text is not a size, a deadline or an energy.
            Infeasible: a budget is less than any schedule takes.
        """
        if self.storage is not None:
            size_bytes = parse_bytes(self.storage) if isinstance(self.storage, str) else self.storage
            prepared = replace(prepared, problem=replace(prepared.problem, storage_capacity_bytes=size_bytes))
        limits = self.limits or limits_of(prepared.problem, **self._short_limits())
        check_reachable(prepared.problem, limits, self.budgets)
        return prepared, limits

    def _prepared(self, micro: MicroBatches | None, **other: Any) -> Prepared:
        return prepare(
            self.model,
            micro=micro,
            has_shapes=bool(self.shapes),
            **{
                **{name: getattr(self, name) for name in _PREPARED},
                "evaluation": self.evaluation and not isinstance(self.pieces, str),  # else of the best alone
                **other,
            },
        )

    def _shape(self, item: Tensor | Sequence[Any] | Mapping[str, int]) -> dict[str, Any]:
        """What `prepare` is given for another shape: a file's sizes, inputs, or inputs and targets."""
        if isinstance(item, Mapping):
            return {"bind": {**(self.bind or {}), **item}}
        if self.targets is None:
            return {"example_inputs": item}
        if isinstance(item, tuple) and len(item) == 2:
            return {"example_inputs": item[0], "targets": item[1]}
        raise InputError("where targets are given, each of shapes is a pair: example inputs, example targets")

    def _short_limits(self) -> dict[str, Any]:
        names = ("ram", "deadline", "recompute", "paging", "written", "energy", "pins")
        return self._given("limits", self.limits, Limits, names)

    def _given(self, record: str, whole: object, kind: type, names: Iterable[str]) -> dict[str, Any]:
        """The single arguments that were given; none where the ``whole`` record was.

        Raises:
            InputError: both were, or the record is of another kind.
        """
        given = {name: value for name in names if (value := getattr(self, name)) is not OMITTED}
        if whole is not None and not isinstance(whole, kind):
            raise InputError(
                f"{record} is a poet.{kind.__name__}, not of type {type(whole).__name__}; "
                f"write {record}=poet.{kind.__name__}(...)"
            )
        if whole is not None and given:
            raise InputError(
                f"{', '.join(given)} and {record} say the same thing twice; "
                f"leave {record} out, or put all of it into {record}=poet.{kind.__name__}(...)"
            )
        return given


def samples_of(inputs: Tensor | Sequence[Tensor] | None, bind: Mapping[str, int]) -> int:
    """Of a batch: in the first dimension of a module's inputs, or as an ONNX file's batch is bound.

    Raises:
        InputError: neither says it.
    """
    if inputs is None:
        bound = [bind[name] for name in BATCH_NAMES if name in bind]
        if not bound:
            raise InputError("micro-batches of an ONNX file need its batch: --batch 32, or bind={'N': 32}")
        return bound[0]
    from torch import Tensor

    first = inputs if isinstance(inputs, Tensor) else inputs[0]
    return int(first.shape[0]) if first.dim() else 0


@dataclass(frozen=True, slots=True)
class Candidate:
    """One number of micro-batches that was tried.

    Attributes:
        micro: the pieces; ``None``: the batch as a whole.
        joules, seconds: of a whole step; ``None`` where there is no plan.
        why: there is none; empty where there is one.
    """

    micro: MicroBatches | None
    joules: float | None
    seconds: float | None
    why: str = ""


def planned_as(request: PlanRequest, stages: Stages | None = None) -> tuple[Planned, tuple[Candidate, ...]]:
    """The plan that ``request`` asks for, and the numbers of micro-batches that were tried for it.

    Args:
        request: what to plan.
        stages: of the search for each training step.

    Raises:
        InputError: the model, the device or an option is not usable.
        Infeasible: no plan exists inside the limits; the message names what binds.
        OutOfTime: the time limit passed before any plan was found.
    """
    counts, asked = request.counts(), request.search_options
    each_shape = 1 + request.evaluation
    others = each_shape * len(request.shapes)
    beside = (request.pieces is not None) + request.evaluation + others + len(request.budgets)
    shares = TimeShares(asked.time_limit_seconds, beside, asked.clock)
    with showing(
        request.progress, objective=asked.objective, limit_seconds=asked.time_limit_seconds
    ) as shown:
        options = replace(asked, progress=shown or asked.progress)
        shapes = request.other_shapes()  # a shape that the model does not take, before a long search
        make = partial(_step, request, options, shares, len(counts), stages)
        planned, tried = least_energy(counts, make)
        if request.evaluation:
            planned = with_evaluation(planned, time_limit_seconds=shares.each(1))
        planned = with_shapes(
            planned,
            shapes,
            evaluation=planned.plan.evaluation is not None,
            time_limit_seconds=shares.each(others),
        )
        seconds = shares.each(len(request.budgets))
        return with_budgets(planned, request.budgets, time_limit_seconds=seconds, options=options), tried


def _step(
    request: PlanRequest,
    options: SolveOptions,
    shares: TimeShares,
    tried: int,
    stages: Stages | None,
    micro: MicroBatches | None,
) -> Planned:
    """The training step in ``micro``-batches; ``tried`` numbers of them share the time."""
    if request.choose is not None:
        return _chosen(request, options, shares, stages)
    prepared, limits = request.inside(request.prepared(micro))
    seconds = shares.first()
    if seconds is not None:
        options = replace(options, time_limit_seconds=seconds / tried)
    planned = plan_step(without_choice(prepared) if request.budgets else prepared, limits, options, stages)
    return with_accumulation(planned, time_limit_seconds=shares.each(request.pieces is not None) / tried)


def _chosen(
    request: PlanRequest, options: SolveOptions, shares: TimeShares, stages: Stages | None
) -> Planned:
    """The training step of the parameters that ``request`` chooses, and its plan."""
    assert request.choose is not None
    scores = Scores.of(request.choose)
    every = tuple(dict.fromkeys(pattern for group in scores.group for pattern in group.patterns))
    prepared, limits = request.inside(request.prepared(train=every, evaluation=False))

    def again(patterns: tuple[str, ...]) -> Prepared:
        return request.inside(request.prepared(train=patterns))[0]

    options = replace(options, time_limit_seconds=shares.first())
    step, options, choice = chosen(prepared, scores, limits, options, again, at_least=request.at_least)
    planned = plan_step(without_choice(step) if request.budgets else step, limits, options, stages)
    outcome = replace(planned.plan.outcome, choice=choice)
    return replace(planned, plan=replace(planned.plan, outcome=outcome))


def least_energy(
    counts: Sequence[MicroBatches | None], make: Callable[[MicroBatches | None], Planned]
) -> tuple[Planned, tuple[Candidate, ...]]:
    """The plan of least energy per step among several numbers of micro-batches, and what each took.

    Args:
        counts: numbers of micro-batches, at least one.
        make: a plan with so many; raises `Infeasible` or `OutOfTime` where there is none.

    Raises:
        Infeasible, OutOfTime: no number of pieces has a plan; the last reason.
    """
    best: Planned | None = None
    tried: list[Candidate] = []
    why: Infeasible | OutOfTime | None = None
    for micro in counts:
        try:
            planned = make(micro)
        except (Infeasible, OutOfTime) as error:
            why = error
            tried.append(Candidate(micro, None, None, str(error)))
            continue
        tried.append(Candidate(micro, planned.plan.step_joules, planned.plan.step_seconds))
        if best is None or planned.plan.step_joules < best.plan.step_joules:
            best = planned
    if best is None:
        assert why is not None
        raise why
    return best, tuple(tried)
