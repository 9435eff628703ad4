"""C text of what copies whole buffers: within the arena, and between it and the caller's storage."""

from __future__ import annotations

TRANSFERS = {
    "restore": "",
    "move": """/* From one place in the arena to another, which may overlap. */
static void move(poet_net *net, int32_t to, int32_t from, uint32_t size)
{
    memmove(net->arena + to, net->arena + from, size);
}""",
    "page_in": """/* From storage into the arena; after a failure nothing more is tried. */
static void page_in(poet_net *net, int32_t word, uint32_t offset, uint32_t size)
{
    if (net->failed || net->storage->read(net->storage->context, offset, net->arena + word, size)) {
        net->failed = 1;
    }
}""",
    "page_out": """/* From the arena into storage; after a failure nothing more is tried. */
static void page_out(poet_net *net, int32_t word, uint32_t offset, uint32_t size)
{
    if (net->failed || net->storage->write(net->storage->context, offset, net->arena + word, size)) {
        net->failed = 1;
    }
}""",
    "home_in": """/* From the place in storage of what lives there between steps. */
static void home_in(poet_net *net, int32_t word, int32_t index, int32_t is_new)
{
    const uint32_t side = is_new ? !net->committed : net->side;
    page_in(net, word, home_of(&poet_kept[index], side), 4u * (uint32_t)poet_kept[index].words);
}""",
    "home_out": """/* To that of its two places which holds nothing that was committed. */
static void home_out(poet_net *net, int32_t word, int32_t index)
{
    page_out(net, word, home_of(&poet_kept[index], !net->committed), 4u * (uint32_t)poet_kept[index].words);
}""",
}
"""Functions that copy whole buffers, by name; ``restore``, which `poet_init` uses, is always there."""
_USES = {"home_in": "page_in", "home_out": "page_out"}


def transfers(called: set[str]) -> list[str]:
    """C text of those that are ``called``, each after what it uses itself."""
    own = called & TRANSFERS.keys()
    own |= {_USES[name] for name in own & _USES.keys()}
    return [TRANSFERS[name] for name in TRANSFERS if name in own]


HOMES_DECLARED = """
/*
 * Some words of what lives across steps, wherever it is; `from`, `to` and `size` are in bytes. 0 where all
 * went well, else 1: a callback failed, there is no storage yet, or there are no such words.
 */
int poet_kept_read(const poet_net *net, int32_t index, uint32_t from, void *bytes, uint32_t size);

/* Likewise the other way; constants stay as they are. */
int poet_kept_write(poet_net *net, int32_t index, uint32_t to, const void *bytes, uint32_t size);
"""

HOME_OF = """/* Where in storage a tensor is that lives there: at one of two places. */
static uint32_t home_of(const poet_span *span, uint32_t side)
{
    return (uint32_t)(side ? span->second : span->home);
}"""

_ARE_WORDS = """/* Whether there are such words of what lives across steps, and a net begun. */
static int are_words(const poet_net *net, int32_t index, uint32_t from, uint32_t size)
{
    if (!net || !net->arena || index < 0 || index >= POET_KEPT) {
        return 0;
    }
    const uint32_t held = 4u * (uint32_t)poet_kept[index].words;
    return from % 4u == 0u && size % 4u == 0u && from <= held && size <= held - from;
}

"""

