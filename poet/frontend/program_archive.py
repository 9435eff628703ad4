"""The archive that ``torch.export.save`` writes: its JSON and its raw tensors, with nothing unpickled."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

from poet.errors import ModelError
from poet.files.reading import parse_json, shown

_MOST_JSON_BYTES = 1 << 28
DTYPES = {
    1: torch.uint8, 2: torch.int8, 3: torch.int16, 4: torch.int32, 5: torch.int64, 6: torch.float16,
    7: torch.float32, 8: torch.float64, 12: torch.bool, 13: torch.bfloat16,
}  # fmt: skip


class Archive:
    """The records of an archive, whose names begin with that of its folder."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        """Look whether it is of one program, as torch 2.13 writes it.

        Raises:
            ModelError: it is not.
        """
        self._archive = archive
        self._records = {item.filename.partition("/")[2]: item for item in archive.infolist()}
        if not {"archive_format", "models/model.json"} <= self._records.keys():
            refuse("it is no archive of one program as torch 2.13 writes it; export it again")
        if self.read("byteorder", 16) not in (b"little", b"little\n"):
            refuse("its bytes are not in the order of this machine")

    def read(self, name: str, most_bytes: int) -> bytes:
        """A record's bytes; a `ModelError` where it is missing, compressed or larger."""
        item = self._records.get(name)
        if item is None:
            refuse(f"{shown(name)} is missing")
        if item.compress_type != zipfile.ZIP_STORED or item.file_size > most_bytes:
            refuse(
                f"{shown(name)} has {item.file_size} bytes, or is compressed; expected {most_bytes} at most"
            )
        return self._archive.read(item)

    def json(self, name: str) -> Any:
        """What a record says."""
        return parse_json(self.read(name, _MOST_JSON_BYTES), unique=True)

    def tensors(self, folder: str, what: str) -> dict[str, Tensor]:
        """Raw tensors by name; those of one record are one tensor."""
        config = self.json(f"data/{folder}/model_{folder}_config.json")["config"]
        shared: dict[str, Tensor] = {}
        found = {}
        for name, entry in config.items():
            if entry["use_pickle"]:
                refuse(f"its {what} {shown(name)} is pickled, which poet never loads")
            record = f"data/{folder}/{entry['path_name']}"
            if record not in shared:
                shared[record] = self._tensor(record, entry["tensor_meta"])
            found[name] = shared[record]
        return found

    def _tensor(self, record: str, meta: Mapping[str, Any]) -> Tensor:
        kind = type_of(meta)
        strides, offset = [_whole(item) for item in meta["strides"]], _whole(meta["storage_offset"])
        if len(strides) != len(kind.shape) or min((offset, *strides)) < 0:
            refuse(f"{shown(record)} has strides that do not suit its sizes")
        reach = offset + sum((size - 1) * step for size, step in zip(kind.shape, strides, strict=True)) + 1
        if not math.prod(kind.shape):
            return torch.empty(kind.shape, dtype=kind.dtype)
        raw = bytearray(self.read(record, self._records[record].file_size if record in self._records else 0))
        if len(raw) < reach * kind.dtype.itemsize or len(raw) % kind.dtype.itemsize:
            refuse(f"{shown(record)} has {len(raw)} bytes, too few for its sizes")
        return torch.frombuffer(raw, dtype=kind.dtype).as_strided(kind.shape, strides, offset).clone()


@dataclass(frozen=True, slots=True)
class Type:
    """Of a dense tensor on the CPU."""

    dtype: torch.dtype
    shape: tuple[int, ...]


def refuse(message: str) -> NoReturn:
    """Say why the file is not read."""
    raise ModelError(message)


def _whole(item: Mapping[str, Any]) -> int:
    if set(item) != {"as_int"} or type(item["as_int"]) is not int:
        refuse("it has sizes that vary; export it without dynamic_shapes")
    return int(item["as_int"])


def type_of(meta: Mapping[str, Any]) -> Type:
    """The type in a tensor's description; a `ModelError` where it is of no kind that poet knows."""
    shape = tuple(_whole(item) for item in meta["sizes"])
    if (
        meta["dtype"] not in DTYPES
        or meta["layout"] != 7
        or meta["device"]["type"] != "cpu"
        or min((0, *shape)) < 0
    ):
        refuse("a tensor of it is not dense, not on the CPU, or of a type that poet does not know")
    return Type(DTYPES[meta["dtype"]], shape)
