"""Training steps in the wheel of ExecuTorch, planned, unplanned and as it plans: results/executorch.json.

    python -m benchmarks executorch-table [--only NAME ...] [--steps 100] [--folder build/executorch]

Eight nets, small enough for portable kernels on a CPU, two of them paged as well. Each is planned inside a
budget and exported, and so is the schedule that keeps everything; both train in the wheel on the same
batches, beside plain PyTorch. The joint graph is ExecuTorch's way: forward and backward in the same kernels,
gradients as outputs, placed by its own planner, parameters beside it and the update in a loop of one call
each. Needs the extra ``executorch``.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from mlperf_tiny import autoencoder as anomaly_net
from mlperf_tiny import ds_cnn, mobilenet_v1, resnet8
from result_file import RESULTS, rows_of_others, write
from torch import Tensor, nn

import poet
from poet.ir.operators import UPDATES
from poet.plans.plan_file import PlanFile
from poet.problem import Pins
from poet.problem.schedule import Compute, Free
from poet.programs import portable, pte
from poet.programs.pt2 import as_program
from poet.programs.row_major import RowMajorWalk, mutated
from poet.programs.schedule import contents, traced

LR = 0.01
RESULT = RESULTS / "executorch.json"


@dataclass(frozen=True)
class Case:
    """A net, what it is given, and how far from the least to the plain bytes its budget is.

    ``pages``: activations are paged, and no op runs again.
    """

    build: Callable[[], nn.Module]
    batch: Callable[[], tuple[Tensor, Tensor]]
    share: float
    words: str
    loss: str = "cross-entropy"
    pages: bool = False


class Block(nn.Module):
    """Two convolutions and a way around them, as in ResNet-18 (He et al., 2016)."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after),
        )  # fmt: skip
        around = [nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)]
        self.around = nn.Sequential(*around) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Both ways, summed."""
        return F.relu(self.body(x) + self.around(x))


def resnet18(width: int = 8) -> nn.Module:
    """Its stem with maximum pooling and its eight blocks, an eighth as wide."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    for stage in range(4):
        before, after = width * 2 ** max(stage - 1, 0), width * 2**stage
        layers += [Block(before, after, 2 if stage else 1), Block(after, after, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, 10))


class Inverted(nn.Module):
    """An inverted residual (Sandler et al., "MobileNetV2", 2018, figure 4)."""

    def __init__(self, before: int, after: int, stride: int, factor: int) -> None:
        super().__init__()
        wide = before * factor
        first = (
            [nn.Conv2d(before, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6()] if factor > 1 else []
        )
        self.body = nn.Sequential(
            *first,
            nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(),
            nn.Conv2d(wide, after, 1, bias=False), nn.BatchNorm2d(after),
        )  # fmt: skip
        self.is_added = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        """With a way around where the shape stays."""
        made: Tensor = self.body(x)
        return x + made if self.is_added else made


def mobilenet_v2(share: float = 0.25) -> nn.Module:
    """The 17 blocks of MobileNetV2, a quarter as wide; the first convolution keeps the image's size."""
    rows = (
        (1, 16, 1, 1),
        (6, 24, 2, 1),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )
    width = max(int(32 * share), 4)
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU6()]
    for factor, full, count, stride in rows:
        for index in range(count):
            after = max(int(full * share), 4)
            layers.append(Inverted(width, after, stride if not index else 1, factor))
            width = after
    last = int(1280 * share)
    layers += [nn.Conv2d(width, last, 1, bias=False), nn.BatchNorm2d(last), nn.ReLU6()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, 10))


