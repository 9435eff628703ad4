"""A model's own names for what an exporter renamed, turned, or left out: from its state dict or module.

What an ONNX file calls a tensor is the exporter's business. Where the module, or its saved state dict, is at
hand, each initialiser gets the name under which the module has the same values, in the module's layout, so
that ``module.load_state_dict`` takes what was trained. Which parameters are frozen is taken over, too.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from onnx import AttributeProto, ModelProto, NodeProto
from torch import Tensor, nn

from poet.errors import ModelError
from poet.frontend.onnx.ops_rnn import Packed, packing, place_of, recurrent_weights
from poet.frontend.onnx.reader import NUMBERS, OnnxFile, StoredTensor, from_bytes
from poet.frontend.onnx.weights import trainable_initializers
from poet.util.codec import decode, encode
from poet.util.reading import parse_json

NAMES_KEY = "poet.names"
"""Metadata of a model whose tensors have the names of a module."""

_COUNTER, _MEAN = "num_batches_tracked", "running_mean"


@dataclass(frozen=True)
class Naming:
    """What a file's initialisers are called in the module.

    Attributes:
        names: of the module, by initialiser.
        frozen: initialisers of parameters that are not trained.
        buffers: initialisers that are buffers of the module.
        carried: initialisers that no node reads, but the module has.
        counters: initialiser that counts batches, by that of the running mean beside it.
        aliases: names under which the module has a tensor once more; by name, the initialiser.
    """

    names: dict[str, str] = field(default_factory=dict)
    frozen: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()
    carried: tuple[str, ...] = ()
    counters: dict[str, str] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Given:
    """A module's tensors by name; which are parameters and which are trained, where that is known."""

    tensors: Mapping[str, Tensor]
    parameters: frozenset[str] | None
    frozen: frozenset[str]
    where: str


def read_given(source: str | Path | nn.Module | Mapping[str, Tensor]) -> Given:
    """The tensors of a module, of a state dict, or of a file that ``torch.save`` or safetensors wrote.

    Raises:
        ModelError: it is no state dict, or cannot be read as tensors alone.
    """
    if isinstance(source, nn.Module):
        tensors, where = source.state_dict(keep_vars=True), type(source).__name__
        known = frozenset(name for name, _ in source.named_parameters(remove_duplicate=False))
        frozen = frozenset(name for name in known if not tensors[name].requires_grad)
        return Given({name: item.detach() for name, item in tensors.items()}, known, frozen, where)
    if isinstance(source, Mapping):
        found, where = dict(source), "the given state dict"
    else:
        found, where = _read(Path(source)), Path(source).name
    if not found or not all(isinstance(k, str) and isinstance(t, Tensor) for k, t in found.items()):
        raise ModelError(f"{where} is no state dict; write it with torch.save(module.state_dict(), ...)")
    parameters = frozenset(name for name, item in found.items() if isinstance(item, nn.Parameter))
    frozen = frozenset(name for name in parameters if not found[name].requires_grad)
    return Given({k: t.detach() for k, t in found.items()}, parameters or None, frozen, where)


def _read(path: Path) -> dict[str, Any]:
    if path.suffix == ".safetensors":
        from poet.files.tensorfile import TensorFile

        with TensorFile(path, error=ModelError) as file:
            return {
                name: from_bytes(bytearray(file.read(name)), getattr(torch, entry.dtype), entry.shape)
                for name, entry in file.entries.items()
            }
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror or error}") from None
    except Exception as error:
        raise ModelError(
            f"{path.name}: not tensors alone ({type(error).__name__}); "
            "write it with torch.save(module.state_dict(), ...)"
        ) from None
    return dict(found) if isinstance(found, Mapping) else {}


def with_given_names(file: OnnxFile, given: Given) -> tuple[OnnxFile, str]:
    """``file`` with the names of ``given``, its layout where that differs, and what only the module has.

    And a line about what could not be matched, or nothing.
    """
    match = _Match(file, given)
    match.by_name()
    match.by_gates()
    match.by_content()
    match.rest()
    return match.named(), match.remark()


def naming_of(file: OnnxFile) -> Naming:
    """What `with_given_names` wrote into the file's metadata; empty where it did not.

    Raises:
        ModelError: the note is damaged.
    """
    note = next((entry.value for entry in file.model.metadata_props if entry.key == NAMES_KEY), None)
    if note is None:
        return Naming()
    try:
        naming = decode(Naming, parse_json(note), where=NAMES_KEY, error=ModelError)
    except (ValueError, ModelError):
        raise ModelError(f"its note {NAMES_KEY!r} is damaged") from None
    spoken = {*naming.names, *naming.frozen, *naming.buffers, *naming.carried}
    spoken |= {*naming.counters, *naming.counters.values(), *naming.aliases.values()}
    if not (spoken <= file.tensors.keys() and _are_names([*naming.names.values(), *naming.aliases])):
        raise ModelError(f"its note {NAMES_KEY!r} is damaged: it names tensors that the model does not have")
    return naming


