/* The way back through convolutions to their inputs; the order of sums follows from the shape alone. */

/*@ poet_conv2d_backward_input */
/* gx = gy through the turned kernels, for strides of 1; the shape's plane is the way back: from gy to gx */
void poet_conv2d_backward_input(float *gx, const float *gy, const float *w, const poet_conv2d_shape *s)
{
    const int32_t in_plane = s->plane.out_height * s->plane.out_width, out_plane = s->plane.height * s->plane.width;
    const int32_t taps = s->plane.kernel_height * s->plane.kernel_width;
    const int is_tiled = poet_is_tiled(&s->plane, s->in_channels), rolls = poet_reads_in_twos(&s->plane);
    float *to = gx;
    for (int32_t n = 0; n < s->images; ++n) {
        for (int32_t g = 0; g < s->groups; ++g) {
            const float *from = gy + (n * s->groups + g) * s->out_channels * out_plane;
            for (int32_t c = 0; c < s->in_channels; ++c) {
                for (int32_t i = 0; i < in_plane; ++i) {
                    to[i] = 0.0f;
                }
                const int is_second = c % 2, in_twos = rolls && (is_second || c + 1 < s->in_channels);
                const float *last = w + (g * s->out_channels * s->in_channels + c + 1 - (in_twos ? is_second : 0)) * taps - 1;
                for (int32_t o = 0; o < s->out_channels && !is_tiled && is_second >= in_twos; ++o) {
                    if (!in_twos) {
                        poet_taps(to, from + o * out_plane, last, -1, &s->plane);
                    } else {
                        poet_taps_of_two(to - in_plane, in_plane, from + o * out_plane, last, taps, -1, &s->plane);
                    }
                    last += s->in_channels * taps;
                }
                to += in_plane;
            }
        }
    }
#if POET_WIDE
    if (is_tiled) {
        poet_tiles_there(gx, gy, w, 1, s);
    }
#endif
}

/*@ poet_gathers */
/* Whether a window of 3 x 3 moves by two rows and columns, all of them inside but perhaps the last of both */
static int poet_gathers(const poet_plane *p)
{
    return p->kernel_width == 3 && p->kernel_height == 3 && p->dilation_x == 1 && p->dilation_y == 1
           && p->stride_x == 2 && p->stride_y == 2 && p->pad_x == 0 && p->pad_y == 0
           && 2 * p->out_width <= p->width && 2 * p->out_height <= p->height;
}

/*@ poet_gather_3x3 */
/*
 * Adds to a plane gx what its places gave to gy through nine taps, two rows by two columns apart: four to an even place
 * of an even row, two or one to the others. Above the first row counts what is in it, times zero.
 */
static POET_APART void poet_gather_3x3(float *gx, const float *gy, const float *w, const poet_plane *p)
{
    const float w0 = w[0], w1 = w[1], w2 = w[2], w3 = w[3], w4 = w[4], w5 = w[5];
    float w6 = 0.0f, w7 = 0.0f, w8 = 0.0f;
    const float *above = gy;
    const int is_wide = 2 * p->out_width + 1 <= p->width;
    for (int32_t oy = 0; oy < p->out_height; ++oy) {
        float *even = gx + 2 * oy * p->width, *odd = even + p->width;
        float a2 = 0.0f, a5 = 0.0f, b8 = 0.0f; /* products with the places before */
        for (const float *const end = gy + p->out_width; gy < end;) {
            const float c = *gy++, d = *above++;
            even[0] += w0 * c + a2 + w6 * d + b8;
            even[1] += w1 * c + w7 * d;
            odd[0] += w3 * c + a5;
            odd[1] += w4 * c;
            even += 2;
            odd += 2;
            a2 = w2 * c, a5 = w5 * c, b8 = w8 * d;
        }
        if (is_wide) {
            *even += a2 + b8;
            *odd += a5;
        }
        above = gy - p->out_width;
        w6 = w[6], w7 = w[7], w8 = w[8];
    }
    if (2 * p->out_height + 1 > p->height) {
        return;
    }
    float *even = gx + 2 * p->out_height * p->width, b = 0.0f;
    for (const float *const end = gy; above < end;) {
        const float d = *above++;
        even[0] += w6 * d + w8 * b;
        even[1] += w7 * d;
        even += 2;
        b = d;
    }
    if (is_wide) {
        *even += w8 * b;
    }
}

