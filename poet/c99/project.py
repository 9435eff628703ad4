"""The folder of an exported plan: all its files as text, then written whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from poet.c99 import library, sources, vectors
from poet.c99.calls import WORD_BYTES
from poet.c99.emit import functions_of, net_bytes, step_header, step_source
from poet.c99.exportable import LIBRARY
from poet.c99.interface import ExportedStep, Interface, Span, comment, interface_of
from poet.c99.prediction import Prediction, prediction_of
from poet.c99.rules.updates import check_optimizer
from poet.c99.sources import filled, weights_header, weights_source
from poet.c99.statements import BLOCK_BYTES, Statements, statements_of
from poet.errors import InputError, PlanError, PoetError
from poet.ir.graph import ITEM_BYTES
from poet.plans.page_slots import Wear, erases_text, life_steps, most_erased
from poet.plans.plan_file import PlanFile, plan_digest
from poet.plans.planned_step import stored_values
from poet.plans.training_plan import Plan
from poet.problem.schedule import Compute
from poet.runtime.kernels.arguments import dtype
from poet.runtime.kernels.cells import memory_of
from poet.util.units import format_bytes, format_count

_STACK_BYTES, _BESIDE_BYTES = 1024 + 64, 1024 + 128
"""The stack of the test for a board, and gaps; with a small net all that it has in RAM beside the arena."""
_COPIED = {
    "CMakeLists.txt": "CMakeLists.txt",
    "poet_file_storage.c": "poet_file_storage.c",
    "poet_file_storage.h": "poet_file_storage.h",
    "poet_library.h": "poet_library.h",
    "poet_state.h": "poet_state.h",
    "main.c": "test/main.c",
    "board.c": "test/board.c",
    "board.ld": "test/board.ld",
}


@dataclass(frozen=True, slots=True)
class CProject:
    """An exported plan.

    Attributes:
        files: text by path inside the folder.
        interface: what its caller sees.
        statements: what a step does.
        spans: what lies in the arena across steps.
        prediction: the forward pass in evaluation, or why there is none.
    """

    files: Mapping[str, str]
    interface: Interface
    statements: Statements
    spans: tuple[Span, ...]
    prediction: Prediction | str

    def write(self, folder: Path) -> None:
        """Write the folder, whole or not at all.

        Raises:
            InputError: there is something at that path already.
            PoetError: it cannot be written.
        """
        check_new(folder)
        try:
            made = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.absolute().parent))
        except OSError as error:
            raise PoetError(f"{folder}: cannot be written ({error.strerror})") from None
        try:
            for name, text in self.files.items():
                (made / name).parent.mkdir(parents=True, exist_ok=True)
                (made / name).write_text(text, encoding="utf-8")
            made.chmod(0o777 & ~_umask())
            if folder.exists():
                folder.rmdir()
            os.rename(made, folder)
        except OSError as error:
            raise PoetError(f"{folder}: cannot be written ({error.strerror})") from None
        finally:
            shutil.rmtree(made, ignore_errors=True)


def check_new(folder: Path) -> None:
    """Refuse a folder that has something in it or is the working folder, a file or a link.

    Raises:
        InputError: says so.
    """
    is_empty = folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir())
    if not is_empty and (folder.exists() or folder.is_symlink()):
        raise InputError(f"{folder}: is there already and not empty; give another folder, or remove it")
    if is_empty and folder.samefile(Path()):
        raise InputError(f"{folder}: is the working folder, which would be replaced; give another folder")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def c_project(file: PlanFile) -> CProject:
    """The plan in ``file`` as C.

    Raises:
        UnsupportedOperator: something of it has no C kernel.
        PlanError: it has no arena, keeps tensors in storage, or rounds what it pages.
    """
    plan = file.plan
    if plan.rounded:
        raise PlanError(
            f"{file.path.name}: {min(plan.rounded)} is rounded in storage, which C code does not do; plan "
            "without --allow"
        )
    check_optimizer(plan.optimizer)
    statements = statements_of(plan)
    interface = interface_of(plan.graph, statements)
    kept = initial_contents(file)
    spans, words = _spans(plan, statements, kept)
    packed = b"".join(_whole_words(kept[name]) for name in statements.in_flash)
    prediction = prediction_of(plan.graph, statements)
    foreseen = () if isinstance(prediction, str) else prediction.statements
    used = sources.needed(functions_of((*statements.statements, *foreseen), plan.optimizer))
    step = ExportedStep(interface, statements, spans, prediction, plan.optimizer)
    made = vectors.vectors_of(plan.graph, plan.optimizer, interface, kept)
    digest = plan_digest(plan)
    code = {
        "poet_kernels.c": sources.source_text(used),
        "poet_kernels.h": sources.header_text(used),
        "poet_state.c": filled("poet_state.c"),
        "poet_step.c": step_source(step),
    }
    build = zlib.crc32("".join(code.values()).encode())
    files = {
        "Makefile": filled("Makefile", RAM_BYTES=str(_ram_bytes(plan, step))),
        "README.md": _readme(plan, step, WORD_BYTES * len(words) + len(packed), digest),
        **code,
        "poet_library.c": _library(step, digest),
        "poet_library.py": Path(library.__file__).read_text(encoding="utf-8"),
        "poet_step.h": step_header(step, model=plan.model.name, digest=digest, build=build),
        "poet_weights.c": weights_source(words, packed),
        "poet_weights.h": weights_header(has_packed=bool(packed)),
        "test/vectors.c": vectors.vectors_source(interface, made),
        "test/vectors.h": vectors.vectors_header(),
        **{name: filled(source) for source, name in _COPIED.items()},
    }
    return CProject(files, interface, statements, spans, prediction)


def initial_contents(file: PlanFile) -> dict[str, Tensor]:
    """The elements of each buffer that lives across steps, as it begins."""
    graph = file.plan.graph
    fresh = {
        value: file.plan.optimizer.states[name]
        for parameter in graph.parameters
        for name, value in parameter.optimizer_state
    }
    sizes = {buffer.name: buffer.size_bytes for buffer in graph.buffers}
    kept: dict[str, Tensor] = {}
    for name, kind in stored_values(graph).items():
        buffer = graph.buffer_of(name)
        items = sizes[buffer] // ITEM_BYTES[kind.dtype]
        flat = kept.setdefault(buffer, torch.zeros(items, dtype=dtype(kind.dtype)))
        view = flat.as_strided(kind.shape, kind.strides, kind.offset)
        if name in file.entries:
            raw = torch.empty(kind.elements * ITEM_BYTES[kind.dtype], dtype=torch.uint8)
            if raw.numel():
                file.read_into(name, memory_of(raw))
            view.copy_(raw.view(flat.dtype).reshape(kind.shape))
        else:
            view.fill_(fresh[name])
    return kept


def _spans(
    plan: Plan, statements: Statements, kept: Mapping[str, Tensor]
) -> tuple[tuple[Span, ...], tuple[int, ...]]:
    """What lies across steps, and the words that it begins with; of one value throughout needs no words."""
    spans: list[Span] = []
    words: list[int] = []
    updated = {buffer for op in plan.graph.ops for buffer in op.updates}
    for name, flat in kept.items():
        if name in statements.in_flash:
            continue
        bits = np.frombuffer(flat.numpy().tobytes(), dtype="<u4")
        word = statements.kept[name] // WORD_BYTES
        if not len(bits):
            continue
        is_in_ram, home = name not in statements.homes, statements.homes.get(name)
        if not is_in_ram:
            word = -1
        is_one = bool((bits == bits[0]).all())
        first, fill = (None, int(bits[0])) if is_one else (len(words), 0)
        checksum = None if home is None else statements.sums[name]
        is_checked = name in updated and flat.is_floating_point()
        spans.append(Span(name, word, len(bits), first, fill, is_in_ram, home, checksum, is_checked))
        words += [] if is_one else bits.tolist()
    return tuple(spans), tuple(words) or (0,)


def _whole_words(rows: Tensor) -> bytes:
    return rows.numpy().tobytes() + bytes(-rows.numel() % WORD_BYTES)


def _ram_bytes(plan: Plan, step: ExportedStep) -> int:
    """The RAM that the linker is given: the plan's budget, where it leaves room for the net and the stack."""
    needed = step.arena_bytes + max(_BESIDE_BYTES, _STACK_BYTES + net_bytes(step))
    return max(plan.request.limits.ram_budget_bytes or 0, needed)


