"""Training by night: each night may take so many joules, and the next one goes on where it ended.

python examples/nightly.py [PLAN]
"""

import sys
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import poet
from poet.runtime import Allowance, Spending, Trainer, fit, load_samples

BATCH = 25
EPOCHS = 4


def main(plan: str = "nightly.poet", *, nights: float = 3.0) -> list[dict[str, float]]:
    """Train some epochs in about so many nights of equal energy; steps, joules and accuracy of each night."""
    torch.manual_seed(0)
    digits = load_digits()
    images, labels = digits.images.reshape(-1, 64).astype(np.float32) / 16, digits.target
    net = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
    planned = poet.plan(
        net,
        torch.from_numpy(images[:BATCH]),
        device="rpi4b",
        ram="256KiB",
        optimizer="momentum:lr=0.05",
        time_limit_seconds=5.0,
    )
    planned.save(plan)
    folder = Path(plan).parent
    data, state = folder / "digits.npz", folder / "nightly.safetensors"
    np.savez(data, inputs=images[:1500], targets=labels[:1500])
    steps = EPOCHS * 1500 // BATCH
    joules = planned.plan.step_joules * steps / nights
    told: list[dict[str, float]] = []
    while not told or told[-1]["steps"] < steps:
        with Trainer.open(plan, seed=None if told else 0, resume=state if told else None) as trainer:
            spending = Spending(trainer.plan, Allowance(joules=joules))
            left = -(-(steps - trainer.steps) * BATCH // 1500)  # epochs, the one that was begun among them
            samples = load_samples(data, trainer.plan)
            list(fit(trainer, samples, epochs=left, save_path=state, spending=spending))
            unseen = torch.from_numpy(images[1500:1775]).split(BATCH)  # type: ignore[no-untyped-call]
            answers = torch.from_numpy(labels[1500:1775]).split(BATCH)  # type: ignore[no-untyped-call]
            found = trainer.evaluate(zip(unseen, answers, strict=True), ["accuracy"])
            accuracy = found.metrics["accuracy"] or 0.0
            told.append({"steps": trainer.steps, "joules": spending.joules, "accuracy": accuracy})
        print(f"night {len(told)}: step {trainer.steps}, {spending.joules:.3g} J, {accuracy:.1%} told right")
    return told


if __name__ == "__main__":
    main(*sys.argv[1:2])
