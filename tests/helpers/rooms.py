"""The layers of the package, lowest first: imports point down the table."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]

FLOORS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("Words", "errors, units, records as JSON", (
            "version", "errors", "closing", "files.reading", "extras", "units", "brief", "clock",
            "codec", "children", "streams", "interrupts", "freed_memory", "held_memory",
        )),
    ("Training graph", "ops, values and buffers of one step", (
            "operators", "kernel_allocations", "kernel_facts", "calls", "strips", "wholes", "graph_parts",
            "graph_checks", "graph", "named",
            "formulas", "reshaping", "named_options", "optimizer_kinds", "optimizer_steps",
            "optimizer_text", "optimizer", "loss", "micro", "untrained",
            "files.cache_folder", "files.kinds", "files.tensorfile", "files.arrays", "files",
        )),
    (
        "Planning problem",
        "what must run and what it costs; schedules, and the simulator that judges them",
        (
            "schedule", "problem_parts", "problem_choices", "problem", "alternatives", "homes", "pins",
            "simulator", "search_record", "solution", "progress",
        ),
    ),
    (
        "Devices",
        "profiles, the cost model, fits to measurements",
        (
            "devices", "devices.figures", "devices.storage", "devices.profile", "devices.sense",
            "devices.load", "devices.cost_rules", "devices.cost_table", "devices.machine",
            "devices.measurements",
            "devices.costs", "devices.device_problem", "devices.spread", "devices.fitting",
            "devices.fitted_power", "devices.fitted_profile",
        ),
    ),
    (
        "Solvers",
        "bounds, plans, proofs",
        (
            "solvers.engines", "solvers.instance", "solvers.event_model", "solvers.bounds",
            "solvers.heuristics", "solvers.portfolio", "solvers.search", "solvers", "baselines", "ram_survey",
            "trade_off_curve",
        ),
    ),
    (
        "Plan",
        "demand and layout in one arena, the plan and its file",
        ("memory", "plans"),
    ),
    ("C99", "a plan as C: kernels, calls, text", ("c99",)),
    ("Runtime", "replay in PyTorch, page file, native allocator", (
            "runtime.native", "runtime.kernels", "runtime.system", "runtime.trials", "runtime.storage",
            "runtime.steps", "runtime.data", "runtime.training", "runtime.runs", "runtime",
        )),
    ("Passes", "rewrites of ops into other forms with the same bits", ("passes",)),
    ("Frontend", "modules and ONNX files to training graphs", ("frontend", "frontend.onnx")),
    (
        "Planning a model",
        "verification, enforcement, the way from a model to a plan, sweeps",
        (
            "random_batches", "verification", "enforce", "planning",
            "planning.layout_search", "planning.exact_layout",
            "planning.arena_search", "planning.beside_buffer", "planning.fit_layout",
            "planning.summary", "planning.prepared",
            "planning.saves_choice", "planning.planned", "planning.online_guard",
            "planning.beside", "planning.auxiliary", "planning.shape_bytes", "planning.shape_planner",
            "planning.budgets", "planning.request", "planning.pipeline", "planning.exported", "api",
            "calibration",
            "integrations", "whatif", "planning.kept_plans",
            "c99.vectors", "c99.project", "c99.library_check",
        ),
    ),
    ("Reports", "text, JSON, HTML", ("report", "report.html")),
    ("Command line", "", ("cli", "__main__")),
)  # fmt: skip
"""Title, what it holds, its rooms; bottom first. A module imports from its own room and those before it."""

ROOMS = tuple(room for _, _, rooms in FLOORS for room in rooms)

RUNTIME_MAY_READ = frozenset(
    {
        "version", "errors", "closing", "units", "brief", "codec", "children", "streams", "interrupts",
        "operators",
        "kernel_allocations", "kernel_facts", "calls", "strips", "wholes", "graph_parts",
            "graph_checks", "graph", "named",
        "schedule", "problem_parts", "problem_choices", "problem", "alternatives", "homes",
        "pins", "simulator", "optimizer_kinds", "optimizer_steps", "optimizer_text", "optimizer", "loss",
        "micro", "memory", "plans",
        "files.reading", "files.cache_folder", "files.kinds", "files.tensorfile", "files.arrays", "files",
        "runtime.native", "runtime.kernels",
        "runtime.system", "runtime.trials", "runtime.storage", "runtime.steps", "runtime.data",
        "runtime.training", "runtime.runs", "runtime",
    }
)  # fmt: skip


def sources() -> list[Path]:
    """Every module of the package."""
    folders = (ROOT / "poet", ROOT / "cli", ROOT / "hardware_profiles")
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


def module_of(path: Path) -> str:
    """Dotted name; ``cli`` and ``hardware_profiles`` install below ``poet``."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == "poet" else ("poet", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str | None:
    """The longest room that ``module`` lies in; ``None`` for the package itself and its data.

    Raises:
        LookupError: it lies in no room of the table.
    """
    parts = module.split(".")[1:]
    if not parts or parts[0] in ("hardware_profiles", "__version__"):
        return None
    for length in range(len(parts), 0, -1):
        if ".".join(parts[:length]) in ROOMS:
            return ".".join(parts[:length])
    raise LookupError(f"{module} is in no room: give it a place in FLOORS")


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
