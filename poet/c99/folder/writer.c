/*
 * The checksum of what is written to storage. Each word's step is one to one, in the word and in the sum before it: a
 * change within one word is always seen, and any other but for one in 2^32.
 */
#if defined(__GNUC__) /* in line also where there is no library */
#define POET_LOAD(word, from) __builtin_memcpy(&(word), from, 4u)
#else
#define POET_LOAD(word, from) memcpy(&(word), from, 4u)
#endif
#define POET_MIXED(sum, word) ((((sum) << 13 | (sum) >> 19) ^ (word)) * UINT32_C(0x9e3779b1))

uint32_t poet_checksum(uint32_t sum, const void *bytes, size_t count)
{
    const unsigned char *next = bytes;
    uint32_t word;
    for (; count >= 16u; count -= 16u, next += 16) {
        POET_LOAD(word, next);
        sum = POET_MIXED(sum, word);
        POET_LOAD(word, next + 4);
        sum = POET_MIXED(sum, word);
        POET_LOAD(word, next + 8);
        sum = POET_MIXED(sum, word);
        POET_LOAD(word, next + 12);
        sum = POET_MIXED(sum, word);
    }
    for (; count >= 4u; count -= 4u, next += 4) {
        POET_LOAD(word, next);
        sum = POET_MIXED(sum, word);
    }
    if (count > 0u) {
        word = 0u;
        memcpy(&word, next, count);
        sum = POET_MIXED(sum, word);
    }
    return sum;
}

void poet_begin(poet_writer *to, const poet_storage *storage, uint32_t at)
{
    to->storage = storage;
    to->at = at;
    to->held = to->sum = 0u;
}

int poet_put(poet_writer *to, const void *bytes, uint32_t size)
{
    const uint32_t piece = POET_WRITE_BYTES;
    const unsigned char *from = bytes;
    to->sum = poet_checksum(to->sum, bytes, size);
    while (size > 0u) {
        const int is_whole = to->held == 0u && size >= piece;
        const uint32_t room = piece - to->held;
        const uint32_t count = is_whole ? size - size % piece : size < room ? size : room;
        if (!is_whole) {
            memcpy((unsigned char *)to->piece + to->held, from, count);
            to->held += count;
        }
        if (is_whole || to->held == piece) {
            const uint32_t written = is_whole ? count : piece;
            const void *const whole = is_whole ? (const void *)from : to->piece;
            if (to->storage->write(to->storage->context, to->at, whole, written)) {
                return 1;
            }
            to->at += written;
            to->held = 0u;
        }
        from += count;
        size -= count;
    }
    return 0;
}

int poet_put_rest(poet_writer *to)
{
    if (to->held == 0u) {
        return 0;
    }
    memset((unsigned char *)to->piece + to->held, 255, POET_WRITE_BYTES - to->held); /* as erased */
    to->held = 0u;
    return to->storage->write(to->storage->context, to->at, to->piece, POET_WRITE_BYTES);
}
