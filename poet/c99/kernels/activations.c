/* Activations of transformers and of mobile nets, and softmax. */

/*@ poet_erf */
/* The error function, within a few units in the last place; polynomials as by N. Juffa */
float poet_erf(float x)
{
    const float size = x < 0.0f ? -x : x;
    const float z = x * x;
    if (size > 0.927734375f) {
        const float t = size < 9.0f ? size : 9.0f; /* 1 from here on */
        const float low = -1.72853470e-5f * t + 3.83197126e-4f;
        const float high = -3.88396438e-3f * t + 2.42546219e-2f;
        float sum = low * (t * t) + high;
        sum = sum * t - 1.06777877e-1f;
        sum = sum * t - 6.34846687e-1f;
        sum = sum * t - 1.28717512e-1f;
        const float rest = 1.0f - poet_exp(sum * t - t);
        return x < 0.0f ? -rest : rest;
    }
    float sum = -5.96761703e-4f;
    sum = sum * z + 4.99119423e-3f;
    sum = sum * z - 2.67681349e-2f;
    sum = sum * z + 1.12819925e-1f;
    sum = sum * z - 3.76125336e-1f;
    sum = sum * z + 1.28379166e-1f;
    return sum * x + x;
}

/*@ poet_tanh_of */
/* The hyperbolic tangent */
float poet_tanh_of(float x)
{
    float y;
    poet_tanh(&y, &x, 1, 1);
    return y;
}

/*@ poet_gelu */
/* y = x / 2 * (1 + erf(x / sqrt(2))) */
void poet_gelu(float *y, const float *x, int32_t x_stride, int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        const float value = x[i * x_stride];
        y[i] = value * 0.5f * (1.0f + poet_erf(value * 0.70710678118654752f));
    }
}

/*@ poet_gelu_backward */
/* gx = gy * (the normal distribution up to x + x * its density) */
void poet_gelu_backward(float *gx, const float *gy, int32_t gy_stride, const float *x, int32_t x_stride, int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        const float value = x[i * x_stride];
        const float share = 0.5f * (1.0f + poet_erf(value * 0.70710678118654752f));
        const float density = 0.39894228040143268f * poet_exp(-0.5f * value * value);
        gx[i] = gy[i * gy_stride] * (share + value * density);
    }
}

/*@ poet_gelu_tanh */
/* y = x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) */
void poet_gelu_tanh(float *y, const float *x, int32_t x_stride, int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        const float value = x[i * x_stride];
        const float inner = 0.79788456080286536f * (value + 0.044715f * (value * value * value));
        y[i] = 0.5f * value * (1.0f + poet_tanh_of(inner));
    }
}

/*@ poet_gelu_tanh_backward */
/* The way back through it */
void poet_gelu_tanh_backward(float *gx, const float *gy, int32_t gy_stride, const float *x, int32_t x_stride,
                             int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        const float value = x[i * x_stride];
        const float square = value * value;
        const float inner = poet_tanh_of(0.79788456080286536f * (value + 0.044715f * (square * value)));
        const float slope = 0.79788456080286536f * (1.0f + 3.0f * 0.044715f * square);
        const float right = 0.5f * value * (1.0f - inner * inner) * slope;
        gx[i] = gy[i * gy_stride] * (0.5f * (1.0f + inner) + right);
    }
}

/*@ poet_hardtanh */
/* y = x, at least `least` and at most `most` */
void poet_hardtanh(float *y, const float *x, int32_t x_stride, float least, float most, int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        const float value = x[i * x_stride];
        y[i] = value < least ? least : value > most ? most : value;
    }
}

/*@ poet_hardtanh_backward */
/* gx = gy where x is between the two, else 0 */
void poet_hardtanh_backward(float *gx, const float *gy, int32_t gy_stride, const float *x, int32_t x_stride,
                            float least, float most, int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        const float value = x[i * x_stride];
        gx[i] = value <= least || value >= most ? 0.0f : gy[i * gy_stride];
    }
}

/*@ poet_bounded */
/* y = x, at least (at most where sign is -1) the bound */
void poet_bounded(float *y, const float *x, int32_t x_stride, float sign, float bound, int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        const float value = x[i * x_stride];
        y[i] = sign * value < sign * bound ? bound : value;
    }
}

