"""What to train inside a budget, against greedy and evolutionary choices: results/choose.json.

    python -m benchmarks choose [--only ds-cnn ...] [--devices nrf52840 ...] [--time-limit 60]

Each net's layers are groups, scored by the Fisher information of their gradients on one random batch. RAM and
energy are shares of what training everything takes. All three choose inside the same limits; each set counts
only with a plan that the simulator and the arena accept. The others test sets by the relaxation, which
refuses none that has a plan, and take the best of theirs that has one. Rows that are asked for take the place
of those in the file.
"""

from __future__ import annotations

import argparse
import itertools
from dataclasses import replace
from typing import Any

import torch
from helpers.clocks import OwnTime
from helpers.other_nets import _Inverted
from helpers.tiny_nets import MICRO_NETS, MicroNet
from other_choices import by_evolution, by_score_per_byte
from result_file import RESULTS, read, write
from torch import nn

from poet.errors import PoetError
from poet.frontend.losses import loss_named
from poet.planning.candidates import Candidates, candidates_of
from poet.planning.choice import Group, Scores
from poet.planning.choosing import Search
from poet.planning.climbing import Climber
from poet.planning.prepared import prepare
from poet.planning.ram_survey import keep_everything_bytes
from poet.problem import Limits
from poet.problem.solution import SolveOptions
from poet.solvers import has_schedules, minimum_ram_bytes
from poet.solvers.bounds.optional_ops import Groups, Relaxation

DEVICES = ("stm32h743", "nrf52840")
RAM_SHARE, ENERGY_SHARE = 0.5, 0.6
EVALUATIONS = 1000
_SECONDS = 10.0  # of processor time, for each
_TRIES = 12  # plans of a baseline's sets that are tried, the best first


def _mobilenet_v2() -> nn.Module:
    """MobileNetV2 with 0.35 of the width (Sandler et al. 2018), for 96 x 96 pixels and two classes."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU6()]
    before = 16
    for widening, after, count, stride in (
        (1, 8, 1, 1), (6, 8, 2, 2), (6, 16, 3, 2), (6, 24, 4, 2),
        (6, 32, 3, 1), (6, 56, 3, 2), (6, 112, 1, 1),
    ):  # fmt: skip
        for number in range(count):
            layers.append(_Inverted(before, after, stride if number == 0 else 1, widening))
            before = after
    layers += [nn.Conv2d(before, 1280, 1, bias=False), nn.BatchNorm2d(1280), nn.ReLU6()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 2))


NETS = {
    **{name: MICRO_NETS[name] for name in ("ds-cnn", "resnet-8", "mobilenet-v1", "autoencoder")},
    "mobilenet-v2-0.35": MicroNet(_mobilenet_v2, (1, 3, 96, 96)),
}


CASES = tuple(itertools.product(NETS, DEVICES))


def scores_of(module: nn.Module, net: MicroNet) -> tuple[Scores, list[int]]:
    """A group for each layer, scored by the squares of its gradients; and the bytes of its parameters."""
    inputs, loss = net.example(), loss_named(net.loss)
    outputs = module(inputs)
    targets = inputs if net.loss == "mse" else torch.zeros(len(inputs), dtype=torch.int64)
    module.zero_grad()
    loss.of(outputs, [targets]).backward()  # type: ignore[no-untyped-call]
    groups, sizes = [], []
    for name, part in module.named_modules():
        own = {f"{name}.{key}" if name else key: item for key, item in part.named_parameters(recurse=False)}
        if own:
            square = sum(float((item.grad**2).sum()) for item in own.values() if item.grad is not None)
            groups.append(Group(tuple(own), square**0.5))
            sizes.append(sum(item.numel() * item.element_size() for item in own.values()))
    return Scores(tuple(groups)), sizes


def row_of(name: str, device: str, time_limit_seconds: float) -> tuple[Any, ...]:
    """Choose in three ways inside the same limits: a row of the table."""
    net = NETS[name]
    torch.manual_seed(0)
    module = net.build()
    scores, sizes = scores_of(module, net)
    prepared = prepare(module, net.example(), device=device, loss=net.loss)
    candidates = candidates_of(prepared, scores)
    most_bytes = keep_everything_bytes(prepared.problem)
    limits = Limits(
        ram_budget_bytes=int(RAM_SHARE * most_bytes),
        joules_budget=ENERGY_SHARE * prepared.problem.compute_joules,
    )
    frozen = candidates.optional().of(())
    if not has_schedules(frozen, limits):
        least_bytes = minimum_ram_bytes(frozen).bytes
        limits = replace(limits, ram_budget_bytes=int(least_bytes + RAM_SHARE * (most_bytes - least_bytes)))
    clock = OwnTime()
    options = SolveOptions(time_limit_seconds=time_limit_seconds, clock=clock)
    began = clock.now()
    attempt = candidates.attempt(limits, options, is_enough=True)
    search = Search(candidates.optional(), limits, attempt, options, None)
    found = search.run()
    seconds = clock.now() - began
    relaxation, climber = Relaxation(search.step, limits), Climber(search.step)

    def fits(groups: Groups) -> bool:
        """The relaxation's answer; where ops take too much already, without asking it."""
        return climber.fits(groups, limits.joules_budget or 0.0) and relaxation.admits(groups)

    greedy = by_score_per_byte(scores.shares, sizes, fits)
    cut = [
        Groups(sorted(greedy, key=lambda g: scores.shares[g])[n:]) for n in range(min(len(greedy), _TRIES))
    ]
    evolved = [*by_evolution(scores.shares, fits, evaluations=EVALUATIONS)][:_TRIES]
    shares = [_first_with_a_plan(sets, candidates, limits) for sets in (cut, evolved)]
    amounts = (round(amount, 4) for amount in (found.share, search.bound, round(seconds, 1), *shares))
    return name, device, len(scores.group), limits.ram_budget_bytes, *amounts


