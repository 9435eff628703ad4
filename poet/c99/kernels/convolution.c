/*
 * Convolutions, tensors as images x channels x height x width. Sums over the taps of one channel are made
 * first, row by row; then the channels are added up in order. Blocks and borders keep that order.
 */

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

/*@ poet_tap_gradients_of_3 */
/* gw[0..2] += the sums over one row of gy for three neighbouring taps; from `from` to `to` all are inside */
static void poet_tap_gradients_of_3(float *gw, const float *gy, const float *row, int32_t from, int32_t to,
                                    const poet_plane *p)
{
    const int32_t stride = p->stride_x, pad = p->pad_x, width = p->width;
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
    gw[0] += sum0;
    gw[1] += sum1;
    gw[2] += sum2;
}

/*@ poet_conv2d_backward_weight */
/* gw = what the kernels get from gy and x */
void poet_conv2d_backward_weight(float *gw, const float *gy, const float *x, const poet_conv2d_shape *s)
{
    const poet_plane *p = &s->plane;
    const int32_t in_plane = p->height * p->width, out_plane = p->out_height * p->out_width;
    const int32_t taps = p->kernel_height * p->kernel_width;
    const int are_3 = p->kernel_width == 3 && p->dilation_x == 1;
    const int32_t from = poet_first_place(p->pad_x, p->stride_x, p->out_width);
    const int32_t to = poet_first_place(p->width + p->pad_x - 2, p->stride_x, p->out_width);
    for (int32_t o = 0; o < s->groups * s->out_channels; ++o) {
        for (int32_t c = 0; c < s->in_channels; ++c) {
            for (int32_t k = 0; k < taps; ++k) {
                gw[k] = 0.0f;
            }
            for (int32_t n = 0; n < s->images; ++n) {
                const float *image = x + ((n * s->groups + o / s->out_channels) * s->in_channels + c) * in_plane;
                const float *gradient = gy + (n * s->groups * s->out_channels + o) * out_plane;
                for (int32_t oy = 0; oy < p->out_height; ++oy) {
                    for (int32_t ky = 0; ky < p->kernel_height; ++ky) {
                        const int32_t iy = oy * p->stride_y - p->pad_y + ky * p->dilation_y;
                        if (iy < 0 || iy >= p->height) {
                            continue;
                        }
                        const float *row = image + iy * p->width;
                        if (are_3) {
                            poet_tap_gradients_of_3(gw + 3 * ky, gradient, row, from, to, p);
                            continue;
                        }
                        for (int32_t kx = 0; kx < p->kernel_width; ++kx) {
                            gw[ky * p->kernel_width + kx] += poet_tap_gradient(gradient, row, kx, p);
                        }
                    }
                    gradient += p->out_width;
                }
            }
            gw += taps;
        }
    }
}

/*@ poet_channel_sums */
/* y[channel] = the sum over all images of the channel's planes */
void poet_channel_sums(float *y, const float *x, int32_t images, int32_t channels, int32_t plane)
{
    for (int32_t c = 0; c < channels; ++c) {
        float total = 0.0f;
        for (int32_t n = 0; n < images; ++n) {
            total += poet_sum(x + (n * channels + c) * plane, 1, plane);
        }
        y[c] = total;
    }
}
