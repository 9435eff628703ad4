"""Programs of ``torch.export`` as models; their ``.pt2`` files are read without running anything in them.

`torch.export.load` unpickles, evaluates sizes as Python, and calls any function below ``torch`` that a node
names. Here the archive's JSON and its raw weights are read, and nodes call operators of ``torch.ops.aten``
alone. Sample inputs are made from their types.
"""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn

from poet.errors import ModelError
from poet.frontend.module_tensors import examples, held, hold
from poet.util.reading import open_regular, parse_json, shown

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


class Type(NamedTuple):
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


_SCHEMA = 8  # of torch 2.13
_ATEN = re.compile(r"torch\.ops\.aten\.([a-z_0-9]+)\.([A-Za-z_0-9]+)")
_TEXTS = frozenset({"approximate", "equation", "indexing", "mode", "padding", "reduce", "rounding_mode"})
"""Arguments of operators that are texts and name no file."""
_FORMATS = {
    1: torch.contiguous_format,
    2: torch.channels_last,
    3: torch.channels_last_3d,
    4: torch.preserve_format,
}
_FLOATS = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}
_PLAIN = {"as_int": int, "as_ints": list, "as_bool": bool, "as_bools": list, "as_string": str}


@dataclass(frozen=True, slots=True)
class ProgramFile:
    """What a file holds.

    Attributes:
        module: runs it, in the mode in which it was exported; several outputs are a tuple.
        inputs: examples of the types it takes.
        input_names: theirs.
    """

    module: nn.Module
    inputs: tuple[Tensor, ...]
    input_names: tuple[str, ...]


def read_program(path: Path) -> ProgramFile:
    """The program in the file at ``path``.

    Raises:
        ModelError: it is damaged, of another version, or needs what is not read here; the message says what.
    """
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            return _program(Archive(archive))
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from None
    except (
        zipfile.BadZipFile,
        KeyError,
        TypeError,
        ValueError,
        ArithmeticError,
        IndexError,
        AttributeError,
        RuntimeError,
    ) as error:
        said = " ".join(str(error).split())
        raise ModelError(
            f"{path}: not a readable program of torch.export ({type(error).__name__}: {said})"
        ) from None


@dataclass(frozen=True, slots=True)
class _Name:
    """Of a value that a node is given."""

    text: str


@dataclass(frozen=True, slots=True)
class _Node:
    """A call. Arguments are numbers, `_Name`s, or lists of them; outputs names, lists of them or nothing."""

    operator: torch._ops.OpOverload
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    outputs: tuple[Any, ...]


_READ: dict[str, Callable[[Any], Any]] = {
    "as_none": lambda value: None,
    "as_tensor": lambda value: _Name(value["name"]),
    "as_tensors": lambda value: [_Name(item["name"]) for item in value],
    "as_float": lambda value: _FLOATS.get(value, value),
    "as_floats": lambda value: [_FLOATS.get(item, item) for item in value],
    "as_scalar_type": DTYPES.__getitem__,
    "as_memory_format": _FORMATS.__getitem__,
}
"""By kind of argument, what is made of its value."""


class Program(nn.Module):
    """Runs the nodes of a program in their order; its mode is fixed, as in torch's own."""

    def __init__(
        self, nodes: Sequence[_Node], held: Mapping[str, str], given: Sequence[str], outputs: Sequence[str]
    ) -> None:
        """Keep what is to run.

        Args:
            nodes: the calls.
            held: per value that a tensor of the module is, the tensor's name.
            given: names of the values that inputs are.
            outputs: names of those that are given back.
        """
        super().__init__()
        self._nodes, self._held, self._given, self._outputs = nodes, held, given, outputs

    def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        """The outputs for ``inputs``."""
        values: dict[str, Any] = dict(zip(self._given, inputs, strict=True))
        values |= {value: held(self, name) for value, name in self._held.items()}
        for node in self._nodes:
            made = node.operator(*_filled(node.args, values), **_filled(node.kwargs, values))
            for names, result in zip(node.outputs, made if len(node.outputs) > 1 else (made,), strict=True):
                if isinstance(names, str):
                    values[names] = result
                elif names is not None:
                    values |= zip(names, result, strict=True)
        found = tuple(values[name] for name in self._outputs)
        return found[0] if len(found) == 1 else found

    def train(self, mode: bool = True) -> Program:
        """Refuse: the mode is that of the export."""
        raise NotImplementedError("an exported program has one mode")


