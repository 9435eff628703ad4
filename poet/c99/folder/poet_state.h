/* Saving and loading what was trained: two generations, so that a power cut at any write leaves one whole. */
#ifndef POET_STATE_H
#define POET_STATE_H

#include "poet_step.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Begins a record of what is saved or committed; its last byte is the number of the records' form. */
#define POET_STATE_FORM UINT32_C(0x706f6502)

/* The smallest piece that the storage erases; 1 where it needs no erasing. */
#ifndef POET_ERASE_BYTES
#define POET_ERASE_BYTES 4096u
#endif

#if POET_COMMITS && POET_ERASE_BYTES > 4096
#error "homes and commits lie 4,096 bytes apart, so one erase of more takes what was committed: plan with --home ram"
#endif

#if POET_ERASE_BYTES % POET_WRITE_BYTES && POET_WRITE_BYTES % POET_ERASE_BYTES
#error "one of POET_ERASE_BYTES and POET_WRITE_BYTES is a multiple of the other"
#endif

/* What the storage must hold. */
#define POET_UNIT_BYTES (POET_ERASE_BYTES > POET_WRITE_BYTES ? POET_ERASE_BYTES : POET_WRITE_BYTES)
#define POET_BLOCKS(bytes) (((bytes) + POET_UNIT_BYTES - 1u) / POET_UNIT_BYTES * POET_UNIT_BYTES)
#define POET_GENERATION_BYTES (POET_BLOCKS(256u) + POET_BLOCKS(POET_STATE_BYTES))
#define POET_STORAGE_BYTES (2u * POET_GENERATION_BYTES)

/*
 * All writes are of whole pieces of POET_WRITE_BYTES at multiples of it. They come in ascending order from the first
 * byte of a block on (in a generation its first block last): erase a block when a write reaches its first byte.
 */

/*
 * Writes the state over the older generation; until the last write is done the newer one counts. It is read back:
 * POET_OK where all of it is there. Nothing is written where a tensor that changes holds NaN or an infinity
 * (POET_NOT_FINITE), after a step that was made in part (POET_STORAGE_FAILED), and over what an older form of these
 * records saved of this plan (POET_OTHER_BUILD; erase it to begin anew).
 */
poet_status poet_save(const poet_net *net, const poet_storage *storage);

/*
 * Reads the newest generation that is whole, of this very plan. POET_NO_STATE: there is none, and the net begins
 * with the plan's weights. POET_STORAGE_FAILED: where the newest could not be found, the net is as it was; where it
 * was read in part, the net has the plan's weights, or, with homes in storage, makes no step before poet_recover or
 * poet_load gave POET_OK. POET_OTHER_BUILD: what is there is of this plan and of an older form; the net is as it
 * was. After POET_OK net->build says which build saved it. `net` was made by poet_init.
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
 * It first reads back what the step wrote, and last what it writes itself: POET_OK where all of it is there. Where
 * that was not written right, after a step that was made in part (POET_STORAGE_FAILED), and where a tensor that
 * changes holds NaN or an infinity (POET_NOT_FINITE) it writes nothing; poet_recover goes back to the commit before.
 */
poet_status poet_commit(poet_net *net);

/*
 * In place of poet_set_storage, after poet_init: goes on with the step that was committed last; and so after
 * POET_STORAGE_FAILED. It writes nothing. POET_NO_STATE: none is there, and the net is as after poet_init;
 * poet_set_storage begins anew. POET_STORAGE_FAILED: it could not be read, or is damaged; call this again, as
 * poet_set_storage would take away what was committed. POET_OTHER_BUILD: as of poet_load.
 */
poet_status poet_recover(poet_net *net, const poet_storage *storage);
#endif

#ifdef __cplusplus
}
#endif

#endif
