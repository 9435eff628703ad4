/* Start-up of a Cortex-M or of a RISC-V in QEMU: vectors, memory, text and exit by semihosting, counters. */
#include <stddef.h>
#include <stdint.h>

#define PAINT UINT32_C(0xa5a5a5a5)
#define COPROCESSORS (*(volatile uint32_t *)UINT32_C(0xe000ed88))

typedef uint32_t __attribute__((may_alias)) word;

extern uint32_t data_from[], data_start[], data_end[], bss_start[], bss_end[], stack_start[], stack_end[];

void board_main(void);
void board_reset(void);
void board_text(const char *text);
void board_number(uint32_t number);
void board_end(int code);
uint32_t board_instructions(void);
uint32_t board_stack_bytes(void);
void *memcpy(void *to, const void *from, size_t n);
void *memset(void *to, int value, size_t n);

#ifdef __riscv
void call_host(uint32_t operation, const void *block);
/* Where the machine begins, and a call of its host: three instructions of full length in one page of memory. */
__asm__(".section .vectors, \"ax\"\n\t.option push\n\t.option norvc\n\t.option norelax\n"
        "\tla sp, stack_end\n\ttail board_reset\n\t.globl call_host\ncall_host:\n"
        "\tslli x0, x0, 0x1f\n\tebreak\n\tsrai x0, x0, 7\n\tret\n\t.option pop\n\t.text");
#else
__attribute__((section(".vectors"), used)) static const void *const vectors[] = {stack_end, (const void *)(uintptr_t)board_reset};

static void call_host(uint32_t operation, const void *block)
{
    register uint32_t r0 __asm__("r0") = operation;
    register const void *r1 __asm__("r1") = block;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
}
#endif

void board_text(const char *text)
{
    call_host(0x04u, text);
}

void board_number(uint32_t number)
{
    char text[9];
    for (int i = 0; i < 8; ++i) {
        text[i] = "0123456789abcdef"[(number >> (28 - 4 * i)) & 15u];
    }
    text[8] = '\0';
    board_text(text);
}

void board_end(int code)
{
    const uint32_t block[2] = {UINT32_C(0x20026), (uint32_t)code};
    board_text(code ? "FAILED\n" : "passed\n");
    call_host(0x20u, block);
    for (;;) {
    }
}

uint32_t board_instructions(void)
{
#if defined(POET_COUNTER)
    return 40u * *(volatile uint32_t *)UINT32_C(POET_COUNTER); /* 25 MHz: 40 instructions with -icount shift=0 */
#elif defined(__riscv)
    uint32_t count;
    __asm__ volatile(".option arch, +zicsr\n\tcsrr %0, minstret" : "=r"(count));
    return count;
#else
    return 0u; /* none there */
#endif
}

uint32_t board_stack_bytes(void)
{
    const uint32_t *lowest = stack_start;
    while (lowest < stack_end && *lowest == PAINT) {
        ++lowest;
    }
    return (uint32_t)(4 * (stack_end - lowest));
}

void *memcpy(void *to, const void *from, size_t n)
{
    unsigned char *t = to;
    const unsigned char *f = from;
    if (!(((uintptr_t)to | (uintptr_t)from) & 3u)) { /* by words, as libraries do it */
        for (; n >= 16u; n -= 16u, t += 16, f += 16) {
            word *const put = (word *)(void *)t;
            const word *const got = (const word *)(const void *)f;
            const word first = got[0], second = got[1], third = got[2], fourth = got[3];
            put[0] = first, put[1] = second, put[2] = third, put[3] = fourth;
        }
        for (; n >= 4u; n -= 4u, t += 4, f += 4) {
            *(word *)(void *)t = *(const word *)(const void *)f;
        }
    }
    while (n--) {
        *t++ = *f++;
    }
    return to;
}

void *memset(void *to, int value, size_t n)
{
    unsigned char *t = to;
    const word all = UINT32_C(0x01010101) * (unsigned char)value;
    if (!((uintptr_t)to & 3u)) {
        for (; n >= 4u; n -= 4u, t += 4) {
            *(word *)(void *)t = all;
        }
    }
    while (n--) {
        *t++ = (unsigned char)value;
    }
    return to;
}

void board_reset(void)
{
#ifdef __riscv_flen
    __asm__ volatile(".option arch, +zicsr\n\tcsrs mstatus, %0" ::"r"(0x2000)); /* the floating-point unit */
#elif defined(__ARM_FP)
    COPROCESSORS |= UINT32_C(0xf) << 20;
    __asm__ volatile("dsb\n\tisb" ::: "memory");
#endif
    for (uint32_t *from = data_from, *to = data_start; to < data_end;) {
        *to++ = *from++;
    }
    for (uint32_t *to = bss_start; to < bss_end;) {
        *to++ = 0u;
    }
    uint32_t here;
    for (volatile uint32_t *to = stack_start; (uintptr_t)to + 64u < (uintptr_t)&here; ++to) {
        *to = PAINT;
    }
    board_main();
    board_end(99);
}
