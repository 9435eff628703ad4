"""Files from strangers: valid ones, changed at random, with digests that fit where there are any.

Every function takes a valid file's bytes and a generator and is deterministic. Half of the changes keep the
file's outer form, so that what lies behind the first checks is reached as well.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import random
import struct
from collections.abc import Iterator
from typing import Any

from onnx import AttributeProto, ModelProto, TensorProto

from helpers import strange
from poet.errors import PoetError
from poet.problem import Problem
from poet.problem.schedule import Schedule
from poet.problem.simulator import simulate
from poet.util import codec

NUMBERS = (
    0, 1, -1, 2, 3, 7, 8, 63, 64, 65, 255, 4095, 4096, 65536, 2**31 - 1, 2**31, -(2**31), 2**32, 2**48,
    2**53, 2**62, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30, 0.0, 0.5, -0.5, 1e-308, 1e308, 1e-9, -1e9,
)  # fmt: skip
TEXTS = (
    "", " ", "x", "a" * 5000, "\x00", "ü", "../../../../etc/passwd", "/etc/passwd", "/tmp/../etc/shadow",
    "__class__", "__import__('os').system('true')", "aten.add.Tensor", "aten.mul.Tensor", "aten.mm.default",
    "aten.from_file.default", "aten.resize_.default", "aten.set_.source_Storage", "aten.empty.memory_format",
    "torch.ops.aten.mm", "poet.full", "poet.call", "os.system", "float32", "float64", "int64", "bool",
    "complex64", "ram", "storage", "both", "nan", "NaN", "Infinity", "1", "-1", "%s%n", "{0}", "\n\n",
)  # fmt: skip


# --- bytes ------------------------------------------------------------------------------------


def mutated_bytes(content: bytes, rng: random.Random) -> bytes:
    """Bits flipped, stretches cut, doubled, moved or overwritten, the end missing."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at, length = rng.randrange(len(data) + 1), rng.choice((1, 1, 2, 4, 8, 64, 1000))
        piece = data[at : at + length]
        kind = rng.randrange(6)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del data[at : at + length]
        elif kind == 2:
            data[at:at] = piece
        elif kind == 3:
            data[at : at + length] = rng.randbytes(length)
        elif kind == 4:
            del data[at:]
        else:
            data[at : at + 8] = struct.pack("<q", rng.choice((0, -1, 2**31, 2**62, rng.getrandbits(40))))
    return bytes(data)


# --- JSON -------------------------------------------------------------------------------------

Holder = tuple[Any, Any]
"""A list or an object, and the place in it of something to change."""


def _places(tree: Any) -> Iterator[Holder]:
    stack = [tree]
    while stack:
        node = stack.pop()
        keys: Any = node.keys() if isinstance(node, dict) else range(len(node))
        for key in keys:
            yield node, key
            if isinstance(node[key], dict | list):
                stack.append(node[key])


def change(tree: Any, rng: random.Random) -> None:
    """One random change somewhere in a JSON tree, in place."""
    places = list(_places(tree))
    if not places:
        return
    node, key = rng.choice(places)
    other_node, other_key = rng.choice(places)
    here, kind = node[key], rng.randrange(10)
    if kind <= 3:
        node[key] = _other_scalar(here, rng)
    elif kind == 4:
        node[key] = copy.deepcopy(other_node[other_key])
    elif kind == 5:
        del node[key]
    elif kind == 6 and isinstance(here, list) and here:
        here.insert(rng.randrange(len(here) + 1), copy.deepcopy(rng.choice(here)))
    elif kind == 7 and isinstance(here, list) and len(here) > 1:
        a, b = rng.randrange(len(here)), rng.randrange(len(here))
        here[a], here[b] = here[b], here[a]
    elif kind == 8 and isinstance(node, dict):
        node[rng.choice(TEXTS)] = here
    else:
        same = [n[k] for n, k in places if type(n[k]) is type(here) and not isinstance(here, dict | list)]
        node[key] = rng.choice(same) if same else rng.choice(([], {}, None, True))


