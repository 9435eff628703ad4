/* Packed weights, which lie in flash: an integer times its scale, rounded once, then as in the kernels of floats. */

/*@ poet_half */
/* The float16 in two bytes, as a float */
static float poet_half(const uint8_t *bytes)
{
    const uint32_t half = (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8, sign = (half & 0x8000u) << 16;
    uint32_t exponent = half >> 10 & 31u, fraction = half & 1023u;
    if (exponent == 0u && fraction != 0u) { /* subnormal: a float has it with an exponent of its own */
        for (exponent = 1u; !(fraction & 1024u); --exponent) {
            fraction <<= 1;
        }
        fraction &= 1023u;
        exponent += 112u;
    } else if (exponent != 0u) {
        exponent += exponent == 31u ? 224u : 112u;
    }
    const uint32_t bits = sign | exponent << 23 | fraction << 13;
    float found;
    memcpy(&found, &bits, sizeof found);
    return found;
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
 * in their order, in runs of 32, so that each sum is made as there. `given` is the other factor.
 */
void poet_matmul_packed(float *y, const float *start, const float *given, const uint8_t *packed, float *block,
                        poet_unpack_function unpack, const poet_packed_shape *p, const poet_matmul_shape *s)
{
    const int32_t ends = p->is_right ? s->columns : s->rows;
    for (int32_t at = 0; at < ends; at += 32) {
        poet_matmul_shape part = *s;
        const int32_t across = ends - at < 32 ? ends - at : 32;
        float *const to = y + at * (p->is_right ? s->y_column : s->y_row);
        const float *from = start ? start + at * (p->is_right ? s->start_column : s->start_row) : 0;
        *(p->is_right ? &part.columns : &part.rows) = across;
        for (int32_t i = 0; i < s->inner; i += 32) {
            part.inner = s->inner - i < 32 ? s->inner - i : 32;
            const int32_t row = p->is_turned ? i : at, rows = p->is_turned ? part.inner : across;
            for (int32_t r = 0; r < rows; ++r) {
                const uint8_t *const line = packed + (row + r) * p->row_bytes;
                unpack(block + 32 * r, line, p->is_turned ? at : i, p->is_turned ? across : part.inner);
            }
            if (p->is_right) {
                part.b_inner = p->is_turned ? 32 : 1, part.b_column = p->is_turned ? 1 : 32;
                poet_matmul(to, from, given + i * s->a_inner, block, &part);
            } else {
                part.a_inner = p->is_turned ? 32 : 1, part.a_row = p->is_turned ? 1 : 32;
                poet_matmul(to, from, block, given + i * s->b_inner, &part);
            }
            from = to;
            part.start_row = s->y_row, part.start_column = s->y_column;
        }
    }
}
