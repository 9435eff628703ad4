/*
 * Tiles of 8 x 16 elements for vector registers, where POET_WIDE: the sums of the kernels for one element at a time, each
 * in the same order. Nothing of this file is in an image for a microcontroller.
 */

/*@ poet_tile */
#if POET_WIDE
/*
 * sums += a * b for 8 rows and 16 neighbouring columns: for each channel the sum over its lines and taps is made first.
 */
static POET_WIDEST void poet_tile(float *sums, const float *a, const float *b, const poet_steps *s)
{
    float t0[16], t1[16], t2[16], t3[16], t4[16], t5[16], t6[16], t7[16];
    const int32_t *const r = s->rows, r1 = r[1], r2 = r[2], r3 = r[3], r4 = r[4], r5 = r[5], r6 = r[6], r7 = r[7];
    for (int32_t c = 0; c < s->channels; ++c) {
        const float *line = a + c * s->a_channel, *ahead = line + (c + 6 < s->channels ? 6 * s->a_channel : 0);
        for (int32_t i = 0; i < 8; ++i) {
            POET_FETCH(ahead + r[i]);
        }
        const float *from = b + c * s->b_channel;
        for (int j = 0; j < 16; ++j) {
            t0[j] = t1[j] = t2[j] = t3[j] = t4[j] = t5[j] = t6[j] = t7[j] = 0.0f;
        }
        for (int32_t ky = s->lines; ky; --ky) {
            const float *w = line, *v = from;
            for (int32_t n = s->taps; n; --n) {
                const float p0 = w[0], p1 = w[r1], p2 = w[r2], p3 = w[r3], p4 = w[r4], p5 = w[r5], p6 = w[r6], p7 = w[r7];
                for (int j = 0; j < 16; ++j) {
                    const float u = v[j];
                    t0[j] += p0 * u, t1[j] += p1 * u, t2[j] += p2 * u, t3[j] += p3 * u;
                    t4[j] += p4 * u, t5[j] += p5 * u, t6[j] += p6 * u, t7[j] += p7 * u;
                }
                w += s->a_tap;
                v += s->b_tap;
            }
            line += s->a_line;
            from += s->b_line;
        }
        for (int j = 0; j < 16; ++j) {
            sums[j] += t0[j], sums[16 + j] += t1[j], sums[32 + j] += t2[j], sums[48 + j] += t3[j];
            sums[64 + j] += t4[j], sums[80 + j] += t5[j], sums[96 + j] += t6[j], sums[112 + j] += t7[j];
        }
    }
}
#endif

/*@ poet_tile_direct */
#if POET_WIDE
/* Likewise with each product added to the sums by itself, which stay in registers */
static POET_WIDEST void poet_tile_direct(float *sums, const float *a, const float *b, const poet_steps *s)
{
    float t0[16], t1[16], t2[16], t3[16], t4[16], t5[16], t6[16], t7[16];
    const int32_t *const r = s->rows, r1 = r[1], r2 = r[2], r3 = r[3], r4 = r[4], r5 = r[5], r6 = r[6], r7 = r[7];
    for (int j = 0; j < 16; ++j) {
        t0[j] = sums[j], t1[j] = sums[16 + j], t2[j] = sums[32 + j], t3[j] = sums[48 + j];
        t4[j] = sums[64 + j], t5[j] = sums[80 + j], t6[j] = sums[96 + j], t7[j] = sums[112 + j];
    }
    for (int32_t c = 0; c < s->channels; ++c) {
        const float *line = a + c * s->a_channel, *ahead = line + (c + 6 < s->channels ? 6 * s->a_channel : 0);
        for (int32_t i = 0; i < 8; ++i) {
            POET_FETCH(ahead + r[i]);
        }
        const float *from = b + c * s->b_channel;
        for (int32_t ky = s->lines; ky; --ky) {
            const float *w = line, *v = from;
            for (int32_t n = s->taps; n; --n) {
                const float p0 = w[0], p1 = w[r1], p2 = w[r2], p3 = w[r3], p4 = w[r4], p5 = w[r5], p6 = w[r6], p7 = w[r7];
                for (int j = 0; j < 16; ++j) {
                    const float u = v[j];
                    t0[j] += p0 * u, t1[j] += p1 * u, t2[j] += p2 * u, t3[j] += p3 * u;
                    t4[j] += p4 * u, t5[j] += p5 * u, t6[j] += p6 * u, t7[j] += p7 * u;
                }
                w += s->a_tap;
                v += s->b_tap;
            }
            line += s->a_line;
            from += s->b_line;
        }
    }
    for (int j = 0; j < 16; ++j) {
        sums[j] = t0[j], sums[16 + j] = t1[j], sums[32 + j] = t2[j], sums[48 + j] = t3[j];
        sums[64 + j] = t4[j], sums[80 + j] = t5[j], sums[96 + j] = t6[j], sums[112 + j] = t7[j];
    }
}
#endif

