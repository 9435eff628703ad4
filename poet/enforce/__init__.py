"""The enforced run: a plan trains in a child that may not grow, and plain PyTorch is put to the same test.

Each half is a process of its own. Once its libraries are loaded and warm, the kernel lets it have its
idle size and the plan's budget and no more (see `poet.runtime.system.confinement`). This side only starts the
children and listens; it loads no torch.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from types import FrameType
from typing import Any

from poet.errors import InputError, NotFinite, OverBudget, PoetError, ReplayError
from poet.plans.run_request import Epoch, RunRequest, was_interrupted
from poet.util import children, codec
from poet.util.interrupts import answered

_KINDS: dict[str, type[PoetError]] = {kind.__name__: kind for kind in (InputError, NotFinite, OverBudget)}
"""What a child may say that its failure was; everything else is a `ReplayError`."""

_ENVIRONMENT = {"PYTHONMALLOC": "malloc"}
"""The interpreter's own allocator takes memory 1 MiB at a time, the C library's a few pages."""

PLAN_CHILD, PLAIN_CHILD = "poet.runtime.runs.confined", "poet.enforce.plain"


@dataclass(frozen=True, slots=True)
class Half:
    """What one child did.

    Attributes:
        idle_bytes: its private writable memory with everything loaded and no tensor.
        peak_bytes: of tensor memory: of the plan while it was confined, from the second epoch on if there
            is one (in the first, libraries still touch memory of their own), counted where its steps lie in
            an arena and by the kernel's high-water mark elsewhere; of plain PyTorch by that mark, in a step
            before; ``None`` where it cannot be measured.
        steps: made while confined.
        refusal: what happened when the kernel refused more memory; ``None``: it never had to.
        memory: where the memory of the plan's steps came from, as `poet.runtime.Trainer.memory` says.
    """

    idle_bytes: int
    peak_bytes: int | None
    steps: int
    refusal: str | None = None
    memory: str | None = None


@dataclass(frozen=True, slots=True)
class EnforcedRun:
    """Both halves.

    Attributes:
        budget_bytes: what each was allowed above its idle size.
        epochs: of the plan's training.
        was_interrupted: by Ctrl-C or the like, before all that was asked for was done.
        plan, plain: the halves; ``plain`` is ``None`` where it could not be tried.
        why_not_plain: why not.
    """

    budget_bytes: int
    epochs: tuple[Epoch, ...]
    was_interrupted: bool
    plan: Half
    plain: Half | None
    why_not_plain: str | None = None


def enforce(request: RunRequest, *, on_epoch: Callable[[Epoch], None]) -> EnforcedRun:
    """Train as ``request`` says in a confined child, then put plain PyTorch to the same test.

    Ctrl-C ends the training after the step in flight; plain PyTorch is not tried then.

    Raises:
        InputError: a file is not usable.
        NotFinite: the loss was no longer finite.
        OverBudget: steps held more tensor memory than the budget.
        ReplayError: the plan did not stay within its limit, or a child came to harm.
    """
    epochs: list[Epoch] = []
    peaks_bytes: list[int | None] = []
    idle_bytes = steps = 0
    memory: str | None = None
    for event in _events(PLAN_CHILD, request):
        if event["event"] == "confined":
            idle_bytes = event["idle_bytes"]
        elif event["event"] == "epoch":
            epochs.append(codec.decode(Epoch, event["epoch"], where="the child's epoch"))
            peaks_bytes.append(event["peak_bytes"])
            steps += epochs[-1].steps
            on_epoch(epochs[-1])
        elif event["event"] == "done":
            memory = event["memory"]
        elif event["event"] in ("failed", "refused", "ended"):
            raise _KINDS.get(event.get("kind", ""), ReplayError)(event["message"])
    later = [size for size in peaks_bytes[1:] or peaks_bytes if size is not None]
    plan = Half(idle_bytes, max(later, default=None), steps, memory=memory)
    interrupted = was_interrupted(epochs, request)
    plain: Half | None = None
    why_not: str | None = "the training was interrupted"
    if not interrupted:
        try:
            plain, why_not = _try_plain(request)
        except KeyboardInterrupt:
            interrupted, why_not = True, "it was interrupted"
    return EnforcedRun(request.budget_bytes, tuple(epochs), interrupted, plan, plain, why_not)


def _try_plain(request: RunRequest) -> tuple[Half | None, str | None]:
    half: Half | None = None
    for event in _events(PLAIN_CHILD, request):
        if event["event"] == "confined":
            half = Half(event["idle_bytes"], event["peak_bytes"], steps=0)
        elif event["event"] in ("failed", "refused", "ended"):
            if half is None:
                return None, event["message"]
            half = replace(half, refusal=event["message"])
        elif event["event"] == "step" and half is not None:
            half = replace(half, steps=half.steps + event["steps"])
    return half, None


def _events(module: str, request: RunRequest) -> Iterator[Mapping[str, Any]]:
    """The events that the child writes, line by line; its end without a last one is an event as well."""
    with children.undisturbed():
        child = subprocess.Popen(
            children.command(module, json.dumps(asdict(request))),
            stdout=subprocess.PIPE,
            text=True,
            env={**children.environment(), **_ENVIRONMENT},
            start_new_session=True,
        )
    told = ""
    asked: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        """The child ends its step, and this side waits for its last words; before any it has nothing."""
        asked.append(number)
        child.send_signal(signal.SIGINT if told else signal.SIGKILL)

    with child, _killed_on_error(child), answered(forward):
        assert child.stdout is not None
        for line in child.stdout:
            event = json.loads(line)
            told = event["event"]
            yield event
    if child.returncode != 0 and asked:
        raise KeyboardInterrupt
    if child.returncode != 0 and told not in ("failed", "refused"):
        how = f"with {child.returncode}"
        if child.returncode < 0:
            how = f"by signal {-child.returncode}; not every library bears that it gets no more memory"
        yield {"event": "ended", "message": f"the process was ended {how}"}


@contextmanager
def _killed_on_error(child: subprocess.Popen[str]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        child.kill()
        raise
