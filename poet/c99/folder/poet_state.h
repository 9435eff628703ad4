/* Saving and loading what was trained: two generations, so that a power cut at any write leaves one whole. */
#ifndef POET_STATE_H
#define POET_STATE_H

#include "poet_step.h"

/* The smallest piece that the storage erases; 1 where it needs no erasing. */
#ifndef POET_ERASE_BYTES
#define POET_ERASE_BYTES 4096u
#endif

/* What the storage must hold. */
#define POET_BLOCKS(bytes) (((bytes) + POET_ERASE_BYTES - 1u) / POET_ERASE_BYTES * POET_ERASE_BYTES)
#define POET_GENERATION_BYTES (POET_BLOCKS(256u) + POET_BLOCKS(POET_STATE_BYTES))
#define POET_STORAGE_BYTES (2u * POET_GENERATION_BYTES)

/*
 * Writes of one save come in ascending order within a generation, its first block last: erase a block when a
 * write enters it.
 */

/* Writes the state over the older generation; until the last write is done the newer one counts. */
poet_status poet_save(const poet_net *net, const poet_storage *storage);

/*
 * Reads the newest generation that is whole, of this very plan. POET_NO_STATE: there is none, and the net begins
 * with the plan's weights. `net` was made by poet_init.
 */
poet_status poet_load(poet_net *net, const poet_storage *storage);

#endif
