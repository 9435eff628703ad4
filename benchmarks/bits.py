"""Bits: nets x losses x optimizers x {accumulate, clip, groups, schedule} beside the plain loop.

    python -m benchmarks bits [--most N] [--optimizers NAME,...] [--as-is] [--fresh] [--write]

Schedules are drawn at random, so that they recompute and page. After each of some steps, at 1 and 2 threads,
every output, every tensor of the module and every tensor of the optimizer is compared bit for bit.
Rows are made in a shuffled order, which is always the same, so that those which are done are a fair sample.
They are kept in ``--kept``, so that an interrupted run goes on where it was; ``--as-is`` makes none.
Ends with an error where a bit differs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from result_file import RESULTS, write
from torch import Tensor

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from helpers import hand_net  # noqa: E402
from helpers.nets import NETS  # noqa: E402
from helpers.schedules import random_schedule  # noqa: E402

from poet.frontend.plain import PlainTrainer  # noqa: E402
from poet.frontend.trace import TrainingStep, trace_training_step  # noqa: E402
from poet.ir.micro import MicroBatches  # noqa: E402
from poet.ir.named import named_parameters  # noqa: E402
from poet.ir.optimizer import OptimizerSpec, ParameterGroup  # noqa: E402
from poet.planning.beside import at_home  # noqa: E402
from poet.plans.plan_file import write_plan  # noqa: E402
from poet.plans.training_plan import Plan  # noqa: E402
from poet.problem.schedule import Compute, PageIn  # noqa: E402
from poet.runtime import Trainer  # noqa: E402
from poet.runtime.data.random_batches import random_batch  # noqa: E402
from poet.runtime.storage.state import raw_tensor  # noqa: E402
from poet.runtime.system.process import torch_threads  # noqa: E402

PAGE = RESULTS / "bits-table.json"
KEPT = ROOT / "build" / "bits-table.jsonl"
CHOSEN = (
    "cnn", "mobile", "dropout", "transformer", "masked-attention", "lstm", "gru", "norms", "normed-weights",
    "shared-norm", "channels-last", "bags",
)  # fmt: skip
LOSSES = ("cross-entropy", "cross-entropy:label_smoothing=0.1", "focal", "mse")
OPTIMIZERS = (
    "sgd", "momentum", "adam", "adamw", "rmsprop", "adagrad", "adadelta", "adamax", "nadam", "radam", "lion",
)  # fmt: skip
FEATURES = ("accumulate", "clip", "groups", "schedule")
THREADS = (1, 2)
PIECES, STEPS = 2, 3


@dataclass(frozen=True, slots=True)
class Row:
    """One training: a net, a loss, an optimizer, and what is done beside."""

    net: str
    loss: str
    optimizer: str
    feature: str


@dataclass(frozen=True, slots=True)
class Found:
    """What was compared in a row; ``difference`` names the first tensor that differs, or is empty."""

    recomputed_runs: int
    page_ins: int
    tensors: int
    difference: str


_TEXT = """# Bits beside the plain loop

Made by `python -m benchmarks bits --write`
with torch {torch}: {rows} of the {every} rows of {nets} small nets
(`tests/helpers/nets.py`), each at 1 and 2 threads. A row is a net, a loss
({losses}),
an optimizer ({optimizers})
and one of *accumulate* (two micro-batches), *clip* (by value, then by norm), *groups* (one parameter with its
own rate and no decay) and *schedule* (a cosine, by a scheduler of torch).

Schedules are drawn at random, so that they recompute and page. After each of {steps} steps every output,
every tensor of the module and every tensor of the optimizer is held against a loop of plain PyTorch with
`torch.optim`, bit for bit.

- Equal: {equal} of {trainings} trainings; {tensors} tensors were compared.

