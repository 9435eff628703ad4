/* Element by element. `stride` is the distance from one element of an operand to the next: 0 repeats one. */

/*@ poet_add */
/* y = a + alpha * b */
void poet_add(float *y, const float *a, int32_t a_stride, const float *b, int32_t b_stride, float alpha, int32_t n)
{
    const float *const end = y + n;
    while (a_stride == 1 && b_stride == 1 && alpha == 1.0f && y < end) {
        *y++ = *a++ + *b++;
    }
    for (; y < end; a += a_stride, b += b_stride) {
        *y++ = *a + alpha * *b;
    }
}

/*@ poet_add_scalar */
/* y = a + b */
void poet_add_scalar(float *y, const float *a, int32_t a_stride, float b, int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        y[i] = a[i * a_stride] + b;
    }
}

/*@ poet_mul */
/* y = a * b */
void poet_mul(float *y, const float *a, int32_t a_stride, const float *b, int32_t b_stride, int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        y[i] = a[i * a_stride] * b[i * b_stride];
    }
}

/*@ poet_mul_scalar */
/* y = a * b */
void poet_mul_scalar(float *y, const float *a, int32_t a_stride, float b, int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        y[i] = a[i * a_stride] * b;
    }
}

/*@ poet_div_scalar */
/* y = a / b */
void poet_div_scalar(float *y, const float *a, int32_t a_stride, float b, int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        y[i] = a[i * a_stride] / b;
    }
}

/*@ poet_relu */
/* y = max(x, 0); what is not a number stays so */
void poet_relu(float *y, const float *x, int32_t x_stride, int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        const float value = x[i * x_stride];
        y[i] = value <= 0.0f ? 0.0f : value;
    }
}

/*@ poet_threshold_backward */
/* gx = gy where x is above the threshold, else 0 */
void poet_threshold_backward(float *gx, const float *gy, int32_t gy_stride, const float *x, int32_t x_stride,
                             float threshold, int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        gx[i] = x[i * x_stride] <= threshold ? 0.0f : gy[i * gy_stride];
    }
}

/*@ poet_tanh */
/* y = tanh(x) */
void poet_tanh(float *y, const float *x, int32_t x_stride, int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        const float value = x[i * x_stride];
        const float size = value < 0.0f ? -value : value;
        float result;
        if (size < 0.625f) { /* Cephes, tanhf: a polynomial where 1 - exp would cancel */
            const float z = value * value;
            const float p = (((-5.70498872745e-3f * z + 2.06390887954e-2f) * z - 5.37397155531e-2f) * z
                             + 1.33314422036e-1f) * z - 3.33332819422e-1f;
            result = p * z * value + value;
        } else {
            const float rest = size > 20.0f ? 0.0f : 2.0f / (poet_exp(2.0f * size) + 1.0f);
            result = value < 0.0f ? rest - 1.0f : 1.0f - rest;
        }
        y[i] = value != value ? value : result;
    }
}

/*@ poet_tanh_backward */
/* gx = gy * (1 - y * y) */
void poet_tanh_backward(float *gx, const float *gy, int32_t gy_stride, const float *y, int32_t y_stride, int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        const float value = y[i * y_stride];
        gx[i] = gy[i * gy_stride] * (1.0f - value * value);
    }
}

/*@ poet_sigmoid */
/* y = 1 / (1 + exp(-x)) */
void poet_sigmoid(float *y, const float *x, int32_t x_stride, int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        y[i] = 1.0f / (1.0f + poet_exp(-x[i * x_stride]));
    }
}

/*@ poet_sigmoid_backward */
/* gx = gy * (1 - y) * y */
void poet_sigmoid_backward(float *gx, const float *gy, int32_t gy_stride, const float *y, int32_t y_stride, int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        const float value = y[i * y_stride];
        gx[i] = gy[i * gy_stride] * (1.0f - value) * value;
    }
}

/*@ poet_fill */
/* y = value */
void poet_fill(float *y, float value, int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        y[i] = value;
    }
}

/*@ poet_copy */
/* y = x */
void poet_copy(float *y, const float *x, int32_t x_stride, int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        y[i] = x[i * x_stride];
    }
}

/*@ poet_count */
/* A counter of 64 bits, which may lie anywhere: y = x + amount */
void poet_count(void *y, const void *x, int64_t amount)
{
    int64_t value;
    memcpy(&value, x, sizeof value);
    value += amount;
    memcpy(y, &value, sizeof value);
}

/*@ poet_assign */
/* `words` times 32 bits from x to y */
void poet_assign(void *y, const void *x, int32_t words)
{
    memcpy(y, x, (size_t)words * 4u);
}

/*@ poet_pad2d */
/* Planes of height x width with `top` rows above and `left` columns before; negative ones are cut off. */
void poet_pad2d(float *y, const float *x, float value, const poet_pad2d_shape *s)
{
    const int32_t before = s->left < 0 ? 0 : s->left < s->out_width ? s->left : s->out_width;
    const int32_t reach = s->left + s->width, end = reach < 0 ? 0 : reach < s->out_width ? reach : s->out_width;
    for (int32_t plane = 0; plane < s->planes; ++plane) {
        for (int32_t row = 0; row < s->out_height; ++row) {
            const int32_t from_row = row - s->top;
            const int32_t first = from_row >= 0 && from_row < s->height && end > before ? before : s->out_width;
            const float *const last = y + s->out_width, *const inside = y + first;
            while (y < inside) {
                *y++ = value;
            }
            if (y < last) {
                poet_copy_line(y, x + from_row * s->width + (first - s->left), end - first);
                y += end - first;
            }
            while (y < last) {
                *y++ = value;
            }
        }
        x += s->height * s->width;
    }
}

/*@ poet_copy_line */
/* y = x for n neighbours, one after the other */
static POET_APART void poet_copy_line(float *y, const float *x, int32_t n)
{
    for (; n >= 4; n -= 4, x += 4, y += 4) {
        const float a = x[0], b = x[1], c = x[2], d = x[3];
        y[0] = a;
        y[1] = b;
        y[2] = c;
        y[3] = d;
    }
    while (n-- > 0) {
        *y++ = *x++;
    }
}
