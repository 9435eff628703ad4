"""What a training run is asked for and what each pass over the samples gave; knows no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunRequest:
    """The options of ``poet run``, as a child process is given them.

    Attributes:
        plan, data: paths of the plan and of the samples.
        budget_bytes: what the child may take above its idle size.
        epochs, seed, threads, learning_rate, page_file, resume, output, allow_nan: see ``poet run --help``.
        save_every: steps between saves to ``output``; ``None``: after each epoch.
        arena: see `poet.runtime.Trainer.open`.
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
        is_complete: ``False`` where Ctrl-C ended it early.
        step_own_seconds: median, of what a step took of the processor and of storage alone.
    """

    number: int
    loss: float | None
    accuracy: float | None
    steps: int
    step_seconds: float
    seconds: float
    is_complete: bool
    step_own_seconds: float | None = None


BUSY_RATIO = 1.25
"""Of wall clock to what steps took themselves: above it, something else had the processor meanwhile."""
