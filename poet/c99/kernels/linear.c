/* Products of matrices. Sums over `inner` are made in runs of 32, whatever the block: one order, one result. */

/*@ poet_matmul_block_of */
/* y += a * b for 4 rows and 4 columns over n of the inner numbers, at least one; steps known to the compiler cost nothing */
static POET_INSIDE void poet_matmul_block_of(float *y, int32_t y_row, int32_t y_column, const float *a, const float *b, int32_t n,
                                             int32_t a_row, int32_t a_step, int32_t b_step, int32_t b_column)
{
    const float *a1 = a + a_row, *a2 = a1 + a_row, *a3 = a2 + a_row;
    const float *b1 = b + b_column, *b2 = b1 + b_column, *b3 = b2 + b_column;
    float s00 = 0.0f, s01 = 0.0f, s02 = 0.0f, s03 = 0.0f, s10 = 0.0f, s11 = 0.0f, s12 = 0.0f, s13 = 0.0f;
    float s20 = 0.0f, s21 = 0.0f, s22 = 0.0f, s23 = 0.0f, s30 = 0.0f, s31 = 0.0f, s32 = 0.0f, s33 = 0.0f;
    do {
        const float u0 = *b, u1 = *b1, u2 = *b2, u3 = *b3;
        const float p = *a, q = *a1;
        s00 += p * u0, s01 += p * u1, s02 += p * u2, s03 += p * u3;
        s10 += q * u0, s11 += q * u1, s12 += q * u2, s13 += q * u3;
        const float r = *a2, t = *a3;
        s20 += r * u0, s21 += r * u1, s22 += r * u2, s23 += r * u3;
        s30 += t * u0, s31 += t * u1, s32 += t * u2, s33 += t * u3;
        a += a_step, a1 += a_step, a2 += a_step, a3 += a_step;
        b += b_step, b1 += b_step, b2 += b_step, b3 += b_step;
    } while (--n);
    float *z = y;
    const int32_t j1 = y_column, j2 = 2 * y_column, j3 = 3 * y_column;
    z[0] += s00, z[j1] += s01, z[j2] += s02, z[j3] += s03;
    z += y_row;
    z[0] += s10, z[j1] += s11, z[j2] += s12, z[j3] += s13;
    z += y_row;
    z[0] += s20, z[j1] += s21, z[j2] += s22, z[j3] += s23;
    z += y_row;
    z[0] += s30, z[j1] += s31, z[j2] += s32, z[j3] += s33;
}

/*@ poet_matmul_block */
/* Likewise, for any steps */
static POET_APART void poet_matmul_block(float *y, int32_t y_row, int32_t y_column, const float *a, const float *b,
                                         int32_t n, const poet_matmul_shape *s)
{
    poet_matmul_block_of(y, y_row, y_column, a, b, n, s->a_row, s->a_inner, s->b_inner, s->b_column);
}

/*@ poet_matmul_block_of_lines */
/* Likewise where the inner numbers are neighbours in both, and y's columns are */
static POET_APART void poet_matmul_block_of_lines(float *y, int32_t y_row, int32_t y_column, const float *a,
                                                  const float *b, int32_t n, const poet_matmul_shape *s)
{
    (void)y_column;
    poet_matmul_block_of(y, y_row, 1, a, b, n, s->a_row, 1, 1, s->b_column);
}

/*@ poet_matmul_block_of_rows */
/* Likewise where the inner numbers are neighbours in a, and the columns of b and of y are */
static POET_APART void poet_matmul_block_of_rows(float *y, int32_t y_row, int32_t y_column, const float *a,
                                                 const float *b, int32_t n, const poet_matmul_shape *s)
{
    (void)y_column;
    poet_matmul_block_of(y, y_row, 1, a, b, n, s->a_row, 1, s->b_inner, 1);
}

/*@ poet_matmul_block_of_columns */
/* Likewise where a's rows are neighbours, and the columns of b and of y */
static POET_APART void poet_matmul_block_of_columns(float *y, int32_t y_row, int32_t y_column, const float *a,
                                                    const float *b, int32_t n, const poet_matmul_shape *s)
{
    (void)y_column;
    poet_matmul_block_of(y, y_row, 1, a, b, n, 1, s->a_inner, s->b_inner, 1);
}

