"""Opens thousands of mutated files and counts what became of them.

    PYTHONPATH=tests python tests/tools/fuzz.py                          20,000 files of each kind in `KINDS`
    PYTHONPATH=tests python tests/tools/fuzz.py --kind plans --count 500
    PYTHONPATH=tests python tests/tools/fuzz.py --kind plans --only 1234 one case, with its error

A worker process writes each file into a scratch folder and uses it as poet does; this process watches. A
case ends in one of five ways: it is *refused* by a `PoetError`, it is *used* as a valid file, it
*crashes* (any other exception, or the end of the worker), it *hangs*, or it *strays*: a file outside of
the scratch folder is opened for writing, renamed or removed, one outside of the installation is read,
something is left behind in the folder, or a program or a connection is started. Address space is limited
to `SPARE_BYTES` above what the libraries take, so that a file that asks for more fails. A case is known
by its number: the same number gives the same file.
"""

from __future__ import annotations

import argparse
import contextlib
import enum
import importlib.resources
import json
import os
import random
import resource
import select
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

ROOT = Path(__file__).parents[2]
SPARE_BYTES = 1 << 30
FILE_BYTES = 256 << 20
HANG_SECONDS, SETUP_SECONDS = 60.0, 600.0
READY = "ready"
SETUP_FAILED = 70  # an exit code that no interpreter gives by itself
KINDS = ("plans", "models", "profiles", "tensors", "data", "problems", "caches", "weights")
"""Of files: plans, ONNX models, device profiles, safetensors and npz data, problems, cached answers, GGUF."""


class Outcome(enum.StrEnum):
    """What became of a file."""

    REFUSED = "refused"
    USED = "used"
    CRASHED = "crashed"
    HUNG = "hung"
    STRAYED = "strayed"


GOOD = frozenset({Outcome.REFUSED, Outcome.USED})


@dataclass(frozen=True)
class Finding:
    """A case that should not have ended as it did."""

    kind: str
    number: int
    outcome: Outcome
    detail: str


@dataclass
class Tally:
    """Counts over the cases of one kind.

    Attributes:
        counts: by outcome.
        stages: of the files that were used: how far.
        findings: what is to be fixed.
        seconds: wall clock.
    """

    counts: Counter[Outcome] = field(default_factory=Counter)
    stages: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    seconds: float = 0.0


def run(kind: str, numbers: Sequence[int], *, hang_seconds: float = HANG_SECONDS) -> Tally:
    """Try the cases with these ``numbers``, until Ctrl-C; a worker that ends early is followed by another."""
    tally, left, started = Tally(), list(numbers), time.monotonic()
    with contextlib.suppress(KeyboardInterrupt):  # what was counted until then is reported
        while left:
            with _worker(kind, left) as worker:
                for outcome, stage, detail in _told(worker, hang_seconds):
                    number = left.pop(0)
                    tally.counts[outcome] += 1
                    tally.stages[stage] += 1
                    if outcome not in GOOD:
                        tally.findings.append(Finding(kind, number, outcome, detail))
                    if outcome is Outcome.HUNG or not left:
                        break
    tally.seconds = time.monotonic() - started
    return tally


@contextlib.contextmanager
def _worker(kind: str, numbers: Sequence[int]) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, __file__, "--worker", "--kind", kind]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    worker = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, bufsize=1
    )
    assert worker.stdin is not None
    with worker:
        with contextlib.suppress(BrokenPipeError):
            worker.stdin.write(json.dumps(list(numbers)) + "\n")
            worker.stdin.flush()
        try:
            yield worker
        except BaseException:
            worker.kill()
            raise
        try:
            worker.wait(timeout=10.0)  # it clears up
        except subprocess.TimeoutExpired:
            worker.kill()


def _told(worker: subprocess.Popen[str], hang_seconds: float) -> Iterator[tuple[Outcome, str, str]]:
    """The worker's lines; its silence and its end are told as well. Setting up is no case."""
    assert worker.stdout is not None
    patience_seconds = SETUP_SECONDS
    while True:
        ready, _, _ = select.select([worker.stdout], [], [], patience_seconds)
        patience_seconds = hang_seconds
        if not ready:
            yield Outcome.HUNG, "", f"nothing was heard for {hang_seconds:.0f} s"
            return
        line = worker.stdout.readline()
        if not line:
            code = worker.wait()
            if code == SETUP_FAILED:
                raise RuntimeError("the worker could not be set up; see its error above")
            if code != 0:
                yield Outcome.CRASHED, "", f"the process ended with {code}"
            return
        told = json.loads(line)
        if told == READY:
            continue
        yield Outcome(told["outcome"]), told["stage"], told["detail"]


# --- in the worker ----------------------------------------------------------------------------


