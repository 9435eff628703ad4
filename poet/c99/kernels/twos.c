/* Windows of 3 x 3 that roll for two channels of what is made at a time, in the order of one: for few registers. */

/*@ poet_zeros */
/* A row outside the image, for the widest image whose rows are read through two kernels at a time */
static const float poet_zeros[130];

/*@ poet_taps_of_two */
/*
 * y += what a plane x gives through each of two kernels, `w_out` apart in w and `step` in y, where the window rolls by
 * one column: the nine taps of both stay in registers, and what both read is loaded once.
 */
static POET_APART void poet_taps_of_two(float *y, int32_t step, const float *from, const float *w, int32_t w_out,
                                        int32_t w_step, const poet_plane *p)
{
    const float *v = w + w_out;
    const float w0 = w[0], w1 = w[w_step], w2 = w[2 * w_step], v0 = v[0], v1 = v[w_step], v2 = v[2 * w_step];
    w += 3 * w_step, v += 3 * w_step;
    const float w3 = w[0], w4 = w[w_step], w5 = w[2 * w_step], v3 = v[0], v4 = v[w_step], v5 = v[2 * w_step];
    w += 3 * w_step, v += 3 * w_step;
    const float w6 = w[0], w7 = w[w_step], w8 = w[2 * w_step], v6 = v[0], v7 = v[w_step], v8 = v[2 * w_step];
    const int32_t pad = p->pad_x, width = p->out_width;
    float *z = y + step;
    for (int32_t oy = 0, top = -p->pad_y; oy < p->out_height; ++oy, top += p->stride_y) {
        const float *x1 = from + (top + 1) * p->width;
        const float *x = top < 0 ? poet_zeros : x1 - p->width, *x2 = top + 2 < p->height ? x1 + p->width : poet_zeros;
        float a0 = 0.0f, a1 = 0.0f, a2 = 0.0f;
        if (!pad) {
            a0 = *x++, a1 = *x1++, a2 = *x2++;
        }
        float b0 = *x++, b1 = *x1++, b2 = *x2++;
        for (const float *const end = y + (width - pad); y < end;) {
            float c0 = *x++, c1 = *x1++, c2 = *x2++;
            *y++ += w0 * a0 + w1 * b0 + w2 * c0 + w3 * a1 + w4 * b1 + w5 * c1 + w6 * a2 + w7 * b2 + w8 * c2;
            *z++ += v0 * a0 + v1 * b0 + v2 * c0 + v3 * a1 + v4 * b1 + v5 * c1 + v6 * a2 + v7 * b2 + v8 * c2;
            if (y == end) {
                a0 = b0, a1 = b1, a2 = b2, b0 = c0, b1 = c1, b2 = c2;
                break;
            }
            a0 = *x++, a1 = *x1++, a2 = *x2++;
            *y++ += w0 * b0 + w1 * c0 + w2 * a0 + w3 * b1 + w4 * c1 + w5 * a1 + w6 * b2 + w7 * c2 + w8 * a2;
            *z++ += v0 * b0 + v1 * c0 + v2 * a0 + v3 * b1 + v4 * c1 + v5 * a1 + v6 * b2 + v7 * c2 + v8 * a2;
            if (y == end) {
                b0 = a0, b1 = a1, b2 = a2, a0 = c0, a1 = c1, a2 = c2;
                break;
            }
            b0 = *x++, b1 = *x1++, b2 = *x2++;
            *y++ += w0 * c0 + w1 * a0 + w2 * b0 + w3 * c1 + w4 * a1 + w5 * b1 + w6 * c2 + w7 * a2 + w8 * b2;
            *z++ += v0 * c0 + v1 * a0 + v2 * b0 + v3 * c1 + v4 * a1 + v5 * b1 + v6 * c2 + v7 * a2 + v8 * b2;
        }
        if (pad) { /* the last column lies outside */
            *y++ += w0 * a0 + w1 * b0 + w3 * a1 + w4 * b1 + w6 * a2 + w7 * b2;
            *z++ += v0 * a0 + v1 * b0 + v3 * a1 + v4 * b1 + v6 * a2 + v7 * b2;
        }
    }
}

