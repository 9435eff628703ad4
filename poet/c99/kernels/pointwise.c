/* Powers, roots and quotients, element by element; strides as in elementwise.c. */

/*@ poet_div */
/* y = a / b */
void poet_div(float *y, const float *a, int32_t a_stride, const float *b, int32_t b_stride, int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        y[i] = a[i * a_stride] / b[i * b_stride];
    }
}

/*@ poet_maximum */
/* y = the larger of a and b; what is not a number stays so */
void poet_maximum(float *y, const float *a, int32_t a_stride, const float *b, int32_t b_stride, int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        const float left = a[i * a_stride], right = b[i * b_stride];
        y[i] = left > right || left != left ? left : right;
    }
}

/*@ poet_minimum */
/* y = the smaller of a and b; what is not a number stays so */
void poet_minimum(float *y, const float *a, int32_t a_stride, const float *b, int32_t b_stride, int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        const float left = a[i * a_stride], right = b[i * b_stride];
        y[i] = left < right || left != left ? left : right;
    }
}

/*@ poet_power */
/* y = x * x * ... `exponent` times */
void poet_power(float *y, const float *x, int32_t x_stride, int32_t exponent, int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        const float value = x[i * x_stride];
        float result = value;
        for (int32_t k = 1; k < exponent; ++k) {
            result *= value;
        }
        y[i] = result;
    }
}

/*@ poet_root */
/* y = sqrt(x) */
void poet_root(float *y, const float *x, int32_t x_stride, int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        y[i] = poet_sqrt(x[i * x_stride]);
    }
}

/*@ poet_inverse_root */
/* y = 1 / sqrt(x) */
void poet_inverse_root(float *y, const float *x, int32_t x_stride, int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        y[i] = 1.0f / poet_sqrt(x[i * x_stride]);
    }
}

/*@ poet_inverse */
/* y = 1 / x */
void poet_inverse(float *y, const float *x, int32_t x_stride, int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        y[i] = 1.0f / x[i * x_stride];
    }
}

/*@ poet_exponential */
/* y = exp(x) */
void poet_exponential(float *y, const float *x, int32_t x_stride, int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        y[i] = poet_exp(x[i * x_stride]);
    }
}

/*@ poet_absolute */
/* y = x without its sign */
void poet_absolute(float *y, const float *x, int32_t x_stride, int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        const float value = x[i * x_stride];
        y[i] = value < 0.0f ? -value : value + 0.0f;
    }
}

/*@ poet_sign */
/* y = 1, -1, or x where it is neither above nor below 0 */
void poet_sign(float *y, const float *x, int32_t x_stride, int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        const float value = x[i * x_stride];
        y[i] = value > 0.0f ? 1.0f : value < 0.0f ? -1.0f : value;
    }
}
