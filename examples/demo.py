"""The whole way on a real model: export, plan for a Raspberry Pi 4B, look at it, train with paging, verify.

A ResNet-18 in plain torch (32x32 input) is exported to ONNX and trained on scikit-learn's digits with
momentum, in less than half of the RAM that plain training needs, and evaluated after each epoch inside the
same RAM. All but the first and the last stage are commands, each a process of its own: training happens in a
lean process that has never seen the model's code. The long demo takes a net of twice the width, lists the
budgets that make sense, and puts the trained weights into the ONNX file again.

    python examples/demo.py [--long] [--folder .demo]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from sklearn.datasets import load_digits
from torch import Tensor
from zoo import export
from zoo.vision import ResNet

EPOCHS = 3
QUESTION = ("resnet18.onnx", "--device", "rpi4b", "--bind", "N=16", "--optimizer", "momentum", "--lr", "0.02")


@dataclass(frozen=True, slots=True)
class Size:
    """How much the demo does.

    Attributes:
        width: channels of the net's first stage; 64 is the usual ResNet-18.
        trained, held_out: samples.
        ram: the budget, as ``--ram`` takes it.
        verified: more arguments of ``poet verify``.
        about_seconds: what each stage takes on two cores, by its name.
    """

    width: int
    trained: int
    held_out: int
    ram: str
    verified: tuple[str, ...]
    about_seconds: dict[str, int]


SHORT = Size(
    16, 512, 256, "11MiB", ("--steps", "1", "--threads", "1"),
    {"export": 6, "plan": 16, "picture": 1, "train": 14, "verify": 6},
)  # fmt: skip
LONG = Size(
    32, 768, 1024, "33MiB", ("--steps", "2"),
    {"export": 6, "budgets": 40, "plan": 30, "picture": 1, "train": 60, "verify": 20, "export back": 5},
)  # fmt: skip


def model(width: int) -> ResNet:
    """The net, with the same first weights each time."""
    torch.manual_seed(0)
    return ResNet(width=width)


def digits() -> tuple[Tensor, Tensor]:
    """1,797 images of handwritten digits as [N, 3, 32, 32] in -1..1, shuffled, and their classes."""
    images, classes = load_digits(return_X_y=True)
    small = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 8 - 1
    large = F.interpolate(small, (32, 32), mode="bilinear").expand(-1, 3, -1, -1)
    order = torch.randperm(len(large), generator=torch.Generator().manual_seed(0))
    return large[order].contiguous(), torch.tensor(classes)[order]


def run(folder: Path, *command: str, until: str | None = None) -> None:
    """Run a command in ``folder`` and show it and what it prints, up to a line that begins with ``until``.

    Ends the demo where the command fails.
    """
    print(f"$ {' '.join(command)}", flush=True)
    program = Path(sys.executable) if command[0] == "python" else Path(sys.executable).with_name(command[0])
    # one thread: measured and predicted times compare, whatever else the machine is doing
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE if until else None
    with subprocess.Popen(
        [program, *command[1:]], cwd=folder, env=environment, stdout=pipe, text=True
    ) as process:
        is_shown = True
        for line in process.stdout or ():
            is_shown = is_shown and not line.startswith(str(until))
            print(line if is_shown else "", end="", flush=True)
    if process.returncode != 0:
        sys.exit(process.returncode)


def accuracy(net: ResNet, images: Tensor, classes: Tensor) -> float:
    """Share of images that ``net`` classifies right."""
    net.eval()
    with torch.no_grad():
        return float((net(images).argmax(1) == classes).float().mean())


def write_inputs(folder: Path, size: Size) -> tuple[Tensor, Tensor]:
    """The ONNX file and the samples; the held-out images and classes."""
    images, classes = digits()
    export(model(size.width), (images[:2],), folder / "resnet18.onnx")
    last = size.trained + size.held_out
    for name, part in {"digits": slice(size.trained), "held_out": slice(size.trained, last)}.items():
        np.savez(folder / f"{name}.npz", inputs=images[part].numpy(), targets=classes[part].numpy())
    return images[size.trained : last], classes[size.trained : last]


class Stages:
    """Says what each stage does and about how long it takes, and then how long it took."""

    def __init__(self, about_seconds: dict[str, int]) -> None:
        self.about_seconds = about_seconds
        self.started = time.perf_counter()
        self.names = list(about_seconds)
        total = sum(about_seconds.values())
        print(f"{len(self.names)} stages, about {total} s on two cores: {', '.join(self.names)}")

    @contextmanager
    def stage(self, name: str, what: str) -> Iterator[None]:
        """The stage of this name, if the demo has it."""
        began = time.perf_counter()
        number = f"{self.names.index(name) + 1}/{len(self.names)}"
        print(f"\n[{number}] {name}: {what} (about {self.about_seconds[name]} s)", flush=True)
        yield
        now = time.perf_counter()
        print(f"[{number}] {name} took {now - began:.0f} s, {now - self.started:.0f} s so far", flush=True)


def main() -> None:
    """Run the demo."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--folder", type=Path, default=Path(".demo"))
    parser.add_argument("--long", action="store_true", help="a net of twice the width, and more stages")
    arguments = parser.parse_args()
    folder, size = arguments.folder, LONG if arguments.long else SHORT
    folder.mkdir(parents=True, exist_ok=True)
    stages = Stages(size.about_seconds)

    with stages.stage("export", "a ResNet-18 in plain torch as ONNX, and scikit-learn's digits"):
        held_out = write_inputs(folder, size)
        before = accuracy(model(size.width), *held_out)
        print(f"accuracy on {len(held_out[1])} held-out images before training: {before:.1%}")
    if arguments.long:
        with stages.stage("budgets", "which budgets of RAM make sense, and what each costs"):
            run(folder, "poet", "solve", *QUESTION, "--time-limit", "10s")
    with stages.stage("plan", f"the training step inside {size.ram} of RAM on a Raspberry Pi 4B"):
        limit = "20s" if arguments.long else "5s"
        asked = ("--ram", size.ram, "--time-limit", limit, "-o", "plan.poet")
        run(folder, "poet", "solve", *QUESTION, *asked, until="RAM at the peak (")
    with stages.stage("picture", "RAM over the step, plain and planned"):
        picture = str(Path(__file__).resolve().with_name("ram_picture.py"))
        run(folder, "python", os.path.relpath(picture, folder), "plan.poet", "-o", "ram.svg")
        print(f"open {folder / 'ram.svg'}")
    with stages.stage("train", f"{EPOCHS} epochs by the plan, paging to a file, evaluated after each"):
        run(
            folder, "poet", "run", "plan.poet", "--data", "digits.npz", "--epochs", str(EPOCHS),
            "--page-file", "pages.bin", "--validate", "held_out.npz", "--best", "best.safetensors",
            "-o", "trained.safetensors",
        )  # fmt: skip
        trained = model(size.width)
        weights = load_file(folder / "best.safetensors")
        names = trained.state_dict().keys() & weights.keys()  # ONNX has no batch counters
        trained.load_state_dict({name: weights[name] for name in names}, strict=False)
        after = accuracy(trained, *held_out)
        print(f"the trained weights in the original torch module: {after:.1%} of held-out images right")
    with stages.stage("verify", "are loss, gradients and parameters those of plain PyTorch, bit for bit?"):
        run(folder, "poet", "verify", "plan.poet", *size.verified)
    if arguments.long:
        with stages.stage("export back", "the trained weights in the ONNX file"):
            back = ("--state", "best.safetensors", "-o", "trained.onnx")
            run(folder, "poet", "export", "onnx", "plan.poet", *back)


if __name__ == "__main__":
    main()
