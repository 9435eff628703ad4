/*
 * Convolutions, tensors as images x channels x height x width. Sums over the taps of one channel are made
 * first, row by row; then the channels are added up in order. Blocks and borders keep that order.
 */

/*@ poet_rows_of_3x3 */
/*
 * y += the nine taps w at three rows of x, the middle one x1, for `rows` rows, stride 1 along each; `pad` columns of
 * zeros stand at both ends. The window moves through registers: each place loads one new column. `inside`: bit 0 says
 * that the upper row is inside the image, bit 1 that the lower one is; else the middle one counts, times zero.
 */
static POET_APART void poet_rows_of_3x3(float *y, const float *x1, const float *w, int32_t w_step, int32_t rows,
                                        int inside, const poet_plane *p)
{
    float w0 = 0.0f, w1 = 0.0f, w2 = 0.0f, w6 = 0.0f, w7 = 0.0f, w8 = 0.0f;
    if (inside & 1) {
        w0 = w[0], w1 = w[w_step], w2 = w[2 * w_step];
    }
    w += 3 * w_step;
    const float w3 = w[0], w4 = w[w_step], w5 = w[2 * w_step];
    w += 3 * w_step;
    if (inside & 2) {
        w6 = w[0], w7 = w[w_step], w8 = w[2 * w_step];
    }
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
        for (const float *const end = y + (width - pad); y < end;) {
            const float c0 = *x++, c1 = *x1++, c2 = *x2++;
            *y++ += w0 * a0 + w1 * b0 + w2 * c0 + w3 * a1 + w4 * b1 + w5 * c1 + w6 * a2 + w7 * b2 + w8 * c2;
            a0 = b0, a1 = b1, a2 = b2, b0 = c0, b1 = c1, b2 = c2;
        }
        if (pad) { /* the last column lies outside */
            *y++ += w0 * a0 + w1 * b0 + w3 * a1 + w4 * b1 + w6 * a2 + w7 * b2;
        }
        x += skip;
        x1 += skip;
        x2 += skip;
    }
}

/*@ poet_pairs_of_3x3 */
/* Likewise for pairs of rows from x on, all inside, where the window moves down by one: what both read is loaded once */
static POET_APART void poet_pairs_of_3x3(float *y, const float *x, const float *w, int32_t w_step, int32_t pairs,
                                         const poet_plane *p)
{
    const float w0 = w[0], w1 = w[w_step], w2 = w[2 * w_step];
    w += 3 * w_step;
    const float w3 = w[0], w4 = w[w_step], w5 = w[2 * w_step];
    w += 3 * w_step;
    const float w6 = w[0], w7 = w[w_step], w8 = w[2 * w_step];
    const int32_t pad = p->pad_x, width = p->out_width;
    while (pairs--) {
        const float *x1 = x + p->width, *x2 = x1 + p->width, *x3 = x2 + p->width;
        float a0 = 0.0f, a1 = 0.0f, a2 = 0.0f, a3 = 0.0f;
        if (!pad) {
            a0 = *x++, a1 = *x1++, a2 = *x2++, a3 = *x3++;
        }
        float b0 = *x++, b1 = *x1++, b2 = *x2++, b3 = *x3++;
        const float *const end = y + (width - pad);
        float *y1 = y + width;
        while (y < end) {
            float c0 = *x++, c1 = *x1++, c2 = *x2++, c3 = *x3++;
            *y++ += w0 * a0 + w1 * b0 + w2 * c0 + w3 * a1 + w4 * b1 + w5 * c1 + w6 * a2 + w7 * b2 + w8 * c2;
            *y1++ += w0 * a1 + w1 * b1 + w2 * c1 + w3 * a2 + w4 * b2 + w5 * c2 + w6 * a3 + w7 * b3 + w8 * c3;
            if (y == end) {
                a0 = b0, b0 = c0;
                a1 = b1, b1 = c1;
                a2 = b2, b2 = c2;
                a3 = b3, b3 = c3;
                break;
            }
            a0 = *x++, a1 = *x1++, a2 = *x2++, a3 = *x3++;
            *y++ += w0 * b0 + w1 * c0 + w2 * a0 + w3 * b1 + w4 * c1 + w5 * a1 + w6 * b2 + w7 * c2 + w8 * a2;
            *y1++ += w0 * b1 + w1 * c1 + w2 * a1 + w3 * b2 + w4 * c2 + w5 * a2 + w6 * b3 + w7 * c3 + w8 * a3;
            if (y == end) {
                b0 = a0, a0 = c0;
                b1 = a1, a1 = c1;
                b2 = a2, a2 = c2;
                b3 = a3, a3 = c3;
                break;
            }
            b0 = *x++, b1 = *x1++, b2 = *x2++, b3 = *x3++;
            *y++ += w0 * c0 + w1 * a0 + w2 * b0 + w3 * c1 + w4 * a1 + w5 * b1 + w6 * c2 + w7 * a2 + w8 * b2;
            *y1++ += w0 * c1 + w1 * a1 + w2 * b1 + w3 * c2 + w4 * a2 + w5 * b2 + w6 * c3 + w7 * a3 + w8 * b3;
        }
        if (pad) { /* the last column lies outside */
            *y++ += w0 * a0 + w1 * b0 + w3 * a1 + w4 * b1 + w6 * a2 + w7 * b2;
            *y1 += w0 * a1 + w1 * b1 + w3 * a2 + w4 * b2 + w6 * a3 + w7 * b3;
        }
        y += width;
        x = x1;
    }
}

