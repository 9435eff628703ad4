"""The planner's table: 40 problems, half of them held out, searched for 15 and 60 s with two seeds.

    python -m benchmarks planner-table --name NEW [--limits 15 60] [--seeds 0 1] [--only ROW ...]
    python -m benchmarks planner-table --compare OLD NEW

The first half comes from problems that the planner was developed on. The held-out half comes from nets and
boards that it was not (`planner_nets`). Limits are seconds of a core's work, with that of the
engines' processes (`helpers.clocks.CoreClock`). So other load takes nothing from a search. Each search is a
process of its own on one thread. Results go to planner-NAME.jsonl under benchmarks/results/, one line a
search. A run that was stopped goes on. NAME is a commit, or says what was tried.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from poet.devices.device_problem import build_problem, kernels_on
from poet.devices.load import load_profile
from poet.planning.ram_survey import budget_between, keep_everything_bytes
from poet.problem import Limits, Place, Problem
from poet.problem.solution import SolveOptions
from poet.solvers import minimum_ram_bytes, solve

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from helpers.clocks import CoreClock  # noqa: E402

BUILD, RESULTS = ROOT / "build" / "planner", ROOT / "benchmarks" / "results"
HOMES = {"ram": Place.RAM, "auto": Place.EITHER}
DEARER = 0.02
"""By how much of a step's energy a row may become more expensive."""


@dataclass(frozen=True, slots=True)
class Question:
    """A problem and its budget.

    Attributes:
        net: its name here, or a problem file under tests/instances.
        device: a profile; empty: the file has the costs.
        home: where parameters are between steps.
        share: of the way from the least RAM that any schedule needs to keeping everything; of a published
            file, of the latter.
        held_out: nobody developed the planner on it.
    """

    net: str
    device: str
    home: str
    share: float
    held_out: bool

    @property
    def name(self) -> str:
        """As it is asked for."""
        return f"{self.net}:{self.device}:{self.home}:{self.share:g}"


def _questions() -> Iterator[Question]:
    pages = (
        ("ds-cnn", "stm32h743", "auto", 0.3), ("ds-cnn", "nrf52840", "ram", 0.15),
        ("resnet-8", "rpi4b-xnnpack", "ram", 0.15), ("resnet-8", "nrf52840", "auto", 0.3),
        ("mobilenet-v1", "stm32h743", "ram", 0.15), ("mobilenet-v1", "rpi4b-xnnpack", "ram", 0.3),
        ("residual-tcn", "stm32h743", "auto", 0.05), ("tcn", "rpi4b-xnnpack", "ram", 0.05),
        ("autoencoder", "nrf52840", "auto", 0.15), ("gru", "rpi4b-xnnpack", "ram", 0.3),
        ("gru", "stm32h743", "auto", 0.15),
        ("vit", "jetson-nano", "ram", 0.3), ("heartbeats", "esp32-s3", "auto", 0.3),
        ("mobilenet-v2", "stm32l4r5", "auto", 0.05),
        ("resnet18_cifar.m4", "", "ram", 0.2), ("family/bert.m4", "", "ram", 0.2),
        ("family/resnet50.m4", "", "ram", 0.0), ("family/resnet18.m4", "", "ram", 0.5),
        ("family/vgg16.a72", "", "ram", 0.2), ("densenet-like-12", "rpi4b", "ram", 0.15),
    )  # fmt: skip
    held_out = (
        ("dense", "rpi5", "auto", 0.1), ("dense", "imxrt1062", "ram", 0.3),
        ("u-net-1d", "stm32u575", "auto", 0.1), ("u-net-1d", "rp2350", "ram", 0.3),
        ("u-net-2d", "rpi-zero-2w", "auto", 0.1), ("u-net-2d", "esp32-s3", "ram", 0.5),
        ("gpt", "rpi3b-plus", "auto", 0.1), ("gpt", "stm32u575", "ram", 0.3),
        ("encoder", "pixel", "auto", 0.1), ("encoder", "imxrt1062", "auto", 0.3),
        ("gru-cells", "esp32-s3", "auto", 0.1), ("gru-cells", "jetson-orin-nano", "ram", 0.5),
        ("mobilenet-v3", "imxrt1062", "auto", 0.1), ("mobilenet-v3", "rpi5", "ram", 0.3),
        ("pointnet", "rp2350", "auto", 0.1), ("conv-autoencoder", "mkr1000", "ram", 0.3),
        ("mixer", "rpi-zero-2w", "ram", 0.15), ("wavenet", "stm32u575", "auto", 0.1),
        ("shufflenet", "esp32-s3", "ram", 0.15), ("inception", "stm32f746", "auto", 0.1),
    )  # fmt: skip
    yield from (Question(*row, held_out=False) for row in pages)
    yield from (Question(*row, held_out=True) for row in held_out)


QUESTIONS = tuple(_questions())


