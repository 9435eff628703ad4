"""Steps on several units: what choosing the unit of each op brings, in results/units.json.

    python -m benchmarks units-table [--parts rivals phone host random] [--seconds 10] [--random 500]
                                     [--pairs 7] [--folder build/units]

*rivals*: two units on published problem files, each alone and both (the setting of Schuler et al., XEngine,
TACO 2022). *phone*: energy against deadline of a phone on its four cores, on one, and on whichever is best.
*host*: threads per op against a fixed number, measured on this machine. *random*: problems of 3 to 5 ops
against exhaustive search. The tables of the parts that are asked for take the place of those in the file.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from helpers.on_units import judged
from helpers.tiny_nets import MICRO_NETS
from result_file import RESULTS, ROOT, read, write

from poet.planning.planned import plan_step
from poet.planning.prepared import Prepared, prepare
from poet.planning.ram_survey import budget_between, keep_everything_bytes
from poet.planning.step_search import offered
from poet.problem import Handing, Limits, Objective, OnUnit, Problem, ProblemOp, Unit
from poet.problem.schedule import Compute
from poet.problem.solution import Solution, SolveOptions, Start, Status
from poet.problem.units import assigned_by, on_units, with_units
from poet.runtime import Trainer
from poet.runtime.data.random_batches import random_step
from poet.runtime.system.process import torch_threads
from poet.solvers import minimum_ram_bytes, solve
from poet.util.units import format_bytes, format_joules, format_seconds, format_share

FILES = ("linear.a72", "transformer.a72", "vgg16_cifar.a72", "resnet18_cifar.a72")
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Budgets: of the way from the least RAM to keeping everything."""
DENSE = ("conv", "linear", "qkv", "qkt")
DENSE_FACTOR, OTHER_FACTOR = 0.6, 2.0
"""Of an op's seconds on the second unit: matrix products, convolutions and their gradients; others."""
FEW_OPS, FEW_FACTOR = 60, 5.0
"""Problems of so few ops are to be proven, and may take longer by so much."""
HANDING = Handing(5e-6, 0.0, 1.0 / 2.24e9, 0.0)
"""A copy in the RAM of a Raspberry Pi 4 (2.24 GB/s by tinymembench), and a call."""
FACTORS = (1.0, 1.1, 1.2, 1.35, 1.5, 2.0)
"""Deadlines: of running every op once on the fastest units."""
HOST_NETS = ("resnet-8", "ds-cnn", "mobilenet-v1", "autoencoder", "tcn", "mlp")
BATCH = 16


def two_units(problem: Problem, *, ram_bytes: int | None = None) -> Problem:
    """``problem`` with a second unit, which is faster at dense ops alone."""
    count = len(problem.ops)

    def on(number: int, op: ProblemOp) -> ProblemOp:
        forward = problem.ops[min(number, count - 1 - number)].name.rpartition("_")[2].split(":")[-1]
        name = forward.lower().removeprefix("layer").lstrip("0123456789_")
        dense = any(word in name for word in DENSE)
        factor = DENSE_FACTOR if dense else OTHER_FACTOR
        return replace(op, on=(OnUnit("second", factor * op.seconds, factor * op.joules),))

    return replace(
        problem,
        ops=tuple(on(number, op) for number, op in enumerate(problem.ops)),
        units=(Unit("second", HANDING, ram_bytes=ram_bytes),),
    )


def alone(problem: Problem, unit: str) -> Problem:
    """``problem`` on one unit."""
    return on_units(problem, {op.name: unit for op in problem.ops if unit})


def _best_alone(singles: Sequence[Solution]) -> Start:
    """The plan of the main unit or the second one, as a start on both."""
    plans = [
        (each.trace.seconds, number, with_units(each.schedule, {step.op: unit for step in each.schedule
         if isinstance(step, Compute)}))
        for number, (unit, each) in enumerate(zip(("", "second"), singles, strict=True))
        if each.trace is not None and each.schedule is not None
    ]  # fmt: skip
    return Start(min(plans)[2]) if plans else Start()


