"""How long a sweep of 240 points takes: cold, repeated, killed and resumed, and on two workers.

A small ResNet-18 on two devices at two batch sizes, ten RAM budgets and six deadlines each, by the command
line, every time in a process of its own. The sweep that is killed gets SIGKILL when half of the answers that
the cold one wrote are there. No sweep may leave a point out or contradict the proofs of the cold one; all
plans are judged by the simulator.

    python -m benchmarks what-if-sweep [--seconds-per-point 0.5]

It prints a Markdown table. Run it on a quiet machine: searches end by the clock.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
GRID = ("--device", "rpi4b,nrf52840", "--batch", "4,8", "--no-marginal")
POLL_SECONDS = 0.05
PROVEN_TOLERANCE = 2e-6


@dataclass(frozen=True)
class Run:
    """One sweep: its name, wall clock, and its JSON answer."""

    name: str
    seconds: float
    data: dict[str, Any]

    @property
    def origins(self) -> Counter[str]:
        """How many points were decided in which way."""
        return Counter(point["origin"] for point in self.data["points"])


def main() -> None:
    """Run the sweeps and print the table."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seconds-per-point", type=float, default=0.5)
    parser.add_argument("--budgets", type=int, default=10, help="RAM budgets per setting, from 2 up")
    arguments = parser.parse_args()
    seconds_per_point = arguments.seconds_per_point
    with tempfile.TemporaryDirectory() as folder:
        runs = _runs(Path(folder), seconds_per_point, arguments.budgets)
    print("| sweep | wall clock | searched | from the cache | by monotonicity or arithmetic |")
    print("|---|---|---|---|---|")
    for run in runs:
        found = run.origins
        followed = found["neighbour"] + found["arithmetic"]
        print(f"| {run.name} | {run.seconds:.1f} s | {found['search']} | {found['cache']} | {followed} |")
    print(f"\n{len(runs[0].data['points'])} points, {seconds_per_point:g} s per search at most.")
    print(f"Speed-up on two workers: {runs[0].seconds / runs[-1].seconds:.2f}.")
    print(f"Verdicts, cold: {dict(Counter(point['verdict'] for point in runs[0].data['points']))}.")


def _runs(folder: Path, seconds_per_point: float, budgets: int) -> list[Run]:
    model = folder / "resnet18.onnx"
    export = [
        sys.executable,
        str(ROOT / "examples" / "export_net.py"),
        "resnet18",
        str(model),
        "--size",
        "small",
    ]
    subprocess.run(export, check=True, capture_output=True)
    axes = ("--ram", f"min..keep:{budgets}", "--deadline", "1.0x..2.0x:5,none")
    limit = ("--time-limit", f"{seconds_per_point}s")

    def command(cache: str, jobs: int, answer: str) -> list[str]:
        poet = [str(Path(sys.executable).with_name("poet")), "what-if", str(model), *GRID, *axes, *limit]
        return [*poet, "--jobs", str(jobs), "--cache", str(folder / cache), "-o", str(folder / answer)]

    cold = _timed("cold, 1 worker", command("a", 1, "cold.json"), folder / "cold.json")
    again = _timed("repeated", command("a", 1, "again.json"), folder / "again.json")
    answers = len(list((folder / "a" / "answers").iterdir()))
    before = _killed(command("b", 1, "killed.json"), folder / "b" / "answers", answers // 2)
    resumed = _timed("resumed", command("b", 1, "resumed.json"), folder / "resumed.json")
    kept = Run(f"killed with {answers // 2} answers there", before, _nothing())
    two = _timed("cold, 2 workers", command("c", 2, "two.json"), folder / "two.json")
    for run in (again, resumed, two):
        _check(cold.data["points"], run.data["points"])
    return [cold, again, kept, resumed, two]


def _timed(name: str, command: list[str], answer: Path) -> Run:
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return Run(name, time.perf_counter() - start, json.loads(answer.read_text()))


def _killed(command: list[str], answers: Path, enough: int) -> float:
    """Seconds until the sweep was killed."""
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while not answers.is_dir() or sum(1 for _ in answers.iterdir()) < enough:
            time.sleep(POLL_SECONDS)
        process.send_signal(signal.SIGKILL)
    return time.perf_counter() - start


def _nothing() -> dict[str, Any]:
    return {"points": []}


def _check(expected: Iterable[dict[str, Any]], found: Iterable[dict[str, Any]]) -> None:
    """Proven optima are the same, and no point is left out."""
    for one, other in zip(expected, found, strict=True):
        assert other["verdict"] != "unsolved", other
        if one["verdict"] == other["verdict"] == "optimal":
            assert math.isclose(one["joules"], other["joules"], rel_tol=PROVEN_TOLERANCE), (one, other)
        assert {one["verdict"], other["verdict"]} not in (
            {"optimal", "infeasible"},
            {"feasible", "infeasible"},
        )


if __name__ == "__main__":
    main()
