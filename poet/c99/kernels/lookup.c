/* Rows of a table by their numbers, which are whole numbers of 8 bytes; a number outside the table has no row. */

/*@ poet_row_number */
/* Number `at` of a list; -1 where the table has no such row */
static int32_t poet_row_number(const float *numbers, int32_t at, int32_t rows)
{
    int64_t number;
    memcpy(&number, numbers + 2 * at, sizeof number);
    return number < 0 || number >= rows ? -1 : (int32_t)number;
}

/*@ poet_embedding */
/* y: for each of n numbers the row of `width` floats of a table of `rows`; zeros for a number without a row */
void poet_embedding(float *y, const float *table, const float *numbers, int32_t n, int32_t rows, int32_t width)
{
    for (int32_t at = 0; at < n; ++at) {
        const int32_t row = poet_row_number(numbers, at, rows);
        for (int32_t k = 0; k < width; ++k) {
            *y++ = row < 0 ? 0.0f : table[row * width + k];
        }
    }
}

/*@ poet_embedding_backward */
/* Adds to what the table gets for each of n numbers its row of gy, in order; row `padding` gets nothing, -1: none */
void poet_embedding_backward(float *g_table, const float *gy, const float *numbers, int32_t n, int32_t rows,
                             int32_t width, int32_t padding)
{
    for (int32_t at = 0; at < n; ++at) {
        const int32_t row = poet_row_number(numbers, at, rows);
        for (int32_t k = 0; row >= 0 && row != padding && k < width; ++k) {
            g_table[row * width + k] += gy[at * width + k];
        }
    }
}

/*@ poet_count_up */
/* n whole numbers of 8 bytes: first, first + step, ... */
void poet_count_up(float *y, int32_t first, int32_t step, int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        const int64_t number = (int64_t)first + (int64_t)step * i;
        memcpy(y + 2 * i, &number, sizeof number);
    }
}
