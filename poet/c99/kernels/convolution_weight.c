/*
 * What the kernels and biases of convolutions get. Sums over runs of rows are made first, then added up: of all rows that
 * have at most 64 places together, but at least one; of one row where a group makes one channel.
 */

/*@ poet_tap_gradient */
/* *sum += the products at the places of one row where tap kx lies inside the image, one by one */
static void poet_tap_gradient(float *sum, const float *gy, const float *row, int32_t kx, const poet_plane *p)
{
    const int32_t shift = kx * p->dilation_x - p->pad_x;
    const int32_t from = poet_first_place(-shift, p->stride_x, p->out_width);
    const int32_t to = poet_first_place(p->width - shift, p->stride_x, p->out_width);
    float made = *sum;
    for (int32_t ox = from; ox < to; ++ox) {
        made += gy[ox] * row[ox * p->stride_x + shift];
    }
    *sum = made;
}

/*@ poet_gradient_rows_of_3x3 */
/* g[0..8] += the sums over each of `rows` rows of gy for the nine taps, the window and `inside` as in the way there */
static POET_APART void poet_gradient_rows_of_3x3(float *g, const float *gy, const float *x1, int32_t rows, int inside,
                                                 const poet_plane *p)
{
    const float *x = inside & 1 ? x1 - p->width : x1, *x2 = inside & 2 ? x1 + p->width : x1;
    const int32_t pad = p->pad_x, width = p->out_width, skip = (p->stride_y - 1) * p->width;
    while (rows--) {
        float a0 = 0.0f, a1 = 0.0f, a2 = 0.0f;
        if (!pad) {
            a0 = *x++;
            a1 = *x1++;
            a2 = *x2++;
        }
        float b0 = *x++, b1 = *x1++, b2 = *x2++;
        float s0 = 0.0f, s1 = 0.0f, s2 = 0.0f, s3 = 0.0f, s4 = 0.0f, s5 = 0.0f, s6 = 0.0f, s7 = 0.0f, s8 = 0.0f;
        for (const float *const end = gy + (width - pad); gy < end;) {
            const float v = *gy++, c0 = *x++, c1 = *x1++, c2 = *x2++;
            s0 += v * a0, s1 += v * b0, s2 += v * c0;
            s3 += v * a1, s4 += v * b1, s5 += v * c1;
            s6 += v * a2, s7 += v * b2, s8 += v * c2;
            a0 = b0, a1 = b1, a2 = b2, b0 = c0, b1 = c1, b2 = c2;
        }
        if (pad) { /* the last column lies outside */
            const float v = *gy++;
            s0 += v * a0, s1 += v * b0;
            s3 += v * a1, s4 += v * b1;
            s6 += v * a2, s7 += v * b2;
        }
        if (inside & 1) {
            g[0] += s0, g[1] += s1, g[2] += s2;
        }
        g[3] += s3, g[4] += s4, g[5] += s5;
        if (inside & 2) {
            g[6] += s6, g[7] += s7, g[8] += s8;
        }
        x += skip;
        x1 += skip;
        x2 += skip;
    }
}