/*@ poet_prelu */
/* y = x where it is above 0, else x times a slope that is trained */
void poet_prelu(float *y, const float *x, int32_t x_stride, const float *slope, int32_t slope_stride, int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        const float value = x[i * x_stride];
        y[i] = value > 0.0f ? value : slope[i * slope_stride] * value;
    }
}

/*@ poet_prelu_backward */
/* The way back to x, and to the slope of each element */
void poet_prelu_backward(float *gx, float *g_slope, const float *gy, int32_t gy_stride, const float *x, int32_t x_stride,
                         const float *slope, int32_t slope_stride, int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        const float value = x[i * x_stride], gradient = gy[i * gy_stride];
        gx[i] = value > 0.0f ? gradient : slope[i * slope_stride] * gradient;
        g_slope[i] = value > 0.0f ? 0.0f : value * gradient;
    }
}

/*@ poet_silu */
/* y = x / (1 + exp(-x)) */
void poet_silu(float *y, const float *x, int32_t x_stride, int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        const float value = x[i * x_stride];
        y[i] = value / (1.0f + poet_exp(-value));
    }
}

/*@ poet_silu_backward */
/* gx = gy * s * (1 + x * (1 - s)), where s = 1 / (1 + exp(-x)) */
void poet_silu_backward(float *gx, const float *gy, int32_t gy_stride, const float *x, int32_t x_stride, int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        const float value = x[i * x_stride];
        const float share = 1.0f / (1.0f + poet_exp(-value));
        gx[i] = gy[i * gy_stride] * share * (1.0f + value * (1.0f - share));
    }
}

/*@ poet_mish_parts */
/*
 * With e = exp(-|x|): of tanh(log(1 + exp(x))) the numerator and the denominator, which the way back needs too;
 * nothing cancels on either side of 0
 */
static void poet_mish_parts(float x, float *e, float *numerator, float *denominator)
{
    *e = poet_exp(x < 0.0f ? x : -x);
    *numerator = x < 0.0f ? *e * (*e + 2.0f) : 1.0f + 2.0f * *e;
    *denominator = *numerator + (x < 0.0f ? 2.0f : 2.0f * *e * *e);
}

/*@ poet_mish */
/* y = x * tanh(log(1 + exp(x))) */
void poet_mish(float *y, const float *x, int32_t x_stride, int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        const float value = x[i * x_stride];
        float e, numerator, denominator;
        poet_mish_parts(value, &e, &numerator, &denominator);
        y[i] = value * (numerator / denominator);
    }
}

/*@ poet_mish_backward */
/* gx = gy * (t + x * s * (1 - t * t)), where t is the tanh above and s = 1 / (1 + exp(-x)) */
void poet_mish_backward(float *gx, const float *gy, int32_t gy_stride, const float *x, int32_t x_stride, int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        const float value = x[i * x_stride];
        float e, numerator, denominator;
        poet_mish_parts(value, &e, &numerator, &denominator);
        const float share = value < 0.0f ? e / (1.0f + e) : 1.0f / (1.0f + e);
        const float left = value < 0.0f ? 4.0f * (numerator + 1.0f) : 4.0f * e * e * (1.0f + e) * (1.0f + e);
        const float slope = numerator / denominator + value * share * (left / denominator / denominator);
        gx[i] = gy[i * gy_stride] * slope;
    }
}

/*@ poet_ramp */
/* 0 up to -3, 6 from 3 on, and straight between them; what is not a number stays so */
float poet_ramp(float x)
{
    const float lifted = x + 3.0f;
    return lifted < 0.0f ? 0.0f : lifted > 6.0f ? 6.0f : lifted;
}

/*@ poet_hardsigmoid */
/* y = ramp(x) / 6 */
void poet_hardsigmoid(float *y, const float *x, int32_t x_stride, int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        y[i] = poet_ramp(x[i * x_stride]) / 6.0f;
    }
}

/*@ poet_hardsigmoid_backward */
/* gx = gy / 6 where -3 < x < 3, else 0 */
void poet_hardsigmoid_backward(float *gx, const float *gy, int32_t gy_stride, const float *x, int32_t x_stride,
                               int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        const float value = x[i * x_stride];
        gx[i] = value > -3.0f && value < 3.0f ? gy[i * gy_stride] / 6.0f : 0.0f;
    }
}

/*@ poet_hardswish */
/* y = x * ramp(x) / 6 */
void poet_hardswish(float *y, const float *x, int32_t x_stride, int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        const float value = x[i * x_stride];
        y[i] = value * poet_ramp(value) / 6.0f;
    }
}