/*@ poet_tile_rows */
#if POET_WIDE
/* Likewise for at most 8 rows */
static void poet_tile_rows(float *sums, const float *a, const float *b, int32_t rows, const poet_steps *s)
{
    if (rows == 8) {
        (s->is_direct ? poet_tile_direct : poet_tile)(sums, a, b, s);
        return;
    }
    for (int32_t r = 0; r < rows; ++r) {
        for (int32_t c = 0; c < s->channels; ++c) {
            const float *line = a + s->rows[r] + c * s->a_channel, *from = b + c * s->b_channel;
            float t[16] = {0.0f};
            for (int j = 0; j < 16 && s->is_direct; ++j) {
                t[j] = sums[16 * r + j];
                sums[16 * r + j] = -0.0f;
            }
            for (int32_t ky = s->lines; ky; --ky) {
                const float *w = line, *u = from;
                for (int32_t n = s->taps; n; --n) {
                    for (int j = 0; j < 16; ++j) {
                        t[j] += *w * u[j];
                    }
                    w += s->a_tap;
                    u += s->b_tap;
                }
                line += s->a_line;
                from += s->b_line;
            }
            for (int j = 0; j < 16; ++j) {
                sums[16 * r + j] += t[j];
            }
        }
    }
}
#endif

/*@ poet_panel_line */
#if POET_WIDE
/*
 * What the `count` places of a stretch read of a row through each of its taps, to every `width` of the panel. Copies are
 * of 16: the next stretch overwrites what is too many, and after the last one zeros fill the `room` that is left.
 */
static POET_APART void poet_panel_line(float *panel, int32_t width, const float *x, int32_t first, int32_t count,
                                       int32_t room, const poet_axis *t)
{
    float line[POET_LINE];
    const int32_t across = (t->taps - 1) * t->shift_step, back = across < 0 ? across : 0;
    const int32_t from = first * t->step + t->shift + back, n = (count - 1) * t->step + across - 2 * back + 1;
    const int32_t end = from + n < t->size ? n : t->size - from;
    int32_t i = 0;
    for (; i < n && from + i < 0; ++i) {
        line[i] = 0.0f;
    }
    for (; i < end; ++i) {
        line[i] = x[from + i];
    }
    for (; i < n; ++i) {
        line[i] = 0.0f;
    }
    for (int32_t tap = 0; tap < t->taps; ++tap) {
        const float *u = line + tap * t->shift_step - back;
        if (t->step == 1 && count + 15 < room) {
            for (int32_t j = 0; j < count; j += 16) {
                memcpy(panel + j, u + j, 64);
            }
        } else {
            for (int32_t j = 0; j < count; ++j) {
                panel[j] = u[j * t->step];
            }
            for (int32_t j = count; j < room && j < count + 15; ++j) {
                panel[j] = 0.0f;
            }
        }
        panel += width;
    }
}
#endif

/*@ poet_panel */
#if POET_WIDE
/* panel[channel][tap of a column][tap of a row][place] = what each of the listed stretches of places reads of x */
static POET_APART void poet_panel(float *panel, int32_t width, const float *x, int32_t channels,
                                  const poet_stretch *stretches, int32_t n, const poet_tiling *t)
{
    const poet_axis *rows = &t->rows;
    for (int32_t c = 0; c < channels; ++c) {
        for (int32_t ky = 0; ky < rows->taps; ++ky) {
            for (int32_t i = 0; i < n; ++i) {
                const poet_stretch *s = stretches + i;
                const int32_t row = s->row * rows->step + rows->shift + ky * rows->shift_step;
                float *to = panel + s->place;
                if (row >= 0 && row < rows->size) {
                    const float *from = x + s->image * t->x_image + c * t->x_plane + row * t->columns.size;
                    poet_panel_line(to, width, from, s->first, s->count, width - s->place, &t->columns);
                } else {
                    for (int32_t kx = 0; kx < t->columns.taps; ++kx) {
                        memset(to + kx * width, 0, (size_t)(width - s->place) * 4u);
                    }
                }
            }
            panel += t->columns.taps * width;
        }
    }
}
#endif

