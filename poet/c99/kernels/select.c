/* Choices element by element, by masks: bytes that are 0 or 1, which lie anywhere. */

/*@ poet_fill_mask */
/* mask = value */
void poet_fill_mask(void *mask, int value, int32_t n)
{
    memset(mask, value, (size_t)n);
}

/*@ poet_triangle */
/* y = x at and below (is_lower) or at and above a diagonal of planes of height x width, else 0 */
void poet_triangle(void *y, const void *x, int is_lower, int32_t diagonal, int32_t planes, int32_t height, int32_t width)
{
    unsigned char *to = y;
    const unsigned char *from = x;
    for (int32_t i = 0; i < planes * height; ++i) {
        for (int32_t column = 0; column < width; ++column, ++to, ++from) {
            const int32_t past = column - i % height - diagonal;
            *to = (unsigned char)((is_lower ? past <= 0 : past >= 0) ? *from : 0);
        }
    }
}

/*@ poet_repeated */
/* Which element of a tensor stands at place i, where each run of `inner` of its elements is repeated n times */
static int32_t poet_repeated(int32_t i, int32_t n, int32_t inner)
{
    return i / (n * inner) * inner + i % inner;
}

/*@ poet_relation */
/* 1 where a is less than b, 2 where they are equal, 4 where it is more, 8 where one is not a number */
static int poet_relation(float a, float b)
{
    return a < b ? 1 : a == b ? 2 : a > b ? 4 : 8;
}

/*@ poet_compared */
/* mask = whether a stands to b in one of the `wanted` relations, which are summed; elements repeat as above */
void poet_compared(void *mask, int wanted, const float *a, int32_t a_n, int32_t a_inner, const float *b, int32_t b_n,
                   int32_t b_inner, int32_t n)
{
    unsigned char *to = mask;
    for (int32_t i = 0; i < n; ++i) {
        const float one = a[poet_repeated(i, a_n, a_inner)], other = b[poet_repeated(i, b_n, b_inner)];
        to[i] = (poet_relation(one, other) & wanted) != 0;
    }
}

/*@ poet_compared_to */
/* Likewise, to one number */
void poet_compared_to(void *mask, int wanted, const float *x, float number, int32_t n)
{
    unsigned char *to = mask;
    for (int32_t i = 0; i < n; ++i) {
        to[i] = (poet_relation(x[i], number) & wanted) != 0;
    }
}

/*@ poet_both_masks */
/* y = whether both, or either, of two masks are not 0; elements repeat as above */
void poet_both_masks(void *y, int is_either, const void *a, int32_t a_n, int32_t a_inner, const void *b, int32_t b_n,
                     int32_t b_inner, int32_t n)
{
    unsigned char *to = y;
    const unsigned char *one = a, *other = b;
    for (int32_t i = 0; i < n; ++i) {
        const int left = one[poet_repeated(i, a_n, a_inner)] != 0, right = other[poet_repeated(i, b_n, b_inner)] != 0;
        to[i] = (unsigned char)(is_either ? left | right : left & right);
    }
}

/*@ poet_count_set */
/* For each of outer x inner how many of n bytes of a mask are not 0, as a number of 64 bits */
void poet_count_set(void *counts, const void *mask, int32_t outer, int32_t n, int32_t inner)
{
    unsigned char *to = counts;
    for (int32_t i = 0; i < outer * inner; ++i, to += sizeof(int64_t)) {
        const unsigned char *const from = (const unsigned char *)mask + i / inner * n * inner + i % inner;
        int64_t count = 0;
        for (int32_t k = 0; k < n; ++k) {
            count += from[k * inner] != 0;
        }
        memcpy(to, &count, sizeof count);
    }
}

/*@ poet_div_count */
/* y = x / count, a number of 64 bits */
void poet_div_count(float *y, const float *x, const void *counts, int32_t n)
{
    const unsigned char *from = counts;
    for (int32_t i = 0; i < n; ++i, from += sizeof(int64_t)) {
        int64_t count;
        memcpy(&count, from, sizeof count);
        y[i] = x[i] / (float)count;
    }
}

/*@ poet_mul_mask */
/* y = x * mask, which is 0 or 1; elements of x repeat as above */
void poet_mul_mask(float *y, const float *x, int32_t x_n, int32_t x_inner, const void *mask, int32_t n)
{
    const unsigned char *from = mask;
    for (int32_t i = 0; i < n; ++i) {
        y[i] = x[poet_repeated(i, x_n, x_inner)] * (from[i] ? 1.0f : 0.0f);
    }
}

/*@ poet_not */
/* y = whether x is 0 */
void poet_not(void *y, const void *x, int32_t n)
{
    unsigned char *to = y;
    const unsigned char *from = x;
    for (int32_t i = 0; i < n; ++i) {
        to[i] = !from[i];
    }
}

/*@ poet_where */
/* y = a where the mask is not 0, else b; each byte counts `each` times, its `size` bytes repeat; a stride of 0 repeats */
void poet_where(float *y, const void *mask, int32_t each, int32_t size, const float *a, int32_t a_stride, const float *b,
                int32_t b_stride, int32_t n)
{
    const unsigned char *from = mask;
    for (int32_t i = 0; i < n; ++i) {
        y[i] = from[i / each % size] ? a[i * a_stride] : b[i * b_stride];
    }
}

/*@ poet_masked_fill */
/* y = the number of these bits where the mask, as above, is not 0, else x */
void poet_masked_fill(float *y, const float *x, const void *mask, int32_t each, int32_t size, uint32_t bits, int32_t n)
{
    const unsigned char *from = mask;
    float value;
    memcpy(&value, &bits, sizeof value);
    for (int32_t i = 0; i < n; ++i) {
        y[i] = from[i / each % size] ? value : x[i];
    }
}

/*@ poet_fill_bits */
/* y = the number of these bits, which may be infinite */
void poet_fill_bits(float *y, uint32_t bits, int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        memcpy(y + i, &bits, sizeof bits);
    }
}
