"""C text of what copies whole buffers: within the arena, and between it and the caller's storage."""

from __future__ import annotations

from pathlib import Path

TRANSFERS = {
    "restore": "",
    "move": """/* From one place in the arena to another, which may overlap. */
static void move(poet_net *net, int32_t to, int32_t from, uint32_t size)
{
    memmove(net->arena + to, net->arena + from, size);
}""",
    "page_in": """/* From storage into the arena, the bytes that were written; after a failure no more. */
static void page_in(poet_net *net, int32_t word, uint32_t offset, uint32_t size, int32_t sum)
{
    if (net->failed || net->storage->read(net->storage->context, offset, net->arena + word, size)
        || poet_checksum(0u, net->arena + word, size) != net->sums[sum]) {
        net->failed = 1;
    }
}""",
    "page_out": """/* From the arena into storage; after a failure nothing more is tried. */
static void page_out(poet_net *net, int32_t word, uint32_t offset, uint32_t size, int32_t sum)
{
    poet_writer to;
    poet_begin(&to, net->storage, offset);
    if (net->failed || poet_put(&to, net->arena + word, size) || poet_put_rest(&to)) {
        net->failed = 1;
    }
    net->sums[sum] = to.sum;
}""",
    "home_in": """/* From the place in storage of what lives there between steps. */
static void home_in(poet_net *net, int32_t word, int32_t index, int32_t is_new)
{
    const poet_span *const span = &poet_kept[index];
    const uint32_t side = is_new ? !net->committed : net->side;
    page_in(net, word, home_of(span, side), 4u * (uint32_t)span->words, span->sum);
}""",
    "home_out": """/* To that of its two places which holds nothing that was committed. */
static void home_out(poet_net *net, int32_t word, int32_t index)
{
    const poet_span *const span = &poet_kept[index];
    page_out(net, word, home_of(span, !net->committed), 4u * (uint32_t)span->words, span->sum);
}""",
}
"""Functions that copy whole buffers, by name; ``restore``, which `poet_init` uses, is always there."""
_USES = {"home_in": "page_in", "home_out": "page_out"}


def transfers(called: set[str]) -> list[str]:
    """C text of those that are ``called``, each after what it uses itself."""
    own = called & TRANSFERS.keys()
    own |= {_USES[name] for name in own & _USES.keys()}
    return [TRANSFERS[name] for name in TRANSFERS if name in own]


def _text(name: str) -> str:
    return (Path(__file__).parent / "folder" / name).read_text(encoding="utf-8").strip()


WRITER = _text("writer.c")
"""Writing in whole pieces, and the checksum of what is written."""

HOMES_DECLARED = """
/*
 * Some words of what lives across steps, wherever it is; `from`, `to` and `size` are in bytes. 0 where all
 * went well, else 1: a callback failed, there is no storage yet, there are no such words, or a tensor read as
 * a whole is not what was written.
 */
int poet_kept_read(const poet_net *net, int32_t index, uint32_t from, void *bytes, uint32_t size);

/* Likewise the other way; constants stay as they are, and what lives in storage is written as a whole. */
int poet_kept_write(poet_net *net, int32_t index, uint32_t to, const void *bytes, uint32_t size);
"""

HOME_OF = """/* Where in storage a tensor is that lives there: at one of two places. */
static uint32_t home_of(const poet_span *span, uint32_t side)
{
    return (uint32_t)(side ? span->second : span->home);
}"""

HOMES = _text("homes.c")
"""Reading, writing and summing up what lives across steps where not all of it is in the arena."""