/*@ poet_gradient_pairs_of_3x3 */
/* Likewise for pairs of rows, all inside, where the window moves down by one: one sum for both rows of a pair */
static POET_APART void poet_gradient_pairs_of_3x3(float *g, const float *gy, const float *x, int32_t pairs,
                                                  const poet_plane *p)
{
    const int32_t pad = p->pad_x, width = p->out_width;
    while (pairs--) {
        const float *x1 = x + p->width, *x2 = x1 + p->width, *x3 = x2 + p->width;
        float a0 = 0.0f, a1 = 0.0f, a2 = 0.0f, a3 = 0.0f;
        if (!pad) {
            a0 = *x++, a1 = *x1++, a2 = *x2++, a3 = *x3++;
        }
        float b0 = *x++, b1 = *x1++, b2 = *x2++, b3 = *x3++;
        float s0 = 0.0f, s1 = 0.0f, s2 = 0.0f, s3 = 0.0f, s4 = 0.0f, s5 = 0.0f, s6 = 0.0f, s7 = 0.0f, s8 = 0.0f;
        const float *const end = gy + (width - pad), *gy1 = gy + width;
        while (gy < end) {
            float v = *gy++, u = *gy1++;
            float c0 = *x++, c1 = *x1++, c2 = *x2++, c3 = *x3++;
            s0 += v * a0, s1 += v * b0, s2 += v * c0;
            s3 += v * a1, s4 += v * b1, s5 += v * c1;
            s6 += v * a2, s7 += v * b2, s8 += v * c2;
            s0 += u * a1, s1 += u * b1, s2 += u * c1;
            s3 += u * a2, s4 += u * b2, s5 += u * c2;
            s6 += u * a3, s7 += u * b3, s8 += u * c3;
            if (gy == end) {
                a0 = b0, b0 = c0;
                a1 = b1, b1 = c1;
                a2 = b2, b2 = c2;
                a3 = b3, b3 = c3;
                break;
            }
            v = *gy++, u = *gy1++;
            a0 = *x++, a1 = *x1++, a2 = *x2++, a3 = *x3++;
            s0 += v * b0, s1 += v * c0, s2 += v * a0;
            s3 += v * b1, s4 += v * c1, s5 += v * a1;
            s6 += v * b2, s7 += v * c2, s8 += v * a2;
            s0 += u * b1, s1 += u * c1, s2 += u * a1;
            s3 += u * b2, s4 += u * c2, s5 += u * a2;
            s6 += u * b3, s7 += u * c3, s8 += u * a3;
            if (gy == end) {
                b0 = a0, a0 = c0;
                b1 = a1, a1 = c1;
                b2 = a2, a2 = c2;
                b3 = a3, a3 = c3;
                break;
            }
            v = *gy++, u = *gy1++;
            b0 = *x++, b1 = *x1++, b2 = *x2++, b3 = *x3++;
            s0 += v * c0, s1 += v * a0, s2 += v * b0;
            s3 += v * c1, s4 += v * a1, s5 += v * b1;
            s6 += v * c2, s7 += v * a2, s8 += v * b2;
            s0 += u * c1, s1 += u * a1, s2 += u * b1;
            s3 += u * c2, s4 += u * a2, s5 += u * b2;
            s6 += u * c3, s7 += u * a3, s8 += u * b3;
        }
        if (pad) { /* the last column lies outside */
            const float v = *gy++, u = *gy1;
            s0 += v * a0, s1 += v * b0;
            s3 += v * a1, s4 += v * b1;
            s6 += v * a2, s7 += v * b2;
            s0 += u * a1, s1 += u * b1;
            s3 += u * a2, s4 += u * b2;
            s6 += u * a3, s7 += u * b3;
        }
        g[0] += s0, g[1] += s1, g[2] += s2;
        g[3] += s3, g[4] += s4, g[5] += s5;
        g[6] += s6, g[7] += s7, g[8] += s8;
        gy += width;
        x = x1;
    }
}

/*@ poet_gradient_rows_of_3x3_by_2 */
/* Likewise where the window moves by two columns, all inside but perhaps the last */
static POET_APART void poet_gradient_rows_of_3x3_by_2(float *g, const float *gy, const float *x1, int32_t rows,
                                                      int inside, const poet_plane *p)
{
    const float *x = inside & 1 ? x1 - p->width : x1, *x2 = inside & 2 ? x1 + p->width : x1;
    const int32_t width = p->out_width, is_outside = 2 * width + 1 > p->width;
    const int32_t skip = p->stride_y * p->width - 2 * width - 1 + is_outside;
    while (rows--) {
        float a0 = *x++, a1 = *x1++, a2 = *x2++;
        float s0 = 0.0f, s1 = 0.0f, s2 = 0.0f, s3 = 0.0f, s4 = 0.0f, s5 = 0.0f, s6 = 0.0f, s7 = 0.0f, s8 = 0.0f;
        for (const float *const end = gy + (width - is_outside); gy < end;) {
            const float v = *gy++;
            const float b0 = *x++, b1 = *x1++, b2 = *x2++, c0 = *x++, c1 = *x1++, c2 = *x2++;
            s0 += v * a0, s1 += v * b0, s2 += v * c0;
            s3 += v * a1, s4 += v * b1, s5 += v * c1;
            s6 += v * a2, s7 += v * b2, s8 += v * c2;
            a0 = c0, a1 = c1, a2 = c2;
        }
        if (is_outside) {
            const float v = *gy++, b0 = *x++, b1 = *x1++, b2 = *x2++;
            s0 += v * a0, s1 += v * b0;
            s3 += v * a1, s4 += v * b1;
            s6 += v * a2, s7 += v * b2;
        }
        if (inside & 1) {
            g[0] += s0, g[1] += s1, g[2] += s2;
        }
        g[3] += s3, g[4] += s4, g[5] += s5;
        if (inside & 2) {
            g[6] += s6, g[7] += s7, g[8] += s8;
        }
        x += skip;
        x1 += skip;
        x2 += skip;
    }
}