class Attention(nn.Module):
    """Of several heads, by products and a softmax."""

    def __init__(self, width: int, heads: int, mask: Tensor | None) -> None:
        super().__init__()
        self.heads, self.width = heads, width
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        """Of each position a mixture of those it may see."""
        batch, length, width = x.shape
        split = (batch, length, self.heads, width // self.heads)
        query, key, value = (
            layer(x).view(split).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        scores = query @ key.transpose(2, 3) * (1 / math.sqrt(width // self.heads))
        scores = scores if self.mask is None else scores + self.mask
        mixed: Tensor = self.out((scores.softmax(-1) @ value).transpose(1, 2).reshape(batch, length, width))
        return mixed


class Transformer(nn.Module):
    """A small BERT (norms behind the sums, a class of each text) or GPT (norms before, the next token)."""

    def __init__(self, *, is_causal: bool, width: int = 32, length: int = 64, layers: int = 3) -> None:
        super().__init__()
        mask = torch.full((length, length), -1e4).triu(1) if is_causal else None
        self.is_causal = is_causal
        self.table, self.places = nn.Embedding(100, width), nn.Embedding(length, width)
        self.register_buffer("positions", torch.arange(length))
        self.attend = nn.ModuleList(Attention(width, 4, mask) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers + 1))
        self.widen = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(layers))
        self.narrow = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(layers))
        self.head = nn.Linear(width, 100 if is_causal else 4)

    def forward(self, numbers: Tensor) -> Tensor:
        """Scores, classes in dim 1."""
        x = self.table(numbers) + self.places(self.positions)
        for attend, widen, narrow, one, two in zip(
            self.attend, self.widen, self.narrow, self.norms[::2], self.norms[1::2], strict=False
        ):
            if self.is_causal:
                x = x + attend(one(x))
                x = x + narrow(F.gelu(widen(two(x))))
            else:
                x = one(x + attend(x))
                x = two(x + narrow(F.gelu(widen(x))))
        x = self.norms[-1](x)
        scores: Tensor = self.head(x if self.is_causal else x.mean(1))
        return scores.flatten(0, 1) if self.is_causal else scores


def _images(*shape: int, classes: int = 10) -> Callable[[], tuple[Tensor, Tensor]]:
    return lambda: (torch.randn(shape), torch.randint(classes, shape[:1]))


def _texts(count: int, length: int) -> tuple[Tensor, Tensor]:
    return torch.randint(100, (count, length)), torch.randint(4, (count,))


def _next(count: int, length: int) -> tuple[Tensor, Tensor]:
    return torch.randint(100, (count, length)), torch.randint(100, (count * length,))


def _frames(count: int) -> tuple[Tensor, Tensor]:
    source = torch.randn(count, 640)
    return source, source


CASES = {
    "ds-cnn": Case(ds_cnn, _images(2, 1, 49, 10, classes=12), 0.35, "MLPerf Tiny, batch 2"),
    "resnet-8": Case(resnet8, _images(2, 3, 32, 32), 0.2, "MLPerf Tiny, batch 2"),
    "mobilenetv1": Case(mobilenet_v1, _images(1, 3, 96, 96, classes=2), 0.2, "MLPerf Tiny, batch 1"),
    "autoencoder": Case(anomaly_net, lambda: _frames(128), 0.3, "MLPerf Tiny, batch 128", "mse"),
    "resnet-18": Case(resnet18, _images(2, 3, 64, 64), 0.2, "an eighth as wide, batch 2 of 3x64x64"),
    "mobilenetv2": Case(mobilenet_v2, _images(2, 3, 32, 32), 0.2, "a quarter as wide, batch 2 of 3x32x32"),
    "bert": Case(
        lambda: Transformer(is_causal=False), lambda: _texts(4, 64), 0.2, "3 layers of 32, batch 4 of 64"
    ),
    "gpt": Case(
        lambda: Transformer(is_causal=True), lambda: _next(4, 64), 0.2, "3 layers of 32, batch 4 of 64"
    ),
}
CASES |= {
    f"{name}-paged": replace(CASES[name], share=0.2, pages=True, words=f"{CASES[name].words}, paged")
    for name in ("ds-cnn", "bert")
}


def net_of(case: Case) -> nn.Module:
    """The net with its first weights."""
    torch.manual_seed(0)
    return case.build().train()


@dataclass
class Found:
    """What a net gave; ``losses`` are of all steps, each planned, unplanned and of plain PyTorch."""

    name: str
    planned_bytes: int
    plan_bytes: int
    everything_bytes: int
    joint_bytes: int
    parameter_bytes: int
    calls: int
    everything_calls: int
    joint_calls: int
    parameters: int
    reruns: int
    losses: list[tuple[float, float, float]]


def plans_of(name: str, folder: Path) -> tuple[Path, Path]:
    """Plan files in a budget and without one."""
    case, (source, _) = CASES[name], CASES[name].batch()
    options: dict[str, Any] = {
        "loss": case.loss, "device": "rpi4b", "optimizer": f"sgd:lr={LR}", "paging": False,
        "gradients": "keep",
    }  # fmt: skip
    everything, small = folder / f"{name}-all.poet", folder / f"{name}.poet"
    if not small.exists():
        plain = poet.plan(net_of(case), source, ram=None, time_limit_seconds=5.0, **options)
        plain.save(everything)
        made = plain.plan.prediction
        assert made.lower_bound_ram_bytes is not None
        assert made.plain_peak_ram_bytes is not None
        spread = made.plain_peak_ram_bytes - made.lower_bound_ram_bytes
        ram = int(made.lower_bound_ram_bytes + case.share * spread)
        if case.pages:
            lasting = [tensor.name for tensor in plain.plan.problem.tensors if tensor.initially]
            options |= {"paging": True, "recompute": False, "pins": Pins(never_page=tuple(lasting))}
        poet.plan(net_of(case), source, ram=ram, time_limit_seconds=5.0, **options).save(small)
    return small, everything


class Joint(RowMajorWalk):
    """A walk that ends with the gradients, and changes no parameter."""

    def walk(self) -> tuple[Tensor, ...]:
        """State of norms, loss, outputs, gradients."""
        gradients = [item.gradient for item in self.graph.parameters if item.gradient is not None]
        kept = {self.graph.buffer_of(value) for value in gradients}
        updates = {op.name for op in self.graph.ops if op.call.target in UPDATES}
        self._schedule = tuple(
            step
            for step in self._schedule
            if not (isinstance(step, Compute) and step.op in updates)
            and not (isinstance(step, Free) and step.tensor in kept)
        )
        results = super(RowMajorWalk, self).walk()
        state = (self._held[self.graph.buffer_of(value)][0] for value in moved(self.graph).values())
        return (*state, *results, *(self.tensor(value) for value in gradients))


def moved(graph: Any) -> dict[str, str]:
    """Module state that a step changes."""
    state = {value for _, value in graph.states}
    return {name: value for name, value in mutated(graph).items() if value in state}


def joint_of(path: Path) -> Any:
    """ExecuTorch's program of forward and backward, planned by itself."""
    with PlanFile(path) as file:
        graph = file.plan.graph
        made = traced(file.plan, portable.run, walk=Joint)
        held = contents(file, None, whole=False)
        program = as_program(made, held, set(), mutated=moved(graph))
        return pte.with_executorch(program, placed_in=None)


def calls_of(manager: Any) -> tuple[int, int]:
    """Planned bytes and kernel calls of a program."""
    made = manager.executorch_program.execution_plan[0]
    kernels = (type(item.instr_args).__name__ for item in made.chains[0].instructions)
    return made.non_const_buffer_sizes[1], sum(kind == "KernelCall" for kind in kernels)


def found(name: str, steps: int, folder: Path) -> Found:
    """Plan, export, train."""
    case = CASES[name]
    small, everything = plans_of(name, folder)
    planned = pte.export_pte(small, folder / f"{name}.pte")
    unplanned = pte.export_pte(everything, folder / f"{name}-all.pte")
    joint_bytes, joint_calls = calls_of(joint_of(everything))
    with PlanFile(small) as file:
        size = pte.plan_bytes(file.plan)
    net = net_of(case)
    made = Found(
        name, planned.ram_bytes, size, unplanned.ram_bytes, joint_bytes,
        sum(item.nbytes for item in net.parameters()), planned.calls, unplanned.calls, joint_calls,
        len(list(net.parameters())), planned.reruns, [],
    )  # fmt: skip
    print(made, flush=True)
    if steps:
        made.losses = losses_of(case, net, steps, [folder / f"{name}.pte", folder / f"{name}-all.pte"])
    return made


def losses_of(
    case: Case, net: nn.Module, steps: int, paths: Sequence[Path]
) -> list[tuple[float, float, float]]:
    """Of each step: of the programs, and of plain PyTorch."""
    from executorch.runtime import Runtime

    methods = [Runtime.get().load_program(path).load_method("forward") for path in paths]
    losses = []
    for source, target, plain in trained(case, net, steps, torch.float32):
        one, two = (float(method.execute([source, target])[0]) for method in methods)
        losses.append((one, two, plain))
    return losses


def trained(
    case: Case, net: nn.Module, steps: int, element: torch.dtype
) -> Iterator[tuple[Tensor, Tensor, float]]:
    """Plain PyTorch's steps in numbers of one type: the batch, and the loss."""
    optimizer = torch.optim.SGD(net.to(element).parameters(), lr=LR)
    for step in range(steps):
        torch.manual_seed(1000 + step)
        source, target = (item.to(element) if item.is_floating_point() else item for item in case.batch())
        optimizer.zero_grad()
        loss = (F.mse_loss if case.loss == "mse" else F.cross_entropy)(net(source), target)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        yield source, target, loss.item()


def in_order(lines: Sequence[str]) -> list[str]:
    """Rows in the order of the nets."""
    return sorted(lines, key=lambda line: list(CASES).index(line.split(" | ")[0].removeprefix("| ")))


def page(rows: Sequence[Found]) -> str:
    """The result in Markdown, with the rows that were found before of other nets."""
    sizes, losses = rows_of_others(RESULT, [row.name for row in rows]) or ([], [])
    lines = [
        "# Training steps in ExecuTorch's wheel",
        "",
        f"`python -m benchmarks executorch-table`; ExecuTorch 1.5.1, torch {torch.__version__}, one thread, "
        f"SGD with learning rate {LR}, random batches. Sizes are chosen so that portable kernels make 100 "
        "steps in minutes.",
        "",
        "Planned: bytes of planned memory of the plan's program, with parameters. Joint: what ExecuTorch's "
        "planner gives forward and backward in the same kernels, gradients being outputs and parameters not "
        "included; then the joint graph with parameters. Calls: of kernels in a step, for the joint graph "
        "with one for the update of each parameter.",
        "",
        "| net | size | planned bytes | plan's bytes | kept bytes | joint bytes | with parameters "
        "| planned/joint | planned/with parameters | calls | joint calls | calls/joint | ops run again |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        whole, joint_calls = row.joint_bytes + row.parameter_bytes, row.joint_calls + row.parameters
        cells = (
            row.name, CASES[row.name].words, row.planned_bytes, row.plan_bytes, row.everything_bytes,
            row.joint_bytes, whole, f"{row.planned_bytes / row.joint_bytes:.3f}",
            f"{row.planned_bytes / whole:.3f}", row.calls, joint_calls, f"{row.calls / joint_calls:.3f}",
            row.reruns,
        )  # fmt: skip
        sizes.append(f"| {' | '.join(map(str, cells))} |")
    lines += [
        *in_order(sizes),
        "",
        "Losses: in how many steps those of the planned and the unplanned program are the same bits, and how "
        "far plain PyTorch's are from them at most. Rounding: how far PyTorch's in float64 are from its own.",
        "",
        "| net | steps | equal | largest difference | rounding | first loss | last loss |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        equal = sum(one == two for one, two, _ in row.losses)
        apart = max(abs(one - plain) for one, _, plain in row.losses)
        case, steps, plain = CASES[row.name], len(row.losses), [plain for _, _, plain in row.losses]
        exact = [loss for *_, loss in trained(case, net_of(case), steps, torch.float64)]
        rounding = max(abs(one - two) for one, two in zip(plain, exact, strict=True))
        far = f"{apart:.2e} | {rounding:.2e} | {row.losses[0][0]:.4f} | {row.losses[-1][0]:.4f}"
        losses.append(f"| {row.name} | {steps} | {equal} | {far} |")
    lines += in_order(losses)
    missing = [name for name in CASES if not any(line.startswith(f"| {name} |") for line in losses)]
    if missing:
        lines += ["", f"Not measured: {', '.join(missing)}."]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure what is not kept yet, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(CASES), choices=CASES)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--folder", type=Path, default=Path("build/executorch"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.folder.mkdir(parents=True, exist_ok=True)
    for name in given.only:
        kept = given.folder / f"{name}-{given.steps}.json"
        if not kept.exists():
            kept.write_text(json.dumps(asdict(found(name, given.steps, given.folder))))
    kept_files = (given.folder / f"{name}-{given.steps}.json" for name in CASES)
    rows = [Found(**json.loads(path.read_text())) for path in kept_files if path.exists()]
    made = page(rows)
    write(RESULT, made)
    print(made)


if __name__ == "__main__":
    main()
