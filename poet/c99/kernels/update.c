/* Updates of parameters, by the arithmetic of torch.optim. */

/*@ poet_sgd */
/* p -= lr * (g + decay * p) */
void poet_sgd(float *p, const float *g, int32_t g_stride, float lr, float decay, int32_t n)
{
    const float *const end = p + n;
    if (decay == 0.0f) {
        for (; p < end; g += g_stride) {
            *p++ -= lr * *g;
        }
    }
    for (; p < end; ++p) {
        *p -= lr * (*g + decay * *p);
        g += g_stride;
    }
}

/*@ poet_momentum */
/* v = momentum * v + share * g; p -= lr * (v, or g + momentum * v with Nesterov) */
void poet_momentum(float *p, float *v, const float *g, int32_t g_stride, float lr, float share,
                   float momentum, float decay, int is_nesterov, int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        float gradient = g[i * g_stride];
        if (decay != 0.0f) {
            gradient = gradient + decay * p[i];
        }
        v[i] = momentum * v[i] + share * gradient;
        p[i] -= lr * (is_nesterov ? gradient + momentum * v[i] : v[i]);
    }
}

/*@ poet_adamw */
/* The moments m and v follow g; p = p * keep - step * m / (sqrt(v) / correction + eps) */
void poet_adamw(float *p, float *m, float *v, const float *g, int32_t g_stride, float keep, float step,
                float correction, const poet_adamw_shape *s)
{
    for (int32_t i = 0; i < s->n; ++i) {
        const float gradient = g[i * g_stride];
        p[i] *= keep;
        m[i] += s->beta1_rest * (gradient - m[i]);
        v[i] = s->beta2 * v[i] + s->beta2_rest * gradient * gradient;
        p[i] -= step * (m[i] / (poet_sqrt(v[i]) / correction + s->eps));
    }
}

/*@ poet_apply_store */
/* p = g */
void poet_apply_store(const poet_update *u, int32_t at, const float *g, int32_t n)
{
    float *p = u->p + at;
    for (int32_t i = 0; i < n; ++i) {
        p[i] = g[i];
    }
}

/*@ poet_apply_sgd */
/* The update of elements that were just made */
void poet_apply_sgd(const poet_update *u, int32_t at, const float *g, int32_t n)
{
    const float lr = u->numbers[0];
    if (u->numbers[1] != 0.0f) {
        poet_sgd(u->p + at, g, 1, lr, u->numbers[1], n);
        return;
    }
    for (float *p = u->p + at, *const end = p + n; p < end; ++p) {
        *p -= lr * *g++;
    }
}

/*@ poet_apply_momentum */
/* The update of elements that were just made */
void poet_apply_momentum(const poet_update *u, int32_t at, const float *g, int32_t n)
{
    const float *k = u->numbers;
    poet_momentum(u->p + at, u->m + at, g, 1, k[0], k[1], k[2], k[3], k[4] != 0.0f, n);
}

/*@ poet_apply_adamw */
/* The update of elements that were just made */
void poet_apply_adamw(const poet_update *u, int32_t at, const float *g, int32_t n)
{
    const float *k = u->numbers;
    const poet_adamw_shape shape = {n, k[3], k[4], k[5], k[6]};
    poet_adamw(u->p + at, u->m + at, u->v + at, g, 1, k[0], k[1], k[2], &shape);
}
