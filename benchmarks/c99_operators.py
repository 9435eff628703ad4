"""Each C operator's error against float64 beside PyTorch's, over random nets: results/c99-operators.json.

python -m benchmarks c99-operators [--seeds 16] [--output FILE]
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from helpers.c_rows import ALLOWED, UNIT, Errors, errors_of
from helpers.random_c_nets import KINDS, convolutions
from result_file import RESULTS, write

OPTIMIZERS = ("sgd", "momentum", "adamw")
DRAWN = "poet.bernoulli"  # by another generator than PyTorch's: its masks have nothing to be compared with
ROOT = Path(__file__).parents[1]
HEAD = """# Operators in C against float64

Made by `python -m benchmarks c99-operators`:
every op of {nets} nets of random shapes, strides, paddings, dilations
and groups (`tests/helpers/random_c_nets.py`), on the tensors that PyTorch gave it, run in C, in PyTorch's
float32 and in PyTorch's float64; gcc at -O2. Dropout's draws, of another generator than PyTorch's, are left
out.

An error is the largest distance of a tensor from float64. *C* and *PyTorch* are the largest error over all
tensors that an operator made, in units of 2^-24 of the tensor's largest element; their *ratio* may be at
most 4. Nothing else is allowed for there.

*Cancelled* are tensors of which float64 leaves next to nothing, such as a bias's gradient before a batch
norm: PyTorch's own error is above 2^-12 of the largest element. There an error is counted in shares of the
largest sum of absolute products, where the operator is nothing but sums of products, and C's largest may be 4
times PyTorch's largest; of other operators in each tensor by itself.

*Alone* counts single tensors with an error beyond 4 times PyTorch's in the very same tensor. A sum that
PyTorch's order happens to round to the exact value would allow no error then, whatever the kernel. So a
tensor by itself is allowed 4 times PyTorch's error plus a floor, 2^-21 of its largest element, which is
eight of the units; 2^-24 of the largest sum of absolute products where that cancelled and is more. *Worst* is
the largest share of that over all tensors: 1 is allowed.

{right} of {rows} operators are within all three; of {compared} tensors {alone} are beyond 4 times PyTorch's
error alone.
"""


@dataclass(frozen=True)
class Judged:
    """An operator's errors over all cases.

    Attributes:
        target: the operator.
        tensors: that were compared, those that cancelled included.
        of_c, of_torch: the largest error of a tensor, in units of 2^-24 of its largest element.
        cancelled: tensors of which next to nothing is left but rounding.
        cancelled_share: of these, the largest error of C over torch's, as `_share_of` says.
        alone: tensors in which C was beyond four times torch's error for just that one.
        worst: over those, C's error over what a tensor of its own is allowed.
    """

    target: str
    tensors: int
    of_c: float
    of_torch: float
    cancelled: int
    cancelled_share: float
    alone: int
    worst: float

    @property
    def share(self) -> float:
        """C's largest error over torch's; 0 where C is exact."""
        if self.of_c == 0.0:
            return 0.0
        return self.of_c / self.of_torch if self.of_torch else math.inf

    @property
    def is_right(self) -> bool:
        """Within four times, all cases together, and each tensor within its own allowance."""
        return max(self.share, self.cancelled_share) <= ALLOWED and self.worst <= 1.0


def judged(target: str, errors: Sequence[Errors]) -> Judged:
    """What is shown of an operator."""
    cancelled = [each for each in errors if each.is_cancelled]
    regular = [each for each in errors if not each.is_cancelled]
    return Judged(
        target=target,
        tensors=len(errors),
        of_c=max((_relative(each.of_c, each.largest) for each in regular), default=0.0),
        of_torch=max((_relative(each.of_torch, each.largest) for each in regular), default=0.0),
        cancelled=len(cancelled),
        cancelled_share=_share_of(cancelled),
        alone=sum(each.of_c > ALLOWED * each.of_torch for each in errors),
        worst=max(each.ratio for each in errors),
    )


def _share_of(cancelled: Sequence[Errors]) -> float:
    """Of sums of products the largest error in shares of them, C's over PyTorch's; of others by tensor."""
    sums = [each for each in cancelled if each.summed]
    shares = [each.of_c / each.of_torch for each in cancelled if not each.summed]
    if sums:
        of_c, of_torch = (
            max(error / each.summed for error, each in pairs)
            for pairs in ([(each.of_c, each) for each in sums], [(each.of_torch, each) for each in sums])
        )
        shares.append(of_c / of_torch)
    return max(shares, default=0.0)


def _relative(error: float, largest: float) -> float:
    if error == 0.0:
        return 0.0
    return error / largest / UNIT if largest else math.inf


def drawn(seeds: Sequence[int]) -> dict[str, list[Errors]]:
    """The errors of each operator over the random nets of ``seeds``."""
    found: dict[str, list[Errors]] = {}
    for seed in seeds:
        for kind in (*KINDS, "convolutions"):
            torch.manual_seed(seed)
            if kind == "convolutions":
                (module, inputs), loss = convolutions(random.Random(seed)), "cross-entropy"
            else:
                module, inputs, loss = KINDS[kind](np.random.default_rng(seed))
            with tempfile.TemporaryDirectory() as folder:
                optimizer = OPTIMIZERS[seed % len(OPTIMIZERS)]
                errors = errors_of(module, inputs, Path(folder) / "c", loss, optimizer)
            for target in errors.keys() - {DRAWN}:
                found.setdefault(target, []).extend(errors[target])
        print(f"seed {seed}", file=sys.stderr, flush=True)
    return found


def page(rows: Sequence[Judged], seeds: int) -> str:
    """results/c99-operators.json."""
    right = sum(row.is_right for row in rows)
    compared = sum(row.tensors for row in rows)
    alone = sum(row.alone for row in rows)
    nets = seeds * (len(KINDS) + 1)
    said = HEAD.format(nets=nets, right=right, rows=len(rows), compared=compared, alone=alone)
    lines = [
        said,
        "| operator | tensors | C | PyTorch | ratio | cancelled | ratio there | alone | worst |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
        *(f"| {' | '.join(cells(row))} |" for row in rows),
    ]
    return "\n".join(lines) + "\n"


def cells(row: Judged) -> tuple[str, ...]:
    """As the table shows them."""
    return (
        f"`{row.target.removesuffix('.default')}`", str(row.tensors), f"{row.of_c:.2f}",
        f"{row.of_torch:.2f}", f"{row.share:.2f}", str(row.cancelled or ""),
        f"{row.cancelled_share:.2f}" if row.cancelled else "", str(row.alone or ""), f"{row.worst:.2f}",
    )  # fmt: skip


def main() -> None:
    """Write the page; fails where an operator is not right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=14)
    parser.add_argument("--output", type=Path, default=RESULTS / "c99-operators.json")
    asked = parser.parse_args()
    rows = [judged(target, errors) for target, errors in sorted(drawn(range(asked.seeds)).items())]
    write(asked.output, page(rows, asked.seeds))
    wrong = [row for row in rows if not row.is_right]
    print("\n".join("  ".join(cells(row)) for row in wrong), file=sys.stderr)
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