/*@ poet_stretches */
#if POET_WIDE
/* The stretches of rows of up to 64 places from place `at` on; writes how many, and where each place is in a plane of y */
static int32_t poet_stretches(poet_stretch *stretches, int32_t *places, int32_t at, int32_t end, const poet_tiling *t)
{
    const int32_t row = t->columns.made, plane = t->rows.made * row;
    int32_t n = 0, place = 0;
    while (at < end) {
        poet_stretch *s = stretches + n++;
        s->image = at / plane, s->row = at % plane / row, s->first = at % row, s->place = place;
        s->count = row - s->first < end - at ? row - s->first : end - at;
        int32_t to = s->image * t->y_image + (t->rows.at + s->row * t->rows.at_step) * t->y_line + t->columns.at;
        to += s->first * t->columns.at_step;
        for (int32_t i = 0; i < s->count; ++i) {
            places[place++] = to;
            to += t->columns.at_step;
        }
        at += s->count;
    }
    return n;
}
#endif

/*@ poet_tiles_of_panel */
#if POET_WIDE
/*
 * y += what a panel gives to all channels of y; its n places lie in a plane where `places` says, and rows of them are `line`
 * apart in the panel
 */
static void poet_tiles_of_panel(float *y, const float *w, const float *panel, int32_t line, const poet_steps *s,
                                const int32_t *places, int32_t n, const poet_tiling *t)
{
    for (int32_t j = 0; j < n; j += 16) {
        const float *from = panel + j / t->columns.made * line + j % t->columns.made;
        const int32_t columns = n - j < 16 ? n - j : 16, *at = places + j;
        const int is_line = columns == 16 && at[15] - at[0] == 15;
        for (int32_t o = 0; o < t->outs; o += 8) {
            const int32_t rows = t->outs - o < 8 ? t->outs - o : 8;
            float sums[128] = {0.0f}, *to = y + o * t->y_plane;
            for (int32_t r = 0; r < rows && is_line; ++r) {
                memcpy(sums + 16 * r, to + r * t->y_plane + at[0], 64);
            }
            for (int32_t r = 0; r < rows && !is_line; ++r) {
                for (int32_t i = 0; i < columns; ++i) {
                    sums[16 * r + i] = to[r * t->y_plane + at[i]];
                }
            }
            poet_tile_rows(sums, w + o * t->w_out, from, rows, s);
            for (int32_t r = 0; r < rows && is_line; ++r) {
                memcpy(to + r * t->y_plane + at[0], sums + 16 * r, 64);
            }
            for (int32_t r = 0; r < rows && !is_line; ++r) {
                for (int32_t i = 0; i < columns; ++i) {
                    to[r * t->y_plane + at[i]] = sums[16 * r + i];
                }
            }
        }
    }
}
#endif

/*@ poet_tiles */
#if POET_WIDE
/* y += x through the kernels w at the places that the axes name, for one group */
static void poet_tiles(float *y, const float *x, const float *w, const poet_tiling *t)
{
    float panel[POET_PANEL];
    poet_stretch stretches[64];
    int32_t places[64];
    const int32_t end = t->images * t->rows.made * t->columns.made, taps = t->columns.taps, row = t->columns.made;
    const int32_t rows = poet_strip_rows(t), length = poet_reach(&t->columns, row), step = t->w_out;
    poet_steps s = {
        0, t->rows.taps, taps, t->w_in, t->w_line * t->rows.tap_step, t->columns.tap_step,
        poet_reach(&t->rows, rows) * length, t->rows.shift_step * length, t->columns.shift_step, t->is_direct,
        {0, step, 2 * step, 3 * step, 4 * step, 5 * step, 6 * step, 7 * step},
    };
    memset(panel, 0, rows ? sizeof panel : 0u);
    for (int32_t from = 0; from < end; from += 64) {
        const int32_t n = end - from < 64 ? end - from : 64, width = (n + 15) & ~15;
        const int32_t count = poet_stretches(stretches, places, from, from + n, t);
        if (!rows) {
            s.b_tap = width, s.b_line = taps * width, s.b_channel = t->rows.taps * taps * width;
        }
        const int32_t most = POET_PANEL / s.b_channel;
        for (int32_t c = 0; c < t->ins; c += most) {
            s.channels = t->ins - c < most ? t->ins - c : most;
            if (rows) {
                poet_strip(panel, x + stretches->image * t->x_image + c * t->x_plane, s.channels, stretches->row, rows, t);
            } else {
                poet_panel(panel, width, x + c * t->x_plane, s.channels, stretches, count, t);
            }
            poet_tiles_of_panel(y, w + c * t->w_in, panel, rows ? t->rows.step * length : row, &s, places, n, t);
        }
    }
}
#endif

