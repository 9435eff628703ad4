/* See poet_state.h. Written by poet. */
#include "poet_state.h"

#include <stddef.h>
#include <string.h>

/* Begins a generation or a commit, and is written after the state that it speaks of. */
typedef struct {
    uint32_t form, build, plan, generation, sum, side; /* sum: of the state, as it lay in RAM */
    unsigned char numbers[POET_NUMBERS_BYTES];
    uint32_t crc; /* of all before it */
} poet_saved;

typedef char poet_saved_fits[sizeof(poet_saved) <= 256u ? 1 : -1];

enum { NONE = -1, FAILED = -2, OTHER = -3 };

/* The record at a place: 1 where it is whole and of this plan, 0 where not, FAILED or OTHER */
static int record_at(const poet_storage *storage, uint32_t at, poet_saved *saved)
{
    if (storage->read(storage->context, at, saved, (uint32_t)sizeof *saved)) {
        return FAILED;
    }
    const int is_older = saved->form == POET_PLAN; /* so records began before they had a form */
    const int is_ours = saved->plan == POET_PLAN && (saved->form ^ POET_STATE_FORM) < 256u;
    if (is_older || (is_ours && saved->form != POET_STATE_FORM)) {
        return OTHER;
    }
    return is_ours && saved->crc == ~poet_crc(UINT32_C(0xffffffff), saved, offsetof(poet_saved, crc));
}

/* Whether what is stored has this checksum, likewise */
static int is_whole(const poet_storage *storage, uint32_t from, uint32_t size, uint32_t sum)
{
    unsigned char bytes[64];
    uint32_t found = 0u;
    for (uint32_t at = 0u; at < size; at += (uint32_t)sizeof bytes) {
        const uint32_t left = size - at;
        const uint32_t count = left < sizeof bytes ? left : (uint32_t)sizeof bytes;
        if (storage->read(storage->context, from + at, bytes, count)) {
            return FAILED;
        }
        found = poet_checksum(found, bytes, count);
    }
    return found == sum;
}

/* Writes the record of a state that is stored; POET_OK where it reads back so. */
static poet_status seal(const poet_net *net, const poet_storage *storage, uint32_t at, uint32_t generation, uint32_t sum)
{
    poet_saved saved = {POET_STATE_FORM, POET_BUILD, POET_PLAN, generation, sum, 0u, {0}, 0u};
    poet_saved found;
    poet_writer to;
#if POET_COMMITS
    saved.side = net->side;
#endif
    memcpy(saved.numbers, (const unsigned char *)net + offsetof(poet_net, drawn), sizeof saved.numbers);
    saved.crc = ~poet_crc(UINT32_C(0xffffffff), &saved, offsetof(poet_saved, crc));
    poet_begin(&to, storage, at);
    if (poet_put(&to, &saved, (uint32_t)sizeof saved) || poet_put_rest(&to) || storage->sync(storage->context)
        || storage->read(storage->context, at, &found, (uint32_t)sizeof found)
        || memcmp(&found, &saved, sizeof saved) != 0) {
        return POET_STORAGE_FAILED;
    }
    return POET_OK;
}

/* What a record has beside tensors becomes that of a net. */
static void take_numbers(poet_net *net, const poet_saved *saved)
{
    memcpy((unsigned char *)net + offsetof(poet_net, drawn), saved->numbers, sizeof saved->numbers);
    net->build = saved->build;
}

static uint32_t place_of(uint32_t slot)
{
    return slot * POET_GENERATION_BYTES;
}

