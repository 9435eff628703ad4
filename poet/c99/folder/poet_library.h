/* What a program that loads the shared library must know of it; poet_library.py is one such. */
#ifndef POET_LIBRARY_H
#define POET_LIBRARY_H

#include "poet_file_storage.h"
#include "poet_state.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    uint32_t version;                              /* of this record and of the functions that are called: 6 */
    uint32_t net_bytes, file_bytes;                /* of a poet_net and a poet_file_storage */
    uint32_t arena_bytes, page_bytes, storage_bytes;
    uint32_t inputs, outputs, kept;                /* how many of each */
    uint32_t target_floats, rows, classes;         /* floats, or a class for each row; 0: not of that kind */
    uint32_t has_homes, can_predict;
    const uint32_t *input_floats, *output_floats;  /* of each */
    const uint32_t *input_numbers;                 /* of each, where it is of whole numbers; else 0 */
    const char *plan;                              /* SHA-256, hexadecimal */
} poet_library_facts;

extern const poet_library_facts poet_library;

#ifdef __cplusplus
}
#endif

#endif
