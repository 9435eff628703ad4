/* Planes of height x width made larger, smaller, or into windows beside each other. */

/*@ poet_inner_place */
/* Where place i beyond n of them reads: at the nearest edge, or mirrored at it */
static int32_t poet_inner_place(int32_t i, int32_t n, int is_mirrored)
{
    if (i < 0) {
        return is_mirrored ? -i : 0;
    }
    return i < n ? i : is_mirrored ? 2 * (n - 1) - i : n - 1;
}

/*@ poet_pad_edges */
/* y = planes with a border of what is at the edge, or mirrored there */
void poet_pad_edges(float *y, const float *x, int is_mirrored, const poet_pad2d_shape *s)
{
    for (int32_t row = 0; row < s->planes * s->out_height; ++row) {
        const int32_t iy = poet_inner_place(row % s->out_height - s->top, s->height, is_mirrored);
        const float *const from = x + (row / s->out_height * s->height + iy) * s->width;
        for (int32_t column = 0; column < s->out_width; ++column) {
            *y++ = from[poet_inner_place(column - s->left, s->width, is_mirrored)];
        }
    }
}

/*@ poet_pad_edges_backward */
/* gx = the sums of the gradients of all places that read each */
void poet_pad_edges_backward(float *gx, const float *gy, int is_mirrored, const poet_pad2d_shape *s)
{
    for (int32_t i = 0; i < s->planes * s->height * s->width; ++i) {
        gx[i] = 0.0f;
    }
    for (int32_t row = 0; row < s->planes * s->out_height; ++row) {
        const int32_t iy = poet_inner_place(row % s->out_height - s->top, s->height, is_mirrored);
        float *const to = gx + (row / s->out_height * s->height + iy) * s->width;
        for (int32_t column = 0; column < s->out_width; ++column) {
            to[poet_inner_place(column - s->left, s->width, is_mirrored)] += *gy++;
        }
    }
}

/*@ poet_between */
/* Which two of n places the made place o lies between, and how near it is to the second */
static poet_pair poet_between(int32_t o, int32_t n, float scale, int is_aligned)
{
    const float at = is_aligned ? scale * (float)o : scale * ((float)o + 0.5f) - 0.5f;
    const float place = at > 0.0f ? at : 0.0f;
    poet_pair found;
    found.first = (int32_t)place < n - 1 ? (int32_t)place : n - 1;
    found.second = found.first < n - 1 ? found.first + 1 : found.first;
    found.share = place - (float)found.first;
    found.share = found.share < 1.0f ? found.share : 1.0f;
    return found;
}

/*@ poet_resize */
/* y = planes whose places lie between those of x, each by how near four of them are */
void poet_resize(float *y, const float *x, const poet_resize_shape *s)
{
    for (int32_t row = 0; row < s->planes * s->out_height; ++row) {
        const poet_pair down = poet_between(row % s->out_height, s->height, s->down, s->is_aligned);
        const float *const plane = x + row / s->out_height * s->height * s->width;
        const float *const above = plane + down.first * s->width, *const below = plane + down.second * s->width;
        for (int32_t column = 0; column < s->out_width; ++column) {
            const poet_pair across = poet_between(column, s->width, s->across, s->is_aligned);
            const float rest = 1.0f - across.share;
            const float upper = rest * above[across.first] + across.share * above[across.second];
            const float lower = rest * below[across.first] + across.share * below[across.second];
            *y++ = (1.0f - down.share) * upper + down.share * lower;
        }
    }
}

/*@ poet_resize_backward */
/* gx = the shares of the gradients of all places that read each */
void poet_resize_backward(float *gx, const float *gy, const poet_resize_shape *s)
{
    for (int32_t i = 0; i < s->planes * s->height * s->width; ++i) {
        gx[i] = 0.0f;
    }
    for (int32_t row = 0; row < s->planes * s->out_height; ++row) {
        const poet_pair down = poet_between(row % s->out_height, s->height, s->down, s->is_aligned);
        float *const plane = gx + row / s->out_height * s->height * s->width;
        float *const above = plane + down.first * s->width, *const below = plane + down.second * s->width;
        for (int32_t column = 0; column < s->out_width; ++column) {
            const poet_pair across = poet_between(column, s->width, s->across, s->is_aligned);
            const float rest = 1.0f - across.share, upper = (1.0f - down.share) * *gy, lower = down.share * *gy;
            above[across.first] += rest * upper;
            above[across.second] += across.share * upper;
            below[across.first] += rest * lower;
            below[across.second] += across.share * lower;
            ++gy;
        }
    }
}

