/* Packed weights, which lie in flash: an integer times its scale, rounded once, then as in the kernels of floats. */

/*@ poet_half */
/* The float16 in two bytes, as a float */
static float poet_half(const uint8_t *bytes)
{
    const uint32_t half = (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8;
    const uint32_t bits = (half & 0x8000u) << 16 | (half & 0x7fffu) << 13;
    float found;
    memcpy(&found, &bits, sizeof found);
    found *= 0x1p112f; /* as the exponent of a float counts from another number */
    if ((half & 0x7c00u) != 0x7c00u) {
        return found;
    }
    return half & 0x3ffu ? found * 0x1p127f - found * 0x1p127f : found * 0x1p127f;
}

/*@ poet_unpack_int8 */
/* y: n elements of a row from `from` on; the row begins with its scale */
void poet_unpack_int8(float *y, const uint8_t *row, int32_t from, int32_t n)
{
    float scale;
    memcpy(&scale, row, sizeof scale);
    for (row += 4 + from; n; --n) {
        *y++ = (float)(int8_t)*row++ * scale;
    }
}

/*@ poet_unpack_q8_0 */
/* Likewise of blocks of 32, each of which begins with its scale; `from` and n are multiples of 32 */
void poet_unpack_q8_0(float *y, const uint8_t *row, int32_t from, int32_t n)
{
    for (row += from / 32 * 34; n; n -= 32) {
        const float scale = poet_half(row);
        row += 2;
        for (int32_t i = 0; i < 32; ++i) {
            *y++ = (float)(int8_t)*row++ * scale;
        }
    }
}

/*@ poet_unpack_q4_0 */
/* Likewise; a byte has element i in its low bits and i + 16 in its high ones */
void poet_unpack_q4_0(float *y, const uint8_t *row, int32_t from, int32_t n)
{
    for (row += from / 32 * 18; n; n -= 32) {
        const float scale = poet_half(row);
        row += 2;
        for (int32_t i = 0; i < 16; ++i) {
            y[i] = (float)((*row & 15) - 8) * scale;
            y[i + 16] = (float)((*row++ >> 4) - 8) * scale;
        }
        y += 32;
    }
}

/*@ poet_dequantise */
/* y: all of a weight */
void poet_dequantise(float *y, const uint8_t *packed, poet_unpack_function unpack, int32_t rows, int32_t row_bytes,
                     int32_t columns)
{
    for (; rows; --rows) {
        unpack(y, packed, 0, columns);
        packed += row_bytes;
        y += columns;
    }
}

/*@ poet_matmul_packed */
/*
 * poet_matmul where one factor is packed: `block` has float32 of 32 x 32 of its elements at a time, over the inner numbers
 * in their order, in runs of 32, so that each sum is made as there. `given` is the other factor; where `is_turned` the
 * rows of the packed one are the inner numbers.
 */
void poet_matmul_packed(float *y, const float *start, const float *given, const uint8_t *packed, float *block,
                        poet_unpack_function unpack, int32_t row_bytes, int32_t is_right, int32_t is_turned,
                        const poet_matmul_shape *s)
{
    const int32_t ends = is_right ? s->columns : s->rows;
    for (int32_t at = 0; at < ends; at += 32) {
        poet_matmul_shape part = *s;
        const int32_t across = ends - at < 32 ? ends - at : 32;
        float *const to = y + at * (is_right ? s->y_column : s->y_row);
        const float *from = start ? start + at * (is_right ? s->start_column : s->start_row) : 0;
        *(is_right ? &part.columns : &part.rows) = across;
        for (int32_t i = 0; i < s->inner; i += 32) {
            part.inner = s->inner - i < 32 ? s->inner - i : 32;
            const int32_t row = is_turned ? i : at, rows = is_turned ? part.inner : across;
            for (int32_t r = 0; r < rows; ++r) {
                const uint8_t *const line = packed + (row + r) * row_bytes;
                unpack(block + 32 * r, line, is_turned ? at : i, is_turned ? across : part.inner);
            }
            if (is_right) {
                part.b_inner = is_turned ? 32 : 1, part.b_column = is_turned ? 1 : 32;
                poet_matmul(to, from, given + i * s->a_inner, block, &part);
            } else {
                part.a_inner = is_turned ? 32 : 1, part.a_row = is_turned ? 1 : 32;
                poet_matmul(to, from, block, given + i * s->b_inner, &part);
            }
            from = to;
            part.start_row = s->y_row, part.start_column = s->y_column;
        }
    }
}
