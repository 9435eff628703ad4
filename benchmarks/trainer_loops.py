"""Hugging Face's Trainer with a plan, beside gradient checkpointing: losses, peaks, time.

    python -m benchmarks trainer-loops [MODEL ...] [--steps 100] [--pairs 7] [--shares 1 0.7] [--write]

The scripts are those of `examples/huggingface_trainer.py`. Losses are compared at its sizes, on a plan that
may recompute and page, in RAM half way from the least to that of everything kept. Peaks and times are of
larger models, without paging. The peak is what torch's allocator took at most in a pass, from forward to the
end of backward, with parameters, buffers and the batch; a plan's arena counts as a whole. Times are of passes
of both in turn, each in a process of its own, as a script would run: the heap of the one without a plan is as
the C library sets it. They are in processor time of all threads, as the machine has other work.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import huggingface_trainer as example
import torch
from result_file import RESULTS, rows_of_others, write

import poet
from poet.errors import OutOfTime
from poet.integrations.huggingface import PoetCallback
from poet.integrations.planned_forward import planned_forward_of
from poet.plans.training_plan import Plan
from poet.runtime import native

SIZES: dict[str, dict[str, Any]] = {
    "distilbert": {"width": 256, "layers": 4, "batch": 8, "length": 128},
    "vit": {"width": 192, "layers": 6, "batch": 16},
    "gpt2-lora": {"width": 256, "layers": 4, "batch": 8, "length": 128},
}
OPTIONS: dict[str, Any] = {"minimise": "time", "paging": False}
RESULT = RESULTS / "trainer-loops.json"
WARM = 2  # passes that are not timed
MIB = 1 << 20


class Watched:
    """A script whose passes are measured.

    Attributes:
        losses: of its steps.
        seconds: of processor time, of each pass.
        peaks: in bytes, of each pass.
        plan: that was replayed last; ``None``: it is plain.
    """

    def __init__(self, name: str, *, planning: dict[str, Any] | None = None, **options: Any) -> None:
        """``planning``: of `plan_forward`; ``None``: plain; ``options`` are the script's."""
        log = example.Losses()
        self.losses = log.found
        self.seconds: list[float] = []
        self.peaks: list[int] = []
        self.plan: Plan | None = None
        self.trainer = example.trainer_of(name, **options)
        self.trainer.add_callback(log)
        if planning is not None:
            self.trainer.add_callback(PoetCallback(**planning))
        self._pass, self.trainer.training_step = self.trainer.training_step, self.step

    @property
    def peak_bytes(self) -> int:
        """The most of passes after the first ones."""
        return max(self.peaks[WARM:] or self.peaks[-1:])

    def run(self) -> Watched:
        """Train to the end."""
        self.trainer.train()
        return self

    def step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """A pass of the Trainer, measured."""
        allocator = native.load()
        assert allocator is not None, native.why_unavailable()
        tensors = (*model.parameters(), *model.buffers(), *inputs.values())
        held_bytes = sum(item.nbytes for item in tensors) - allocator.usage().heap_bytes
        with allocator.tracking() as tracked:
            began = time.process_time()
            loss = self._pass(model, inputs, *args, **kwargs)
            self.seconds.append(time.process_time() - began)
            self.peaks.append(tracked.usage().footprint_peak_bytes + held_bytes)
        forward = planned_forward_of(model)
        if forward is not None:
            self.plan = list(forward.plans.values())[-1].plan
        return loss


def half_way(name: str, **options: Any) -> int:
    """Bytes half way from the least RAM of a script's pass to that of everything kept."""
    whole = Watched(name, planning={"ram": None, "time_limit_seconds": 0.5}, steps=1, **options).run().plan
    assert whole is not None
    found = whole.prediction
    assert found.lower_bound_ram_bytes is not None
    return (found.lower_bound_ram_bytes + found.peak_ram_bytes) // 2


def equal_losses(name: str, steps: int) -> tuple[int, int, int]:
    """Of how many steps the losses are equal; recomputed runs and paged bytes of a step."""
    plain = Watched(name, steps=steps).run()
    planning = {"ram": half_way(name), "device": "rpi4b", "time_limit_seconds": 5.0}
    planned = Watched(name, planning=planning, steps=steps).run()
    assert planned.plan is not None
    trace = planned.plan.trace
    equal = sum(one == other for one, other in zip(plain.losses, planned.losses, strict=True))
    return equal, trace.recomputed_runs, trace.written_bytes