def _are_names(keys: list[str]) -> bool:
    """Whether a module can have tensors of all these names."""
    parts = [part for key in keys for part in key.split(".")]
    folders = {key[:place] for key in keys for place, sign in enumerate(key) if sign == "."}
    return (
        len({*keys}) == len(keys)
        and folders.isdisjoint(keys)
        and not any(not part or hasattr(nn.Module, part) for part in parts)
    )


class _Match:
    """The state of matching one file."""

    def __init__(self, file: OnnxFile, given: Given) -> None:
        self.file, self.given = file, given
        self.trainable = trainable_initializers(file)
        self.names: dict[str, str] = {}  # initialiser -> key
        self.turned: dict[str, Tensor] = {}  # initialiser whose layout is not the module's -> the module's
        self.packed: dict[str, Packed] = {}
        self.aliases: dict[str, str] = {}  # key -> key of the same tensor
        self.carried: dict[str, str] = {}
        self.counters: dict[str, str] = {}
        self.readers: dict[str, NodeProto] = {}
        for node in file.model.graph.node:
            for name in node.input:
                self.readers.setdefault(name, node)

    def open_keys(self) -> list[str]:
        taken = {*self.matched_keys(), *self.aliases, *self.carried.values()}
        return [key for key in self.given.tensors if key not in taken]

    def matched_keys(self) -> Iterator[str]:
        """Names of the module whose tensor the file has."""
        yield from self.names.values()
        for packed in self.packed.values():
            yield from packed.keys

    def unmatched(self) -> list[str]:
        """Parameters of the file that are none of the module's."""
        return sorted(self.trainable - self.file.constants - self.names.keys() - self.packed.keys())

    def by_name(self) -> None:
        for name, stored in self.file.tensors.items():
            tensor = self.given.tensors.get(name)
            if tensor is not None and (tuple(tensor.shape), tensor.dtype) == (stored.shape, stored.dtype):
                self.names[name] = name

    def by_gates(self) -> None:
        """Weights of recurrent layers, which exporters stack by direction and gate."""
        for node in self.file.model.graph.node:
            open_keys = self.open_keys()
            tensors = {key: tensor for key, tensor in self.given.tensors.items() if key in open_keys}
            taken = self.names.keys() | self.packed.keys()
            self.packed |= recurrent_weights(node, self.file, tensors, taken)

    def by_content(self) -> None:
        for name, stored in self.file.tensors.items():
            size = math.prod(stored.shape)
            if name in self.names or name in self.packed or stored.read is None or size < 2:
                continue
            keys = [key for key in self.open_keys() if self.may_be(key, name, stored, size)]
            content = stored.read() if keys else torch.empty(0)
            is_trained = name in self.trainable
            fitting = [key for key in keys if _laid_out(content, self.given.tensors[key], is_trained)]
            chosen = self.nearest(name, fitting)
            if chosen is not None:
                self.names[name] = chosen
                wanted = self.given.tensors[chosen]
                if tuple(wanted.shape) != stored.shape or not torch.equal(wanted, content):
                    self.turned[name] = wanted

    def may_be(self, key: str, name: str, stored: StoredTensor, size: int) -> bool:
        """Whether the module's tensor is of the kind of an initialiser of ``size`` elements."""
        tensor, known = self.given.tensors[key], self.given.parameters
        is_kind = name in self.trainable or known is None or key not in known
        return tensor.numel() == size and tensor.dtype == stored.dtype and is_kind

    def nearest(self, name: str, keys: list[str]) -> str | None:
        """The only key, or the only one whose module is where the reading node says that it is."""
        if len(keys) <= 1:
            return keys[0] if keys else None
        reader = self.readers.get(name)
        if reader is not None and not reader.name and reader.output:  # ours, that turns a weight back
            reader = self.readers.get(reader.output[0])
        place = place_of(reader) if reader is not None else ""
        near = [key for key in keys if f".{key.rpartition('.')[0]}." in place and "." in key]
        return near[0] if len(near) == 1 else None

    def rest(self) -> None:
        """What the file does not have: counters, tied names, and what the model never reads."""
        initializers = {key: name for name, key in self.names.items()}
        for key in self.open_keys():
            module, _, leaf = key.rpartition(".")
            mean = initializers.get(f"{module}.{_MEAN}" if module else _MEAN)
            if leaf == _COUNTER and mean is not None:
                self.counters[mean] = key
                self.carried[key] = key
        known = self.given.parameters
        explained = not self.unmatched()
        matched = list(self.matched_keys())
        for key in self.open_keys():
            tensor = self.given.tensors[key]
            twin = next((other for other in matched if self.is_same(tensor, other)), None)
            is_parameter = tensor.is_floating_point() if known is None else key in known
            if twin is not None and is_parameter:
                self.aliases[key] = twin
            elif explained or not is_parameter:
                self.carried[key] = key

    def is_same(self, tensor: Tensor, other: str) -> bool:
        """Whether two names stand for one tensor of the module; equal constants do not make one."""
        twin = self.given.tensors[other]
        if tensor.shape != twin.shape or tensor.dtype != twin.dtype or tensor.numel() < 2:
            return False
        if tensor.data_ptr() == twin.data_ptr():
            return True
        return bool((tensor != tensor.reshape(-1)[0]).any()) and torch.equal(tensor, twin)

    # --- the file ---------------------------------------------------------------------------------

    def named(self) -> OnnxFile:
        model = ModelProto()
        model.CopyFrom(self.file.model)
        tensors, names = dict(self.file.tensors), dict(self.names)
        nodes = list(model.graph.node)
        used = {name for node in nodes for name in (*node.input, *node.output)} | tensors.keys()

        def entered(key: str, tensor: Tensor) -> str:
            name = key
            while name in used:
                name += "_"
            used.add(name)
            model.graph.initializer.add(name=name, dims=tensor.shape, data_type=NUMBERS[tensor.dtype])
            own = tensor.detach().clone(memory_format=torch.contiguous_format)
            tensors[name] = StoredTensor(own.dtype, tuple(own.shape), lambda: own)
            return name

        before: list[NodeProto] = []
        replaced = self.turned.keys() | self.packed.keys()
        kept = [entry for entry in model.graph.initializer if entry.name not in replaced]
        del model.graph.initializer[:]
        model.graph.initializer.extend(kept)
        for name, tensor in self.turned.items():
            key = names.pop(name)
            del tensors[name]
            source = entered(key, tensor)
            names[source] = key
            before += _laying_out(source, name, tensor, self.file.tensors[name].shape, entered)
        for name, packed in self.packed.items():
            del tensors[name]
            sources = {entered(key, self.given.tensors[key]): key for key in packed.keys}
            names |= sources
            before += packing(list(sources), name, packed.gates, self.file, entered)
        carried = {key: entered(key, self.given.tensors[key]) for key in self.carried.values()}
        names |= {name: key for key, name in carried.items()}
        del model.graph.node[:]
        model.graph.node.extend([*before, *nodes])
        renamed = {key: name for name, key in names.items()}
        known = names.values() if self.given.parameters is None else self.given.parameters
        note = Naming(
            names=names,
            frozen=tuple(name for name, key in names.items() if key in self.given.frozen),
            buffers=tuple(name for name, key in names.items() if key not in known),
            carried=tuple(carried.values()),
            counters={mean: carried[key] for mean, key in self.counters.items()},
            aliases={key: renamed[twin] for key, twin in self.aliases.items()},
        )  # fmt: skip
        model.metadata_props.add(key=NAMES_KEY, value=json.dumps(encode(note), sort_keys=True))
        return replace(self.file, model=model, tensors=tensors)

    def remark(self) -> str:
        """What is left over on either side, and what is not known."""
        found = []
        missing = self.open_keys()
        unmatched = self.unmatched()
        if missing or unmatched:
            found.append(
                f"{self.given.where}: {len(missing)} of {len(self.given.tensors)} tensors were not found in "
                f"the model{_some(missing)}, and {len(unmatched)} of the model's {len(self.trainable)} "
                f"parameters keep the file's names{_some(unmatched)}; load_state_dict(strict=True) will "
                "not take them. Export in training mode, where batch norm is not folded into other weights"
            )
        if self.given.parameters is None:
            found.append(
                f"{self.given.where} does not say which parameters are frozen; give the module, save "
                "module.state_dict(keep_vars=True), or name what to train"
            )
        return "; ".join(found)


