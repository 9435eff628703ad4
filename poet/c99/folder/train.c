/* Steps on the inputs of vectors.c: says loss, RAM and the CRC of the state, the same on every machine. */
#include "train.h"
#include "vectors.h"

#include <stdio.h>
#include <string.h>

static float arena[POET_ARENA_FLOATS];
static poet_net net;
static char line[80];

#if POET_PAGE_BYTES > 0
static unsigned char pages[POET_PAGE_BYTES]; /* in place of your flash: give its driver as a poet_storage */

static int read_pages(void *context, uint32_t offset, void *bytes, uint32_t size)
{
    (void)context;
    memcpy(bytes, pages + offset, size);
    return 0;
}

static int write_pages(void *context, uint32_t offset, const void *bytes, uint32_t size)
{
    (void)context;
    memcpy(pages + offset, bytes, size);
    return 0;
}

static int sync_pages(void *context)
{
    (void)context;
    return 0;
}

static const poet_storage storage = {0, read_pages, write_pages, sync_pages};
#endif

/* A loss in millionths, as not every board prints floats. */
static unsigned long millionths(float loss)
{
    const float size = loss < 0.0f ? -loss : loss;
    return size < 4000.0f ? (unsigned long)((double)size * 1e6 + 0.5) : 4000000000ul;
}

static void say_loss(void (*say)(const char *line), float loss, float expected)
{
    const unsigned long found = millionths(loss), wanted = millionths(expected);
    snprintf(line, sizeof line, "loss %s%lu.%06lu, PyTorch's %s%lu.%06lu", loss < 0.0f ? "-" : "", found / 1000000ul,
             found % 1000000ul, expected < 0.0f ? "-" : "", wanted / 1000000ul, wanted % 1000000ul);
    say(line);
}

int train_example(void (*say)(const char *line), void (*between)(void *context))
{
    int wrong = 0;
    snprintf(line, sizeof line, "RAM, bytes: arena %lu, beside it %lu, in place of flash %lu",
             (unsigned long)sizeof arena, (unsigned long)sizeof net, (unsigned long)POET_PAGE_BYTES);
    say(line);
    if (poet_init(&net, arena, 1u) != POET_OK || poet_set_between(&net, between, 0) != POET_OK) {
        return 1;
    }
#if POET_PAGE_BYTES > 0
    if (poet_set_storage(&net, &storage) != POET_OK) {
        return 1;
    }
#endif
    for (int32_t step = 0; step < POET_TEST_STEPS; ++step) {
        float loss = 0.0f;
        poet_test_fill(&net, step);
        if (poet_train_step(&net, &loss) != POET_OK) {
            say("the step failed");
            return 1;
        }
        const float expected = poet_test_losses[step];
        say_loss(say, loss, expected);
        wrong |= !((loss < expected ? expected - loss : loss - expected) <= poet_test_tolerances[step]);
    }
    snprintf(line, sizeof line, "state, its CRC 0x%08lx", (unsigned long)poet_state_crc(&net));
    say(line);
    say(wrong ? "FAILED" : "passed");
    return wrong;
}
