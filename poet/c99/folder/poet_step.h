/*
 * A training step of @MODEL@, written by poet. Plan (SHA-256):
 * @DIGEST@
 */
#ifndef POET_STEP_H
#define POET_STEP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The smallest piece that the storage programs, a power of two up to 4,096. */
#ifndef POET_WRITE_BYTES
#define POET_WRITE_BYTES 4u
#endif
#if POET_WRITE_BYTES < 1 || POET_WRITE_BYTES > 4096 || (POET_WRITE_BYTES & (POET_WRITE_BYTES - 1))
#error "POET_WRITE_BYTES is a power of two up to 4,096"
#endif

/* What saved states say of the build that wrote them: by default the CRC-32 of the sources. */
#ifndef POET_BUILD
#define POET_BUILD UINT32_C(@BUILD@)
#endif
@MACROS@

typedef enum {
    POET_OK = 0,
    POET_BAD_ARGUMENT = 1, /* a null pointer, no such row or class, or a call before what it needs */
    POET_NOT_FINITE = 2,   /* of a step: the loss is NaN or infinite; of saving: something that changes is */
    POET_STORAGE_FAILED = 3, /* or gave back other bytes; and of all calls after a step made in part */
    POET_NO_STATE = 4,     /* nothing whole was saved; see poet_state.h */
    POET_OTHER_BUILD = 5   /* what was saved is of this plan and of an older form; see poet_state.h */
} poet_status;

/* The caller's storage; each function gives 0 where all went well, `sync` when a power cut does no harm. */
typedef struct {
    void *context;
    int (*read)(void *context, uint32_t offset, void *bytes, uint32_t size);
    int (*write)(void *context, uint32_t offset, const void *bytes, uint32_t size);
    int (*sync)(void *context);
} poet_storage;

/* Writes to storage from `at` on, in whole pieces; `sum` is the checksum of what was put in. See poet_put. */
typedef struct {
    const poet_storage *storage;
    uint32_t at, held, sum;
    uint32_t piece[(POET_WRITE_BYTES + 3) / 4];
} poet_writer;

/* Everything but the arena; the caller's. Only poet_ functions write to it. */
typedef struct {
    float *arena;
    void (*between)(void *context);
    void *context;
@MEMBERS@} poet_net;

/*
 * Begins with the plan's weights, at step 0. `arena` holds POET_ARENA_FLOATS, best aligned for 8 bytes, and
 * belongs to the net from here on; an address that is no multiple of 4 is refused. `seed` is that of dropout.
 */
poet_status poet_init(poet_net *net, float *arena, uint32_t seed);

@STORAGE@/* Where input `index` goes, POET_INPUT_<index>_FLOATS, anew before each step; null: there is none. */
float *poet_input(poet_net *net, int32_t index);
@NUMBERS@@TARGET@
/* One step: forward, backward, update. `loss` may be null. */
poet_status poet_train_step(poet_net *net, float *loss);

/* The net's output of the last step, until an input or a target is filled; null: there is none. */
const float *poet_output(const poet_net *net, int32_t index);

@PREDICT@/* The learning rate from the next step on, a finite one; poet_init sets that of the plan. */
poet_status poet_set_learning_rate(poet_net *net, float learning_rate);

/*
 * Called with `context` after each op of a step or of a prediction, as to feed a watchdog; null, as poet_init sets it:
 * nothing is. It may not call what changes the net.
 */
poet_status poet_set_between(poet_net *net, void (*between)(void *context), void *context);

/*
 * CRC-32 of all that lives across steps: equal on two machines that trained alike. 0: it cannot be read, as
 * before poet_init, before the storage was set, or where a callback failed.
 */
uint32_t poet_state_crc(const poet_net *net);

/* Goes on with a CRC-32, which begins with 0xffffffff and ends inverted. */
uint32_t poet_crc(uint32_t crc, const void *bytes, size_t count);

/* Goes on with the checksum of what is written to storage; pieces but the last are whole words. */
uint32_t poet_checksum(uint32_t sum, const void *bytes, size_t count);

/*
 * Writing from `at` on, a multiple of POET_WRITE_BYTES: so do all writes begin, and each is of whole pieces,
 * in ascending order, none twice. poet_put_rest fills up the last piece. 0 where all went well.
 */
void poet_begin(poet_writer *to, const poet_storage *storage, uint32_t at);
int poet_put(poet_writer *to, const void *bytes, uint32_t size);
int poet_put_rest(poet_writer *to);

/*
 * What lives across steps: place in the arena, words, first of the weights; or -1, and what fills it. What is
 * not in the arena (-1) is at `home` or `second` in the storage, in turn, with a checksum in the net, or a
 * constant (-1 as well). Where it `is_checked`, no NaN and no infinity of it is saved.
 */
typedef struct {
    int32_t word, words, first;
    uint32_t fill;
    int32_t home, second, sum, is_checked;
} poet_span;

extern const poet_span poet_kept[POET_KEPT];
@HOMES@
#ifdef __cplusplus
}
#endif

#endif
