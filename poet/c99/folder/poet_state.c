/* See poet_state.h. Written by poet. */
#include "poet_state.h"

#include <string.h>

/* Begins a generation and is written after the state that it speaks of. */
typedef struct {
    uint32_t plan, generation, state_crc, crc;
    poet_net net;
} poet_saved;

typedef char poet_saved_fits[sizeof(poet_saved) <= 256u ? 1 : -1];

static uint32_t place_of(uint32_t slot)
{
    return slot * POET_GENERATION_BYTES;
}

static uint32_t crc_of(const poet_saved *saved)
{
    poet_saved copy;
    memcpy(&copy, saved, sizeof copy);
    copy.crc = 0u;
    return ~poet_crc(UINT32_C(0xffffffff), &copy, sizeof copy);
}

/* The record of a generation: 1 where it is whole and of this plan, 0 where not, -1 where reading failed */
static int saved_in(const poet_storage *storage, uint32_t slot, poet_saved *saved)
{
    if (storage->read(storage->context, place_of(slot), saved, (uint32_t)sizeof *saved)) {
        return -1;
    }
    return saved->plan == POET_PLAN && saved->crc == crc_of(saved);
}

/* Whether the state that belongs to a record is whole, likewise */
static int is_whole(const poet_storage *storage, uint32_t slot, const poet_saved *saved)
{
    unsigned char bytes[64];
    uint32_t crc = UINT32_C(0xffffffff);
    const uint32_t from = place_of(slot) + POET_BLOCKS(256u);
    for (uint32_t at = 0u; at < POET_STATE_BYTES; at += (uint32_t)sizeof bytes) {
        const uint32_t left = POET_STATE_BYTES - at;
        const uint32_t size = left < sizeof bytes ? left : (uint32_t)sizeof bytes;
        if (storage->read(storage->context, from + at, bytes, size)) {
            return -1;
        }
        crc = poet_crc(crc, bytes, size);
    }
    return ~crc == saved->state_crc;
}

/* The slot of the newest whole generation, -1 where there is none, -2 where reading failed; and its record */
static int newest(const poet_storage *storage, poet_saved *saved)
{
    int found = -1;
    for (uint32_t slot = 0u; slot < 2u; ++slot) {
        poet_saved other;
        int good = saved_in(storage, slot, &other);
        if (good > 0) {
            good = is_whole(storage, slot, &other);
        }
        if (good < 0) {
            return -2;
        }
        /* the difference counts, so that numbers may run over */
        if (good && (found < 0 || other.generation - saved->generation < UINT32_C(0x80000000))) {
            memcpy(saved, &other, sizeof other);
            found = (int)slot;
        }
    }
    return found;
}

/* Whether a step was made in part, so that what lives across steps is of none */
static int is_partial(const poet_net *net)
{
#if POET_PAGE_BYTES > 0
    return net->failed;
#else
    (void)net;
    return 0;
#endif
}

/* Whether a net was begun, and storage has all three callbacks */
static int are_ready(const poet_net *net, const poet_storage *storage)
{
    return net && net->arena && storage && storage->read && storage->write && storage->sync;
}

/* What of a record belongs to this run, and not to what was saved; `failed` is of neither: nothing partial is saved */
static void keep_own(poet_net *net, const poet_net *own)
{
    net->arena = own->arena;
#if POET_PAGE_BYTES > 0
    net->storage = own->storage;
#endif
#if POET_COMMITS
    net->side = own->side;
    net->committed = own->committed;
    net->commits = own->commits;
#endif
}

/* Copies a span of the state to or from `at` in the caller's storage; 0 where all went well */
static int copy_span(poet_net *net, const poet_storage *storage, uint32_t at, int32_t index, int is_save)
{
    const uint32_t size = 4u * (uint32_t)poet_kept[index].words;
#if POET_HOMES
    for (uint32_t from = 0u; poet_kept[index].word < 0 && from < size; from += 64u) {
        unsigned char bytes[64];
        const uint32_t count = size - from < 64u ? size - from : 64u;
        const int bad = is_save ? poet_kept_read(net, index, from, bytes, count)
                                      || storage->write(storage->context, at + from, bytes, count)
                                : storage->read(storage->context, at + from, bytes, count)
                                      || poet_kept_write(net, index, from, bytes, count);
        if (bad) {
            return 1;
        }
    }
    if (poet_kept[index].word < 0) {
        return 0;
    }
#endif
    float *const here = net->arena + poet_kept[index].word;
    return is_save ? storage->write(storage->context, at, here, size)
                   : storage->read(storage->context, at, here, size);
}

