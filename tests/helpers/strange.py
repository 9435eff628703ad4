"""Text and archives that no program of ours writes: numbers of any size, nesting of any depth, damaged zips.

As in `mutators`, every function takes a valid content and a generator and is deterministic.
"""

from __future__ import annotations

import gzip
import io
import json
import random
import re
import struct
import warnings
import zipfile
import zlib
from typing import Any

import numpy as np

from helpers import mutators

DIGITS = (
    "1" + "0" * 19, "9" * 30, "1" + "0" * 308, "1" + "0" * 309, "9" * 400, "-" + "9" * 400, "9" * 4300,
    "9" * 4301, "9" * 20_000, "1e308", "-1e308", "1e309", "-1e400", "1e-308", "5e-324", "1e-400",
    "1e99999999", "1." + "3" * 5000, "0." + "0" * 5000 + "1", "-0", "-0.0", "NaN", "Infinity", "-Infinity",
    "nan", "inf", "0x10", "1_000", "01", "1e", "--1", "٣", "true", "null", "1e30", "1.1e30",
    "9223372036854775807", "9223372036854775808", "-9223372036854775809", "1e15", "1e22",
)  # fmt: skip
"""Numbers as they may stand in a text, and things like them."""

_NUMBER = re.compile(r"(?<=[\[:, =])-?\d[\d.eE+-]*(?=[\]},\s]|$)", re.M)
_STRING = re.compile(r'"[^"\\]{0,40}"')
_DEPTHS = (3, 9, 60, 300, 900, 990, 1100, 5000, 100_000)
_ESCAPES = (
    "\\ud800",
    "\\udfff\\ud800",
    "\\u0000",
    "\\ud83d\\ude00",
    "\\uD800x",
    "\\q",
    "\\u12",
    "\x00",
    "\n",
)


def strange_text(text: str, rng: random.Random) -> str:
    """JSON or TOML with a number, a name or a value of another kind than was ever meant."""
    kind = rng.randrange(8)
    if kind <= 3:
        return _at_random(_NUMBER, text, rng, rng.choice(DIGITS))
    if kind == 4:
        inside = rng.choice(_ESCAPES)
        found = list(_STRING.finditer(text))
        if not found:
            return text + inside
        at = rng.choice(found).end() - 1
        return text[:at] + inside + text[at:]
    if kind == 5:
        return _at_random(rng.choice((_NUMBER, _STRING)), text, rng, _nested(rng))
    if kind == 6:
        many = rng.choice(("[],", "{},", "0,", '"",', "[[],[]],")) * rng.choice((100, 10_000, 200_000))
        return _at_random(rng.choice((_NUMBER, _STRING)), text, rng, f"[{many[:-1]}]")
    return _at_random(
        _STRING, text, rng, json.dumps(rng.choice(mutators.TEXTS)) + rng.choice(("", ":", ',"x":1', "}"))
    )


def _at_random(pattern: re.Pattern[str], text: str, rng: random.Random, new: str) -> str:
    found = list(pattern.finditer(text))
    if not found:
        return new + text if rng.random() < 0.5 else text + new
    match = rng.choice(found)
    return text[: match.start()] + new + text[match.end() :]


def _nested(rng: random.Random) -> str:
    depth = rng.choice(_DEPTHS)
    opening, closing = rng.choice((("[", "]"), ('{"a":', "}"), ("[0,", "]"), ('[{"a":', "}]")))
    return opening * depth + "1" + closing * rng.choice((depth, depth, depth - 1, 0))


def mutated_json(content: bytes, rng: random.Random) -> bytes:
    """A JSON file changed in its bytes, its text, or its tree."""
    kind = rng.random()
    if kind < 0.15:
        return mutators.mutated_bytes(content, rng)
    if kind < 0.5:
        text = content.decode()
        for _ in range(rng.choice((1, 1, 2))):
            text = strange_text(text, rng)
        return text.encode("utf-8", "surrogatepass")
    tree = json.loads(content)
    altered = rng.choice((mutators.change, mutators.nudge))
    for _ in range(rng.choice((1, 1, 2, 3))):
        altered(tree, rng)
    if isinstance(tree, dict) and rng.random() < 0.1:
        tree[rng.choice(("ops", "tensors"))] = []
    return json.dumps(tree).encode()


