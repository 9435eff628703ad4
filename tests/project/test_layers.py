"""Imports point one way, and heavy packages stay where they belong; what is never called is ruff's to see."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from helpers.layers import LAYERS, NOT_ON_A_DEVICE, ROOT, imports_of, layer_of, module_of, sources

from poet.version import __version__

HOMES = {
    "torch": {
        "frontend", "passes", "runtime", "verification", "enforce", "planning", "api",
        "whatif", "cli", "c99", "calibration", "integrations", "programs",
    },
    "executorch": {"programs"},
    "scipy": {"devices"},
    "numpy": {
        "files", "devices", "solvers", "memory", "frontend", "runtime", "verification", "planning", "whatif",
        "cli", "c99", "baselines", "report", "integrations",
    },
    "transformers": {"integrations"},
    "flwr": {"integrations"},
    "onnx": {"frontend"},
    "onnxruntime": {"frontend"},  # where it is installed, it checks an exported file
    "google": {"frontend"},  # protobuf's errors while reading ONNX
    "PIL": {"files"},  # where it is installed, it decodes images
    "pulp": {"solvers"},
    "highspy": {"solvers"},
    "numba": {"solvers"},
    "ortools": {"solvers", "planning"},
    "pydantic": {"devices"},
    "pydantic_core": {"devices"},
    "typer": {"cli"},
    "rich": {"problem", "report", "cli"},
    "jinja2": {"report"},
    "vl_convert": {"report"},
    "joblib": {"whatif"},
    "distributed": {"whatif"},
    "pandas": {"whatif"},
}  # fmt: skip
"""Which layers may import which package from outside the standard library."""


def test_imports_point_one_way() -> None:
    order = {layer: place for place, layer in enumerate(LAYERS)}
    for path in sources():
        layer = layer_of(module_of(path))
        if layer is None:
            continue  # the package's front door is lazy and may name every layer
        for imported in imports_of(path):
            assert imported != "poet", f"{path} imports the front door, which names every layer"
            target = layer_of(imported) if imported.startswith("poet.") else None
            if target is None:
                continue
            assert order[target] <= order[layer], f"{path} imports {imported}, of a layer above its own"
            on_a_device = layer != "runtime" or target not in NOT_ON_A_DEVICE
            assert on_a_device, f"{path} imports {imported}; the runtime reads records only"


def test_no_module_imports_itself_by_way_of_others() -> None:
    """At any depth: an import inside a function or for types alone closes a circle as well."""
    modules = {module_of(path): path for path in sources() if module_of(path) != "poet"}
    below: dict[str, set[str]] = {}
    for module, path in modules.items():
        parents = ({name, name.rpartition(".")[0]} & modules.keys() for name in imports_of(path))
        below[module] = {max(found, key=len) for found in parents if found} - {module}
    try:
        TopologicalSorter(below).prepare()
    except CycleError as error:
        raise AssertionError(" imports ".join(reversed(error.args[1]))) from None


def test_one_module_measures_kernels_for_an_import() -> None:
    """Frontend and passes read no clock and record no memory: they ask `measure`."""
    folders = (ROOT / "poet" / "frontend", ROOT / "poet" / "passes")
    imports = {path: set(imports_of(path)) for folder in folders for path in folder.rglob("*.py")}
    for path, names in imports.items():
        assert not {"time", "timeit"} & {name.split(".")[0] for name in names}, path
        assert not any(name.startswith("poet.runtime.native") for name in names), path
    asking = {
        path.stem
        for path, names in imports.items()
        if any(name.startswith("poet.runtime.trials.measure") for name in names)
    }
    assert asking == {"evaluation", "forms", "wrapped"}


def test_packages_stay_in_their_layers() -> None:
    for path in sources():
        layer = layer_of(module_of(path))
        for imported in imports_of(path):
            package = imported.split(".")[0]
            if package not in sys.stdlib_module_names and package != "poet":
                assert layer in HOMES.get(package, ()), f"{path} imports {package}"


def test_every_package_is_packaged() -> None:
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    assert listed == {module_of(path) for path in sources() if path.name == "__init__.py"}


def test_the_version_is_the_packages() -> None:
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == __version__


def test_every_pin_is_exact_and_every_dependency_pinned() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line[0] != "#"]
    assert all(line.count("==") == 1 for line in lines)
    pinned = {line.split("==")[0].lower() for line in lines}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    wanted += project["optional-dependencies"]["plan"]
    names = {item.split(">")[0].split("=")[0].lower() for item in wanted}
    assert names - {f"{project['name']}[plan]"} <= pinned


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


def test_the_light_commands_leave_torch_alone(tmp_path: Path) -> None:
    """One process runs them all: what any of them loads is seen at the end."""
    (tmp_path / "problem.json").write_text(json.dumps(PROBLEM))
    solve = _cli("solve", str(tmp_path / "problem.json"), "--ram", "64B")
    loaded = _loaded_by("\n".join([_cli("solve", "--help"), _cli("devices", "list"), solve]))
    assert not loaded & {"torch", "onnx", "onnxruntime", "sklearn"}


def test_the_help_loads_what_it_prints_alone() -> None:
    loaded = _loaded_by(_cli("--help"))
    assert not loaded & {"numpy", "pydantic", "scipy", "joblib", "numba"}
    assert not loaded & {"torch", "onnx", "onnxruntime", "sklearn"}


def test_the_runtime_needs_nothing_but_torch() -> None:
    loaded = _loaded_by("import poet.runtime")
    assert "torch" in loaded
    assert not loaded & {"onnx", "pulp", "highspy", "typer", "rich", "pydantic", "onnxruntime", "sklearn"}


def test_the_package_itself_is_light() -> None:
    assert not _loaded_by("import poet") & set(HOMES)