class Watch:
    """Notes what a case does outside of its folder, by audit events (sys.addaudithook)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.strayed: list[str] = []
        self._is_on = False
        profiles = str(importlib.resources.files("poet.hardware_profiles"))
        readable = (sys.prefix, sys.base_prefix, str(ROOT), profiles, "/proc", "/sys", "/usr", "/dev/null")
        self._readable = (str(folder), f"{folder}.d", *(os.path.realpath(path) for path in readable))
        sys.addaudithook(self._hear)

    @contextlib.contextmanager
    def case(self) -> Iterator[None]:
        """Listens during the block."""
        self.strayed, self._is_on = [], True
        try:
            yield
        finally:
            self._is_on = False

    def _hear(self, event: str, given: tuple[object, ...]) -> None:
        if not self._is_on:
            return
        if event == "open":
            self._opened(*given)
        elif event in _TOUCHES:
            for path in given[: _TOUCHES[event]]:
                self._require(path, (str(self.folder),), event)
        elif event in _NEVER and not _is_engine(event, given):
            self.strayed.append(f"{event} {given!r}"[:200])

    def _opened(self, path: object, mode: object, flags: object) -> None:
        writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        is_written = isinstance(flags, int) and bool(flags & writes)
        if is_written and isinstance(path, str) and os.path.isdir(path):
            return  # a file without a name (O_TMPFILE), which leaves nothing
        allowed = (str(self.folder),) if is_written else self._readable
        self._require(path, allowed, "open for writing" if is_written else "open")

    def _require(self, path: object, allowed: tuple[str, ...], event: str) -> None:
        if not isinstance(path, str | bytes | os.PathLike):
            return  # a descriptor
        found = os.path.realpath(os.fsdecode(path))
        if not any(found == home or found.startswith(home + os.sep) for home in allowed):
            self.strayed.append(f"{event} {found}")


_TOUCHES = {
    "os.remove": 1, "os.rename": 2, "os.mkdir": 1, "os.rmdir": 1, "os.link": 2, "os.symlink": 2,
    "os.truncate": 1, "os.chmod": 1, "os.chown": 1, "shutil.rmtree": 1,
}  # fmt: skip
"""Events that change files, and how many of their arguments are paths."""

_NEVER = frozenset(
    {
        "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "socket.connect",
        "socket.bind", "pickle.find_class",
    }
)  # fmt: skip


def _is_engine(event: str, given: tuple[object, ...]) -> bool:
    """Whether it is a program of ours that solves matrices, started as by `poet.util.children`."""
    if event != "subprocess.Popen" or not isinstance(given[1], list):
        return False
    *command, module = given[1][:4]
    return command == [sys.executable, "-P", "-m"] and str(module) == "poet.solvers.engines"


def _work(kind: str, numbers: Sequence[int]) -> None:
    folder = Path(tempfile.mkdtemp(prefix="poet-fuzz-")).resolve()
    try:
        try:
            bases, mutate, use, suffix = _subject(kind, folder)
            for base in bases:  # valid, all of them; and libraries load their code
                (folder / f"base{suffix}").write_bytes(base)
                use(folder / f"base{suffix}")
            (folder / f"base{suffix}").unlink()
            watch = Watch(folder)
            _limit()
        except Exception:
            traceback.print_exc()
            sys.exit(SETUP_FAILED)
        path = folder / f"case{suffix}"
        print(json.dumps(READY), flush=True)
        for number in numbers:
            rng = random.Random(f"{kind} {number}")
            path.write_bytes(mutate(rng.choice(bases), rng))
            print(json.dumps(_judged(use, path, watch)), flush=True)
    finally:
        shutil.rmtree(folder)
        shutil.rmtree(f"{folder}.d", ignore_errors=True)


def _judged(use: Callable[[Path], str], path: Path, watch: Watch) -> dict[str, str]:
    from poet.errors import PoetError

    stage, outcome, detail = "", Outcome.USED, ""
    error: BaseException | None = None
    with watch.case():
        try:
            stage = use(path)
        except BaseException as raised:
            error = raised
    if isinstance(error, PoetError) and 0 < len(str(error)) <= 2000:
        outcome, detail = Outcome.REFUSED, str(error)
    elif error is not None:
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(where.filename).name}:{where.lineno}"
        outcome, detail = Outcome.CRASHED, f"{type(error).__name__}: {error} ({place})"[:500]
    left = sorted(item.name for item in path.parent.iterdir() if item != path)
    if watch.strayed or left:
        outcome, detail = Outcome.STRAYED, "; ".join([*watch.strayed, *left])
        for name in left:
            (path.parent / name).unlink()
    return {"outcome": outcome, "stage": stage, "detail": detail}


def _limit() -> None:
    """No more address space and no larger files than a valid case needs many times over."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit_bytes = pages * resource.getpagesize() + SPARE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))


Subject = tuple[list[bytes], Callable[[bytes, random.Random], bytes], Callable[[Path], str], str]


def _subject(kind: str, folder: Path) -> Subject:
    """Valid files, how to change them, what to do with them, and how their names end."""
    from helpers import fuzz_uses, mutators

    sys.path += [str(ROOT / "examples"), str(ROOT / "tests/runtime")]
    if kind == "plans":
        return _plans(folder), mutators.mutated_plan, use_plan, ".poet"
    if kind == "models":
        return _models(folder), mutators.mutated_onnx, use_model, ".onnx"
    if kind in fuzz_uses.SUBJECTS:
        return fuzz_uses.SUBJECTS[kind](folder)
    shipped = sorted((ROOT / "hardware_profiles").glob("*.toml"))
    return [path.read_bytes() for path in shipped], mutators.mutated_profile, use_profile, ".toml"