def _first_with_a_plan(sets: list[Groups], candidates: Candidates, limits: Limits) -> float:
    """What the first of ``sets`` contributes that has a plan; 0 where none has."""
    attempt = candidates.attempt(limits, SolveOptions(clock=OwnTime()), is_enough=True)
    for groups in sets:
        try:
            planned = attempt(groups, _SECONDS)
        except PoetError:
            continue
        if planned.joules is not None:
            return sum(candidates.scores.shares[group] for group in groups)
    return 0.0


def page(rows: list[tuple[Any, ...]]) -> str:
    """results/choose.json."""
    proven = sum(row[5] - row[4] <= 0.01 for row in rows)
    below = sum(max(row[7:]) > row[4] + 1e-4 for row in rows)
    above = sum(max(row[7:]) < row[4] - 1e-4 for row in rows)
    lines = [
        "# What to train", "", "Made by `python -m benchmarks choose`.",
        f"Layers are groups, scored by the norm of their gradients; RAM is {RAM_SHARE:.0%} of keeping",
        "everything (of what that takes above the least with nothing trained, where parameters alone take",
        f"more, as in the autoencoder), energy {ENERGY_SHARE:.0%} of running every op once. *Evolution* had",
        f"{EVALUATIONS:,} evaluations. Seconds are of processor time, of 60 at most.", "",
        f"- Cases that were run: {len(rows)} of {len(CASES)}.",
        f"- Within 1 % of the bound: {proven} of {len(rows)}.",
        f"- Below greedy or evolution: {below} of {len(rows)}; above both: {above}.", "",
        "| net | device | groups | RAM | contribution | bound | seconds | greedy | evolution |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]  # fmt: skip
    lines += [f"| {' | '.join(map(str, row))} |" for row in rows]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Rows that are asked for, each put into the file as it is done."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=list(NETS), choices=NETS)
    parser.add_argument("--devices", nargs="*", default=list(DEVICES), choices=DEVICES)
    parser.add_argument("--time-limit", type=float, default=60.0)
    arguments = parser.parse_args()
    path = RESULTS / "choose.json"
    rows = {row[:2]: row for table in read(path).tables for row in table.rows} if path.exists() else {}
    for case in itertools.product(arguments.only, arguments.devices):
        rows[case] = row_of(*case, arguments.time_limit)
        print(rows[case], flush=True)
        write(path, page([rows[case] for case in CASES if case in rows]))


if __name__ == "__main__":
    main()
