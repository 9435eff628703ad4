"""Real learning with a chosen part of a net: scikit-learn's digits of other writers, turned and noisy.

    python -m benchmarks choose-digits [--seeds 0 1 2 3 4] [--epochs 20] [--write]

The digits stand in the order of their writers. A small net learns the first half in plain PyTorch. The second
half is turned and gets noise; three fifths of it fine-tune the net by planned steps, and the rest tests it.
Scores are the falls of the loss (`poet.contributions`), measured inside the RAM of the chosen plan.
``--write`` writes results/choose-digits.json. Seeds that are done are kept in build/choose-digits.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from result_file import RESULTS, ROOT, write
from scipy.ndimage import rotate
from sklearn.datasets import load_digits
from torch import Tensor, nn

import poet
from poet.planning.planned import Planned
from poet.runtime import Trainer
from poet.util.units import format_bytes, format_joules

PAGE, KEPT = RESULTS / "choose-digits.json", ROOT / "build" / "choose-digits"
DEVICE, BATCH, RATE = "stm32h743", 32, 0.01
DEGREES, NOISE = 45.0, 0.2
RAM_SHARE, ENERGY_SHARE, HEAD_SHARE = 0.42, 0.5, 1.2
HEAD = "15.*"
ASKED: dict[str, Any] = {"device": DEVICE, "optimizer": f"momentum:lr={RATE}", "time_limit_seconds": 40.0}
SCORE_SECONDS = 4.0  # of each search for a step that measures scores: any plan inside the RAM will do
SETS = ("everything", "head", "chosen")


@dataclass(frozen=True, slots=True)
class Row:
    """One seed and one set of parameters."""

    seed: int
    trained: str
    groups: tuple[str, ...]
    accuracy: float
    ram_bytes: int
    joules: float
    share: float
    bound: float


def net(width: int = 20, last: int = 32) -> nn.Sequential:
    """Six convolutions, four of them on all of the 8 x 8 pixels, and a layer of classes."""
    layers: list[nn.Module] = [nn.Conv2d(1, width, 3, padding=1), nn.ReLU()]
    for _ in range(3):
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.ReLU()]
    layers += [nn.MaxPool2d(2), nn.Conv2d(width, last, 3, padding=1), nn.ReLU()]
    layers += [nn.Conv2d(last, last, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    made = nn.Sequential(*layers, nn.Linear(4 * last, 10))
    for parameter in made.parameters():
        if parameter.dim() == 4:
            nn.init.kaiming_normal_(parameter, nonlinearity="relu")
    return made


def halves(seed: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Images and classes to learn first, to fine-tune on, and to test on."""
    digits = load_digits()
    images, classes = (digits.images / 16).astype(np.float32), torch.from_numpy(digits.target)
    half = len(images) // 2
    noise = np.random.default_rng(seed).normal(0, NOISE, images[half:].shape)
    turned = np.stack([rotate(image, DEGREES, reshape=False, order=1) for image in images[half:]]) + noise
    source, target = torch.from_numpy(images[:half])[:, None], torch.from_numpy(turned).float()[:, None]
    order = torch.randperm(len(target), generator=torch.Generator().manual_seed(seed))
    tuned, tested = order[: len(order) * 3 // 5], order[len(order) * 3 // 5 :]
    own = classes[half:]
    return (source, classes[:half]), (target[tuned], own[tuned]), (target[tested], own[tested])


def batches(data: tuple[Tensor, Tensor], epochs: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Whole batches in a new order in each epoch."""
    generator = torch.Generator().manual_seed(seed)
    every = [
        chosen
        for _ in range(epochs)
        for chosen in torch.split(torch.randperm(len(data[0]), generator=generator), BATCH)
        if len(chosen) == BATCH
    ]
    return [(data[0][chosen], data[1][chosen]) for chosen in every]


def accuracy(module: nn.Module, data: tuple[Tensor, Tensor]) -> float:
    """In percent."""
    with torch.no_grad():
        return 100 * float((module(data[0]).argmax(1) == data[1]).float().mean())


def trained(planned: Planned, given: Sequence[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """The state dict after a planned step on each batch, from the weights that the module has now."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.poet"
        planned.save(path)
        with Trainer.open(path) as trainer:
            for inputs, targets in given:
                trainer.step(inputs, targets)
            return trainer.state_dict()


class Experiment:
    """One module whose weights are those of a seed; what trains everything, or the head, is planned once."""

    def __init__(self, epochs: int) -> None:
        self.epochs, self.module = epochs, net()
        self.everything, self.head = self.planned(ram=None), self.planned(ram=None, train=[HEAD])
        most_bytes = RAM_SHARE * self.everything.peak_ram_bytes, HEAD_SHARE * self.head.peak_ram_bytes
        self.ram_bytes = int(min(most_bytes))

    def planned(self, **more: Any) -> Planned:
        """A plan for the module."""
        return poet.plan(self.module, torch.zeros(BATCH, 1, 8, 8), evaluation=False, **ASKED, **more)

    def rows(self, seed: int) -> list[Row]:
        """What a seed gives for each set of parameters."""
        torch.manual_seed(seed)
        self.module.load_state_dict(net().state_dict())
        source, tuned, tested = halves(seed)
        optimizer = torch.optim.SGD(self.module.parameters(), lr=0.02, momentum=0.9)
        for inputs, targets in batches(source, 12, seed):
            optimizer.zero_grad()
            torch.autograd.backward(nn.functional.cross_entropy(self.module(inputs), targets))
            optimizer.step()
        given = batches(tuned, self.epochs, seed)
        asked = {**ASKED, "ram": self.ram_bytes, "time_limit_seconds": SCORE_SECONDS}
        scores = poet.contributions(self.module, tuned[0][:BATCH], data=given, **asked)
        limits = {"ram": self.ram_bytes, "energy": ENERGY_SHARE * self.everything.joules}
        chosen = self.planned(choose=scores, most=True, **limits)
        rows = [Row(seed, "nothing", (), accuracy(self.module, tested), 0, 0.0, 0.0, 0.0)]
        for name, plan in zip(SETS, (self.everything, self.head, chosen), strict=True):
            after, costs = net(), (plan.peak_ram_bytes, plan.joules)
            after.load_state_dict(trained(plan, given))
            found = plan.plan.outcome.choice
            choice = (0.0, 0.0) if found is None else (found.contribution, found.bound)
            groups = () if found is None else found.groups
            rows.append(Row(seed, name, groups, accuracy(after, tested), *costs, *choice))
            print(rows[-1], flush=True)
        return rows


def page(rows: Sequence[Row], epochs: int) -> str:
    """The record in Markdown."""
    of = {name: [row for row in rows if row.trained == name] for name in ("nothing", *SETS)}
    full = of["everything"]

    def spread(name: str) -> tuple[float, float]:
        found = [row.accuracy for row in of[name]]
        return statistics.fmean(found), statistics.stdev(found)

    lines = [
        f"# Fine-tuning what a plan chooses: other writers' digits, turned by {DEGREES:g} degrees, noisy",
        f"`python -m benchmarks choose-digits --epochs {epochs} --write`",
        f"{DEVICE}, batches of {BATCH}, SGD of {RATE:g} with momentum 0.9, {epochs} epochs by planned steps, "
        f"replayed in PyTorch; joules are those of the profile; noise of deviation {NOISE:g}. The choice is "
        f"inside {RAM_SHARE:g} of the RAM and {ENERGY_SHARE:g} of the joules of everything kept in RAM, and "
        f"inside {HEAD_SHARE:g} of the RAM of the head. Accuracy is of images not trained on: mean over "
        "the seeds and its standard deviation.",
        "## Sets",
        "| trained | accuracy, % | deviation | RAM of a step | share | energy of a step | share |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name in ("nothing", *SETS):
        mean, deviation = spread(name)
        ram_bytes = round(statistics.fmean(row.ram_bytes for row in of[name]))
        joules = statistics.fmean(row.joules for row in of[name])
        ram_share = statistics.fmean(a.ram_bytes / b.ram_bytes for a, b in zip(of[name], full, strict=True))
        share = statistics.fmean(a.joules / b.joules for a, b in zip(of[name], full, strict=True))
        lines.append(
            f"| {name} | {mean:.2f} | {deviation:.2f} | {format_bytes(ram_bytes)} | {ram_share:.3f} | "
            f"{format_joules(joules)} | {share:.3f} |"
        )
    differences = {
        f"points {words}": [a.accuracy - b.accuracy for a, b in zip(of[one], of[other], strict=True)]
        for words, one, other in (
            ("below everything, at most 0.5", "everything", "chosen"),
            ("above the head, at least 5", "chosen", "head"),
        )
    }
    ram_of_head = max(a.ram_bytes / b.ram_bytes for a, b in zip(of["chosen"], of["head"], strict=True))
    lines += [
        "## Goals",
        "| goal | found | deviation |",
        "|---|--:|--:|",
        *(
            f"| {goal} | {statistics.fmean(found):.2f} | {statistics.stdev(found):.2f} |"
            for goal, found in differences.items()
        ),
        f"| RAM of the head, at most 1.2 | {ram_of_head:.3f} | |",
        "## Choices",
        "| seed | trained | share of the scores | bound |",
        "|--:|---|--:|--:|",
    ]
    for row in of["chosen"]:
        lines.append(f"| {row.seed} | {', '.join(row.groups)} | {row.share:.4f} | {row.bound:.4f} |")
    return "\n".join(_spaced(lines)) + "\n"


def _spaced(lines: Sequence[str]) -> list[str]:
    """A blank line between paragraphs and tables."""
    made: list[str] = []
    for line in lines:
        if made and not (line.startswith("|") and made[-1].startswith("|")):
            made.append("")
        made.append(line)
    return made


def main() -> None:
    """Run, print and keep."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(5)))
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)  # ops are small
    rows, experiment = [], None
    for seed in given.seeds:
        kept = KEPT / f"{given.epochs}-{DEGREES:g}-{NOISE:g}-{RATE:g}-{seed}.json"
        if not kept.exists():
            experiment = experiment or Experiment(given.epochs)
            found = [asdict(row) for row in experiment.rows(seed)]
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps(found))
        rows += [Row(**row) for row in json.loads(kept.read_text())]
    text = page(rows, given.epochs)
    print(text, end="")
    if given.write:
        write(PAGE, text)


if __name__ == "__main__":
    main()