# --- safetensors ------------------------------------------------------------------------------


def mutated_tensors(content: bytes, rng: random.Random) -> bytes:
    """A safetensors file changed in its bytes, its header's text or tree, or an entry's shape and place."""
    if rng.random() < 0.15:
        return mutators.mutated_bytes(content, rng)
    size = int.from_bytes(content[:8], "little")
    text, data = content[8 : 8 + size].decode(), content[8 + size :]
    if rng.random() < 0.4:
        header = strange_text(text, rng).encode("utf-8", "surrogatepass")
    else:
        tree = json.loads(text)
        for _ in range(rng.choice((1, 1, 2))):
            rng.choice((mutators.change, _change_entry, _change_entry))(tree, rng)
        header = json.dumps(tree).encode()
    length = len(header) if rng.random() < 0.95 else rng.choice((0, 1, 2**26, 2**27, 2**63, len(content)))
    return length.to_bytes(8, "little") + header + data


def _change_entry(tree: Any, rng: random.Random) -> None:
    entries = [item for item in tree.values() if isinstance(item, dict) and "shape" in item]
    if not entries:
        return
    entry = rng.choice(entries)
    sizes = rng.choice((1, 2, 0, 2**31, 2**63 - 1, 2**64, 10**300, 3))
    shape = [sizes] * rng.choice((1, 2, 8, 63, 64, 65, 1000, 20_000))
    kind = rng.randrange(4)
    if kind == 0:
        entry["shape"] = shape
    elif kind == 1 and isinstance(entry["shape"], list):
        entry["shape"] = [*entry["shape"], *[1] * rng.choice((1, 60, 64, 10_000))]
    elif kind == 2:
        entry["data_offsets"] = [rng.choice(mutators.NUMBERS), rng.choice(mutators.NUMBERS)]
    else:
        entry["dtype"] = rng.choice(("F64", "BF16", "F8_E4M3", "C64", "U64", *mutators.TEXTS))


# --- zip, npz and gzip ------------------------------------------------------------------------

_HEADERS = (
    "{'descr': '<f4', 'fortran_order': False, 'shape': (SIZES), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (SIZES)",
    "{'descr': '|O', 'fortran_order': False, 'shape': (SIZES), }",
    "{'descr': '|V0', 'fortran_order': False, 'shape': (SIZES), }",
    "{'descr': '<U100000000', 'fortran_order': False, 'shape': (SIZES), }",
    "{'descr': [('a', '<f4'), ('b', '|O')], 'fortran_order': False, 'shape': (SIZES), }",
    "{'descr': '<M8[ns]', 'fortran_order': True, 'shape': (SIZES), }",
    "{'descr': '<c16', 'fortran_order': 'x', 'shape': (SIZES), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (SIZES), 'more': 1, }",
    "{'descr': '>f8', 'fortran_order': True, 'shape': (SIZES), }",
    "__import__('os').system('true')", "((((((((((", "{" * 3000, "(" * 9000, "'" * 3, "\\", "{'descr': ",
)  # fmt: skip
_SIZES = (
    "20, 64", "20,", "64, 20", "", "0, 64", "-1, 64", "20, 64, 1", "2305843009213693952, 8", "9" * 400 + ",",
    "1, " * 64, "1, " * 900, "4294967296, 4294967296", "True, 64", "2.0, 64", "'a',", "(1, 2),", "1e9,", "L,",
)  # fmt: skip


