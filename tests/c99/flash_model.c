/*
 * A step on a model of NOR flash: blocks are erased as a write reaches their first byte (with ENTERED: as a write enters
 * a block that the one before did not end in), pieces are programmed by clearing bits. It counts erases of each block, pieces programmed twice since they were erased and writes that are not
 * of whole pieces; and drops a write, or flips a bit of what a write or a read gave, with status 0. See
 * test_c99_flash.py.
 */
#include "poet_state.h"
#include "test/vectors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = POET_ERASE_BYTES > 1 ? POET_ERASE_BYTES : 4096, PIECE = POET_WRITE_BYTES };
#define BLOCKS ((POET_STORAGE_BYTES > POET_PAGE_BYTES ? POET_STORAGE_BYTES : POET_PAGE_BYTES) / BLOCK + 1)

typedef struct {
    unsigned char bytes[BLOCKS * BLOCK], programmed[BLOCKS * BLOCK / PIECE];
    unsigned erased[BLOCKS], last;
} flash;

static flash chips[2]; /* pages and homes, saved states */
static float arena[POET_ARENA_FLOATS];
static poet_net net;
static unsigned writes, reads, syncs, misaligned, twice;
static long bad_write = -1, bad_read = -1;
static int is_dropped;

static int get(void *context, uint32_t offset, void *bytes, uint32_t size)
{
    const flash *const chip = context;
    memcpy(bytes, chip->bytes + offset, size);
    if ((long)reads++ == bad_read) {
        ((unsigned char *)bytes)[2u % size] ^= 64u;
    }
    return 0;
}

static int put(void *context, uint32_t offset, const void *bytes, uint32_t size)
{
    flash *const chip = context;
    const unsigned char *const from = bytes;
    misaligned += offset % PIECE || size % PIECE;
    for (uint32_t at = offset; at < offset + size; ++at) {
#ifdef ENTERED
        const int is_erased = at / BLOCK != chip->last;
        chip->last = at / BLOCK;
#else
        const int is_erased = at % BLOCK == 0u;
#endif
        if (is_erased) {
            ++chip->erased[at / BLOCK];
            memset(chip->bytes + at / BLOCK * BLOCK, 255, BLOCK);
            memset(chip->programmed + at / BLOCK * BLOCK / PIECE, 0, BLOCK / PIECE);
        }
        if (at % PIECE == 0u) {
            twice += chip->programmed[at / PIECE]++ > 0u;
        }
        if (!((long)writes == bad_write && is_dropped)) {
            chip->bytes[at] &= from[at - offset];
        }
    }
    if ((long)writes++ == bad_write && !is_dropped) {
        chip->bytes[offset + 2u % size] ^= 64u;
    }
    return 0;
}

static int flush(void *context)
{
    (void)context;
    ++syncs;
    return 0;
}

#if POET_PAGE_BYTES > 0
static const poet_storage pages = {&chips[0], get, put, flush};
#endif
static const poet_storage saves = {&chips[1], get, put, flush};

static void clear(void)
{
    for (int chip = 0; chip < 2; ++chip) {
        memset(&chips[chip], 0, sizeof chips[chip]);
        memset(chips[chip].bytes, 255, sizeof chips[chip].bytes);
        chips[chip].last = ~0u;
    }
}

static void require(int is_so, const char *what, long number)
{
    if (!is_so) {
        printf("%s (%ld)\n", what, number);
        exit(1);
    }
}

static poet_status begin(void)
{
    poet_status status = poet_init(&net, arena, 1u);
#if POET_PAGE_BYTES > 0
    if (status == POET_OK) {
        status = poet_set_storage(&net, &pages);
    }
#endif
    return status;
}

static poet_status step(int32_t number)
{
    poet_test_fill(&net, number);
    return poet_train_step(&net, 0);
}

/* Makes a step last: by a commit where it has one, else by a save. */
static poet_status keep(int is_save)
{
#if POET_COMMITS
    if (!is_save) {
        return poet_commit(&net);
    }
#endif
    (void)is_save;
    return poet_save(&net, &saves);
}

