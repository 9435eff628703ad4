"""What a file is, by its first bytes: for the line that a command says of a file that it cannot take.

A reader says what is wrong with a file as if it were of the reader's own kind. `says_what_it_is` looks
once more where that has failed: if the file is surely of another kind, the error says of which, and what
takes it. No file is accepted or refused by what stands here.
"""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

from poet.errors import InputError

_P = ParamSpec("_P")
_R = TypeVar("_R")

_LOOKED_AT_BYTES = 1 << 16

_NO_MODEL = (
    "export the module with torch.onnx.export(module, inputs, 'model.onnx'), "
    "or plan it in Python: poet.plan(module, inputs, device=..., ram=...)"
)
_CONVERT = "convert it: numpy.savez('data.npz', inputs=..., targets=...)"


class FileKind(enum.Enum):
    """A kind of file: what it is called, and what takes it."""

    ONNX = ("an ONNX model", "`poet check`, `poet solve` and `poet what-if` take it")
    PLAN = ("a plan", "`poet run`, `explain`, `verify`, `diff`, `export` and `what-if` take it")
    STATE = ("a saved training state", "`poet run PLAN --data FILE --resume` takes it")
    PROBLEM = ("a planning problem", "`poet solve` and `poet what-if` take it")
    NPZ = ("a file of arrays (.npz)", "`poet run PLAN --data` takes it")
    TENSORS = ("a file of tensors (.safetensors)", "`poet run PLAN --data` takes it")
    PROFILE = ("a TOML file", "`poet devices validate` and `--device` take hardware profiles")
    WHAT_IF = ("the answer of `poet what-if`", "it is for other programs to read")
    TRACE = ("a trace for Perfetto", "open it at ui.perfetto.dev")
    JSON = ("a JSON file", "of these `poet solve` takes planning problems")
    PYTHON = ("Python source", _NO_MODEL)
    EXPORTED = ("a program of torch.export (.pt2)", "`poet solve` takes it")
    TORCH = ("a file of torch.save", _NO_MODEL)
    TFLITE = ("a TensorFlow Lite model", "convert it to ONNX, for example with tf2onnx")
    HDF5 = ("an HDF5 file", "convert a Keras model to ONNX, for example with tf2onnx")
    ARRAY = ("a single array (.npy)", _CONVERT)
    TABLE = ("a table (.csv)", "`poet run PLAN --data` takes it")
    PICKLE = ("a pickle, which poet never loads", _CONVERT)
    ZIP = ("a zip archive", "unpack it")
    PAGE = ("an HTML page", "open it in a browser")
    FOLDER = ("a folder", "name a file in it")
    EMPTY = ("an empty file", "write it again")

    @property
    def title(self) -> str:
        """With its article."""
        return self.value[0]

    @property
    def way_out(self) -> str:
        """Which command takes it, or what to do with it."""
        return self.value[1]


def kind_of(path: Path) -> FileKind | None:
    """What the file at ``path`` surely is; ``None``: it is not there, cannot be read, or may be anything."""
    try:
        if path.is_dir():
            return FileKind.FOLDER
        if not path.is_file():  # reading a pipe would wait for its writer
            return None
        with path.open("rb") as file:
            start = file.read(_LOOKED_AT_BYTES)
        return _by_content(path, start) or _by_suffix(path)
    except (OSError, ValueError):
        return None


def expect(path: Path, *wanted: FileKind) -> None:
    """Refuse the file at ``path`` if it is surely of no ``wanted`` kind.

    Raises:
        InputError: says what it is, and what takes it.
    """
    said = other_kind(path, *wanted)
    if said:
        raise InputError(said)


def other_kind(path: Path, *wanted: FileKind) -> str:
    """That the file at ``path`` is of no ``wanted`` kind, and the way out; empty where that is not sure."""
    kind = kind_of(path)
    if kind is None or kind in wanted:
        return ""
    if FileKind.PROFILE in wanted and kind in (FileKind.FOLDER, FileKind.EMPTY):  # also a device's name
        return ""
    expected = "a hardware profile" if wanted[0] is FileKind.PROFILE else wanted[0].title
    by_name = _by_suffix(path)
    if kind is FileKind.EMPTY and by_name in wanted and by_name is not None:
        expected = by_name.title
    way_out = kind.way_out
    if kind is FileKind.ONNX and wanted[0] is FileKind.PLAN:
        way_out = f"make a plan of it with: poet solve {path.name} --device ... --ram ... -o plan.poet"
    return f"{path}: this is {kind.title}, not {expected}; {way_out}"


def says_what_it_is(*wanted: FileKind) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """For a reader of files: where it fails on a file of another kind, its error says of which.

    The file is that of the first argument that is a text or a path.
    """

    def decorated(reader: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(reader)
        def read(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            try:
                return reader(*args, **kwargs)
            except InputError as error:
                paths = (item for item in (*args, *kwargs.values()) if isinstance(item, str | Path))
                said = other_kind(Path(next(paths, "")), *wanted)
                if not said:
                    raise
                raise type(error)(said) from None

        return read

    return decorated


_FORMATS = {
    b"poet-plan": FileKind.PLAN,
    b"poet-state": FileKind.STATE,
    b"poet-problem": FileKind.PROBLEM,
    b"poet-what-if": FileKind.WHAT_IF,
}
_SUFFIXES = {
    ".onnx": FileKind.ONNX,
    ".py": FileKind.PYTHON,
    ".toml": FileKind.PROFILE,
    ".csv": FileKind.TABLE,
    ".tsv": FileKind.TABLE,
}


def _by_content(path: Path, start: bytes) -> FileKind | None:
    if not start:
        return FileKind.EMPTY
    if start.startswith(b"PK\x03\x04"):
        return FileKind.EXPORTED if path.suffix.lower() == ".pt2" else _kind_of_zip(start)
    for magic, kind in ((b"\x93NUMPY", FileKind.ARRAY), (b"\x89HDF\r\n", FileKind.HDF5)):
        if start.startswith(magic):
            return kind
    if start[4:8] == b"TFL3":
        return FileKind.TFLITE
    if start[:1] == b"\x80" and start[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return FileKind.TORCH if path.suffix in (".pt", ".pth") else FileKind.PICKLE
    if start[8:9] == b"{" and int.from_bytes(start[:8], "little") <= 1 << 30:
        return _by_format(rb'"poet\.format":\s*"([a-z-]+)"', start) or FileKind.TENSORS
    text = start.lstrip()
    if text[:1] == b"{":
        trace = FileKind.TRACE if b'"traceEvents"' in start else FileKind.JSON
        return _by_format(rb'"format":\s*"([a-z-]+)"', start) or trace
    if text[:15].lower().startswith((b"<!doctype html", b"<html")):
        return FileKind.PAGE
    is_onnx = (
        start[:1] == b"\x08" and start[1:2] < b"\x40" and start[2:3] in (b"\x12", b"\x1a", b"\x3a", b"\x42")
    )
    return FileKind.ONNX if is_onnx else None


def _by_format(pattern: bytes, start: bytes) -> FileKind | None:
    found = re.search(pattern, start)
    return _FORMATS.get(found[1]) if found else None


def _by_suffix(path: Path) -> FileKind | None:
    return _SUFFIXES.get(path.suffix.lower())


def _kind_of_zip(start: bytes) -> FileKind:
    """By the name of its first entry, which stands in the entry's local header."""
    name = start[30 : 30 + int.from_bytes(start[26:28], "little")]
    if name.endswith(b"data.pkl"):
        return FileKind.TORCH
    return FileKind.NPZ if name.endswith(b".npy") else FileKind.ZIP
