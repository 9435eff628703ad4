/* Logarithms element by element, and activations made of them. */

/*@ poet_softplus */
/* y = log(1 + exp(beta * x)) / beta, or x where beta * x is above the threshold */
void poet_softplus(float *y, const float *x, int32_t x_stride, float beta, float threshold, int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        const float value = x[i * x_stride], scaled = value * beta;
        y[i] = scaled > threshold ? value : poet_log_of_1_and(poet_exp(scaled)) / beta;
    }
}

/*@ poet_softplus_backward */
/* The way back through it */
void poet_softplus_backward(float *gx, const float *gy, int32_t gy_stride, const float *x, int32_t x_stride, float beta,
                            float threshold, int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        const float scaled = x[i * x_stride] * beta, gradient = gy[i * gy_stride];
        const float power = scaled > threshold ? 1.0f : poet_exp(scaled);
        gx[i] = scaled > threshold ? gradient : gradient * power / (power + 1.0f);
    }
}

/*@ poet_log_sigmoid */
/* y = log(1 / (1 + exp(-x))), and exp(-|x|), which the way back reads */
void poet_log_sigmoid(float *y, float *power, const float *x, int32_t x_stride, int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        const float value = x[i * x_stride];
        power[i] = poet_exp(value < 0.0f ? value : -value);
        y[i] = (value < 0.0f ? value : 0.0f) - poet_log_of_1_and(power[i]);
    }
}

/*@ poet_log_sigmoid_backward */
/* The way back through it */
void poet_log_sigmoid_backward(float *gx, const float *gy, int32_t gy_stride, const float *x, int32_t x_stride,
                               const float *power, int32_t power_stride, int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        const float saved = power[i * power_stride], share = saved / (1.0f + saved);
        gx[i] = (x[i * x_stride] < 0.0f ? 1.0f - share : share) * gy[i * gy_stride];
    }
}

/*@ poet_logarithm */
/* y = log(x); minus infinity at 0, and no number below */
void poet_logarithm(float *y, const float *x, int32_t x_stride, int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        const float value = x[i * x_stride];
        const uint32_t bits = value == 0.0f ? UINT32_C(0xff800000) : UINT32_C(0x7fc00000);
        memcpy(y + i, &bits, sizeof bits);
        if (value > 3.402823466e38f || value != value) {
            y[i] = value;
        } else if (value >= 1.17549435e-38f) {
            y[i] = poet_log(value);
        } else if (value > 0.0f) { /* not normal: times 2 to the power of 23 */
            y[i] = poet_log(value * 8388608.0f) - 15.9423851528787f;
        }
    }
}
