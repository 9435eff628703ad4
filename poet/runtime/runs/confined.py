"""The lean child of an enforced run: ``python -m poet.runtime.runs.confined REQUEST``.

It loads torch, numpy and `poet.runtime`, makes two steps with the plan so that libraries have loaded
their kernels, throws them away, and is then confined to its idle size and the budget. The training
that follows is the one that counts: from the first step, on the request's data, saved where the request says.
Each event is one line of JSON on stdout.
"""

from __future__ import annotations

import gc
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch

from poet import children, codec
from poet.errors import InputError, NotFinite, PoetError, ReplayError
from poet.plans.lasting_values import stored_values
from poet.plans.plan_file import PlanFile
from poet.plans.run_request import RunRequest
from poet.plans.training_plan import Plan
from poet.runtime.runs.fit import Samples, load_samples
from poet.runtime.runs.requested import metered_epochs, open_trainer, validation_samples
from poet.runtime.system.confinement import Confinement, idle_bytes
from poet.runtime.system.memory import return_freed_memory, use_one_heap
from poet.units import format_bytes

_WARM_UP_STEPS = 2
_STEPS_IN_HEADROOM, _BYTES_PER_STEP = 400, 2048
_NAMES_IN_HEADROOM, _BYTES_PER_NAME = 100, 2048
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
        warm_bytes = _warm_up(file, samples, request)
        gc.collect()  # the trainer that was thrown away is a circle; the next one takes its room
        bookkeeping_bytes = _bookkeeping_bytes(file.plan, saves=bool(request.output or request.best))
        confinement = Confinement(warm_bytes + bookkeeping_bytes, request.budget_bytes)
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


def _bookkeeping_bytes(plan: Plan, *, saves: bool) -> int:
    """What lists take beside tensors: of the instructions of a long schedule, and of what a state has.

    The headroom of `idle_bytes` has room for a few hundred instructions, and for a hundred names of a state.
    """
    steps = max(0, len(plan.schedule) - _STEPS_IN_HEADROOM)
    names = max(0, len(stored_values(plan.graph)) - _NAMES_IN_HEADROOM) if saves else 0
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


def _warm_up(file: PlanFile, samples: Samples, request: RunRequest) -> int:
    """The idle size: of this process between steps, less the tensors that the plan counts.

    A trainer that is thrown away makes two steps before: libraries load kernels, start threads and fill
    caches.
    """
    with open_trainer(file, replace(request, learning_rate=None, resume=None)) as trainer:
        inputs, targets = samples.batch(torch.arange(trainer.input_types[0].shape[0]))
        for _ in range(_WARM_UP_STEPS):
            trainer.step(inputs, targets)
        if request.validate is not None:
            trainer.predict(inputs)
        return idle_bytes() - trainer.held_bytes


def run_child(work: Callable[[RunRequest, Emit], None], arguments: Sequence[str]) -> int:
    """The ``main`` of a confined child: reads the request, does ``work``, writes what happened."""

    def emit(event: str, data: Mapping[str, Any]) -> None:
        print(json.dumps({"event": event, **data}), flush=True)

    children.end_with_parent()
    return_freed_memory()
    use_one_heap()
    try:
        request = codec.decode(RunRequest, json.loads(arguments[0]), where="the request")
        if request.threads is not None:
            torch.set_num_threads(request.threads)
        work(request, emit)
    except PoetError as error:
        emit("failed", {"message": _in_words(error), "kind": _kind(error)})
        return error.exit_code
    except (RuntimeError, MemoryError) as error:
        emit("refused", {"message": _in_words(error)})
        return 2
    return 0


def _kind(error: PoetError) -> str:
    """What the other side raises; see `poet.enforce`."""
    return next((kind.__name__ for kind in (InputError, NotFinite) if isinstance(error, kind)), "ReplayError")


def _in_words(error: BaseException) -> str:
    """The error's first line; where torch's allocator was refused, how much it had asked for."""
    line = str(error).splitlines()[0] if str(error) else "there is no memory"
    return _REFUSED.sub(lambda found: f"a request for {format_bytes(int(found[1]))} was refused", line)


if __name__ == "__main__":
    sys.exit(run_child(train, sys.argv[1:]))