def _library(step: ExportedStep, digest: str) -> str:
    """``poet_library.c``; its lists end with a 0, as none may be empty."""

    def listed(counts: Iterable[int]) -> str:
        return ", ".join([*(f"{count}u" for count in counts), "0u"])

    inputs = [
        (placed.type.elements, rows)
        for (_, placed), rows in zip(step.interface.inputs, step.interface.rows, strict=True)
    ]
    outputs = (placed.type.elements for _, placed in step.interface.outputs)
    return filled(
        "poet_library.c",
        INPUT_FLOATS=listed(0 if rows else count for count, rows in inputs),
        INPUT_NUMBERS=listed(count if rows else 0 for count, rows in inputs),
        OUTPUT_FLOATS=listed(outputs),
        CAN_PREDICT=str(int(not isinstance(step.prediction, str))),
        DIGEST=digest,
    )


def _storage_said(step: ExportedStep) -> str:
    """How much storage a step uses, and how much it is worn by a step and by a commit."""
    if not step.page_bytes:
        return "none"
    sizes = step.statements.written
    blocks = sum(-(-size // BLOCK_BYTES) for size in sizes)
    said = f"{step.page_bytes} bytes; a step writes {sum(sizes)} bytes, {blocks} blocks of {BLOCK_BYTES}"
    if step.commits:
        kept = WORD_BYTES * sum(span.words for span in step.spans if span.is_in_ram)
        said += f"; a commit {kept} bytes and its record, {-(-kept // BLOCK_BYTES) + 1} blocks"
    return said


def _life_said(plan: Plan, step: ExportedStep) -> str:
    """How many steps the storage lasts; what is written lies where it lay in the step before."""
    endurance, written = plan.device.endurance, step.statements.writes
    sizes = [-(-size // endurance.block_bytes) * endurance.block_bytes for _, size in written]
    wear = Wear(sum(sizes), most_erased(written, max(endurance.block_bytes, BLOCK_BYTES)))
    if not wear.bytes:
        return "not worn"
    steps = life_steps(endurance, wear)
    said = "not known" if steps is None else f"{format_count(steps)} steps"
    survives = "" if endurance.cycles is None else f", and each block survives {endurance.cycles:,} erases"
    return f"{said}; each {erases_text(wear)}{survives}"


def _readme(plan: Plan, step: ExportedStep, weights_bytes: int, digest: str) -> str:
    arena_bytes = step.arena_bytes
    runs = sum(isinstance(step, Compute) for step in plan.schedule)
    budget_bytes = plan.request.limits.ram_budget_bytes
    budget = "no budget was given" if budget_bytes is None else f"budget {budget_bytes} bytes"
    everything = plan.prediction.plain_peak_ram_bytes
    plain = (
        "" if everything is None else f"\n| arena of training that keeps everything | {everything} bytes |"
    )
    return filled("README.md").format(
        model=comment(plan.model.name),
        device=comment(plan.device.title),
        digest=digest,
        arena=arena_bytes,
        net=net_bytes(step),
        ram=_ram_bytes(plan, step),
        arena_words=format_bytes(arena_bytes),
        budget=budget,
        plain=plain,
        weights=weights_bytes,
        storage=_storage_said(step),
        life=_life_said(plan, step),
        runs=runs,
        recomputed=runs - len(plan.graph.ops),
        optimizer=plan.optimizer.name,
        kernels=LIBRARY,
    )
