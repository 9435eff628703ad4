/*
 * Convolutions, tensors as images x channels x height x width. Sums over the taps of one channel are made
 * first, row by row; then the channels are added up in order. Blocks and borders keep that order.
 */

/*@ poet_rows_of_3x3 */
/*
 * y += the nine taps w at three rows of x, for `rows` rows, stride 1 along each; `pad` columns of zeros stand at
 * both ends. The window moves through registers: each place loads one new column.
 */
static void poet_rows_of_3x3(float *y, const float *x, const float *x1, const float *x2, const float *w,
                             int32_t rows, const poet_plane *p)
{
    const float w0 = w[0], w1 = w[1], w2 = w[2], w3 = w[3], w4 = w[4], w5 = w[5], w6 = w[6], w7 = w[7], w8 = w[8];
    const int32_t pad = p->pad_x, width = p->out_width, skip = (p->stride_y - 1) * p->width;
    while (rows--) {
        float a0 = 0.0f, a1 = 0.0f, a2 = 0.0f;
        if (!pad) {
            a0 = *x++;
            a1 = *x1++;
            a2 = *x2++;
        }
        float b0 = *x++, b1 = *x1++, b2 = *x2++;
        const float *const end = y + (width - pad);
        float *const last = y + (width - 1);
        while (y < end) {
            float c0 = *x++, c1 = *x1++, c2 = *x2++;
            *y++ += w0 * a0 + w1 * b0 + w2 * c0 + w3 * a1 + w4 * b1 + w5 * c1 + w6 * a2 + w7 * b2 + w8 * c2;
            if (y == end) {
                a0 = b0, a1 = b1, a2 = b2;
                b0 = c0, b1 = c1, b2 = c2;
                break;
            }
            a0 = *x++, a1 = *x1++, a2 = *x2++;
            *y++ += w0 * b0 + w1 * c0 + w2 * a0 + w3 * b1 + w4 * c1 + w5 * a1 + w6 * b2 + w7 * c2 + w8 * a2;
            if (y == end) {
                b0 = a0, b1 = a1, b2 = a2;
                a0 = c0, a1 = c1, a2 = c2;
                break;
            }
            b0 = *x++, b1 = *x1++, b2 = *x2++;
            *y++ += w0 * c0 + w1 * a0 + w2 * b0 + w3 * c1 + w4 * a1 + w5 * b1 + w6 * c2 + w7 * a2 + w8 * b2;
        }
        if (pad) { /* the last column lies outside */
            *last += w0 * a0 + w1 * b0 + w3 * a1 + w4 * b1 + w6 * a2 + w7 * b2;
        }
        y = last + 1;
        x += skip;
        x1 += skip;
        x2 += skip;
    }
}

/*@ poet_whole_rows */
/* How many rows from `top` on have all three of theirs inside; 0: not even the first */
static int32_t poet_whole_rows(int32_t top, int32_t left, const poet_plane *p)
{
    if (top < 0 || top + 2 >= p->height) {
        return 0;
    }
    const int32_t rows = (p->height - 3 - top) / p->stride_y + 1;
    return rows < left ? rows : left;
}

/*@ poet_rolls */
/* Whether a window of 3 x 3 moves by one column, with at most one column and one row outside */
static int poet_rolls(const poet_plane *p)
{
    return p->kernel_width == 3 && p->kernel_height == 3 && p->stride_x == 1 && p->dilation_x == 1
           && p->dilation_y == 1 && p->pad_x >= 0 && p->pad_x <= 1 && p->pad_y >= 0 && p->pad_y <= 1
           && p->out_width == p->width + 2 * p->pad_x - 2
           && (p->out_height - 1) * p->stride_y + 3 <= p->height + 2 * p->pad_y;
}

/*@ poet_taps_3x3 */
/* Adds to a plane y what a plane x gives, where the window rolls; rows outside count as the one beside them, times zero */
static void poet_taps_3x3(float *y, const float *x, const float *w, int32_t w_step, const poet_plane *p)
{
    float taps[9], cut[9];
    for (int32_t k = 0; k < 9; ++k) {
        taps[k] = w[k * w_step];
    }
    for (int32_t oy = 0; oy < p->out_height;) {
        const int32_t top = oy * p->stride_y - p->pad_y, rows = poet_whole_rows(top, p->out_height - oy, p);
        const float *x1 = x + (top + 1) * p->width;
        if (rows) {
            poet_rows_of_3x3(y + oy * p->out_width, x1 - p->width, x1, x1 + p->width, taps, rows, p);
            oy += rows;
            continue;
        }
        const int is_below = top + 2 >= p->height;
        for (int32_t k = 0; k < 9; ++k) {
            cut[k] = (k < 3 && top < 0) || (k > 5 && is_below) ? 0.0f : taps[k];
        }
        const float *x0 = top < 0 ? x1 : x1 - p->width, *x2 = is_below ? x1 : x1 + p->width;
        poet_rows_of_3x3(y + oy * p->out_width, x0, x1, x2, cut, 1, p);
        ++oy;
    }
}

