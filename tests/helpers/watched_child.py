"""Trains in a control group of its own, whose limit it lowers and raises between steps; prints what happened.

python tests/helpers/watched_child.py PLAN GROUP    GROUP: a new folder of cgroup v1's memory controller
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from torch import Tensor

from poet.runtime import Trainer
from poet.runtime.runs.watching import MemoryWatcher, SystemMemory

MIB = 1 << 20
RESERVE_BYTES = 32 * MIB
LEFT_BYTES = 40 * MIB
"""To the training, once the limit has fallen; its plans are for 64 and 28 MiB."""
STEPS = 6


def batch(trainer: Trainer, number: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    inputs, targets = trainer.input_types
    drawn = torch.randn(inputs.shape, generator=generator)
    return drawn, torch.randint(5, targets.shape, generator=generator)


def main() -> None:
    path, group = Path(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    (group / "cgroup.procs").write_text(f"{os.getpid()}\n")
    system, changes, losses = SystemMemory(), [], []
    with Trainer.open(path, seed=1) as trainer:
        watcher = MemoryWatcher(trainer, reserve=RESERVE_BYTES, every_seconds=0.0, calm_seconds=0.0)
        for number in range(STEPS):
            if number in (2, 4):
                left_bytes = 1 << 30 if number == 4 else LEFT_BYTES + RESERVE_BYTES - trainer.held_bytes
                used = int((group / "memory.usage_in_bytes").read_text())
                lines = (line.split() for line in (group / "memory.stat").read_text().splitlines())
                files = next(int(words[1]) for words in lines if words[0] == "total_inactive_file")
                (group / "memory.limit_in_bytes").write_text(str(used - files + left_bytes))
            change = watcher.look()
            if change is not None:
                changes.append((number, change.before_bytes, change.after_bytes, change.why))
            losses.append(trainer.step(*batch(trainer, number)).loss)
    with Trainer.open(path, seed=1) as trainer:
        alone = [trainer.step(*batch(trainer, number)).loss for number in range(STEPS)]
    print(
        json.dumps({"changes": changes, "losses": losses, "alone": alone, "room": system.read().room_bytes})
    )


if __name__ == "__main__":
    main()
