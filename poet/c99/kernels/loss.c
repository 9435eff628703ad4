/* Losses. Class numbers are of 64 bits and may lie anywhere. */

/*@ poet_log_softmax */
/* y = x - log(sum(exp(x))) over n; x is outer x n x inner */
void poet_log_softmax(float *y, const float *x, int32_t outer, int32_t n, int32_t inner)
{
    for (int32_t i = 0; i < outer * inner; ++i) {
        const int32_t at = i / inner * n * inner + i % inner;
        float largest = x[at];
        for (int32_t k = 1; k < n; ++k) {
            largest = x[at + k * inner] > largest ? x[at + k * inner] : largest;
        }
        float total = 0.0f;
        for (int32_t k = 0; k < n; ++k) {
            total += poet_exp(x[at + k * inner] - largest);
        }
        const float log_total = poet_log(total);
        for (int32_t k = 0; k < n; ++k) {
            y[at + k * inner] = x[at + k * inner] - largest - log_total;
        }
    }
}

/*@ poet_log_softmax_backward */
/* gx = gy - exp(y) * sum(gy) over n */
void poet_log_softmax_backward(float *gx, const float *gy, const float *y, int32_t outer, int32_t n, int32_t inner)
{
    for (int32_t i = 0; i < outer * inner; ++i) {
        const int32_t at = i / inner * n * inner + i % inner;
        const float total = poet_sum(gy + at, inner, n);
        for (int32_t k = 0; k < n; ++k) {
            gx[at + k * inner] = gy[at + k * inner] - poet_exp(y[at + k * inner]) * total;
        }
    }
}

/*@ poet_class_of */
/* A class number as it lies in the arena */
static int32_t poet_class_of(const void *classes, int32_t index)
{
    int64_t value;
    memcpy(&value, (const char *)classes + (size_t)index * sizeof value, sizeof value);
    return (int32_t)value;
}

/*@ poet_nll_loss */
/*
 * The mean, or the sum, of -y[row][its class] over each row's plane, in runs of 32, and over rows, where the class is
 * not `ignored`; and how many those are.
 * Numbers that are no class are passed over as well: nothing is read outside y.
 */
void poet_nll_loss(float *loss, float *counted, const float *y, const void *classes, int32_t rows, int32_t n,
                   int32_t plane, int32_t ignored, int is_mean)
{
    float total = 0.0f, run = 0.0f;
    int32_t count = 0;
    for (int32_t i = 0; i < rows * plane; ++i) {
        const int32_t k = poet_class_of(classes, i);
        if (k != ignored && k >= 0 && k < n) {
            run -= y[(i / plane * n + k) * plane + i % plane];
            ++count;
        }
        if (i % 32 == 31) {
            total += run;
            run = 0.0f;
        }
    }
    total += run;
    *loss = is_mean ? total / (float)count : total;
    *counted = (float)count;
}

/*@ poet_nll_loss_backward */
/* gy = -gradient (divided by `counted` for a mean) at each row's class, else 0 */
void poet_nll_loss_backward(float *gy, const float *gradient, const void *classes, const float *counted, int32_t rows,
                            int32_t n, int32_t plane, int32_t ignored, int is_mean)
{
    const float share = is_mean ? -*gradient / *counted : -*gradient;
    for (int32_t i = 0; i < rows * plane; ++i) {
        const int32_t k = poet_class_of(classes, i);
        for (int32_t j = 0; j < n; ++j) {
            gy[(i / plane * n + j) * plane + i % plane] = j == k && k != ignored ? share : 0.0f;
        }
    }
}

/*@ poet_mse_loss */
/* The sum of (x - target)^2, divided by `divisor`; in runs of 32 */
void poet_mse_loss(float *loss, const float *x, const float *target, int32_t n, float divisor)
{
    float total = 0.0f;
    for (int32_t from = 0; from < n; from += 32) {
        const int32_t to = n - from < 32 ? n : from + 32;
        float run = 0.0f;
        for (int32_t i = from; i < to; ++i) {
            run += (x[i] - target[i]) * (x[i] - target[i]);
        }
        total += run;
    }
    *loss = total / divisor;
}

/*@ poet_mse_loss_backward */
/* gx = factor * (x - target) * gradient */
void poet_mse_loss_backward(float *gx, const float *gradient, const float *x, const float *target, int32_t n,
                            float factor)
{
    for (int32_t i = 0; i < n; ++i) {
        gx[i] = factor * (x[i] - target[i]) * *gradient;
    }
}