/*@ poet_taps_of_two_by_2 */
/* Likewise where the window moves by two columns, all inside but perhaps the last */
static POET_APART void poet_taps_of_two_by_2(float *y, int32_t step, const float *from, const float *w, int32_t w_out,
                                             const poet_plane *p)
{
    const float *v = w + w_out;
    const float w0 = w[0], w1 = w[1], w2 = w[2], w3 = w[3], w4 = w[4], w5 = w[5], w6 = w[6], w7 = w[7], w8 = w[8];
    const float v0 = v[0], v1 = v[1], v2 = v[2], v3 = v[3], v4 = v[4], v5 = v[5], v6 = v[6], v7 = v[7], v8 = v[8];
    const int32_t width = p->out_width, is_outside = 2 * width + 1 > p->width;
    float *z = y + step;
    for (int32_t oy = 0, top = -p->pad_y; oy < p->out_height; ++oy, top += p->stride_y) {
        const float *x1 = from + (top + 1) * p->width;
        const float *x = top < 0 ? poet_zeros : x1 - p->width, *x2 = top + 2 < p->height ? x1 + p->width : poet_zeros;
        float a0 = *x++, a1 = *x1++, a2 = *x2++;
        for (const float *const end = y + (width - is_outside); y < end;) {
            const float b0 = *x++, b1 = *x1++, b2 = *x2++, c0 = *x++, c1 = *x1++, c2 = *x2++;
            *y++ += w0 * a0 + w1 * b0 + w2 * c0 + w3 * a1 + w4 * b1 + w5 * c1 + w6 * a2 + w7 * b2 + w8 * c2;
            *z++ += v0 * a0 + v1 * b0 + v2 * c0 + v3 * a1 + v4 * b1 + v5 * c1 + v6 * a2 + v7 * b2 + v8 * c2;
            a0 = c0, a1 = c1, a2 = c2;
        }
        if (is_outside) {
            const float b0 = *x++, b1 = *x1++, b2 = *x2++;
            *y++ += w0 * a0 + w1 * b0 + w3 * a1 + w4 * b1 + w6 * a2 + w7 * b2;
            *z++ += v0 * a0 + v1 * b0 + v3 * a1 + v4 * b1 + v6 * a2 + v7 * b2;
        }
    }
}

/*@ poet_rolls_in_twos */
/* Whether two kernels at a time read an image: where their window rolls, and its rows are as short as the zeros */
static int poet_rolls_in_twos(const poet_plane *p)
{
    return poet_rolls(p) && p->width <= 128;
}

/*@ poet_gradients_of_two */
/*
 * g[0..17] += what nine taps get from each of two planes of gy, `step` apart, and one of x, in runs of `most` rows: the
 * window moves by one column as in the way there, and what both planes take of it is loaded once.
 */
static POET_APART void poet_gradients_of_two(float *g, const float *gy, int32_t step, const float *from, int32_t most,
                                             const poet_plane *p)
{
    const float *hy = gy + step;
    const int32_t pad = p->pad_x, width = p->out_width;
    int32_t left = most;
    float s0 = 0.0f, s1 = 0.0f, s2 = 0.0f, s3 = 0.0f, s4 = 0.0f, s5 = 0.0f, s6 = 0.0f, s7 = 0.0f, s8 = 0.0f;
    float t0 = 0.0f, t1 = 0.0f, t2 = 0.0f, t3 = 0.0f, t4 = 0.0f, t5 = 0.0f, t6 = 0.0f, t7 = 0.0f, t8 = 0.0f;
    for (int32_t oy = 0, top = -p->pad_y; oy < p->out_height; ++oy, top += p->stride_y) {
        const float *x1 = from + (top + 1) * p->width;
        const float *x = top < 0 ? poet_zeros : x1 - p->width, *x2 = top + 2 < p->height ? x1 + p->width : poet_zeros;
        float a0 = 0.0f, a1 = 0.0f, a2 = 0.0f;
        if (!pad) {
            a0 = *x++, a1 = *x1++, a2 = *x2++;
        }
        float b0 = *x++, b1 = *x1++, b2 = *x2++;
        const float *const end = gy + (width - pad);
        while (gy < end) {
            float v = *gy++, u = *hy++;
            float c0 = *x++, c1 = *x1++, c2 = *x2++;
            s0 += v * a0, s1 += v * b0, s2 += v * c0, s3 += v * a1, s4 += v * b1, s5 += v * c1;
            s6 += v * a2, s7 += v * b2, s8 += v * c2;
            t0 += u * a0, t1 += u * b0, t2 += u * c0, t3 += u * a1, t4 += u * b1, t5 += u * c1;
            t6 += u * a2, t7 += u * b2, t8 += u * c2;
            if (gy == end) {
                a0 = b0, a1 = b1, a2 = b2, b0 = c0, b1 = c1, b2 = c2;
                break;
            }
            v = *gy++, u = *hy++;
            a0 = *x++, a1 = *x1++, a2 = *x2++;
            s0 += v * b0, s1 += v * c0, s2 += v * a0, s3 += v * b1, s4 += v * c1, s5 += v * a1;
            s6 += v * b2, s7 += v * c2, s8 += v * a2;
            t0 += u * b0, t1 += u * c0, t2 += u * a0, t3 += u * b1, t4 += u * c1, t5 += u * a1;
            t6 += u * b2, t7 += u * c2, t8 += u * a2;
            if (gy == end) {
                b0 = a0, b1 = a1, b2 = a2, a0 = c0, a1 = c1, a2 = c2;
                break;
            }
            v = *gy++, u = *hy++;
            b0 = *x++, b1 = *x1++, b2 = *x2++;
            s0 += v * c0, s1 += v * a0, s2 += v * b0, s3 += v * c1, s4 += v * a1, s5 += v * b1;
            s6 += v * c2, s7 += v * a2, s8 += v * b2;
            t0 += u * c0, t1 += u * a0, t2 += u * b0, t3 += u * c1, t4 += u * a1, t5 += u * b1;
            t6 += u * c2, t7 += u * a2, t8 += u * b2;
        }
        if (pad) { /* the last column lies outside */
            const float v = *gy++, u = *hy++;
            s0 += v * a0, s1 += v * b0, s3 += v * a1, s4 += v * b1, s6 += v * a2, s7 += v * b2;
            t0 += u * a0, t1 += u * b0, t3 += u * a1, t4 += u * b1, t6 += u * a2, t7 += u * b2;
        }
        if (--left == 0 || oy + 1 == p->out_height) {
            g[0] += s0, g[1] += s1, g[2] += s2, g[3] += s3, g[4] += s4, g[5] += s5, g[6] += s6, g[7] += s7, g[8] += s8;
            g[9] += t0, g[10] += t1, g[11] += t2, g[12] += t3, g[13] += t4, g[14] += t5, g[15] += t6, g[16] += t7, g[17] += t8;
            s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = s8 = 0.0f;
            t0 = t1 = t2 = t3 = t4 = t5 = t6 = t7 = t8 = 0.0f;
            left = most;
        }
    }
}