/*@ poet_scatter_tap */
/* Adds to a plane gx what each place of gy takes of it through one tap, `from` up to `to` in each row */
static void poet_scatter_tap(float *gx, const float *gy, float tap, int32_t shift, int32_t from, int32_t to,
                             const poet_plane *p)
{
    const int32_t step = p->stride_x;
    float *row = gx + from * step + shift;
    for (const float *at = gy + from, *const end = gy + to; at < end; ++at) {
        *row += tap * *at;
        row += step;
    }
}

/*@ poet_scatter_taps */
/* Adds to a plane gx what each place of gy takes of it through one kernel, tap by tap over the rows of the plane */
static POET_APART void poet_scatter_taps(float *gx, const float *gy, const float *w, const poet_plane *p)
{
    for (int32_t ky = 0; ky < p->kernel_height; ++ky) {
        const int32_t down = ky * p->dilation_y - p->pad_y;
        const int32_t first = poet_first_place(-down, p->stride_y, p->out_height);
        const int32_t end = poet_first_place(p->height - down, p->stride_y, p->out_height);
        for (int32_t kx = 0; kx < p->kernel_width; ++kx) {
            const int32_t shift = kx * p->dilation_x - p->pad_x;
            const int32_t from = poet_first_place(-shift, p->stride_x, p->out_width);
            const int32_t to = poet_first_place(p->width - shift, p->stride_x, p->out_width);
            for (int32_t oy = first; oy < end; ++oy) {
                float *row = gx + (oy * p->stride_y + down) * p->width;
                poet_scatter_tap(row, gy + oy * p->out_width, w[ky * p->kernel_width + kx], shift, from, to, p);
            }
        }
    }
}

/*@ poet_conv2d_scatter */
/* gx = gy through the turned kernels, for any strides; the shape's plane is that of the way there */
void poet_conv2d_scatter(float *gx, const float *gy, const float *w, const poet_conv2d_shape *s)
{
    const int32_t in_plane = s->plane.height * s->plane.width, out_plane = s->plane.out_height * s->plane.out_width;
    const int32_t taps = s->plane.kernel_height * s->plane.kernel_width;
    const int is_tiled = poet_is_tiled(&s->plane, s->in_channels);
    float *to = gx;
    const int gathers = poet_gathers(&s->plane);
    for (int32_t n = 0; n < s->images; ++n) {
        for (int32_t g = 0; g < s->groups; ++g) {
            const float *from = gy + (n * s->groups + g) * s->out_channels * out_plane;
            for (int32_t c = 0; c < s->in_channels; ++c) {
                for (int32_t i = 0; i < in_plane; ++i) {
                    to[i] = 0.0f;
                }
                for (int32_t o = 0; o < s->out_channels && !is_tiled; ++o) {
                    const float *kernel = w + ((g * s->out_channels + o) * s->in_channels + c) * taps;
                    if (gathers && o + 1 < s->out_channels) {
                        poet_gather_of_two(to, from + o * out_plane, out_plane, kernel, s->in_channels * taps, &s->plane);
                        ++o;
                    } else if (gathers) {
                        poet_gather_3x3(to, from + o * out_plane, kernel, &s->plane);
                    } else {
                        poet_scatter_taps(to, from + o * out_plane, kernel, &s->plane);
                    }
                }
                to += in_plane;
            }
        }
    }
#if POET_WIDE
    if (is_tiled) {
        poet_tiles_back(gx, gy, w, !gathers, s);
    }
#endif
}

/*@ poet_add_channels */
/* y += a number for each channel, over images x channels x plane */
void poet_add_channels(float *y, const float *bias, int32_t images, int32_t channels, int32_t plane)
{
    for (int32_t n = 0; n < images; ++n) {
        for (int32_t c = 0; c < channels; ++c) {
            for (const float *const end = y + plane; y < end;) {
                *y++ += bias[c];
            }
        }
    }
}
