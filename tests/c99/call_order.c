/*
 * Calls every function of a step in random orders, with nets that were never begun, null pointers, indices that there
 * are not and callbacks that fail: nothing crashes under the sanitizers, each status is one of the enum, and after
 * every call that says POET_OK the state is that of an undisturbed run after as many steps.
 */
#include "poet_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 12, PAGES = POET_PAGE_BYTES > 0 ? POET_PAGE_BYTES : 1 };

static float arena[POET_ARENA_FLOATS];
static unsigned char stored[2][POET_STORAGE_BYTES > PAGES ? POET_STORAGE_BYTES : PAGES];
static uint32_t right[STEPS + 1];
static int left_until_failure = -1; /* transfers; negative: none fails */
static uint32_t seen[5];       /* how often each status was given */
static uint64_t drawn = 1u;

static uint32_t draw(uint32_t below)
{
    drawn = drawn * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(drawn >> 33) % below;
}

static int is_failing(void)
{
    return left_until_failure >= 0 && left_until_failure-- == 0;
}

static int get(void *context, uint32_t offset, void *bytes, uint32_t size)
{
    memcpy(bytes, (unsigned char *)context + offset, size);
    return is_failing();
}

static int put(void *context, uint32_t offset, const void *bytes, uint32_t size)
{
    const int is_bad = is_failing();
    memcpy((unsigned char *)context + offset, bytes, is_bad ? size / 2u : size);
    return is_bad;
}

static int flush(void *context)
{
    (void)context;
    return is_failing();
}

static const poet_storage pages = {stored[0], get, put, flush}, saves = {stored[1], get, put, flush};
static const poet_storage broken = {stored[1], 0, 0, 0};

static void require(int is_so, const char *what, uint32_t number)
{
    if (!is_so) {
        printf("%s (%u)\n", what, (unsigned)number);
        exit(1);
    }
}

/* Inputs and target, the same for each step; whether there was a place for them. */
static int is_filled(poet_net *net)
{
    float *const input = poet_input(net, 0);
    for (int32_t i = 0; input && i < POET_INPUT_0_FLOATS; ++i) {
        input[i] = (float)(i % 7) - 3.0f;
    }
#ifdef POET_CLASSES
    for (int32_t row = 0; input && row < POET_ROWS; ++row) {
        require(poet_set_class(net, row, row % POET_CLASSES) == POET_OK, "a class is refused", 0u);
    }
#else
    float *const target = poet_target(net);
    for (int32_t i = 0; target && i < POET_TARGET_FLOATS; ++i) {
        target[i] = (float)(i % 5) - 2.0f;
    }
#endif
    return input != 0;
}

static poet_status with_storage(poet_net *net, const poet_storage *storage)
{
#if POET_PAGE_BYTES > 0
    return poet_set_storage(net, storage);
#else
    (void)net;
    (void)storage;
    return POET_BAD_ARGUMENT;
#endif
}

/* What gives no status: pointers that are null where there is nothing, and the words of the state. */
static void look(poet_net *net)
{
    unsigned char bytes[16] = {0};
    const int32_t index = (int32_t)draw(9u) - 2;
    const int is_begun = net && net->arena;
    require(is_begun || !poet_output(net, index), "an output of nothing", 0u);
    require(is_begun || !poet_input(net, index), "an input of nothing", 0u);
#ifdef CAN_PREDICT
    require(is_begun || !poet_predicted(net, index), "a prediction of nothing", 0u);
#endif
    require(is_begun || poet_state_crc(net) == 0u, "a sum of nothing", 0u);
    (void)poet_crc(draw(9u), 0, draw(9u));
#if POET_HOMES
    const uint32_t from = draw(3u) ? 4u * draw(6u) : draw(UINT32_MAX);
    require(is_begun || poet_kept_read(net, index, from, bytes, 4u), "words of nothing", 0u);
    (void)poet_kept_read(net, index, from, bytes, draw(17u));
    (void)poet_kept_read(net, index, from, 0, 4u);
    require(poet_kept_write(net, POET_KEPT + index + 2, from, bytes, 4u), "words past the last", 0u);
#endif
    (void)bytes;
}

/* One call; what it gave. */
static poet_status called(poet_net *net)
{
    const poet_storage *const paged = draw(9u) ? &pages : draw(2u) ? &broken : 0;
    const poet_storage *const saved = draw(9u) ? &saves : draw(2u) ? &broken : 0;
    switch (net && net->arena ? draw(12u) : draw(24u)) {
    case 0u:
    case 16u:
    case 17u:
        return poet_init(net, draw(9u) ? arena : 0, 1u);
    case 1u:
    case 2u:
        return with_storage(net, paged);
    case 3u:
        return poet_save(net, saved);
    case 4u:
        return poet_load(net, saved);
    case 5u:
        look(net);
        return poet_set_learning_rate(net, draw(2u) ? LEARNING_RATE : (float)1e300);
#if POET_COMMITS
    case 6u:
        return poet_commit(net);
    case 7u:
        return poet_recover(net, paged);
#endif
#ifdef CAN_PREDICT
    case 8u:
        (void)is_filled(net);
        return poet_predict(net);
#endif
    case 9u:
#ifdef POET_CLASSES
        return poet_set_class(net, (int32_t)draw(99u) - 9, (int32_t)draw(9u) - 3);
#endif
    default: {
        float loss;
        if (net && net->steps >= STEPS) {
            return poet_init(net, arena, 1u);
        }
        const int is_begun = is_filled(net);
        const poet_status status = poet_train_step(net, draw(2u) ? &loss : 0);
        require(is_begun || status == POET_BAD_ARGUMENT, "a step of nothing", 0u);
        return status;
    }
    }
}

int main(int count, char **words)
{
    poet_net net;
    require(poet_init(&net, arena, 1u) == POET_OK, "begins", 0u);
    (void)with_storage(&net, &pages);
    for (uint32_t step = 0u; step <= STEPS; ++step) {
        right[step] = poet_state_crc(&net);
        require(right[step] && is_filled(&net) && poet_train_step(&net, 0) == POET_OK, "the undisturbed run", step);
    }
    memset(&net, 0, sizeof net); /* it has made more steps than any run below */
    const long runs = count > 1 ? strtol(words[1], 0, 10) : 1;
    for (long run = 0; run < runs; ++run) {
        if (!draw(3u)) { /* a new start: with what is stored, or with new storage */
            memset(&net, 0, sizeof net);
        }
        if (!draw(4u)) {
            memset(stored, (int)draw(2u) * 255, sizeof stored);
            memset(&net, 0, sizeof net); /* what a running net has at home may not go away under it */
        }
        for (uint32_t call = 0u; call < 24u; ++call) {
            left_until_failure = draw(3u) ? -1 : (int)draw(40u);
            const poet_status status = called(draw(30u) ? &net : 0);
            left_until_failure = -1;
            require((int)status >= 0 && status <= POET_NO_STATE, "a status that there is not", (uint32_t)status);
            ++seen[status];
            const uint32_t crc = poet_state_crc(&net);
#if POET_COMMITS
            const int is_whole = net.arena && net.storage && !net.failed;
#elif POET_PAGE_BYTES > 0
            const int is_whole = net.arena && !net.failed;
#else
            const int is_whole = net.arena != 0;
#endif
            require(!is_whole || crc == right[net.steps], "the state is of no undisturbed run", net.steps);
        }
    }
    for (uint32_t status = 0u; status < 5u; ++status) {
        printf("%u ", (unsigned)seen[status]);
    }
    return 0;
}
