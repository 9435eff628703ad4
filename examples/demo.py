"""The whole way on a real model: export, plan for a Raspberry Pi 4B, train with paging, verify.

A ResNet-18 in plain torch (32x32 input, half the usual width) is exported to ONNX and trained on
scikit-learn's digits with momentum, in less than half of the RAM that plain training needs, and
evaluated after each epoch inside the same RAM. The trained weights end in the ONNX file again. Every
step but the first and the last is a `poet` command, run as a process of its own, so that training
happens in a lean process that has never seen the model's code.

    python examples/demo.py [--folder .demo] [--epochs 3]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from sklearn.datasets import load_digits
from torch import Tensor
from zoo import export
from zoo.vision import ResNet

BATCH = 16
TRAINED_SAMPLES = 768
RAM = "33MiB"


def model() -> ResNet:
    """The net, with the same first weights each time."""
    torch.manual_seed(0)
    return ResNet(width=32)


def digits() -> tuple[Tensor, Tensor]:
    """1,797 images of handwritten digits as [N, 3, 32, 32] in -1..1, shuffled, and their classes."""
    images, classes = load_digits(return_X_y=True)
    small = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 8 - 1
    large = F.interpolate(small, (32, 32), mode="bilinear").expand(-1, 3, -1, -1)
    order = torch.randperm(len(large), generator=torch.Generator().manual_seed(0))
    return large[order].contiguous(), torch.tensor(classes)[order]


def poet(folder: Path, *arguments: str) -> None:
    """Run a poet command in ``folder`` and show it; stop the demo where it fails."""
    print(f"\n$ poet {' '.join(arguments)}", flush=True)
    command = [str(Path(sys.executable).with_name("poet")), *arguments]
    # one thread: measured and predicted times compare, whatever else the machine is doing
    done = subprocess.run(command, cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False)
    if done.returncode != 0:
        sys.exit(done.returncode)


def accuracy(net: ResNet, images: Tensor, classes: Tensor) -> float:
    """Share of images that ``net`` classifies right."""
    net.eval()
    with torch.no_grad():
        return float((net(images).argmax(1) == classes).float().mean())


def main() -> None:
    """Run the demo."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--folder", type=Path, default=Path(".demo"))
    parser.add_argument("--epochs", type=int, default=3)
    arguments = parser.parse_args()
    folder, started = arguments.folder, time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)

    images, classes = digits()
    held_out = images[TRAINED_SAMPLES:], classes[TRAINED_SAMPLES:]
    export(model(), (images[:2],), folder / "resnet18.onnx")
    parts = {"digits.npz": slice(None, TRAINED_SAMPLES), "held_out.npz": slice(TRAINED_SAMPLES, None)}
    for name, part in parts.items():
        np.savez(folder / name, inputs=images[part].numpy(), targets=classes[part].numpy())
    print(
        f"accuracy on {len(held_out[1])} held-out images before training: {accuracy(model(), *held_out):.1%}"
    )

    question = [
        "resnet18.onnx", "--device", "rpi4b", "--bind", f"N={BATCH}", "--optimizer", "momentum",
        "--lr", "0.02",
    ]  # fmt: skip
    poet(folder, "solve", *question, "--time-limit", "10s")
    poet(folder, "solve", *question, "--ram", RAM, "--time-limit", "20s", "-o", "plan.poet")
    poet(
        folder, "run", "plan.poet", "--data", "digits.npz", "--epochs", str(arguments.epochs),
        "--page-file", "pages.bin", "--validate", "held_out.npz", "--best", "best.safetensors",
        "-o", "trained.safetensors",
    )  # fmt: skip
    poet(folder, "verify", "plan.poet", "--steps", "2")
    poet(folder, "export", "onnx", "plan.poet", "--state", "best.safetensors", "-o", "trained.onnx")

    trained = model()
    weights = load_file(folder / "best.safetensors")
    names = trained.state_dict().keys() & weights.keys()  # ONNX has no batch counters
    trained.load_state_dict({name: weights[name] for name in names}, strict=False)
    print(f"\nthe trained weights in the original torch module: {accuracy(trained, *held_out):.1%} of the")
    print(
        f"{len(held_out[1])} held-out images right; {folder / 'trained.onnx'} has them, "
        f"{time.perf_counter() - started:.0f} s after the start"
    )


if __name__ == "__main__":
    main()