HOMES = (
    _ARE_WORDS
    + """int poet_kept_read(const poet_net *net, int32_t index, uint32_t from, void *bytes, uint32_t size)
{
    if (!are_words(net, index, from, size) || !bytes) {
        return 1;
    }
    const poet_span *const span = &poet_kept[index];
    if (span->word < 0 && span->home >= 0) {
        const poet_storage *const storage = net->storage;
        return !storage || storage->read(storage->context, home_of(span, net->side) + from, bytes, size);
    }
    for (uint32_t k = 0u; k < size; k += 4u) {
        const void *at = span->first < 0 ? &span->fill : poet_weights + span->first + (from + k) / 4u;
        if (span->word >= 0) {
            at = net->arena + (uint32_t)span->word + (from + k) / 4u;
        }
        memcpy((unsigned char *)bytes + k, at, 4u);
    }
    return 0;
}

int poet_kept_write(poet_net *net, int32_t index, uint32_t to, const void *bytes, uint32_t size)
{
    if (!are_words(net, index, to, size) || !bytes) {
        return 1;
    }
    const poet_span *const span = &poet_kept[index];
    if (span->word < 0 && span->home < 0) {
        return 0;
    }
    if (span->word < 0) {
        const poet_storage *const storage = net->storage;
        return !storage || storage->write(storage->context, home_of(span, net->side) + to, bytes, size);
    }
    memcpy(net->arena + (uint32_t)span->word + to / 4u, bytes, size);
    return 0;
}"""
)

CONSTANT_HOMES = (
    _ARE_WORDS
    + """int poet_kept_read(const poet_net *net, int32_t index, uint32_t from, void *bytes, uint32_t size)
{
    if (!are_words(net, index, from, size) || !bytes) {
        return 1;
    }
    const poet_span *const span = &poet_kept[index];
    for (uint32_t k = 0u; k < size; k += 4u) {
        const void *at = span->first < 0 ? &span->fill : poet_weights + span->first + (from + k) / 4u;
        if (span->word >= 0) {
            at = net->arena + (uint32_t)span->word + (from + k) / 4u;
        }
        memcpy((unsigned char *)bytes + k, at, 4u);
    }
    return 0;
}

int poet_kept_write(poet_net *net, int32_t index, uint32_t to, const void *bytes, uint32_t size)
{
    if (!are_words(net, index, to, size) || !bytes) {
        return 1;
    }
    if (poet_kept[index].word >= 0) {
        memcpy(net->arena + (uint32_t)poet_kept[index].word + to / 4u, bytes, size);
    }
    return 0;
}"""
)
"""The same where all that is in storage between steps never changes, and so is a constant."""

FILL_HOMES = """/* Writes the first content of what lives in storage and changes; 0 where all went well. */
static int fill_homes(poet_net *net, const poet_storage *storage)
{
    uint32_t words[16] = {0u};
    for (uint32_t slot = 0u; slot < 2u; ++slot) { /* what was committed there counts no more */
        if (storage->write(storage->context, POET_COMMIT_AT + slot * POET_COMMIT_BYTES, words, 64u)) {
            return 1;
        }
    }
    if (storage->sync(storage->context)) {
        return 1;
    }
    for (int32_t i = 0; i < POET_KEPT; ++i) {
        const poet_span *const span = &poet_kept[i];
        for (int32_t k = 0; span->word < 0 && span->home >= 0 && k < span->words; k += 16) {
            const int32_t left = span->words - k, count = left < 16 ? left : 16;
            for (int32_t at = 0; at < count; ++at) {
                words[at] = span->first < 0 ? span->fill : poet_weights[span->first + k + at];
            }
            if (poet_kept_write(net, i, 4u * (uint32_t)k, words, 4u * (uint32_t)count)) {
                return 1;
            }
        }
    }
    return storage->sync(storage->context);
}

"""

CRC_WITH_HOMES = """uint32_t poet_state_crc(const poet_net *net)
{
    uint32_t crc = UINT32_C(0xffffffff);
    for (int32_t i = 0; i < POET_KEPT; ++i) {
        const uint32_t size = 4u * (uint32_t)poet_kept[i].words;
        for (uint32_t at = 0u; at < size; at += 64u) {
            unsigned char bytes[64];
            const uint32_t count = size - at < 64u ? size - at : 64u;
            if (poet_kept_read(net, i, at, bytes, count)) {
                return 0u;
            }
            crc = poet_crc(crc, bytes, count);
        }
    }
    return ~crc;
}"""
