/* Windows of 3 x 3 that roll for two channels of what is made at a time, in the order of one: for few registers. */

/*@ poet_zeros */
/* A row outside the image, for the widest image whose rows are read through two kernels at a time */
static const float poet_zeros[130];

/*@ poet_taps_of_two */
/*
 * y += what a plane x gives through each of two kernels, `w_out` apart in w and `step` in y, for two rows at a time and
 * an even width: the nine taps of both stay in registers, and what two rows of both read is loaded once.
 */
static POET_APART void poet_taps_of_two(float *y, int32_t step, const float *from, const float *w, int32_t w_out,
                                        int32_t w_step, const poet_plane *p)
{
    const float *of_second = w + w_out;
    const float w0 = w[0], w1 = w[w_step], w2 = w[2 * w_step];
    const float v0 = of_second[0], v1 = of_second[w_step], v2 = of_second[2 * w_step];
    w += 3 * w_step, of_second += 3 * w_step;
    const float w3 = w[0], w4 = w[w_step], w5 = w[2 * w_step];
    const float v3 = of_second[0], v4 = of_second[w_step], v5 = of_second[2 * w_step];
    w += 3 * w_step, of_second += 3 * w_step;
    const float w6 = w[0], w7 = w[w_step], w8 = w[2 * w_step];
    const float v6 = of_second[0], v7 = of_second[w_step], v8 = of_second[2 * w_step];
    const int32_t pad = p->pad_x, width = p->out_width;
    const float *x1 = p->pad_y ? from : from + p->width;
    for (int32_t top = -p->pad_y, end = p->out_height - p->pad_y; top < end; top += 2) {
        const float *x2 = x1 + p->width;
        const float *x = top < 0 ? poet_zeros : x1 - p->width, *x3 = top + 3 < p->height ? x2 + p->width : poet_zeros;
        float *y1 = y + width, *z = y + step, *z1 = z + width, s, t, u, v;
        float a0 = *x++, a1 = *x1++, a2 = *x2++, a3 = *x3++, b0 = *x++, b1 = *x1++, b2 = *x2++, b3 = *x3++;
        if (pad) { /* the first column lies outside */
            *y++ += w1 * a0 + w2 * b0 + w4 * a1 + w5 * b1 + w7 * a2 + w8 * b2;
            *z++ += v1 * a0 + v2 * b0 + v4 * a1 + v5 * b1 + v7 * a2 + v8 * b2;
            *y1++ += w1 * a1 + w2 * b1 + w4 * a2 + w5 * b2 + w7 * a3 + w8 * b3;
            *z1++ += v1 * a1 + v2 * b1 + v4 * a2 + v5 * b2 + v7 * a3 + v8 * b3;
        }
        for (int32_t n = width / 2 - pad; n; --n) {
            s = w0 * a0, t = v0 * a0, a0 = *x++;
            s += w1 * b0, t += v1 * b0, s += w2 * a0, t += v2 * a0;
            s += w3 * a1, t += v3 * a1, u = w0 * a1, v = v0 * a1, a1 = *x1++;
            s += w4 * b1, t += v4 * b1, u += w1 * b1, v += v1 * b1;
            s += w5 * a1, t += v5 * a1, u += w2 * a1, v += v2 * a1;
            s += w6 * a2, t += v6 * a2, u += w3 * a2, v += v3 * a2, a2 = *x2++;
            s += w7 * b2, t += v7 * b2, u += w4 * b2, v += v4 * b2;
            *y++ += s + w8 * a2, *z++ += t + v8 * a2, u += w5 * a2, v += v5 * a2;
            u += w6 * a3, v += v6 * a3, a3 = *x3++;
            *y1++ += u + w7 * b3 + w8 * a3, *z1++ += v + v7 * b3 + v8 * a3;
            s = w0 * b0, t = v0 * b0, b0 = *x++;
            s += w1 * a0, t += v1 * a0, s += w2 * b0, t += v2 * b0;
            s += w3 * b1, t += v3 * b1, u = w0 * b1, v = v0 * b1, b1 = *x1++;
            s += w4 * a1, t += v4 * a1, u += w1 * a1, v += v1 * a1;
            s += w5 * b1, t += v5 * b1, u += w2 * b1, v += v2 * b1;
            s += w6 * b2, t += v6 * b2, u += w3 * b2, v += v3 * b2, b2 = *x2++;
            s += w7 * a2, t += v7 * a2, u += w4 * a2, v += v4 * a2;
            *y++ += s + w8 * b2, *z++ += t + v8 * b2, u += w5 * b2, v += v5 * b2;
            u += w6 * b3, v += v6 * b3, b3 = *x3++;
            *y1++ += u + w7 * a3 + w8 * b3, *z1++ += v + v7 * a3 + v8 * b3;
        }
        if (pad) { /* and so does the last one */
            *y++ += w0 * a0 + w1 * b0 + w3 * a1 + w4 * b1 + w6 * a2 + w7 * b2;
            *z += v0 * a0 + v1 * b0 + v3 * a1 + v4 * b1 + v6 * a2 + v7 * b2;
            *y1++ += w0 * a1 + w1 * b1 + w3 * a2 + w4 * b2 + w6 * a3 + w7 * b3;
            *z1 += v0 * a1 + v1 * b1 + v3 * a2 + v4 * b2 + v6 * a3 + v7 * b3;
        }
        y = y1;
        x1 = x2;
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
    const int32_t skip = p->stride_y * p->width - 2 * width - 1 + is_outside;
    const float *x1 = p->pad_y ? from : from + p->width;
    for (int32_t oy = 0, top = -p->pad_y; oy < p->out_height; ++oy, top += p->stride_y) {
        const float *x = top < 0 ? poet_zeros : x1 - p->width, *x2 = top + 2 < p->height ? x1 + p->width : poet_zeros;
        float a0 = *x++, a1 = *x1++, a2 = *x2++;
        for (const float *const end = y + (width - is_outside); y < end;) {
            const float b0 = *x++, b1 = *x1++, b2 = *x2++;
            float s = w0 * a0 + w1 * b0, t = v0 * a0 + v1 * b0;
            a0 = *x++;
            s += w2 * a0, t += v2 * a0, s += w3 * a1, t += v3 * a1, s += w4 * b1, t += v4 * b1;
            a1 = *x1++;
            s += w5 * a1, t += v5 * a1, s += w6 * a2, t += v6 * a2, s += w7 * b2, t += v7 * b2;
            a2 = *x2++;
            *y++ += s + w8 * a2;
            *z++ += t + v8 * a2;
        }
        if (is_outside) {
            const float b0 = *x++, b1 = *x1++, b2 = *x2++;
            *y++ += w0 * a0 + w1 * b0 + w3 * a1 + w4 * b1 + w6 * a2 + w7 * b2;
            *z++ += v0 * a0 + v1 * b0 + v3 * a1 + v4 * b1 + v6 * a2 + v7 * b2;
        }
        x1 += skip;
    }
}

/*@ poet_gather_of_two */
/*
 * Adds to a plane gx what its places gave to two planes of gy, `step` apart, through nine taps each, `w_out` apart: as
 * `poet_gather_3x3` does for each of them in turn, but what it adds to is loaded once.
 */
static POET_APART void poet_gather_of_two(float *gx, const float *gy, int32_t step, const float *w, int32_t w_out,
                                          const poet_plane *p)
{
    const float *v = w + w_out, *above = gy, *hy = gy + step, *above_it = hy;
    const float w0 = w[0], w1 = w[1], w2 = w[2], w3 = w[3], w4 = w[4], w5 = w[5];
    const float v0 = v[0], v1 = v[1], v2 = v[2], v3 = v[3], v4 = v[4], v5 = v[5];
    float w6 = 0.0f, w7 = 0.0f, w8 = 0.0f, v6 = 0.0f, v7 = 0.0f, v8 = 0.0f;
    const int is_wide = 2 * p->out_width + 1 <= p->width;
    for (int32_t oy = 0; oy < p->out_height; ++oy) {
        float *even = gx + 2 * oy * p->width, *odd = even + p->width;
        float a2 = 0.0f, a5 = 0.0f, a8 = 0.0f, b2 = 0.0f, b5 = 0.0f, b8 = 0.0f; /* products with the places before */
        for (const float *const end = gy + p->out_width; gy < end;) {
            const float c = *gy++, d = *above++, e = *hy++, f = *above_it++;
            even[0] = even[0] + (w0 * c + a2 + w6 * d + a8) + (v0 * e + b2 + v6 * f + b8);
            even[1] = even[1] + (w1 * c + w7 * d) + (v1 * e + v7 * f);
            odd[0] = odd[0] + (w3 * c + a5) + (v3 * e + b5);
            odd[1] = odd[1] + w4 * c + v4 * e;
            even += 2;
            odd += 2;
            a2 = w2 * c, a5 = w5 * c, a8 = w8 * d, b2 = v2 * e, b5 = v5 * e, b8 = v8 * f;
        }
        if (is_wide) {
            *even = *even + (a2 + a8) + (b2 + b8);
            *odd = *odd + a5 + b5;
        }
        above = gy - p->out_width, above_it = hy - p->out_width;
        w6 = w[6], w7 = w[7], w8 = w[8], v6 = v[6], v7 = v[7], v8 = v[8];
    }
    if (2 * p->out_height + 1 > p->height) {
        return;
    }
    float *even = gx + 2 * p->out_height * p->width, b = 0.0f, c = 0.0f;
    for (const float *const end = gy; above < end;) {
        const float d = *above++, f = *above_it++;
        even[0] = even[0] + (w6 * d + w8 * b) + (v6 * f + v8 * c);
        even[1] = even[1] + w7 * d + v7 * f;
        even += 2;
        b = d, c = f;
    }
    if (is_wide) {
        *even = *even + w8 * b + v8 * c;
    }
}

/*@ poet_rolls_in_twos */
/* Whether a window rolls over rows that are as short as the zeros, so that the gradients of two kernels are made at a time */
static int poet_rolls_in_twos(const poet_plane *p)
{
    return poet_rolls(p) && p->width > 1 && p->width <= 128;
}

/*@ poet_reads_in_twos */
/* Whether two kernels at a time read an image: likewise, by one column for an even count of rows and columns */
static int poet_reads_in_twos(const poet_plane *p)
{
    const int are_even = p->out_height % 2 == 0 && p->out_width % 2 == 0;
    return poet_rolls_in_twos(p) && (p->stride_x == 2 || (p->stride_y == 1 && are_even));
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
    const int32_t pad = p->pad_x, width = p->out_width - 2 * pad;
    const int32_t skip = (p->stride_y - 1) * p->width;
    int32_t left = most;
    float s0 = 0.0f, s1 = 0.0f, s2 = 0.0f, s3 = 0.0f, s4 = 0.0f, s5 = 0.0f, s6 = 0.0f, s7 = 0.0f, s8 = 0.0f;
    float t0 = 0.0f, t1 = 0.0f, t2 = 0.0f, t3 = 0.0f, t4 = 0.0f, t5 = 0.0f, t6 = 0.0f, t7 = 0.0f, t8 = 0.0f;
    const float *x1 = p->pad_y ? from : from + p->width;
    for (int32_t oy = 0, top = -p->pad_y; oy < p->out_height; ++oy, top += p->stride_y) {
        const float *x = top < 0 ? poet_zeros : x1 - p->width, *x2 = top + 2 < p->height ? x1 + p->width : poet_zeros;
        float a0 = *x++, a1 = *x1++, a2 = *x2++, b0 = *x++, b1 = *x1++, b2 = *x2++, v, u;
        if (pad) { /* the first column lies outside */
            v = *gy++, u = *hy++;
            s1 += v * a0, s2 += v * b0, s4 += v * a1, s5 += v * b1, s7 += v * a2, s8 += v * b2;
            t1 += u * a0, t2 += u * b0, t4 += u * a1, t5 += u * b1, t7 += u * a2, t8 += u * b2;
        }
        for (int32_t n = width; n; --n) {
            float c0, c1, c2;
            v = *gy++, u = *hy++;
            c0 = *x++, c1 = *x1++, c2 = *x2++;
            s0 += v * a0, s1 += v * b0, s2 += v * c0, s3 += v * a1, s4 += v * b1, s5 += v * c1;
            s6 += v * a2, s7 += v * b2, s8 += v * c2;
            t0 += u * a0, t1 += u * b0, t2 += u * c0, t3 += u * a1, t4 += u * b1, t5 += u * c1;
            t6 += u * a2, t7 += u * b2, t8 += u * c2;
            if (!--n) {
                a0 = b0, a1 = b1, a2 = b2, b0 = c0, b1 = c1, b2 = c2;
                break;
            }
            v = *gy++, u = *hy++;
            a0 = *x++, a1 = *x1++, a2 = *x2++;
            s0 += v * b0, s1 += v * c0, s2 += v * a0, s3 += v * b1, s4 += v * c1, s5 += v * a1;
            s6 += v * b2, s7 += v * c2, s8 += v * a2;
            t0 += u * b0, t1 += u * c0, t2 += u * a0, t3 += u * b1, t4 += u * c1, t5 += u * a1;
            t6 += u * b2, t7 += u * c2, t8 += u * a2;
            if (!--n) {
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
        if (pad) { /* and so does the last one */
            v = *gy++, u = *hy++;
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
        x1 += skip;
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
    const int32_t skip = p->stride_y * p->width - 2 * width - 1 + is_outside;
    const float *x1 = p->pad_y ? from : from + p->width;
    for (int32_t oy = 0, top = -p->pad_y; oy < p->out_height; ++oy, top += p->stride_y) {
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
        x1 += skip;
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

/*@ poet_weights_in_twos */
/* What all kernels get, two at a time */
static void poet_weights_in_twos(const poet_update *u, const float *gy, const float *x, int32_t most,
                                 const poet_conv2d_shape *s)
{
    const int32_t in_plane = s->plane.height * s->plane.width, out_plane = s->plane.out_height * s->plane.out_width;
    for (int32_t g = 0, at = 0; g < s->groups; ++g) {
        for (int32_t o = 0; o < s->out_channels; o += 2) {
            for (int32_t c = 0; c < s->in_channels; ++c) {
                poet_weight_of_two(u, at, gy, x + c * in_plane, o + 1 == s->out_channels, most, s);
                at += 9;
            }
            at += o + 1 < s->out_channels ? 9 * s->in_channels : 0;
            gy += o + 1 < s->out_channels ? 2 * out_plane : out_plane;
        }
        x += s->in_channels * in_plane;
    }
}
