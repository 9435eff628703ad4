/* The way back through convolutions to their inputs; the order of sums follows from the shape alone. */

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

/*@ poet_scatter_row_of_3 */
/* Adds to a row of gx, from its first place inside, what n places of gy take by three taps, two columns apart */
static POET_APART void poet_scatter_row_of_3(float *gx, const float *gy, const float *w, int32_t n)
{
    const float w0 = w[0], w1 = w[1], w2 = w[2];
    float next = *gx;
    for (const float *const end = gy + n; gy < end;) {
        const float g = *gy++;
        gx[0] = next + w0 * g;
        gx[1] += w1 * g;
        next = gx[2] + w2 * g;
        gx += 2;
    }
    *gx = next;
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
/* Adds to a plane gx what each place of gy takes of it through one kernel: tap by tap over the rows of
   the plane, but for 3 taps and strides of 2, where an even column gets the tap of the place before it first */
static POET_APART void poet_scatter_taps(float *gx, const float *gy, const float *w, const poet_plane *p)
{
    const int are_3 = p->kernel_width == 3 && p->stride_x == 2 && p->dilation_x == 1 && p->pad_x == 0
                      && 2 * p->out_width + 1 <= p->width;
    for (int32_t ky = 0; ky < p->kernel_height; ++ky) {
        const int32_t down = ky * p->dilation_y - p->pad_y;
        const int32_t first = poet_first_place(-down, p->stride_y, p->out_height);
        const int32_t end = poet_first_place(p->height - down, p->stride_y, p->out_height);
        for (int32_t kx = 0; kx < p->kernel_width; kx += are_3 ? 3 : 1) {
            const float *taps = w + ky * p->kernel_width + kx;
            const int32_t shift = kx * p->dilation_x - p->pad_x;
            const int32_t from = poet_first_place(-shift, p->stride_x, p->out_width);
            const int32_t to = poet_first_place(p->width - shift, p->stride_x, p->out_width);
            for (int32_t oy = first; oy < end; ++oy) {
                float *row = gx + (oy * p->stride_y + down) * p->width;
                if (are_3) {
                    poet_scatter_row_of_3(row, gy + oy * p->out_width, taps, p->out_width);
                } else {
                    poet_scatter_tap(row, gy + oy * p->out_width, *taps, shift, from, to, p);
                }
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