def mutated_npz(content: bytes, rng: random.Random) -> bytes:
    """An npz file changed in its bytes, its members, their headers, or what its directory says of them."""
    kind = rng.random()
    if kind < 0.2:
        return mutators.mutated_bytes(content, rng)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members: list[list[Any]] = [[info.filename, archive.read(info)] for info in archive.infolist()]
    if kind < 0.7:
        for _ in range(rng.choice((1, 1, 2))):
            _change_member(members, rng)
    packed = io.BytesIO()
    methods = (
        zipfile.ZIP_STORED,
        zipfile.ZIP_DEFLATED,
        zipfile.ZIP_DEFLATED,
        zipfile.ZIP_BZIP2,
        zipfile.ZIP_LZMA,
    )
    method = rng.choice(methods[:3] if rng.random() < 0.8 else methods)
    with zipfile.ZipFile(packed, "w", method) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of two members with one name
        for name, data in members:
            archive.writestr(zipfile.ZipInfo(name), data, compress_type=method)
    data = bytearray(packed.getvalue())
    if kind >= 0.6:
        _change_directory(data, rng)
    return bytes(data)


def _change_member(members: list[list[Any]], rng: random.Random) -> None:
    member = rng.choice(members)
    kind = rng.randrange(6)
    if kind <= 2:
        header = rng.choice(_HEADERS).replace("SIZES", rng.choice(_SIZES)).encode()
        version = rng.choice((1, 1, 1, 2, 3, 9))
        length = struct.pack("<H" if version == 1 else "<I", len(header) if rng.random() < 0.9 else 65535)
        body = member[1][128:] if rng.random() < 0.8 else bytes(rng.choice((0, 10, 10**6)))
        member[1] = b"\x93NUMPY" + bytes([version, 0]) + length + header + body
    elif kind == 3:
        dtype = rng.choice(
            ("<f8", "<i8", "?", "<f2", "<c8", "<U3", "<M8[s]", "<m8", "|S5", ">f4", "<u8", "<f4")
        )
        array = np.zeros(rng.choice(((20, 64), (20,), (), (0, 64), (3, 64), (20, 64, 1), (7, 64))), dtype)
        written = io.BytesIO()
        np.save(written, array)
        member[1] = written.getvalue()
    elif kind == 4:
        member[0] = rng.choice(
            (*(text.replace("\x00", "") for text in mutators.TEXTS), "x.npy", "y.npy", "../../x.npy")
        )
    else:
        member[1] = mutators.mutated_bytes(member[1], rng)


def _change_directory(data: bytearray, rng: random.Random) -> None:
    """Fields of a zip's headers, behind their signatures: flags, method, checksum, sizes, offsets."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        signature, fields = rng.choice(
            (
                (b"PK\x01\x02", ((8, "H"), (10, "H"), (16, "I"), (20, "I"), (24, "I"), (28, "H"), (42, "I"))),
                (b"PK\x03\x04", ((6, "H"), (8, "H"), (14, "I"), (18, "I"), (22, "I"), (26, "H"))),
                (b"PK\x05\x06", ((8, "H"), (10, "H"), (12, "I"), (16, "I"), (20, "H"))),
            )
        )
        places = [found.start() for found in re.finditer(re.escape(signature), bytes(data))]
        if not places:
            return
        offset, form = rng.choice(fields)
        values = (0, 1, 8, 9, 12, 14, 93, 99, 0x41, 0xFFFF) if form == "H" else (0, 1, 100, 2**31, 2**32 - 1)
        at = rng.choice(places) + offset
        struct.pack_into(f"<{form}", data, min(at, len(data) - 4), rng.choice(values))


def mutated_gzip(content: bytes, rng: random.Random) -> bytes:
    """A gzip file damaged in its header, its body or its end, or of something else than it was."""
    kind = rng.randrange(7)
    if kind <= 1:
        return mutators.mutated_bytes(content, rng)
    if kind == 2:
        data = bytearray(content)
        data[rng.randrange(min(10, len(data)))] = rng.randrange(256)
        return bytes(data)
    if kind == 3:
        at = rng.randrange(len(content))
        return content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :]
    if kind == 4:
        return content + rng.choice((b"\0", b"more", content, gzip.compress(b"[]")))
    if kind == 5:
        return rng.choice((b"", b"\x1f\x8b", zlib.compress(b"{}"), gzip.compress(bytes(1 << 22)), b"{}"))
    return gzip.compress(mutated_json(gzip.decompress(content), rng), mtime=0)