/*@ poet_taps_of_3x3 */
/* y[o] += the nine taps at x[o * stride] of three rows, for n places that have them all */
static void poet_taps_of_3x3(float *y, const float *x, int32_t row, const float *w, int32_t w_step,
                             int32_t stride, int32_t n)
{
    const float *x1 = x + row, *x2 = x1 + row;
    const float w0 = w[0], w1 = w[w_step], w2 = w[2 * w_step], w3 = w[3 * w_step], w4 = w[4 * w_step];
    const float w5 = w[5 * w_step], w6 = w[6 * w_step], w7 = w[7 * w_step], w8 = w[8 * w_step];
    for (int32_t o = 0; o < n; ++o) {
        float sum = w0 * x[0];
        sum += w1 * x[1];
        sum += w2 * x[2];
        sum += w3 * x1[0];
        sum += w4 * x1[1];
        sum += w5 * x1[2];
        sum += w6 * x2[0];
        sum += w7 * x2[1];
        sum += w8 * x2[2];
        y[o] += sum;
        x += stride;
        x1 += stride;
        x2 += stride;
    }
}

/*@ poet_taps_of_2x3 */
/* Likewise where one of the three rows lies outside the image; w is the first tap inside */
static void poet_taps_of_2x3(float *y, const float *x, int32_t row, const float *w, int32_t w_step,
                             int32_t stride, int32_t n)
{
    const float *x1 = x + row;
    const float w0 = w[0], w1 = w[w_step], w2 = w[2 * w_step];
    const float w3 = w[3 * w_step], w4 = w[4 * w_step], w5 = w[5 * w_step];
    for (int32_t o = 0; o < n; ++o) {
        float sum = w0 * x[0];
        sum += w1 * x[1];
        sum += w2 * x[2];
        sum += w3 * x1[0];
        sum += w4 * x1[1];
        sum += w5 * x1[2];
        y[o] += sum;
        x += stride;
        x1 += stride;
    }
}

/*@ poet_taps_of_row */
/* y[o] += all taps inside the image, for the places `ox` up to `end` of a row, where `rows` of the kernel are */
static void poet_taps_of_row(float *y, const float *x, const float *w, int32_t w_step, int32_t rows, int32_t ox,
                             int32_t end, const poet_plane *p)
{
    const int32_t skip = p->dilation_y * p->width, line = p->kernel_width * w_step;
    for (; ox < end; ++ox) {
        const int32_t left = ox * p->stride_x - p->pad_x;
        int32_t first = 0, last = p->kernel_width;
        while (first < last && left + first * p->dilation_x < 0) {
            ++first;
        }
        while (last > first && left + (last - 1) * p->dilation_x >= p->width) {
            --last;
        }
        const float *from = x + left + first * p->dilation_x, *taps = w + first * w_step;
        const int32_t n = last - first;
        float sum = 0.0f;
        for (int32_t ky = 0; ky < rows; ++ky) {
            const float *u = from, *v = taps;
            for (int32_t kx = 0; kx < n; ++kx) {
                sum += *v * *u;
                u += p->dilation_x;
                v += w_step;
            }
            from += skip;
            taps += line;
        }
        y[ox] += sum;
    }
}

/*@ poet_first_place */
/* The first place from which `distance` is reached, at most `limit` */
static int32_t poet_first_place(int32_t distance, int32_t stride, int32_t limit)
{
    const int32_t first = distance <= 0 ? 0 : (distance + stride - 1) / stride;
    return first < limit ? first : limit;
}