/*@ poet_rows_of_3x3_by_2 */
/*
 * Likewise where the window moves by two columns: its last column is the next one's first, and all are inside but
 * perhaps the very last.
 */
static POET_APART void poet_rows_of_3x3_by_2(float *y, const float *x1, const float *w, int32_t w_step, int32_t rows,
                                             int inside, const poet_plane *p)
{
    float w0 = 0.0f, w1 = 0.0f, w2 = 0.0f, w6 = 0.0f, w7 = 0.0f, w8 = 0.0f;
    if (inside & 1) {
        w0 = w[0], w1 = w[w_step], w2 = w[2 * w_step];
    }
    w += 3 * w_step;
    const float w3 = w[0], w4 = w[w_step], w5 = w[2 * w_step];
    w += 3 * w_step;
    if (inside & 2) {
        w6 = w[0], w7 = w[w_step], w8 = w[2 * w_step];
    }
    const float *x = inside & 1 ? x1 - p->width : x1, *x2 = inside & 2 ? x1 + p->width : x1;
    const int32_t width = p->out_width, is_outside = 2 * width + 1 > p->width;
    const int32_t skip = p->stride_y * p->width - 2 * width - 1 + is_outside;
    while (rows--) {
        float a0 = w0 * *x++, a1 = w3 * *x1++, a2 = w6 * *x2++; /* products, as the columns are no longer needed */
        for (const float *const end = y + (width - is_outside); y < end;) {
            const float b0 = *x++, b1 = *x1++, b2 = *x2++, c0 = *x++, c1 = *x1++, c2 = *x2++;
            *y++ += a0 + w1 * b0 + w2 * c0 + a1 + w4 * b1 + w5 * c1 + a2 + w7 * b2 + w8 * c2;
            a0 = w0 * c0, a1 = w3 * c1, a2 = w6 * c2;
        }
        if (is_outside) {
            const float b0 = *x++, b1 = *x1++, b2 = *x2++;
            *y++ += a0 + w1 * b0 + a1 + w4 * b1 + a2 + w7 * b2;
        }
        x += skip;
        x1 += skip;
        x2 += skip;
    }
}

