"""A language model on a small board: adapters of a Qwen2.5-0.5B-shaped decoder trained in 256 MiB of RAM.

    python examples/language_model.py [--ram 256MiB] [--devices rpi4b-xnnpack rpi-zero-2w] [--time-limit 240]
    python -m benchmarks language-model --base q4_0 --gradients logits --length 256 --ram 136MB --write

Random weights. Low-rank adapters of queries and values are trained on 128 tokens at a time; everything
else is frozen, kept in storage, and never written in a step. Plans a step for each device, compares a step
of the first plan with plain PyTorch by `torch.equal`, and trains with `poet run --enforce`: in a process that
gets no more memory than the budget. With --write, what was found so far stands in results/language-model.json
after each of these, under its options.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from zoo.decoder import ADAPTERS, Decoder

import poet
from poet.plans.training_plan import Plan
from poet.problem.schedule import PageOut
from poet.solvers import minimum_ram_bytes
from poet.util.units import format_bytes, format_joules, format_seconds
from poet.verification import verify

LOSS = "cross-entropy:dim=-1"
SHAPES: dict[str, dict[str, int]] = {  # of Qwen2.5, Yang et al. 2024, table 1
    "0.5B": {},
    "1.5B": {"layers": 28, "width": 1536, "heads": 12, "shared_heads": 2, "inner": 8960},
}
HEADINGS = (
    "device", "lower bound", "peak RAM", "arena", "read per step", "written", "of it adapters", "of it base",
    "seconds", "joules", "gap", "import and search",
)  # fmt: skip


def main() -> None:
    arguments = _arguments()
    folder, length = arguments.folder, arguments.length
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    sizes = {"layers": arguments.layers, "words": arguments.words, "length": length}
    fewer = {name: size for name, size in sizes.items() if size is not None}
    model = Decoder(**SHAPES[arguments.shape] | fewer)
    words = model.words.num_embeddings
    count = sum(item.numel() for item in model.parameters())
    trained = sum(item.numel() for name, item in model.named_parameters() if name.endswith((".down", ".up")))
    size = f"{count / 1e6:.0f} million parameters, {trained / 1e6:.2f} million of them trained"
    parts = [size, f"| {' | '.join(HEADINGS)} |\n|---|{'---:|' * (len(HEADINGS) - 1)}"]
    print("\n\n".join(parts))
    plans = []
    for device in arguments.devices:
        plan, row = _planned(model, device, arguments)
        plans.append(plan)
        parts[-1] += f"\n{row}"
        print(row, flush=True)
        _keep(parts, arguments)
    if arguments.plan_only:
        return
    begun = time.monotonic()
    report = verify(plans[0], module=model, threads=arguments.threads)
    said = [
        f"{it.threads} threads: {it.difference or f'{it.tensors} tensors, every bit equal'}"
        for it in report.comparisons
    ]
    seconds = time.monotonic() - begun
    parts.append(f"{report.steps} steps beside plain PyTorch: {'; '.join(said)}. {seconds:.0f} s.")
    print(f"\n{parts[-1]}", flush=True)
    _keep(parts, arguments)
    generator = np.random.default_rng(0)
    shape, data = (arguments.steps, length), folder / "data.npz"
    np.savez(data, inputs=generator.integers(0, words, shape), targets=generator.integers(0, words, shape))
    command = [sys.executable, "-m", "poet", "run", str(plans[0]), "--data", str(data)]
    command += ["--enforce", "--arena", "require"]
    found = subprocess.run(command, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    print(found.stdout, flush=True)
    parts.append(f"`poet run --enforce --arena require`:\n\n```\n{found.stdout.strip()}\n```")
    _keep(parts, arguments)
    sys.exit(any(it.difference for it in report.comparisons) or found.returncode)


def _keep(parts: Sequence[str], arguments: argparse.Namespace) -> None:
    """Put what was found in the place of what was found with the same options."""
    if not arguments.write:
        return
    from result_file import RESULTS, read, write  # beside the benchmarks, which run this script

    page = RESULTS / "language-model.json"
    there, given = read(page), " ".join(sys.argv[1:])
    title = f"With {given}"
    head, own, tables = [f"# {there.title}", *there.remarks], False, []
    for table in there.tables:
        own = table.title == title or (own and not table.title)
        if not own:
            tables.append(str(table))
    write(page, "\n\n".join([*head, *tables, f"## {title}", *parts]))


def _planned(model: Decoder, device: str, arguments: argparse.Namespace) -> tuple[Path, str]:
    """The plan file for a device, and its row of the table."""
    begun = time.monotonic()
    planned = poet.plan(
        model,
        torch.zeros(1, arguments.length, dtype=torch.long),
        device=device,
        ram=arguments.ram,
        home="storage",
        loss=LOSS,
        train=ADAPTERS,
        evaluation=False,
        time_limit_seconds=arguments.time_limit,
        base=arguments.base,
        gradients=arguments.gradients,
    )
    seconds = time.monotonic() - begun
    step, limits = planned.solution.trace, planned.plan.request.limits
    arena = planned.plan.arena
    assert step is not None
    columns = (
        format_bytes(minimum_ram_bytes(planned.prepared.problem, limits).bytes),
        format_bytes(step.peak_ram_bytes),
        "-" if arena is None else format_bytes(arena.size_bytes),
        format_bytes(step.read_bytes),
        format_bytes(step.written_bytes),
        *map(format_bytes, _written_weights(planned.plan)),
        format_seconds(step.seconds),
        format_joules(step.joules),
        f"{100 * (1 - planned.solution.bound_joules / step.joules):.1f} %",
        f"{planned.prepared.import_seconds:.0f} + {seconds - planned.prepared.import_seconds:.0f} s",
    )
    path: Path = arguments.folder / f"{device}.poet"
    planned.save(path)
    return path, f"| {device} | {' | '.join(columns)} |"


def _written_weights(plan: Plan) -> tuple[int, int]:
    """Bytes of parameters that a step writes to storage: of trained ones, and of frozen ones."""
    graph, written = plan.graph, {True: 0, False: 0}
    sizes = {buffer.name: buffer.size_bytes for buffer in graph.buffers}
    trained = {graph.buffer_of(item.value): item.gradient is not None for item in graph.parameters}
    for step in plan.schedule:
        if isinstance(step, PageOut) and step.tensor in trained:
            written[trained[step.tensor]] += sizes[step.tensor]
    return written[True], written[False]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ram", default="256MiB")
    parser.add_argument("--devices", nargs="+", default=["rpi4b-xnnpack", "rpi-zero-2w"])
    parser.add_argument("--time-limit", type=float, default=240.0, help="seconds of search per device")
    parser.add_argument("--folder", type=Path, default=Path("build/language-model"), help="plans, 2 GB each")
    parser.add_argument("--steps", type=int, default=2, help="of the enforced run")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="of the comparisons")
    parser.add_argument("--length", type=int, default=128, help="tokens of a sample")
    parser.add_argument("--base", help="frozen weights in fewer bits: q4_0, q8_0, int8")
    parser.add_argument("--gradients", default="stream", help="logits: the last layer in strips")
    parser.add_argument("--shape", default="0.5B", choices=SHAPES, help="whose; default 0.5B")
    parser.add_argument("--layers", type=int, help="fewer than it has")
    parser.add_argument("--words", type=int, help="fewer than 151,936")
    parser.add_argument("--plan-only", action="store_true", help="neither verify nor train")
    parser.add_argument("--write", action="store_true", help="keep what is found in the results")
    return parser.parse_args()


if __name__ == "__main__":
    main()
