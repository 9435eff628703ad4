/* Batch norm over images x channels x plane. */

/*@ poet_line_sum */
/* The sum of n neighbours, in runs of 32; where POET_WIDE eight runs at a time, of which none waits for another */
static POET_APART float poet_line_sum(const float *x, int32_t n)
{
    float total = 0.0f;
#if POET_WIDE
    for (; n >= 256; n -= 256, x += 256) {
        float runs[8] = {0.0f};
        for (int i = 0; i < 32; ++i) {
            for (int j = 0; j < 8; ++j) {
                runs[j] += x[32 * j + i];
            }
        }
        for (int j = 0; j < 8; ++j) {
            total += runs[j];
        }
    }
#endif
    for (; n > 0; n -= 32) {
        const int32_t most = n < 32 ? n : 32;
        float run = 0.0f;
        for (int32_t eights = most / 8; eights; --eights) {
            run += x[0], run += x[1], run += x[2], run += x[3];
            run += x[4], run += x[5], run += x[6], run += x[7];
            x += 8;
        }
        for (int32_t rest = most % 8; rest; --rest) {
            run += *x++;
        }
        total += run;
    }
    return total;
}

/*@ poet_line_squares */
/* The sum of the squares of n neighbours less their mean, likewise */
static POET_APART float poet_line_squares(const float *x, int32_t n, float mean)
{
    float total = 0.0f;
#if POET_WIDE
    for (; n >= 256; n -= 256, x += 256) {
        float runs[8] = {0.0f};
        for (int i = 0; i < 32; ++i) {
            for (int j = 0; j < 8; ++j) {
                runs[j] += (x[32 * j + i] - mean) * (x[32 * j + i] - mean);
            }
        }
        for (int j = 0; j < 8; ++j) {
            total += runs[j];
        }
    }
#endif
    for (; n > 0; n -= 32) {
        const int32_t most = n < 32 ? n : 32;
        float run = 0.0f;
        for (int32_t fours = most / 4; fours; --fours) {
            run += (x[0] - mean) * (x[0] - mean);
            run += (x[1] - mean) * (x[1] - mean);
            run += (x[2] - mean) * (x[2] - mean);
            run += (x[3] - mean) * (x[3] - mean);
            x += 4;
        }
        for (int32_t rest = most % 4; rest; --rest, ++x) {
            run += (*x - mean) * (*x - mean);
        }
        total += run;
    }
    return total;
}

/*@ poet_norm_line */
/* y = (x - mean) * slope + shift for n neighbours */
static POET_APART void poet_norm_line(float *y, const float *x, float mean, float slope, float shift, int32_t n)
{
    for (const float *const end = x + n; x < end;) {
        *y++ = (*x++ - mean) * slope + shift;
    }
}

/*@ poet_norm_relu_line */
/* Likewise, with 0 for what is not above it; what is not a number stays so */
static POET_APART void poet_norm_relu_line(float *y, const float *x, float mean, float slope, float shift, int32_t n)
{
    for (const float *const end = x + n; x < end;) {
        const float made = (*x++ - mean) * slope + shift;
        *y++ = made <= 0.0f ? 0.0f : made;
    }
}

/*@ poet_norm_channels */
/* What batch norm is, with `line` for what becomes of each line of a channel */
static POET_APART void poet_norm_channels(poet_norm_line_function line, float *y, float *saved_mean,
                                          float *saved_scale, const float *x, const float *weight,
                                          const float *bias, float *running_mean, float *running_variance,
                                          const poet_batch_norm_shape *s)
{
    const int32_t count = s->images * s->plane, step = s->channels * s->plane;
    for (int32_t c = 0; c < s->channels; ++c) {
        const int32_t first = c * s->plane;
        float total = 0.0f;
        for (int32_t n = 0; n < s->images; ++n) {
            total += poet_line_sum(x + first + n * step, s->plane);
        }
        const float mean = total / (float)count;
        float squares = 0.0f;
        for (int32_t n = 0; n < s->images; ++n) {
            squares += poet_line_squares(x + first + n * step, s->plane, mean);
        }
        const float scale = 1.0f / poet_sqrt(squares / (float)count + s->eps);
        saved_mean[c] = mean;
        saved_scale[c] = scale;
        if (running_mean) {
            running_mean[c] = s->momentum * mean + (1.0f - s->momentum) * running_mean[c];
            running_variance[c] = s->momentum * (squares / (float)(count - 1))
                                  + (1.0f - s->momentum) * running_variance[c];
        }
        const float slope = scale * (weight ? weight[c] : 1.0f);
        const float shift = bias ? bias[c] : 0.0f;
        for (int32_t n = 0; n < s->images; ++n) {
            line(y + first + n * step, x + first + n * step, mean, slope, shift, s->plane);
        }
    }
}