/*@ poet_is_tiled */
/* Whether a convolution that makes `outs` channels in each group is made by tiles: where their buffers hold its taps */
static int poet_is_tiled(const poet_plane *p, int32_t outs)
{
    const int32_t line = 63 * p->stride_x + (p->kernel_width - 1) * p->dilation_x + 16;
    return POET_WIDE && outs >= 4 && line < POET_LINE && 64 * p->kernel_height * p->kernel_width <= POET_PANEL;
}

/*@ poet_tiling_there */
#if POET_WIDE
/* The tiling of a plain convolution; where `is_back` its taps are counted from the last one, and w's channels swapped */
static poet_tiling poet_tiling_there(int is_back, const poet_conv2d_shape *s)
{
    const poet_plane *p = &s->plane;
    const int32_t width = p->kernel_width, taps = p->kernel_height * width, across = is_back ? -1 : 1;
    const int32_t in = p->height * p->width, out = p->out_height * p->out_width;
    const int32_t ins = is_back ? s->out_channels : s->in_channels, outs = is_back ? s->in_channels : s->out_channels;
    const poet_tiling t = {
        s->images, ins, outs, 0, s->groups * ins * in, in, s->groups * outs * out, out, p->out_width,
        is_back ? outs * taps : taps, is_back ? taps : ins * taps, width,
        {p->height, p->out_height, 0, 1, p->stride_y, -p->pad_y, p->dilation_y, across, p->kernel_height},
        {p->width, p->out_width, 0, 1, p->stride_x, -p->pad_x, p->dilation_x, across, width},
    };
    return t;
}
#endif

/*@ poet_tiles_there */
#if POET_WIDE
/* y += x through the kernels w, from their last tap on back where `is_back`; for all groups */
static void poet_tiles_there(float *y, const float *x, const float *w, int is_back, const poet_conv2d_shape *s)
{
    const poet_tiling t = poet_tiling_there(is_back, s);
    const int32_t taps = t.rows.taps * t.columns.taps, last = is_back ? taps - 1 : 0;
    for (int32_t g = 0; g < s->groups; ++g) {
        poet_tiles(y + g * t.outs * t.y_plane, x + g * t.ins * t.x_plane, w + g * t.ins * t.outs * taps + last, &t);
    }
}
#endif

/*@ poet_axis_back */
#if POET_WIDE
/* Places of gx whose number, divided by the stride, leaves `rest`, and the taps through which places of gy read them */
static poet_axis poet_axis_back(int32_t size, int32_t made, int32_t taps, int32_t stride, int32_t pad, int32_t dilation,
                                int32_t rest, int32_t *first)
{
    int32_t step = 1;
    *first = 0;
    while (*first < taps && (rest + pad - *first * dilation) % stride) {
        ++*first;
    }
    while (step * dilation % stride) {
        ++step;
    }
    const poet_axis axis = {
        size, (made - rest + stride - 1) / stride, rest, stride, 1, (rest + pad - *first * dilation) / stride,
        -(step * dilation / stride), step, (taps - *first + step - 1) / step,
    };
    return axis;
}
#endif

