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
