"""What a training run is asked for, its learning rates, and what each pass over the samples gave; no torch.

Learning rates over a training are given by name, with options, as a factor of the rates that the plan has:
``constant``, ``linear``, ``cosine`` and ``step``, each after a linear ``warmup`` of so many steps. The factor
of a step follows from its number alone, so that a training that is resumed goes on with it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from poet.errors import InputError, nearest
from poet.ir.named_options import options_of

_OPTIONS = {
    "constant": ("warmup",),
    "linear": ("warmup", "steps", "end"),
    "cosine": ("warmup", "steps", "end"),
    "step": ("warmup", "every", "factor"),
}
SCHEDULES = tuple(_OPTIONS)
_MOST_STEPS = 10**12


@dataclass(frozen=True, slots=True)
class RateSchedule:
    """A schedule.

    Attributes:
        name: one of `SCHEDULES`.
        warmup: steps over which the rate grows linearly to its full height.
        steps: of the whole training, warm-up included; ``None``: not known yet.
        end: the factor at the end, of ``linear`` and ``cosine``.
        every, factor: of ``step``: after every so many steps the rate is multiplied by ``factor``.
    """

    name: str
    warmup: int = 0
    steps: int | None = None
    end: float = 0.0
    every: int = 1000
    factor: float = 0.1

    @staticmethod
    def parse(text: str) -> RateSchedule:
        """The schedule in ``NAME`` or ``NAME:option=value,...``, such as ``cosine:warmup=100``.

        Raises:
            InputError: there is none of that name, or it has no such option or value.
        """
        name, colon, written = text.partition(":")
        if name not in SCHEDULES:
            raise InputError(
                f"schedule {name!r} is not one of {', '.join(SCHEDULES)}{nearest(name, SCHEDULES)}"
            )
        made = RateSchedule(name)
        kinds = {field.name: field.type for field in fields(RateSchedule)}
        written_options = options_of(f"schedule {text!r}", name, written, _OPTIONS[name]) if colon else ()
        for option, value in written_options:
            number: Any = _number(text, option, value, whole="int" in str(kinds[option]))
            made = replace(made, **{option: number})
        return made

    def over(self, steps: int) -> RateSchedule:
        """The same schedule, of a training of ``steps`` where it does not say how many itself."""
        return self if self.steps is not None else replace(self, steps=steps)

    def factor_of(self, step: int) -> float:
        """What the learning rates are multiplied by in step number ``step``, which counts from 0."""
        if step < self.warmup:
            return (step + 1) / (self.warmup + 1)
        past = step - self.warmup
        if self.name == "constant":
            return 1.0
        if self.name == "step":
            return self.factor ** (past // self.every)
        if self.steps is None:
            raise InputError(f"schedule {self.name} needs the number of steps: {self.name}:steps=1000")
        share = min(1.0, past / max(1, self.steps - self.warmup))
        if self.name == "linear":
            return 1.0 + (self.end - 1.0) * share
        return self.end + (1.0 - self.end) * 0.5 * (1.0 + math.cos(math.pi * share))


def _number(text: str, option: str, value: str, *, whole: bool) -> float:
    try:
        number: float = int(value) if whole and value.isascii() and value.isdigit() else math.nan
        number = number if whole else float(value)
    except ValueError:
        number = math.nan
    least = 1 if option in ("every", "steps") else 0
    if not least <= number <= _MOST_STEPS:
        kind = "whole number" if whole else "number"
        raise InputError(f"schedule {text!r}: {option} is a {kind} from {least} up")
    return number


@dataclass(frozen=True, slots=True)
class RunRequest:
    """The options of ``poet run``, as a child process is given them.

    Attributes:
        plan, data: paths of the plan and of the samples.
        budget_bytes: what the child may take above its idle size.
        epochs, seed, threads, learning_rate, page_file, resume, output, allow_nan: see ``poet run --help``.
        save_every: steps between saves to ``output``; ``None``: after each epoch.
        save_seconds: since the last save, after which it is saved as well.
        keep_previous: whether the state saved before the last one is kept too.
        stop_joules, stop_seconds, stop_written_bytes: what the run may spend; see
        `poet.runtime.runs.fit`.
        allow_over_budget: whether steps may hold more than the plan's budget.
        watch_memory: whether the budget follows what the system leaves; see `poet.runtime.runs.watching`.
        arena: see `poet.runtime.Trainer.open`.
        validate: path of the samples to evaluate after each epoch; ``None``: none.
        metrics: names of what is counted there beside the loss; empty: what suits the targets.
        patience: epochs without a better loss there, after which training ends; ``None``: it does not.
        schedule: of the learning rates, as `poet.plans.run_request` reads it; ``None``: they stay.
        best: where the state of the best epoch is kept; ``None``: nowhere.
        module: ``module:function`` that gives the module a plan was made from, for plain PyTorch beside it.
    """

    plan: str
    data: str
    budget_bytes: int
    epochs: int = 1
    seed: int | None = None
    threads: int | None = None
    learning_rate: float | None = None
    page_file: str | None = None
    resume: str | None = None
    output: str | None = None
    save_every: int | None = None
    arena: bool | str = True
    allow_nan: bool = False
    validate: str | None = None
    metrics: tuple[str, ...] = ()
    patience: int | None = None
    best: str | None = None
    schedule: str | None = None
    save_seconds: float | None = None
    keep_previous: bool = False
    stop_joules: float | None = None
    stop_seconds: float | None = None
    stop_written_bytes: int | None = None
    watch_memory: bool = False
    allow_over_budget: bool = False
    module: str | None = None


@dataclass(frozen=True, slots=True)
class Validation:
    """What evaluating other samples gave after an epoch.

    Attributes:
        loss: mean over the whole batches; ``None`` where it is not finite.
        metrics: by name, over all samples.
        samples: that were counted.
        seconds: wall clock.
        is_best: whether no epoch of this run had a smaller loss.
        ends: whether training ends here, since the loss has not become smaller for long enough.
    """

    loss: float | None
    metrics: dict[str, float | None]
    samples: int
    seconds: float
    is_best: bool
    ends: bool = False


@dataclass(frozen=True, slots=True)
class Epoch:
    """What one pass over the samples gave.

    Attributes:
        number: counts from 1, with those of earlier runs that were resumed.
        loss: mean over the steps; ``None`` where it is not finite.
        accuracy: share of samples classified right before each update; ``None`` where targets are
            not classes.
        steps: made here; the samples that fill no last batch are left out, others each epoch.
        step_seconds: median.
        seconds: of the epoch.
        is_complete: ``False`` where Ctrl-C or an allowance ended it early.
        step_own_seconds: median, of what a step took of the processor and of storage alone.
        validation: what evaluating other samples gave afterwards, where that was asked for.
        stopped: why the run ends here, where what it may spend is spent; else empty.
    """

    number: int
    loss: float | None
    accuracy: float | None
    steps: int
    step_seconds: float
    seconds: float
    is_complete: bool
    step_own_seconds: float | None = None
    validation: Validation | None = None
    stopped: str = ""


def was_interrupted(epochs: Sequence[Epoch], request: RunRequest) -> bool:
    """Whether Ctrl-C ended the training before all that was asked for was done."""
    if epochs and epochs[-1].stopped:
        return False
    if not epochs or not epochs[-1].is_complete:
        return True
    validation = epochs[-1].validation
    return len(epochs) < request.epochs and not (validation is not None and validation.ends)


BUSY_RATIO = 1.25
"""Of wall clock to what steps took themselves: above it, something else had the processor meanwhile."""
