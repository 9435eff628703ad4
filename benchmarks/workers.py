"""The parent's side of `step_worker`: start workers, ask them in turn, compare them by paired ratios."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).parents[1]
_REST_SECONDS = 0.02
"""Between steps: the threads of a process wait busily for a while after its step, at the other's cost."""
WARM_STEPS = 4  # the first ones set up; where places are found anew, they are found in these


class Worker:
    """A process of `step_worker`; one command at a time, idle between them."""

    def __init__(self, kind: str, net: str, threads: int, folder: Path) -> None:
        command = [sys.executable, str(Path(__file__).with_name("step_worker.py"))]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "examples"), "OMP_NUM_THREADS": str(threads)}
        self._process = subprocess.Popen(
            [*command, kind, net, str(threads), str(folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip

    def ask(self, command: str) -> dict[str, Any]:
        """The answer to ``step``, ``peak`` or ``digest``."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a worker ended: {self._process.args!r}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()


def paired(mine: Worker, other: Worker, *, seconds: float, least: int = 4) -> tuple[list[float], list[float]]:
    """Step times of both in alternating order, for so many ``seconds``, ``least`` pairs at least."""
    answers = in_turn((mine, other), seconds=seconds, least=least)
    of_mine, of_other = ([answer["seconds"] for answer in answers_of] for answers_of in answers)
    return of_mine, of_other


def in_turn(workers: Sequence[Worker], *, seconds: float, least: int = 4) -> list[list[dict[str, float]]]:
    """Answers to ``step`` of each worker, in rounds of alternating order.

    Args:
        workers: to ask.
        seconds: for so long, and at most 40 rounds.
        least: rounds at least.
    """
    answers: list[list[dict[str, float]]] = [[] for _ in workers]
    end = time.monotonic() + seconds
    while len(answers[0]) < least or (time.monotonic() < end and len(answers[0]) < 40):
        turn = list(zip(workers, answers, strict=True))
        for worker, into in reversed(turn) if len(answers[0]) % 2 else turn:
            time.sleep(_REST_SECONDS)
            into.append(worker.ask("step"))
    return answers


def ratio(times: tuple[Sequence[float], Sequence[float]]) -> float:
    """The median of the paired ratios."""
    return statistics.median(a / b for a, b in zip(*times, strict=True))
