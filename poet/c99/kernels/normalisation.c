/* Batch norm over images x channels x plane. */

/*@ poet_batch_norm */
/*
 * y = (x - mean) / sqrt(variance + eps) * weight + bias, with the batch's own mean and variance, which are
 * saved as mean and 1 / sqrt. Running ones follow by `momentum`; null: they are left alone.
 */
void poet_batch_norm(float *y, float *saved_mean, float *saved_scale, const float *x, const float *weight,
                     const float *bias, float *running_mean, float *running_variance,
                     const poet_batch_norm_shape *s)
{
    const int32_t count = s->images * s->plane;
    for (int32_t c = 0; c < s->channels; ++c) {
        float total = 0.0f;
        for (int32_t n = 0; n < s->images; ++n) {
            total += poet_sum(x + (n * s->channels + c) * s->plane, 1, s->plane);
        }
        const float mean = total / (float)count;
        float squares = 0.0f;
        for (int32_t n = 0; n < s->images; ++n) {
            const float *from = x + (n * s->channels + c) * s->plane;
            for (int32_t first = 0; first < s->plane; first += 32) {
                const int32_t end = s->plane - first < 32 ? s->plane : first + 32;
                float run = 0.0f;
                for (int32_t i = first; i < end; ++i) {
                    run += (from[i] - mean) * (from[i] - mean);
                }
                squares += run;
            }
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
            const int32_t at = (n * s->channels + c) * s->plane;
            for (int32_t i = 0; i < s->plane; ++i) {
                y[at + i] = (x[at + i] - mean) * slope + shift;
            }
        }
    }
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

/*@ poet_batch_norm_backward */
/* Gradients of x, weight and bias; each may be null, `weight` as well */
void poet_batch_norm_backward(float *gx, float *g_weight, float *g_bias, const float *gy, const float *x,
                              const float *weight, const float *saved_mean, const float *saved_scale,
                              const poet_batch_norm_shape *s)
{
    const float count = (float)(s->images * s->plane);
    for (int32_t c = 0; c < s->channels; ++c) {
        const float mean = saved_mean[c], scale = saved_scale[c];
        float sum = 0.0f, product = 0.0f;
        for (int32_t n = 0; n < s->images; ++n) {
            const int32_t at = (n * s->channels + c) * s->plane;
            for (int32_t first = 0; first < s->plane; first += 32) {
                const int32_t end = s->plane - first < 32 ? s->plane : first + 32;
                float run = 0.0f, run_product = 0.0f;
                for (int32_t i = at + first; i < at + end; ++i) {
                    run += gy[i];
                    run_product += gy[i] * (x[i] - mean);
                }
                sum += run;
                product += run_product;
            }
        }
        if (g_weight) {
            g_weight[c] = product * scale;
        }
        if (g_bias) {
            g_bias[c] = sum;
        }
        if (gx) {
            const float slope = scale * (weight ? weight[c] : 1.0f);
            const float mean_gradient = sum / count, tilt = product * scale * scale / count;
            for (int32_t n = 0; n < s->images; ++n) {
                const int32_t at = (n * s->channels + c) * s->plane;
                for (int32_t i = at; i < at + s->plane; ++i) {
                    gx[i] = (gy[i] - mean_gradient - (x[i] - mean) * tilt) * slope;
                }
            }
        }
    }
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
