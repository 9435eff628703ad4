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
