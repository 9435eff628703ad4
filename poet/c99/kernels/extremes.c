/* The largest and the smallest of rows, where they are, and what spreads rows. Rows lie as outer x n x inner. */

/*@ poet_extreme_of */
/* Which of n numbers is the largest (smallest where sign is -1), or the first that is not a number */
static int32_t poet_extreme_of(const float *x, float sign, int32_t n, int32_t stride)
{
    int32_t found = 0;
    float best = x[0];
    for (int32_t k = 1; k < n && best == best; ++k) {
        const float value = x[k * stride];
        if (!(sign * value <= sign * best)) {
            best = value;
            found = k;
        }
    }
    return found;
}

/*@ poet_extreme */
/* y = the largest (smallest where sign is -1) over n */
void poet_extreme(float *y, const float *x, float sign, int32_t outer, int32_t n, int32_t inner)
{
    for (int32_t i = 0; i < outer * inner; ++i) {
        const float *const from = x + i / inner * n * inner + i % inner;
        y[i] = from[poet_extreme_of(from, sign, n, inner) * inner];
    }
}

/*@ poet_extreme_at */
/* Likewise, and which of n it is, the first of equals, as a number of 64 bits */
void poet_extreme_at(float *y, void *places, const float *x, float sign, int32_t outer, int32_t n, int32_t inner)
{
    unsigned char *to = places;
    for (int32_t i = 0; i < outer * inner; ++i, to += sizeof(int64_t)) {
        const float *const from = x + i / inner * n * inner + i % inner;
        const int64_t found = poet_extreme_of(from, sign, n, inner);
        y[i] = from[found * inner];
        memcpy(to, &found, sizeof found);
    }
}

/*@ poet_scatter_at */
/* y[place of it] = x, for each x of outer x count x inner; places are numbers of 64 bits below n, others have none */
void poet_scatter_at(float *y, const void *places, const float *x, int32_t outer, int32_t count, int32_t inner,
                     int32_t n)
{
    const unsigned char *from = places;
    for (int32_t i = 0; i < outer * count * inner; ++i, from += sizeof(int64_t)) {
        int64_t place;
        memcpy(&place, from, sizeof place);
        if (place >= 0 && place < n) {
            y[(i / (count * inner) * n + (int32_t)place) * inner + i % inner] = x[i];
        }
    }
}

/*@ poet_variance */
/*
 * y = the sum of squares over n less their mean, divided by `divisor`, or the root of that; what each sum of
 * squares loses by rounding goes into the next (Kahan 1965), as PyTorch adds them in more digits
 */
void poet_variance(float *y, const float *x, float divisor, int is_root, int32_t outer, int32_t n, int32_t inner)
{
    for (int32_t i = 0; i < outer * inner; ++i) {
        const float *const from = x + i / inner * n * inner + i % inner;
        const float mean = poet_sum(from, inner, n) / (float)n;
        float total = 0.0f, lost = 0.0f;
        for (int32_t k = 0; k < n; ++k) {
            const float apart = from[k * inner] - mean;
            const float term = apart * apart - lost;
            const float next = total + term;
            lost = (next - total) - term;
            total = next;
        }
        y[i] = is_root ? poet_sqrt(total / divisor) : total / divisor;
    }
}