def _filled(given: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(given, _Name):
        return values[given.text]
    if isinstance(given, list | tuple):
        return type(given)(_filled(item, values) for item in given)
    return {key: _filled(item, values) for key, item in given.items()} if isinstance(given, dict) else given


def _program(archive: Archive) -> ProgramFile:
    data = archive.json("models/model.json")
    if data["schema_version"]["major"] != _SCHEMA:
        refuse(f"its format has version {shown(data['schema_version']['major'])}, this poet reads {_SCHEMA}")
    graph, signature = data["graph_module"]["graph"], data["graph_module"]["signature"]
    weights, constants = archive.tensors("weights", "weight"), archive.tensors("constants", "constant")
    sources: dict[str, tuple[str, str]] = {}
    given: list[str] = []
    for item in signature["input_specs"]:
        ((kind, spec),) = item.items()
        if kind == "user_input" and set(spec["arg"]) == {"as_tensor"}:
            given.append(spec["arg"]["as_tensor"]["name"])
        elif kind in ("parameter", "buffer", "tensor_constant"):
            sources[spec["arg"]["name"]] = kind, spec[f"{kind}_name"]
        else:
            refuse(f"an input of it is no tensor ({shown(kind)}); export it with tensors alone")
    outputs = []
    for item in signature["output_specs"]:
        ((kind, spec),) = item.items()
        if kind != "user_output" or set(spec["arg"]) != {"as_tensor"}:
            refuse(
                f"an output of it is no tensor of the model ({shown(kind)}); use torch.export.export as it is"
            )
        outputs.append(spec["arg"]["as_tensor"]["name"])
    nodes = [_node(item) for item in graph["nodes"] if item["outputs"]]  # of checks nothing comes
    _check_defined(nodes, (*given, *sources), outputs)
    module = Program(nodes, {value: name for value, (_, name) in sources.items()}, given, outputs)
    parameters: dict[int, Tensor] = {}  # one that has several names stays one
    for kind, name in sources.values():
        tensor = weights[name] if name in weights else constants[name]
        if kind == "parameter":
            tensor = parameters.setdefault(id(tensor), nn.Parameter(tensor))
        hold(module, name, tensor, is_saved=name in weights)
    types = graph["tensor_values"]
    return ProgramFile(module, examples(type_of(types[name]) for name in given), tuple(given))


def _node(data: Mapping[str, Any]) -> _Node:
    target = data["target"]
    found = _ATEN.fullmatch(target)
    packet = getattr(torch.ops.aten, found[1], None) if found else None
    operator = getattr(packet, found[2], None) if found else None
    if not isinstance(operator, torch._ops.OpOverload):
        refuse(f"it calls {shown(target)}; of a file, operators of torch.ops.aten alone are called")
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for item in data["inputs"]:
        ((kind, value),) = item["arg"].items()
        if kind == "as_string" and item["name"] not in _TEXTS:
            refuse(f"it gives {shown(target)} a text as {shown(item['name'])}, which might name a file")
        argument = _argument(kind, value, target)
        if item.get("kind") == 1:
            args.append(argument)
        else:
            kwargs[item["name"]] = argument
    return _Node(operator, tuple(args), kwargs, tuple(map(_output, data["outputs"])))


def _argument(kind: str, value: Any, target: str) -> Any:
    if kind in _READ:
        return _READ[kind](value)
    if kind in ("as_optional_tensor", "as_optional_tensors"):
        several = value if isinstance(value, list) else [value]
        pairs = [next(iter(item.items())) for item in several]
        filled = [_argument(key, each, target) for key, each in pairs]
        return filled if isinstance(value, list) else filled[0]
    if kind in _PLAIN and isinstance(value, _PLAIN[kind]):
        return value
    if kind == "as_layout" and value == 7:
        return torch.strided
    if kind == "as_device" and value["type"] == "cpu":
        return torch.device("cpu")
    sizes = "sizes that vary; export it without dynamic_shapes"
    raise ModelError(f"it gives {shown(target)} {sizes if 'sym' in kind else f'an argument {shown(kind)}'}")


def _output(item: Mapping[str, Any]) -> Any:
    ((kind, value),) = item.items()
    if kind == "as_tensor":
        return value["name"]
    if kind == "as_tensors":
        return [each["name"] for each in value]
    return None if kind == "as_none" else refuse(f"a call of it gives back {shown(kind)}")


def _names(given: Any) -> Iterator[str]:
    if isinstance(given, _Name):
        yield given.text
    elif isinstance(given, list | tuple):
        for item in given:
            yield from _names(item)


def _check_defined(nodes: Sequence[_Node], known: Sequence[str], outputs: Sequence[str]) -> None:
    """Do nothing if each value is made before it is read."""
    seen = set(known)
    for node in nodes:
        missing = set(_names([*node.args, *node.kwargs.values()])) - seen
        if missing:
            refuse(f"{shown(min(missing))} is read before it is made")
        for names in node.outputs:
            seen |= {names} if isinstance(names, str) else set(names or ())
    if not outputs or not seen.issuperset(outputs):
        refuse("it gives back nothing that it makes")


Inputs = Tensor | Sequence[Tensor]


def as_module(
    model: nn.Module | torch.export.ExportedProgram, example_inputs: Inputs | None
) -> tuple[nn.Module, Inputs | None]:
    """The module of an exported program, and the inputs that it was exported with where none are given.

    A module comes back as it is. A program runs in the mode, train or eval, in which it was exported.

    Raises:
        ModelError: it is neither, or was exported with named arguments.
    """
    if isinstance(model, nn.Module):
        return model, example_inputs
    if not isinstance(model, torch.export.ExportedProgram):
        raise ModelError(
            "a model is the path of an ONNX file, a module or an exported program, not "
            f"{type(model).__name__}"
        )
    args, kwargs = model.example_inputs or ((), {})
    if kwargs:
        raise ModelError(
            f"the program was exported with named arguments ({', '.join(kwargs)}); export it with positional "
            "ones, in the order of forward()"
        )
    module = model.module()
    assert isinstance(module, nn.Module)
    return module, tuple(args) if example_inputs is None else example_inputs
