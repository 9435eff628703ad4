"""`poet.torch_solver` beside torch's own solvers of the partitioner: measured peak and time of steps.

    python tests/benchmarks/torch_solver.py [NET:SIZE:BATCH ...] [--budgets 10] [--threads 1] [--steps 5]

Each net is compiled by ``aot_eager`` for budgets in bytes between the least that the pool of sets reaches and
what it takes unlimited, and with torch's solvers at as many fractions. The peak is what torch's allocator
handed out at most in a step, parameters and the batch included; the time is the median of the steps, of
processor time. Ends with an error where a peak of poet's rises as the budget falls.
"""

from __future__ import annotations

import argparse
import copy
import functools
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn
from torch._functorch import config as functorch_config
from torch.nn import functional
from zoo import NETS, Size

import poet
from poet.runtime import native
from poet.units import format_bytes, format_seconds

ROWS = (
    "resnet18:medium:4", "mobilenet_v2:medium:4", "bert:medium:2", "vit:small:16", "unet:small:8",
    "convnext:small:16",
)  # fmt: skip
PEERS = ("dp", "greedy")
_RISE = 1.005  # of a peak, by which the heap's blocks may differ


def measured(
    size: Size, batch: int, steps: int, context: Callable[[], AbstractContextManager[object]]
) -> tuple[int, float]:
    """Peak bytes and seconds of a step of the net, compiled inside of ``context``."""
    torch.manual_seed(0)
    inputs, targets = size.inputs(batch), size.targets(batch)
    allocator = native.load()
    assert allocator is not None, native.why_unavailable()
    torch._dynamo.reset()
    held = sum(item.nbytes for item in (*inputs, targets))
    with context(), allocator.tracking() as tracked:
        module = copy.deepcopy(size.build().train())
        compiled = torch.compile(module, backend="aot_eager")
        seconds = []
        for number in range(steps + 1):
            began = time.thread_time()
            step(compiled, module, inputs, targets)
            if number:
                seconds.append(time.thread_time() - began)
        return tracked.peak_bytes + held, statistics.median(seconds)


def step(
    compiled: Callable[..., Tensor], module: nn.Module, inputs: Sequence[Tensor], targets: Tensor
) -> None:
    """Forward, loss and backward."""
    module.zero_grad()
    output = compiled(*inputs)
    if targets.is_floating_point():
        loss = functional.binary_cross_entropy_with_logits(output, targets)
    else:
        loss = functional.cross_entropy(output, targets)
    torch.autograd.backward(loss)


def row(name: str, size: Size, batch: int, budgets: int, steps: int) -> bool:
    """Print one net's lines; whether no peak of poet's rose."""
    unlimited, least = poet.torch_solver(1 << 60), poet.torch_solver(1)
    most_bytes, _ = measured(size, batch, steps, unlimited.used)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        measured(size, batch, steps, least.used)
    least_bytes = max(choice.peak_bytes for choice in least.choices)
    above = max(choice.peak_bytes for choice in unlimited.choices)
    peaks = []
    for number in range(budgets):
        ram_bytes = int(above - (above - least_bytes) * number / max(budgets - 1, 1))
        solver = poet.torch_solver(ram_bytes)
        peak_bytes, seconds = measured(size, batch, steps, solver.used)
        peaks.append(peak_bytes)
        said = max(choice.peak_bytes for choice in solver.choices)
        print(
            f"{name} poet {format_bytes(ram_bytes)}: by the walk {format_bytes(said)}, peak "
            f"{format_bytes(peak_bytes)}, step {format_seconds(seconds)}",
            flush=True,
        )
    for peer in PEERS:
        for number in range(budgets):
            fraction = 1.0 - number / budgets
            patched = functools.partial(
                functorch_config.patch,
                activation_memory_budget=fraction,
                activation_memory_budget_solver=peer,
            )
            peak_bytes, seconds = measured(size, batch, steps, patched)
            print(
                f"{name} {peer} {fraction:.2f}: peak {format_bytes(peak_bytes)}, "
                f"step {format_seconds(seconds)}",
                flush=True,
            )
    rises = [after > _RISE * before for before, after in zip([most_bytes, *peaks], peaks, strict=False)]
    return not any(rises[1:])


def main(arguments: Sequence[str]) -> int:
    """Print every net's lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", default=ROWS)
    parser.add_argument("--budgets", type=int, default=10)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(chosen.threads)
    fell = True
    for text in chosen.rows:
        net, size, batch = text.split(":")
        fell &= row(text, NETS[net].sizes[size], int(batch), chosen.budgets, chosen.steps)
    print("no peak of poet's rose as the budget fell" if fell else "A PEAK ROSE AS THE BUDGET FELL")
    return 0 if fell else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
