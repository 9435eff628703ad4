/* Elements by the numbers of their places, which are whole numbers of 8 bytes; tensors lie as outer x n x inner. */

/*@ poet_place */
/* Number `at` of a list, counted from the end where it is below 0; -1 where none of n places is meant */
static int32_t poet_place(const void *places, int32_t at, int32_t n)
{
    int64_t place;
    memcpy(&place, (const unsigned char *)places + (size_t)at * sizeof place, sizeof place);
    if (place < 0) {
        place += n;
    }
    return place < 0 || place >= n ? -1 : (int32_t)place;
}

/*@ poet_gather */
/*
 * y, outer x count x inner, = the element of x at the place of its number, 0 where that is none; a number holds
 * for `each` neighbours, and `period` numbers repeat
 */
void poet_gather(float *y, const void *places, int32_t each, int32_t period, const float *x, int32_t outer,
                 int32_t count, int32_t inner, int32_t n)
{
    for (int32_t i = 0; i < outer * count * inner; ++i) {
        const int32_t place = poet_place(places, i / each % period, n);
        y[i] = place < 0 ? 0.0f : x[(i / (count * inner) * n + place) * inner + i % inner];
    }
}

/*@ poet_scatter_add */
/* The way back: each x is added to y at the place of its number, in order */
void poet_scatter_add(float *y, const void *places, int32_t each, int32_t period, const float *x, int32_t outer,
                      int32_t count, int32_t inner, int32_t n)
{
    for (int32_t i = 0; i < outer * count * inner; ++i) {
        const int32_t place = poet_place(places, i / each % period, n);
        if (place >= 0) {
            y[(i / (count * inner) * n + place) * inner + i % inner] += x[i];
        }
    }
}

/*@ poet_is_before */
/* Whether a comes before b where the largest (smallest where sign is -1) is first; what is no number is largest */
static int poet_is_before(float a, float b, float sign)
{
    if (a != a || b != b) {
        return sign > 0.0f ? a != a && b == b : a == a && b != b;
    }
    return sign * a > sign * b;
}

/*@ poet_first_of */
/* y = the k largest (smallest) over n in order, the first of equals first, and their places */
void poet_first_of(float *y, void *places, const float *x, float sign, int32_t k, int32_t outer, int32_t n,
                   int32_t inner)
{
    const size_t size = sizeof(int64_t);
    for (int32_t i = 0; i < outer * inner; ++i) {
        const float *const from = x + i / inner * n * inner + i % inner;
        float *const to = y + i / inner * k * inner + i % inner;
        unsigned char *const numbers = (unsigned char *)places + (size_t)(to - y) * size;
        for (int64_t j = 0; j < n; ++j) {
            const float value = from[(int32_t)j * inner];
            int32_t at = j < k ? (int32_t)j : k;
            while (at > 0 && poet_is_before(value, to[(at - 1) * inner], sign)) {
                --at;
                if (at + 1 < k) {
                    to[(at + 1) * inner] = to[at * inner];
                    memcpy(numbers + (size_t)((at + 1) * inner) * size, numbers + (size_t)(at * inner) * size, size);
                }
            }
            if (at < k) {
                to[at * inner] = value;
                memcpy(numbers + (size_t)(at * inner) * size, &j, size);
            }
        }
    }
}

/*@ poet_sum_up */
/* y = the sums of the first, the first two ... of n; what a sum loses goes into the next (Kahan 1965) */
void poet_sum_up(float *y, const float *x, int32_t outer, int32_t n, int32_t inner)
{
    for (int32_t i = 0; i < outer * inner; ++i) {
        const int32_t begin = i / inner * n * inner + i % inner;
        float total = 0.0f, lost = 0.0f;
        for (int32_t k = begin; k < begin + n * inner; k += inner) {
            const float term = x[k] - lost;
            const float next = total + term;
            lost = (next - total) - term;
            total = next;
            y[k] = total;
        }
    }
}

/*@ poet_flip */
/* y = x from the last of n to the first */
void poet_flip(float *y, const float *x, int32_t outer, int32_t n, int32_t inner)
{
    for (int32_t i = 0; i < outer * n; ++i) {
        const float *const from = x + (i / n * n + n - 1 - i % n) * inner;
        for (int32_t k = 0; k < inner; ++k) {
            *y++ = from[k];
        }
    }
}

/*@ poet_floats_of_numbers */
/* y = whole numbers */
void poet_floats_of_numbers(float *y, const void *numbers, int32_t n)
{
    const unsigned char *from = numbers;
    for (int32_t i = 0; i < n; ++i, from += sizeof(int64_t)) {
        int64_t number;
        memcpy(&number, from, sizeof number);
        y[i] = (float)number;
    }
}

/*@ poet_floats_of_mask */
/* y = 1 where a mask is not 0, else 0 */
void poet_floats_of_mask(float *y, const void *mask, int32_t n)
{
    const unsigned char *from = mask;
    for (int32_t i = 0; i < n; ++i) {
        y[i] = from[i] ? 1.0f : 0.0f;
    }
}

/*@ poet_numbers_compared_to */
/* mask = whether each whole number is less than (1), equal to (2) or more than (4) one, as `wanted` sums */
void poet_numbers_compared_to(void *mask, int wanted, const void *numbers, int32_t number, int32_t n)
{
    unsigned char *to = mask;
    const unsigned char *from = numbers;
    for (int32_t i = 0; i < n; ++i, from += sizeof(int64_t)) {
        int64_t found;
        memcpy(&found, from, sizeof found);
        to[i] = ((found < number ? 1 : found == number ? 2 : 4) & wanted) != 0;
    }
}
