"""Runs one benchmark by its name, or shows what is kept of one; without a name, lists them.

Each is a script beside this file, or one of `ELSEWHERE`. It runs in place of this process, so signals, exit
codes and what it keeps between runs are its own: one that was interrupted goes on where it was.

    python -m benchmarks [NAME [its own options ...]]
    python -m benchmarks show [RESULT]
"""

from __future__ import annotations

import ast
import difflib
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
PATHS = tuple(ROOT / folder for folder in ("examples", "tests", "tests/tools", "benchmarks"))
"""Folders that scripts import from."""
WORKERS = ("step_worker", "calibration_bench")
"""Scripts that other scripts start."""
ELSEWHERE = tuple(
    ROOT / name
    for name in (
        "examples/language_model.py",
        "examples/models_table.py",
        "examples/nets_table.py",
        "examples/strips_picture.py",
        "tests/tools/faults.py",
        "tests/tools/fuzz.py",
        "tests/helpers/power_cut.py",
    )
)


def scripts() -> dict[str, Path]:
    """The scripts that can be run, by name: the file's, with dashes."""
    own = (path for path in HERE.glob("*.py") if path.stem not in (*WORKERS, "__main__"))
    found = [path for path in own if 'if __name__ == "__main__":' in path.read_text(encoding="utf-8")]
    return {
        path.stem.replace("_", "-"): path for path in sorted((*found, *ELSEWHERE), key=lambda path: path.stem)
    }


def description(script: Path) -> str:
    """The script's docstring."""
    return ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or ""


def chosen(name: str, known: dict[str, Path], kind: str) -> Path:
    """What is known by the name; else the nearest is told."""
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        command = "python -m benchmarks show" if kind == "result" else "python -m benchmarks"
        sys.exit(f"no {kind} is called {name!r}{meant} `{command}` lists them")
    return known[name]


def show(name: str | None = None) -> None:
    """Print what is kept of a benchmark; without a name, list what is kept."""
    from result_file import RESULTS, read

    known = {path.stem: path for path in sorted(RESULTS.glob("*.json"))}
    if name is None:
        print("\n".join(f"{result:<20} {read(path).title}" for result, path in known.items()))
    else:
        print(read(chosen(name, known, "result")), end="")


def main(arguments: list[str]) -> None:
    """Become the script that is named first."""
    known = scripts()
    if not arguments or arguments[0] in ("-h", "--help"):
        print("python -m benchmarks NAME [--help], or show [RESULT]\n")
        print("\n".join(f"{name:<18} {description(path).splitlines()[0]}" for name, path in known.items()))
        return
    name, *options = arguments
    if name == "show":
        sys.path.insert(0, str(HERE))
        show(*options[:1])
        return
    script = chosen(name, known, "benchmark")
    if "--help" in options and "argparse" not in script.read_text(encoding="utf-8"):
        print(description(script))
        return
    inherited = filter(None, [os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*map(str, PATHS), *inherited])}
    os.execve(sys.executable, [sys.executable, str(script), *options], environment)


if __name__ == "__main__":
    main(sys.argv[1:])
