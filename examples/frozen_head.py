"""A new head on a frozen net: only the head is trained, with evaluation after each epoch and an early stop.

python examples/frozen_head.py [PLAN]
"""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn

import poet
from poet.runtime import Trainer

BATCH = 25


def main(plan: str = "head.poet", *, most_epochs: int = 40, patience: int = 3) -> tuple[float, int]:
    """Train until the loss on unseen digits has not fallen for some epochs; accuracy and epochs made."""
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.from_numpy(digits.images).float().unsqueeze(1) / 16
    labels = torch.from_numpy(digits.target)
    net = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 10)
    )
    planned = poet.plan(
        net,
        images[:BATCH],
        device="x86-host",
        ram="2MiB",
        optimizer=poet.OptimizerSpec("momentum", lr=0.1),
        train=["4.*"],  # what is frozen costs no backward pass
        time_limit_seconds=5.0,
    )
    planned.save(plan)
    best, waited, accuracy, epoch = float("inf"), 0, 0.0, 0
    with Trainer.open(plan, seed=0) as trainer:
        while epoch < most_epochs and waited < patience:
            order = torch.randperm(1500, generator=torch.Generator().manual_seed(epoch))
            for chosen in order.split(BATCH):  # type: ignore[no-untyped-call]
                trainer.step(images[chosen], labels[chosen])
            epoch += 1
            unseen = range(1500, len(labels), BATCH)
            found = trainer.evaluate((images[at : at + BATCH], labels[at : at + BATCH]) for at in unseen)
            waited = 0 if found.loss is not None and found.loss < best else waited + 1
            if waited == 0 and found.loss is not None:
                best, accuracy = found.loss, found.metrics["accuracy"] or 0.0
                trainer.save(f"{plan}.best", keep_previous=True)
    print(f"{epoch} epochs, accuracy {100 * accuracy:.1f} % at the best loss, {best:.3f}")
    return accuracy, epoch


if __name__ == "__main__":
    main(*sys.argv[1:2])
