"""Trains a step that `poet export c` wrote and `make lib` built, with numpy alone: torch is never loaded.

    poet solve digits.onnx --device my-board.toml --ram 32KiB -o digits.poet
    poet export c digits.poet -o step
    make -C step lib
    python c_library.py step digits.npz --epochs 3 --save digits.state

`my-board.toml` says `[kernels] name = "poet-c99"`. The folder, this file and the samples are all that the
board needs: copy them there, and build there or with its compiler. `digits.npz` has `inputs` and `targets`.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np


def main() -> None:
    """Train for some epochs, say the loss and the share of right answers, and save."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", type=Path, help="that `poet export c` wrote, with its library built")
    parser.add_argument("data", type=Path, help=".npz with `inputs` and `targets`, which are classes")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--pages", type=Path, help="a file for a step that pages")
    parser.add_argument("--save", type=Path, help="a file: training goes on from it, and is saved there")
    asked = parser.parse_args()
    sys.path.insert(0, str(asked.folder))
    from poet_library import LibraryError, Step  # type: ignore[import-not-found]  # is in the folder

    with np.load(asked.data) as data:
        inputs, targets = np.asarray(data["inputs"], dtype=np.float32), np.asarray(data["targets"])
    try:
        step = Step(asked.folder / "build" / "libpoet_step.so", pages=asked.pages)
        if asked.save is not None and step.load(asked.save):
            print(f"goes on from {asked.save}")
    except LibraryError as error:
        sys.exit(str(error))
    rows = step.facts.rows
    if not rows or len(inputs) < rows or len(targets) != len(inputs):
        sys.exit(
            f"{asked.data}: {len(inputs)} inputs and {len(targets)} classes; a step takes {rows} of each"
        )
    for epoch in range(asked.epochs):
        begins, losses, right = time.perf_counter(), [], 0
        for first in range(0, len(inputs) - rows + 1, rows):
            batch = slice(first, first + rows)
            step.set_input(0, inputs[batch])
            step.set_classes(targets[batch])
            losses.append(step.train())
            right += int(np.sum(step.outputs()[0].reshape(rows, -1).argmax(1) == targets[batch]))
        if not np.isfinite(losses).all():
            sys.exit(f"epoch {epoch + 1}: the loss is not finite; nothing of it was saved")
        seconds = (time.perf_counter() - begins) / len(losses)
        share = right / (rows * len(losses))
        print(
            f"epoch {epoch + 1}: loss {np.mean(losses):.9g}, right {share:.1%}, {seconds * 1e3:.3f} ms a step"
        )
        if asked.save is not None:
            step.save(asked.save)
    status = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) / 1024
    print(
        f"state {step.state_crc():08x}, peak of this process {peak:.0f} MiB, torch: {'torch' in sys.modules}"
    )


if __name__ == "__main__":
    main()
