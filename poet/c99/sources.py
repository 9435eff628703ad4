"""The C sources of the kernels, in pieces of which a folder gets those that it uses; and of the weights."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "kernels"
TEMPLATES = Path(__file__).parent / "folder"
_MARK = re.compile(r"^/\*@ (\w+) \*/\n", re.MULTILINE)
_NAME = re.compile(r"\bpoet_\w+")
_PROTOTYPE = re.compile(r"^(?!static)\w[^{;]*?\)(?=\n\{)", re.MULTILINE)

_COMPILER = """#if !defined(__GNUC__)
#include <math.h>
#endif

/* Not to be put into its caller: the registers that it saves are then not in the stack all the time. */
#if defined(__GNUC__)
#define POET_APART __attribute__((noinline))
#else
#define POET_APART
#endif
/* Likewise, in the widest vectors there are: without being asked GCC takes half of AVX-512's. */
#if defined(__AVX512F__) && defined(__GNUC__) && !defined(__clang__)
#define POET_WIDEST __attribute__((noinline, target("prefer-vector-width=512")))
#else
#define POET_WIDEST POET_APART
#endif
/* Asks for memory before it is read: where rows lie far apart, processors do not see what comes next. */
#if defined(__GNUC__)
#define POET_FETCH __builtin_prefetch
#else
#define POET_FETCH (void)
#endif
/* To be put into its caller: one frame less in the stack where it is deepest. */
#if defined(__GNUC__)
#define POET_INSIDE inline __attribute__((always_inline))
#else
#define POET_INSIDE
#endif
/* Tiles for vector registers, on a stack that has 80 KiB to spare; results are the same without. */
#if !defined(POET_WIDE)
#define POET_WIDE (UINTPTR_MAX > UINT32_MAX)
#endif
/* Floats of what they read, and of a line of it. */
#define POET_PANEL 9216
#define POET_LINE 384"""

_FLAGS = """#if defined(__FAST_MATH__) || defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__) \\
    || defined(__NO_SIGNED_ZEROS__) || defined(_M_FP_FAST) \\
    || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "compile without -ffast-math, -Ofast and their parts: NaN would not be seen, and results differ"
#endif
#if defined(__FLT_EVAL_METHOD__) && (__FLT_EVAL_METHOD__ == 1 || __FLT_EVAL_METHOD__ == 2)
#error "floats are computed in wider ones here, and results differ: on x86 compile with -msse2 -mfpmath=sse"
#endif
#if defined(__SIZEOF_DOUBLE__) && __SIZEOF_DOUBLE__ != 8
#error "doubles have 8 bytes: with those of this compiler results differ"
#endif"""

_UPDATE_NUMBERS = {"poet_apply_adamw": 7, "poet_apply_momentum": 5}
"""How many numbers an update's record holds, which lies in the stack; without these functions two."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A function or a type: its name, the file it is from, its C text, and the names of pieces it uses."""

    name: str
    file: str
    text: str
    uses: tuple[str, ...]

    @property
    def is_type(self) -> bool:
        """Whether it belongs in the header as a whole."""
        return self.file.endswith(".h")

    @property
    def prototype(self) -> str:
        """Its declaration; empty for a type and for what other files do not call."""
        found = _PROTOTYPE.search(self.text)
        return "" if found is None or self.is_type else f"{found.group()};"


def filled(template: str, **texts: str) -> str:
    """A file of ``folder/`` with a text in the place of each ``@NAME@``."""
    return _filled((TEMPLATES / template).read_text(encoding="utf-8"), texts)


def part(name: str, **texts: str) -> str:
    """Likewise a part of ``poet_step``."""
    return _filled(_parts()[name], texts)


@functools.cache
def _parts() -> Mapping[str, str]:
    _, *rest = _MARK.split((TEMPLATES / "step_parts.c").read_text(encoding="utf-8"))
    return {name: body.strip() for name, body in zip(rest[::2], rest[1::2], strict=True)}


def _filled(text: str, texts: Mapping[str, str]) -> str:
    for name, given in texts.items():
        text = text.replace(f"@{name}@", given)
    return text


