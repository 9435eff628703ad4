"""A frozen base in 4 or 8 bits: seconds of a step, error of gradients, a small GPT fine-tuned; in C.

    python -m benchmarks quantised-base [--only overhead gradients gpt c99] [--write]

The decoder of Qwen2.5-0.5B's shape is `python -m benchmarks language-model --base q4_0 --gradients logits`.
``--write`` writes results/quantised-base.json; parts that were not asked for stay as they are there.
"""

from __future__ import annotations

import argparse
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import c99_table
import mlperf_tiny
import numpy as np
import torch
from helpers.clocks import OwnTime
from mlperf_tiny import BenchmarkNet
from result_file import RESULTS, read, write
from torch import Tensor, nn
from torch.nn import functional as F
from zoo import NETS, Size
from zoo.decoder import ADAPTERS, Decoder

import poet
from poet.c99.project import c_project
from poet.ir.packed import FORMATS
from poet.planning.planned import plan_step
from poet.planning.prepared import Prepared, prepare
from poet.plans.plan_file import PlanFile
from poet.problem import Limits
from poet.problem.solution import SolveOptions
from poet.runtime import Trainer
from poet.solvers import minimum_ram_bytes
from poet.util.units import format_share

PAGE = RESULTS / "quantised-base.json"
LOSS = "cross-entropy:dim=-1"
BASES = (None, *FORMATS)
ROUNDS, STEPS, LETTERS, LENGTH, BATCH = 5, 4, 32, 64, 8
PRETRAINED, TUNED, SHOWN = 300, 300, 50


def planned(module: nn.Module, inputs: Tensor, base: str | None, folder: Path, **more: object) -> Path:
    """A plan of training ``module`` that keeps everything."""
    given: dict[str, object] = {"loss": LOSS, "train": ADAPTERS, "evaluation": False, "time_limit_seconds": 3}
    path = folder / f"{base}.poet"
    poet.plan(module, inputs, device="rpi4b", ram=None, base=base, **(given | more)).save(path)  # type: ignore[arg-type]
    return path


def overhead_rows() -> Iterator[str]:
    """Two layers of Qwen2.5-0.5B's width and 4,096 words, 256 tokens: a step of each base in turn."""
    torch.manual_seed(0)
    module = Decoder(layers=2, words=4096, length=256)
    tokens = torch.randint(4096, (1, 256))
    seconds: dict[str | None, list[float]] = {base: [] for base in BASES}
    with tempfile.TemporaryDirectory() as scratch:
        paths = {base: planned(module, tokens, base, Path(scratch)) for base in BASES}
        for _ in range(ROUNDS):
            for base, path in paths.items():  # one at a time has its memory laid out
                with Trainer.open(path, seed=0) as trainer:
                    seconds[base].append(_step_seconds(trainer, tokens))
    plain = seconds[None]
    for base, taken in seconds.items():
        ratio = statistics.median(one / other for one, other in zip(taken, plain, strict=True))
        yield f"| {base or 'float32'} | {statistics.median(taken):.3f} s | {ratio:.2f} |"


def _step_seconds(trainer: Trainer, tokens: Tensor) -> float:
    """Of the fastest of a few steps; the first one maps memory."""
    taken = []
    for _ in range(STEPS):
        begun = time.perf_counter()
        trainer.step(tokens, tokens)
        taken.append(time.perf_counter() - begun)
    return min(taken[1:])


def text(seed: int, count: int) -> Tensor:
    """Letters of a language that is made here: each depends on the two before it, by a table of its seed."""
    generator = np.random.default_rng(seed)
    table = generator.dirichlet(np.full(LETTERS, 0.05), (LETTERS, LETTERS)).cumsum(2)
    letters = [0, 1]
    for drawn in generator.random(count):
        letters.append(min(int(np.searchsorted(table[letters[-2], letters[-1]], drawn)), LETTERS - 1))
    return torch.tensor(letters)


