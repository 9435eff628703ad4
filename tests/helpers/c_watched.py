"""An exported folder run by its own test, as it is or with an arena whose dead parts cannot be touched.

Before each run of an op, each move and each transfer the whole arena is poisoned for AddressSanitizer but for
the blocks that the plan has alive then; a block that was just asked for is filled with NaN.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from helpers.c_build import EXACT, STRICT
from poet.c99.project import CProject
from poet.plans.training_plan import Plan
from poet.problem.schedule import Free

SANITIZED = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
_RUN = "        schedule[i].run(net, schedule[i].numbers);\n"
_WATCH = """
#include <sanitizer/asan_interface.h>

typedef struct {{
    uint32_t from, size;
    int is_new;
}} alive_block;

static const alive_block alive[] = {{
{blocks}
}};
static const uint32_t first_alive[] = {{{firsts}}};

static void watch(float *arena, size_t row)
{{
    __asan_poison_memory_region(arena, POET_ARENA_BYTES);
    for (uint32_t k = first_alive[row]; k < first_alive[row + 1u]; ++k) {{
        __asan_unpoison_memory_region((char *)arena + alive[k].from, alive[k].size);
        if (alive[k].is_new) {{
            memset((char *)arena + alive[k].from, 255, alive[k].size);
        }}
    }}
}}
"""


@cache
def can_watch(compiler: str) -> bool:
    """Whether the compiler is here with its sanitizers, whose headers and runtime a clang may lack."""
    if shutil.which(compiler) is None:
        return False
    with TemporaryDirectory() as folder:
        source = Path(folder) / "empty.c"
        source.write_text("#include <sanitizer/asan_interface.h>\nint main(void) { return 0; }\n")
        command = [compiler, *SANITIZED, str(source), "-o", str(source.with_suffix(""))]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


@dataclass(frozen=True, slots=True)
class Alive:
    """A block at its place, and whether it was asked for since the row before."""

    from_bytes: int
    size_bytes: int
    is_new: bool


def alive_at_rows(plan: Plan, project: CProject) -> list[list[Alive]]:
    """What may be touched at each row of the schedule in C."""
    demand, places = plan.demand, plan.places
    assert places is not None
    asked = sorted(
        (request.step, request.block, offset)
        for request, offset in zip(demand.requests, places.requests_bytes, strict=True)
    )
    at: dict[int, int] = {}
    is_new: set[int] = set()
    statements, rows = iter(project.statements.statements), list[list[Alive]]()

    def ask(until: int) -> None:
        while asked and asked[0][0] <= until:
            step, block, offset = asked.pop(0)
            at[block] = offset
            if step >= 0:
                is_new.add(block)

    def row(step: int, beside: list[Alive]) -> None:
        if not next(statements).calls:
            return
        tick = demand.begins[step]
        now = {
            number
            for number, block in enumerate(demand.blocks)
            if number in at and any(born <= tick <= died for born, died in block.spans)
        }
        here = [Alive(at[each], demand.blocks[each].size_bytes, each in is_new) for each in sorted(now)]
        is_new.difference_update(now)
        rows.append([*beside, *here])

    ask(-1)
    for index in range(len(plan.schedule) + 1):
        for move in (item for item in places.moves if item.step == index):
            tick = demand.begins[index] - 1  # the tensor was there before this step
            block = next(
                number
                for number, item in enumerate(demand.blocks)
                if item.tensor == move.tensor
                and at.get(number) == move.from_bytes
                and any(born <= tick <= died for born, died in item.spans)
            )
            at[block] = move.to_bytes
            row(index, [Alive(move.from_bytes, move.size_bytes, False)])
        if index < len(plan.schedule) and not isinstance(plan.schedule[index], Free):
            ask(index)
            row(index, [])
    assert next(statements, None) is None
    return rows


def said_by(
    folder: Path,
    project: CProject,
    *flags: str,
    compiler: str = "gcc",
    rows: Sequence[Sequence[Alive]] | None = None,
) -> list[str]:
    """Losses and state of the folder's test, which also holds the losses against PyTorch's.

    Args:
        folder: of the project.
        project: what was written there.
        flags: of the compiler.
        compiler: its command.
        rows: what may be touched at each row of the schedule; `None`: the folder as it is.
    """
    sources = [folder / f"poet_{name}.c" for name in ("step", "state", "kernels", "weights")]
    if rows is not None:
        text = project.files["poet_step.c"]
        assert text.count(_RUN) == 1
        text = text.replace(_RUN, f"        watch(net->arena, i);\n{_RUN}")
        text = text.replace(
            "    ++net->steps;\n",
            "    __asan_unpoison_memory_region(net->arena, POET_ARENA_BYTES);\n    ++net->steps;\n",
        )
        text = text.replace("#include <string.h>\n", f"#include <string.h>\n{_watch(rows)}", 1)
        sources[0] = folder / "watched.c"
        sources[0].write_text(text)
        flags = (*flags, *SANITIZED)
    program = folder / "program"
    own = [folder / "test" / "main.c", folder / "test" / "vectors.c"]
    files = [str(path) for path in (*own, *sources)]
    command = [compiler, *STRICT, *EXACT, *flags, "-I", str(folder), *files, "-o", str(program)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    done = subprocess.run([program], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr[:3000]
    return done.stdout.splitlines()


def _watch(rows: Sequence[Sequence[Alive]]) -> str:
    firsts = [sum(map(len, rows[:count])) for count in range(len(rows) + 1)]
    blocks = (
        f"    {{{each.from_bytes}u, {each.size_bytes}u, {int(each.is_new)}}}," for row in rows for each in row
    )
    return _WATCH.format(blocks="\n".join(blocks), firsts=", ".join(f"{first}u" for first in firsts))