/*@ poet_taps */
/* Adds to a plane y what a plane x gives through one kernel; w_step is -1 where w is its last tap */
static void poet_taps(float *y, const float *x, const float *w, int32_t w_step, const poet_plane *p)
{
    if (poet_rolls(p)) {
        poet_taps_3x3(y, x, w, w_step, p);
        return;
    }
    const int is_wide_3 = p->kernel_width == 3 && p->dilation_x == 1;
    const int32_t from = poet_first_place(p->pad_x, p->stride_x, p->out_width);
    const int32_t to = poet_first_place(p->width + p->pad_x - 2, p->stride_x, p->out_width);
    for (int32_t oy = 0; oy < p->out_height; ++oy) {
        const int32_t top = oy * p->stride_y - p->pad_y;
        int32_t first = 0, last = p->kernel_height;
        while (first < last && top + first * p->dilation_y < 0) {
            ++first;
        }
        while (last > first && top + (last - 1) * p->dilation_y >= p->height) {
            --last;
        }
        const int32_t rows = last - first, skip = p->dilation_y * p->width;
        const float *line = x + (top + first * p->dilation_y) * p->width;
        const float *taps = w + first * p->kernel_width * w_step;
        if (is_wide_3 && (rows == 3 || rows == 2) && from < to) {
            const float *inside = line + from * p->stride_x - p->pad_x;
            poet_taps_of_row(y, line, taps, w_step, rows, 0, from, p);
            if (rows == 3) {
                poet_taps_of_3x3(y + from, inside, skip, taps, w_step, p->stride_x, to - from);
            } else {
                poet_taps_of_2x3(y + from, inside, skip, taps, w_step, p->stride_x, to - from);
            }
            poet_taps_of_row(y, line, taps, w_step, rows, to, p->out_width, p);
        } else {
            poet_taps_of_row(y, line, taps, w_step, rows, 0, p->out_width, p);
        }
        y += p->out_width;
    }
}

/*@ poet_conv2d */
/* y = bias + x through the kernels w; `bias` may be null */
void poet_conv2d(float *y, const float *x, const float *w, const float *bias, const poet_conv2d_shape *s)
{
    const int32_t in_plane = s->plane.height * s->plane.width, out_plane = s->plane.out_height * s->plane.out_width;
    const int32_t taps = s->plane.kernel_height * s->plane.kernel_width;
    for (int32_t n = 0; n < s->images; ++n) {
        for (int32_t o = 0; o < s->groups * s->out_channels; ++o) {
            const float *from = x + (n * s->groups + o / s->out_channels) * s->in_channels * in_plane;
            for (int32_t i = 0; i < out_plane; ++i) {
                y[i] = bias ? bias[o] : 0.0f;
            }
            for (int32_t c = 0; c < s->in_channels; ++c) {
                poet_taps(y, from + c * in_plane, w + (o * s->in_channels + c) * taps, 1, &s->plane);
            }
            y += out_plane;
        }
    }
}

/*@ poet_conv2d_backward_input */
/* gx = gy through the turned kernels, for strides of 1; the shape's plane is the way back: from gy to gx */
void poet_conv2d_backward_input(float *gx, const float *gy, const float *w, const poet_conv2d_shape *s)
{
    const int32_t in_plane = s->plane.out_height * s->plane.out_width, out_plane = s->plane.height * s->plane.width;
    const int32_t taps = s->plane.kernel_height * s->plane.kernel_width;
    for (int32_t n = 0; n < s->images; ++n) {
        for (int32_t g = 0; g < s->groups; ++g) {
            const float *from = gy + (n * s->groups + g) * s->out_channels * out_plane;
            for (int32_t c = 0; c < s->in_channels; ++c) {
                for (int32_t i = 0; i < in_plane; ++i) {
                    gx[i] = 0.0f;
                }
                for (int32_t o = 0; o < s->out_channels; ++o) {
                    const float *last = w + (((g * s->out_channels + o) * s->in_channels + c) + 1) * taps - 1;
                    poet_taps(gx, from + o * out_plane, last, -1, &s->plane);
                }
                gx += in_plane;
            }
        }
    }
}

/*@ poet_scatter_taps */
/* Adds to a plane gx what each place of gy takes of it through one kernel */
static void poet_scatter_taps(float *gx, const float *gy, const float *w, const poet_plane *p)
{
    for (int32_t oy = 0; oy < p->out_height; ++oy) {
        for (int32_t ky = 0; ky < p->kernel_height; ++ky) {
            const int32_t iy = oy * p->stride_y - p->pad_y + ky * p->dilation_y;
            if (iy < 0 || iy >= p->height) {
                continue;
            }
            for (int32_t kx = 0; kx < p->kernel_width; ++kx) {
                const float tap = w[ky * p->kernel_width + kx];
                const int32_t shift = kx * p->dilation_x - p->pad_x;
                const int32_t from = poet_first_place(-shift, p->stride_x, p->out_width);
                const int32_t to = poet_first_place(p->width - shift, p->stride_x, p->out_width);
                float *row = gx + iy * p->width + shift;
                for (int32_t ox = from; ox < to; ++ox) {
                    row[ox * p->stride_x] += tap * gy[ox];
                }
            }
        }
        gy += p->out_width;
    }
}