"""

ROWS = tuple(itertools.starmap(Row, itertools.product(CHOSEN, LOSSES, OPTIMIZERS, FEATURES)))


def optimizer_of(row: Row, first: str) -> OptimizerSpec:
    """As named; ``first`` is the parameter that has settings of its own where there are groups."""
    made = OptimizerSpec(row.optimizer, lr=0.01, weight_decay=0.01)
    if row.feature == "clip":
        return replace(made, clip_norm=0.5, clip_value=0.05)
    if row.feature == "groups":
        return replace(made, groups=(ParameterGroup((first,), lr=0.003, weight_decay=0.0),))
    return made


def drawn(step: TrainingStep, row: Row, seed: int) -> Plan:
    """A plan whose schedules recompute and page by chance."""
    of = hand_net.problem(step.graph)
    plan = hand_net.plan(
        of,
        step.graph,
        random_schedule(of, seed, share=0.5),
        optimizer=step.optimizer,
        loss=row.loss,
        slack=1.0,
    )
    if step.accumulation is None:
        return plan
    beside = at_home(hand_net.problem(step.accumulation.graph), plan)
    schedule = random_schedule(beside, seed + 1, share=0.5)
    found = hand_net.plan(beside, step.accumulation.graph, schedule, optimizer=step.optimizer, loss=row.loss)
    budget_bytes = max(found.trace.peak_ram_bytes, plan.trace.peak_ram_bytes)
    limits = replace(plan.request.limits, ram_budget_bytes=budget_bytes)
    found = replace(found, request=replace(found.request, limits=limits), model=plan.model)
    request = replace(plan.request, limits=limits, micro=MicroBatches(PIECES, "mean"))
    return replace(plan, request=request, accumulation=found)


def compared(row: Row, threads: int) -> Found:
    """Some steps of ``row`` with a plan and in the plain loop."""
    net = NETS[row.net]
    torch.manual_seed(0)
    module, inputs = net.build(), net.inputs()
    first = next(name for name, item in module.named_parameters() if item.requires_grad)
    step = trace_training_step(
        module, inputs, loss=row.loss, optimizer=optimizer_of(row, first), measure=False,
        micro=MicroBatches(PIECES, "mean") if row.feature == "accumulate" else None,
    )  # fmt: skip
    plan = drawn(step, row, seed=1)
    runs = [item for item in plan.schedule if isinstance(item, Compute)]
    page_ins = sum(isinstance(item, PageIn) for item in plan.schedule)
    trained = [item.name for item in named_parameters(plan.graph) if item.is_trained]
    plain = PlainTrainer(module, loss=row.loss, optimizer=plan.optimizer, trained=trained)
    tensors, difference = 0, ""
    with torch_threads(threads), tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.poet"
        write_plan(path, plan, {name: raw_tensor(tensor) for name, tensor in step.tensors.items()})
        with Trainer.open(path, seed=3, arena=False) as trainer:
            torch.manual_seed(3)
            for name, ours, theirs in _pairs(trainer, plain, dict(_named(module)), row):
                tensors += 1
                if ours.dtype != theirs.dtype or not _same(ours, theirs):
                    difference = name
                    break
    return Found(len(runs) - len(plan.graph.ops), page_ins, tensors, difference)


def _pairs(
    trainer: Trainer, plain: PlainTrainer, own: dict[str, Tensor], row: Row
) -> Iterator[tuple[str, Tensor, Tensor]]:
    schedules = []
    if row.feature == "schedule":
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR
        schedules = [cosine(each.optimizer, T_max=5) for each in (trainer, plain)]
    count = PIECES if row.feature == "accumulate" else 1
    for number in range(STEPS):
        pieces = [random_batch(trainer.plan, number * count + piece) for piece in range(count)]
        *_, (_, outputs) = plain.step_in_pieces(pieces, divisor=count)
        for piece in pieces[:-1]:
            trainer.accumulate(*piece)
        result = trainer.step(*pieces[-1])
        for schedule in schedules:
            schedule.step()
        for place, (ours, theirs) in enumerate(zip(result.predictions, outputs, strict=True)):
            yield f"step {number + 1}: output {place}", ours, theirs
        for name, ours in trainer.state_dict().items():
            yield f"step {number + 1}: {name}", ours, own[name].detach()
        states = trainer.optimizer_state()
        for (parameter, state), theirs in plain.optimizer_state().items():
            yield f"step {number + 1}: {state} of {parameter}", states[parameter][state], theirs


def _named(module: torch.nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def _same(ours: Tensor, theirs: Tensor) -> bool:
    bits = [item.contiguous().reshape(-1).view(torch.uint8) for item in (ours, theirs)]
    return torch.equal(*bits)


def page(rows: Sequence[tuple[Row, list[Found]]]) -> str:
    """The table, one line per net, and what it says."""
    tensors = sum(found.tensors for _, each in rows for found in each)
    equal = sum(not found.difference for _, each in rows for found in each)
    trainings = sum(len(each) for _, each in rows)
    text = _TEXT.format(
        torch=torch.__version__, rows=len(rows), every=len(ROWS), nets=len(CHOSEN), steps=STEPS,
        losses=", ".join(f"`{name}`" for name in LOSSES), equal=equal, trainings=trainings, tensors=tensors,
        optimizers=", ".join(f"`{name}`" for name in OPTIMIZERS),
    )  # fmt: skip
    head = ["net", "rows", "recomputed runs", "page-ins", "tensors compared", *FEATURES]
    lines = [f"| {' | '.join(head)} |", "| " + "--- | " * (len(head) - 1) + "--- |"]
    for net in CHOSEN:
        its = [(row, each) for row, each in rows if row.net == net]
        if not its:
            continue
        firsts = [each[0] for _, each in its]
        cells = [
            net,
            str(len(its)),
            _span([found.recomputed_runs for found in firsts]),
            _span([found.page_ins for found in firsts]),
            str(sum(found.tensors for _, each in its for found in each)),
        ]
        for feature in FEATURES:
            found = [item for row, each in its if row.feature == feature for item in each]
            cells.append(
                f"{sum(not item.difference for item in found)} of {len(found)}" if found else "not tried"
            )
        lines.append(f"| {' | '.join(cells)} |")
    return text + "\n".join(lines) + "\n"


def _span(numbers: Sequence[int]) -> str:
    return str(numbers[0]) if len({*numbers}) == 1 else f"{min(numbers)} to {max(numbers)}"


def shuffled(optimizers: Sequence[str] = OPTIMIZERS) -> list[Row]:
    """The rows of these optimizers, in an order by chance that is always the same."""
    order = list(ROWS)
    random.Random(0).shuffle(order)
    return [row for row in order if row.optimizer in optimizers]


def kept_in(path: Path) -> dict[Row, list[Found]]:
    """The rows that are done, in the order of the table."""
    if not path.exists():
        return {}
    done = {}
    for line in path.read_text().splitlines():
        kept = json.loads(line)
        done[Row(**kept["row"])] = [Found(**item) for item in kept["found"]]
    return {row: done[row] for row in ROWS if row in done}


def keep(path: Path, row: Row, found: Sequence[Found]) -> None:
    """One more row."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps({"row": asdict(row), "found": [asdict(item) for item in found]}) + "\n")


