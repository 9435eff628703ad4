/* Products of matrices. Sums over `inner` are made in runs of 32, whatever the block: one order, one result. */

/*@ poet_matmul_block */
/* y += a * b for 4 rows and 4 columns, over n of the inner numbers */
static POET_APART void poet_matmul_block(float *y, int32_t y_row, int32_t y_column, const float *a, const float *b, int32_t n,
                              const poet_matmul_shape *s)
{
    const float *a1 = a + s->a_row, *a2 = a1 + s->a_row, *a3 = a2 + s->a_row;
    const float *b1 = b + s->b_column, *b2 = b1 + s->b_column, *b3 = b2 + s->b_column;
    float s00 = 0.0f, s01 = 0.0f, s02 = 0.0f, s03 = 0.0f, s10 = 0.0f, s11 = 0.0f, s12 = 0.0f, s13 = 0.0f;
    float s20 = 0.0f, s21 = 0.0f, s22 = 0.0f, s23 = 0.0f, s30 = 0.0f, s31 = 0.0f, s32 = 0.0f, s33 = 0.0f;
    const int32_t a_step = s->a_inner, b_step = s->b_inner;
    while (n--) {
        const float u0 = *b, u1 = *b1, u2 = *b2, u3 = *b3;
        const float p = *a, q = *a1;
        s00 += p * u0, s01 += p * u1, s02 += p * u2, s03 += p * u3;
        s10 += q * u0, s11 += q * u1, s12 += q * u2, s13 += q * u3;
        const float r = *a2, t = *a3;
        s20 += r * u0, s21 += r * u1, s22 += r * u2, s23 += r * u3;
        s30 += t * u0, s31 += t * u1, s32 += t * u2, s33 += t * u3;
        a += a_step, a1 += a_step, a2 += a_step, a3 += a_step;
        b += b_step, b1 += b_step, b2 += b_step, b3 += b_step;
    }
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

/*@ poet_matmul_block_of_rows */
/* Likewise where b's columns are neighbours: one pointer for the four */
static POET_APART void poet_matmul_block_of_rows(float *y, int32_t y_row, int32_t y_column, const float *a, const float *b, int32_t n,
                              const poet_matmul_shape *s)
{
    const float *a1 = a + s->a_row, *a2 = a1 + s->a_row, *a3 = a2 + s->a_row;
    float s00 = 0.0f, s01 = 0.0f, s02 = 0.0f, s03 = 0.0f, s10 = 0.0f, s11 = 0.0f, s12 = 0.0f, s13 = 0.0f;
    float s20 = 0.0f, s21 = 0.0f, s22 = 0.0f, s23 = 0.0f, s30 = 0.0f, s31 = 0.0f, s32 = 0.0f, s33 = 0.0f;
    const int32_t a_step = s->a_inner, b_step = s->b_inner;
    while (n--) {
        const float u0 = b[0], u1 = b[1], u2 = b[2], u3 = b[3];
        const float p = *a, q = *a1;
        s00 += p * u0, s01 += p * u1, s02 += p * u2, s03 += p * u3;
        s10 += q * u0, s11 += q * u1, s12 += q * u2, s13 += q * u3;
        const float r = *a2, t = *a3;
        s20 += r * u0, s21 += r * u1, s22 += r * u2, s23 += r * u3;
        s30 += t * u0, s31 += t * u1, s32 += t * u2, s33 += t * u3;
        a += a_step, a1 += a_step, a2 += a_step, a3 += a_step;
        b += b_step;
    }
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
                             int32_t columns, const poet_matmul_shape *s)
{
    for (int32_t from = 0; from < s->inner; from += 32) {
        const int32_t n = s->inner - from < 32 ? s->inner - from : 32;
        if (rows == 4 && columns == 4 && s->b_column == 1) {
            poet_matmul_block_of_rows(y, y_row, y_column, a, b, n, s);
        } else if (rows == 4 && columns == 4) {
            poet_matmul_block(y, y_row, y_column, a, b, n, s);
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

/*@ poet_matmul */
/* y = start + a * b; `start` may be null for 0, and may repeat by strides of 0 */
void poet_matmul(float *y, const float *start, const float *a, const float *b, const poet_matmul_shape *s)
{
    for (int32_t i = 0; i < s->rows; i += 4) {
        const int32_t rows = s->rows - i < 4 ? s->rows - i : 4;
        for (int32_t j = 0; j < s->columns; j += 4) {
            const int32_t columns = s->columns - j < 4 ? s->columns - j : 4;
            float *to = y + i * s->y_row + j * s->y_column;
            for (int32_t r = 0; r < rows; ++r) {
                for (int32_t c = 0; c < columns; ++c) {
                    to[r * s->y_row + c * s->y_column]
                        = start ? start[(i + r) * s->start_row + (j + c) * s->start_column] : 0.0f;
                }
            }
            poet_matmul_tile(to, s->y_row, s->y_column, a + i * s->a_row, b + j * s->b_column, rows, columns, s);
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
    for (int32_t i = 0; i < s->rows; i += 4) {
        const int32_t rows = s->rows - i < 4 ? s->rows - i : 4;
        for (int32_t j = 0; j < s->columns; j += 4) {
            const int32_t columns = s->columns - j < 4 ? s->columns - j : 4;
            float tile[16] = {0.0f};
            for (int32_t n = 0; n < images; ++n) {
                poet_matmul_tile(tile, 4, 1, a + n * a_step + i * s->a_row, b + n * b_step + j * s->b_column, rows,
                                 columns, s);
            }
            for (int32_t r = 0; r < rows; ++r) {
                u->apply(u, (i + r) * s->y_row + j, tile + 4 * r, columns);
            }
        }
    }
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