/*@ poet_gradients_of_two_by_2 */
/* Likewise where the window moves by two columns, all inside but perhaps the last */
static POET_APART void poet_gradients_of_two_by_2(float *g, const float *gy, int32_t step, const float *from, int32_t most,
                                                  const poet_plane *p)
{
    const float *hy = gy + step;
    const int32_t width = p->out_width, is_outside = 2 * width + 1 > p->width;
    int32_t left = most;
    float s0 = 0.0f, s1 = 0.0f, s2 = 0.0f, s3 = 0.0f, s4 = 0.0f, s5 = 0.0f, s6 = 0.0f, s7 = 0.0f, s8 = 0.0f;
    float t0 = 0.0f, t1 = 0.0f, t2 = 0.0f, t3 = 0.0f, t4 = 0.0f, t5 = 0.0f, t6 = 0.0f, t7 = 0.0f, t8 = 0.0f;
    for (int32_t oy = 0, top = -p->pad_y; oy < p->out_height; ++oy, top += p->stride_y) {
        const float *x1 = from + (top + 1) * p->width;
        const float *x = top < 0 ? poet_zeros : x1 - p->width, *x2 = top + 2 < p->height ? x1 + p->width : poet_zeros;
        float a0 = *x++, a1 = *x1++, a2 = *x2++;
        for (const float *const end = gy + (width - is_outside); gy < end;) {
            const float v = *gy++, u = *hy++;
            s0 += v * a0, s3 += v * a1, s6 += v * a2, t0 += u * a0, t3 += u * a1, t6 += u * a2;
            const float b0 = *x++, b1 = *x1++, b2 = *x2++;
            s1 += v * b0, s4 += v * b1, s7 += v * b2, t1 += u * b0, t4 += u * b1, t7 += u * b2;
            a0 = *x++, a1 = *x1++, a2 = *x2++;
            s2 += v * a0, s5 += v * a1, s8 += v * a2, t2 += u * a0, t5 += u * a1, t8 += u * a2;
        }
        if (is_outside) {
            const float v = *gy++, u = *hy++, b0 = *x++, b1 = *x1++, b2 = *x2++;
            s0 += v * a0, s3 += v * a1, s6 += v * a2, t0 += u * a0, t3 += u * a1, t6 += u * a2;
            s1 += v * b0, s4 += v * b1, s7 += v * b2, t1 += u * b0, t4 += u * b1, t7 += u * b2;
        }
        if (--left == 0 || oy + 1 == p->out_height) {
            g[0] += s0, g[1] += s1, g[2] += s2, g[3] += s3, g[4] += s4, g[5] += s5, g[6] += s6, g[7] += s7, g[8] += s8;
            g[9] += t0, g[10] += t1, g[11] += t2, g[12] += t3, g[13] += t4, g[14] += t5, g[15] += t6, g[16] += t7, g[17] += t8;
            s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = s8 = 0.0f;
            t0 = t1 = t2 = t3 = t4 = t5 = t6 = t7 = t8 = 0.0f;
            left = most;
        }
    }
}

/*@ poet_weight_of_two */
/* What the kernels between one channel of x and two of gy get, from element `at` of the weight on; of one where it is the last */
static void poet_weight_of_two(const poet_update *u, int32_t at, const float *gy, const float *x, int is_last,
                               int32_t most, const poet_conv2d_shape *s)
{
    const int32_t in_plane = s->plane.height * s->plane.width, out_plane = s->plane.out_height * s->plane.out_width;
    float sums[18] = {0.0f};
    for (int32_t image = 0; image < s->images; ++image) {
        if (s->plane.stride_x == 1) {
            poet_gradients_of_two(sums, gy, is_last ? 0 : out_plane, x, most, &s->plane);
        } else {
            poet_gradients_of_two_by_2(sums, gy, is_last ? 0 : out_plane, x, most, &s->plane);
        }
        gy += s->groups * s->out_channels * out_plane;
        x += s->groups * s->in_channels * in_plane;
    }
    u->apply(u, at, sums, 9);
    if (!is_last) {
        u->apply(u, at + 9 * s->in_channels, sums + 9, 9);
    }
}