@dataclass(frozen=True, slots=True)
class Row:
    """One search.

    Attributes:
        question: its name.
        limit_seconds, seed: what was asked.
        status: of the answer.
        joules, bound_joules: of the plan and of the bound; ``baseline_joules`` runs every op once.
        seconds, plan_seconds: of a core: of the search, and until its last better plan.
        plans: after how many seconds each better plan was there, and its joules.
        bound_by: who found the bound.
    """

    question: str
    limit_seconds: float
    seed: int
    ops: int
    status: str
    joules: float | None
    bound_joules: float
    baseline_joules: float
    seconds: float
    plans: tuple[tuple[float, float], ...]
    plan_by: str
    bound_by: str

    @property
    def key(self) -> tuple[str, float, int]:
        """What was asked."""
        return self.question, self.limit_seconds, self.seed

    @property
    def open_share(self) -> float:
        """Of the overhead, not known to be needed."""
        if self.status in ("optimal", "infeasible"):
            return 0.0
        if self.joules is None:
            return 1.0
        overhead = self.joules - self.baseline_joules
        return max(0.0, self.joules - self.bound_joules) / overhead if overhead > 0.0 else 0.0


def problem_of(question: Question) -> Problem:
    """The planning problem; made once, in a process of its own, as torch is large."""
    if not question.device:
        return Problem.load(ROOT / "tests" / "instances" / f"{question.net}.json")
    path = BUILD / f"{question.net}.{question.device}.{question.home}.json"
    if not path.exists():
        subprocess.run([sys.executable, __file__, "--make", question.name], check=True, cwd=ROOT)
    return Problem.load(path)


def _make(question: Question) -> None:
    import torch
    from helpers.other_nets import OTHER_NETS
    from helpers.tiny_nets import MICRO_NETS
    from planner_nets import HELD_OUT
    from search_nets import DenseNetLike

    from poet.api import prepare

    BUILD.mkdir(parents=True, exist_ok=True)
    module: torch.nn.Module
    if question.net.startswith("densenet-like"):
        layers = int(question.net.rpartition("-")[2])
        module, example, loss = DenseNetLike(layers), torch.randn(8, 3, 32, 32), "cross-entropy"
    else:
        net = (HELD_OUT | MICRO_NETS | OTHER_NETS)[question.net]
        module, example, loss = net.build(), net.example(), net.loss
    prepared = prepare(module, example, device=question.device, loss=loss)
    graph, profile = prepared.step.graph, load_profile(question.device)
    kernels = kernels_on(profile, graph, prepared.step.kernels)
    problem = build_problem(graph, profile, kernels, home=HOMES[question.home])
    path = BUILD / f"{question.net}.{question.device}.{question.home}.json"
    temporary = path.with_suffix(".part")
    temporary.write_text(json.dumps(problem.to_json()))
    temporary.rename(path)


def searched(question: Question, limit_seconds: float, seed: int) -> Row:
    """One search in this process."""
    problem = problem_of(question)
    least, most = minimum_ram_bytes(problem, Limits()).bytes, keep_everything_bytes(problem)
    budget = budget_between(least, most, question.share) if question.device else round(question.share * most)
    limits = Limits(ram_budget_bytes=max(least, budget))
    solution = solve(problem, limits, SolveOptions(limit_seconds, seed=seed, clock=CoreClock()))
    record = solution.record
    return Row(
        question=question.name,
        limit_seconds=limit_seconds,
        seed=seed,
        ops=len(problem.ops),
        status=solution.status.word,
        joules=solution.joules,
        bound_joules=solution.bound_joules,
        baseline_joules=solution.baseline_joules,
        seconds=solution.solve_seconds,
        plans=tuple((plan.seconds, plan.amount) for plan in record.plans),
        plan_by=solution.solver,
        bound_by=record.bounds[-1].by if record.bounds else "",
    )


