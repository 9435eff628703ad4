/* Saving and loading what was trained: two generations, so that a power cut at any write leaves one whole. */
#ifndef POET_STATE_H
#define POET_STATE_H

#include "poet_step.h"

/* The smallest piece that the storage erases; 1 where it needs no erasing. */
#ifndef POET_ERASE_BYTES
#define POET_ERASE_BYTES 4096u
#endif

#if POET_COMMITS && POET_ERASE_BYTES > 4096
#error "homes and commits lie 4,096 bytes apart, so one erase of more takes what was committed: plan with --home ram"
#endif

/* What the storage must hold. */
#define POET_BLOCKS(bytes) (((bytes) + POET_ERASE_BYTES - 1u) / POET_ERASE_BYTES * POET_ERASE_BYTES)
#define POET_GENERATION_BYTES (POET_BLOCKS(256u) + POET_BLOCKS(POET_STATE_BYTES))
#define POET_STORAGE_BYTES (2u * POET_GENERATION_BYTES)

/*
 * Writes of one save come in ascending order within a generation, its first block last: erase a block when a
 * write enters it.
 */

/*
 * Writes the state over the older generation; until the last write is done the newer one counts. After a step that
 * was made in part it writes nothing and gives POET_STORAGE_FAILED.
 */
poet_status poet_save(const poet_net *net, const poet_storage *storage);

/*
 * Reads the newest generation that is whole, of this very plan. POET_NO_STATE: there is none, and the net begins
 * with the plan's weights. POET_STORAGE_FAILED: where the newest could not be found, the net is as it was; where it
 * was read in part, the net has the plan's weights, or, with homes in storage, makes no step before poet_recover or
 * poet_load gave POET_OK. `net` was made by poet_init.
 */
poet_status poet_load(poet_net *net, const poet_storage *storage);

#if POET_COMMITS
/*
 * What lives in storage and changes has two places there: a step writes the one that was not committed. A commit
 * writes what lives in the arena beside them, and last a record with a CRC-32 of all; it copies nothing in storage.
 * After a failed callback or a power cut, at any transfer of a step or of a commit, the last step that was committed
 * is there. All of it is in the storage of poet_set_storage.
 */
#define POET_COMMIT_HEAD 4096u

/*
 * Makes the last step the one that poet_recover finds; after each step, or when as much as was done since may be lost.
 * After a step that was made in part it writes nothing and gives POET_STORAGE_FAILED.
 */
poet_status poet_commit(poet_net *net);

/*
 * In place of poet_set_storage, after poet_init: goes on with the step that was committed last; and so after
 * POET_STORAGE_FAILED. It writes nothing. POET_NO_STATE: none is whole there, and the net is as after poet_init;
 * poet_set_storage begins anew. POET_STORAGE_FAILED: it could not be read; call this again, as poet_set_storage would
 * take away what was committed.
 */
poet_status poet_recover(poet_net *net, const poet_storage *storage);
#endif

#endif
