/* See poet_library.h. Written by poet. */
#include "poet_library.h"

#ifndef POET_TARGET_FLOATS
#define POET_TARGET_FLOATS 0u
#endif
#ifndef POET_CLASSES
#define POET_ROWS 0u
#define POET_CLASSES 0u
#endif

static const uint32_t input_floats[] = {@INPUT_FLOATS@};
static const uint32_t input_numbers[] = {@INPUT_NUMBERS@};
static const uint32_t output_floats[] = {@OUTPUT_FLOATS@};

const poet_library_facts poet_library = {
    6u,
    (uint32_t)sizeof(poet_net),
    (uint32_t)sizeof(poet_file_storage),
    POET_ARENA_BYTES,
    POET_PAGE_BYTES,
    POET_STORAGE_BYTES,
    POET_INPUTS,
    POET_OUTPUTS,
    POET_KEPT,
    POET_TARGET_FLOATS,
    POET_ROWS,
    POET_CLASSES,
    POET_HOMES,
    @CAN_PREDICT@u,
    input_floats,
    output_floats,
    input_numbers,
    "@DIGEST@",
};
