"""Where an exported step goes: libraries of ecosystems, and images that a cross compiler links at once."""

from __future__ import annotations

import enum
import re
import shutil
import subprocess
from pathlib import Path

from poet.errors import InputError, PoetError

_MAKEFILE = Path(__file__).parent / "folder" / "Makefile"
_TARGET = re.compile(r"^(?:BARE|LINUX)_([\w-]+) := (\S+)", re.MULTILINE)


class Ecosystem(enum.Enum):
    """Whose manifest, build files and example a folder has."""

    ESP_IDF = "esp-idf"
    ZEPHYR = "zephyr"
    ARDUINO = "arduino"
    PLATFORMIO = "platformio"


def compilers() -> dict[str, str]:
    """For each target of ``make image``, the compiler that it needs."""
    found = dict(_TARGET.findall(_MAKEFILE.read_text(encoding="utf-8")))
    del found["test"]
    return {name: compiler.replace("$(CROSS)", "arm-none-eabi-") for name, compiler in found.items()}


def check_tools(target: str) -> None:
    """Refuse a target that there is not, or whose compiler is not here.

    Raises:
        InputError: says which there are, or what is missing.
    """
    known = compilers()
    if target not in known:
        raise InputError(f"--image {target!r} is no target; there are {', '.join(known)}")
    for tool in ("make", known[target]):
        if shutil.which(tool) is None:
            raise InputError(
                f"--image {target} needs {tool}, which is not here; install it (docs/microcontroller.md "
                "names the packages), or leave --image out"
            )


def link(folder: Path, target: str) -> str:
    """Link the test of an exported folder for ``target``; what to say of the image.

    Raises:
        PoetError: it does not compile, or does not fit its RAM.
    """
    command = ["make", "--no-print-directory", "-s", "-C", str(folder), "image", f"TARGET={target}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (line.strip() for line in done.stderr.splitlines() if "overflow" in line or "error" in line)
        reason = "; ".join(lines)[:300]
        raise PoetError(f"{folder} is written, and its image for {target} does not link: {reason}")
    used = re.findall(r"^ *(FLASH|RAM): +(\d+) (B|KB)", done.stdout, re.MULTILINE)
    sizes = "".join(f", {name} {count} {unit}" for name, count, unit in used)
    return (
        f"{folder}/build: the image for {target} is linked{sizes}; try: make -C {folder} run TARGET={target}"
    )
