"""C text of ``poet_step.h``: sizes, the record of a net, and the functions that its caller has."""

from __future__ import annotations

from collections.abc import Iterator

from poet.c99.calls import WORD_BYTES, Placed
from poet.c99.functions import HOMES_DECLARED
from poet.c99.interface import DOUBLES, FLOATS, ExportedStep, comment
from poet.c99.sources import C_LINKAGE

_TYPES = """typedef enum {
    POET_OK = 0,
    POET_BAD_ARGUMENT = 1, /* a null pointer, no such row or class, or a call before what it needs */
    POET_NOT_FINITE = 2,   /* of a step: the loss is NaN or infinite; of saving: something that changes is */
    POET_STORAGE_FAILED = 3, /* or gave back other bytes; and of all calls after a step made in part */
    POET_NO_STATE = 4,     /* nothing whole was saved; see poet_state.h */
    POET_OTHER_BUILD = 5   /* what was saved is of this plan and of an older form; see poet_state.h */
} poet_status;

/* The caller's storage; each function gives 0 where all went well, `sync` when a power cut does no harm. */
typedef struct {
    void *context;
    int (*read)(void *context, uint32_t offset, void *bytes, uint32_t size);
    int (*write)(void *context, uint32_t offset, const void *bytes, uint32_t size);
    int (*sync)(void *context);
} poet_storage;

/* Writes to storage from `at` on, in whole pieces; `sum` is the checksum of what was put in. See poet_put. */
typedef struct {
    const poet_storage *storage;
    uint32_t at, held, sum;
    uint32_t piece[(POET_WRITE_BYTES + 3) / 4];
} poet_writer;

"""
_BUILT = """/* The smallest piece that the storage programs, a power of two up to 4,096. */
#ifndef POET_WRITE_BYTES
#define POET_WRITE_BYTES 4u
#endif
#if POET_WRITE_BYTES < 1 || POET_WRITE_BYTES > 4096 || (POET_WRITE_BYTES & (POET_WRITE_BYTES - 1))
#error "POET_WRITE_BYTES is a power of two up to 4,096"
#endif

/* What saved states say of the build that wrote them: by default the CRC-32 of the sources. */
#ifndef POET_BUILD
#define POET_BUILD UINT32_C({build:#010x})
#endif
"""
_IS_SUM, _NO_SUM = "(net)->sums[number] == (found)", "(void)(found), 1"
_INPUT = (
    "/* Where input `index` goes, POET_INPUT_<index>_FLOATS, anew before each step; null: there is none. */"
)
"""Of the interface, for every step alike."""
_NUMBERS = """
/*
 * Number `at` of the POET_INPUT_<index>_NUMBERS of an input of whole numbers, from 0 up to
 * POET_INPUT_<index>_ROWS - 1; all of them before each step.
 */
poet_status poet_set_number(poet_net *net, int32_t index, int32_t at, int32_t number);
"""
"""Of steps with inputs that look up rows of tables."""


