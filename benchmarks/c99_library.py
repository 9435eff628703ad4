"""A training step by shared C library and by PyTorch, one thread: results/c99-library.json.

The four nets of MLPerf Tiny, MobileNetV2-0.35 (10 classes, 64 x 64) and ResNet-18 (32 x 32), batch 1
(autoencoder 4) and 8, SGD, everything kept. Each side is a process of its own: the C step with numpy and
ctypes alone, the same plan in PyTorch. Seconds of the processor are the least of some steps after two to warm
up; memory is the peak of the process.

    python -m benchmarks c99-library [--only ds-cnn] [--steps 20]

About ten minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "examples"))

MOBILE, RESNET = "mobilenetv2-0.35", "resnet-18"
HEAD = """# C and PyTorch on a board with an operating system

Made by `python -m benchmarks c99-library`
on an {machine} machine. One training step of the same plan, everything kept,
SGD, one thread: as a shared library called with numpy (gcc, {flags}), and in PyTorch
{torch}. Each side is a process of its own. *Step* is the least processor time of {steps} steps, *memory* the
most that the process had resident; of the C side {numpy} MiB are Python and numpy. The machine was shared
with much other work.

| net | batch | C, step | PyTorch, step | C / PyTorch | C, memory | PyTorch, memory |
|---|--:|--:|--:|--:|--:|--:|
"""
FLAGS = "-O3 -march=native"
MEASURED = ("step_seconds", "peak_bytes")


def _run(*arguments: object) -> dict[str, float]:
    """What a process of this program measures, on one thread."""
    command = [sys.executable, __file__, *map(str, arguments)]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=one_thread)
    if done.returncode:
        sys.exit(done.stderr)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _say(least_seconds: float) -> None:
    # not getrusage: its peak begins with that of the process which started this one
    status = Path("/proc/self/status").read_text().splitlines()
    peak_bytes = next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) * 1024
    print(json.dumps(dict(zip(MEASURED, (least_seconds, peak_bytes), strict=True))))


def in_c(folder: Path, steps: int) -> None:
    """Time steps of the library in ``folder``, without torch; none where ``steps`` is 0."""
    import numpy as np

    sys.path.insert(0, str(folder))
    if not steps:
        return _say(0.0)
    from poet_library import Step  # type: ignore[import-not-found]  # is in the folder

    step, rng = Step(folder / "build" / "libpoet_step.so"), np.random.default_rng(0)
    seconds = []
    for _ in range(steps + 2):
        step.inputs[0][:] = rng.standard_normal(len(step.inputs[0]), dtype=np.float32)
        if step.facts.rows:
            step.set_classes([0] * step.facts.rows)
        else:
            step.set_target(rng.standard_normal(step.facts.target_floats, dtype=np.float32))
        begins = time.process_time()
        step.train()
        seconds.append(time.process_time() - begins)
    assert "torch" not in sys.modules
    return _say(min(seconds[2:]))


def in_torch(plan: Path, steps: int) -> None:
    """Time the same plan in PyTorch."""
    import torch

    from poet.runtime import Trainer
    from poet.runtime.data.random_batches import random_batch

    torch.set_num_threads(1)
    seconds = []
    with Trainer.open(plan) as trainer:
        inputs, targets = random_batch(trainer.plan, 0)
        for _ in range(steps + 2):
            begins = time.process_time()
            trainer.step(inputs, targets)
            seconds.append(time.process_time() - begins)
    _say(min(seconds[2:]))


def planned(name: str, batch: int, work: Path, plans: Path) -> tuple[Path, Path]:
    """The plan, and the folder with its library built."""
    import torch
    from mlperf_tiny import NETS
    from zoo.vision import MobileNetV2, ResNet

    import poet
    from poet.c99.project import c_project
    from poet.plans.plan_file import PlanFile

    plan, folder = plans / f"{name}-{batch}.poet", work / name
    net = NETS.get(name)
    torch.manual_seed(0)
    if net:
        module, shape = net.build(), net.shape[1:]
    elif name == MOBILE:
        module, shape = MobileNetV2(width=0.35, small_images=False), (3, 64, 64)
    else:
        module, shape = ResNet(), (3, 32, 32)
    if not plan.exists():
        poet.plan(
            module, torch.randn(batch, *shape), device="nrf52840", ram="1GiB", recompute=False, paging=False,
            home="ram", loss=net.loss if net else "cross-entropy", time_limit_seconds=5.0,
        ).save(plan)  # fmt: skip
    with PlanFile(plan) as file:
        c_project(file).write(folder)
    command = ["make", "-C", str(folder), "lib", f"CFLAGS={FLAGS}"]
    subprocess.run(command, check=True, capture_output=True)
    return plan, folder


def main() -> None:
    """Make every row, print it, and write the page where all nets were asked for."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--only", action="append")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--plans", type=Path, help="folder of plan files, of earlier runs and of this one")
    parser.add_argument("--c", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--torch", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.c is not None:
        return in_c(asked.c, asked.steps)
    if asked.torch is not None:
        return in_torch(asked.torch, asked.steps)
    from mlperf_tiny import NETS

    rows = [
        (name, batch or (NETS[name].shape[0] if name in NETS else 1))
        for name in asked.only or (*NETS, MOBILE, RESNET)
        for batch in (None, 8)
    ]
    lines, numpy_bytes = list[str](), 0.0
    for name, batch in rows:
        with tempfile.TemporaryDirectory() as work:
            plan, folder = planned(name, batch, Path(work), asked.plans or Path(work))
            numpy_bytes = _run("--c", folder, "--steps", 0)["peak_bytes"]
            sides = _run("--c", folder, "--steps", asked.steps), _run("--torch", plan, "--steps", asked.steps)
        lines.append(_text(name, batch, *sides))
        print(lines[-1], flush=True)
    if not asked.only:
        _write(lines, asked.steps, numpy_bytes)
    return None


def _verdict(lines: Sequence[str]) -> str:
    """Where C takes less time than PyTorch, and where more."""
    shares = {" x ".join(map(str.strip, line.split("|")[1:3])): float(line.split("|")[5]) for line in lines}
    wins, losses = ([name for name, share in shares.items() if (share < 1.0) == is_win] for is_win in (1, 0))
    memory = [[float(line.split("|")[column].split()[0]) for column in (6, 7)] for line in lines]
    parts = [ours / theirs for ours, theirs in memory]
    return (
        f"\nC takes less time for a step of {', '.join(wins) or 'no net'}, "
        f"more of {', '.join(losses) or 'none'};\n"
        f"its process has {min(parts):.0%} to {max(parts):.0%} of the memory of PyTorch's.\n"
    )


def _text(name: str, batch: int, c: dict[str, float], torch: dict[str, float]) -> str:
    (ours, our_bytes), (theirs, their_bytes) = ([side[key] for key in MEASURED] for side in (c, torch))
    return (
        f"| {name} | {batch} | {ours * 1e3:.2f} ms | {theirs * 1e3:.2f} ms | {ours / theirs:.2f} "
        f"| {our_bytes / 2**20:.0f} MiB | {their_bytes / 2**20:.0f} MiB |"
    )


def _write(lines: list[str], steps: int, numpy_bytes: float) -> None:
    import torch
    from result_file import RESULTS, write

    head = HEAD.format(
        machine=platform.machine(), flags=f"`{FLAGS}`", torch=torch.__version__.split("+")[0], steps=steps,
        numpy=round(numpy_bytes / 2**20),
    )  # fmt: skip
    write(RESULTS / "c99-library.json", head + "\n".join(lines) + "\n" + _verdict(lines))


if __name__ == "__main__":
    main()
