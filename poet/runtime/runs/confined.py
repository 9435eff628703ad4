"""The lean child of an enforced run: ``python -m poet.runtime.runs.confined REQUEST``.

It loads torch, numpy and `poet.runtime` and profiles the training with trainers that it throws away. In
the first profiling run libraries load their kernels, start threads and fill caches; further ones measure what
the process takes beside tensors at its fullest, the opening of the plan included, until that grows no more.
Then it is confined to that, its idle size, and the budget. The training that follows is the one that counts:
from the first step, on the request's data, saved where the request says. Each event is one line of JSON on
stdout.
"""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch

from poet.errors import INTERRUPTED, InputError, NotFinite, OverBudget, PoetError, ReplayError
from poet.plans.plan_file import PlanFile
from poet.plans.planned_step import stored_values
from poet.plans.run_request import RunRequest
from poet.plans.training_plan import Plan
from poet.runtime.runs.fit import Samples, batch_of, load_samples, trained_of
from poet.runtime.runs.requested import metered_epochs, open_trainer, validation_samples
from poet.runtime.system.confinement import Confinement, Rehearsal
from poet.runtime.system.memory import return_freed_memory, use_one_heap
from poet.runtime.training.trainer import Trainer
from poet.util import children, codec
from poet.util.units import format_bytes

_MOST_REHEARSALS, _MOST_STEPS = 6, 12
_STEADY_BYTES = 64 * 1024
_BYTES_PER_STEP, _BYTES_PER_NAME = 128, 2048
_REFUSED = re.compile(r"\[enforce fail at .*? tried to allocate (\d+) bytes\..*")
"""What torch's CPU allocator says when the system gives it nothing."""

Emit = Callable[[str, Mapping[str, Any]], None]


def train(request: RunRequest, emit: Emit) -> None:
    """Train as asked, confined.

    Raises:
        PoetError: a file is not usable, or the plan did not stay within its budget.
    """
    with PlanFile(request.plan) as file:
        samples = load_samples(request.data, file.plan, allow_nan=request.allow_nan)
        validation = validation_samples(file.plan, request)
        idle_bytes = _idle_bytes(file, samples, request)
        confinement = Confinement(idle_bytes, request.budget_bytes)
        confinement.enforce()
        emit("confined", {"idle_bytes": confinement.idle_bytes})
        try:
            _train(file, samples, validation, request, emit)
        except ReplayError as error:
            measured = file.plan.replayed_kernels.threads
            if measured in (None, torch.get_num_threads()):
                raise
            advice = f"its memory was measured with {measured} threads; run it with --threads {measured}"
            raise ReplayError(f"{_in_words(error)}; {advice}") from error


def _idle_bytes(file: PlanFile, samples: Samples, request: RunRequest) -> int:
    """The size at the fullest without tensors, once a profiling run takes no more than the one before."""
    before_bytes = 0
    for _ in range(_MOST_REHEARSALS):
        with Rehearsal() as rehearsal:
            tensors_bytes = _rehearse(file, samples, request)
        if 0 < rehearsal.most_bytes <= before_bytes + _STEADY_BYTES:
            break
        before_bytes = rehearsal.most_bytes
    return rehearsal.idle_bytes(tensors_bytes) + _lists_bytes(file.plan, samples, request)


def _lists_bytes(plan: Plan, samples: Samples, request: RunRequest) -> int:
    """What a long training and its saves take beside tensors, unlike a profiling run: figures and names."""
    steps = -(-trained_of(samples.count, plan) // batch_of(plan))
    names = len(stored_values(plan.graph)) if request.output or request.best else 0
    return steps * _BYTES_PER_STEP + names * _BYTES_PER_NAME


def _train(
    file: PlanFile, samples: Samples, validation: Samples | None, request: RunRequest, emit: Emit
) -> None:
    with open_trainer(file, request) as trainer:
        try:
            for epoch, peak_bytes in metered_epochs(trainer, samples, request, validation):
                emit("epoch", {"epoch": asdict(epoch), "peak_bytes": peak_bytes})
        except ReplayError as error:
            if not trainer.memory.startswith("heap: "):
                raise
            raise ReplayError(f"{_in_words(error)}; steps ran from the {trainer.memory}") from error
        emit("done", {"steps": trainer.steps, "memory": trainer.memory})


def _rehearse(file: PlanFile, samples: Samples, request: RunRequest) -> int:
    """Train with a trainer that is thrown away until its memory comes from where it will; bytes of tensors.

    Raises:
        OverBudget: that is more than the budget.
    """
    with open_trainer(file, replace(request, learning_rate=None, resume=None)) as trainer:
        chosen = torch.arange(batch_of(file.plan))
        left = chosen[: trained_of(samples.count, file.plan) % len(chosen)]
        with trainer.peak_meter() as meter:
            for number in range(_MOST_STEPS):
                _step(trainer, samples, chosen)
                if number and trainer.is_settled:
                    break
            if len(left):
                _step(trainer, samples, left)
            if request.validate is not None:
                rows = torch.arange(len(samples.staged[0]))
                trainer.evaluate([samples.batch(rows)], request.metrics or None)
        trainer.check_budget(meter.peak)
        planned_bytes = file.plan.held_bytes + file.plan.page_buffer_bytes
        return meter.peak.bytes if meter.peak.is_counted and meter.peak.bytes else planned_bytes


def _step(trainer: Trainer, samples: Samples, chosen: torch.Tensor) -> None:
    *earlier, last = chosen.split(len(samples.staged[0]))  # type: ignore[no-untyped-call]
    for piece in earlier:
        trainer.accumulate(*samples.batch(piece))
    trainer.step(*samples.batch(last))


def run_child(work: Callable[[RunRequest, Emit], None], arguments: Sequence[str]) -> int:
    """The ``main`` of a confined child: reads the request, does ``work``, writes what happened."""

    def emit(event: str, data: Mapping[str, Any]) -> None:
        print(json.dumps({"event": event, **data}), flush=True)

    children.end_with_parent()
    return_freed_memory()
    use_one_heap()
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # by which the parent passes requests on
        emit("started", {})
        request = codec.decode(RunRequest, json.loads(arguments[0]), where="the request")
        if request.threads is not None:
            torch.set_num_threads(request.threads)
        work(request, emit)
    except (PoetError, OSError) as error:
        emit("failed", {"message": _in_words(error), "kind": _kind(error)})
        return getattr(error, "exit_code", 2)
    except (RuntimeError, MemoryError) as error:
        emit("refused", {"message": _in_words(error)})
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _kind(error: Exception) -> str:
    """What the other side raises; see `poet.enforce`."""
    kinds = (kind.__name__ for kind in (InputError, NotFinite, OverBudget) if isinstance(error, kind))
    return next(kinds, "ReplayError")


def _in_words(error: BaseException) -> str:
    """The error's first line; where torch's allocator was refused, how much it had asked for."""
    line = str(error).splitlines()[0] if str(error) else "there is no memory"
    return _REFUSED.sub(lambda found: f"a request for {format_bytes(int(found[1]))} was refused", line)


if __name__ == "__main__":
    sys.exit(run_child(train, sys.argv[1:]))
