"""An app that learns from its user: it embeds a plan, trains on each batch, and survives power cuts.

python on_device_app.py plan.poet samples.npz state.safetensors
"""

import sys
from pathlib import Path

import numpy as np
import torch

from poet.runtime import Trainer

SAVE_EVERY_STEPS = 10


def main(plan: Path, samples: Path, state: Path) -> None:
    """Train one pass over the samples; go on from the saved state where there is one."""
    with np.load(samples, allow_pickle=False) as arrays:
        inputs, targets = (torch.from_numpy(arrays[name]) for name in ("inputs", "targets"))
    with Trainer.open(plan, seed=0, resume=state if state.exists() else None) as trainer:
        batch = trainer.input_types[0].shape[0]
        for start in range(0, len(inputs) - batch + 1, batch):
            chosen = slice(start, start + batch)
            result = trainer.step(inputs[chosen], targets[chosen])
            print(f"step {trainer.steps}: loss {result.loss:.4f} in {1000 * result.seconds:.1f} ms")
            if trainer.steps % SAVE_EVERY_STEPS == 0:
                trainer.save(state)
        trainer.save(state)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