/*@ poet_gradient_rows_by_window */
/* The rows of any of them; of more than one row all is inside */
static void poet_gradient_rows_by_window(float *g, const float *gy, const float *x1, int32_t rows, int inside,
                                         const poet_plane *p)
{
    if (p->stride_x != 1) {
        poet_gradient_rows_of_3x3_by_2(g, gy, x1, rows, inside, p);
        return;
    }
    const int32_t paired = p->stride_y == 1 ? rows & ~1 : 0;
    if (paired) {
        poet_gradient_pairs_of_3x3(g, gy, x1 - p->width, paired / 2, p);
    }
    if (rows > paired) {
        gy += paired * p->out_width;
        poet_gradient_rows_of_3x3(g, gy, x1 + paired * p->width, rows - paired, inside, p);
    }
}

/*@ poet_gradients_3x3 */
/* g += what nine taps get from a plane of gy and one of x, where the window rolls */
static POET_INSIDE void poet_gradients_3x3(float *g, const float *gy, const float *x, const poet_plane *p)
{
    for (int32_t oy = 0; oy < p->out_height;) {
        const int32_t top = oy * p->stride_y - p->pad_y, whole = poet_whole_rows(top, p->out_height - oy, p);
        const int32_t rows = whole ? whole : 1;
        poet_gradient_rows_by_window(g, gy, x + (top + 1) * p->width, rows, poet_rows_inside(top, p), p);
        gy += rows * p->out_width;
        oy += rows;
    }
}

/*@ poet_gradients_of_3 */
/* sums[0..2] += the products of one row of gy for three neighbouring taps, one by one, wherever they are inside */
static void poet_gradients_of_3(float *sums, const float *gy, const float *row, const poet_plane *p)
{
    const int32_t stride = p->stride_x, pad = p->pad_x, width = p->width;
    const int32_t from = poet_first_place(pad, stride, p->out_width);
    const int32_t to = poet_first_place(width + pad - 2, stride, p->out_width);
    float sum0 = sums[0], sum1 = sums[1], sum2 = sums[2];
    int32_t ox = 0;
    for (int side = 0; side < 2; ++side) {
        const int32_t end = side ? p->out_width : from;
        for (; ox < end; ++ox) {
            const int32_t ix = ox * stride - pad;
            const float g = gy[ox];
            if (ix >= 0 && ix < width) {
                sum0 += g * row[ix];
            }
            if (ix >= -1 && ix + 1 < width) {
                sum1 += g * row[ix + 1];
            }
            if (ix >= -2 && ix + 2 < width) {
                sum2 += g * row[ix + 2];
            }
        }
        if (side) {
            break;
        }
        const float *x = row + ox * stride - pad;
        for (; ox < to; ++ox) {
            const float g = gy[ox];
            sum0 += g * x[0];
            sum1 += g * x[1];
            sum2 += g * x[2];
            x += stride;
        }
    }
    sums[0] = sum0;
    sums[1] = sum1;
    sums[2] = sum2;
}

/*@ poet_gradients_of_4 */
/* sums[0..3] += the products of one row of gy for four neighbouring taps, one by one, all of them inside everywhere */
static void poet_gradients_of_4(float *sums, const float *gy, const float *x, const poet_plane *p)
{
    const int32_t step = p->stride_x;
    float s0 = sums[0], s1 = sums[1], s2 = sums[2], s3 = sums[3];
    for (const float *const end = gy + p->out_width; gy < end;) {
        const float g = *gy++;
        s0 += g * x[0], s1 += g * x[1], s2 += g * x[2], s3 += g * x[3];
        x += step;
    }
    sums[0] = s0, sums[1] = s1, sums[2] = s2, sums[3] = s3;
}

/*@ poet_add_run */
/* sums += the n sums of a run, which are zero then */
static void poet_add_run(float *sums, float *run, int32_t n)
{
    for (; n; --n) {
        *sums++ += *run;
        *run++ = 0.0f;
    }
}

