"""Micro-batches of a BERT-like net at home in storage: what is paged per sample, in both orders.

python tests/benchmarks/micro_batches.py [--ram 3MiB] [--micro 1,2,2:layers,4,4:layers]    prints the table
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

import poet
from poet.micro import MicroBatches
from poet.units import format_bytes, format_joules, format_seconds

SAMPLES, LENGTH, WORDS, WIDTH, LAYERS = 8, 32, 1000, 128, 4


class Encoder(nn.Module):
    """Words and places to a class, by four encoder layers without dropout."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.02)
        layer = nn.TransformerEncoderLayer(
            WIDTH, 4, 4 * WIDTH, batch_first=True, dropout=0.0, activation="gelu"
        )
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, words: Tensor) -> Tensor:
        made: Tensor = self.head(self.layers(self.words(words) + self.places)[:, 0])
        return made


def line(module: nn.Module, asked: str, ram: str, seconds: float) -> str:
    """A line of the table: ``asked`` micro-batches inside ``ram``, searched for so many ``seconds``."""
    words = torch.randint(WORDS, (SAMPLES, LENGTH))
    try:
        found = poet.plan(
            module,
            words,
            device="rpi4b",
            ram=ram,
            micro=MicroBatches.parse(asked),
            home="storage",
            optimizer="momentum",
            time_limit_seconds=seconds,
            measure_host=False,
            evaluation=False,
        )
    except (poet.Infeasible, poet.OutOfTime) as error:
        return f"| {asked} | {error} | | | | |"
    plan = found.plan
    read = sum(run.trace.read_bytes * times for run, times in plan.runs)
    recomputed = sum(run.trace.recomputed_runs * times for run, times in plan.runs)
    per_sample = (format_bytes(amount // SAMPLES) for amount in (read, plan.step_written_bytes))
    cells = (
        asked,
        *per_sample,
        str(recomputed),
        format_joules(plan.step_joules),
        format_seconds(plan.step_seconds),
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ram", default="3MiB")
    parser.add_argument("--micro", default="1,2,2:layers,4,4:layers,8,8:layers")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each search")
    arguments = parser.parse_args()
    module = Encoder()
    weights = format_bytes(sum(item.nbytes for item in module.parameters()))
    print(f"{weights} of weights, as much of momentum; batch {SAMPLES}, {arguments.ram}, rpi4b\n")
    print(
        "| micro-batches | read per sample | written per sample | recomputed runs | energy per step | time |"
    )
    print("|---|---|---|---|---|---|")
    for asked in arguments.micro.split(","):
        print(line(module, asked, arguments.ram, arguments.seconds), flush=True)


if __name__ == "__main__":
    main()