/*@ poet_batch_norm */
/*
 * y = (x - mean) / sqrt(variance + eps) * weight + bias, with the batch's own mean and variance, which are
 * saved as mean and 1 / sqrt. Running ones follow by `momentum`; null: they are left alone.
 */
void poet_batch_norm(float *y, float *saved_mean, float *saved_scale, const float *x, const float *weight,
                     const float *bias, float *running_mean, float *running_variance,
                     const poet_batch_norm_shape *s)
{
    poet_norm_channels(poet_norm_line, y, saved_mean, saved_scale, x, weight, bias, running_mean, running_variance, s);
}

/*@ poet_norm_relu */
/* Likewise, and what is below zero becomes zero */
void poet_norm_relu(float *y, float *saved_mean, float *saved_scale, const float *x, const float *weight,
                    const float *bias, float *running_mean, float *running_variance,
                    const poet_batch_norm_shape *s)
{
    poet_norm_channels(poet_norm_relu_line, y, saved_mean, saved_scale, x, weight, bias, running_mean,
                       running_variance, s);
}

/*@ poet_batch_norm_fixed */
/* y = (x - mean) / sqrt(variance + eps) * weight + bias, with a mean and a variance that are given */
void poet_batch_norm_fixed(float *y, const float *x, const float *weight, const float *bias, const float *mean,
                           const float *variance, const poet_batch_norm_shape *s)
{
    for (int32_t i = 0; i < s->images * s->channels; ++i) {
        const int32_t c = i % s->channels;
        const float slope = (weight ? weight[c] : 1.0f) / poet_sqrt(variance[c] + s->eps);
        const float shift = bias ? bias[c] : 0.0f;
        for (int32_t k = i * s->plane; k < (i + 1) * s->plane; ++k) {
            y[k] = (x[k] - mean[c]) * slope + shift;
        }
    }
}

/*@ poet_norm_sums */
/* Adds to sums[0] the sum of n gradients, to sums[1] that of their products with x - mean, in runs of 32 */
static POET_APART void poet_norm_sums(float *sums, const float *gy, const float *x, float mean, int32_t n)
{
    float sum = sums[0], product = sums[1];
    while (n > 0) {
        const float *const end = x + (n < 32 ? n : 32);
        float run = 0.0f, run_product = 0.0f;
        while (x < end) {
            const float a = *gy++;
            run += a;
            run_product += a * (*x++ - mean);
        }
        sum += run;
        product += run_product;
        n -= 32;
    }
    sums[0] = sum;
    sums[1] = product;
}

/*@ poet_norm_gated_sums */
/* Likewise of what a rectifier lets through: to = gy where (x - mean) * slope + shift is not below or at 0, else 0 */
static POET_APART void poet_norm_gated_sums(float *sums, float *to, const float *gy, const float *x, float mean,
                                            float slope, float shift, int32_t n)
{
    float sum = sums[0], product = sums[1];
    while (n > 0) {
        const float *const end = x + (n < 32 ? n : 32);
        float run = 0.0f, run_product = 0.0f;
        while (x < end) {
            const float distance = *x++ - mean, given = *gy++;
            const float g = distance * slope + shift <= 0.0f ? 0.0f : given;
            *to++ = g;
            run += g;
            run_product += g * distance;
        }
        sum += run;
        product += run_product;
        n -= 32;
    }
    sums[0] = sum;
    sums[1] = product;
}

