/* Lengths of rows, and weights that are a direction and a length. */

/*@ poet_dot */
/* The sum of n products, in runs of 32 */
static float poet_dot(const float *a, const float *b, int32_t stride, int32_t n)
{
    float total = 0.0f;
    for (int32_t first = 0; first < n; first += 32) {
        const int32_t end = n - first < 32 ? n : first + 32;
        float run = 0.0f;
        for (int32_t k = first; k < end; ++k) {
            run += a[k * stride] * b[k * stride];
        }
        total += run;
    }
    return total;
}

/*@ poet_lengths */
/* x is outer x n x inner: y = the root of the sum of squares over n */
void poet_lengths(float *y, const float *x, int32_t outer, int32_t n, int32_t inner)
{
    for (int32_t i = 0; i < outer * inner; ++i) {
        const float *const from = x + i / inner * n * inner + i % inner;
        y[i] = poet_sqrt(poet_dot(from, from, inner, n));
    }
}

/*@ poet_weight_norm */
/* Rows of n: w = v * (g / length of v), and that length */
void poet_weight_norm(float *w, float *length, const float *v, const float *g, int32_t rows, int32_t n)
{
    for (int32_t row = 0; row < rows; ++row, v += n, w += n) {
        length[row] = poet_sqrt(poet_dot(v, v, 1, n));
        const float factor = g[row] / length[row];
        for (int32_t k = 0; k < n; ++k) {
            w[k] = v[k] * factor;
        }
    }
}

/*@ poet_weight_norm_backward */
/* gg = gw . v / length; gv = g / length * (gw - v * (gw . v) / length^2) */
void poet_weight_norm_backward(float *gv, float *gg, const float *gw, const float *v, const float *g,
                               const float *length, int32_t rows, int32_t n)
{
    for (int32_t row = 0; row < rows; ++row, v += n, gw += n, gv += n) {
        const float product = poet_dot(gw, v, 1, n), inverse = 1.0f / length[row];
        const float factor = g[row] * inverse, tilt = product * inverse * inverse;
        gg[row] = product * inverse;
        for (int32_t k = 0; k < n; ++k) {
            gv[k] = factor * (gw[k] - v[k] * tilt);
        }
    }
}