def step_header(step: ExportedStep, *, model: str, digest: str, build: int) -> str:
    """``poet_step.h``; ``digest``: SHA-256 of the plan, as hexadecimal digits; ``build``: 32 bits."""
    macros = [*_macros(step, digest, build), *_sizes("INPUT", step.interface.inputs, step.interface.rows)]
    macros += [*_sizes("OUTPUT", step.interface.outputs), *_target_macros(step)]
    homes = HOMES_DECLARED if step.has_homes else ""
    return f"""/*
 * A training step of {comment(model)}, written by poet. Plan (SHA-256):
 * {digest}
 */
#ifndef POET_STEP_H
#define POET_STEP_H

#include <stddef.h>
#include <stdint.h>

{C_LINKAGE[0]}
{chr(10).join(macros)}

{_TYPES}/* Everything but the arena; the caller's. Only poet_ functions write to it. */
typedef struct {{
    float *arena;
{_members(step)}}} poet_net;

/*
 * Begins with the plan's weights, at step 0. `arena` holds POET_ARENA_FLOATS, best aligned for 8 bytes, and
 * belongs to the net from here on; an address that is no multiple of 4 is refused. `seed` is that of dropout.
 */
poet_status poet_init(poet_net *net, float *arena, uint32_t seed);

{_paging(step)}{_INPUT}
float *poet_input(poet_net *net, int32_t index);
{_NUMBERS if any(step.interface.rows) else ""}{_target(step)}
/* One step: forward, backward, update. `loss` may be null. */
poet_status poet_train_step(poet_net *net, float *loss);

/* The net's output of the last step, until an input or a target is filled; null: there is none. */
const float *poet_output(const poet_net *net, int32_t index);

{_predict(step)}/* The learning rate from the next step on, a finite one; poet_init sets that of the plan. */
poet_status poet_set_learning_rate(poet_net *net, float learning_rate);

/*
 * CRC-32 of all that lives across steps: equal on two machines that trained alike. 0: it cannot be read, as
 * before poet_init, before the storage was set, or where a callback failed.
 */
uint32_t poet_state_crc(const poet_net *net);

/* Goes on with a CRC-32, which begins with 0xffffffff and ends inverted. */
uint32_t poet_crc(uint32_t crc, const void *bytes, size_t count);

/* Goes on with the checksum of what is written to storage; pieces but the last are whole words. */
uint32_t poet_checksum(uint32_t sum, const void *bytes, size_t count);

/*
 * Writing from `at` on, a multiple of POET_WRITE_BYTES: so do all writes begin, and each is of whole pieces,
 * in ascending order, none twice. poet_put_rest fills up the last piece. 0 where all went well.
 */
void poet_begin(poet_writer *to, const poet_storage *storage, uint32_t at);
int poet_put(poet_writer *to, const void *bytes, uint32_t size);
int poet_put_rest(poet_writer *to);

/*
 * What lives across steps: place in the arena, words, first of the weights; or -1, and what fills it. What is
 * not in the arena (-1) is at `home` or `second` in the storage, in turn, with a checksum in the net, or a
 * constant (-1 as well). Where it `is_checked`, no NaN and no infinity of it is saved.
 */
typedef struct {{
    int32_t word, words, first;
    uint32_t fill;
    int32_t home, second, sum, is_checked;
}} poet_span;

extern const poet_span poet_kept[POET_KEPT];
{homes}
{C_LINKAGE[1]}#endif
"""


def _macros(step: ExportedStep, digest: str, build: int) -> list[str]:
    return [
        *_BUILT.format(build=build).splitlines(),
        f"#define POET_PLAN UINT32_C(0x{digest[:8]})",
        f"#define POET_KEPT {len(step.spans)}",
        f"#define POET_HOMES {int(step.has_homes)}",
        f"#define POET_COMMITS {int(step.commits)}",
        *([f"#define POET_COMMIT_AT {step.statements.commit}u"] if step.commits else []),
        *([f"#define POET_COMMIT_BYTES {step.commit_bytes}u"] if step.commits else []),
        f"#define POET_STATE_BYTES {WORD_BYTES * sum(span.words for span in step.spans)}u",
        f"#define POET_ARENA_BYTES {step.arena_bytes}",
        f"#define POET_PAGE_BYTES {step.page_bytes}",
        f"#define POET_NUMBERS_BYTES {_numbers_bytes(step)}u",
        *([f"#define POET_HOME_SUMS {_home_sums(step)}u"] if step.commits else []),
        f"#define POET_IS_SUM(net, number, found) ({_IS_SUM if step.commits else _NO_SUM})",
        f"#define POET_ARENA_FLOATS (POET_ARENA_BYTES / {WORD_BYTES})",
    ]


def _sizes(
    kind: str, places: tuple[tuple[str, Placed], ...], looked_up: tuple[int, ...] = ()
) -> Iterator[str]:
    """Macros that count the elements of inputs or outputs."""
    yield f"#define POET_{kind}S {len(places)}"
    for index, (name, placed) in enumerate(places):
        shape = " x ".join(map(str, placed.type.shape)) or "1"
        rows = looked_up[index] if looked_up else 0
        what = "NUMBERS" if rows else "FLOATS"
        yield f"#define POET_{kind}_{index}_{what} {placed.type.elements} /* {comment(name)}: {shape} */"
        if rows:
            yield f"#define POET_{kind}_{index}_ROWS {rows}"