def batches(letters: Tensor, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Pieces of a text, and the same one letter on."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(len(letters) - LENGTH - 1, (BATCH,), generator=generator)
        pieces = torch.stack([letters[start : start + LENGTH + 1] for start in starts])
        yield pieces[:, :-1].contiguous(), pieces[:, 1:].contiguous()


def pretrained() -> Decoder:
    """A GPT of four layers that knows one text."""
    torch.manual_seed(0)
    net = Decoder(layers=4, width=128, heads=4, shared_heads=2, inner=352, words=LETTERS, length=LENGTH)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    given = batches(text(0, 40_000), 0)
    for _ in range(PRETRAINED):
        tokens, targets = next(given)
        optimizer.zero_grad()
        loss = F.cross_entropy(net(tokens).flatten(0, 1), targets.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    print(f"pretrained: loss {F.cross_entropy(net(tokens).flatten(0, 1), targets.flatten()):.3f}", flush=True)
    return net


def gpt_rows(net: Decoder) -> Iterator[str]:
    """Adapters of rank 8 fine-tuned on another text, on each base: means of the loss over steps."""
    tuned = text(1, 40_000)
    first, _ = next(batches(tuned, 1))
    curves: dict[str | None, list[float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for base in BASES:
            path = planned(net, first, base, Path(scratch), optimizer="adamw:lr=0.003")
            with Trainer.open(path, seed=0) as trainer:
                given = batches(tuned, 1)
                curves[base] = [trainer.step(*next(given)).loss for _ in range(TUNED)]
            print(base, curves[base][0], statistics.mean(curves[base][-SHOWN:]), flush=True)
    for start in range(0, TUNED, SHOWN):
        means = [statistics.mean(curve[start : start + SHOWN]) for curve in curves.values()]
        largest = max(abs(mean / means[0] - 1) for mean in means[1:])
        cells = " | ".join(f"{mean:.4f}" for mean in means)
        yield f"| {start + 1} to {start + SHOWN} | {cells} | {format_share(largest)} |"


def gradient_rows(net: Decoder) -> Iterator[str]:
    """How far the gradients of a step are from those of the float32 base: of all together, by their norms."""
    tokens, targets = next(batches(text(1, 4000), 1))
    resnet = NETS["resnet18"].medium or NETS["resnet18"].full
    torch.manual_seed(0)
    images = resnet.inputs(8)
    shapes: dict[str, tuple[nn.Module, Tensor, Tensor, dict[str, object]]] = {
        "GPT, adapters": (net, tokens, targets, {}),
        "ResNet-18, last layers": (
            resnet.build().train(), images[0], torch.arange(8) % 10,
            {"loss": "cross-entropy", "train": ("stages.3.*", "fc*")},
        ),
    }  # fmt: skip
    for name, (module, given, wanted, more) in shapes.items():
        found: dict[str | None, Tensor] = {}
        losses = {}
        with tempfile.TemporaryDirectory() as scratch:
            for base in BASES:
                taken: dict[str, Tensor] = {}
                with Trainer.open(planned(module, given, base, Path(scratch), **more), seed=0) as trainer:
                    tap: Callable[[str, Tensor], None] = lambda key, item: taken.update({key: item.clone()})  # noqa: B023, E731
                    losses[base] = trainer.step(given, wanted, on_gradient=tap).loss
                found[base] = torch.cat([taken[key].flatten() for key in sorted(taken)])
        plain = found[None]
        errors = [float((found[base] - plain).norm() / plain.norm()) for base in FORMATS]
        cells = " | ".join(format_share(error) for error in errors)
        moved = " | ".join(f"{losses[base] - losses[None]:+.4f}" for base in FORMATS)
        yield f"| {name} | {cells} | {moved} |"


@dataclass(frozen=True)
class OnBoard:
    """A net on a microcontroller, what of it is trained, and the RAM of its image; 0: there is no plan."""

    net: BenchmarkNet | Size
    base: str
    train: tuple[str, ...]
    ram_bytes: int

    def inputs(self) -> Tensor:
        return torch.randn(self.net.shape) if isinstance(self.net, BenchmarkNet) else self.net.inputs(1)[0]

    def prepared(self, base: str | None) -> Prepared:
        """The step, on a base of float32 or packed."""
        torch.manual_seed(0)
        loss = self.net.loss if isinstance(self.net, BenchmarkNet) else "cross-entropy"
        given = {"device": BOARD, "loss": loss, "train": self.train, "base": base, "home": "either"}
        return prepare(self.net.build(), self.inputs(), **given)  # type: ignore[arg-type]


BOARD, FLASH_BYTES = "nrf52840", 1 << 20
MOBILENET = NETS["mobilenet_v2"].medium or NETS["mobilenet_v2"].full
ON_BOARD = {
    "MobileNetV2-0.35, 64 x 64: blocks 10 to 17 of 17, last convolution, classifier": OnBoard(
        MOBILENET, "int8", (*(f"features.{n}.*" for n in range(12, 22) if n != 20), "features.20.weight",
        "classifier.*"), 0,
    ),
    "the same without the last convolution": OnBoard(
        MOBILENET, "int8", (*(f"features.{n}.*" for n in range(12, 22) if n != 20), "classifier.*"), 0
    ),
    "MobileNetV2-0.35, 64 x 64: blocks 13 to 17, classifier": OnBoard(
        MOBILENET, "int8", (*(f"features.{n}.*" for n in range(15, 22) if n != 20), "classifier.*"), 256 << 10
    ),
    "autoencoder: all but the first and last layer": OnBoard(
        mlperf_tiny.NETS["autoencoder"], "q8_0",
        tuple(f"{number}.*" for number in range(1, 26) if number % 3 != 2), 96 << 10,
    ),
}  # fmt: skip


def on_board_rows(seconds: float) -> Iterator[str]:
    """Plan, write C, link into the budget, run for three steps on this machine and in QEMU."""
    for name, net in ON_BOARD.items():
        packed, plain = net.prepared(net.base), net.prepared(None)
        graph, least = packed.step.graph, [minimum_ram_bytes(each.problem).bytes for each in (packed, plain)]
        sizes = {buffer.name: buffer.size_bytes for buffer in graph.buffers}
        trained = sum(sizes[graph.buffer_of(item.value)] for item in graph.parameters if item.gradient)
        in_flash = sum(sizes[each] for each in graph.in_flash(packed.kernels.library))
        made = f"| {trained + in_flash:,} or more | |"  # of a net that is not planned
        made = linked(net, packed, seconds) if net.ram_bytes else made
        cells = f"{net.base} | {trained:,} | {in_flash:,} | {least[1]:,} | {least[0]:,} | {made}"
        print(name, cells, flush=True)
        yield f"| {name} | {cells} |"


def linked(net: OnBoard, prepared: Prepared, seconds: float) -> str:
    """RAM and flash of the image by its linker, instructions of a step, CRC of the state."""
    limits = Limits(ram_budget_bytes=net.ram_bytes - c99_table.BESIDE_ARENA_BYTES)
    options = SolveOptions(time_limit_seconds=seconds, clock=OwnTime())
    with tempfile.TemporaryDirectory() as scratch:
        path, folder = Path(scratch) / "net.poet", Path(scratch) / "step"
        plan_step(prepared, limits, options).save(path)
        with PlanFile(path) as file:
            c_project(file).write(folder)
        here = c99_table.said(folder, "test")
        board = c99_table.said(folder, "test-cortex-m", f"RAM_BYTES={net.ram_bytes}")
    ram, flash = (int(c99_table.line(board, rf"{kind}:\s+(\d+) B")) for kind in ("RAM", "FLASH"))
    if c99_table.results(here) != c99_table.results(board) or ram > net.ram_bytes:
        raise SystemExit(f"{board}: other bits than {here}, or more RAM than {net.ram_bytes}")
    count = int(re.findall(r"instructions 0x(\w+)", board)[-1], 16)
    fits = "" if flash <= FLASH_BYTES else ", too many"
    return f"{ram:,} | {flash:,}{fits} | {count / 1e6:.1f} M | `{c99_table.line(here, 'CRC 0x(.*)')}`"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = ("overhead", "gradients", "gpt", "c99")
    parser.add_argument("--only", nargs="+", choices=parts, default=parts)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    parser.add_argument("--time-limit", type=float, default=120.0, help="of each search for C, in seconds")
    given = parser.parse_args()
    sections = []
    if "overhead" in given.only:
        rows = "\n".join(overhead_rows())
        sections.append(
            "## A step with everything kept\n\nTwo layers of Qwen2.5-0.5B's width, 4,096 words, 256 tokens, "
            f"adapters trained; medians of {ROUNDS} steps made in turn on this machine.\n\n"
            f"| base | step | times float32 |\n|---|--:|--:|\n{rows}"
        )
    net = None
    if {*given.only} & {"gradients", "gpt"}:
        torch.set_num_threads(1)  # of ops as small as these a second one waits more than it works
        net = pretrained()
    if net is not None and "gradients" in given.only:
        rows = "\n".join(gradient_rows(net))
        heads = " | ".join(f"{name}: gradients" for name in FORMATS) + " | "
        heads += " | ".join(f"{name}: loss" for name in FORMATS)
        sections.append(
            "## Error against a float32 base\n\nOf one step: the norm of the difference of all gradients, "
            "over the norm of all; the difference of the loss. A base in fewer bits is another model.\n\n"
            f"| net | {heads} |\n|---|--:|--:|--:|--:|--:|--:|\n{rows}"
        )
    if net is not None and "gpt" in given.only:
        rows = "\n".join(gpt_rows(net))
        heads = " | ".join(str(base or "float32") for base in BASES)
        sections.append(
            f"## A small GPT fine-tuned\n\nFour layers of width 128, trained for {PRETRAINED} steps in "
            f"float32 on one generated text; then adapters (rank 8) for {TUNED} steps of {BATCH} x {LENGTH} "
            f"letters on another. Mean loss.\n\n| steps | {heads} | largest difference |\n"
            f"|---|--:|--:|--:|--:|--:|\n{rows}"
        )
    if "c99" in given.only:
        rows = "\n".join(on_board_rows(given.time_limit))
        sections.append(
            f"## In C\n\nPlanned for {BOARD}, SGD, batch norm in training mode, linked for a Cortex-M4F. "
            "Bytes: of trained weights; of packed ones, in flash; the least RAM that any schedule needs, "
            "with a float32 base and with the packed one; RAM and flash by the linker, with stack and test. "
            "Weights of more than 1 MiB, or least RAM above 256 KiB: not planned. Instructions are those of "
            "the last of three steps in QEMU; *state* is its CRC there and on this machine.\n\n"
            "| net, what is trained | base | trained | packed | least, float32 | least | RAM | flash "
            f"| instructions | state |\n|---|---|--:|--:|--:|--:|--:|--:|--:|---|\n{rows}"
        )
    page = "# A frozen base in 4 or 8 bits\n\n`python -m benchmarks quantised-base --write`. "
    page += (
        f"torch {torch.__version__}, {torch.get_num_threads()} threads; the machine did other work beside it."
    )
    print("\n\n".join([page, *sections]))
    if given.write:
        write(PAGE, "\n\n".join([page, *_kept(sections), *sections]))


def _kept(sections: list[str]) -> list[str]:
    """Of the page as it is, the parts that were not measured again."""
    made = {section.partition("\n")[0] for section in sections}
    there = read(PAGE).tables if PAGE.exists() else ()
    return [str(table) for table in there if f"## {table.title}" not in made]


if __name__ == "__main__":
    main()