/*@ poet_conv2d_scatter */
/* gx = gy through the turned kernels, for any strides; the shape's plane is that of the way there */
void poet_conv2d_scatter(float *gx, const float *gy, const float *w, const poet_conv2d_shape *s)
{
    const int32_t in_plane = s->plane.height * s->plane.width, out_plane = s->plane.out_height * s->plane.out_width;
    const int32_t taps = s->plane.kernel_height * s->plane.kernel_width;
    for (int32_t n = 0; n < s->images; ++n) {
        for (int32_t g = 0; g < s->groups; ++g) {
            const float *from = gy + (n * s->groups + g) * s->out_channels * out_plane;
            for (int32_t c = 0; c < s->in_channels; ++c) {
                for (int32_t i = 0; i < in_plane; ++i) {
                    gx[i] = 0.0f;
                }
                for (int32_t o = 0; o < s->out_channels; ++o) {
                    const float *kernel = w + ((g * s->out_channels + o) * s->in_channels + c) * taps;
                    poet_scatter_taps(gx, from + o * out_plane, kernel, &s->plane);
                }
                gx += in_plane;
            }
        }
    }
}

/*@ poet_tap_gradient */
/* The sum over the places of one row where tap kx lies inside the image */
static float poet_tap_gradient(const float *gy, const float *row, int32_t kx, const poet_plane *p)
{
    const int32_t shift = kx * p->dilation_x - p->pad_x;
    const int32_t from = poet_first_place(-shift, p->stride_x, p->out_width);
    const int32_t to = poet_first_place(p->width - shift, p->stride_x, p->out_width);
    float sum = 0.0f;
    for (int32_t ox = from; ox < to; ++ox) {
        sum += gy[ox] * row[ox * p->stride_x + shift];
    }
    return sum;
}

/*@ poet_gradient_rows_of_3x3 */
/* g[0..8] += the sums over each of `rows` rows of gy for the nine taps, the window as in the way there */
static void poet_gradient_rows_of_3x3(float *g, const float *gy, const float *x, const float *x1, const float *x2,
                                      int32_t rows, const poet_plane *p)
{
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
        const float *const end = gy + (width - pad);
        while (gy < end) {
            float v = *gy++;
            float c0 = *x++, c1 = *x1++, c2 = *x2++;
            s0 += v * a0, s1 += v * b0, s2 += v * c0;
            s3 += v * a1, s4 += v * b1, s5 += v * c1;
            s6 += v * a2, s7 += v * b2, s8 += v * c2;
            if (gy == end) {
                a0 = b0, a1 = b1, a2 = b2;
                b0 = c0, b1 = c1, b2 = c2;
                break;
            }
            v = *gy++;
            a0 = *x++, a1 = *x1++, a2 = *x2++;
            s0 += v * b0, s1 += v * c0, s2 += v * a0;
            s3 += v * b1, s4 += v * c1, s5 += v * a1;
            s6 += v * b2, s7 += v * c2, s8 += v * a2;
            if (gy == end) {
                b0 = a0, b1 = a1, b2 = a2;
                a0 = c0, a1 = c1, a2 = c2;
                break;
            }
            v = *gy++;
            b0 = *x++, b1 = *x1++, b2 = *x2++;
            s0 += v * c0, s1 += v * a0, s2 += v * b0;
            s3 += v * c1, s4 += v * a1, s5 += v * b1;
            s6 += v * c2, s7 += v * a2, s8 += v * b2;
        }
        if (pad) { /* the last column lies outside */
            const float v = *gy++;
            s0 += v * a0, s1 += v * b0;
            s3 += v * a1, s4 += v * b1;
            s6 += v * a2, s7 += v * b2;
        }
        g[0] += s0, g[1] += s1, g[2] += s2;
        g[3] += s3, g[4] += s4, g[5] += s5;
        g[6] += s6, g[7] += s7, g[8] += s8;
        x += skip;
        x1 += skip;
        x2 += skip;
    }
}

