/* Pooling over planes of height x width. */

/*@ poet_avg_pool2d */
/* y = mean of each window; what a window has beyond the padded image counts neither as place nor as value */
void poet_avg_pool2d(float *y, const float *x, const poet_pool_shape *s)
{
    const poet_plane *p = &s->plane;
    for (int32_t plane = 0; plane < s->planes; ++plane) {
        for (int32_t oy = 0; oy < p->out_height; ++oy) {
            for (int32_t ox = 0; ox < p->out_width; ++ox) {
                const poet_window w = poet_window_at(oy, ox, s);
                float total = 0.0f;
                for (int32_t iy = w.top; iy < w.bottom; ++iy) {
                    total += poet_sum(x + iy * p->width + w.left, 1, w.right - w.left);
                }
                *y++ = total / (float)w.count;
            }
        }
        x += p->height * p->width;
    }
}

/*@ poet_avg_pool2d_backward */
/* gx = each place's share of the gradients of the windows that it is in */
void poet_avg_pool2d_backward(float *gx, const float *gy, const poet_pool_shape *s)
{
    const poet_plane *p = &s->plane;
    for (int32_t plane = 0; plane < s->planes; ++plane) {
        for (int32_t i = 0; i < p->height * p->width; ++i) {
            gx[i] = 0.0f;
        }
        for (int32_t oy = 0; oy < p->out_height; ++oy) {
            for (int32_t ox = 0; ox < p->out_width; ++ox) {
                const poet_window w = poet_window_at(oy, ox, s);
                const float share = *gy++ / (float)w.count;
                for (int32_t iy = w.top; iy < w.bottom; ++iy) {
                    for (int32_t ix = w.left; ix < w.right; ++ix) {
                        gx[iy * p->width + ix] += share;
                    }
                }
            }
        }
        gx += p->height * p->width;
    }
}

/*@ poet_window_at */
/* The window of a place, cut to the image, and by how many places its sum is divided */
static poet_window poet_window_at(int32_t oy, int32_t ox, const poet_pool_shape *s)
{
    const poet_plane *p = &s->plane;
    poet_window w;
    w.top = oy * p->stride_y - p->pad_y;
    w.left = ox * p->stride_x - p->pad_x;
    w.bottom = w.top + p->kernel_height;
    w.right = w.left + p->kernel_width;
    w.bottom = w.bottom < p->height + p->pad_y ? w.bottom : p->height + p->pad_y;
    w.right = w.right < p->width + p->pad_x ? w.right : p->width + p->pad_x;
    w.count = (w.bottom - w.top) * (w.right - w.left);
    w.top = w.top > 0 ? w.top : 0;
    w.left = w.left > 0 ? w.left : 0;
    w.bottom = w.bottom < p->height ? w.bottom : p->height;
    w.right = w.right < p->width ? w.right : p->width;
    if (!s->count_padding) {
        w.count = (w.bottom - w.top) * (w.right - w.left);
    }
    return w;
}

/*@ poet_max_pool2d */
/* y = the largest of each window, and where in its plane that is, as a number of 64 bits */
void poet_max_pool2d(float *y, void *indices, const float *x, const poet_pool_shape *s)
{
    const poet_plane *p = &s->plane;
    unsigned char *to = indices;
    for (int32_t plane = 0; plane < s->planes; ++plane) {
        for (int32_t oy = 0; oy < p->out_height; ++oy) {
            for (int32_t ox = 0; ox < p->out_width; ++ox) {
                int64_t found = -1;
                for (int32_t ky = 0; ky < p->kernel_height; ++ky) {
                    for (int32_t kx = 0; kx < p->kernel_width; ++kx) {
                        const int32_t iy = oy * p->stride_y - p->pad_y + ky * p->dilation_y;
                        const int32_t ix = ox * p->stride_x - p->pad_x + kx * p->dilation_x;
                        if (iy < 0 || iy >= p->height || ix < 0 || ix >= p->width) {
                            continue;
                        }
                        const int32_t at = iy * p->width + ix;
                        if (found < 0 || x[at] > x[found] || x[at] != x[at]) {
                            found = at;
                        }
                    }
                }
                *y++ = x[found];
                memcpy(to, &found, sizeof found);
                to += sizeof found;
            }
        }
        x += p->height * p->width;
    }
}

/*@ poet_max_pool2d_backward */
/* gx = at each place the gradients of the windows whose largest it was */
void poet_max_pool2d_backward(float *gx, const float *gy, const void *indices, int32_t planes, int32_t size, int32_t n)
{
    const unsigned char *from = indices;
    for (int32_t i = 0; i < planes * size; ++i) {
        gx[i] = 0.0f;
    }
    for (int32_t i = 0; i < planes * n; ++i) {
        int64_t found;
        memcpy(&found, from, sizeof found);
        from += sizeof found;
        if (found >= 0 && found < size) {
            gx[i / n * size + (int32_t)found] += gy[i];
        }
    }
}

/*@ poet_upsample */
/* Planes of height x width, each element repeated over down x across */
void poet_upsample(float *y, const float *x, int32_t planes, int32_t height, int32_t width, int32_t down, int32_t across)
{
    for (int32_t row = 0; row < planes * height * down; ++row) {
        const float *const from = x + row / down * width;
        for (int32_t column = 0; column < width * across; ++column) {
            *y++ = from[column / across];
        }
    }
}

/*@ poet_upsample_backward */
/* The sums over what each element was repeated to */
void poet_upsample_backward(float *gx, const float *gy, int32_t planes, int32_t height, int32_t width, int32_t down,
                            int32_t across)
{
    for (int32_t row = 0; row < planes * height; ++row) {
        for (int32_t column = 0; column < width; ++column) {
            float total = 0.0f;
            for (int32_t i = 0; i < down * across; ++i) {
                total += gy[(row * down + i / across) * width * across + column * across + i % across];
            }
            *gx++ = total;
        }
    }
}