/*@ poet_rows_by_window */
/* The rows of any of them; of more than one row all is inside */
static void poet_rows_by_window(float *y, const float *x1, const float *w, int32_t w_step, int32_t rows, int inside,
                                const poet_plane *p)
{
    if (p->stride_x != 1) {
        poet_rows_of_3x3_by_2(y, x1, w, w_step, rows, inside, p);
        return;
    }
    const int32_t paired = p->stride_y == 1 ? rows & ~1 : 0;
    if (paired) {
        poet_pairs_of_3x3(y, x1 - p->width, w, w_step, paired / 2, p);
    }
    if (rows > paired) {
        y += paired * p->out_width;
        poet_rows_of_3x3(y, x1 + paired * p->width, w, w_step, rows - paired, inside, p);
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
/* Whether a window of 3 x 3 moves by one column, with at most one outside, or by two, the last may be; and one row */
static int poet_rolls(const poet_plane *p)
{
    const int by_1 = p->stride_x == 1 && p->pad_x >= 0 && p->pad_x <= 1 && p->out_width == p->width + 2 * p->pad_x - 2;
    const int by_2 = p->stride_x == 2 && p->pad_x == 0 && 2 * p->out_width <= p->width;
    return p->kernel_width == 3 && p->kernel_height == 3 && p->dilation_x == 1 && p->dilation_y == 1
           && (by_1 || by_2) && p->pad_y >= 0 && p->pad_y <= 1
           && (p->out_height - 1) * p->stride_y + 2 <= p->height + p->pad_y;
}

/*@ poet_rows_inside */
/* Of the three rows from `top` on: bit 0 says that the upper one is inside the image, bit 1 that the lower one is */
static int poet_rows_inside(int32_t top, const poet_plane *p)
{
    return (top < 0 ? 0 : 1) | (top + 2 >= p->height ? 0 : 2);
}

/*@ poet_taps_3x3 */
/* Adds to a plane y what a plane x gives, where the window rolls */
static POET_APART void poet_taps_3x3(float *y, const float *x, const float *w, int32_t w_step, const poet_plane *p)
{
    for (int32_t oy = 0; oy < p->out_height;) {
        const int32_t top = oy * p->stride_y - p->pad_y, whole = poet_whole_rows(top, p->out_height - oy, p);
        const int32_t rows = whole ? whole : 1;
        poet_rows_by_window(y, x + (top + 1) * p->width, w, w_step, rows, poet_rows_inside(top, p), p);
        y += rows * p->out_width;
        oy += rows;
    }
}

/*@ poet_taps_of_3x3 */
/* y[o] += the nine taps at x[o * stride] of three rows, for n places that have them all */
static POET_APART void poet_taps_of_3x3(float *y, const float *x, int32_t row, const float *w, int32_t w_step,
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

/*@ poet_taps_of_row */
/* y[o] += all taps inside the image, for the places `ox` up to `end` of a row, where `rows` of the kernel are */
static POET_APART void poet_taps_of_row(float *y, const float *x, const float *w, int32_t w_step, int32_t rows, int32_t ox,
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

/*@ poet_taps_of_rows_of_4 */
/* y[o] += four neighbouring taps at x[o * stride] in each of `rows` rows, for n places that have them all */
static POET_APART void poet_taps_of_rows_of_4(float *y, const float *x, int32_t skip, const float *w, int32_t rows,
                                              int32_t stride, int32_t n)
{
    for (const float *const end = y + n; y < end;) {
        const float *u = x, *v = w;
        float sum = 0.0f;
        for (const float *const last = w + 4 * rows; v < last; u += skip) {
            sum += v[0] * u[0];
            sum += v[1] * u[1];
            sum += v[2] * u[2];
            sum += v[3] * u[3];
            v += 4;
        }
        *y++ += sum;
        x += stride;
    }
}

/*@ poet_first_place */
/* The first place from which `distance` is reached, at most `limit` */
static POET_APART int32_t poet_first_place(int32_t distance, int32_t stride, int32_t limit)
{
    const int32_t first = distance <= 0 ? 0 : (distance + stride - 1) / stride;
    return first < limit ? first : limit;
}

/*@ poet_tap_of_1x1 */
/* y += the one tap w at every stride of x, without padding */
static void poet_tap_of_1x1(float *y, const float *x, float w, const poet_plane *p)
{
    const int32_t step = p->stride_x, width = p->out_width;
    for (int32_t oy = 0; oy < p->out_height; ++oy) {
        const float *from = x;
        for (const float *const end = y + width; y < end;) {
            *y++ += w * *from;
            from += step;
        }
        x += p->stride_y * p->width;
    }
}

/*@ poet_taps_by_row */
/* Adds to a plane y what a plane x gives through one kernel, row by row */
static POET_APART void poet_taps_by_row(float *y, const float *x, const float *w, int32_t w_step, const poet_plane *p)
{
    const int is_wide_3 = p->kernel_width == 3 && p->dilation_x == 1;
    const int is_wide_4 = p->kernel_width == 4 && p->dilation_x == 1 && p->pad_x == 0 && w_step == 1
                          && (p->out_width - 1) * p->stride_x + 4 <= p->width;
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
        if (is_wide_4) {
            poet_taps_of_rows_of_4(y, line, skip, taps, rows, p->stride_x, p->out_width);
        } else if (is_wide_3 && rows == 3 && from < to) {
            const float *inside = line + from * p->stride_x - p->pad_x;
            poet_taps_of_row(y, line, taps, w_step, rows, 0, from, p);
            poet_taps_of_3x3(y + from, inside, skip, taps, w_step, p->stride_x, to - from);
            poet_taps_of_row(y, line, taps, w_step, rows, to, p->out_width, p);
        } else {
            poet_taps_of_row(y, line, taps, w_step, rows, 0, p->out_width, p);
        }
        y += p->out_width;
    }
}

/*@ poet_taps */
/* Adds to a plane y what a plane x gives through one kernel; w_step is -1 where w is its last tap */
static POET_INSIDE void poet_taps(float *y, const float *x, const float *w, int32_t w_step, const poet_plane *p)
{
    if (poet_rolls(p)) {
        poet_taps_3x3(y, x, w, w_step, p);
    } else if (p->kernel_width == 1 && p->kernel_height == 1 && p->pad_x == 0 && p->pad_y == 0) {
        poet_tap_of_1x1(y, x, *w, p);
    } else {
        poet_taps_by_row(y, x, w, w_step, p);
    }
}

/*@ poet_conv2d */
/* y = bias + x through the kernels w; `bias` may be null */
void poet_conv2d(float *y, const float *x, const float *w, const float *bias, const poet_conv2d_shape *s)
{
    const int32_t in_plane = s->plane.height * s->plane.width, out_plane = s->plane.out_height * s->plane.out_width;
    const int32_t taps = s->plane.kernel_height * s->plane.kernel_width;
    const int is_tiled = poet_is_tiled(&s->plane, s->out_channels), rolls = poet_reads_in_twos(&s->plane);
    float *to = y;
    for (int32_t n = 0; n < s->images; ++n) {
        for (int32_t o = 0; o < s->groups * s->out_channels; ++o) {
            const float *from = x + (n * s->groups + o / s->out_channels) * s->in_channels * in_plane;
            const float begin = bias ? bias[o] : 0.0f;
            for (float *at = to, *const end = to + out_plane; at < end;) {
                *at++ = begin;
            }
            const int32_t in_group = o % s->out_channels, is_second = in_group % 2;
            const int in_twos = rolls && (is_second || in_group + 1 < s->out_channels);
            const float *kernel = w + (o - (in_twos ? is_second : 0)) * s->in_channels * taps;
            for (int32_t c = 0; c < s->in_channels && !is_tiled && is_second >= in_twos; ++c) {
                if (!in_twos) {
                    poet_taps(to, from + c * in_plane, kernel, 1, &s->plane);
                } else if (s->plane.stride_x == 1) {
                    poet_taps_of_two(to - out_plane, out_plane, from + c * in_plane, kernel, s->in_channels * taps, 1, &s->plane);
                } else {
                    poet_taps_of_two_by_2(to - out_plane, out_plane, from + c * in_plane, kernel, s->in_channels * taps, &s->plane);
                }
                kernel += taps;
            }
            to += out_plane;
        }
    }
#if POET_WIDE
    if (is_tiled) {
        poet_tiles_there(y, x, w, 0, s);
    }
#endif
}
