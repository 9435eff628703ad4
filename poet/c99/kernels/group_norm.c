/* Group norm over images x groups x channels x plane; a group's elements are neighbours. */

/*@ poet_group_norm */
/* y = (x - mean) * scale * weight + bias; mean and scale = 1 / sqrt(variance + eps) of each group are saved */
void poet_group_norm(float *y, float *saved_mean, float *saved_scale, const float *x, const float *weight,
                     const float *bias, float eps, const poet_group_norm_shape *s)
{
    const int32_t n = s->channels * s->plane;
    for (int32_t group = 0; group < s->images * s->groups; ++group) {
        const float mean = poet_sum(x, 1, n) / (float)n;
        const float scale = 1.0f / poet_sqrt(poet_squares(x, 1, n, mean) / (float)n + eps);
        saved_mean[group] = mean;
        saved_scale[group] = scale;
        for (int32_t c = 0; c < s->channels; ++c) {
            const int32_t channel = group % s->groups * s->channels + c;
            const float slope = scale * (weight ? weight[channel] : 1.0f);
            const float shift = bias ? bias[channel] : 0.0f;
            for (const float *const end = x + s->plane; x < end;) {
                *y++ = (*x++ - mean) * slope + shift;
            }
        }
    }
}

/*@ poet_group_norm_plane */
/* sums[0] and sums[1] = the sums over a plane of g and of g * (x - mean), in runs of 32 */
static void poet_group_norm_plane(float *sums, const float *g, const float *x, float mean, int32_t n)
{
    sums[0] = 0.0f;
    sums[1] = 0.0f;
    for (int32_t first = 0; first < n; first += 32) {
        const int32_t end = n - first < 32 ? n : first + 32;
        float run = 0.0f, product = 0.0f;
        for (int32_t k = first; k < end; ++k) {
            run += g[k];
            product += g[k] * (x[k] - mean);
        }
        sums[0] += run;
        sums[1] += product;
    }
}

/*@ poet_group_norm_gradients */
/* What weight and bias get: sums over images and planes of gy * (x - mean) * scale and of gy; null: it is not wanted */
void poet_group_norm_gradients(float *gw, float *gb, const float *gy, const float *x, const float *saved_mean,
                               const float *saved_scale, const poet_group_norm_shape *s)
{
    const int32_t channels = s->groups * s->channels;
    for (int32_t channel = 0; channel < channels; ++channel) {
        float of_weight = 0.0f, of_bias = 0.0f, sums[2];
        for (int32_t n = 0; n < s->images; ++n) {
            const int32_t group = n * s->groups + channel / s->channels, at = (n * channels + channel) * s->plane;
            poet_group_norm_plane(sums, gy + at, x + at, saved_mean[group], s->plane);
            of_bias += sums[0];
            of_weight += sums[1] * saved_scale[group];
        }
        if (gw) {
            gw[channel] = of_weight;
        }
        if (gb) {
            gb[channel] = of_bias;
        }
    }
}

/*@ poet_group_norm_backward */
/* gx = scale * (g - mean(g) - h * mean(g * h)) over each group, where g = gy * weight and h = (x - mean) * scale */
void poet_group_norm_backward(float *gx, const float *gy, const float *x, const float *saved_mean,
                              const float *saved_scale, const float *weight, const poet_group_norm_shape *s)
{
    const float count = (float)(s->channels * s->plane);
    for (int32_t group = 0; group < s->images * s->groups; ++group) {
        const float mean = saved_mean[group], scale = saved_scale[group];
        const int32_t first = group % s->groups * s->channels;
        float total = 0.0f, product = 0.0f, sums[2];
        for (int32_t c = 0; c < s->channels; ++c) {
            const float factor = weight ? weight[first + c] : 1.0f;
            poet_group_norm_plane(sums, gy + c * s->plane, x + c * s->plane, mean, s->plane);
            total += factor * sums[0];
            product += factor * sums[1];
        }
        const float mean_gradient = total / count, tilt = product * scale * scale / count;
        for (int32_t c = 0; c < s->channels; ++c) {
            const float factor = weight ? weight[first + c] : 1.0f;
            for (const float *const end = gy + s->plane; gy < end;) {
                *gx++ = scale * (factor * *gy++ - mean_gradient - (*x++ - mean) * tilt);
            }
        }
    }
}