def rows_of(name: str) -> list[Row]:
    """The searches that are known under a name."""
    path = RESULTS / f"planner-{name}.jsonl"
    return [Row(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def run(
    name: str, questions: Sequence[Question], limits: Sequence[float], seeds: Sequence[int], jobs: int
) -> None:
    """Search what is not known yet, and keep each row as it comes."""
    known = {row.key for row in rows_of(name)}
    wanted = [
        (question, limit, seed)
        for limit in limits
        for seed in seeds
        for question in questions
        if (question.name, limit, seed) not in known
    ]
    for question in questions:
        problem_of(question)

    def one(asked: tuple[Question, float, int]) -> str:
        question, limit, seed = asked
        command = [sys.executable, __file__, "--one", question.name]
        command += ["--limits", str(limit), "--seeds", str(seed)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        return done.stdout.splitlines()[-1] if done.returncode == 0 else ""

    RESULTS.mkdir(exist_ok=True)
    with ThreadPoolExecutor(jobs) as pool, (RESULTS / f"planner-{name}.jsonl").open("a") as file:
        for asked, line in zip(wanted, pool.map(one, wanted), strict=True):
            if not line:
                print(f"failed: {asked}", file=sys.stderr)
                continue
            file.write(line + "\n")
            file.flush()
            row = Row(**json.loads(line))
            print(
                f"{row.question:42} {row.limit_seconds:3g} {row.seed} {row.status:10} {_above(row)}",
                flush=True,
            )


def _above(row: Row) -> str:
    plan = "no plan" if row.joules is None else f"+{row.joules / row.baseline_joules - 1.0:.3%}"
    return f"{plan}, {row.open_share:.1%} of the overhead is gap, {row.seconds:.1f} s"


def best_known(*names: str) -> dict[str, float]:
    """The cheapest plan of each problem that any run found, by any means."""
    best = dict[str, float]()
    for path in [RESULTS / f"planner-{name}.jsonl" for name in names] or RESULTS.glob("planner-*.jsonl"):
        for row in rows_of(path.stem.removeprefix("planner-")):
            if row.joules is not None:
                best[row.question] = min(row.joules, best.get(row.question, row.joules))
    return best


def compare(old: str, new: str) -> None:
    """Print each row of both, and how many became better or more expensive."""
    was, best = {row.key: row for row in rows_of(old)}, best_known()
    pairs = [(was[row.key], row) for row in rows_of(new) if row.key in was]
    held_out = {question.name for question in QUESTIONS if question.held_out}
    changes = dict[bool, list[float]]({False: [], True: []})
    for before, now in sorted(pairs, key=lambda pair: (pair[0].question in held_out, pair[0].key)):
        change = _change(before, now)
        changes[now.question in held_out].append(change)
        above = f"{above_best(before, best):7.3%} -> {above_best(now, best):7.3%}"
        gaps = f"{before.open_share:6.1%} -> {now.open_share:6.1%}"
        print(
            f"{'held out' if now.question in held_out else 'page':9}{now.question:42}{now.limit_seconds:4g} "
            f"{now.seed} {change:+8.3%} above best {above} gap {gaps} {before.status} -> {now.status}"
        )
    for is_held_out, found in changes.items():
        if found:
            cheaper, dearer = sum(x < -1e-4 for x in found), sum(x > 1e-4 for x in found)
            print(
                f"{'held out' if is_held_out else 'pages'}: {len(found)} searches; median "
                f"{statistics.median(found):+.3%}; cheaper in {cheaper}, more expensive in {dearer}, by more "
                f"than {DEARER:.0%} in {sum(x > DEARER for x in found)}"
            )
    for limit in sorted({now.limit_seconds for _, now in pairs}):
        rows = [now for _, now in pairs if now.question in held_out and now.limit_seconds == limit]
        late = [above_best(row, best) for row in rows]
        print(
            f"held out at {limit:g} s: {len(rows)} searches; above the best known by more than 5 % in "
            f"{sum(x > 0.05 for x in late)}, 1 % in {sum(x > 0.01 for x in late)}; within 2 % of the "
            f"overhead {sum(row.open_share <= 0.02 for row in rows)}"
        )


def _change(before: Row, now: Row) -> float:
    """Of the step's energy, by which the plan became more expensive; -1 and 1: there was none, or is none."""
    if before.joules is not None and now.joules is not None:
        return now.joules / before.joules - 1.0
    if before.status == now.status:
        return 0.0
    return -1.0 if before.joules is None else 1.0


def above_best(row: Row, best: dict[str, float]) -> float:
    """Of the step's energy, above the best plan known; all of it where there is none."""
    if row.question not in best:
        return 0.0
    return 1.0 if row.joules is None else row.joules / best[row.question] - 1.0


def main(arguments: Iterable[str] | None = None) -> None:
    """Search what is asked for, or compare two runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--name", help="of the run")
    parser.add_argument("--limits", nargs="+", type=float, default=[15.0, 60.0], metavar="SECONDS")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="TEXT", help="rows whose name has one of these"
    )
    parser.add_argument("--held-out", action="store_true", help="these rows alone")
    parser.add_argument("--jobs", type=int, default=1, help="searches at a time")
    parser.add_argument("--compare", nargs=2, metavar=("OLD", "NEW"))
    parser.add_argument("--make", help=argparse.SUPPRESS)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args(None if arguments is None else list(arguments))
    by_name = {question.name: question for question in QUESTIONS}
    if given.make:
        _make(by_name[given.make])
    elif given.one:
        print(json.dumps(asdict(searched(by_name[given.one], given.limits[0], given.seeds[0]))))
    elif given.compare:
        compare(*given.compare)
    elif given.name:
        questions = [
            question
            for question in QUESTIONS
            if (not given.only or any(text in question.name for text in given.only))
            and (question.held_out or not given.held_out)
        ]
        run(given.name, questions, given.limits, given.seeds, given.jobs)
    else:
        parser.error("say --name or --compare")


if __name__ == "__main__":
    main()
