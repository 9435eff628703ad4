/* See vectors.h. Written by poet. */
#include "vectors.h"

const float poet_test_losses[POET_TEST_STEPS] = {@LOSSES@};
const float poet_test_tolerances[POET_TEST_STEPS] = {@TOLERANCES@};@REMARK@

/* A number of 32 bits for each step, stream and place. */
static uint32_t number(int32_t step, int32_t stream, int32_t place)
{
    const uint32_t start = (uint32_t)step * UINT32_C(1000003) + (uint32_t)stream * UINT32_C(10007) + 1u;
    uint32_t mixed = (uint32_t)place * UINT32_C(2654435761) + start * UINT32_C(40503);
    mixed = (mixed ^ (mixed >> 16)) * UINT32_C(0x7feb352d);
    mixed = (mixed ^ (mixed >> 15)) * UINT32_C(0x846ca68b);
    return mixed ^ (mixed >> 16);
}
@FILL@
void poet_test_fill(poet_net *net, int32_t step)
{
@FILLS@
}
