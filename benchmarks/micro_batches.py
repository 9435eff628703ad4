"""Micro-batches: what a batch in k pieces costs a ViT in little RAM, and what a BERT in storage pages.

    python -m benchmarks micro-batches [--vit 1,8] [--bert 1,2,4] [--write]

``--write`` writes results/micro-batches.json.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

import torch
from result_file import RESULTS, write
from torch import Tensor, nn
from zoo import NETS

import poet
from poet.ir.micro import MicroBatches
from poet.planning.prepared import prepare
from poet.util.units import format_bytes, format_joules, format_seconds, format_share

PAGE = RESULTS / "micro-batches.json"
SAMPLES, LENGTH, WORDS, WIDTH, LAYERS = 8, 32, 1000, 128, 4
VIT_RAM, BERT_RAM = "72MiB", "3MiB"
COLUMNS = (
    "micro-batches", "read per sample", "written per sample", "recomputed runs", "energy per step", "time",
)  # fmt: skip


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


def vit_rows(asked: Sequence[str], seconds: float) -> list[str]:
    """A row per number of micro-batches: the energy of a step above running the whole batch once."""
    net = NETS["vit"].full
    module, (images,) = net.build().train(), net.inputs(SAMPLES)
    whole = prepare(module, images, device="rpi4b-xnnpack")
    once_joules = whole.problem.compute_joules
    rows = []
    for text in asked:
        try:
            plan = poet.plan(
                module,
                images,
                device="rpi4b-xnnpack",
                ram=VIT_RAM,
                micro=MicroBatches.parse(text),
                paging=False,
                evaluation=False,
                time_limit_seconds=seconds,
            ).plan
        except (poet.Infeasible, poet.OutOfTime) as error:
            rows.append(f"| {text} | {error} | | | |")
            continue
        recomputed = sum(run.trace.recomputed_runs * times for run, times in plan.runs)
        cells = (
            text,
            format_share(plan.step_joules / once_joules - 1.0),
            format_joules(plan.step_joules),
            str(recomputed),
            plan.outcome.status,
        )
        rows.append(f"| {' | '.join(cells)} |")
        print(rows[-1], flush=True)
    return rows


def bert_rows(asked: Sequence[str], seconds: float) -> list[str]:
    """A row per number of micro-batches: what is paged per sample."""
    module, words = Encoder(), torch.randint(WORDS, (SAMPLES, LENGTH))
    rows = []
    for text in asked:
        try:
            plan = poet.plan(
                module,
                words,
                device="rpi4b",
                ram=BERT_RAM,
                micro=MicroBatches.parse(text),
                home="storage",
                optimizer="momentum",
                time_limit_seconds=seconds,
                evaluation=False,
            ).plan
        except (poet.Infeasible, poet.OutOfTime) as error:
            rows.append(f"| {text} | {error} | | | | |")
            continue
        read = sum(run.trace.read_bytes * times for run, times in plan.runs)
        recomputed = sum(run.trace.recomputed_runs * times for run, times in plan.runs)
        per_sample = (format_bytes(amount // SAMPLES) for amount in (read, plan.step_written_bytes))
        joules, step_seconds = format_joules(plan.step_joules), format_seconds(plan.step_seconds)
        rows.append(f"| {' | '.join((text, *per_sample, str(recomputed), joules, step_seconds))} |")
        print(rows[-1], flush=True)
    return rows


def page(vit: Sequence[str], bert: Sequence[str], vit_seconds: float, bert_seconds: float) -> str:
    weights = format_bytes(sum(item.nbytes for item in Encoder().parameters()))
    lines = [
        "# Micro-batches, as planned",
        "",
        f"Batches of {SAMPLES}, trained in pieces (`docs/training-loops.md`). Predicted",
        "figures of plans that the simulator accepted; `python -m benchmarks micro-batches --write`",
        "writes this page, on a machine of",
        f"{os.cpu_count()} processors with a load average of {os.getloadavg()[1]:.0f} meanwhile.",
        "",
        "The vision transformer of `examples/zoo` (5.5 million parameters) on rpi4b-xnnpack in "
        f"{VIT_RAM}, SGD,",
        f"without paging, after {vit_seconds:g} s of search each. **Above** is against running every op of",
        "the whole batch once:",
        "",
        "| micro-batches | above | energy per step | recomputed runs | search |",
        "|---|---|---|---|---|",
        *vit,
        "",
        f"A BERT-like encoder of {weights} of weights (four layers of width {WIDTH}) with momentum,",
        f"kept in storage, on rpi4b in {BERT_RAM}, after {bert_seconds:g} s of search each:",
        "",
        f"| {' | '.join(COLUMNS)} |",
        "|---" * len(COLUMNS) + "|",
        *bert,
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vit", default="1,2,4,8")
    parser.add_argument("--bert", default="1,2,4,8")
    parser.add_argument("--vit-seconds", type=float, default=40.0, help="of each search")
    parser.add_argument("--bert-seconds", type=float, default=20.0, help="of each search")
    parser.add_argument("--write", action="store_true")
    chosen = parser.parse_args()
    vit = vit_rows(chosen.vit.split(","), chosen.vit_seconds)
    bert = bert_rows(chosen.bert.split(","), chosen.bert_seconds)
    if chosen.write:
        write(PAGE, page(vit, bert, chosen.vit_seconds, chosen.bert_seconds))


if __name__ == "__main__":
    main()
