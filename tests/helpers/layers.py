"""The layers of the package, lowest first: a module imports from its own layer and from those below it."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]

LAYERS: dict[str, str] = {
    "version": "the version of the package",
    "errors": "everything that can go wrong, as one tree",
    "util": "units, records as JSON, clocks, child processes, reading of untrusted files",
    "ir": "the training graph: ops, values, buffers, operators, losses, optimizers",
    "files": "files of every kind, read within bounds and written whole",
    "problem": "what must run and what it costs; schedules, and the simulator that judges them",
    "devices": "profiles, the cost model, fits to measurements",
    "solvers": "bounds, plans, proofs",
    "baselines": "published planners",
    "memory": "demand and layout in one arena",
    "plans": "the plan and its file",
    "runtime": "replay in PyTorch, page file, native allocator",
    "passes": "rewrites of a training graph that keep its bits",
    "frontend": "modules and ONNX files to training graphs",
    "c99": "a plan as C: kernels, calls, text",
    "planning": "the way from a model to a plan",
    "programs": "a plan as a program of torch.export or ExecuTorch",
    "integrations": "poet in torch's and others' own loops",
    "verification": "proof by trial that a plan is exact",
    "enforce": "a run in a process that may not grow",
    "calibration": "measuring a machine as a device",
    "api": "from a model to a plan, in one call",
    "whatif": "sweeps, and answers to a team's questions",
    "report": "text, JSON, HTML",
    "cli": "one command per file",
    "__main__": "the command line, or one line where what it needs is not installed",
}
"""Each with what it holds. The front door `poet` and the data of `poet.hardware_profiles` are in none."""

NOT_ON_A_DEVICE = {"devices", "solvers", "baselines"}
"""Below the runtime, and still nothing that it may import: it reads records only."""


def sources() -> list[Path]:
    """Every module of the package."""
    folders = (ROOT / "poet", ROOT / "cli", ROOT / "hardware_profiles")
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


def module_of(path: Path) -> str:
    """Dotted name; ``cli`` and ``hardware_profiles`` install below ``poet``."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == "poet" else ("poet", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer_of(module: str) -> str | None:
    """The layer of ``module``; ``None``: it is the package itself, or its data.

    Raises:
        LookupError: it is in no layer of the table.
    """
    parts = module.split(".")[1:]
    if not parts or parts[0] == "hardware_profiles":
        return None
    if parts[0] not in LAYERS:
        raise LookupError(f"{module} is in no layer: give {parts[0]} a line in LAYERS")
    return parts[0]


@functools.cache
def imports_of(path: Path) -> tuple[str, ...]:
    """Absolute names of what the file imports, at any depth."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[str]:
    package = module_of(path) if path.name == "__init__.py" else module_of(path).rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            origin = ".".join([*base, *(node.module.split(".") if node.module else [])])
            yield from (f"{origin}.{alias.name}" for alias in node.names)
