"""The usual nets, three ways: planned, trained, verified, loaded back. Writes results/nets.json.

Fourteen nets of `usual_nets`, small. Each goes three ways to a plan for a Raspberry Pi 4B: as a module,
and by torch's two exporters with the module's names given. The budget lies halfway between what keeping
everything needs and the lower bound; the step is verified by `torch.equal` at 1 and 2 threads, two steps
are trained, and the trained state is loaded into the original module strictly. What is refused says why.
With ``--only``, the rows of the other nets stay as they stand in the page.

    python -m benchmarks nets-table [--only NAME ...]
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import logging
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from result_file import RESULTS, read, write
from usual_nets import USUAL, UsualNet

if TYPE_CHECKING:
    from torch import Tensor, nn

ROUTES = ("module", "dynamo=False", "dynamo=True")
HEADINGS = ("net", "route", "ops", "plan", "trained", "verified at 1, 2 threads", "loaded back strictly")
SEARCH_SECONDS = 1.0


@dataclass(frozen=True)
class Row:
    """What one net gave by one route; ``refusal`` in the words of whoever refused, else empty."""

    net: str
    route: str
    ops: int = 0
    plan: str = ""
    trained: str = ""
    verified: str = ""
    loaded: str = ""
    refusal: str = ""


def measure(name: str, route: str) -> Row:
    """One net by one route; what goes wrong is a refusal."""
    net = USUAL[name]
    if net.package is not None and importlib.util.find_spec(net.package) is None:
        return Row(name, route, refusal=f"{net.package} is not installed; it is the extra `nets`")
    try:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _measured(name, net, route, Path(folder))
    except Exception as error:
        line = str(error).strip().splitlines()[0] if str(error).strip() else ""
        is_exporters = type(error).__module__.startswith("torch.onnx")
        whose = "by torch's exporter: " if is_exporters else ""
        return Row(name, route, refusal=f"{whose}{type(error).__name__}: {line}")


def _measured(name: str, net: UsualNet, route: str, folder: Path) -> Row:
    import torch

    from poet import api
    from poet.planning.ram_survey import budget_between, keep_everything_bytes
    from poet.problem import Limits
    from poet.problem.solution import SolveOptions
    from poet.runtime import Trainer
    from poet.runtime.data.random_batches import random_batch
    from poet.solvers import minimum_ram_bytes
    from poet.verification import verify

    torch.manual_seed(0)
    module, inputs = net.build().train(), net.inputs()
    is_module = route == "module"
    if is_module:
        prepared = api.prepare(module, inputs, device="rpi4b-xnnpack", loss=net.loss)
    else:
        path = _exported(module, inputs, folder / "m.onnx", dynamo=route == "dynamo=True")
        prepared = api.prepare(path, device="rpi4b-xnnpack", loss=net.loss, names=module)
    least = minimum_ram_bytes(prepared.problem, Limits()).bytes
    budget_bytes = budget_between(least, keep_everything_bytes(prepared.problem), 0.5)
    options = SolveOptions(time_limit_seconds=SEARCH_SECONDS)
    planned = api.plan_step(prepared, Limits(ram_budget_bytes=budget_bytes), options)
    planned.save(folder / "p.poet")
    batch = (inputs, random_batch(planned.plan, 0)[1])
    report = verify(folder / "p.poet", module=module if is_module else None, batches=[batch], steps=1)
    with Trainer.open(folder / "p.poet", arena=False) as trainer:
        losses = [trainer.step(*batch).loss for _ in range(2)]
        state = trainer.state_dict()
    found = module.load_state_dict(state, strict=False)
    left = [*found.missing_keys, *found.unexpected_keys]
    runs = planned.plan.trace.recomputed_runs
    return Row(
        net=name,
        route=route,
        ops=len(planned.plan.graph.ops),
        plan=f"{planned.solution.status.word}, {runs} recomputed",
        trained=f"loss {losses[0]:.4f}, then {losses[1]:.4f}",
        verified=", ".join(item.difference or "equal" for item in report.comparisons),
        loaded="yes" if not left else f"no: {', '.join(left[:3])}",
    )


def _exported(module: nn.Module, inputs: tuple[Tensor, ...], path: Path, *, dynamo: bool) -> Path:
    import torch

    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
    with contextlib.redirect_stdout(io.StringIO()):
        if dynamo:
            torch.onnx.export(module, inputs, str(path), dynamo=True, optimize=False, verbose=False)
        else:
            training = torch.onnx.TrainingMode.TRAINING
            torch.onnx.export(module, inputs, str(path), dynamo=False, training=training)
    return path


def cells(row: Row) -> Iterator[str]:
    """The row as its table shows it."""
    yield from (USUAL[row.net].title, f"`{row.route}`")
    if row.refusal:
        yield from ("", "refused: " + row.refusal.replace("|", "\\|"), "", "", "")
        return
    yield from (str(row.ops), row.plan, row.trained, row.verified, row.loaded)


def line(row: Row) -> str:
    """The row in Markdown."""
    return f"| {' | '.join(cells(row))} |"


def lines_of(page: str) -> dict[tuple[str, str], str]:
    """The rows of a page that `document` made, by net and route."""
    found = [text for text in page.splitlines() if text.startswith("| ")]
    return {
        (net, route): text
        for text in found
        for net in USUAL
        for route in ROUTES
        if text.startswith(f"| {USUAL[net].title} | `{route}` |")
    }


def document(lines_by_row: dict[tuple[str, str], str]) -> str:
    """The page with the table."""
    lines = [
        "# The usual nets",
        "",
        "Made by `python -m benchmarks nets-table`:",
        "nets as people write them (`examples/usual_nets.py`), small, as modules",
        "and by both of torch's exporters in training mode (`dynamo=True` with `optimize=False`). From ONNX,",
        "the module's own names are given (`poet solve --names`, `names=` in Python). Each is planned for a",
        "`rpi4b-xnnpack` halfway between what keeping everything needs and the lower bound, trained for",
        "two steps of SGD, and compared: *equal* means that loss, predictions, gradients, parameters and",
        "states of a step are those of plain PyTorch bit for bit: of the module, or of what the import made",
        "of the file. *Loaded back strictly*: `module.load_state_dict(trainer.state_dict())` takes the",
        "trained state. The net of two heads is trained by its first.",
        "",
        f"| {' | '.join(HEADINGS)} |",
        "|---|---|---:|---|---|---|---|",
    ]
    wanted = [(net, route) for net in USUAL for route in ROUTES]
    lines += [lines_by_row[row] for row in wanted if row in lines_by_row]
    missing = [" ".join(row) for row in wanted if row not in lines_by_row]
    if missing:
        lines += ["", f"Not run when this table was made: {', '.join(missing)}."]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the table, net by net."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--only", nargs="*", choices=list(USUAL), default=list(USUAL))
    parser.add_argument("--output", type=Path, default=RESULTS / "nets.json")
    arguments = parser.parse_args()
    kept = str(read(arguments.output)) if arguments.output.exists() else ""
    lines = {row: text for row, text in lines_of(kept).items() if row[0] not in arguments.only}
    for name in arguments.only:
        for route in ROUTES:
            row = measure(name, route)
            lines[name, route] = line(row)
            print(row, file=sys.stderr, flush=True)
            write(arguments.output, document(lines))


if __name__ == "__main__":
    main()