class Side:
    """A script in a process of its own, which makes a pass when it is told to."""

    _here: Watched
    _batch: dict[str, Any]

    def __init__(self, name: str, ram_bytes: int | None, search_seconds: float) -> None:
        """Make the first passes, inside ``ram_bytes`` with a plan; ``None``: with checkpointing."""
        self._process = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        prepared = self._process.submit(Side._prepared, name, ram_bytes, search_seconds)
        self.peak_bytes, self.said_bytes = prepared.result()

    def seconds(self) -> float:
        """Of one more pass."""
        return self._process.submit(Side._passed).result()

    def close(self) -> None:
        """End the process."""
        self._process.shutdown()

    @staticmethod
    def _prepared(name: str, ram_bytes: int | None, search_seconds: float) -> tuple[int, int]:
        """Bytes at the peak, and those that the plan says; none where no plan was found."""
        torch.set_num_threads(1)
        Side._here = here = Watched(name, steps=1, **SIZES[name])
        model = here.trainer.model
        here.trainer.current_gradient_accumulation_steps = 1
        model.train()
        Side._batch = next(iter(here.trainer.get_train_dataloader()))
        if ram_bytes is None:
            model.gradient_checkpointing_enable()
        else:
            poet.plan_forward(model, ram=ram_bytes, time_limit_seconds=search_seconds, **OPTIONS)
        try:
            for _ in range(WARM + 1):
                Side._passed()
        except OutOfTime:
            return 0, 0
        return here.peak_bytes, 0 if here.plan is None else here.plan.held_bytes

    @staticmethod
    def _passed() -> float:
        here = Side._here
        here.trainer.model.zero_grad()
        here.step(here.trainer.model, dict(Side._batch))
        return here.seconds[-1]


def row_of_losses(name: str, steps: int) -> tuple[str, str]:
    """The row, and what is wrong."""
    equal, recomputed, paged_bytes = equal_losses(name, steps)
    wrong = "" if equal == steps else f"{name}: {equal} of {steps} losses are equal"
    return f"| {name} | {equal} of {steps} | {recomputed} | {paged_bytes / 1024:.0f} |", wrong


def rows_of_times(
    name: str, pairs: int, shares: Sequence[float], search_seconds: float
) -> Iterator[tuple[str, str]]:
    """A row for each of some shares of checkpointing's peak, with what is wrong."""
    plain_bytes = Watched(name, steps=WARM + 1, **SIZES[name]).run().peak_bytes
    checkpointed = Side(name, None, search_seconds)
    for share in shares:
        ram_bytes = int(share * checkpointed.peak_bytes)
        planned, wrong = Side(name, ram_bytes, search_seconds), ""
        sizes = (plain_bytes, checkpointed.peak_bytes, ram_bytes, planned.said_bytes, planned.peak_bytes)
        cells = [f"{size / MIB:.1f}" if size else "none" for size in sizes]
        if planned.said_bytes:
            times = [(planned.seconds(), checkpointed.seconds()) for _ in range(pairs)]
            ratio = statistics.median(one / other for one, other in times)
            cells += [f"{statistics.median(each):.3f}" for each in reversed(list(zip(*times, strict=True)))]
            cells.append(f"{ratio:.3f}")
            if planned.peak_bytes > 1.01 * planned.said_bytes:
                wrong = f"{name}: the peak is {planned.peak_bytes} bytes, the plan says {planned.said_bytes}"
        else:
            cells += ["", "", ""]
        planned.close()
        yield f"| {name} | {' | '.join(cells)} |", wrong
    checkpointed.close()


_TEXT = """# In Hugging Face's Trainer, beside gradient checkpointing

Made by `python -m benchmarks trainer-loops --write` with torch {torch}, 1 thread: models from a
configuration, random data, AdamW, dropout.

## Losses

| model | losses equal to plain | recomputed runs a step | KiB paged out a step |
|---|---|---|---|
{losses}

## Peaks and times

Peaks in MiB, seconds of a pass in processor time, medians of {pairs} pairs in turn on a machine with other
work; *ratio* is the median of the pairs' ratios. Plans minimise time inside the budget; *none* where the
search, in a few minutes beside that work, found none.

| model | plain | checkpointing | budget | plan says | plan | s, checkpointing | s, plan | ratio |
|---|---|---|---|---|---|---|---|---|
{times}
"""


def main() -> None:
    """Measure, show, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(SIZES)}; none: all")
    parser.add_argument("--steps", type=int, default=100, help="of losses; 0: those found before are kept")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--shares", type=float, nargs="*", default=[1.0, 0.7], help="of checkpointing's peak")
    parser.add_argument("--search", type=float, default=60.0, help="seconds, for each plan")
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    names = asked.models or list(SIZES)
    losses, times = (rows_of_others(RESULT, names) if asked.write else None) or ([], [])
    if asked.write and not asked.steps:
        losses = rows_of_others(RESULT, [])[0]
    errors: list[str] = []
    for name in names:
        found = [(losses, row_of_losses(name, asked.steps))] if asked.steps else []
        later = ((times, row) for row in rows_of_times(name, asked.pairs, asked.shares, asked.search))
        for rows, (row, wrong) in itertools.chain(found, later):
            rows.append(row)
            errors += filter(None, [wrong])
            print(row, flush=True)
            if asked.write:
                write(RESULT, _page(losses, times, asked.pairs))
    if errors:
        sys.exit("\n".join(errors))


def _page(losses: list[str], times: list[str], pairs: int) -> str:
    tables = {"losses": "\n".join(losses), "times": "\n".join(times)}
    return _TEXT.format(torch=torch.__version__, pairs=pairs, **tables)


if __name__ == "__main__":
    main()