def use_plan(path: Path) -> str:
    """Open the plan for training and make one step."""
    import torch

    from poet.errors import ReplayError
    from poet.runtime import Trainer
    from poet.runtime.data.random_batches import random_batch

    with Trainer.open(path, seed=0) as trainer:
        if sum(kind.extent_bytes for kind in trainer.input_types) > 1 << 20:
            return "opened"
        (*inputs,), targets = random_batch(trainer.plan, 0)
        assert all(isinstance(tensor, torch.Tensor) for tensor in inputs)
        try:
            trainer.step(inputs, targets)
        except ReplayError:
            return "opened, the step refused"
    return "opened and trained"


def use_model(path: Path) -> str:
    """``poet check``, and the import where the check is content."""
    from poet.frontend.onnx.check import check_model
    from poet.frontend.onnx.importer import load_onnx

    report = check_model(path)
    report.to_json()
    if not report.can_train:
        return "checked"
    load_onnx(path, bind=report.assumed)
    return "checked and imported"


def use_profile(path: Path) -> str:
    """Read and validate the profile."""
    from poet.devices.load import load_profile

    load_profile(path)
    return "valid"


def _plans(folder: Path) -> list[bytes]:
    from helpers import hand_net, part_nets, row_net
    from helpers.on_units import every_other
    from helpers.schedules import random_schedule
    from test_runtime import write_small

    from poet.plans.plan_file import write_plan
    from poet.plans.plan_parts import Choice
    from poet.problem import PageForm

    path, plans = folder / "base.poet", []
    for seed, in_storage in ((0, False), (3, False), (4, True)):
        of = hand_net.problem(hand_net.graph(), parameters_in_storage=in_storage)
        hand_net.write(path, random_schedule(of, seed) if seed else None, parameters_in_storage=in_storage)
        plans.append(path.read_bytes())
    what, stored = hand_net.graph(), hand_net.stored(hand_net.net())
    of = every_other(hand_net.problem(what))
    write_plan(path, hand_net.plan(of, what, random_schedule(of, 5)), stored)
    plans.append(path.read_bytes())
    plan = hand_net.plan(of, what, random_schedule(of, 5))
    for choice in (Choice(("0.*", "2.weight[0:2]"), 3, 0.5, 0.75), Choice(("0.*",), 2, 0.9, 1e-3, 0.8)):
        write_plan(path, replace(plan, outcome=replace(plan.outcome, choice=choice)), stored)
        plans.append(path.read_bytes())
    for form in PageForm:
        of = hand_net.problem(hand_net.graph(), form=form)
        hand_net.write(path, random_schedule(of, 3), form=form)
        plans.append(path.read_bytes())
    for seed, optimizer in ((1, "momentum"), (2, "adamw")):
        write_small(path, optimizer, seed, share=0.5)
        plans.append(path.read_bytes())
    part_nets.write(path, row_net.by_row(30), seed=None)
    plans.append(path.read_bytes())
    path.unlink()
    return plans


def _models(folder: Path) -> list[bytes]:
    import onnx
    import torch
    from helpers.onnx_tools import zoo_export

    del folder
    light = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    models = [path.read_bytes() for path in sorted(light.glob("*squeezenet.onnx"))]
    models += [zoo_export(name, "legacy", True).read_bytes() for name in ("resnet18", "lstm", "bert")]
    torch.set_num_threads(1)
    return models


# --- the command ------------------------------------------------------------------------------


def _only(kind: str, number: int) -> None:
    folder = Path(tempfile.mkdtemp(prefix="poet-fuzz-")).resolve()
    bases, mutate, use, suffix = _subject(kind, folder)
    rng = random.Random(f"{kind} {number}")
    path = folder / f"case{suffix}"
    path.write_bytes(mutate(rng.choice(bases), rng))
    print(f"{path} is case {number}", file=sys.stderr)
    print(use(path))


def report(kind: str, tally: Tally) -> str:
    """One line of counts, and one per finding."""
    counts = ", ".join(f"{tally.counts[outcome]} {outcome}" for outcome in Outcome)
    stages = ", ".join(f"{count} {stage}" for stage, count in sorted(tally.stages.items()) if stage)
    lines = [f"{kind}: {tally.counts.total()} files in {tally.seconds:.0f} s: {counts} ({stages})"]
    lines += [f"  {found.outcome} {found.number}: {found.detail}" for found in tally.findings]
    return "\n".join(lines)


def main() -> int:
    """Run the cases that were asked for; exit code 1 if one ended badly."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--kind", choices=KINDS, help="default: all")
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--start", type=int, default=0, help="number of the first case")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="one case, here, with its error")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        _work(given.kind, json.loads(sys.stdin.readline()))
        return 0
    if given.only is not None:
        _only(given.kind or "plans", given.only)
        return 0
    findings = 0
    for kind in [given.kind] if given.kind else KINDS:
        tally = run(kind, range(given.start, given.start + given.count))
        findings += len(tally.findings)
        print(report(kind, tally), flush=True)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