/*@ poet_matmul_fastest */
/* Whichever of them needs the fewest instructions */
static poet_matmul_function poet_matmul_fastest(int32_t y_column, const poet_matmul_shape *s)
{
    if (y_column == 1 && s->a_inner == 1 && s->b_column == 1) {
        return poet_matmul_block_of_rows;
    }
    if (y_column == 1 && s->a_row == 1 && s->b_column == 1) {
        return poet_matmul_block_of_columns;
    }
    return y_column == 1 && s->a_inner == 1 && s->b_inner == 1 ? poet_matmul_block_of_lines : poet_matmul_block;
}

/*@ poet_matmul_one */
/* One element of a * b over n of the inner numbers */
static float poet_matmul_one(const float *a, const float *b, int32_t n, const poet_matmul_shape *s)
{
    const int32_t a_step = s->a_inner, b_step = s->b_inner;
    float sum = 0.0f;
    while (n--) {
        sum += *a * *b;
        a += a_step;
        b += b_step;
    }
    return sum;
}

/*@ poet_matmul_tile */
/* y += a * b for `rows` x `columns` elements, at most 4 x 4, in runs of the inner numbers */
static POET_INSIDE void poet_matmul_tile(float *y, int32_t y_row, int32_t y_column, const float *a, const float *b, int32_t rows,
                             int32_t columns, poet_matmul_function block, const poet_matmul_shape *s)
{
    for (int32_t from = 0; from < s->inner; from += 32) {
        const int32_t n = s->inner - from < 32 ? s->inner - from : 32;
        if (rows == 4 && columns == 4) {
            block(y, y_row, y_column, a, b, n, s);
        } else {
            for (int32_t i = 0; i < rows; ++i) {
                for (int32_t j = 0; j < columns; ++j) {
                    y[i * y_row + j * y_column] += poet_matmul_one(a + i * s->a_row, b + j * s->b_column, n, s);
                }
            }
        }
        a += 32 * s->a_inner;
        b += 32 * s->b_inner;
    }
}

/*@ poet_matmul_begin */
/* The first addends of `columns` elements of a row; `from` may be null for 0 */
static void poet_matmul_begin(float *to, int32_t step, const float *from, int32_t from_step, int32_t columns)
{
    static const float zero;
    for (from_step = from ? from_step : 0, from = from ? from : &zero; columns; --columns) {
        *to = *from;
        to += step;
        from += from_step;
    }
}

/*@ poet_matmul */
/* y = start + a * b; `start` may be null for 0, and may repeat by strides of 0 */
void poet_matmul(float *y, const float *start, const float *a, const float *b, const poet_matmul_shape *s)
{
#if POET_WIDE
    if (s->rows >= 8 && s->columns >= 4) {
        poet_matmul_by_tiles(y, start, 0, a, 0, b, 0, 1, s);
        return;
    }
#endif
    const poet_matmul_function block = poet_matmul_fastest(s->y_column, s);
    for (int32_t i = 0; i < s->rows; i += 4) {
        const int32_t rows = s->rows - i < 4 ? s->rows - i : 4;
        for (int32_t j = 0; j < s->columns; j += 4) {
            const int32_t columns = s->columns - j < 4 ? s->columns - j : 4;
            float *to = y + i * s->y_row + j * s->y_column;
            const float *from = start ? start + i * s->start_row + j * s->start_column : 0;
            for (int32_t r = 0; r < rows; ++r) {
                poet_matmul_begin(to + r * s->y_row, s->y_column, from, s->start_column, columns);
                from = from ? from + s->start_row : 0;
            }
            poet_matmul_tile(to, s->y_row, s->y_column, a + i * s->a_row, b + j * s->b_column, rows, columns, block, s);
        }
    }
}

/*@ poet_matmul_images */
/* A product for each of `images`, which lie `y_step`, `a_step` and `b_step` apart: convolutions of 1 x 1 */
void poet_matmul_images(float *y, int32_t y_step, const float *start, const float *a, int32_t a_step,
                        const float *b, int32_t b_step, int32_t images, const poet_matmul_shape *s)
{
    for (int32_t n = 0; n < images; ++n) {
        poet_matmul(y + n * y_step, start, a + n * a_step, b + n * b_step, s);
    }
}

