/* Randomness from a counter: Philox 2x32 with ten rounds (Salmon et al., SC 2011). No state to keep. */

/*@ poet_random */
/* The number of 32 bits at place `counter` of the stream `key` */
static uint32_t poet_random(uint32_t key, uint64_t counter)
{
    uint32_t high = (uint32_t)(counter >> 32), low = (uint32_t)counter;
    for (int round = 0; round < 10; ++round) {
        const uint64_t product = (uint64_t)low * UINT32_C(0xd256d193);
        low = (uint32_t)(product >> 32) ^ key ^ high;
        high = (uint32_t)product;
        key += UINT32_C(0x9e3779b9);
    }
    return low;
}

/*@ poet_bernoulli */
/* y = 1 with probability p, else 0; takes n numbers of the stream `key` from `drawn` on, and counts them */
void poet_bernoulli(float *y, float p, int32_t n, uint32_t key, uint64_t *drawn)
{
    for (int32_t i = 0; i < n; ++i) {
        const uint32_t number = poet_random(key, *drawn + (uint64_t)i) >> 8;
        y[i] = (float)number * 0x1p-24f < p ? 1.0f : 0.0f;
    }
    *drawn += (uint64_t)n;
}

/*@ poet_random_place */
/* Notes how many numbers were drawn, to draw the same ones again */
void poet_random_place(void *place, const uint64_t *drawn)
{
    memcpy(place, drawn, sizeof *drawn);
}

/*@ poet_bernoulli_again */
/* What `poet_bernoulli` gave at a noted place */
void poet_bernoulli_again(float *y, float p, int32_t n, uint32_t key, const void *place)
{
    uint64_t drawn;
    memcpy(&drawn, place, sizeof drawn);
    poet_bernoulli(y, p, n, key, &drawn);
}