/*@ poet_norm_back_line */
/* gx = (gy - mean_gradient - (x - mean) * tilt) * slope for n neighbours; gx may be gy or x */
static POET_APART void poet_norm_back_line(float *gx, const float *gy, const float *x, float mean,
                                           float mean_gradient, float tilt, float slope, int32_t n)
{
    for (; n >= 4; n -= 4, gx += 4, gy += 4, x += 4) {
        gx[0] = (gy[0] - mean_gradient - (x[0] - mean) * tilt) * slope;
        gx[1] = (gy[1] - mean_gradient - (x[1] - mean) * tilt) * slope;
        gx[2] = (gy[2] - mean_gradient - (x[2] - mean) * tilt) * slope;
        gx[3] = (gy[3] - mean_gradient - (x[3] - mean) * tilt) * slope;
    }
    while (n-- > 0) {
        *gx++ = (*gy++ - mean_gradient - (*x++ - mean) * tilt) * slope;
    }
}

/*@ poet_norm_back_channels */
/* What both of the next functions are; `gated` is null, or the gradients that a rectifier lets through are put there */
static POET_APART void poet_norm_back_channels(float *gated, float *gx, float *g_weight, float *g_bias,
                                               const float *gy, const float *x, const float *weight,
                                               const float *bias, const float *saved_mean,
                                               const float *saved_scale, const poet_batch_norm_shape *s)
{
    const float count = (float)(s->images * s->plane);
    const int32_t step = s->channels * s->plane;
    const float *const given = gated ? gated : gy;
    for (int32_t c = 0; c < s->channels; ++c) {
        const float mean = saved_mean[c], scale = saved_scale[c];
        const float slope = scale * (weight ? weight[c] : 1.0f), shift = bias ? bias[c] : 0.0f;
        const int32_t first = c * s->plane, end = first + s->images * step;
        float sums[2] = {0.0f, 0.0f};
        for (int32_t at = first; at < end; at += step) {
            if (gated) {
                poet_norm_gated_sums(sums, gated + at, gy + at, x + at, mean, slope, shift, s->plane);
            } else {
                poet_norm_sums(sums, gy + at, x + at, mean, s->plane);
            }
        }
        if (g_weight) {
            g_weight[c] = sums[1] * scale;
        }
        if (g_bias) {
            g_bias[c] = sums[0];
        }
        const float tilt = sums[1] * scale * scale / count;
        for (int32_t at = first; gx && at < end; at += step) {
            poet_norm_back_line(gx + at, given + at, x + at, mean, sums[0] / count, tilt, slope, s->plane);
        }
    }
}

/*@ poet_batch_norm_backward */
/* Gradients of x, weight and bias; each may be null, `weight` as well */
void poet_batch_norm_backward(float *gx, float *g_weight, float *g_bias, const float *gy, const float *x,
                              const float *weight, const float *saved_mean, const float *saved_scale,
                              const poet_batch_norm_shape *s)
{
    poet_norm_back_channels(0, gx, g_weight, g_bias, gy, x, weight, 0, saved_mean, saved_scale, s);
}

/*@ poet_norm_relu_backward */
/* Likewise behind a rectifier, whose signs are made again from x; `gx` may be `gy`, and is not null */
void poet_norm_relu_backward(float *gx, float *g_weight, float *g_bias, const float *gy, const float *x,
                             const float *weight, const float *bias, const float *saved_mean,
                             const float *saved_scale, const poet_batch_norm_shape *s)
{
    poet_norm_back_channels(gx, gx, g_weight, g_bias, gy, x, weight, bias, saved_mean, saved_scale, s);
}

