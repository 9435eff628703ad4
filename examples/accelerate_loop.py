"""A loop with Accelerate inside a RAM budget: accumulation, clipping and a schedule stay the loop's.

pip install '.[huggingface]'
python examples/accelerate_loop.py [RAM]
"""

from __future__ import annotations

import sys

import torch
from accelerate import Accelerator
from huggingface_trainer import Samples, vit
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

import poet


def main(ram: str | int | None = "4MiB", *, epochs: int = 2) -> list[float]:
    """Train; the loss of each step. Without ``ram``: plain."""
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = vit(64, 2).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(Samples("vit", 36, 64), batch_size=8, shuffle=True)
    schedule = LambdaLR(optimizer, lambda step: 0.9**step)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)

    if ram is not None:
        poet.plan_forward(model, ram=ram, time_limit_seconds=5.0)  # the one line that is new

    losses = []
    for _ in range(epochs):
        for batch in loader:
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
                losses.append(loss.item())
    print(f"{len(losses)} batches, loss {losses[0]:.4f} to {losses[-1]:.4f}")
    return losses


if __name__ == "__main__":
    main(*sys.argv[1:2])
