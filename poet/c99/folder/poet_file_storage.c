/* See poet_file_storage.h. Written by poet. */
#define _POSIX_C_SOURCE 200809L
#define _FILE_OFFSET_BITS 64

#include "poet_file_storage.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static int is_inside(const poet_file_storage *file, uint32_t offset, uint32_t size)
{
    return offset <= file->size && size <= file->size - offset;
}

static off_t place_of(uint32_t offset)
{
    return (off_t)POET_FILE_HEAD_BYTES + (off_t)offset;
}

/* Calls may do less than they were asked for, or be interrupted: they are made again for the rest. */
static int file_read(void *context, uint32_t offset, void *bytes, uint32_t size)
{
    const poet_file_storage *const file = context;
    unsigned char *to = bytes;
    if (!is_inside(file, offset, size)) {
        return 1;
    }
    while (size > 0u) {
        const ssize_t count = file->descriptor < 0 ? 0 : pread(file->descriptor, to, size, place_of(offset));
        if (count == 0 && file->is_read_only) {
            memset(to, 0, size);
            return 0;
        }
        if (count == 0 || (count < 0 && errno != EINTR)) {
            return 1;
        }
        if (count > 0) {
            to += count;
            offset += (uint32_t)count;
            size -= (uint32_t)count;
        }
    }
    return 0;
}

static int file_write(void *context, uint32_t offset, const void *bytes, uint32_t size)
{
    poet_file_storage *const file = context;
    const unsigned char *from = bytes;
    if (!is_inside(file, offset, size)) {
        return 1;
    }
    file->is_changed = 1;
    while (size > 0u) {
        const ssize_t count = pwrite(file->descriptor, from, size, place_of(offset));
        if (count == 0 || (count < 0 && errno != EINTR)) {
            return 1;
        }
        if (count > 0) {
            from += count;
            offset += (uint32_t)count;
            size -= (uint32_t)count;
        }
    }
    return 0;
}

static int file_sync(void *context)
{
    poet_file_storage *const file = context;
    if (file->is_changed && fsync(file->descriptor)) {
        return 1;
    }
    file->is_changed = 0;
    return 0;
}

enum { MARK_BYTES = 16 };

/* Whether an open file is what it is opened for; one that is empty becomes it, unless it is only read. */
static int is_made_ready(int descriptor, uint32_t size, poet_file_use use)
{
    const char *const mark = use == POET_FILE_PAGES ? "poet pages 2\n  \n" : "poet state 2\n  \n";
    const int is_read_only = use == POET_FILE_TO_LOAD;
    char begins[MARK_BYTES];
    struct stat found;
    if (fstat(descriptor, &found) || !S_ISREG(found.st_mode)
        || flock(descriptor, (is_read_only ? LOCK_SH : LOCK_EX) | LOCK_NB) || fstat(descriptor, &found)) {
        return 0;
    }
    if (found.st_size > 0
        && (pread(descriptor, begins, MARK_BYTES, 0) != MARK_BYTES || memcmp(begins, mark, MARK_BYTES) != 0)) {
        return 0;
    }
    if (is_read_only) {
        return 1;
    }
    if (found.st_size == 0 && (pwrite(descriptor, mark, MARK_BYTES, 0) != MARK_BYTES || fsync(descriptor))) {
        return 0;
    }
    return found.st_size >= place_of(size) || ftruncate(descriptor, place_of(size)) == 0;
}

poet_status poet_file_open(poet_file_storage *file, const char *path, uint32_t size, poet_file_use use)
{
    if (!file || !path) {
        return POET_BAD_ARGUMENT;
    }
    file->is_read_only = use == POET_FILE_TO_LOAD;
    file->is_changed = 0;
    file->size = size;
    file->storage.context = file;
    file->storage.read = file_read;
    file->storage.write = file_write;
    file->storage.sync = file_sync;
    /* without blocking: a pipe is refused, and not waited for */
    file->descriptor = open(path, (file->is_read_only ? O_RDONLY : O_RDWR | O_CREAT) | O_NONBLOCK | O_CLOEXEC, 0600);
    if (file->descriptor < 0 && !(file->is_read_only && errno == ENOENT)) {
        return POET_STORAGE_FAILED;
    }
    if (file->descriptor >= 0 && !is_made_ready(file->descriptor, size, use)) {
        (void)close(file->descriptor);
        file->descriptor = -1;
        return POET_STORAGE_FAILED;
    }
    return POET_OK;
}

poet_status poet_file_close(poet_file_storage *file)
{
    if (!file || file->storage.context != file) { /* never opened: its descriptor may be of something else */
        return POET_BAD_ARGUMENT;
    }
    const int is_closed = file->descriptor < 0 || close(file->descriptor) == 0;
    file->descriptor = -1;
    return is_closed ? POET_OK : POET_STORAGE_FAILED;
}