def _target_macros(step: ExportedStep) -> list[str]:
    interface = step.interface
    if interface.target is None:
        return []
    count = interface.target[1].type.elements
    if interface.classes is None:
        return [f"#define POET_TARGET_FLOATS {count}"]
    return [f"#define POET_ROWS {count}", f"#define POET_CLASSES {interface.classes}"]


def _target(step: ExportedStep) -> str:
    if step.interface.target is None:
        return ""
    if step.interface.classes is None:
        return (
            "\n/* Where the target goes: POET_TARGET_FLOATS of them, anew before every step. */\n"
            "float *poet_target(poet_net *net);\n"
        )
    return (
        "\n/* The class of a row of the batch, 0 to POET_CLASSES - 1; each row's before each step. */\n"
        "poet_status poet_set_class(poet_net *net, int32_t row, int32_t class_number);\n"
    )


def _predict(step: ExportedStep) -> str:
    if isinstance(step.prediction, str):
        return f"/* There is no poet_predict: {comment(step.prediction)} */\n\n"
    return (
        "/* The forward pass in evaluation mode on inputs filled anew; targets need not be. */\n"
        "poet_status poet_predict(poet_net *net);\n\n"
        "/* What it gave, until inputs are filled or a step is made; sizes as of poet_output. */\n"
        "const float *poet_predicted(const poet_net *net, int32_t index);\n\n"
    )


def _members(step: ExportedStep) -> str:
    """Members of the record of a net beside its arena."""
    floats = ", ".join(("learning_rate", *FLOATS[step.optimizer.name]))
    powers = ", ".join(DOUBLES.get(step.optimizer.name, ()))
    sums = len(step.statements.sums)
    members = "    const poet_storage *storage;\n    int failed;\n" if step.page_bytes else ""
    members += "    uint32_t side, committed, commits; /* see poet_commit */\n" if step.commits else ""
    members += "    uint32_t build; /* that saved what was loaded or recovered; at first POET_BUILD */\n"
    members += "    uint64_t drawn; /* from here to the seed: POET_NUMBERS_BYTES, which are saved */\n"
    members += f"    double {powers};\n" if powers else ""
    members += f"    float {floats};\n    uint32_t steps, seed;\n"
    return members + (f"    uint32_t sums[{sums}]; /* of what is in storage */\n" if sums else "")


def _home_sums(step: ExportedStep) -> int:
    return sum(home is not None for home in step.statements.homes.values())


def _numbers_bytes(step: ExportedStep) -> int:
    """Of the members that are saved, which lie without gaps, as the largest come first."""
    name = step.optimizer.name
    return 8 * (1 + len(DOUBLES.get(name, ()))) + WORD_BYTES * (3 + len(FLOATS[name]))


def net_bytes(step: ExportedStep) -> int:
    """``sizeof(poet_net)`` where pointers have 4 bytes, and numbers of 8 begin at multiples of 8."""
    words = 2 + 2 * bool(step.page_bytes) + 3 * step.commits
    size = -(-WORD_BYTES * words // 8) * 8 + _numbers_bytes(step) + WORD_BYTES * len(step.statements.sums)
    return -(-size // 8) * 8


def _paging(step: ExportedStep) -> str:
    if not step.page_bytes:
        return ""
    homes = (
        "\n * What is at home in storage is written there by this, as it begins, over what was committed.\n"
        " * To go on with that use poet_recover instead (poet_state.h), and this where that gave\n"
        " * POET_NO_STATE; where this gave POET_STORAGE_FAILED, call it again."
        if step.commits
        else ""
    )
    ways = "poet_recover or poet_load gave POET_OK" if step.commits else "poet_load, or poet_init and this"
    return (
        "/*\n * Where a step keeps POET_PAGE_BYTES of tensors for a while; to be set before the first step.\n"
        " * Between steps nothing of worth is there. After POET_STORAGE_FAILED a step was made in part, and\n"
        f" * none is made until {ways}.{homes}\n */\n"
        "poet_status poet_set_storage(poet_net *net, const poet_storage *storage);\n\n"
    )
