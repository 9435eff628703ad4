/* Products of matrices. Sums over `inner` are made in runs of 32, whatever the block: one order, one result. */

/*@ poet_matmul_block */
/* y += a * b for 2 rows and 4 columns, over n of the inner numbers */
static void poet_matmul_block(float *y, const float *a, const float *b, int32_t n, const poet_matmul_shape *s)
{
    const float *a1 = a + s->a_row;
    const float *b1 = b + s->b_column, *b2 = b1 + s->b_column, *b3 = b2 + s->b_column;
    float s00 = 0.0f, s01 = 0.0f, s02 = 0.0f, s03 = 0.0f;
    float s10 = 0.0f, s11 = 0.0f, s12 = 0.0f, s13 = 0.0f;
    const int32_t a_step = s->a_inner, b_step = s->b_inner;
    for (int32_t k = 0; k < n; ++k) {
        const float p = *a, q = *a1;
        const float u0 = *b, u1 = *b1, u2 = *b2, u3 = *b3;
        s00 += p * u0;
        s01 += p * u1;
        s02 += p * u2;
        s03 += p * u3;
        s10 += q * u0;
        s11 += q * u1;
        s12 += q * u2;
        s13 += q * u3;
        a += a_step;
        a1 += a_step;
        b += b_step;
        b1 += b_step;
        b2 += b_step;
        b3 += b_step;
    }
    float *z = y + s->y_row;
    const int32_t next = s->y_column;
    y[0] += s00;
    y[next] += s01;
    y[2 * next] += s02;
    y[3 * next] += s03;
    z[0] += s10;
    z[next] += s11;
    z[2 * next] += s12;
    z[3 * next] += s13;
}

/*@ poet_matmul */
/* y = start + a * b; `start` may be null for 0, may be y itself, and may repeat by strides of 0 */
void poet_matmul(float *y, const float *start, const float *a, const float *b, const poet_matmul_shape *s)
{
    for (int32_t i = 0; i < s->rows; ++i) {
        for (int32_t j = 0; j < s->columns; ++j) {
            y[i * s->y_row + j * s->y_column]
                = start ? start[i * s->start_row + j * s->start_column] : 0.0f;
        }
    }
    const int32_t whole_rows = s->rows / 2 * 2, whole_columns = s->columns / 4 * 4;
    for (int32_t from = 0; from < s->inner; from += 32) {
        const int32_t n = s->inner - from < 32 ? s->inner - from : 32;
        const float *a_run = a + from * s->a_inner, *b_run = b + from * s->b_inner;
        for (int32_t i = 0; i < whole_rows; i += 2) {
            for (int32_t j = 0; j < whole_columns; j += 4) {
                poet_matmul_block(y + i * s->y_row + j * s->y_column, a_run + i * s->a_row,
                                  b_run + j * s->b_column, n, s);
            }
        }
        for (int32_t i = 0; i < s->rows; ++i) {
            for (int32_t j = i < whole_rows ? whole_columns : 0; j < s->columns; ++j) {
                const float *p = a_run + i * s->a_row, *q = b_run + j * s->b_column;
                float sum = 0.0f;
                for (int32_t k = 0; k < n; ++k) {
                    sum += *p * *q;
                    p += s->a_inner;
                    q += s->b_inner;
                }
                y[i * s->y_row + j * s->y_column] += sum;
            }
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

/*@ poet_matmul_sum */
/* y = the sum of the products of all images */
void poet_matmul_sum(float *y, const float *a, int32_t a_step, const float *b, int32_t b_step, int32_t images,
                     const poet_matmul_shape *s)
{
    for (int32_t n = 0; n < images; ++n) {
        poet_matmul(y, n ? y : 0, a + n * a_step, b + n * b_step, s);
    }
}

/*@ poet_sum_blocks */
/* x is outer x n x inner: y[outer][inner] = sum over n, divided by `divisor` */
void poet_sum_blocks(float *y, const float *x, int32_t outer, int32_t n, int32_t inner, float divisor)
{
    for (int32_t i = 0; i < outer; ++i) {
        for (int32_t j = 0; j < inner; ++j) {
            y[i * inner + j] = poet_sum(x + i * n * inner + j, inner, n) / divisor;
        }
    }
}
