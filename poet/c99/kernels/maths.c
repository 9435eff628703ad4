/* Exponential and logarithm of + - * and whole numbers alone: the same bits on every machine. */

/*@ poet_exp */
/* e to the power of x, within 1 unit in the last place; by the polynomial of Cephes' expf (S. Moshier) */
float poet_exp(float x)
{
    if (x != x) {
        return x;
    }
    if (x > 88.72283f) {
        const uint32_t infinite = UINT32_C(0x7f800000);
        float result;
        memcpy(&result, &infinite, sizeof result);
        return result;
    }
    if (x < -103.97f) {
        return 0.0f;
    }
    const int32_t halves = (int32_t)(x * 1.44269504088896341f + (x < 0.0f ? -0.5f : 0.5f));
    const float power = (float)halves;
    const float r = (x - power * 0.693359375f) - power * -2.12194440e-4f;
    float sum = 1.9875691500e-4f;
    sum = sum * r + 1.3981999507e-3f;
    sum = sum * r + 8.3334519073e-3f;
    sum = sum * r + 4.1665795894e-2f;
    sum = sum * r + 1.6666665459e-1f;
    sum = sum * r + 5.0000001201e-1f;
    sum = sum * r * r + r + 1.0f;
    /* times 2 to the power of `halves`, in two steps: the first may not reach infinity or zero */
    const int32_t half = halves / 2;
    const uint32_t first = (uint32_t)(half + 127) << 23;
    const uint32_t second = (uint32_t)(halves - half + 127) << 23;
    float scale;
    memcpy(&scale, &first, sizeof scale);
    sum *= scale;
    memcpy(&scale, &second, sizeof scale);
    return sum * scale;
}

/*@ poet_log */
/* The natural logarithm of a positive normal number, by the polynomial of Cephes' logf (S. Moshier) */
float poet_log(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    int32_t power = (int32_t)(bits >> 23) - 126;
    bits = (bits & UINT32_C(0x007fffff)) | UINT32_C(0x3f000000);
    float m;
    memcpy(&m, &bits, sizeof m);
    if (m < 0.707106781186547524f) {
        power -= 1;
        m = m + m - 1.0f;
    } else {
        m = m - 1.0f;
    }
    const float z = m * m;
    float sum = 7.0376836292e-2f;
    sum = sum * m - 1.1514610310e-1f;
    sum = sum * m + 1.1676998740e-1f;
    sum = sum * m - 1.2420140846e-1f;
    sum = sum * m + 1.4249322787e-1f;
    sum = sum * m - 1.6668057665e-1f;
    sum = sum * m + 2.0000714765e-1f;
    sum = sum * m - 2.4999993993e-1f;
    sum = sum * m + 3.3333331174e-1f;
    sum = sum * m * z;
    const float e = (float)power;
    sum = sum + e * -2.12194440e-4f;
    sum = sum - 0.5f * z;
    return m + sum + e * 0.693359375f;
}

/*@ poet_log_of_1_and */
/* log(1 + e) of e from 0 on, also where 1 + e is rounded (W. Kahan) */
float poet_log_of_1_and(float e)
{
    const float sum = 1.0f + e;
    if (sum == 1.0f || sum > 3.402823466e38f) {
        return e;
    }
    return sum == e ? poet_log(e) : poet_log(sum) * (e / (sum - 1.0f));
}

/*@ poet_sqrt */
/* The square root, correctly rounded: one instruction where the processor has it */
float poet_sqrt(float x)
{
#if defined(__GNUC__)
    return __builtin_sqrtf(x);
#else
    return sqrtf(x);
#endif
}

/*@ poet_sum */
/* The sum of n numbers, in runs of 32: the error grows with n / 32 */
float poet_sum(const float *x, int32_t stride, int32_t n)
{
    float total = 0.0f;
    for (int32_t from = 0; from < n; from += 32) {
        const int32_t to = n - from < 32 ? n : from + 32;
        float run = 0.0f;
        for (int32_t i = from; i < to; ++i) {
            run += x[i * stride];
        }
        total += run;
    }
    return total;
}

/*@ poet_squares */
/* The sum of the squares of n numbers less their mean, in runs of 32 */
float poet_squares(const float *x, int32_t stride, int32_t n, float mean)
{
    float total = 0.0f;
    for (int32_t from = 0; from < n; from += 32) {
        const int32_t to = n - from < 32 ? n : from + 32;
        float run = 0.0f;
        for (int32_t i = from; i < to; ++i) {
            const float distance = x[i * stride] - mean;
            run += distance * distance;
        }
        total += run;
    }
    return total;
}
