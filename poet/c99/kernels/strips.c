/* Strips of an image: the rows that tiles read, once for all taps, with the zeros around them. */

/*@ poet_reach */
#if POET_WIDE
/* How many elements n places read together, from the first one to the last */
static int32_t poet_reach(const poet_axis *axis, int32_t n)
{
    return (n - 1) * axis->step + (axis->taps - 1) * axis->shift_step + 1;
}
#endif

/*@ poet_strip_rows */
#if POET_WIDE
/* Of how many rows of places tiles read a strip: 64 places in lines of 16, neighbours in what they read; else of none */
static int32_t poet_strip_rows(const poet_tiling *t)
{
    const poet_axis *across = &t->columns;
    if (across->step != 1 || across->shift_step < 1 || t->rows.shift_step < 1 || across->made % 16 || 64 % across->made) {
        return 0;
    }
    const int32_t rows = 64 / across->made, size = poet_reach(&t->rows, rows) * poet_reach(across, across->made);
    return t->rows.made % rows == 0 && size <= POET_PANEL ? rows : 0;
}
#endif

/*@ poet_strip */
#if POET_WIDE
/*
 * strip[channel][line] = what `rows` rows of places from `row` on read of x. Columns outside the image are zeros before and
 * stay so.
 */
static POET_APART void poet_strip(float *strip, const float *x, int32_t channels, int32_t row, int32_t rows,
                                  const poet_tiling *t)
{
    const poet_axis *across = &t->columns;
    const int32_t length = poet_reach(across, across->made), lines = poet_reach(&t->rows, rows);
    const int32_t before = across->shift < 0 ? -across->shift : 0, from = before + across->shift;
    const int32_t n = across->size - from < length - before ? across->size - from : length - before;
    const int32_t top = row * t->rows.step + t->rows.shift;
    for (int32_t c = 0; c < channels; ++c) {
        for (int32_t line = top; line < top + lines; ++line) {
            if (line < 0 || line >= t->rows.size) {
                memset(strip, 0, (size_t)length * 4u);
            } else if (n > 0) {
                memcpy(strip + before, x + line * across->size + from, (size_t)n * 4u);
            }
            strip += length;
        }
        x += t->x_plane;
    }
}
#endif

/*@ poet_weight_channels */
#if POET_WIDE
/* Of how many channels of x the kernels get their gradients at a time, from strips of `run` rows of places */
static int32_t poet_weight_channels(int32_t run, const poet_tiling *t)
{
    const int32_t by_tiles = POET_PANEL / 64 / (t->rows.taps * t->columns.taps);
    const int32_t by_strip = POET_PANEL / (poet_reach(&t->rows, run) * poet_reach(&t->columns, t->columns.made));
    return by_tiles < by_strip ? by_tiles : by_strip;
}
#endif

/*@ poet_weight_tiles_of_run */
#if POET_WIDE
/* tiles += what a strip of `channels` channels of x and up to 32 channels of gy give to their kernels at `rows` rows of it */
static void poet_weight_tiles_of_run(float *tiles, const float *strip, int32_t lines, const float *gy, int32_t channels,
                                     int32_t outs, int32_t rows, const poet_tiling *t)
{
    float turned[64 * 32];
    const int32_t row = t->columns.made, length = poet_reach(&t->columns, row), columns = outs > 16 ? 32 : 16;
    const int32_t across = t->columns.taps, taps = t->rows.taps * across, kernels = channels * taps;
    poet_steps s = {1, rows, row, 0, t->rows.step * length, t->columns.step, 0, row * columns, columns, 0, {0}};
    poet_turned(turned, gy, 1, t->y_plane, rows * row, outs, columns);
    for (int32_t k = 0; k < kernels; k += 8) {
        const int32_t n = kernels - k < 8 ? kernels - k : 8;
        const float *first = strip;
        for (int32_t i = 0; i < n; ++i) {
            const int32_t tap = (k + i) % taps, line = (k + i) / taps * lines + tap / across * t->rows.shift_step;
            const int32_t at = line * length + tap % across * t->columns.shift_step;
            first = i ? first : strip + at;
            s.rows[i] = (int32_t)(strip + at - first);
        }
        for (int32_t j = 0; j < columns; j += 16) {
            poet_tile_rows(tiles + k * 32 + j * 8, first, turned + j, n, &s);
        }
    }
}
#endif

/*@ poet_weight_tiles */
#if POET_WIDE
/* What the kernels of one group, from element `first` of the weight on, get from gy and x, used as it is made */
static void poet_weight_tiles(const poet_update *u, int32_t first, const float *gy, const float *x, int32_t run,
                              const poet_tiling *t)
{
    float strip[POET_PANEL], tiles[POET_PANEL / 2], made[POET_PANEL / 64];
    const int32_t taps = t->rows.taps * t->columns.taps, most = poet_weight_channels(run, t);
    const int is_one = t->images == 1 && t->rows.made <= run;
    memset(strip, 0, sizeof strip);
    for (int32_t c = 0; c < t->ins; c += most) {
        const int32_t channels = t->ins - c < most ? t->ins - c : most;
        for (int32_t o = 0; o < t->outs; o += 32) {
            const int32_t outs = t->outs - o < 32 ? t->outs - o : 32;
            memset(tiles, 0, sizeof tiles);
            for (int32_t i = 0; i < outs * channels * taps; i += 16) {
                POET_FETCH(u->p + first + ((o + i / (channels * taps)) * t->ins + c) * taps + i % (channels * taps));
            }
            for (int32_t line = 0; line < t->images * t->rows.made;) {
                const int32_t image = line / t->rows.made, first = line % t->rows.made, left = t->rows.made - first;
                if (!is_one || !o) {
                    poet_strip(strip, x + image * t->x_image + c * t->x_plane, channels, first, run, t);
                }
                poet_weight_tiles_of_run(tiles, strip, poet_reach(&t->rows, run),
                                         gy + image * t->y_image + o * t->y_plane + first * t->y_line, channels, outs,
                                         run < left ? run : left, t);
                line += run < left ? run : left;
            }
            for (int32_t j = 0; j < outs; ++j) {
                const float *from = tiles + j / 16 * 128 + j % 16;
                for (int32_t k = 0; k < channels * taps; k += 8) {
                    for (int i = 0; i < 8; ++i) {
                        made[k + i] = from[16 * i];
                    }
                    from += 256;
                }
                u->apply(u, first + ((o + j) * t->ins + c) * taps, made, channels * taps);
            }
        }
    }
}
#endif