/*@ poet_gradients_of_taps */
/* sums[0..n-1] += what n neighbouring taps of row ky, from kx on, get from a plane of gy and one of x, run by run */
static POET_APART void poet_gradients_of_taps(float *sums, const float *gy, const float *x, int32_t ky, int32_t kx, int32_t n,
                                   int32_t rows, const poet_plane *p)
{
    float run[4] = {0.0f};
    for (int32_t oy = 0; oy < p->out_height; ++oy) {
        const int32_t iy = oy * p->stride_y - p->pad_y + ky * p->dilation_y;
        if (oy % rows == 0) {
            poet_add_run(sums, run, n);
        }
        if (iy < 0 || iy >= p->height) {
            continue;
        }
        if (n == 4) {
            poet_gradients_of_4(run, gy + oy * p->out_width, x + iy * p->width + kx, p);
        } else if (n == 3) {
            poet_gradients_of_3(run, gy + oy * p->out_width, x + iy * p->width, p);
        } else {
            poet_tap_gradient(run, gy + oy * p->out_width, x + iy * p->width, kx, p);
        }
    }
    poet_add_run(sums, run, n);
}

/*@ poet_conv2d_backward_weight */
/* What the kernels get from gy and x, used as it is made: a few elements at a time */
void poet_conv2d_backward_weight(const poet_update *u, const float *gy, const float *x, const poet_conv2d_shape *s)
{
    const poet_plane *p = &s->plane;
    const int32_t in_plane = p->height * p->width, out_plane = p->out_height * p->out_width;
    const int32_t taps = p->kernel_height * p->kernel_width, step = s->groups * s->out_channels;
    const int in_twos = s->out_channels > 1 && poet_rolls_in_twos(p);
    const int32_t most = s->out_channels > 1 && p->out_width <= 32 ? 64 / p->out_width : 1;
    const int are_3 = p->kernel_width == 3 && p->dilation_x == 1, rolls = poet_rolls(p);
    const int are_4 = p->kernel_width % 4 == 0 && p->dilation_x == 1 && p->pad_x == 0
                      && (p->out_width - 1) * p->stride_x + p->kernel_width <= p->width;
    const int32_t n = rolls ? 9 : are_4 ? 4 : are_3 ? 3 : 1;
#if POET_WIDE
    const poet_tiling t = poet_tiling_there(0, s);
    const int is_run = p->out_width <= 64 && (in_twos || !rolls);
    if (poet_is_tiled(p, s->out_channels) && is_run && poet_weight_channels(most, &t) > 0) {
        for (int32_t g = 0; g < s->groups; ++g) {
            poet_weight_tiles(u, g * t.outs * t.w_out, gy + g * t.outs * out_plane, x + g * t.ins * in_plane, most, &t);
        }
        return;
    }
#endif
    if (in_twos) {
        poet_weights_in_twos(u, gy, x, most, s);
        return;
    }
    for (int32_t k = 0; k < step * s->in_channels * taps; k += n) {
        const int32_t kernel = k / taps, tap = k % taps;
        const int32_t o = kernel / s->in_channels, channel = o / s->out_channels * s->in_channels + kernel % s->in_channels;
        float sums[9] = {0.0f};
        for (int32_t image = 0; image < s->images; ++image) {
            const float *from = x + (image * s->groups * s->in_channels + channel) * in_plane;
            const float *gradient = gy + (image * step + o) * out_plane;
            if (rolls) {
                poet_gradients_3x3(sums, gradient, from, p);
            } else {
                const int32_t ky = tap / p->kernel_width;
                poet_gradients_of_taps(sums, gradient, from, ky, tap % p->kernel_width, n, most, p);
            }
        }
        u->apply(u, k, sums, n);
    }
}

/*@ poet_channel_sums */
/* The sum over all images of each channel's planes, used as it is made */
void poet_channel_sums(const poet_update *u, const float *x, int32_t images, int32_t channels, int32_t plane)
{
    for (int32_t c = 0; c < channels; ++c) {
        float total = 0.0f;
        for (int32_t n = 0; n < images; ++n) {
            total += poet_line_sum(x + (n * channels + c) * plane, plane);
        }
        u->apply(u, c, &total, 1);
    }
}
