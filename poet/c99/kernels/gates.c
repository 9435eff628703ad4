/* Gates, bounds and roots element by element. */

/*@ poet_glu */
/* y = a / (1 + exp(-b)) */
void poet_glu(float *y, const float *a, int32_t a_stride, const float *b, int32_t b_stride, int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        y[i] = a[i * a_stride] / (1.0f + poet_exp(-b[i * b_stride]));
    }
}

/*@ poet_glu_backward */
/* The way back to both */
void poet_glu_backward(float *ga, float *gb, const float *gy, int32_t gy_stride, const float *a, int32_t a_stride,
                       const float *b, int32_t b_stride, int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        const float gate = 1.0f / (1.0f + poet_exp(-b[i * b_stride])), gradient = gy[i * gy_stride];
        ga[i] = gate * gradient;
        gb[i] = (1.0f - gate) * gate * gradient * a[i * a_stride];
    }
}

/*@ poet_threshold */
/* y = x where it is above the threshold, else a value */
void poet_threshold(float *y, const float *x, int32_t x_stride, float threshold, float value, int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        y[i] = x[i * x_stride] <= threshold ? value : x[i * x_stride];
    }
}

/*@ poet_hardshrink */
/* y = x, but 0 within `bound` of 0 */
void poet_hardshrink(float *y, const float *x, int32_t x_stride, float bound, int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        const float value = x[i * x_stride];
        y[i] = value >= -bound && value <= bound ? 0.0f : value;
    }
}

/*@ poet_softshrink */
/* y = x nearer to 0 by `bound`, and 0 within it; what is not a number stays so */
void poet_softshrink(float *y, const float *x, int32_t x_stride, float bound, int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        const float value = x[i * x_stride];
        y[i] = value > bound ? value - bound : value < -bound ? value + bound : value * 0.0f;
    }
}

/*@ poet_shrink_backward */
/* The way back through both: gx = gy, but 0 within `bound` of 0 */
void poet_shrink_backward(float *gx, const float *gy, int32_t gy_stride, const float *x, int32_t x_stride, float bound,
                          int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        const float value = x[i * x_stride];
        gx[i] = value >= -bound && value <= bound ? 0.0f : gy[i * gy_stride];
    }
}

/*@ poet_floor */
/* y = the largest whole number that is not above x */
void poet_floor(float *y, const float *x, int32_t x_stride, int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        const float value = x[i * x_stride];
        y[i] = value;
        if (value > -8388608.0f && value < 8388608.0f) { /* larger ones are whole */
            const float whole = (float)(int32_t)value;
            y[i] = whole > value ? whole - 1.0f : whole;
        }
    }
}

/*@ poet_power_of_quarters */
/* y = x to the power of whole + quarters / 4, or one over that */
void poet_power_of_quarters(float *y, const float *x, int32_t x_stride, int32_t whole, int32_t quarters, int is_inverse,
                            int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        const float value = x[i * x_stride], root = poet_sqrt(value);
        float result = quarters & 2 ? root : 1.0f;
        if (quarters & 1) {
            result *= poet_sqrt(root);
        }
        for (int32_t k = 0; k < whole; ++k) {
            result *= value;
        }
        y[i] = is_inverse ? 1.0f / result : result;
    }
}

/*@ poet_powers_of_number */
/* y = 2 to the power of x * (octaves + rest), of which `octaves` has 12 bits: what is whole is taken off exactly */
void poet_powers_of_number(float *y, const float *x, int32_t x_stride, float octaves, float rest, int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        const float value = x[i * x_stride], about = value * octaves;
        const float bounded = about > 200.0f ? 200.0f : about < -200.0f ? -200.0f : about == about ? about : 0.0f;
        const int32_t whole = (int32_t)(bounded + (bounded < 0.0f ? -0.5f : 0.5f)), half = whole / 2;
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        bits &= UINT32_C(0xfffff000);
        float upper, scale;
        memcpy(&upper, &bits, sizeof upper);
        const float left = ((upper * octaves - (float)whole) + (value - upper) * octaves) + value * rest;
        float result = bounded == about ? poet_exp(left * 0.693147180559945309f) : about == about ? 1.0f : about;
        /* times 2 to the power of `whole`, in two steps: the first may not reach infinity or zero */
        bits = (uint32_t)(half + 127) << 23;
        memcpy(&scale, &bits, sizeof scale);
        result *= scale;
        bits = (uint32_t)(whole - half + 127) << 23;
        memcpy(&scale, &bits, sizeof scale);
        y[i] = result * scale;
    }
}

