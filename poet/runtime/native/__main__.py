"""Compile the allocator for devices without a compiler: ``python -m poet.runtime.native --output FILE``."""

from __future__ import annotations

import argparse
from pathlib import Path

from poet.errors import PoetError
from poet.runtime.native.build import NAME, VARIABLE, Unavailable, build_for_copying
from poet.util.streams import say
from poet.util.units import format_bytes


def main() -> None:
    """Compile, and say where the file fits and where it belongs."""
    parser = argparse.ArgumentParser(
        prog="python -m poet.runtime.native",
        description="Compile the native allocator for devices with this release of torch and no compiler.",
    )
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="written or replaced")
    parser.add_argument(
        "--compiler",
        metavar="CXX",
        help="for the device's processor, such as aarch64-linux-gnu-g++; default: $CXX, else c++",
    )
    asked = parser.parse_args()
    try:
        fits = build_for_copying(asked.output, compiler=asked.compiler)
    except (Unavailable, PoetError) as error:
        say(f"poet: {' '.join(str(error).split())}", err=True)
        parser.exit(2)
    say(f"{asked.output}: {format_bytes(asked.output.stat().st_size)}, for {fits}")
    say(f"on the device: {VARIABLE}=FILE, or {NAME} in poet's cache folder")


if __name__ == "__main__":
    main()