/*@ poet_layer_norm */
/* y = (x - mean) * scale * weight + bias for each row of n; mean and scale = 1 / sqrt(variance + eps) are saved */
void poet_layer_norm(float *y, float *saved_mean, float *saved_scale, const float *x, const float *weight,
                     const float *bias, float eps, const poet_layer_norm_shape *s)
{
    const int32_t n = s->n;
    for (int32_t row = 0; row < s->outer * s->inner; ++row) {
        const int32_t i = row / s->inner, j = row % s->inner;
        const float *from = x + i * s->x_outer + j * s->x_inner;
        float *to = y + i * s->y_outer + j * s->y_inner;
        const float mean = poet_sum(from, s->x_step, n) / (float)n;
        const float scale = 1.0f / poet_sqrt(poet_squares(from, s->x_step, n, mean) / (float)n + eps);
        saved_mean[i * s->saved_outer + j * s->saved_inner] = mean;
        saved_scale[i * s->saved_outer + j * s->saved_inner] = scale;
        for (int32_t k = 0; k < n; ++k) {
            to[k * s->y_step] = (from[k * s->x_step] - mean) * scale * (weight ? weight[k] : 1.0f) + (bias ? bias[k] : 0.0f);
        }
    }
}

/*@ poet_layer_norm_backward */
/* gx = scale * (g - mean(g) - h * mean(g * h)), where g = gy * weight and h = (x - mean) * scale */
void poet_layer_norm_backward(float *gx, const float *gy, const float *x, const float *saved_mean,
                              const float *saved_scale, const float *weight, const poet_layer_norm_shape *s)
{
    const int32_t n = s->n;
    for (int32_t row = 0; row < s->outer * s->inner; ++row) {
        const int32_t i = row / s->inner, j = row % s->inner;
        const float *from = x + i * s->x_outer + j * s->x_inner, *g = gy + i * s->y_outer + j * s->y_inner;
        float *to = gx + i * s->gx_outer + j * s->gx_inner;
        const float mean = saved_mean[i * s->saved_outer + j * s->saved_inner];
        const float scale = saved_scale[i * s->saved_outer + j * s->saved_inner];
        float total = 0.0f, product = 0.0f;
        for (int32_t first = 0; first < n; first += 32) {
            const int32_t end = n - first < 32 ? n : first + 32;
            float run = 0.0f, run_product = 0.0f;
            for (int32_t k = first; k < end; ++k) {
                const float of_one = g[k * s->y_step] * (weight ? weight[k] : 1.0f);
                run += of_one;
                run_product += of_one * ((from[k * s->x_step] - mean) * scale);
            }
            total += run;
            product += run_product;
        }
        total /= (float)n;
        product /= (float)n;
        for (int32_t k = 0; k < n; ++k) {
            const float of_one = g[k * s->y_step] * (weight ? weight[k] : 1.0f);
            to[k * s->gx_step] = scale * (of_one - total - (from[k * s->x_step] - mean) * scale * product);
        }
    }
}

/*@ poet_layer_norm_gradients */
/* The sums over rows of gy * (x - mean) * scale and of gy, in runs of 32; null: it is not wanted */
void poet_layer_norm_gradients(float *gw, float *gb, const float *gy, const float *x, const float *saved_mean,
                               const float *saved_scale, const poet_layer_norm_shape *s)
{
    const int32_t rows = s->outer * s->inner;
    for (int32_t k = 0; k < s->n; ++k) {
        float of_weight = 0.0f, of_bias = 0.0f;
        for (int32_t first = 0; first < rows; first += 32) {
            const int32_t end = rows - first < 32 ? rows : first + 32;
            float run_weight = 0.0f, run_bias = 0.0f;
            for (int32_t row = first; row < end; ++row) {
                const int32_t i = row / s->inner, j = row % s->inner;
                const int32_t saved = i * s->saved_outer + j * s->saved_inner;
                const float g = gy[i * s->y_outer + j * s->y_inner + k * s->y_step];
                const float value = x[i * s->x_outer + j * s->x_inner + k * s->x_step];
                run_weight += g * ((value - saved_mean[saved]) * saved_scale[saved]);
                run_bias += g;
            }
            of_weight += run_weight;
            of_bias += run_bias;
        }
        if (gw) {
            gw[k] = of_weight;
        }
        if (gb) {
            gb[k] = of_bias;
        }
    }
}
