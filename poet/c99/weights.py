"""C text of the weights that training begins with."""

from __future__ import annotations

C_LINKAGE = ('#ifdef __cplusplus\nextern "C" {\n#endif\n', "#ifdef __cplusplus\n}\n#endif\n\n")
"""Begins and ends what a header declares, for C++ as well."""


def weights_header() -> str:
    """``poet_weights.h``."""
    return (
        "/* The weights that training begins with. Written by poet. */\n#ifndef POET_WEIGHTS_H\n"
        f"#define POET_WEIGHTS_H\n\n#include <stdint.h>\n\n{C_LINKAGE[0]}\n"
        f"extern const uint32_t poet_weights[];\n\n{C_LINKAGE[1]}#endif\n"
    )


def weights_source(words: tuple[int, ...]) -> str:
    """``poet_weights.c``: the bits of the weights, which are little-endian where they are 64 bits long."""
    rows = (", ".join(f"{word:#010x}u" for word in words[at : at + 8]) for at in range(0, len(words), 8))
    return (
        '/* Bits of the weights that training begins with. Written by poet. */\n#include "poet_weights.h"\n\n'
        "#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__\n"
        '#error "counters of 64 bits are written for little-endian machines"\n#endif\n\n'
        f"const uint32_t poet_weights[{len(words)}] = {{\n"
        + "".join(f"    {row},\n" for row in rows)
        + "};\n"
    )