#if POET_COMMITS
static uint32_t commit_of(uint32_t slot)
{
    return POET_COMMIT_AT + slot * POET_COMMIT_BYTES;
}
#endif

/* CRC-32 of the state; what lives in the arena as it was written at `from`, where that is not 0. 1 where all went well. */
static int crc_of_kept(const poet_net *net, uint32_t from, uint32_t *found)
{
    (void)from;
#if POET_COMMITS
    uint32_t crc = UINT32_C(0xffffffff);
    for (int32_t i = 0; i < POET_KEPT; ++i) {
        const uint32_t size = 4u * (uint32_t)poet_kept[i].words;
        const int is_written = from && poet_kept[i].word >= 0;
        for (uint32_t at = 0u; at < size; at += 64u) {
            unsigned char bytes[64];
            const uint32_t count = size - at < 64u ? size - at : 64u;
            if (is_written ? net->storage->read(net->storage->context, from + at, bytes, count)
                           : poet_kept_read(net, i, at, bytes, count)) {
                return 0;
            }
            crc = poet_crc(crc, bytes, count);
        }
        from += is_written ? size : 0u;
    }
    *found = ~crc;
#else
    *found = poet_state_crc(net);
#endif
    return 1;
}

/* Makes the record of the state that was written; 1 where all went well */
static int seal(poet_saved *saved, const poet_net *net, uint32_t generation, uint32_t from)
{
    const poet_net none = {0};
    if (!crc_of_kept(net, from, &saved->state_crc)) {
        return 0;
    }
    memcpy(&saved->net, net, sizeof *net);
    keep_own(&saved->net, &none);
#if POET_COMMITS
    saved->net.side = net->side;
#endif
    saved->plan = POET_PLAN;
    saved->generation = generation;
    saved->crc = crc_of(saved);
    return 1;
}

poet_status poet_save(const poet_net *net, const poet_storage *storage)
{
    if (!are_ready(net, storage)) {
        return POET_BAD_ARGUMENT;
    }
#if POET_COMMITS
    if (!net->storage) {
        return POET_BAD_ARGUMENT;
    }
#endif
    if (is_partial(net)) {
        return POET_STORAGE_FAILED;
    }
    poet_saved saved;
    memset(&saved, 0, sizeof saved);
    const int last = newest(storage, &saved);
    if (last < -1) {
        return POET_STORAGE_FAILED;
    }
    const uint32_t slot = last == 0 ? 1u : 0u;
    uint32_t at = place_of(slot) + POET_BLOCKS(256u);
    poet_net own = *net; /* what it points to is only read */
    for (int32_t i = 0; i < POET_KEPT; ++i) {
        if (copy_span(&own, storage, at, i, 1)) {
            return POET_STORAGE_FAILED;
        }
        at += 4u * (uint32_t)poet_kept[i].words;
    }
    if (storage->sync(storage->context)) {
        return POET_STORAGE_FAILED;
    }
    const uint32_t generation = last < 0 ? 1u : saved.generation + 1u;
    if (!seal(&saved, net, generation, 0u) || storage->write(storage->context, place_of(slot), &saved, (uint32_t)sizeof saved)
        || storage->sync(storage->context)) {
        return POET_STORAGE_FAILED;
    }
    return POET_OK;
}

