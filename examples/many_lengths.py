"""Sequences of many lengths in one plan: an LSTM reads digits row by row, some of them cut off.

python examples/many_lengths.py [PLAN]
"""

import sys

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import poet
from poet.runtime import Trainer

LENGTHS = (8, 7, 6)
BATCH = 25


class RowReader(nn.Module):
    """Class scores of a digit from the rows that were read."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.LSTM(8, 48, batch_first=True)
        self.head = nn.Linear(48, 10)

    def forward(self, rows: Tensor) -> Tensor:
        """Scores [N,10] of rows [N,L,8]."""
        states, _ = self.rows(rows)
        scores: Tensor = self.head(states[:, -1])
        return scores


def main(plan: str = "lengths.poet", *, epochs: int = 12) -> dict[int, float]:
    """Train on batches of every length in turn; the accuracy on unseen digits for each length."""
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.from_numpy(digits.images).float() / 16
    labels = torch.from_numpy(digits.target)
    longest, *others = (images[:BATCH, :length].clone() for length in LENGTHS)
    planned = poet.plan(
        RowReader(),
        longest,
        device="x86-host",
        ram="2MiB",
        optimizer=poet.OptimizerSpec("adamw", lr=0.01),
        shapes=others,
        time_limit_seconds=5.0,
    )
    planned.save(plan)
    with Trainer.open(plan, seed=0) as trainer:
        for epoch in range(epochs):
            order = torch.randperm(1500, generator=torch.Generator().manual_seed(epoch))
            for number, chosen in enumerate(order.split(BATCH)):  # type: ignore[no-untyped-call]
                length = LENGTHS[number % len(LENGTHS)]
                trainer.step(images[chosen, :length], labels[chosen])
        unseen = range(1500, 1775, BATCH)
        found = {}
        for length in LENGTHS:
            batches = ((images[at : at + BATCH, :length], labels[at : at + BATCH]) for at in unseen)
            found[length] = trainer.evaluate(batches, ["accuracy"]).metrics["accuracy"] or 0.0
            print(f"{length} rows: accuracy {100 * found[length]:.1f} %")
    return found


if __name__ == "__main__":
    main(*sys.argv[1:2])
