/* Sine and cosine of + - *, whole numbers and bits alone. */

/*@ poet_large_quadrant */
/*
 * How many quarters of a circle x (from 8192 on, finite) is next to, and the rest in `rest`: x times 2 / pi in
 * whole numbers, of which only those bits are taken that are not whole circles (Payne and Hanek 1983)
 */
static POET_APART uint32_t poet_large_quadrant(float x, float *rest)
{
    static const uint32_t two_over_pi[8] = {UINT32_C(0),          UINT32_C(0xa2f9836e), UINT32_C(0x4e441529),
                                            UINT32_C(0xfc2757d1), UINT32_C(0xf534ddc0), UINT32_C(0xdb629599),
                                            UINT32_C(0x3c439041), UINT32_C(0xfe5163ab)};
    uint32_t bits, parts[3];
    memcpy(&bits, &x, sizeof bits);
    const uint32_t skipped = (bits >> 23) - 120u; /* bits of the table: those before are whole circles */
    const uint32_t *const from = two_over_pi + skipped / 32u;
    const uint32_t shift = skipped % 32u;
    for (int32_t k = 0; k < 3; ++k) {
        parts[k] = shift ? from[k] << shift | from[k + 1] >> (32u - shift) : from[k];
    }
    const uint64_t m = (bits & UINT32_C(0x007fffff)) | UINT32_C(0x00800000);
    uint64_t turned = (m * parts[0] << 32) + m * parts[1] + (m * parts[2] >> 32);
    const uint32_t quadrant = (uint32_t)((turned + (UINT64_C(1) << 61)) >> 62);
    turned -= (uint64_t)quadrant << 62;
    int64_t apart;
    memcpy(&apart, &turned, sizeof apart);
    *rest = (float)apart * 3.4061215800304e-19f; /* pi / 2 over 2 to the power of 62 */
    return quadrant;
}

/*@ poet_circular */
/* The sine of x and so many quarters of a circle; by the polynomials of Cephes' sinf and cosf (S. Moshier) */
static float poet_circular(float x, uint32_t quarters)
{
    const float size = x < 0.0f ? -x : x;
    if (!(size <= 3.402823466e38f)) {
        return x - x;
    }
    uint32_t quadrant;
    float rest;
    if (size < 8192.0f) { /* pi / 2 in three parts, of which two have 11 bits */
        quadrant = (uint32_t)(size * 0.636619772367581343f + 0.5f);
        const float times = (float)quadrant;
        rest = ((size - times * 1.5703125f) - times * 4.837512969970703e-4f) - times * 7.549790126404332e-8f;
    } else {
        quadrant = poet_large_quadrant(size, &rest);
    }
    if (x < 0.0f) {
        quadrant = 0u - quadrant;
        rest = -rest;
    }
    quadrant += quarters;
    const float z = rest * rest;
    float result;
    if (quadrant & 1u) {
        result = ((2.443315711809948e-5f * z - 1.388731625493765e-3f) * z + 4.166664568298827e-2f) * z * z;
        result = (result - 0.5f * z) + 1.0f;
    } else {
        result = ((-1.9515295891e-4f * z + 8.3321608736e-3f) * z - 1.6666654611e-1f) * z * rest + rest;
    }
    return quadrant & 2u ? -result : result;
}

/*@ poet_sine */
/* y = sin(x) */
void poet_sine(float *y, const float *x, int32_t x_stride, int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        y[i] = poet_circular(x[i * x_stride], 0u);
    }
}

/*@ poet_cosine */
/* y = cos(x) */
void poet_cosine(float *y, const float *x, int32_t x_stride, int32_t n)
{
    for (int32_t i = 0; i < n; ++i) {
        y[i] = poet_circular(x[i * x_stride], 1u);
    }
}
