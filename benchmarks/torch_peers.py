"""Against torch's own ways to save memory, each at the peak that it needs itself.

    python -m benchmarks torch-peers [NET:BATCH ...] [--threads 1]

The peers are `torch.utils.checkpoint` around every block of a net, and the partitioner behind
``torch._functorch.config.activation_memory_budget`` (compiled by ``aot_eager``). A peer's peak is what
torch's allocator handed out at most, parameters, optimizer state and hidden temporaries included. A plan
is made for that many bytes, in least time by the figures of ``x86-host``, and both make steps in turn: a
ratio below 1 says that the plan is faster. Peers that gave no step are listed with why.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from step_worker import SIZES, make_batch
from step_worker import net as build
from workers import WARM_STEPS, Worker, paired, ratio

from poet import api
from poet.api import Prepared
from poet.errors import PoetError
from poet.problem import Limits, Objective
from poet.problem.solution import SolveOptions
from poet.util.units import format_bytes, format_seconds

ROWS = ("resnet18-cifar:8", "mobilenet-v2:8", "bert:8", "unet:1")
PEERS = ("checkpoint", "budget:0.7", "budget:0.4", "budget:0.1")
SOLVE_SECONDS, PAIR_SECONDS = 10.0, 8.0


def prepared_for(net: str, batch: int) -> Prepared:
    """The training step at the times of ``x86-host``."""
    size, loss = SIZES[net]
    return api.prepare(build(net), size.inputs(batch), device="x86-host", loss=loss, optimizer="momentum")


def compare(peer: str, prepared: Prepared, net: str, threads: int, folder: Path) -> str:
    """One line: the peer's peak, the plan's, and the ratio of their steps."""
    with Worker(f"{peer}+counted", net, threads, folder) as counted:
        peak_bytes = counted.ask("peak")["counted_bytes"]
    planned = api.plan_step(
        prepared,
        Limits(ram_budget_bytes=peak_bytes),
        SolveOptions(time_limit_seconds=SOLVE_SECONDS, objective=Objective.TIME),
    )
    path = folder / "peer.poet"
    planned.save(path)
    with Worker(str(path), net, threads, folder) as mine, Worker(peer, net, threads, folder) as other:
        for _ in range(WARM_STEPS):
            mine.ask("step"), other.ask("step")
        times = paired(mine, other, seconds=PAIR_SECONDS)
        peak = mine.ask("peak")
    steps = [format_seconds(statistics.median(side)) for side in times]
    return (
        f"peak {format_bytes(peak_bytes)}, the plan's {format_bytes(peak['counted_bytes'])} "
        f"({peak['memory']}); "
        f"step {steps[1]}, the plan's {steps[0]}; ratio {ratio(times):.2f} over {len(times[0])} pairs"
    )


def main(arguments: Sequence[str]) -> None:
    """Print one line per peer and row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", default=ROWS)
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(chosen.threads)
    for row in chosen.rows:
        net, batch = row.split(":")
        with tempfile.TemporaryDirectory(dir=".") as temporary:
            folder = Path(temporary).resolve()
            make_batch(net, int(batch), folder)
            prepared = prepared_for(net, int(batch))
            for peer in PEERS:
                try:
                    said = compare(peer, prepared, net, chosen.threads, folder)
                except (PoetError, RuntimeError) as error:
                    said = str(error)
                print(f"{row}  {peer}: {said}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