/*@ poet_gradients_3x3 */
/* g += what nine taps get from a plane of gy and one of x, where the window rolls */
static void poet_gradients_3x3(float *g, const float *gy, const float *x, const poet_plane *p)
{
    for (int32_t oy = 0; oy < p->out_height;) {
        const int32_t top = oy * p->stride_y - p->pad_y, rows = poet_whole_rows(top, p->out_height - oy, p);
        const float *x1 = x + (top + 1) * p->width;
        if (rows) {
            poet_gradient_rows_of_3x3(g, gy + oy * p->out_width, x1 - p->width, x1, x1 + p->width, rows, p);
            oy += rows;
            continue;
        }
        float made[9]; /* the rows outside get what is not theirs, and it is dropped */
        memcpy(made, g, sizeof made);
        const int is_below = top + 2 >= p->height;
        const float *x0 = top < 0 ? x1 : x1 - p->width, *x2 = is_below ? x1 : x1 + p->width;
        poet_gradient_rows_of_3x3(made, gy + oy * p->out_width, x0, x1, x2, 1, p);
        for (int32_t k = 0; k < 9; ++k) {
            if (!(k < 3 && top < 0) && !(k > 5 && is_below)) {
                g[k] = made[k];
            }
        }
        ++oy;
    }
}

/*@ poet_gradients_of_3 */
/* sums[0..2] += the sums over one row of gy for three neighbouring taps, wherever they are inside */
static void poet_gradients_of_3(float *sums, const float *gy, const float *row, const poet_plane *p)
{
    const int32_t stride = p->stride_x, pad = p->pad_x, width = p->width;
    const int32_t from = poet_first_place(pad, stride, p->out_width);
    const int32_t to = poet_first_place(width + pad - 2, stride, p->out_width);
    float sum0 = 0.0f, sum1 = 0.0f, sum2 = 0.0f;
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
    sums[0] += sum0;
    sums[1] += sum1;
    sums[2] += sum2;
}

/*@ poet_gradients_of_taps */
/* sums[0..n-1] += what n neighbouring taps of row ky, from kx on, get from a plane of gy and one of x */
static void poet_gradients_of_taps(float *sums, const float *gy, const float *x, int32_t ky, int32_t kx, int32_t n,
                                   const poet_plane *p)
{
    for (int32_t oy = 0; oy < p->out_height; ++oy) {
        const int32_t iy = oy * p->stride_y - p->pad_y + ky * p->dilation_y;
        if (iy < 0 || iy >= p->height) {
            continue;
        }
        if (n == 3) {
            poet_gradients_of_3(sums, gy + oy * p->out_width, x + iy * p->width, p);
        } else {
            *sums += poet_tap_gradient(gy + oy * p->out_width, x + iy * p->width, kx, p);
        }
    }
}

/*@ poet_conv2d_backward_weight */
/* What the kernels get from gy and x, used as it is made: nine, three or one element at a time */
void poet_conv2d_backward_weight(const poet_update *u, const float *gy, const float *x, const poet_conv2d_shape *s)
{
    const poet_plane *p = &s->plane;
    const int32_t in_plane = p->height * p->width, out_plane = p->out_height * p->out_width;
    const int32_t taps = p->kernel_height * p->kernel_width, step = s->groups * s->out_channels;
    const int are_3 = p->kernel_width == 3 && p->dilation_x == 1, rolls = poet_rolls(p);
    const int32_t n = rolls ? 9 : are_3 ? 3 : 1;
    for (int32_t k = 0; k < step * s->in_channels * taps; k += n) {
        const int32_t kernel = k / taps, tap = k % taps;
        const int32_t o = kernel / s->in_channels, c = kernel % s->in_channels;
        float sums[9] = {0.0f};
        for (int32_t image = 0; image < s->images; ++image) {
            const int32_t channel = (image * s->groups + o / s->out_channels) * s->in_channels + c;
            const float *from = x + channel * in_plane, *gradient = gy + (image * step + o) * out_plane;
            if (rolls) {
                poet_gradients_3x3(sums, gradient, from, p);
            } else {
                const int32_t ky = tap / p->kernel_width;
                poet_gradients_of_taps(sums, gradient, from, ky, tap % p->kernel_width, n, p);
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
            total += poet_sum(x + (n * channels + c) * plane, 1, plane);
        }
        u->apply(u, c, &total, 1);
    }
}
