"""Builds exported C with the strictest warnings, and runs it in this process."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

from poet.c99.project import CProject
from poet.ir.graph import Graph

needs_cortex_m = pytest.mark.skipif(
    not (shutil.which("arm-none-eabi-gcc") and shutil.which("qemu-system-arm")),
    reason="needs gcc-arm-none-eabi, libnewlib-arm-none-eabi and qemu-system-arm",
)
STRICT = ("-std=c99", "-pedantic", "-Wall", "-Wextra", "-Wconversion", "-Werror")
EXACT = ("-ffp-contract=off", "-fno-math-errno")
Floats = np.ndarray[tuple[int], np.dtype[np.float32]]


def build(folder: Path, *flags: str, compiler: str = "gcc", name: str = "step") -> Path:
    """A shared library of the C files in ``folder``."""
    library = folder / f"{name}.so"
    sources = [str(path) for path in sorted(folder.glob("*.c"))]
    command = [compiler, *STRICT, *EXACT, *flags, "-fPIC", "-shared", "-I", str(folder), *sources]
    environment = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(
        [*command, "-o", str(library)], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    return library


COPY = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_uint32)
SYNC = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class StorageRecord(ctypes.Structure):
    """A ``poet_storage``."""

    _fields_ = (("context", ctypes.c_void_p), ("read", COPY), ("write", COPY), ("sync", SYNC))


class CStep:
    """A library of an exported plan with an arena of its own."""

    def __init__(self, project: CProject, library: Path, *, graph: Graph, seed: int = 1) -> None:
        self.project, self.graph = project, graph
        self.library = ctypes.CDLL(str(library))
        size_bytes = project.statements.arena_bytes
        self.arena: Floats = np.full((size_bytes + 3) // 4 + 2, np.nan, dtype=np.float32)
        self.net = (ctypes.c_uint64 * 4096)()  # more than a poet_net takes with a checksum of each page
        self.seed = seed
        self.library.poet_state_crc.restype = ctypes.c_uint32
        self.pages = bytearray(project.statements.page_bytes)
        self.transfers, self.failing = 0, -1
        self.storage = StorageRecord(None, COPY(self._read), COPY(self._write), SYNC(lambda _: 0))
        self.begin()

    def begin(self) -> None:
        """With the plan's weights."""
        place = self.arena.ctypes.data_as(ctypes.c_void_p)
        assert self.library.poet_init(self.net, place, ctypes.c_uint32(self.seed)) == 0
        if self.pages:
            assert self.library.poet_set_storage(self.net, ctypes.byref(self.storage)) == 0

    def _read(self, _: int, offset: int, target: int, size: int) -> int:
        self.transfers += 1
        ctypes.memmove(target, bytes(self.pages[offset : offset + size]), size)
        return int(self.transfers - 1 == self.failing)

    def _write(self, _: int, offset: int, source: int, size: int) -> int:
        self.transfers += 1
        self.pages[offset : offset + size] = ctypes.string_at(source, size)
        return int(self.transfers - 1 == self.failing)

    def fill(self, values: Mapping[str, Tensor]) -> None:
        """Put inputs and target where they go."""
        for name, tensor in values.items():
            word = self.project.statements.given[name].word
            bits = np.frombuffer(tensor.numpy().tobytes(), dtype=np.float32)
            self.arena[word : word + len(bits)] = bits

    def step(self) -> float:
        """One training step; its loss."""
        loss = ctypes.c_float()
        assert self.library.poet_train_step(self.net, ctypes.byref(loss)) == 0
        return loss.value

    def predict(self) -> Floats:
        """The first prediction, in evaluation mode."""
        assert not isinstance(self.project.prediction, str), self.project.prediction
        assert self.library.poet_predict(self.net) == 0
        placed = self.project.prediction.outputs[0][1]
        return self.arena[placed.word : placed.word + placed.type.elements].copy()

    def kept(self) -> dict[str, Floats]:
        """What lives across steps, by buffer, as bits of floats."""
        assert all(span.is_in_ram for span in self.project.spans)
        return {
            span.name: self.arena[span.word : span.word + span.words].copy() for span in self.project.spans
        }

    def crc(self) -> int:
        """That of all that lives across steps."""
        found: int = self.library.poet_state_crc(self.net)
        return found
