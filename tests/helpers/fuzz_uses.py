"""What `fuzz` does with data files, saved states, planning problems and cached answers."""

from __future__ import annotations

import io
import json
import math
import random
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import gguf
import numpy as np
import torch
from rich.console import Console
from safetensors.torch import save

from helpers import hand_net, mutators, strange
from helpers.forms import with_page_forms, with_row_updates
from helpers.on_units import with_random_units
from helpers.random_problems import mixed_problem
from poet.errors import InputError
from poet.files.tensorfile import TensorFile
from poet.frontend.gguf_weights import gguf_weights
from poet.ir.loss import DEFAULT_LOSS
from poet.planning import cache
from poet.planning.ram_survey import budget_between, keep_everything_bytes
from poet.plans.plan_file import PlanFile, read_plan
from poet.problem import Limits, Problem
from poet.problem.simulator import simulate
from poet.problem.solution import SolveOptions, solution_to_json
from poet.report.plan import solution_report
from poet.runtime import Trainer
from poet.runtime.kernels.dequantised import as_used
from poet.runtime.runs.fit import fit, load_samples
from poet.runtime.storage.state import Saved
from poet.solvers import minimum_ram_bytes, solve
from poet.solvers.heuristics.policies import keep_everything
from poet.util import codec
from poet.whatif.knowledge import Knowledge
from poet.whatif.models import OnnxModel, TrainedAs, _dimensions, _Imported, _imported
from poet.whatif.settings import setting_of
from poet.whatif.usage import _read

Mutate = Callable[[bytes, random.Random], bytes]
Subject = tuple[list[bytes], Mutate, Callable[[Path], str], str]

INSTANCES = Path(__file__).parents[1] / "instances"
LIMITS = Limits()
QUICK = SolveOptions(time_limit_seconds=0.05, engine="highs", confirm=False)
_SEARCHED = 4  # one problem in so many is searched as well; the others are planned greedily


# --- data files and saved states --------------------------------------------------------------


def _rows() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(20, hand_net.WIDTH, generator=generator) for name in ("x", "y")}


def data_files(folder: Path) -> Subject:
    """npz files for a plan, read as `poet run` and as `poet what-if --measure-data` do."""
    plan_path = _plan(folder)
    bases = []
    for write in (np.savez, np.savez_compressed):
        packed = io.BytesIO()
        write(packed, **{name: rows.numpy() for name, rows in _rows().items()})  # type: ignore[arg-type]
        bases.append(packed.getvalue())

    def use(path: Path) -> str:
        samples = load_samples(path, read_plan(plan_path))
        assert sum(math.prod(rows.shape) for rows in samples.tensors) < 1 << 24
        _read(path)
        return "read"

    return bases, strange.mutated_npz, use, ".npz"


def tensor_files(folder: Path) -> Subject:
    """safetensors files: data for a plan, and a training state to go on from."""
    plan_path = _plan(folder)
    state = folder / "state.safetensors"
    with Trainer.open(plan_path, seed=0, arena=False) as trainer:
        for _ in fit(trainer, load_samples(_written(folder / "d.npz"), trainer.plan), epochs=1):
            trainer.save(state)
    bases = [save(_rows()), state.read_bytes()]
    for name in ("state.safetensors", "d.npz"):
        (folder / name).unlink()

    def use(path: Path) -> str:
        with TensorFile(path) as file:
            is_state = "poet.format" in file.metadata
            file.digest()
        if not is_state:
            load_samples(path, read_plan(plan_path))
            _read(path)
            return "read as data"
        with PlanFile(plan_path) as plan, Saved(path, plan, seed=0):
            return "read as a state"

    return bases, strange.mutated_tensors, use, ".safetensors"


def _plan(folder: Path) -> Path:
    """A plan outside of the scratch folder, which must be empty between cases."""
    path = Path(f"{folder}.d") / "net.poet"
    path.parent.mkdir()
    hand_net.write(path)
    return path


def _written(path: Path) -> Path:
    np.savez(path, **{name: rows.numpy() for name, rows in _rows().items()})  # type: ignore[arg-type]
    return path


def weight_files(folder: Path) -> Subject:
    """GGUF files, whose tensors take the place of a module's."""
    module = torch.nn.Sequential(torch.nn.Linear(64, 6), torch.nn.Linear(32, 4))
    bases = []
    for kind, second in (
        (gguf.GGMLQuantizationType.Q4_0, np.float16),
        (gguf.GGMLQuantizationType.Q8_0, np.float32),
    ):
        path = Path(f"{folder}.gguf")
        writer = gguf.GGUFWriter(path, "test")
        writer.add_array("words", ["a", "bc"])
        writer.add_array("scores", [1, 2, 3])
        writer.add_tensor(
            "0.weight", gguf.quants.quantize(np.ones((6, 64), np.float32), kind), raw_dtype=kind
        )
        writer.add_tensor("1.weight", np.ones((4, 32), second))
        for write in (
            writer.write_header_to_file,
            writer.write_kv_data_to_file,
            writer.write_tensors_to_file,
        ):
            write()
        writer.close()
        bases.append(path.read_bytes())
        path.unlink()

    def use(path: Path) -> str:
        found, _ = gguf_weights(path, module)
        for weight, how in found.values():
            as_used(weight, how)
        return "read"

    return bases, _mutated_gguf, use, ".gguf"


