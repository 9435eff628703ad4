"""Rounded pages: what they save where storage decides, how far gradients are off, and what is learnt so.

    python -m benchmarks rough-pages [--only NET ...] [--devices NAME ...] [--batches 8 1]
                                     [--seconds 10] [--fresh]

Training steps of the nets of `helpers.tiny_nets`, parameters in RAM, 15 % of the way from the least RAM that
any schedule needs to what keeping everything takes: planned with pages as they are, and with bf16 and int8
allowed. Of the nets that page, a step of each plan is replayed (`poet verify`) and its gradients are held
against plain PyTorch's. Then three nets learn scikit-learn's digits in 200 steps, with such plans and with
whole pages.

Rows are kept under build/rough-pages/, so that a run which was stopped goes on where it was. A search has one
thread and so many seconds of a core's work.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from result_file import RESULTS, write
from torch import Tensor, nn

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from helpers.clocks import CoreClock  # noqa: E402
from helpers.tiny_nets import MICRO_NETS  # noqa: E402

from poet.planning.planned import plan_step  # noqa: E402
from poet.planning.prepared import Prepared, prepare  # noqa: E402
from poet.planning.ram_survey import budget_between, keep_everything_bytes  # noqa: E402
from poet.planning.step_search import offered  # noqa: E402
from poet.problem import Limits  # noqa: E402
from poet.problem.solution import SolveOptions  # noqa: E402
from poet.runtime import Trainer  # noqa: E402
from poet.solvers import minimum_ram_bytes  # noqa: E402
from poet.verification import verify  # noqa: E402

BUILD = ROOT / "build" / "rough-pages"
DEVICES = ("stm32h743",)
ALLOWED: dict[str, tuple[str, ...]] = {
    "whole": (),
    "bf16": ("bf16-pages",),
    "int8": ("int8-pages",),
}
SHARE = 0.15
GOAL = 0.25
STEPS, BATCH, SEEDS = 200, 32, (0, 1, 2)


@dataclass(frozen=True, slots=True)
class Row:
    """A plan; ``overhead`` is energy above running every op once, as a share of it.

    Attributes:
        net, batch, device, pages: what was planned.
        status, overhead, open_share: of the plan; what of the overhead is open.
        written_bytes, rounded: per step; tensors that come back rounded.
        gradient_error, farthest: of a step from plain PyTorch's, over the norm; of the worst parameter.
    """

    net: str
    batch: int
    device: str
    pages: str
    status: str
    overhead: float
    open_share: float
    written_bytes: int
    rounded: int
    gradient_error: float | None = None
    farthest: float | None = None

    @property
    def key(self) -> tuple[str, int, str, str]:
        """What was planned."""
        return self.net, self.batch, self.device, self.pages


def limits_of(prepared: Prepared) -> Limits:
    problem = offered(prepared, Limits())
    least, most = minimum_ram_bytes(problem, Limits()).bytes, keep_everything_bytes(problem)
    return Limits(ram_budget_bytes=budget_between(least, most, SHARE))


def planned_row(net: str, batch: int, device: str, pages: str, seconds: float) -> Row:
    micro = MICRO_NETS[net]
    module = micro.build()
    inputs = torch.randn(batch, *micro.inputs[1:])
    prepared = prepare(module, inputs, device=device, loss=micro.loss, allow=ALLOWED[pages])
    planned = plan_step(prepared, limits_of(prepared), SolveOptions(seconds, clock=CoreClock()))
    plan = planned.plan
    once = plan.outcome.baseline_joules
    measured: dict[str, float] = {}
    if plan.rounded:
        path = BUILD / "plan.poet"
        planned.save(path)
        found = verify(path, module=module, threads=(1,), steps=1, allow_over_budget=True)
        if not found or found.rounding is None:
            sys.exit(f"{net} on {device}: {found}")
        worst = found.rounding.farthest[1]
        measured = {"gradient_error": found.rounding.gradient_error, "farthest": worst}
    return Row(
        net,
        batch,
        device,
        pages,
        plan.outcome.status,
        plan.trace.joules / once - 1.0,
        plan.outcome.overhead_gap,
        plan.trace.written_bytes,
        len(plan.rounded),
        **measured,
    )


# --- learning digits -------------------------------------------------------------------------------


def _mlp() -> nn.Module:
    layers = [nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)]
    return nn.Sequential(nn.Flatten(), *layers)


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip


def _normed() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1, stride=2), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Flatten(), nn.Linear(256, 10),
    )  # fmt: skip


LEARNERS = {"mlp": _mlp, "cnn": _cnn, "cnn with batch norm": _normed}


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images and labels, of a half to train on and of the other."""
    from sklearn.datasets import load_digits

    found = load_digits()
    images = torch.tensor(found.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(found.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    images, labels, half = images[order], labels[order], len(labels) // 2
    return images[:half], labels[:half], images[half:], labels[half:]


def learnt(net: str, pages: str) -> Iterator[dict[str, Any]]:
    """Accuracy on the other half after 200 steps with a plan for pages of that kind; a row for each seed."""
    images, labels, others, their_labels = digits()
    torch.manual_seed(0)
    module = LEARNERS[net]().train()
    prepared = prepare(
        module, images[:BATCH], device="stm32h743", optimizer="sgd:lr=0.1", allow=ALLOWED[pages]
    )
    limits = Limits(ram_budget_bytes=limits_of(prepared).ram_budget_bytes, recompute=False)
    planned = plan_step(prepared, limits, SolveOptions(2.0, clock=CoreClock()))
    path = BUILD / "learner.poet"
    planned.save(path)
    for seed in SEEDS:
        order = torch.Generator().manual_seed(seed)
        with Trainer.open(path, seed=seed, arena=False) as trainer:
            trainer.allow_over_budget = True
            for _ in range(STEPS):
                batch = torch.randint(len(labels), (BATCH,), generator=order)
                loss = trainer.step(images[batch], labels[batch]).loss
            module.load_state_dict(trainer.state_dict())
        with torch.no_grad():
            right = module.eval()(others).argmax(1) == their_labels
        yield {
            "net": net, "pages": pages, "seed": seed, "loss": loss, "accuracy": float(right.float().mean()),
            "rounded": len(planned.plan.rounded),
        }  # fmt: skip


# --- the page ------------------------------------------------------------------------------------


def page(rows: list[Row], learners: list[dict[str, Any]], seconds: float) -> str:
    known = {row.key: row for row in rows}
    rough = list(ALLOWED)[1:]
    asked = [key for key in dict.fromkeys(row.key[:3] for row in rows) if (*key, rough[-1]) in known]
    wholes = [_whole(rows, key) for key in asked]
    paging = [row for row in wholes if row.written_bytes]
    lines = [
        "# Rounded pages\n",
        "Made by `python -m benchmarks rough-pages`: training steps of the nets of",
        "`tests/helpers/tiny_nets.py`, parameters in RAM, 15 % of the way from the least RAM to keeping",
        f"everything; searches of {seconds:g} s of a core: the best of them that rounds nothing, beside that",
        "of each form, on a busy machine. *Overhead* is energy above running every op once, and what of it",
        "is open; *less* is how much less of it there is with rounded pages. *Gradients* is how far those of",
        "one step are from PyTorch's, as a share of their norm, and of the worst parameter's alone. Such a",
        "plan is not exact.\n",
        "| batch | device | pages | nets that page | with at least 25 % less overhead |",
        "|--:|---|---|--:|--:|",
    ]
    for batch, device in dict.fromkeys((row.batch, row.device) for row in paging):
        of = [row for row in paging if (row.batch, row.device) == (batch, device)]
        for pages in rough:
            good = sum(known[*row.key[:3], pages].overhead <= (1 - GOAL) * row.overhead for row in of)
            lines.append(f"| {batch} | {device} | {pages} | {len(of)} | {good} |")
    headings = "| net | batch | device | overhead | bf16 | less | gradients | int8 | less | gradients |"
    lines += ["", headings, "|---|--:|---|" + "--:|" * 7]
    for row in paging:
        cells = [row.net, str(row.batch), row.device, _overhead(row)]
        for found in (known[*row.key[:3], pages] for pages in rough):
            cells += [_overhead(found), f"{1 - found.overhead / row.overhead:.0%}", _errors(found)]
        lines.append(f"| {' | '.join(cells)} |")
    kept = [row for row in wholes if not row.written_bytes]
    kept += [row for row in rows if row.key[:3] not in asked and not row.written_bytes]
    if kept:
        lines += ["", f"Not paging: {', '.join(f'{row.net} at batch {row.batch}' for row in kept)}."]
    lines += [
        "",
        f"Accuracy on the other half of scikit-learn's digits after {STEPS} steps of {BATCH} images by SGD,",
        f"planned for stm32h743 without recomputation; mean of {len(SEEDS)} orders of the images, least and",
        "largest. Whole pages give the bits of plain PyTorch.\n",
        "| net | pages | tensors rounded | accuracy | loss of the last step |",
        "|---|---|--:|--:|--:|",
    ]
    for net in LEARNERS:
        for pages in ALLOWED:
            runs = [each for each in learners if (each["net"], each["pages"]) == (net, pages)]
            if runs:
                right = [each["accuracy"] for each in runs]
                spread = f"{sum(right) / len(runs):.1%} ({min(right):.1%} to {max(right):.1%})"
                loss = sum(each["loss"] for each in runs) / len(runs)
                lines.append(f"| {net} | {pages} | {runs[0]['rounded']} | {spread} | {loss:.4f} |")
    return "\n".join((*lines, ""))


def _whole(rows: list[Row], key: tuple[str, int, str]) -> Row:
    """The best plan that rounds nothing, whatever was allowed: searches are short."""
    return min((row for row in rows if row.key[:3] == key and not row.rounded), key=lambda row: row.overhead)


def _overhead(row: Row) -> str:
    return f"{row.overhead:.1%}, {row.open_share:.0%} open"


def _errors(row: Row) -> str:
    if row.gradient_error is None or row.farthest is None:
        return "nothing rounded"
    return f"{row.gradient_error:.2%}, {row.farthest:.2%}"


def _kept(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text().splitlines() if path.exists() else ():
        yield json.loads(line)


def _keep(path: Path, row: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(row, flush=True)


def main(arguments: Iterable[str] | None = None) -> None:
    """Measure what is not known yet; write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=MICRO_NETS, default=list(MICRO_NETS), help="these nets")
    parser.add_argument("--devices", nargs="+", default=list(DEVICES), help="these devices")
    parser.add_argument("--batches", nargs="+", type=int, default=[8, 1], help="samples of a step")
    parser.add_argument("--seconds", type=float, default=10.0, help="of a core, for each search")
    parser.add_argument("--fresh", action="store_true", help="forget earlier rows")
    given = parser.parse_args(None if arguments is None else list(arguments))
    BUILD.mkdir(parents=True, exist_ok=True)
    plans, learning = BUILD / f"plans-{given.seconds:g}s.jsonl", BUILD / "learning.jsonl"
    if given.fresh:
        plans.unlink(missing_ok=True)
        learning.unlink(missing_ok=True)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows = [Row(**each) for each in _kept(plans)]
    for key in itertools.product(given.batches, given.only, given.devices, ALLOWED):
        batch, net, device, pages = key
        done = {row.key: row for row in rows}
        whole = done.get((net, batch, device, "whole"))
        if (net, batch, device, pages) in done or (whole is not None and not whole.written_bytes):
            continue
        rows.append(planned_row(net, batch, device, pages, given.seconds))
        _keep(plans, asdict(rows[-1]))
    learners = list(_kept(learning))
    for net in LEARNERS:
        for pages in ALLOWED:
            if not any((each["net"], each["pages"]) == (net, pages) for each in learners):
                made = list(learnt(net, pages))
                learners += made
                for each in made:
                    _keep(learning, each)
    write(RESULTS / "rough-pages.json", page(rows, learners, given.seconds))


if __name__ == "__main__":
    main()
