"""A plain training loop with `poet.wrap`: its own loss, optimizer and data loader, inside a RAM budget.

python examples/wrapped_loop.py [RAM]
"""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import poet


def main(ram: str = "500KiB", *, epochs: int = 6) -> float:
    """Train on the digits of scikit-learn; the accuracy on the last 297 of them."""
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.from_numpy(digits.images).float().unsqueeze(1) / 16
    labels = torch.from_numpy(digits.target)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Flatten(), nn.Dropout(0.2), nn.Linear(512, 10),
    )  # fmt: skip
    training = TensorDataset(images[:1500], labels[:1500])
    loader = DataLoader(training, batch_size=25, shuffle=True, drop_last=True)

    wrapped = poet.wrap(net, images[:25], ram=ram, time_limit_seconds=5.0)  # the one line that is new

    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * len(loader))
    for epoch in range(epochs):
        wrapped.train()
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = cross_entropy(wrapped(inputs), targets)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            scheduler.step()
        wrapped.eval()
        with torch.no_grad():
            right = wrapped(images[1500:]).argmax(1) == labels[1500:]
        print(
            f"epoch {epoch + 1}: loss {loss.item():.4f}, accuracy {100 * right.float().mean().item():.1f} %"
        )
    wrapped.close()
    return float(right.float().mean())


if __name__ == "__main__":
    main(*sys.argv[1:2])