/*@ poet_window_place */
/* Where in its plane tap `tap` of the window of made place `at` lies; -1: in the padding */
static int32_t poet_window_place(int32_t tap, int32_t at, const poet_plane *p)
{
    const int32_t iy = at / p->out_width * p->stride_y - p->pad_y + tap / p->kernel_width * p->dilation_y;
    const int32_t ix = at % p->out_width * p->stride_x - p->pad_x + tap % p->kernel_width * p->dilation_x;
    return iy < 0 || iy >= p->height || ix < 0 || ix >= p->width ? -1 : iy * p->width + ix;
}

/*@ poet_unfold */
/* y = for each plane and each tap of a window what it reads at all places; 0 in the padding */
void poet_unfold(float *y, const float *x, const poet_pool_shape *s)
{
    const poet_plane *p = &s->plane;
    for (int32_t row = 0; row < s->planes * p->kernel_height * p->kernel_width; ++row) {
        const float *const plane = x + row / (p->kernel_height * p->kernel_width) * p->height * p->width;
        for (int32_t at = 0; at < p->out_height * p->out_width; ++at) {
            const int32_t place = poet_window_place(row % (p->kernel_height * p->kernel_width), at, p);
            *y++ = place < 0 ? 0.0f : plane[place];
        }
    }
}

/*@ poet_fold */
/* The way back: x = the sums of what all windows have at each place */
void poet_fold(float *x, const float *y, const poet_pool_shape *s)
{
    const poet_plane *p = &s->plane;
    for (int32_t i = 0; i < s->planes * p->height * p->width; ++i) {
        x[i] = 0.0f;
    }
    for (int32_t row = 0; row < s->planes * p->kernel_height * p->kernel_width; ++row) {
        float *const plane = x + row / (p->kernel_height * p->kernel_width) * p->height * p->width;
        for (int32_t at = 0; at < p->out_height * p->out_width; ++at, ++y) {
            const int32_t place = poet_window_place(row % (p->kernel_height * p->kernel_width), at, p);
            if (place >= 0) {
                plane[place] += *y;
            }
        }
    }
}

/*@ poet_adaptive_window */
/* The window of a made place where planes are shared out so that windows may overlap by one */
static poet_window poet_adaptive_window(int32_t oy, int32_t ox, const poet_pool_shape *s)
{
    const poet_plane *p = &s->plane;
    poet_window w;
    w.top = oy * p->height / p->out_height;
    w.left = ox * p->width / p->out_width;
    w.bottom = ((oy + 1) * p->height + p->out_height - 1) / p->out_height;
    w.right = ((ox + 1) * p->width + p->out_width - 1) / p->out_width;
    w.count = (w.bottom - w.top) * (w.right - w.left);
    return w;
}

/*@ poet_adaptive_avg_pool2d */
/* y = mean of each such window */
void poet_adaptive_avg_pool2d(float *y, const float *x, const poet_pool_shape *s)
{
    const poet_plane *p = &s->plane;
    for (int32_t at = 0; at < s->planes * p->out_height * p->out_width; ++at) {
        const poet_window w = poet_adaptive_window(at / p->out_width % p->out_height, at % p->out_width, s);
        const float *const plane = x + at / (p->out_height * p->out_width) * p->height * p->width;
        float total = 0.0f;
        for (int32_t iy = w.top; iy < w.bottom; ++iy) {
            total += poet_sum(plane + iy * p->width + w.left, 1, w.right - w.left);
        }
        *y++ = total / (float)w.count;
    }
}

/*@ poet_adaptive_avg_pool2d_backward */
/* gx = each place's share of the gradients of the windows that it is in */
void poet_adaptive_avg_pool2d_backward(float *gx, const float *gy, const poet_pool_shape *s)
{
    const poet_plane *p = &s->plane;
    for (int32_t i = 0; i < s->planes * p->height * p->width; ++i) {
        gx[i] = 0.0f;
    }
    for (int32_t at = 0; at < s->planes * p->out_height * p->out_width; ++at) {
        const poet_window w = poet_adaptive_window(at / p->out_width % p->out_height, at % p->out_width, s);
        float *const plane = gx + at / (p->out_height * p->out_width) * p->height * p->width;
        const float share = *gy++ / (float)w.count;
        for (int32_t iy = w.top; iy < w.bottom; ++iy) {
            for (int32_t ix = w.left; ix < w.right; ++ix) {
                plane[iy * p->width + ix] += share;
            }
        }
    }
}
