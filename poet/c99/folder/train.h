/* Trains on made-up data; see train.c. Written by poet. */
#ifndef POET_TRAIN_H
#define POET_TRAIN_H

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Steps from the plan's weights; `say` prints a line, and `between`, which may be null, is called after each op: feed
 * the watchdog there. 0 where each loss is PyTorch's within the error of float32.
 */
int train_example(void (*say)(const char *line), void (*between)(void *context));

#ifdef __cplusplus
}
#endif

#endif
