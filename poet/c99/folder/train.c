/* Steps on the inputs of vectors.c: says loss, RAM and the CRC of the state, the same on every machine. */
#include "train.h"
#include "vectors.h"

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

static void add(const char *text)
{
    strncat(line, text, sizeof line - strlen(line) - 1u);
}

static void add_number(uint32_t number, uint32_t base, int32_t digits)
{
    char text[12];
    int32_t at = 11;
    text[at] = '\0';
    do {
        text[--at] = "0123456789abcdef"[number % base];
        number /= base;
        --digits;
    } while (number || digits > 0);
    add(text + at);
}

static void add_loss(float loss)
{
    const float size = loss < 0.0f ? -loss : loss;
    if (!(size < 4000.0f)) {
        add("not below 4,000");
        return;
    }
    const uint32_t millionths = (uint32_t)((double)size * 1e6 + 0.5);
    add(loss < 0.0f ? "-" : "");
    add_number(millionths / 1000000u, 10u, 1);
    add(".");
    add_number(millionths % 1000000u, 10u, 6);
}

static void say_number(void (*say)(const char *line), const char *what, uint32_t number, uint32_t base, int32_t digits)
{
    line[0] = '\0';
    add(what);
    add_number(number, base, digits);
    say(line);
}

int train_example(void (*say)(const char *line), void (*between)(void *context))
{
    int wrong = 0;
    say_number(say, "RAM, bytes of the arena: ", sizeof arena, 10u, 1);
    say_number(say, "RAM, bytes beside it and the stack: ", sizeof net, 10u, 1);
    if (poet_init(&net, arena, 1u) != POET_OK || poet_set_between(&net, between, 0) != POET_OK) {
        return 1;
    }
#if POET_PAGE_BYTES > 0
    say_number(say, "RAM, bytes in place of flash: ", sizeof pages, 10u, 1);
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
        line[0] = '\0';
        add("loss ");
        add_loss(loss);
        add(", PyTorch's ");
        add_loss(expected);
        say(line);
        wrong |= !((loss < expected ? expected - loss : loss - expected) <= poet_test_tolerances[step]);
    }
    say_number(say, "state, its CRC 0x", poet_state_crc(&net), 16u, 8);
    say(wrong ? "FAILED" : "passed");
    return wrong;
}
