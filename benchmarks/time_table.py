"""Plans of least time at half and at 30 % of the activation memory, whole nets: results/least-time.md.

    python -m benchmarks time-table [--only NAME ...] [--kinds KIND ...]
                                                                    [--time-limit 10] [--as-is]

The nets of results/models.md at batch 1 on the profile `x86-host`, SGD, parameters kept in RAM, planned for
least time. Six of them make steps here, and all are imported with and without strips. What is done is kept
in ``--folder``: an interrupted run goes on.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from apart import ROOT, found_apart
from models_rows import MODELS, before, replace_text
from time_page import Found, page
from time_rows import MEASURED, Measured, Planned, imported, measured, planned

PROCESS_SECONDS = 1200.0
IMPORTS = {
    "import-keep": ("keep", {}),
    "import-warm": ("stream", {}),
    "import-later": ("stream", {}),
    "import-anew": ("stream", {"POET_TRIALS": "anew"}),
}
"""What is imported in turn: ``import-warm`` leaves what trials showed to ``import-later``."""
KINDS = ("plans", "steps", *IMPORTS, "long")


def answer(kind: str, name: str, seconds: float, plans: Path) -> Any:
    """What ``kind`` finds of a net, in this process, as JSON."""
    if kind in IMPORTS:
        return imported(name, IMPORTS[kind][0])
    rows: Sequence[Planned | Measured]
    if kind == "steps":
        rows = measured(name, plans)
    else:
        rows = planned(name, seconds, plans, long_forms=kind == "long")
    return [asdict(row) for row in rows]


def found_of(find: Callable[[str], Any]) -> Found:
    """The rows of a net from what ``find`` says of each kind; ``None`` is what is not made."""

    def rows(kind: str, row: type[Planned] | type[Measured]) -> Any:
        made = find(kind)
        return None if made is None else [row(**item) for item in made]

    return Found(
        plans=rows("plans", Planned),
        steps=rows("steps", Measured),
        long_plans=rows("long", Planned),
        keep_seconds=find("import-keep"),
        later_seconds=find("import-later"),
        anew_seconds=find("import-anew"),
    )


def main() -> None:
    """Make what is not there, smallest net first, then the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=MODELS, default=MODELS, metavar="NAME")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, metavar="KIND")
    parser.add_argument("--time-limit", type=float, default=10.0, help="seconds for each search")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "least-time")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "least-time.md")
    parser.add_argument("--as-is", action="store_true", help="of what is done")
    parser.add_argument(
        "--measure", choices=KINDS, metavar="KIND", help="of one net, in this process, as JSON"
    )
    asked = parser.parse_args()
    if asked.measure:
        print(json.dumps(answer(asked.measure, asked.only[0], asked.time_limit, asked.folder)))
        return
    asked.folder.mkdir(parents=True, exist_ok=True)

    def find(kind: str, name: str, *, is_kept_only: bool) -> Any:
        options = ("--measure", kind, "--only", name, "--time-limit", str(asked.time_limit))
        return found_apart(
            asked.folder / f"{name}-{kind}.json",
            (__file__, *options, "--folder", str(asked.folder)),
            timeout_seconds=PROCESS_SECONDS,
            is_kept_only=is_kept_only,
            variables=IMPORTS[kind][1] if kind in IMPORTS else None,
        )

    def write() -> None:
        every = {
            name: found_of(lambda kind, name=name: find(kind, name, is_kept_only=True))  # type: ignore[misc]
            for name in MODELS
        }
        replace_text(asked.output, page(every, asked.time_limit))

    then = before()
    for kind in () if asked.as_is else asked.kinds:
        for name in sorted(asked.only, key=lambda name: then[name].keep_everything_mib):
            if kind == "steps" and name not in MEASURED:
                continue
            try:
                print(kind, name, find(kind, name, is_kept_only=False), flush=True)
            except subprocess.SubprocessError as error:  # the other nets go on
                print(kind, name, error, flush=True)
            write()
    write()


if __name__ == "__main__":
    main()