/*@ poet_tiles_back */
#if POET_WIDE
/* gx += gy through the turned kernels, for all groups and any strides; the shape is that of the way there */
static void poet_tiles_back(float *gx, const float *gy, const float *w, int is_direct, const poet_conv2d_shape *s)
{
    const poet_plane *p = &s->plane;
    const int32_t width = p->kernel_width, taps = p->kernel_height * width;
    const int32_t in = p->height * p->width, out = p->out_height * p->out_width;
    poet_tiling t = {
        s->images, s->out_channels, s->in_channels, is_direct,
        s->groups * s->out_channels * out, out, s->groups * s->in_channels * in, in, p->width,
        s->in_channels * taps, taps, width, {0}, {0},
    };
    for (int32_t rest = 0; rest < p->stride_y * p->stride_x; ++rest) {
        int32_t ky, kx;
        t.rows = poet_axis_back(p->out_height, p->height, p->kernel_height, p->stride_y, p->pad_y, p->dilation_y,
                                rest / p->stride_x, &ky);
        t.columns = poet_axis_back(p->out_width, p->width, width, p->stride_x, p->pad_x, p->dilation_x,
                                   rest % p->stride_x, &kx);
        if (t.rows.taps > 0 && t.columns.taps > 0) {
            for (int32_t g = 0; g < s->groups; ++g) {
                const float *first = w + g * t.ins * t.w_in + ky * width + kx;
                poet_tiles(gx + g * t.outs * in, gy + g * t.ins * out, first, &t);
            }
        }
    }
}
#endif

/*@ poet_turned */
#if POET_WIDE
/* to[i][j] = from[j][i] for n rows i, and `columns` neighbours j, of which `filled` are there and the others zeros */
static POET_APART void poet_turned(float *to, const float *from, int32_t step, int32_t row, int32_t n, int32_t filled,
                                   int32_t columns)
{
    for (int32_t j = 0; j < columns; ++j) {
        for (int32_t i = 0; i < n; ++i) {
            to[i * columns + j] = j < filled ? from[j * row + i * step] : 0.0f;
        }
    }
}
#endif

/*@ poet_product_tiles */
#if POET_WIDE
/* tiles += a * b for at most 64 rows and 16 columns, in the runs of 32 inner numbers of a product */
static POET_APART void poet_product_tiles(float *tiles, const float *a, const float *b, int32_t rows, int32_t columns,
                                          const poet_matmul_shape *s)
{
    const int is_there = s->b_column == 1 && columns == 16;
    for (int32_t from = 0; from < s->inner; from += 32) {
        const int32_t n = s->inner - from < 32 ? s->inner - from : 32;
        const int32_t row = s->a_row;
        const poet_steps steps = {
            1, 1, n, 0, 0, s->a_inner, 0, 0, is_there ? s->b_inner : 16, 0,
            {0, row, 2 * row, 3 * row, 4 * row, 5 * row, 6 * row, 7 * row},
        };
        float turned[32 * 16];
        if (!is_there) {
            poet_turned(turned, b, s->b_inner, s->b_column, n, columns, 16);
        }
        for (int32_t i = 0; i < rows; i += 8) {
            poet_tile_rows(tiles + i * 16, a + i * row, is_there ? b : turned, rows - i < 8 ? rows - i : 8, &steps);
        }
        a += 32 * s->a_inner;
        b += 32 * s->b_inner;
    }
}
#endif

/*@ poet_matmul_by_tiles */
#if POET_WIDE
/* y = start + a * b, or where `u` is given the sum of the products of all images for it */
static void poet_matmul_by_tiles(float *y, const float *start, const poet_update *u, const float *a, int32_t a_step,
                                 const float *b, int32_t b_step, int32_t images, const poet_matmul_shape *s)
{
    float tiles[64 * 16];
    for (int32_t at = 0; at < s->rows; at += 64) {
        const int32_t rows = s->rows - at < 64 ? s->rows - at : 64;
        for (int32_t j = 0; j < s->columns; j += 16) {
            const int32_t columns = s->columns - j < 16 ? s->columns - j : 16;
            memset(tiles, 0, sizeof tiles);
            for (int32_t i = 0; i < rows && start; ++i) {
                const float *from = start + (at + i) * s->start_row + j * s->start_column;
                for (int32_t k = 0; k < columns; ++k) {
                    tiles[16 * i + k] = from[k * s->start_column];
                }
            }
            for (int32_t n = 0; n < images; ++n) {
                const float *left = a + n * a_step + at * s->a_row;
                poet_product_tiles(tiles, left, b + n * b_step + j * s->b_column, rows, columns, s);
            }
            for (int32_t i = 0; i < rows; ++i) {
                const int32_t to = (at + i) * s->y_row + j * s->y_column;
                if (u) {
                    u->apply(u, to, tiles + 16 * i, columns);
                }
                for (int32_t k = 0; k < columns && !u; ++k) {
                    y[to + k * s->y_column] = tiles[16 * i + k];
                }
            }
        }
    }
}
#endif