/* A new start of the program. */
static poet_status back(int is_save)
{
    memset(&net, 0, sizeof net);
    memset(arena, 255, sizeof arena);
#if POET_COMMITS
    if (!is_save) {
        (void)poet_init(&net, arena, 1u);
        return poet_recover(&net, &pages);
    }
#endif
    (void)is_save;
    const poet_status begun = begin();
    return begun == POET_OK ? poet_load(&net, &saves) : begun;
}

/* Two steps that are kept, a third; each `stride`-th transfer of that and of keeping it goes wrong without a word. */
static void spoil(int is_save, long stride)
{
    uint32_t crc[4];
    unsigned told = 0u, taken[2] = {0u}, first[2], counts[2];
    for (long k = -1, kind = 0; kind < 3; k += k == -1 ? 1 : stride) {
        clear();
        require(begin() == POET_OK, "begins", k);
        for (int32_t i = 0; i < 2; ++i) {
            require(step(i) == POET_OK && keep(is_save) == POET_OK, "a good step is kept", i);
            crc[i] = poet_state_crc(&net);
        }
        first[0] = writes;
        first[1] = reads;
        is_dropped = kind == 1;
        bad_write = k < 0 || kind == 2 ? -1 : (long)writes + k;
        bad_read = k < 0 || kind != 2 ? -1 : (long)reads + k;
        poet_status status = step(2);
        status = status == POET_OK ? keep(is_save) : status;
        if (k < 0) { /* the undisturbed run */
            require(status == POET_OK, "the undisturbed step", k);
            crc[2] = poet_state_crc(&net);
            counts[0] = writes - first[0];
            counts[1] = reads - first[1];
            continue;
        }
        bad_write = bad_read = -1;
        told += status != POET_OK;
        const poet_status found = back(is_save);
        const uint32_t now = poet_state_crc(&net);
        require(found == POET_OK, "what was kept is lost", k);
        require(now == crc[1] || now == crc[2], kind ? "a dropped write or a wrong read" : "a flipped write", k);
        require(now == crc[2] || status != POET_OK, "what was said to be kept is there", k);
        taken[now == crc[2] ? 1 : 0] += kind < 2;
        if (k + stride >= (long)counts[kind == 2]) {
            k = -1;
            ++kind;
        }
    }
    printf("writes %u reads %u told %u older %u newer %u\n", counts[0], counts[1], told, taken[0], taken[1]);
}

/* The same where the state goes back: a wrong read is told, or the state is one that was kept. */
static void spoil_back(int is_save)
{
    uint32_t crc[2];
    require(begin() == POET_OK, "begins", 0);
    for (int32_t i = 0; i < 2; ++i) {
        require(step(i) == POET_OK && keep(is_save) == POET_OK, "a good step is kept", i);
        crc[i] = poet_state_crc(&net);
    }
    unsigned wrong = 0u;
    const unsigned before = reads;
    require(back(is_save) == POET_OK && poet_state_crc(&net) == crc[1], "goes back", 0);
    const unsigned count = reads - before;
    for (unsigned k = 0u; k < count; ++k) {
        bad_read = (long)(reads + k);
        const poet_status status = back(is_save);
        bad_read = -1;
        const uint32_t now = poet_state_crc(&net);
        require(status != POET_OK || now == crc[0] || now == crc[1], "a wrong read while going back", (long)k);
        wrong += status != POET_OK || now != crc[1];
        require(is_save || status != POET_NO_STATE, "what was committed is said not to be there", (long)k);
        require(back(is_save) == POET_OK && poet_state_crc(&net) == crc[1], "goes back again", (long)k);
    }
    printf("reads %u wrong %u\n", count, wrong);
}

/* How the blocks are worn by steps that are kept. */
static void wear(int is_save)
{
    unsigned most = 0u, most_saved = 0u;
    require(begin() == POET_OK, "begins", 0);
    memset(chips[0].erased, 0, sizeof chips[0].erased);
    for (int32_t i = 0; i < 200; ++i) {
        require(step(i) == POET_OK, "a step", i);
        if (is_save >= 0) {
            require(keep(is_save) == POET_OK, "is kept", i);
        }
    }
    for (unsigned i = 0u; i < BLOCKS; ++i) {
        most = chips[0].erased[i] > most ? chips[0].erased[i] : most;
        most_saved = chips[1].erased[i] > most_saved ? chips[1].erased[i] : most_saved;
    }
    printf("steps 200 most %u saved %u misaligned %u twice %u\n", most, most_saved, misaligned, twice);
}