/*@ poet_log_sum_exp */
/* y = the logarithm of the sum of exponentials over n, of outer x n x inner; what is largest is taken off first */
void poet_log_sum_exp(float *y, const float *x, int32_t outer, int32_t n, int32_t inner)
{
    for (int32_t i = 0; i < outer * inner; ++i) {
        const float *const from = x + i / inner * n * inner + i % inner;
        const float found = from[poet_extreme_of(from, 1.0f, n, inner) * inner];
        const float largest = found - found == 0.0f ? found : 0.0f;
        float total = 0.0f;
        for (int32_t first = 0; first < n; first += 32) {
            const int32_t end = n - first < 32 ? n : first + 32;
            float run = 0.0f;
            for (int32_t k = first; k < end; ++k) {
                run += poet_exp(from[k * inner] - largest);
            }
            total += run;
        }
        poet_logarithm(&total, &total, 1, 1);
        y[i] = total + largest;
    }
}

/*@ poet_bce_with_logits */
/* The sum of max(x, 0) - x * target + log(1 + exp(-|x|)), divided by `divisor`; in runs of 32 */
void poet_bce_with_logits(float *loss, const float *x, const float *target, int32_t n, float divisor)
{
    float total = 0.0f;
    for (int32_t from = 0; from < n; from += 32) {
        const int32_t to = n - from < 32 ? n : from + 32;
        float run = 0.0f;
        for (int32_t i = from; i < to; ++i) {
            const float size = x[i] < 0.0f ? -x[i] : x[i];
            run += (x[i] > 0.0f ? x[i] * (1.0f - target[i]) : -x[i] * target[i]) + poet_log_of_1_and(poet_exp(-size));
        }
        total += run;
    }
    *loss = total / divisor;
}

/*@ poet_log_of_share */
/* The logarithm of p from 0 to 1, at least -100 */
static float poet_log_of_share(float p)
{
    const float found = p >= 1.17549435e-38f ? poet_log(p) : -100.0f;
    return p != p ? p : found < -100.0f ? -100.0f : found;
}

/*@ poet_bce */
/* Likewise of probabilities: -target * log(x) - (1 - target) * log(1 - x), logarithms at least -100 */
void poet_bce(float *loss, const float *x, const float *target, int32_t n, float divisor)
{
    float total = 0.0f;
    for (int32_t from = 0; from < n; from += 32) {
        const int32_t to = n - from < 32 ? n : from + 32;
        float run = 0.0f;
        for (int32_t i = from; i < to; ++i) {
            const float rest = 1.0f - x[i];
            /* log(1 - x), also where 1 - x is rounded (W. Kahan) */
            const float other = rest == 1.0f ? -x[i] : rest > 0.5f ? poet_log(rest) * (x[i] / (1.0f - rest))
                                                                    : poet_log_of_share(rest);
            run += (target[i] - 1.0f) * other - target[i] * poet_log_of_share(x[i]);
        }
        total += run;
    }
    *loss = total / divisor;
}

/*@ poet_bce_backward */
/* The way back: gx = factor * gradient * (x - target) / (x * (1 - x)) */
void poet_bce_backward(float *gx, const float *gradient, const float *x, const float *target, int32_t n, float factor)
{
    for (int32_t i = 0; i < n; ++i) {
        const float spread = (1.0f - x[i]) * x[i];
        gx[i] = factor * *gradient * (x[i] - target[i]) / (spread < 1e-12f ? 1e-12f : spread);
    }
}