#if POET_COMMITS
poet_status poet_commit(poet_net *net)
{
    if (!net || !are_ready(net, net->storage)) {
        return POET_BAD_ARGUMENT;
    }
    if (is_partial(net)) {
        return POET_STORAGE_FAILED;
    }
    const poet_storage *const storage = net->storage;
    const uint32_t generation = net->commits + 1u;
    const uint32_t place = commit_of(generation & 1u);
    uint32_t at = place + POET_COMMIT_HEAD;
    for (int32_t i = 0; i < POET_KEPT; ++i) {
        const uint32_t size = poet_kept[i].word < 0 ? 0u : 4u * (uint32_t)poet_kept[i].words;
        if (size && storage->write(storage->context, at, net->arena + poet_kept[i].word, size)) {
            return POET_STORAGE_FAILED;
        }
        at += size;
    }
    if (storage->sync(storage->context)) {
        return POET_STORAGE_FAILED;
    }
    poet_saved saved;
    memset(&saved, 0, sizeof saved);
    if (!seal(&saved, net, generation, place + POET_COMMIT_HEAD)
        || storage->write(storage->context, place, &saved, (uint32_t)sizeof saved)
        || storage->sync(storage->context)) {
        return POET_STORAGE_FAILED;
    }
    net->committed = net->side;
    net->commits = generation;
    return POET_OK;
}

poet_status poet_recover(poet_net *net, const poet_storage *storage)
{
    if (!are_ready(net, storage)) {
        return POET_BAD_ARGUMENT;
    }
    poet_saved saved;
    uint32_t from = 0u;
    poet_net found = *net;
    found.storage = storage;
    found.commits = 0u;
    net->storage = 0; /* no step before all went well */
    for (uint32_t slot = 0u; slot < 2u; ++slot) {
        uint32_t crc;
        if (storage->read(storage->context, commit_of(slot), &saved, (uint32_t)sizeof saved)) {
            return POET_STORAGE_FAILED;
        }
        if (saved.plan != POET_PLAN || saved.crc != crc_of(&saved)
            || (from && found.commits - saved.generation < UINT32_C(0x80000000))) {
            continue;
        }
        poet_net other = found;
        other.side = saved.net.side;
        if (!crc_of_kept(&other, commit_of(slot) + POET_COMMIT_HEAD, &crc)) {
            return POET_STORAGE_FAILED;
        }
        if (crc == saved.state_crc) {
            from = commit_of(slot) + POET_COMMIT_HEAD;
            found = saved.net;
            found.arena = net->arena;
            found.storage = storage;
            found.committed = found.side;
            found.commits = saved.generation;
        }
    }
    for (int32_t i = 0; from && i < POET_KEPT; ++i) {
        const uint32_t size = poet_kept[i].word < 0 ? 0u : 4u * (uint32_t)poet_kept[i].words;
        if (size && storage->read(storage->context, from, net->arena + poet_kept[i].word, size)) {
            return POET_STORAGE_FAILED;
        }
        from += size;
    }
    if (!from) {
        (void)poet_init(net, net->arena, net->seed);
        return POET_NO_STATE;
    }
    *net = found;
    return POET_OK;
}
#endif

poet_status poet_load(poet_net *net, const poet_storage *storage)
{
    if (!are_ready(net, storage)) {
        return POET_BAD_ARGUMENT;
    }
#if POET_COMMITS
    if (!net->storage) {
        return POET_BAD_ARGUMENT;
    }
#endif
    poet_saved saved;
    const int slot = newest(storage, &saved);
    if (slot < -1) {
        return POET_STORAGE_FAILED; /* the net is as it was */
    }
#if POET_COMMITS
    if (slot >= 0) {
        net->side = !net->committed; /* the place that holds nothing that was committed */
    }
#endif
    const poet_net own = *net;
    if (slot >= 0) {
        uint32_t at = place_of((uint32_t)slot) + POET_BLOCKS(256u);
        int bad = 0;
        for (int32_t i = 0; i < POET_KEPT && !bad; ++i) {
            bad = copy_span(net, storage, at, i, 0);
            at += 4u * (uint32_t)poet_kept[i].words;
        }
        if (!bad && poet_state_crc(net) == saved.state_crc) {
            memcpy(net, &saved.net, sizeof *net);
            keep_own(net, &own);
            return POET_OK;
        }
    }
    (void)poet_init(net, own.arena, own.seed);
    keep_own(net, &own);
#if POET_COMMITS
    if (slot >= 0) {
        net->failed = 1; /* what was committed is still there */
        return POET_STORAGE_FAILED;
    }
    if (poet_set_storage(net, net->storage) != POET_OK) {
        return POET_STORAGE_FAILED;
    }
#endif
    return slot < 0 ? POET_NO_STATE : POET_STORAGE_FAILED;
}
