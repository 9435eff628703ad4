"""PyTorch Lightning trains a net inside a RAM budget: its Trainer, callbacks and schedulers stay as they are.

pip install pytorch-lightning
python examples/lightning_loop.py [RAM]
"""

import sys
from typing import Any

import pytorch_lightning as lightning
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import poet


class Digits(lightning.LightningModule):  # type: ignore[misc]
    """A net for the digits of scikit-learn; ``ram``: inside so much, ``None``: as it is."""

    def __init__(self, ram: str | None, example: Tensor) -> None:
        super().__init__()
        net = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
            nn.Flatten(), nn.Dropout(0.2), nn.Linear(512, 10),
        )  # fmt: skip
        self.net = net if ram is None else poet.wrap(net, example, ram=ram, time_limit_seconds=5.0)
        self.losses: list[float] = []
        self.right = 0.0

    def training_step(self, batch: tuple[Tensor, Tensor], number: int) -> Tensor:
        """The loss of a batch."""
        loss = cross_entropy(self.net(batch[0]), batch[1])
        self.losses.append(float(loss.detach()))
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], number: int) -> None:
        """How many are told right."""
        self.right += float((self.net(batch[0]).argmax(1) == batch[1]).sum())

    def on_validation_epoch_start(self) -> None:
        """Count anew."""
        self.right = 0.0

    def configure_optimizers(self) -> Any:
        """Momentum, with a learning rate that falls."""
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
        return {"optimizer": optimizer, "lr_scheduler": schedule}


def main(ram: str | None = "500KiB", *, epochs: int = 3) -> tuple[list[float], float]:
    """Train; the loss of each step, and the share of unseen digits that is told right."""
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.from_numpy(digits.images).float().unsqueeze(1) / 16
    labels = torch.from_numpy(digits.target)
    module = Digits(ram, images[:25])
    torch.manual_seed(1)
    training = DataLoader(TensorDataset(images[:1500], labels[:1500]), batch_size=25, shuffle=True)
    unseen = DataLoader(TensorDataset(images[1500:1775], labels[1500:1775]), batch_size=25)
    trainer = lightning.Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
    )  # fmt: skip
    trainer.fit(module, training, unseen)
    print(f"{len(module.losses)} steps, accuracy {100 * module.right / 275:.1f} %")
    return module.losses, module.right / 275


if __name__ == "__main__":
    main(*sys.argv[1:2])