def _mutated_gguf(content: bytes, rng: random.Random) -> bytes:
    """Other bytes anywhere, or another number in the head."""
    if rng.random() < 0.4:
        return mutators.mutated_bytes(content, rng)
    raw = bytearray(content)
    for _ in range(rng.randint(1, 3)):
        size, at = rng.choice((4, 8)), rng.randrange(0, 340)
        number = rng.choice(
            (0, 1, 2, 3, 8, 9, 30, 31, 255, 1 << 16, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 64) - 1)
        )
        raw[at : at + size] = (number & ((1 << 8 * size) - 1)).to_bytes(size, "little")
    return bytes(raw)


# --- planning problems ------------------------------------------------------------------------


def problem_files(folder: Path) -> Subject:
    """poet-problem files, bounded, planned, some searched, and reported."""
    del folder
    bases = [(INSTANCES / name).read_bytes() for name in ("linear.m4.json", "transformer.m4.json")]
    problems = [mixed_problem(seed) for seed in range(12)]
    problems += [with_row_updates(mixed_problem(seed), seed).resolved({"rows"}) for seed in (1, 2)]
    problems += [with_random_units(mixed_problem(seed), seed) for seed in (0, 3, 6)]
    problems += [with_page_forms(mixed_problem(seed), seed) for seed in (3, 4)]
    bases += [json.dumps(of.to_json()).encode() for of in problems]
    return bases, strange.mutated_json, use_problem, ".json"


def use_problem(path: Path) -> str:
    """``poet solve problem.json --ram ...``, in short."""
    problem = Problem.load(path)
    problem = problem.resolved([each.name for each in problem.alternatives[::2]])
    least, most = minimum_ram_bytes(problem, LIMITS).bytes, keep_everything_bytes(problem)
    limits = Limits(ram_budget_bytes=max(1, budget_between(least, most, 0.5)))
    setting_of(problem)
    if zlib.crc32(path.read_bytes()) % _SEARCHED or len(problem.ops) > 200:
        schedule = keep_everything(problem, LIMITS)
        if schedule is not None:
            json.dumps(simulate(problem, schedule).joules, allow_nan=False)
        return "bounded"
    solution = solve(problem, limits, QUICK)
    json.dumps(solution_to_json(problem, solution), ensure_ascii=False, allow_nan=False).encode()
    if solution.trace is not None:
        console = Console(file=io.StringIO(), width=110)
        console.print(solution_report(problem, limits, solution))
        written = console.file.getvalue()  # type: ignore[attr-defined]
        assert "nan " not in written
        assert "inf " not in written
        written.encode()
    return "bounded and searched"


# --- cached answers ---------------------------------------------------------------------------

_KEY = "k"


class _OneFile(cache.Cache):
    """A cache in which every answer is the file at ``path``."""

    def __init__(self, path: Path) -> None:
        super().__init__(path.parent)
        self.path = path

    def _path(self, kind: str, key: str) -> Path:
        return self.path


def cache_files(folder: Path) -> Subject:
    """Files of what-if's cache."""
    problem = mixed_problem(7)
    model = Path(f"{folder}.d") / "model.onnx"
    model.parent.mkdir()
    model.write_bytes(b"")
    found = solve(problem, LIMITS, SolveOptions(time_limit_seconds=2.0, engine="highs"))
    contents: dict[str, Sequence[bytes]] = {
        "answers": [cache.pack_solution(found)],
        "graphs": [cache.pack(codec.encode(_Imported(hand_net.graph(), hand_net.KERNELS)))],
        "dimensions": [cache.pack([["N", 3, 16, 16], [5]])],
    }
    bases = [packed for kind in ("answers", "graphs", "dimensions") for packed in contents[kind]]

    def use(path: Path) -> str:
        kept = _OneFile(path)
        onnx = OnnxModel(model, TrainedAs(DEFAULT_LOSS), kept)
        cell = cache.cached_cell(kept, _KEY, problem, LIMITS)
        if cell is not None:
            setting = setting_of(problem)
            known = Knowledge(problem, setting.lower_bound.bytes, "", QUICK)
            known.refutes(LIMITS, cell)
            known.add(0, LIMITS, cell)
            known.best(LIMITS)
            return "believed"
        if onnx._kept("graphs", _KEY, _imported) is not None:
            return "believed"
        if onnx._kept("dimensions", _KEY, _dimensions) is not None:
            return "believed"
        raise InputError("counts as missing")

    return bases, strange.mutated_gzip, use, ".json.gz"


SUBJECTS: dict[str, Callable[[Path], Subject]] = {
    "data": data_files, "tensors": tensor_files, "problems": problem_files, "caches": cache_files,
    "weights": weight_files,
}  # fmt: skip
