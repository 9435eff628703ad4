"""Hugging Face's Trainer with a plan, beside gradient checkpointing: losses, peaks, time.

    python -m benchmarks trainer-loops [MODEL ...] [--steps 100] [--pairs 7] [--write]

The scripts are those of `examples/huggingface_trainer.py`, larger. The peak is what torch's allocator handed
out at most from forward to the end of backward, parameters, buffers and the batch included. Time is that of
a pass, of processor time of all threads, as the machine has other work: the median over passes of the planned
model and of checkpointing in turn, of one Trainer each; and the median of the ratios of passes side by side.
Freed memory goes back to the system in both (`poet.wrap` sets the heap so), or peaks would not be memory.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import huggingface_trainer as example
import torch
from result_file import RESULTS, write

from poet.integrations.huggingface import PoetCallback
from poet.integrations.planned_forward import planned_forward_of
from poet.plans.training_plan import Plan
from poet.runtime import native
from poet.runtime.system.memory import return_freed_memory

SIZES: dict[str, dict[str, int]] = {
    "distilbert": {"width": 256, "layers": 4, "batch": 8, "length": 128},
    "vit": {"width": 192, "layers": 6, "batch": 16},
    "gpt2-lora": {"width": 256, "layers": 4, "batch": 8, "length": 128},
}
SHARES = (1.0, 0.7)  # of checkpointing's peak
OPTIONS: dict[str, Any] = {"minimise": "time", "paging": False, "time_limit_seconds": 30.0}
WARM = 2  # passes that are not timed
MIB = 1 << 20


@dataclass
class Watched:
    """A script whose passes are measured.

    Attributes:
        peak_bytes: of the passes after the first ones.
        seconds: of processor time, of each pass.
        plan: that was replayed; ``None``: it is plain.
    """

    name: str
    ram: int | None = 0
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    peaks: list[int] = field(default_factory=list)
    plan: Plan | None = None

    def __init__(
        self, name: str, *, ram: int | None = 0, checkpointing: bool = False, **options: Any
    ) -> None:
        """``ram`` 0: no plan; ``options`` are those of `plan_forward` or of the script."""
        planning = {
            key: options.pop(key)
            for key in ("device", "minimise", "recompute", "paging", "time_limit_seconds")
            if key in options
        }
        self.name, self.ram = name, ram
        self.losses, self.seconds, self.peaks, self.plan = [], [], [], None
        if checkpointing:
            options["gradient_checkpointing"] = True
        self.trainer = example.trainer_of(name, **options)
        log = example.Losses()
        self.losses = log.found
        self.trainer.add_callback(log)
        if ram != 0:
            self.trainer.add_callback(PoetCallback(ram=ram, **planning))
        self._inner, self.trainer.training_step = self.trainer.training_step, self._step

    @property
    def peak_bytes(self) -> int:
        """See the class."""
        return max(self.peaks[WARM:] or self.peaks[-1:])

    def run(self) -> Watched:
        """Train to the end."""
        self.trainer.train()
        return self

    def _step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        allocator = native.load()
        assert allocator is not None, native.why_unavailable()
        tensors = (*model.parameters(), *model.buffers(), *inputs.values())
        held_bytes = sum(item.nbytes for item in tensors)
        with allocator.tracking() as tracked:
            began = time.process_time()
            loss = self._inner(model, inputs, *args, **kwargs)
            self.seconds.append(time.process_time() - began)
            self.peaks.append(tracked.peak_bytes + held_bytes)
        forward = planned_forward_of(model)
        if forward is not None:
            self.plan = forward.plans[-1].plan
        return loss


def measured(name: str, steps: int, pairs: int) -> tuple[list[list[int | float | str]], str]:
    """A row per budget, and what is wrong; empty: nothing."""
    size = SIZES[name]
    return_freed_memory()
    plain = Watched(name, steps=steps, **size).run()
    checkpointed = Watched(name, checkpointing=True, steps=WARM + pairs, **size).run()
    rows: list[list[int | float | str]] = []
    wrong = ""
    for share in SHARES:
        ram_bytes = int(share * checkpointed.peak_bytes)
        planned = Watched(name, ram=ram_bytes, steps=steps, **size, **OPTIONS).run()
        assert planned.plan is not None
        planned_bytes = planned.plan.prediction.peak_ram_bytes
        times = side_by_side(name, ram_bytes, pairs)
        ratio = statistics.median(one / other for one, other in zip(*times, strict=True))
        equal = sum(one == other for one, other in zip(plain.losses, planned.losses, strict=True))
        if equal != steps or planned.peak_bytes > 1.01 * planned_bytes:
            wrong = f"{name}: {equal} of {steps} losses, {planned.peak_bytes} of {planned_bytes} bytes"
        rows.append(
            [
                name, f"{equal} of {steps}", round(plain.peak_bytes / MIB, 1),
                round(checkpointed.peak_bytes / MIB, 1), round(planned_bytes / MIB, 1),
                round(planned.peak_bytes / MIB, 1), round(statistics.median(times[1]), 3),
                round(statistics.median(times[0]), 3), round(ratio, 3),
            ]
        )  # fmt: skip
        print(*rows[-1], flush=True)
    return rows, wrong


def side_by_side(name: str, ram_bytes: int, pairs: int) -> tuple[list[float], list[float]]:
    """Seconds of passes with the plan and with checkpointing, in turn."""
    both = []
    for options in ({"ram": ram_bytes, **OPTIONS}, {"checkpointing": True}):
        watched = Watched(name, steps=1, **SIZES[name], **options)
        both.append(watched)
    planned, checkpointed = both
    model = planned.trainer.model
    model.train()
    checkpointed.trainer.model.train()
    checkpointed.trainer.model.gradient_checkpointing_enable()
    import poet

    poet.plan_forward(model, ram=ram_bytes, **OPTIONS)
    batches = [next(iter(item.trainer.get_train_dataloader())) for item in both]
    for _ in range(WARM + pairs):
        for item, batch in zip(both, batches, strict=True):
            item.trainer.model.zero_grad()
            item._step(item.trainer.model, dict(batch))
    return planned.seconds[WARM:], checkpointed.seconds[WARM:]


_TEXT = """# In Hugging Face's Trainer, beside gradient checkpointing

Made by `python -m benchmarks trainer-loops --write` with torch {torch}, 1 thread: models from a config,
random data, AdamW, dropout; paging is off, and plans minimise time. Peaks in MiB are what torch's allocator
handed out at most in a pass, with parameters and the batch; seconds are processor time of a pass, medians of
{pairs} pairs in turn on a machine with other work; the ratio is the median of the pairs'.

| model | losses equal | peak: plain | checkpointing | plan, said | plan | s: checkpointing | plan | ratio |
|---|---|---|---|---|---|---|---|---|
"""


def main() -> None:
    """Measure, show, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("models", nargs="*", choices=[*SIZES, []], default=[])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    page, errors = _TEXT.format(torch=torch.__version__, pairs=asked.pairs), []
    for name in asked.models or SIZES:
        rows, wrong = measured(name, asked.steps, asked.pairs)
        page += "".join(f"| {' | '.join(map(str, row))} |\n" for row in rows)
        errors += [wrong] if wrong else []
    print(page)
    if asked.write:
        write(RESULTS / "trainer-loops.json", page)
    if errors:
        sys.exit("\n".join(errors))


if __name__ == "__main__":
    main()
