"""State CRCs of exported steps on nine machines in QEMU and on this one: results/boards-table.json.

Three steps of small forms of nets of MLPerf Tiny and of a micro net, each plan with tensors made again.
Machines whose cross compiler or QEMU is not here are named and left out.

    python -m benchmarks boards-table

About five minutes.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from result_file import RESULTS, write

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "tests")]

from helpers.c_nets import net_of  # noqa: E402

from poet.c99.targets import compilers  # noqa: E402

NETS = (("micro", "adamw"), ("ds-cnn", "momentum"), ("resnet-8", "sgd"))
HEAD = """# The same state on every machine

Made by `python -m benchmarks boards-table`.
Three steps of an exported plan, built with {version} or that machine's gcc at -O2, and run in
QEMU; {machine} is this machine. *CRC* is that of all that lives across steps. cortex-m0plus runs on QEMU's
Cortex-M0, which has the same instructions. {verdict}

| machine | {nets} |
|---|{lines}|
"""


def crc_of(folder: Path, *command: str) -> str:
    """What the folder's test prints of its state."""
    done = subprocess.run(
        ["make", "-s", "-C", str(folder), *command], capture_output=True, text=True, check=False
    )
    found = re.search(r"state, its CRC 0x([0-9a-f]{8})", done.stdout + done.stderr)  # QEMU's is stderr
    if done.returncode or found is None:
        sys.exit(f"{folder}: make {' '.join(command)}: {done.stdout}{done.stderr}")
    return found.group(1)


def emulator(target: str) -> str:
    """The program of QEMU that runs a target's image."""
    known = {"i386": "qemu-i386", "aarch64": "qemu-aarch64", "armhf": "qemu-arm"}
    return known.get(target, "qemu-system-riscv32" if target.startswith("rv32") else "qemu-system-arm")


def main() -> None:
    """Build, run, and write the table."""
    needs = {target: (compiler, emulator(target)) for target, compiler in compilers().items()}
    missing = [target for target, tools in needs.items() if not all(map(shutil.which, tools))]
    rows: dict[str, list[str]] = {platform.machine(): []}
    rows |= {target: [] for target in needs if target not in missing}
    with tempfile.TemporaryDirectory() as work:
        for name, optimizer in NETS:
            folder = Path(work) / name
            net_of(name, optimizer).project(folder, 3)
            for target, found in rows.items():
                is_host = target == platform.machine()
                found.append(crc_of(folder, *(["test"] if is_host else ["run", f"TARGET={target}"])))
                print(name, target, found[-1], flush=True)
    differ = [name for at, (name, _) in enumerate(NETS) if len({found[at] for found in rows.values()}) > 1]
    verdict = f"They differ for {', '.join(differ)}." if differ else "All are equal."
    verdict += f" Not here: {', '.join(missing)}." if missing else ""
    version = subprocess.run(["gcc", "--version"], capture_output=True, text=True, check=True).stdout
    head = HEAD.format(
        version=version.splitlines()[0], machine=platform.machine(), verdict=verdict,
        nets=" | ".join(f"{name}, {optimizer}" for name, optimizer in NETS),
        lines="|".join("---" for _ in NETS),
    )  # fmt: skip
    lines = "".join(
        f"| {target} | {' | '.join(f'`{crc}`' for crc in found)} |\n" for target, found in rows.items()
    )
    write(RESULTS / "boards-table.json", head + lines)
    sys.exit(1 if differ else 0)


if __name__ == "__main__":
    main()
