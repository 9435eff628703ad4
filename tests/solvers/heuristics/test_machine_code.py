"""The loops of the local search as machine code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_where_no_folder_may_be_written_loops_are_compiled_all_the_same(tmp_path: Path) -> None:
    """The module's own and the user's are files here, which no folder can be made in."""
    (tmp_path / "loops.py").write_text("def double(number):\n    return 2 * number\n")
    (tmp_path / "__pycache__").write_text("")
    code = (
        "import loops; from poet.solvers.portfolio.local_search import loaded, mark_of; "
        "print(mark_of(loops), loaded(loops).double(21))"
    )
    done = subprocess.run(
        [sys.executable, "-B", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True,
        env={"HOME": "/dev/null", "PATH": "/usr/bin", "NUMBA_CACHE_DIR": ""},
    )  # fmt: skip
    assert done.stdout.splitlines() == ["None 42"]