def line(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def told(found: Solution) -> str:
    if found.trace is None:
        return found.status.word
    return f"{format_seconds(found.trace.seconds)}{'' if found.status is Status.OPTIMAL else ' *'}"


def rivals(chosen: argparse.Namespace) -> Iterator[str]:
    options = SolveOptions(chosen.seconds, objective=Objective.TIME)
    yield "## Two units on problem files"
    yield (
        f"The second unit takes {DENSE_FACTOR} of the time at convolutions, matrix products and their "
        f"gradients and {OTHER_FACTOR} at all else; each tensor that crosses costs 5 µs and its bytes at "
        "2.24 GB/s. The ratio is chosen here: the per-op times of the paper were not at hand. Least time, no "
        f"paging, at most {chosen.seconds:g} s for each search, and {FEW_FACTOR:g} times that with at most "
        f"{FEW_OPS} ops, that on both from the better plan on one; * not proven optimal in that time. Other "
        "work ran on this machine meanwhile."
    )
    yield line(
        "problem", "ops", "budget", "", "main alone", "second alone", "both", "gain", "gap",
        "ops on the second",
    )  # fmt: skip
    yield line(*("---",) * 10)
    gains, worse = [], 0
    for name in FILES:
        path = ROOT / "tests" / "instances" / f"{name}.json"
        path = path if path.exists() else path.parent / "family" / path.name
        problem = two_units(Problem.load(path))
        limits, few = Limits(paging=False), len(problem.ops) <= FEW_OPS
        options = replace(options, time_limit_seconds=FEW_FACTOR * chosen.seconds if few else chosen.seconds)
        least, most = minimum_ram_bytes(problem, limits).bytes, keep_everything_bytes(problem)
        for share in SHARES:
            inside = replace(limits, ram_budget_bytes=budget_between(least, most, share))
            singles = [solve(alone(problem, unit), inside, options) for unit in ("", "second")]
            start = _best_alone(singles)
            both = solve(problem, inside, replace(options, start=start))
            times = [each.trace.seconds for each in singles if each.trace is not None]
            own = None if both.trace is None else both.trace.seconds
            gain = 0.0 if own is None or not times else 1.0 - own / min(times)
            worse += own is not None and bool(times) and own > min(times) * (1 + 1e-9)
            worse += own is None and bool(times)
            gains.append(gain)
            second = len(assigned_by(problem, both.schedule)) if both.schedule is not None else 0
            row = line(
                name, len(problem.ops), format_share(share), format_bytes(inside.ram_budget_bytes or 0),
                *map(told, (*singles, both)), format_share(gain),
                "" if both.objective_gap is None else format_share(both.objective_gap), second,
            )  # fmt: skip
            print(row, flush=True)
            yield row
    yield f"Slower than the best alone: {worse} of {len(gains)}. {format_share(max(gains))} gained at most."
    yield from _with_small_ram(SolveOptions(chosen.seconds, objective=Objective.TIME))


def _with_small_ram(options: SolveOptions) -> Iterator[str]:
    yield "## A unit whose own RAM is too small"
    yield (
        "The second unit has RAM of its own for the op that it runs: half of what the largest op holds. "
        "Alone it runs no plan; the largest ops are on the main unit. All that the others read and make is "
        "handed over."
    )
    yield line("problem", "RAM of the second unit", "second alone", "main alone", "both", "ops on the second")
    yield line(*("---",) * 6)
    for name in FILES[:3]:
        path = ROOT / "tests" / "instances" / "family" / f"{name}.json"
        whole = Problem.load(path)
        sizes = {tensor.name: tensor.bytes for tensor in whole.tensors}
        held = max(sum(sizes[each] for each in {*op.inputs, *op.outputs}) for op in whole.ops)
        problem = two_units(whole, ram_bytes=held // 2)
        fits = sum(bool(problem.offers()(op)) for op in problem.ops)
        main, both = (solve(each, Limits(paging=False), options) for each in (alone(problem, ""), problem))
        chosen_ops = len(assigned_by(problem, both.schedule or ()))
        row = line(
            name, format_bytes(held // 2), f"no plan: {fits} of {len(problem.ops)} ops fit",
            told(main), told(both), chosen_ops,
        )  # fmt: skip
        print(row, flush=True)
        yield row


def phone(chosen: argparse.Namespace) -> Iterator[str]:
    yield "## Energy against deadline on a phone"
    yield (
        "`pixel` by its profile, images of 32 x 32 in batches of 8: on four cores, on one, and op by op on "
        "whichever is best. Deadlines are relative to running every op once on the fastest units; the RAM is "
        f"three quarters of the way to keeping everything. At most {chosen.seconds:g} s for each search."
    )
    yield line("net", "deadline", "four cores", "one core", "op by op", "gain", "gap", "ops on one core")
    yield line(*("---",) * 8)
    for net in ("resnet-8", "mobilenet-v1"):
        prepared = _prepared(net, 8, "pixel")
        problem = offered(prepared, Limits()).resolved(())
        budget = budget_between(minimum_ram_bytes(problem).bytes, keep_everything_bytes(problem), 0.75)
        for factor in FACTORS:
            limits = Limits(ram_budget_bytes=budget, deadline_seconds=factor * problem.compute_seconds)
            options = SolveOptions(chosen.seconds)
            singles = [solve(alone(problem, unit), limits, options) for unit in ("", "one-core")]
            both = solve(problem, limits, options)
            joules = [each.joules for each in singles if each.joules is not None]
            gain = 1.0 - both.joules / min(joules) if both.joules is not None and joules else 0.0
            cells = [
                "none" if each.joules is None else format_joules(each.joules) for each in (*singles, both)
            ]
            row = line(
                net, f"{factor:g} x, {format_seconds(limits.deadline_seconds or 0.0)}", *cells,
                format_share(gain), "" if both.gap is None else format_share(both.gap),
                f"{len(assigned_by(problem, both.schedule or ()))} of {len(problem.ops)}",
            )  # fmt: skip
            print(row, flush=True)
            yield row


def _prepared(net: str, batch: int, device: str) -> Prepared:
    made = MICRO_NETS[net]
    torch.manual_seed(0)
    return prepare(made.build(), torch.randn(batch, *made.inputs[1:]), device=device, loss=made.loss)


def host(chosen: argparse.Namespace) -> Iterator[str]:
    yield "## Threads per op on this machine"
    yield (
        "Each op on one thread or on two, by its times measured alone, against the whole step on one and on "
        f"two: medians of {chosen.pairs} rounds of 10 steps, one after the other in turn; *against the best "
        "fixed* is the median of the rounds' ratios."
    )
    yield line(
        "net", "ops on one thread", "one thread", "two threads", "per op", "against the best fixed",
        "rounds won",
    )  # fmt: skip
    yield line(*("---",) * 7)
    for net in HOST_NETS:
        row = _host_row(net, chosen.pairs, chosen.folder)
        print(row, flush=True)
        yield row


def _host_row(net: str, rounds: int, folder: Path) -> str:
    seconds: dict[int, dict[str, float]] = {}
    for count in (1, 2):
        with torch_threads(count):
            prepared = _prepared(net, BATCH, "x86-host")
            found = prepared.step.kernels.ops
            seconds[count] = {op.name: op.seconds or 0.0 for op in found}
    problem = replace(
        prepared.problem,
        ops=tuple(
            replace(
                op,
                seconds=seconds[2].get(op.name, op.seconds),
                on=(OnUnit("one-thread", seconds[1].get(op.name, op.seconds), op.joules),),
            )
            for op in prepared.problem.ops
        ),
        units=(Unit("one-thread", Handing(_switch_seconds()), threads=1),),
    )
    prepared = replace(prepared, problem=problem)
    with torch_threads(2):
        planned = plan_step(prepared, Limits(), SolveOptions(10.0, objective=Objective.TIME))
        mixed = folder / f"{net}-mixed.poet"
        planned.save(mixed)
        plain = folder / f"{net}-fixed.poet"
        plan_step(replace(prepared, problem=alone(problem, "")), Limits(), SolveOptions(2.0)).save(plain)
    batch = random_step(planned.plan, 0)
    with (
        Trainer.open(plain, arena=False) as one,
        Trainer.open(plain, arena=False) as two,
        Trainer.open(mixed, arena=False) as own,
    ):
        ways = {"one": (one, 1), "two": (two, 2), "own": (own, 2)}
        times: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(rounds + 1):
            for name, (trainer, count) in ways.items():
                with torch_threads(count):
                    began = time.perf_counter()
                    for _ in range(10):
                        trainer.step(*batch)
                    if number:
                        times[name].append((time.perf_counter() - began) / 10.0)
    best = [min(pair) for pair in zip(times["one"], times["two"], strict=True)]
    medians = {name: statistics.median(found) for name, found in times.items()}
    fixed = min(("one", "two"), key=medians.__getitem__)
    ratio = statistics.median(a / b for a, b in zip(times["own"], times[fixed], strict=True))
    won = sum(own < other for own, other in zip(times["own"], best, strict=True))
    return line(
        net, f"{len(planned.plan.own_threads())} of {len(problem.ops)}",
        *(format_seconds(medians[name]) for name in ("one", "two", "own")),
        f"{ratio:.3f} x", f"{won} of {rounds}",
    )  # fmt: skip


def _switch_seconds() -> float:
    """What changing the number of threads takes, half of there and back, around an op that uses them."""
    a = torch.randn(256, 256)
    with torch_threads(2):
        spent = []
        for changes in (False, True) * 15:
            began = time.perf_counter()
            for _ in range(20):
                if changes:
                    torch.set_num_threads(1)
                a @ a
                torch.set_num_threads(2)
                a @ a
            spent.append((changes, (time.perf_counter() - began) / 40.0))
    return max(0.0, min(s for c, s in spent if c) - min(s for c, s in spent if not c))


def random_problems(chosen: argparse.Namespace) -> Iterator[str]:
    yield "## Random problems against exhaustive search"
    yield (
        "3 to 5 ops on two or three units with hand-overs, some with RAM of their own, deadlines, pins "
        "and alternatives; 6 s for each search."
    )
    yield line("problems", "have a plan", "equal", "proven optimal", "no bound above the optimum")
    yield line(*("---",) * 5)
    verdicts = []
    for seed in range(chosen.random):
        verdicts.append(judged(seed, SolveOptions(6.0)))
        if not verdicts[-1].is_equal:
            print(f"seed {seed} differs", flush=True)
    feasible = [each for each in verdicts if each.has_plan]
    yield line(
        len(verdicts), len(feasible), sum(each.is_equal for each in verdicts),
        sum(each.is_optimal for each in feasible), sum(each.holds for each in verdicts),
    )  # fmt: skip


PARTS: dict[str, Callable[[argparse.Namespace], Iterator[str]]] = {
    "rivals": rivals, "phone": phone, "host": host, "random": random_problems,
}  # fmt: skip


def main(arguments: Sequence[str]) -> None:
    """Make the parts that are asked for, and put each into the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="*", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--random", type=int, default=500)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "units")
    chosen = parser.parse_args(arguments)
    chosen.folder.mkdir(parents=True, exist_ok=True)
    path = RESULTS / "units.json"
    found = _sections(str(read(path))) if path.exists() else {}
    for name in chosen.parts:
        found |= _sections(_page(list(PARTS[name](chosen))))
        head = "# Several units\n\nMade by `python -m benchmarks units-table`.\n\n"
        write(path, head + "\n".join(found.values()))


def _sections(page: str) -> dict[str, str]:
    """What stands below each heading of a page, with it."""
    return {part.partition("\n")[0]: part for part in re.split(r"(?m)^(?=## )", page)[1:]}


def _page(lines: Sequence[str]) -> str:
    """Rows of a table on lines of their own, else paragraphs."""
    text = ""
    for each in lines:
        text += ("" if each.startswith("|") and text.endswith("|\n") else "\n") + each + "\n"
    return text


if __name__ == "__main__":
    main(sys.argv[1:])