def main(arguments: Sequence[str]) -> int:
    """Make the rows that are not done, and print or write the page; an error where a bit differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--most", type=int, default=len(ROWS), help="rows to make in this run")
    parser.add_argument("--optimizers", default=",".join(OPTIMIZERS), help="only rows of these")
    parser.add_argument("--kept", type=Path, default=KEPT, help="the file of rows that are done")
    parser.add_argument("--as-is", action="store_true", help="of the rows that are done")
    parser.add_argument("--fresh", action="store_true", help="make all rows anew")
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.relative_to(ROOT)}")
    asked = parser.parse_args(arguments)
    if asked.fresh:
        asked.kept.unlink(missing_ok=True)
    done = kept_in(asked.kept)
    left = [row for row in shuffled(asked.optimizers.split(",")) if row not in done]
    for row in [] if asked.as_is else left[: asked.most]:
        found = [compared(row, threads) for threads in THREADS]
        keep(asked.kept, row, found)
        for threads, item in zip(THREADS, found, strict=True):
            if item.difference:
                print(f"{row} at {threads} threads: {item.difference} differs", file=sys.stderr, flush=True)
    done = kept_in(asked.kept)
    text = page(list(done.items()))
    if asked.write:
        write(PAGE, text)
    else:
        print(text)
    return int(any(item.difference for found in done.values() for item in found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
