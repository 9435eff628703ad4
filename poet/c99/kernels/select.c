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

/*@ poet_equal */
/* mask = whether x is `value` */
void poet_equal(void *mask, const float *x, float value, int32_t n)
{
    unsigned char *to = mask;
    for (int32_t i = 0; i < n; ++i) {
        to[i] = x[i] == value;
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
