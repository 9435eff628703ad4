"""Fine-tuning on single samples as they stream in: a net that learned some digits meets another hand.

python examples/streamed_samples.py [PLAN]
"""

import sys
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn

import poet
from poet.runtime import Trainer


def main(plan: str = "streamed.poet", *, samples: int = 600) -> tuple[float, float]:
    """Train on one image after the other; the share that was told right before and after the stream."""
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.from_numpy(digits.images).float().flatten(1) / 16
    labels = torch.from_numpy(digits.target)
    net = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
    planned = poet.plan(
        net, images[:1], device="rpi4b", ram="64KiB", optimizer="momentum:lr=0.01", time_limit_seconds=5.0
    )
    planned.save(plan)
    with Trainer.open(plan, seed=0) as trainer:
        before = accuracy(trainer, images[1500:], labels[1500:])
        for number in range(samples):
            trainer.step(images[number : number + 1], labels[number : number + 1])
        after = accuracy(trainer, images[1500:], labels[1500:])
        trainer.save(Path(plan).with_suffix(".safetensors"))
    print(f"accuracy {100 * before:.1f} % before, {100 * after:.1f} % after {samples} samples")
    return before, after


def accuracy(trainer: Trainer, images: torch.Tensor, labels: torch.Tensor) -> float:
    """The share that is told right, by the plan's evaluation."""
    batches = ((images[n : n + 1], labels[n : n + 1]) for n in range(len(images)))
    return trainer.evaluate(batches, ["accuracy"]).metrics["accuracy"] or 0.0


if __name__ == "__main__":
    main(*sys.argv[1:2])