/*@ poet_hardswish_backward */
/* gx = 0 up to -3, gy from 3 on, and gy * (x / 3 + 1 / 2) between them */
void poet_hardswish_backward(float *gx, const float *gy, int32_t gy_stride, const float *x, int32_t x_stride,
                             int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        const float value = x[i * x_stride];
        const float slope = value <= -3.0f ? 0.0f : value < 3.0f ? value / 3.0f + 0.5f : 1.0f;
        gx[i] = gy[i * gy_stride] * slope;
    }
}

/*@ poet_leaky_relu */
/* y = x above 0, else x * slope */
void poet_leaky_relu(float *y, const float *x, int32_t x_stride, float slope, int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        const float value = x[i * x_stride];
        y[i] = value > 0.0f ? value : value * slope;
    }
}

/*@ poet_leaky_relu_backward */
/* gx = gy where x is above 0, else gy * slope; x may be the result, whose sign is that of x */
void poet_leaky_relu_backward(float *gx, const float *gy, int32_t gy_stride, const float *x, int32_t x_stride,
                              float slope, int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        gx[i] = x[i * x_stride] > 0.0f ? gy[i * gy_stride] : gy[i * gy_stride] * slope;
    }
}

/*@ poet_expm1 */
/* exp(x) - 1: by its series where the difference would cancel */
float poet_expm1(float x)
{
    if (x > -0.25f && x < 0.25f) {
        return x * (1.0f + x / 2.0f * (1.0f + x / 3.0f * (1.0f + x / 4.0f * (1.0f + x / 5.0f * (1.0f + x / 6.0f)))));
    }
    return poet_exp(x) - 1.0f;
}

/*@ poet_elu */
/* y = x * above where x is above 0, else (exp(x * inner) - 1) * below */
void poet_elu(float *y, const float *x, int32_t x_stride, float below, float above, float inner, int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        const float value = x[i * x_stride];
        y[i] = value > 0.0f ? value * above : poet_expm1(value * inner) * below;
    }
}

/*@ poet_elu_backward */
/* gx = gy * above where x is above 0, else gy * inner * below * exp(x * inner); where `is_result`, x is the result */
void poet_elu_backward(float *gx, const float *gy, int32_t gy_stride, const float *x, int32_t x_stride, float below,
                       float above, float inner, int is_result, int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        const float value = x[i * x_stride], gradient = gy[i * gy_stride];
        const float steep = is_result ? value + below : below * poet_exp(value * inner);
        gx[i] = value > 0.0f ? gradient * above : gradient * inner * steep;
    }
}

/*@ poet_softmax */
/* y = exp(x) / sum(exp(x)) over n; x is outer x n x inner. `is_safe`: 0 where all of x are minus infinity */
void poet_softmax(float *y, const float *x, int32_t outer, int32_t n, int32_t inner, int is_safe)
{
    for (int32_t i = 0; i < outer * inner; ++i) {
        const int32_t at = i / inner * n * inner + i % inner;
        float largest = x[at];
        for (int32_t k = 1; k < n; ++k) {
            largest = x[at + k * inner] > largest ? x[at + k * inner] : largest;
        }
        const int is_empty = is_safe && largest < -3.4028234e38f;
        for (int32_t k = 0; k < n; ++k) {
            y[at + k * inner] = is_empty ? 0.0f : poet_exp(x[at + k * inner] - largest);
        }
        const float total = is_empty ? 1.0f : poet_sum(y + at, inner, n);
        for (int32_t k = 0; k < n; ++k) {
            y[at + k * inner] /= total;
        }
    }
}

/*@ poet_softmax_backward */
/* gx = y * (gy - sum(gy * y)) over n, in runs of 32 */
void poet_softmax_backward(float *gx, const float *gy, const float *y, int32_t outer, int32_t n, int32_t inner)
{
    for (int32_t i = 0; i < outer * inner; ++i) {
        const int32_t at = i / inner * n * inner + i % inner;
        float total = 0.0f;
        for (int32_t from = 0; from < n; from += 32) {
            const int32_t to = n - from < 32 ? n : from + 32;
            float run = 0.0f;
            for (int32_t k = from; k < to; ++k) {
                run += gy[at + k * inner] * y[at + k * inner];
            }
            total += run;
        }
        for (int32_t k = 0; k < n; ++k) {
            gx[at + k * inner] = y[at + k * inner] * (gy[at + k * inner] - total);
        }
    }
}