@functools.cache
def pieces() -> Mapping[str, Piece]:
    """Every piece by name."""
    texts = {path.name: path.read_text(encoding="utf-8") for path in sorted(FOLDER.iterdir())}
    found: dict[str, tuple[str, str]] = {}
    for file, text in texts.items():
        _, *rest = _MARK.split(text)
        found |= {name: (file, body.strip()) for name, body in zip(rest[::2], rest[1::2], strict=True)}
    return {
        name: Piece(name, file, text, tuple(sorted(found.keys() & set(_NAME.findall(text)) - {name})))
        for name, (file, text) in found.items()
    }


def needed(names: Iterable[str]) -> list[Piece]:
    """The pieces of these names and all that they use, each after those, files together where that lets."""
    every = pieces()
    ordered: dict[str, Piece] = {}

    def add(name: str) -> None:
        if name not in ordered:
            for used in every[name].uses:
                add(used)
            ordered[name] = every[name]

    for name in sorted(set(names), key=lambda name: (every[name].file, list(every).index(name))):
        add(name)
    return list(ordered.values())


def header_text(used: Iterable[Piece]) -> str:
    """``poet_kernels.h``."""
    listed = list(used)
    types = [piece.text for piece in listed if piece.is_type]
    prototypes = [piece.prototype for piece in listed if piece.prototype]
    names = {piece.name for piece in listed}
    numbers = max((count for name, count in _UPDATE_NUMBERS.items() if name in names), default=2)
    sizes = [f"#define POET_UPDATE_NUMBERS {numbers}"] if "poet_update" in names else []
    return "\n\n".join(
        [
            "/* Kernels of the training step: what it calls, and nothing else. Written by poet. */",
            "#ifndef POET_KERNELS_H\n#define POET_KERNELS_H\n\n#include <stdint.h>",
            _FLAGS,
            C_LINKAGE[0].strip(),
            *sizes,
            *types,
            *prototypes,
            f"{C_LINKAGE[1]}#endif\n",
        ]
    )


def source_text(used: Iterable[Piece]) -> str:
    """``poet_kernels.c``."""
    bodies = [piece.text for piece in used if not piece.is_type]
    return (
        "\n\n".join(
            [
                "/* Kernels of the training step. Compile without contraction of a * b + c. */",
                '#include "poet_kernels.h"\n\n#include <string.h>\n' + _COMPILER,
                *bodies,
            ]
        )
        + "\n"
    )


C_LINKAGE = ('#ifdef __cplusplus\nextern "C" {\n#endif\n', "#ifdef __cplusplus\n}\n#endif\n\n")
"""Begins and ends what a header declares, for C++ as well."""


def weights_header(*, has_packed: bool) -> str:
    """``poet_weights.h``."""
    return (
        "/* The weights that training begins with. Written by poet. */\n#ifndef POET_WEIGHTS_H\n"
        f"#define POET_WEIGHTS_H\n\n#include <stdint.h>\n\n{C_LINKAGE[0]}\n"
        f"extern const uint32_t poet_weights[];\n{_PACKED if has_packed else chr(10)}{C_LINKAGE[1]}#endif\n"
    )


_PACKED = "\n/* Packed weights, read where they lie. */\nextern const uint8_t poet_packed[];\n\n"


def _array(name: str, kind: str, texts: Sequence[str]) -> str:
    rows = (f"    {', '.join(texts[at : at + 8])},\n" for at in range(0, len(texts), 8))
    return f"const {kind} {name}[{len(texts)}] = {{\n{''.join(rows)}}};\n"


def weights_source(words: tuple[int, ...], packed: bytes) -> str:
    """``poet_weights.c``: the bits of the weights, which are little-endian where they are 64 bits long."""
    return (
        '/* Bits of the weights that training begins with. Written by poet. */\n#include "poet_weights.h"\n\n'
        "#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__\n"
        '#error "counters of 64 bits are written for little-endian machines"\n#endif\n\n'
        + _array("poet_weights", "uint32_t", [f"{word:#010x}u" for word in words])
        + (f"\n{_array('poet_packed', 'uint8_t', [f'{byte:#04x}' for byte in packed])}" if packed else "")
    )
