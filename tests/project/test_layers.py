"""Imports point one way, heavy packages stay where they belong, and nothing dangerous is called."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from poet.version import __version__

ROOT = Path(__file__).parents[2]

ROOMS = (
    "version", "operators", "errors", "reading", "files", "children", "cache_folder", "extras",
    "units", "brief", "file_kinds", "codec", "kernel_allocations", "kernel_facts",
    "graph", "schedule", "problem", "homes", "pins", "simulator", "optimizer", "loss", "untrained",
    "device", "profiles", "cost_table", "costs", "solution", "solvers", "budgets", "fronts",
    "layout", "demand", "tensorfile", "arrays", "training_plan", "plan_file", "training_run", "host",
    "runtime", "frontend", "verification", "enforce", "arena", "rehearsal", "summary", "api", "whatif",
    "report", "cli", "__main__",
)  # fmt: skip
"""Bottom first; a module imports only from its own room and the rooms before it."""

RUNTIME_MAY_READ = frozenset(
    {
        "version", "operators", "errors", "reading", "files", "children", "cache_folder",
        "units", "brief", "file_kinds", "codec", "kernel_allocations", "kernel_facts",
        "graph", "schedule", "problem", "homes", "pins", "simulator",
        "optimizer", "loss", "layout", "demand", "tensorfile", "arrays", "training_plan", "plan_file",
        "training_run", "host", "runtime",
    }
)  # fmt: skip

HOMES = {
    "torch": {"frontend", "runtime", "verification", "enforce", "rehearsal", "api", "whatif", "cli"},
    "numpy": {"arrays", "solvers", "layout", "frontend", "runtime", "verification", "api", "whatif", "cli"},
    "onnx": {"frontend"},
    "google": {"frontend"},  # protobuf's errors while reading ONNX
    "pulp": {"solvers"},
    "highspy": {"solvers"},
    "ortools": {"solvers"},
    "pydantic": {"device", "profiles"},
    "pydantic_core": {"profiles"},
    "typer": {"cli"},
    "rich": {"report", "cli"},
    "jinja2": {"report"},
    "vl_convert": {"report"},
    "joblib": {"whatif"},
    "distributed": {"whatif"},
    "pandas": {"whatif"},
}
"""Which rooms may import which package from outside the standard library."""

FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_MODULES = {"pickle", "dill", "cloudpickle", "marshal", "shelve"}
FORBIDDEN_NAMES = {"joblib.load", "joblib.dump", "joblib.Memory"}  # they unpickle what is on the disk


def _sources() -> list[Path]:
    folders = (ROOT / "poet", ROOT / "cli", ROOT / "hardware_profiles")
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == "poet" else ("poet", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _room(module: str) -> str | None:
    """The room of ``poet.<room>...``; ``None`` for the package itself and its data."""
    parts = module.split(".")
    return None if len(parts) < 2 or parts[1] == "hardware_profiles" else parts[1]


def _imports(path: Path) -> Iterator[str]:
    """Absolute names of the modules that the file imports, at any depth."""
    package = _module(path) if path.name == "__init__.py" else _module(path).rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            origin = ".".join([*base, *(node.module.split(".") if node.module else [])])
            yield from (f"{origin}.{alias.name}" for alias in node.names)


IDS = {path: str(path.relative_to(ROOT)) for path in _sources()}
every_source = pytest.mark.parametrize("path", IDS, ids=list(IDS.values()))


@every_source
def test_imports_point_one_way(path: Path) -> None:
    room = _room(_module(path))
    if room is None:
        return  # the package's __init__ is the lazy front door and may name every room
    assert room in ROOMS, f"{path} is in no room: give it a place in ROOMS"
    for imported in _imports(path):
        target = _room(imported) if imported.startswith("poet.") else None
        assert imported != "poet", f"{path} imports the front door, which names every room"
        if target is None:
            continue
        assert target in ROOMS, f"{path} imports {imported}, which is in no room"
        assert ROOMS.index(target) <= ROOMS.index(room), f"{path} imports {imported}, a room above its own"
        if room == "runtime":
            assert target in RUNTIME_MAY_READ, f"{path} imports {imported}; the runtime reads records only"


def test_one_module_measures_kernels() -> None:
    """Import and rehearsal read no clock and record no memory: they ask `poet.runtime.measure`."""
    askers = [*(ROOT / "poet" / "frontend").rglob("*.py"), ROOT / "poet" / "rehearsal.py"]
    imports = {path: set(_imports(path)) for path in askers}
    for path, names in imports.items():
        assert not {"time", "timeit"} & {name.split(".")[0] for name in names}, path
        assert not any(name.startswith("poet.runtime.native") for name in names), path
    asking = {path.stem for path, names in imports.items() if any("runtime.measure" in n for n in names)}
    assert asking == {"trace", "rehearsal"}


@every_source
def test_packages_stay_in_their_rooms(path: Path) -> None:
    room = _room(_module(path))
    for imported in _imports(path):
        package = imported.split(".")[0]
        if package in sys.stdlib_module_names or package == "poet":
            continue
        assert room in HOMES.get(package, ()), f"{path} imports {package}"


@every_source
def test_nothing_dangerous_is_called(path: Path) -> None:
    for imported in _imports(path):
        assert imported.split(".")[0] not in FORBIDDEN_MODULES, f"{path} imports {imported}"
        assert imported not in FORBIDDEN_NAMES, f"{path} imports {imported}"
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in FORBIDDEN_CALLS, f"{path}:{node.lineno} calls {node.func.id}"
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert f"{node.value.id}.{node.attr}" not in FORBIDDEN_NAMES, f"{path}:{node.lineno}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "load":
            keywords = {keyword.arg for keyword in node.keywords}
            if isinstance(node.func.value, ast.Name) and node.func.value.id == "torch":
                assert "weights_only" in keywords, f"{path}:{node.lineno} unpickles"


def test_every_package_is_packaged() -> None:
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    assert listed == {_module(path) for path in _sources() if path.name == "__init__.py"}


def test_the_version_is_the_packages() -> None:
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == __version__


def test_every_pin_is_exact_and_every_dependency_pinned() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line[0] != "#"]
    assert all(line.count("==") == 1 for line in lines)
    pinned = {line.split("==")[0].lower() for line in lines}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    assert {item.split(">")[0].split("=")[0].lower() for item in wanted} <= pinned


def _loaded_by(code: str) -> set[str]:
    """Names of the top-level packages in ``sys.modules`` after ``code`` ran in a fresh interpreter."""
    report = "import sys, json; print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def _cli(*arguments: str) -> str:
    return f"from poet.cli.main import app\nassert not app({list(arguments)!r}, standalone_mode=False)"


PROBLEM = {
    "format": "poet-problem", "version": 1, "name": "two ops",
    "tensors": [{"name": "a", "bytes": 8}, {"name": "b", "bytes": 8}, {"name": "c", "bytes": 8}],
    "ops": [
        {"name": "f", "inputs": ["a"], "outputs": ["b"], "seconds": 1.0, "joules": 1.0},
        {"name": "g", "inputs": ["b"], "outputs": ["c"], "seconds": 1.0, "joules": 1.0},
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    "arguments",
    [("--help",), ("solve", "--help"), ("devices", "list"), ("solve", "{problem}", "--ram", "64B")],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_the_light_commands_leave_torch_alone(arguments: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "problem.json").write_text(json.dumps(PROBLEM))
    filled = [argument.format(problem=tmp_path / "problem.json") for argument in arguments]
    loaded = _loaded_by(_cli(*filled))
    assert not loaded & {"torch", "onnx", "onnxruntime", "sklearn"}


def test_the_runtime_needs_nothing_but_torch() -> None:
    loaded = _loaded_by("import poet.runtime")
    assert "torch" in loaded
    assert not loaded & {"onnx", "pulp", "highspy", "typer", "rich", "pydantic", "onnxruntime", "sklearn"}


def test_the_package_itself_is_light() -> None:
    assert not _loaded_by("import poet") & set(HOMES)


def test_the_planner_has_no_circle() -> None:
    """Modules of `poet.solvers` can be put in an order in which each imports only earlier ones."""
    sources = {_module(path): path for path in _sources() if _module(path).startswith("poet.solvers.")}
    imports: dict[str, set[str]] = {}
    for module, path in sources.items():
        named = {name for found in _imports(path) for name in (found, found.rpartition(".")[0])}
        imports[module] = named & sources.keys() - {module}
    while imports:
        free = {module for module, needed in imports.items() if not needed & imports.keys()}
        assert free, f"these import each other: {', '.join(sorted(imports))}"
        imports = {module: needed for module, needed in imports.items() if module not in free}
