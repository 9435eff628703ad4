/* Inputs of the test, and PyTorch's losses for them. Written by poet. */
#ifndef POET_VECTORS_H
#define POET_VECTORS_H

#include "poet_step.h"

#ifdef __cplusplus
extern "C" {
#endif

#define POET_TEST_STEPS @STEPS@

/* PyTorch's losses in float32, and how far others may be: by PyTorch's own distance from float64. */
extern const float poet_test_losses[POET_TEST_STEPS];
extern const float poet_test_tolerances[POET_TEST_STEPS];

/* Fills inputs and target for a step. */
void poet_test_fill(poet_net *net, int32_t step);

#ifdef __cplusplus
}
#endif

#endif
