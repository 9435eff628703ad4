"""What processes of their own found, kept in files: a table that was interrupted goes on where it was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from models_rows import replace_text

ROOT = Path(__file__).parents[1]
_FOLDERS = ("examples", "benchmarks", "tests")


def found_apart(
    kept: Path,
    command: Sequence[str],
    *,
    timeout_seconds: float,
    is_kept_only: bool = False,
    variables: Mapping[str, str] | None = None,
) -> Any | None:
    """The JSON in ``kept``, made by a script of one thread where it is not there.

    Args:
        kept: where the last line of the script's output is put, whole or not at all.
        command: path and arguments of the script.
        timeout_seconds: after which the script is ended.
        is_kept_only: make nothing; ``None`` is the answer then where ``kept`` is not there.
        variables: of the script's environment, besides this process's.

    Raises:
        subprocess.SubprocessError: the script failed or took too long.
    """
    if not kept.exists():
        if is_kept_only:
            return None
        paths = os.pathsep.join(str(ROOT / folder) for folder in _FOLDERS)
        done = subprocess.run(
            [sys.executable, *command],
            check=True,
            env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **(variables or {})},
            stdout=subprocess.PIPE,
            text=True,
            timeout=timeout_seconds,
        )
        replace_text(kept, done.stdout.splitlines()[-1])
    return json.loads(kept.read_text(encoding="utf-8"))
