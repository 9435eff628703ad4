/* The callbacks of poet_storage over a file, for machines with POSIX: Linux boards. */
#ifndef POET_FILE_STORAGE_H
#define POET_FILE_STORAGE_H

#include "poet_step.h"

/* Not to be moved while it is open: `storage` points to it. */
typedef struct {
    poet_storage storage;
    int descriptor;
    uint32_t size;
} poet_file_storage;

/*
 * Opens the file at `path`, makes it where there is none, and makes it `size` bytes long where it is shorter. What
 * was there stays. Pages of a step (POET_PAGE_BYTES) and saved states (POET_STORAGE_BYTES) go to files of their own.
 */
poet_status poet_file_open(poet_file_storage *file, const char *path, uint32_t size);

/* Closes it; what was synced is in the file. */
poet_status poet_file_close(poet_file_storage *file);

#endif
