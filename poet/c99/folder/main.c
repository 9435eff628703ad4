/* Three steps from the plan's weights on the inputs of vectors.c; losses are held against PyTorch's. */
#include "poet_step.h"
#include "test/vectors.h"

#include <string.h>

#ifdef POET_BOARD
void board_text(const char *text);
void board_number(uint32_t number);
void board_end(int code);
uint32_t board_instructions(void);
uint32_t board_stack_bytes(void);
#else
#include <stdio.h>
#endif

static float arena[POET_ARENA_FLOATS];
static poet_net net;

#if POET_PAGE_BYTES > 0
#ifdef POET_BOARD
__attribute__((section(".pages"))) /* stands for flash: outside the RAM that the linker enforces */
#endif
static unsigned char pages[POET_PAGE_BYTES];

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

static void say(const char *what, uint32_t number)
{
#ifdef POET_BOARD
    board_text(what);
    board_number(number);
    board_text("\n");
#else
    printf("%s%08x\n", what, (unsigned)number);
#endif
}

static uint32_t bits_of(float number)
{
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    return bits;
}

static int run(void)
{
    int wrong = 0;
    if (poet_init(&net, arena, 1u) != POET_OK) {
        return 1;
    }
#if POET_PAGE_BYTES > 0
    if (poet_set_storage(&net, &storage) != POET_OK) {
        return 1;
    }
#endif
    for (int32_t step = 0; step < POET_TEST_STEPS; ++step) {
        poet_test_fill(&net, step);
        float loss = 0.0f;
#ifdef POET_BOARD
        const uint32_t before = board_instructions();
#endif
        if (poet_train_step(&net, &loss) != POET_OK) {
            return 2;
        }
#ifdef POET_BOARD
        const uint32_t count = board_instructions() - before;
        if (count) { /* some machines of QEMU have no counter */
            say("instructions 0x", count);
        }
#endif
        const float expected = poet_test_losses[step];
        const float distance = loss < expected ? expected - loss : loss - expected;
        say("loss, its bits 0x", bits_of(loss));
        if (!(distance <= poet_test_tolerances[step])) {
            say("differs from PyTorch's, whose bits are 0x", bits_of(expected));
            wrong = 3;
        }
    }
    say("state, its CRC 0x", poet_state_crc(&net));
#ifdef POET_BOARD
    say("stack, its bytes 0x", board_stack_bytes());
#endif
    return wrong;
}

#ifdef POET_BOARD
void board_main(void);
void board_main(void)
{
    board_end(run());
}
#else
int main(void)
{
    const int code = run();
    puts(code ? "FAILED" : "passed");
    return code;
}
#endif