/*@ poet_matmul_narrow */
/*
 * tile[0..15] and tile[16..31] = a * b for two rows and n columns, which are neighbours, over four inner numbers: so
 * few that the columns are the long way. Each sum is made in the order of a block.
 */
static POET_APART void poet_matmul_narrow(float *tile, const float *a, const float *b, int32_t n,
                                          const poet_matmul_shape *s)
{
    const int32_t a_step = s->a_inner, b_step = s->b_inner;
    const float *a1 = a + s->a_row, *b1 = b + b_step, *b2 = b1 + b_step, *b3 = b2 + b_step;
    const float p0 = a[0], p1 = a[a_step], p2 = a[2 * a_step], p3 = a[3 * a_step];
    const float q0 = a1[0], q1 = a1[a_step], q2 = a1[2 * a_step], q3 = a1[3 * a_step];
    for (const float *const end = b + n; b < end; ++tile) {
        const float u0 = *b++, u1 = *b1++, u2 = *b2++, u3 = *b3++;
        tile[0] = 0.0f + p0 * u0 + p1 * u1 + p2 * u2 + p3 * u3;
        tile[16] = 0.0f + q0 * u0 + q1 * u1 + q2 * u2 + q3 * u3;
    }
}

/*@ poet_matmul_gradient_narrow */
/* The product of one image with four inner numbers and an even count of rows, two at a time, used as it is made */
void poet_matmul_gradient_narrow(const poet_update *u, const float *a, const float *b, const poet_matmul_shape *s)
{
    float tile[32];
    for (int32_t i = 0; i < s->rows; i += 2) {
        for (int32_t j = 0; j < s->columns; j += 16) {
            const int32_t n = s->columns - j < 16 ? s->columns - j : 16;
            poet_matmul_narrow(tile, a + i * s->a_row, b + j, n, s);
            u->apply(u, i * s->y_row + j, tile, n);
            u->apply(u, (i + 1) * s->y_row + j, tile + 16, n);
        }
    }
}

/*@ poet_matmul_gradient */
/* The sum of the products of all images, used as it is made, a few elements at a time; y's columns are neighbours */
void poet_matmul_gradient(const poet_update *u, const float *a, int32_t a_step, const float *b, int32_t b_step,
                          int32_t images, const poet_matmul_shape *s)
{
#if POET_WIDE
    if (s->rows >= 8 && s->columns >= 4) {
        poet_matmul_by_tiles(0, 0, u, a, a_step, b, b_step, images, s);
        return;
    }
#endif
    const poet_matmul_function block = poet_matmul_fastest(1, s);
    for (int32_t i = 0; i < s->rows; i += 4) {
        const int32_t rows = s->rows - i < 4 ? s->rows - i : 4;
        for (int32_t j = 0; j < s->columns; j += 4) {
            const int32_t columns = s->columns - j < 4 ? s->columns - j : 4;
            float tile[16] = {0.0f};
            for (int32_t n = 0; n < images; ++n) {
                poet_matmul_tile(tile, 4, 1, a + n * a_step + i * s->a_row, b + n * b_step + j * s->b_column, rows,
                                 columns, block, s);
            }
            for (int32_t r = 0; r < rows; ++r) {
                u->apply(u, (i + r) * s->y_row + j, tile + 4 * r, columns);
            }
        }
    }
}

/*@ poet_sum_apart */
/* The sum over rows of n numbers, each `stride` from the next, divided by `divisor`, used as it is made */
void poet_sum_apart(const poet_update *u, const float *x, int32_t rows, int32_t row_stride, int32_t n, int32_t stride,
                    float divisor)
{
    float total = 0.0f;
    for (int32_t row = 0; row < rows; ++row) {
        total += poet_sum(x + row * row_stride, stride, n);
    }
    const float found = total / divisor;
    u->apply(u, 0, &found, 1);
}

/*@ poet_sum_blocks */
/* x is outer x n x inner: for each outer and inner the sum over n, divided by `divisor`, used as it is made */
void poet_sum_blocks(const poet_update *u, const float *x, int32_t outer, int32_t n, int32_t inner, float divisor)
{
    for (int32_t i = 0; i < outer; ++i) {
        for (int32_t j = 0; j < inner; ++j) {
            const float found = poet_sum(x + i * n * inner + j, inner, n) / divisor;
            u->apply(u, i * inner + j, &found, 1);
        }
    }
}
