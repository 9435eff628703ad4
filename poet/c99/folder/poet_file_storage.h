/* The callbacks of poet_storage over a file, for machines with POSIX: Linux boards. */
#ifndef POET_FILE_STORAGE_H
#define POET_FILE_STORAGE_H

#include "poet_step.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Not to be moved while it is open: `storage` points to it. */
typedef struct {
    poet_storage storage;
    int descriptor; /* -1: there is no file, or it is closed */
    uint32_t size;
    int is_read_only;
    int is_changed; /* since it was synced */
} poet_file_storage;

/* What a file is for: pages of a step (POET_PAGE_BYTES), or saved states (POET_STORAGE_BYTES). */
typedef enum { POET_FILE_PAGES = 0, POET_FILE_TO_SAVE = 1, POET_FILE_TO_LOAD = 2 } poet_file_use;

/* A file begins with a block that says what it is; the storage lies behind it. */
#define POET_FILE_HEAD_BYTES 4096u

/*
 * Opens the file at `path` for `size` bytes of storage, and makes it where there is none. POET_STORAGE_FAILED, and the
 * file as it was: it is in use by another opener, or holds anything but what it is opened for, in this form. To load it is only read;
 * what is not there reads as zeros, so that poet_load finds nothing.
 */
poet_status poet_file_open(poet_file_storage *file, const char *path, uint32_t size, poet_file_use use);

/* Closes it; what was synced is in the file. */
poet_status poet_file_close(poet_file_storage *file);

#ifdef __cplusplus
}
#endif

#endif