def _other_scalar(here: Any, rng: random.Random) -> Any:
    if isinstance(here, bool):
        return rng.choice((not here, None, 1))
    if isinstance(here, int | float) and rng.random() < 0.6:
        near = (here + 1, here - 1, here * 2, -here, here // 2, here * 4096)
        return rng.choice(near)
    if isinstance(here, str) and here and rng.random() < 0.3:
        at = rng.randrange(len(here))
        return here[:at] + chr(rng.randrange(1, 0x500)) + here[at + 1 :]
    return rng.choice(rng.choice((NUMBERS, TEXTS, (None, True, False, [], {}, [[]]))))


def nudge(tree: Any, rng: random.Random) -> None:
    """One random change that keeps the tree's form: another number or name, or two items swapped."""
    places = list(_places(tree))
    node, key = rng.choice(places)
    here = node[key]
    if isinstance(here, list):
        rng.shuffle(here)
    elif isinstance(here, bool):
        node[key] = not here
    elif isinstance(here, int | float) and rng.random() < 0.7:
        node[key] = rng.choice((0, 1, here + 1, max(here - 1, 0), here * 2, here * 1024))
    else:
        node[key] = copy.deepcopy(rng.choice([n[k] for n, k in places if type(n[k]) is type(here)]))


# --- plans ------------------------------------------------------------------------------------


def mutated_plan(content: bytes, rng: random.Random) -> bytes:
    """A plan file changed in its bytes, its header, its weights, or anywhere in its plan."""
    kind = rng.random()
    if kind < 0.1:
        return mutated_bytes(content, rng)
    size = int.from_bytes(content[:8], "little")
    header, weights = json.loads(content[8 : 8 + size]), bytearray(content[8 + size :])
    if kind < 0.2:
        if rng.random() < 0.4:
            return _joined_text(strange.strange_text(json.dumps(header), rng), bytes(weights), rng)
        for _ in range(rng.choice((1, 2))):
            change(header, rng)
        return _joined(header, bytes(weights), rng)
    if kind < 0.3:
        for _ in range(rng.choice((1, 8, 64))):
            at = rng.randrange(len(weights))
            weights[at : at + 4] = rng.choice((rng.randbytes(4), struct.pack("<f", math.inf)))
    else:
        plan = json.loads(header["__metadata__"]["poet.plan"])
        part = rng.choice((plan, plan, plan["graph"], plan["graph"], plan["graph"]["ops"], plan["schedule"]))
        part = plan["kernels"] if rng.random() < 0.1 else part
        altered = rng.choice((change, nudge))
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            altered(part, rng)
        if rng.random() < 0.5:
            _predict(plan)
        text = json.dumps(plan)
        header["__metadata__"]["poet.plan"] = strange.strange_text(text, rng) if rng.random() < 0.2 else text
    return _joined(_signed(header, bytes(weights)), bytes(weights), rng)


def joined_plan(content: bytes, plan: Any) -> bytes:
    """The plan file ``content`` with another plan, as a stranger would sign it."""
    size = int.from_bytes(content[:8], "little")
    header, weights = json.loads(content[8 : 8 + size]), content[8 + size :]
    header["__metadata__"]["poet.plan"] = json.dumps(plan)
    return _joined(_signed(header, weights), weights, random.Random(0))


def _predict(plan: Any) -> None:
    """Predictions that fit the changed schedule, as a stranger would write them."""
    try:
        problem = Problem.from_json({"format": "poet-problem", "version": 1, **plan["problem"]})
        trace = simulate(problem, codec.decode_value(Schedule, plan["schedule"], where="schedule"))
        plan["prediction"].update(
            peak_ram_bytes=trace.peak_ram_bytes, seconds=trace.seconds, joules=trace.joules
        )
    except (PoetError, LookupError, TypeError, AttributeError, OverflowError):
        return


def _signed(header: Any, weights: bytes) -> Any:
    """With the digests of what is there now."""
    metadata = header["__metadata__"]
    metadata["poet.plan.sha256"] = hashlib.sha256(metadata["poet.plan"].encode()).hexdigest()
    entries = [(name, item) for name, item in header.items() if name != "__metadata__"]
    words = {"F64": "float64", "F32": "float32", "I64": "int64", "U8": "uint8", "BOOL": "bool"}
    total = hashlib.sha256()
    for name, item in sorted(entries, key=lambda entry: entry[1]["data_offsets"]):
        start, end = item["data_offsets"]
        total.update(json.dumps([name, words[item["dtype"]], item["shape"]]).encode())
        total.update(weights[start:end])
    metadata["poet.tensors.sha256"] = total.hexdigest()
    return header


def _joined(header: Any, weights: bytes, rng: random.Random) -> bytes:
    return _joined_text(json.dumps(header, separators=(",", ":")), weights, rng)


def _joined_text(header: str, weights: bytes, rng: random.Random) -> bytes:
    text = header.encode("utf-8", "surrogatepass")
    size = len(text) if rng.random() < 0.97 else rng.choice((0, 1, len(text) - 1, 2**40, 2**64 - 1))
    return size.to_bytes(8, "little") + text + weights


# --- ONNX -------------------------------------------------------------------------------------


def mutated_onnx(content: bytes, rng: random.Random) -> bytes:
    """A model changed in its bytes, or in its nodes, attributes, shapes, weights and places of weights."""
    if rng.random() < 0.3:
        return mutated_bytes(content, rng)
    model = ModelProto.FromString(content)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        rng.choice(_MODEL_CHANGES)(model, rng)
    raw: bytes = model.SerializeToString()
    return raw


def _change_wiring(model: ModelProto, rng: random.Random) -> None:
    nodes = model.graph.node
    node, other = rng.choice(nodes), rng.choice(nodes)
    kind = rng.randrange(6)
    if kind == 0:
        node.op_type = rng.choice((other.op_type, *TEXTS, "If", "Loop", "Scan", "LSTM", "Resize", "Einsum"))
    elif kind == 1 and node.input:
        source = rng.choice((*other.input, *other.output, *TEXTS))
        node.input[rng.randrange(len(node.input))] = source
    elif kind == 2 and node.output:
        node.output[rng.randrange(len(node.output))] = rng.choice((*other.output, *TEXTS))
    elif kind == 3:
        nodes.remove(node)
    elif kind == 4:
        nodes.add().CopyFrom(other)
    elif node.input:
        del node.input[-1]


def _change_attribute(model: ModelProto, rng: random.Random) -> None:
    nodes = [node for node in model.graph.node if node.attribute]
    if not nodes:
        return
    node = rng.choice(nodes)
    attribute = rng.choice(node.attribute)
    whole = max(min(int(rng.choice(NUMBERS)), 2**63 - 1), -(2**63))
    if attribute.ints and rng.random() < 0.7:
        attribute.ints[rng.randrange(len(attribute.ints))] = whole
    elif attribute.type == AttributeProto.INT:
        attribute.i = whole
    elif attribute.type == AttributeProto.FLOAT:
        attribute.f = rng.choice((0.0, -1.0, math.inf, math.nan, 1e38))
    elif attribute.type == AttributeProto.STRING:
        attribute.s = rng.choice(TEXTS).encode()
    elif attribute.HasField("t"):
        _change_tensor(attribute.t, rng)
    if rng.random() < 0.2:
        attribute.name = rng.choice(TEXTS)
    if rng.random() < 0.2:
        node.attribute.remove(attribute)


def _change_initializer(model: ModelProto, rng: random.Random) -> None:
    if model.graph.initializer:
        _change_tensor(rng.choice(model.graph.initializer), rng)


def _change_tensor(tensor: TensorProto, rng: random.Random) -> None:
    kind = rng.randrange(5)
    if kind == 0 and tensor.dims:
        whole = rng.choice((0, 1, -1, 3, 2**31, 2**48, 2**62))
        tensor.dims[rng.randrange(len(tensor.dims))] = whole
    elif kind == 1 and rng.random() < 0.2:
        tensor.dims.extend([rng.choice((1, 2**62))] * rng.choice((1, 64, 65, 20_000)))
    elif kind == 1:
        tensor.data_type = rng.randrange(0, 40)
    elif kind == 2:
        tensor.raw_data = mutated_bytes(tensor.raw_data or b"1234", rng)
    elif kind == 3:
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", rng.choice(TEXTS)), ("offset", str(rng.choice(NUMBERS)))):
            entry = tensor.external_data.add()
            entry.key, entry.value = key, value
    else:
        tensor.name = rng.choice(TEXTS)


def _change_shape(model: ModelProto, rng: random.Random) -> None:
    values = [*model.graph.input, *model.graph.output, *model.graph.value_info]
    dims = [dim for value in values for dim in value.type.tensor_type.shape.dim]
    if dims:
        dim = rng.choice(dims)
        if rng.random() < 0.7:
            dim.dim_value = rng.choice((0, 1, -1, 2, 5, 2**31, 2**48, 2**62))
        else:
            dim.dim_param = rng.choice(TEXTS)
    if values and rng.random() < 0.3:
        rng.choice(values).type.tensor_type.elem_type = rng.randrange(0, 40)


def _change_model(model: ModelProto, rng: random.Random) -> None:
    kind = rng.randrange(4)
    if kind == 0 and model.opset_import:
        model.opset_import[0].version = rng.choice((0, -1, 1, 6, 11, 26, 2**40))
    elif kind == 1 and model.opset_import:
        model.opset_import[0].domain = rng.choice(TEXTS).replace("\x00", "")
    elif kind == 2:
        model.ir_version = rng.choice((0, -1, 3, 99))
    elif model.graph.output:
        model.graph.output[0].name = rng.choice(TEXTS)


def _change_notes(model: ModelProto, rng: random.Random) -> None:
    """The note on trainable parameters that a stripped structure carries."""
    names = [tensor.name for tensor in model.graph.initializer][:5]
    text = strange.strange_text(json.dumps(names), rng) if rng.random() < 0.8 else json.dumps(names)
    model.metadata_props.add(key="poet.trainable", value=text.encode("utf-8", "replace").decode())


_MODEL_CHANGES = (
    _change_wiring, _change_wiring, _change_attribute, _change_attribute, _change_initializer, _change_shape,
    _change_model, _change_notes,
)  # fmt: skip


# --- profiles ---------------------------------------------------------------------------------


def mutated_profile(content: bytes, rng: random.Random) -> bytes:
    """A TOML file changed in its bytes, its lines, or its values."""
    if rng.random() < 0.3:
        return mutated_bytes(content, rng)
    if rng.random() < 0.2:
        return strange.strange_text(content.decode(), rng).encode("utf-8", "surrogatepass")
    lines = content.decode().splitlines()
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = rng.randrange(len(lines))
        key, equals, value = lines[at].partition("=")
        kind = rng.randrange(6)
        if kind == 0 and equals:
            text = json.dumps(rng.choice(TEXTS))
            lines[at] = (
                f"{key}= {rng.choice((text, str(rng.choice(NUMBERS)), 'inf', 'nan', 'true', '[]', '{}'))}"
            )
        elif kind == 1 and equals:
            lines[at] = f"{rng.choice(TEXTS)} ={value}"
        elif kind == 2:
            del lines[at]
        elif kind == 3:
            lines.insert(rng.randrange(len(lines) + 1), lines[at])
        elif kind == 4:
            lines[at] = f"extends = {json.dumps(rng.choice((*TEXTS, 'rpi4b', '../rpi4b', 'x86-host')))}"
        else:
            lines.insert(
                at, rng.choice(("[" * 3000, "a." * 3000 + "b = 1", "[[ops]]", '"""', "x = 1979-05-27"))
            )
        if not lines:
            break
    return "\n".join(lines).encode("utf-8", "surrogatepass")
