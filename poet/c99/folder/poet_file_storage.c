/* See poet_file_storage.h. Written by poet. */
#define _POSIX_C_SOURCE 200809L
#define _FILE_OFFSET_BITS 64

#include "poet_file_storage.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static int is_inside(const poet_file_storage *file, uint32_t offset, uint32_t size)
{
    return offset <= file->size && size <= file->size - offset;
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
        const ssize_t count = pread(file->descriptor, to, size, (off_t)offset);
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
    const poet_file_storage *const file = context;
    const unsigned char *from = bytes;
    if (!is_inside(file, offset, size)) {
        return 1;
    }
    while (size > 0u) {
        const ssize_t count = pwrite(file->descriptor, from, size, (off_t)offset);
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
    const poet_file_storage *const file = context;
    return fsync(file->descriptor) != 0;
}

poet_status poet_file_open(poet_file_storage *file, const char *path, uint32_t size)
{
    struct stat found;
    if (!file || !path) {
        return POET_BAD_ARGUMENT;
    }
    file->descriptor = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file->descriptor < 0) {
        return POET_STORAGE_FAILED;
    }
    if (fstat(file->descriptor, &found) || !S_ISREG(found.st_mode)
        || (found.st_size < (off_t)size && ftruncate(file->descriptor, (off_t)size))) {
        (void)close(file->descriptor);
        file->descriptor = -1;
        return POET_STORAGE_FAILED;
    }
    file->size = size;
    file->storage.context = file;
    file->storage.read = file_read;
    file->storage.write = file_write;
    file->storage.sync = file_sync;
    return POET_OK;
}

poet_status poet_file_close(poet_file_storage *file)
{
    if (!file || file->descriptor < 0) {
        return POET_BAD_ARGUMENT;
    }
    const int is_closed = close(file->descriptor) == 0;
    file->descriptor = -1;
    return is_closed ? POET_OK : POET_STORAGE_FAILED;
}
