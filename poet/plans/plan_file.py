"""The plan file: a safetensors file whose tensors are the weights and whose metadata is the plan.

``docs/file-formats.md`` describes it. A file that opens is whole, of this version, and holds a
consistent `Plan` with a tensor of the right type for every value that needs one. Nothing in it is
ever taken for a path or for code.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from poet.errors import PlanError
from poet.files import tensorfile
from poet.files.kinds import FileKind, says_what_it_is
from poet.files.tensorfile import Entry, RawTensor, TensorFile
from poet.plans.planned_step import stored_values
from poet.plans.training_plan import Plan
from poet.util.reading import Closing, parse_json
from poet.version import __version__

FORMAT = "poet-plan"
FORMAT_VERSION = 4
STRUCTURE = "poet.onnx_structure"
"""Name of the tensor that holds the model's ONNX file without weights, where there is one."""

_PLAN_AGAIN = "poet solve MODEL.onnx --device ... --ram ... -o plan.poet"
_METADATA = ("poet.format", "poet.version", "poet.plan", "poet.plan.sha256", "poet.tensors.sha256")


class PlanFile(Closing):
    """An open plan file; everything in it was checked when it was opened.

    Attributes:
        path: of the file.
        plan: the record.
        entries: the stored tensors, by the graph's value names.
    """

    @says_what_it_is(FileKind.PLAN)
    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._tensors = TensorFile(self.path, error=PlanError)
        try:
            self.plan = _plan_in(self._tensors)
            self.entries = _checked_entries(self.path.name, self.plan, self._tensors.entries)
            if self._tensors.digest() != self._tensors.metadata["poet.tensors.sha256"]:
                raise PlanError(f"{self.path.name}: its weights are damaged; get the plan again")
        except BaseException:
            self.close()
            raise

    def read_into(self, value: str, target: memoryview) -> None:
        """Fill ``target`` with the stored bytes of ``value``."""
        self._tensors.read_into(value, target)

    def stretches(self, value: str) -> Iterator[memoryview]:
        """The stored bytes of ``value``, one stretch after the other; each lies where the last did."""
        return self._tensors.stretches(value, 0, self.entries[value].size_bytes)

    def place_of(self, value: str) -> tuple[int, int]:
        """The open file's number, and where in it the bytes of ``value`` begin."""
        return self._tensors.place_of(value)

    def structure(self) -> bytes | None:
        """The model's ONNX file without weights, where the plan was made from one."""
        return self._tensors.read(STRUCTURE) if STRUCTURE in self._tensors.entries else None

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._tensors.close()


def read_plan(path: str | Path) -> Plan:
    """The plan in the file at ``path``.

    Raises:
        PlanError: the file is damaged, of another version, or contradicts itself.
    """
    with PlanFile(path) as file:
        return file.plan


def write_plan(
    path: str | Path, plan: Plan, tensors: Mapping[str, RawTensor], *, structure: bytes | None = None
) -> None:
    """Write the plan file at ``path``, whole or not at all.

    Args:
        path: of the new file; an old one is replaced.
        plan: what to write.
        tensors: contents of the values that live across steps, by value name. Optimizer state that
            is left out begins at zero.
        structure: the model's ONNX file without weights.

    Raises:
        PlanError: ``tensors`` are not those of the plan.
        PoetError: the folder cannot be written or is full.
    """
    path = Path(path)
    stored = dict(tensors)
    if structure is not None:
        stored[STRUCTURE] = RawTensor("uint8", (len(structure),), structure)
    described = {name: Entry(tensor.dtype, tensor.shape, 0, 0) for name, tensor in stored.items()}
    _checked_entries(path.name, plan, described)
    text = _text_of(plan)
    metadata = {
        "poet.format": FORMAT,
        "poet.version": str(FORMAT_VERSION),
        "poet.plan": text,
        "poet.plan.sha256": hashlib.sha256(text.encode()).hexdigest(),
        "poet.tensors.sha256": tensorfile.digest(stored),
    }
    tensorfile.write(path, stored, metadata)


def plan_digest(plan: Plan) -> str:
    """SHA-256 of a plan as its file holds it, weights aside."""
    return hashlib.sha256(_text_of(plan).encode()).hexdigest()


def _text_of(plan: Plan) -> str:
    return json.dumps(plan.to_json(), separators=(",", ":"), allow_nan=False)


def _plan_in(file: TensorFile) -> Plan:
    name, metadata = file.path.name, file.metadata
    if metadata.get("poet.format") != FORMAT:
        raise PlanError(f"{name}: not a plan; make one with: {_PLAN_AGAIN}")
    version = metadata.get("poet.version", "")
    if version != str(FORMAT_VERSION):
        raise PlanError(
            f"{name}: a plan of format version {version[:20]!r}, this poet {__version__} reads "
            f"version {FORMAT_VERSION}; plan again: {_PLAN_AGAIN}"
        )
    if metadata.keys() != set(_METADATA):
        raise PlanError(f"{name}: its header is damaged; get the plan again")
    text = metadata["poet.plan"]
    try:
        intact = hashlib.sha256(text.encode()).hexdigest() == metadata["poet.plan.sha256"]
        data = parse_json(text)
    except ValueError:
        intact = False
    if not intact:
        raise PlanError(f"{name}: its plan is damaged; get the plan again")
    return Plan.from_json(data, where=name)


def _checked_entries(where: str, plan: Plan, entries: Mapping[str, Entry]) -> dict[str, Entry]:
    """The stored tensors, each of the type of its value; only optimizer state may be left out."""
    expected = stored_values(plan.graph)
    optional = {value for parameter in plan.graph.parameters for _, value in parameter.optimizer_state}
    found = {name: entry for name, entry in entries.items() if name != STRUCTURE}
    for name, entry in found.items():
        if name not in expected:
            raise PlanError(f"{where}: the stored tensor {name!r} is no value of the graph")
        kind = expected[name]
        if (entry.dtype, entry.shape) != (kind.dtype, kind.shape):
            raise PlanError(f"{where}: {name} is stored as {entry.dtype}{list(entry.shape)}, not as {kind}")
    for name in expected:
        if name not in found and name not in optional:
            raise PlanError(f"{where}: the content of {name} is missing")
    structure = entries.get(STRUCTURE)
    if structure is not None and (structure.dtype != "uint8" or len(structure.shape) != 1):
        raise PlanError(f"{where}: the model's structure is not a row of bytes")
    return found