/* A word of the state, wherever it is, becomes what is no number: nothing is written, and the step before is there. */
static void poison(int is_save)
{
    static const uint32_t bad[] = {UINT32_C(0x7fc00000), UINT32_C(0x7f800001), UINT32_C(0x7f800000), UINT32_C(0xff800000)};
    static uint32_t words[POET_STATE_BYTES / 4u];
    for (int32_t i = 0; i < POET_KEPT; ++i) {
        const uint32_t size = 4u * (uint32_t)poet_kept[i].words;
        const int32_t places[] = {0, poet_kept[i].words / 2, poet_kept[i].words - 1};
        int refused = 0;
        for (unsigned way = 0u; way < 12u; ++way) {
            clear();
            require(begin() == POET_OK && step(0) == POET_OK && keep(is_save) == POET_OK, "a good step is kept", i);
            const uint32_t crc = poet_state_crc(&net);
            require(step(1) == POET_OK, "a step that is not kept", i); /* at home in storage beside the one that is */
#if POET_HOMES
            require(!poet_kept_read(&net, i, 0u, words, size), "is read", i);
            words[places[way % 3u]] = bad[way / 3u];
            require(!poet_kept_write(&net, i, 0u, words, size), "is written", i);
#else
            memcpy(words, net.arena + poet_kept[i].word, size);
            words[places[way % 3u]] = bad[way / 3u];
            memcpy(net.arena + poet_kept[i].word, words, size);
#endif
            const unsigned before = writes;
            const poet_status status[2] = {keep(is_save), keep(is_save)};
            require(status[0] == status[1], "the same is said twice", i);
            require(status[0] == POET_OK || (status[0] == POET_NOT_FINITE && writes == before), "nothing is written", i);
            refused += status[0] == POET_NOT_FINITE;
            if (status[0] != POET_OK) {
                require(back(is_save) == POET_OK && poet_state_crc(&net) == crc, "the step before is there", i);
                require(step(1) == POET_OK && keep(is_save) == POET_OK, "and training goes on", i);
            }
        }
        printf("tensor%d %d\n", (int)i, refused);
    }
}

/* A sample with NaN: the step says so, nothing is kept, and the last good step comes back. */
static void bad_sample(int is_save)
{
    require(begin() == POET_OK, "begins", 0);
    for (int32_t i = 0; i < 3; ++i) {
        require(step(i) == POET_OK && keep(is_save) == POET_OK, "a good step is kept", i);
    }
    const uint32_t crc = poet_state_crc(&net);
    for (int32_t i = 0; i < 2; ++i) {
        const uint32_t bits = UINT32_C(0x7fc00000);
        poet_test_fill(&net, 3);
        memcpy(poet_input(&net, 0) + 5, &bits, sizeof bits);
        require(poet_train_step(&net, 0) == POET_NOT_FINITE, "a step on NaN", i);
        const unsigned before = writes;
        require(keep(is_save) == POET_NOT_FINITE && writes == before, "NaN is not kept", i);
    }
    require(back(is_save) == POET_OK && poet_state_crc(&net) == crc, "the third step is there", 0);
    require(step(3) == POET_OK, "a good step", 3);
}

int main(int count, char **words)
{
    const int is_save = count > 2 ? atoi(words[2]) : 0;
    clear();
    switch (count > 1 ? words[1][0] : ' ') {
    case 's':
        spoil(is_save, count > 3 ? atol(words[3]) : 1);
        break;
    case 'b':
        spoil_back(is_save);
        break;
    case 'w':
        wear(is_save);
        break;
    case 'p':
        poison(is_save);
        break;
    default:
        bad_sample(is_save);
    }
    require(!misaligned && !twice, "writes of other than whole pieces, each once", (long)(misaligned + twice));
    return 0;
}
