"""A lean process that makes training steps one at a time, when asked: by plain PyTorch or by a plan.

    python benchmarks/step_worker.py plain|PLAN.poet NET THREADS FOLDER

Commands come on stdin, one per line, and answers go to stdout as JSON: ``step`` makes a step and tells its
loss and seconds, of a plan's step its own and the processor's as well, ``peak`` makes three of a plan and
tells the most memory they held, ``digest`` hashes the parameters.
Every kind starts from the same weights (seed 0), takes the batch in ``FOLDER/batch.pt`` and draws dropout
from seed 0, so equal steps give equal digests.
"""

from __future__ import annotations

import functools
import hashlib
import json
import sys
import time
from abc import abstractmethod
from pathlib import Path
from typing import Protocol

import torch
from torch import nn
from torch.nn import functional
from zoo import NETS, Size
from zoo.sequence import Bert
from zoo.vision import ResNet, UNet

from poet.runtime import Trainer, native
from poet.runtime.system.memory import PeakMeter

_IMAGE = (3, 32, 32)
SIZES: dict[str, tuple[Size, str]] = {
    "resnet18-cifar": (Size(ResNet, _IMAGE, classes=10), "cross-entropy"),
    "resnet18-imagenet": (NETS["resnet18"].full, "cross-entropy"),
    "mobilenet-v2": (NETS["mobilenet_v2"].full, "cross-entropy"),
    "bert": (
        Size(
            functools.partial(Bert, layers=6, width=256, heads=4, words=8192, length=128),
            (128,),
            words=8192,
            classes=2,
        ),
        "cross-entropy",
    ),
    "unet": (Size(functools.partial(UNet, width=16), (3, 128, 128), (1, 128, 128)), "bce-with-logits"),
}
"""The nets of the runtime table, and the losses they are trained with."""
_PEAK_STEPS = 3


def net(name: str) -> nn.Module:
    """With the same weights each time, in training mode."""
    torch.manual_seed(0)
    return SIZES[name][0].build().train()


def make_batch(name: str, batch: int, folder: Path) -> None:
    """Write the batch that every kind takes."""
    torch.manual_seed(1)
    size = SIZES[name][0]
    torch.save([*size.inputs(batch), size.targets(batch)], folder / "batch.pt")


class Stepper(Protocol):
    """One kind of training."""

    @abstractmethod
    def step(self) -> dict[str, float]:
        """Make a step; its loss and seconds."""

    @abstractmethod
    def parameters(self) -> dict[str, torch.Tensor]:
        """As they are now."""


class Plain:
    """Plain PyTorch with SGD and momentum."""

    def __init__(self, name: str, tensors: list[torch.Tensor]) -> None:
        self._module = net(name)
        self._inputs, self._targets = tensors[:-1], tensors[-1]
        self._loss = SIZES[name][1]
        self._optimizer = torch.optim.SGD(self._module.parameters(), lr=1e-3, momentum=0.9)
        torch.manual_seed(0)

    def step(self) -> dict[str, float]:
        begin = time.perf_counter()
        self._optimizer.zero_grad()
        outputs = self._module(*self._inputs)
        if self._loss == "bce-with-logits":
            loss = functional.binary_cross_entropy_with_logits(outputs, self._targets)
        else:
            loss = functional.cross_entropy(outputs, self._targets)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return {"loss": loss.item(), "seconds": time.perf_counter() - begin}

    def parameters(self) -> dict[str, torch.Tensor]:
        return dict(self._module.named_parameters())


class Planned:
    """A plan, by `poet.runtime` alone."""

    def __init__(self, path: Path, tensors: list[torch.Tensor], *, arena: bool) -> None:
        self._trainer = Trainer.open(path, page_file=path.with_suffix(".pages"), seed=0, arena=arena)
        self._inputs, self._targets = tensors[:-1], tensors[-1]

    def step(self) -> dict[str, float]:
        begin = time.thread_time()
        result = self._trainer.step(self._inputs, self._targets)
        return {
            "loss": result.loss,
            "seconds": result.seconds,
            "own_seconds": result.own_seconds,
            "processor_seconds": time.thread_time() - begin,
        }

    def parameters(self) -> dict[str, torch.Tensor]:
        return self._trainer.parameters()

    def peak(self) -> dict[str, object]:
        """The allocator's count, and the kernel's high-water mark."""
        trainer = self._trainer
        allocator = native.load()
        assert allocator is not None
        with PeakMeter(trainer.held_bytes) as meter:
            for _ in range(_PEAK_STEPS):
                self.step()
        with allocator.tracking() as tracked:
            held = trainer.held_bytes
            self.step()
            strays = tracked.usage().heap_peak_bytes - tracked.usage().heap_bytes
        placed = trainer._tensors.placed
        return {
            "counted_bytes": held + max(strays, 0),
            "kernel_bytes": meter.peak.bytes,
            "memory": trainer.memory,
            "misses": 0 if placed is None else placed.misses,
        }


def main() -> None:
    """Serve commands until stdin ends."""
    kind, name, threads, folder = sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])
    torch.set_num_threads(threads)
    tensors = torch.load(folder / "batch.pt", weights_only=True)
    stepper: Stepper
    if kind.removesuffix("+heap").endswith(".poet"):
        stepper = Planned(Path(kind.removesuffix("+heap")), tensors, arena=not kind.endswith("+heap"))
    else:
        stepper = Plain(name, tensors)
    for line in sys.stdin:
        command = line.strip()
        if command == "step":
            answer: dict[str, object] = {**stepper.step()}
        elif command == "peak":
            assert isinstance(stepper, Planned)
            answer = stepper.peak()
        else:
            digest = hashlib.sha256()
            for key, tensor in sorted(stepper.parameters().items()):
                digest.update(key.encode() + tensor.detach().contiguous().numpy().tobytes())
            answer = {"digest": digest.hexdigest()}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