def _some(names: list[str]) -> str:
    return f" ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})" if names else ""


def _laid_out(content: Tensor, wanted: Tensor, is_trained: bool) -> bool:
    """Whether ``content`` is ``wanted``, or for a weight: turned, or with dimensions of one more or less."""
    if content.shape == wanted.shape and torch.equal(content, wanted):
        return True
    if not is_trained:
        return False
    if content.dim() == 2 and content.t().shape == wanted.shape and torch.equal(content.t(), wanted):
        return True
    sizes = [[size for size in tensor.shape if size != 1] for tensor in (content, wanted)]
    return sizes[0] == sizes[1] and torch.equal(content.reshape(wanted.shape), wanted)


def _laying_out(
    source: str, name: str, tensor: Tensor, shape: tuple[int, ...], entered: Any
) -> Iterator[NodeProto]:
    """The node that makes ``name`` of the module's tensor."""
    if [size for size in tensor.shape if size != 1] == [size for size in shape if size != 1] and (
        tuple(tensor.shape) != shape
    ):
        sizes = entered(f"{source}.shape", torch.tensor(shape, dtype=torch.int64))
        yield NodeProto(op_type="Reshape", input=[source, sizes], output=[name], name=f"{source}.reshape")
        return
    order = AttributeProto(name="perm", type=AttributeProto.INTS, ints=(1, 0))
    yield NodeProto(
        op_type="Transpose", input=[source], output=[name], name=f"{source}.turn", attribute=[order]
    )
