"""What the published training steps amount to: FLOPs and bytes by class of op, in published/step_amounts.csv.

    python -m benchmarks step-amounts [--only NET ...]

Every net of published/steps.csv is built by timm (``pip install timm``) without weights, traced over fake
tensors as its publishers trained it (batch 16, 224x224 pixels, cross-entropy, plain SGD, attention in single
ops, as torch 1.13 has it), and its ops are counted by the cost table. ``devices_table.py`` reads the result.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch

from poet.devices.costs import estimate
from poet.devices.load import load_profile
from poet.frontend.trace import trace_training_step
from poet.ir.graph import Graph
from poet.ir.optimizer import OptimizerSpec

FOLDER = Path(__file__).parent / "published"
STEPS, AMOUNTS = FOLDER / "steps.csv", FOLDER / "step_amounts.csv"
BATCH, PIXELS = 16, 224
HEADS = ("fc.*", "head.*", "head_dist.*", "classifier.*", "conv_head.*")
"""Parameters that the publishers train when they train the head only."""

TIMM_NAMES = {
    **{f"{family}_{size}": f"{family}_{size}_patch16_224"
       for family in ("vit", "deit") for size in ("tiny", "small", "base")},
    "maxvit_tiny": "maxvit_tiny_tf_224",
    "swin_tiny": "swin_tiny_patch4_window7_224",
}  # fmt: skip
"""Nets whose name in timm is another than that in the table."""

_Rows = dict[tuple[str, str], list[tuple[object, ...]]]
HEADINGS = ("net", "trained", "class", "flops", "bytes", "runs")


def published_nets() -> list[str]:
    """Names of the nets in the table of published steps, in its order."""
    with STEPS.open(encoding="utf-8") as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        return list(dict.fromkeys(row["net"] for row in rows))


def traced(net: str, *, head_only: bool) -> Graph:
    """The training step of ``net``."""
    timm = importlib.import_module("timm")  # not among the pinned packages
    importlib.import_module("timm.layers").set_fused_attn(False)
    module = timm.create_model(TIMM_NAMES.get(net, net), num_classes=1000).train()
    step = trace_training_step(
        module,
        torch.zeros(BATCH, 3, PIXELS, PIXELS),
        optimizer=OptimizerSpec("sgd", lr=0.1, momentum=0.0),
        train=[pattern for pattern in HEADS if _matches(module, pattern)] if head_only else None,
        measure=False,
    )
    return step.graph


def _matches(module: torch.nn.Module, pattern: str) -> bool:
    return any(name.startswith(pattern.removesuffix("*")) for name, _ in module.named_parameters())


def amounts(graph: Graph) -> Iterator[tuple[str, int, int, int]]:
    """Class, FLOPs, bytes moved and how many ops are so, per kind of op."""
    costs = estimate(graph, load_profile("rpi4b"))
    counted = Counter(
        (cost.op_class.value, round(cost.flops), cost.bytes_moved) for cost in costs.ops.values()
    )
    return ((*kind, runs) for kind, runs in sorted(counted.items()))


def main() -> None:
    """Write the table; rows of nets that are not asked for, or do not trace, stay as they are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="+", default=None, metavar="NET")
    wanted = parser.parse_args().only or published_nets()
    rows: _Rows = {}
    if AMOUNTS.exists():
        with AMOUNTS.open(encoding="utf-8") as file:
            for row in csv.reader(line for line in file if not line.startswith(("#", "net,"))):
                rows.setdefault((row[0], row[1]), []).append(tuple(row))
    for net in wanted:
        for trained in ("all", "head"):
            try:
                graph = traced(net, head_only=trained == "head")
                found: list[tuple[object, ...]] = [(net, trained, *kind) for kind in amounts(graph)]
            except Exception as error:  # a net that timm lacks is a row that is missing
                print(f"{net} ({trained}): {type(error).__name__}: {error}", file=sys.stderr)
                continue
            rows[net, trained] = found
            print(f"{net} ({trained}): {sum(int(str(row[-1])) for row in found)} ops", flush=True)
            _write(rows)


def _write(rows: _Rows) -> None:
    partial = AMOUNTS.with_suffix(".partial")
    with partial.open("w", encoding="utf-8", newline="") as file:
        made = f"step_amounts.py with timm {importlib.import_module('timm').__version__}"
        file.write(f"# Made by {made}: FLOPs and bytes of each kind of op in one training step\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HEADINGS)
        for key in sorted(rows):
            writer.writerows(rows[key])
    partial.replace(AMOUNTS)


if __name__ == "__main__":
    main()