/* The slot of the newest whole generation, and its record; or NONE, FAILED, OTHER */
static int newest(const poet_storage *storage, poet_saved *saved)
{
    int found = NONE;
    for (uint32_t slot = 0u; slot < 2u; ++slot) {
        poet_saved other;
        int good = record_at(storage, place_of(slot), &other);
        if (good > 0) {
            good = is_whole(storage, place_of(slot) + POET_BLOCKS(256u), POET_STATE_BYTES, other.sum);
        }
        if (good == FAILED) {
            return FAILED;
        }
        if (good == OTHER && found < 0) {
            found = OTHER;
        }
        /* the difference counts, so that numbers may run over */
        if (good > 0 && (found < 0 || other.generation - saved->generation < UINT32_C(0x80000000))) {
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

static int is_finite(const void *floats, uint32_t size)
{
    const unsigned char *next = floats;
    for (; size >= 4u; size -= 4u, next += 4) {
        uint32_t bits;
        memcpy(&bits, next, sizeof bits);
        if ((bits & UINT32_C(0x7f800000)) == UINT32_C(0x7f800000)) {
            return 0;
        }
    }
    return 1;
}

/*
 * Goes through a tensor of the state, wherever it is, and puts it into `to`, where that is not null. POET_STORAGE_FAILED
 * also where it is not what was written; POET_NOT_FINITE where it must not be saved.
 */
static poet_status go_through(const poet_net *net, int32_t index, poet_writer *to)
{
    const poet_span *const span = &poet_kept[index];
    const uint32_t size = 4u * (uint32_t)span->words;
    poet_status status = POET_OK;
#if POET_HOMES
    if (span->word < 0) {
        uint32_t sum = 0u;
        for (uint32_t from = 0u; from < size; from += 64u) {
            unsigned char bytes[64];
            const uint32_t count = size - from < 64u ? size - from : 64u;
            if (poet_kept_read(net, index, from, bytes, count) || (to && poet_put(to, bytes, count))) {
                return POET_STORAGE_FAILED;
            }
            sum = poet_checksum(sum, bytes, count);
            if (span->is_checked && !is_finite(bytes, count)) {
                status = POET_NOT_FINITE;
            }
        }
        return span->sum < 0 || POET_IS_SUM(net, span->sum, sum) ? status : POET_STORAGE_FAILED;
    }
#endif
    if (span->is_checked && !is_finite(net->arena + span->word, size)) {
        status = POET_NOT_FINITE;
    }
    return to && poet_put(to, net->arena + span->word, size) ? POET_STORAGE_FAILED : status;
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
    poet_status status = is_partial(net) ? POET_STORAGE_FAILED : POET_OK;
    for (int32_t i = 0; i < POET_KEPT && status == POET_OK; ++i) {
        status = go_through(net, i, 0);
    }
    if (status != POET_OK) {
        return status;
    }
    poet_saved saved;
    poet_writer to;
    const int last = newest(storage, &saved);
    if (last == FAILED || last == OTHER) {
        return last == OTHER ? POET_OTHER_BUILD : POET_STORAGE_FAILED;
    }
    const uint32_t generation = last < 0 ? 1u : saved.generation + 1u;
    const uint32_t place = place_of(last == 0 ? 1u : 0u);
    poet_begin(&to, storage, place + POET_BLOCKS(256u));
    for (int32_t i = 0; i < POET_KEPT && status == POET_OK; ++i) {
        status = go_through(net, i, &to);
    }
    if (status != POET_OK || poet_put_rest(&to) || storage->sync(storage->context)
        || is_whole(storage, place + POET_BLOCKS(256u), POET_STATE_BYTES, to.sum) <= 0) {
        return POET_STORAGE_FAILED;
    }
    return seal(net, storage, place, generation, to.sum);
}

#if POET_COMMITS
static uint32_t commit_of(uint32_t slot)
{
    return POET_COMMIT_AT + slot * POET_COMMIT_BYTES;
}

poet_status poet_commit(poet_net *net)
{
    if (!net || !are_ready(net, net->storage)) {
        return POET_BAD_ARGUMENT;
    }
    poet_status status = is_partial(net) ? POET_STORAGE_FAILED : POET_OK;
    for (int32_t i = 0; i < POET_KEPT && status == POET_OK; ++i) {
        status = go_through(net, i, 0);
    }
    if (status != POET_OK) {
        return status;
    }
    const poet_storage *const storage = net->storage;
    const uint32_t generation = net->commits + 1u;
    const uint32_t place = commit_of(generation & 1u), from = place + POET_COMMIT_HEAD;
    uint32_t size = 0u;
    poet_writer to;
    poet_begin(&to, storage, from);
    for (int32_t i = 0; i < POET_KEPT; ++i) {
        if (poet_kept[i].word >= 0) {
            size += 4u * (uint32_t)poet_kept[i].words;
            status = status == POET_OK ? go_through(net, i, &to) : status;
        }
    }
    if (status != POET_OK || poet_put_rest(&to) || storage->sync(storage->context)
        || is_whole(storage, from, size, to.sum) <= 0) {
        return POET_STORAGE_FAILED;
    }
    status = seal(net, storage, place, generation, poet_checksum(to.sum, net->sums, 4u * POET_HOME_SUMS));
    if (status == POET_OK) {
        net->committed = net->side;
        net->commits = generation;
    }
    return status;
}

/* Takes up what a record speaks of: 1 where it is whole, 0 where not, FAILED */
static int take_up(poet_net *net, const poet_saved *saved, uint32_t from)
{
    uint32_t sum = 0u;
    take_numbers(net, saved);
    net->side = saved->side & 1u;
    for (int32_t i = 0; i < POET_KEPT; ++i) {
        const poet_span *const span = &poet_kept[i];
        const uint32_t size = 4u * (uint32_t)span->words;
        if (span->word >= 0) {
            if (net->storage->read(net->storage->context, from, net->arena + span->word, size)) {
                return FAILED;
            }
            sum = poet_checksum(sum, net->arena + span->word, size);
            from += size;
        } else if (span->sum >= 0) {
            const uint32_t home = (uint32_t)(net->side ? span->second : span->home);
            net->sums[span->sum] = 0u;
            for (uint32_t at = 0u; at < size; at += 64u) {
                unsigned char bytes[64];
                const uint32_t count = size - at < 64u ? size - at : 64u;
                if (net->storage->read(net->storage->context, home + at, bytes, count)) {
                    return FAILED;
                }
                net->sums[span->sum] = poet_checksum(net->sums[span->sum], bytes, count);
            }
        }
    }
    return poet_checksum(sum, net->sums, 4u * POET_HOME_SUMS) == saved->sum;
}

poet_status poet_recover(poet_net *net, const poet_storage *storage)
{
    if (!are_ready(net, storage)) {
        return POET_BAD_ARGUMENT;
    }
    poet_saved saved[2];
    int good[2];
    const uint32_t seed = net->seed;
    net->storage = 0; /* no step before all went well */
    for (uint32_t slot = 0u; slot < 2u; ++slot) {
        good[slot] = record_at(storage, commit_of(slot), &saved[slot]);
        if (good[slot] == FAILED) {
            return POET_STORAGE_FAILED;
        }
    }
    const int is_second = good[1] > 0
                          && (good[0] <= 0 || saved[1].generation - saved[0].generation < UINT32_C(0x80000000));
    for (uint32_t tried = 0u; tried < 2u; ++tried) {
        const uint32_t slot = is_second ? 1u - tried : tried;
        if (good[slot] <= 0) {
            continue;
        }
        net->storage = storage;
        const int found = take_up(net, &saved[slot], commit_of(slot) + POET_COMMIT_HEAD);
        if (found > 0) {
            net->failed = 0;
            net->committed = net->side;
            net->commits = saved[slot].generation;
            return POET_OK;
        }
        net->storage = 0;
        if (found == FAILED) {
            return POET_STORAGE_FAILED;
        }
    }
    (void)poet_init(net, net->arena, seed);
    if (good[0] > 0 || good[1] > 0) {
        return POET_STORAGE_FAILED; /* something was committed, and is damaged or was read wrong */
    }
    return good[0] == OTHER || good[1] == OTHER ? POET_OTHER_BUILD : POET_NO_STATE;
}
#endif

/* Reads a tensor of the state to where it is; goes on with `sum` of what was read. 0 where all went well. */
static int fill(poet_net *net, const poet_storage *storage, uint32_t at, int32_t index, uint32_t *sum)
{
    const poet_span *const span = &poet_kept[index];
    const uint32_t size = 4u * (uint32_t)span->words;
#if POET_HOMES
    if (span->word < 0) {
#if POET_COMMITS
        poet_writer to;
        poet_begin(&to, net->storage, (uint32_t)(net->side ? span->second : span->home));
#endif
        for (uint32_t from = 0u; from < size; from += 64u) {
            unsigned char bytes[64];
            const uint32_t count = size - from < 64u ? size - from : 64u;
            if (storage->read(storage->context, at + from, bytes, count)) {
                return 1;
            }
            *sum = poet_checksum(*sum, bytes, count);
#if POET_COMMITS
            if (span->home >= 0 && poet_put(&to, bytes, count)) {
                return 1;
            }
#endif
        }
#if POET_COMMITS
        if (span->home >= 0) {
            net->sums[span->sum] = to.sum;
            return poet_put_rest(&to);
        }
#endif
        return 0;
    }
#endif
    if (storage->read(storage->context, at, net->arena + span->word, size)) {
        return 1;
    }
    *sum = poet_checksum(*sum, net->arena + span->word, size);
    return 0;
}

/* Reads the state of a generation; 0 where it is whole, and what lives in storage reads back so. */
static int fill_all(poet_net *net, const poet_storage *storage, uint32_t at, uint32_t right)
{
    uint32_t sum = 0u;
    for (int32_t i = 0; i < POET_KEPT; ++i) {
        if (fill(net, storage, at, i, &sum)) {
            return 1;
        }
        at += 4u * (uint32_t)poet_kept[i].words;
    }
    for (int32_t i = 0; i < POET_KEPT; ++i) {
        if (poet_kept[i].word < 0 && go_through(net, i, 0) == POET_STORAGE_FAILED) {
            return 1;
        }
    }
    return sum != right;
}

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
    if (slot == FAILED || slot == OTHER) {
        return slot == OTHER ? POET_OTHER_BUILD : POET_STORAGE_FAILED; /* the net is as it was */
    }
#if POET_PAGE_BYTES > 0
    const poet_storage *const pages = net->storage;
#endif
#if POET_COMMITS
    const uint32_t committed = net->committed, commits = net->commits;
    if (slot >= 0) {
        net->side = !net->committed; /* the place that holds nothing that was committed */
    }
    const uint32_t side = net->side;
#endif
    if (slot >= 0 && !fill_all(net, storage, place_of((uint32_t)slot) + POET_BLOCKS(256u), saved.sum)) {
        take_numbers(net, &saved);
#if POET_PAGE_BYTES > 0
        net->failed = 0; /* nothing partial is saved */
#endif
        return POET_OK;
    }
    (void)poet_init(net, net->arena, net->seed);
#if POET_PAGE_BYTES > 0
    net->storage = pages;
#endif
#if POET_COMMITS
    net->side = side;
    net->committed = committed;
    net->commits = commits;
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
