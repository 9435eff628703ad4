"""Processes of benchmarks: workers of `step_worker`, what children hold, scripts whose answer is kept.

The sum of the peaks of a process and its children counts moments that are not the same, and what children
share with the process that they came from twice. Here they are looked at together, several times a second,
each page divided by how many of them have it (Linux's proportional set size).
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import psutil

ROOT = Path(__file__).parents[1]
_FOLDERS = ("examples", "benchmarks", "tests")
EVERY_SECONDS = 0.1
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


class Ran(NamedTuple):
    """``stdout`` of a process that ended well, and the most bytes that it and its children held at once."""

    stdout: str
    peak_bytes: int


def run(command: Sequence[str]) -> Ran:
    """Run ``command`` to its end.

    Raises:
        subprocess.CalledProcessError: it ended badly.
    """
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        peak_bytes = 0
        while True:
            peak_bytes = max(peak_bytes, held_bytes(process.pid))
            with contextlib.suppress(subprocess.TimeoutExpired):
                stdout, _ = process.communicate(timeout=EVERY_SECONDS)
                break
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return Ran(stdout, peak_bytes)


def held_bytes(number: int) -> int:
    """Of memory, that the process of that number and its children hold now; none of those that have ended."""
    total_bytes = 0
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(number)
        for one in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                total_bytes += one.memory_full_info().pss
    return total_bytes


def found_apart(
    kept: Path,
    command: Sequence[str],
    *,
    timeout_seconds: float,
    is_kept_only: bool = False,
    variables: Mapping[str, str] | None = None,
) -> Any | None:
    """The JSON in ``kept``, made by a script of one thread where it is not there.

    Args:
        kept: where the last line of the script's output is put, whole or not at all.
        command: path and arguments of the script.
        timeout_seconds: after which the script is ended.
        is_kept_only: make nothing; ``None`` is the answer then where ``kept`` is not there.
        variables: of the script's environment, besides this process's.

    Raises:
        subprocess.SubprocessError: the script failed or took too long.
    """
    if not kept.exists():
        if is_kept_only:
            return None
        from models_rows import replace_text

        paths = os.pathsep.join(str(ROOT / folder) for folder in _FOLDERS)
        done = subprocess.run(
            [sys.executable, *command],
            check=True,
            env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **(variables or {})},
            stdout=subprocess.PIPE,
            text=True,
            timeout=timeout_seconds,
        )
        replace_text(kept, done.stdout.splitlines()[-1])
    return json.loads(kept.read_text(encoding="utf-8"))
