"""C text of ``poet_step.c``: constant records, the functions of the ops, their order, the interface."""

from __future__ import annotations

from poet.c99.calls import Placed, float_text
from poet.c99.functions import HOME_OF, HOMES, OP_TYPE, WRITER, step_body, transfers, with_spans
from poet.c99.interface import DOUBLES, FLOATS, ExportedStep, Interface, Span, comment, scalars
from poet.c99.statements import Prediction
from poet.ir.optimizer import OptimizerSpec

_INCLUDES = """#include "poet_step.h"

#include "poet_kernels.h"
#include "poet_weights.h"

#include <string.h>"""

_RESTORE = """/* What a tensor that lives across steps begins with. */
static void restore(poet_net *net, int32_t word, int32_t index)
{
    const poet_span *const span = &poet_kept[index];
    for (int32_t k = 0; k < span->words; ++k) {
        const uint32_t *from = span->first < 0 ? &span->fill : poet_weights + span->first + k;
        memcpy(net->arena + word + k, from, sizeof *from);
    }
}"""

_LEARNING_RATE = """poet_status poet_set_learning_rate(poet_net *net, float learning_rate)
{
    if (!net || !net->arena || !(learning_rate - learning_rate == 0.0f)) {
        return POET_BAD_ARGUMENT;
    }
    net->learning_rate = learning_rate;
    return POET_OK;
}"""

_PARTIAL = """    if (net->failed) { /* the step before was made in part */
        return POET_STORAGE_FAILED;
    }
"""

_CRC = """uint32_t poet_crc(uint32_t crc, const void *bytes, size_t count)
{
    const unsigned char *next = bytes;
    if (!next) {
        return crc;
    }
    while (count--) {
        crc ^= *next++;
        for (int bit = 0; bit < 8; ++bit) {
            crc = crc & 1u ? (crc >> 1) ^ UINT32_C(0xedb88320) : crc >> 1;
        }
    }
    return crc;
}"""

_STATE_CRC = """uint32_t poet_state_crc(const poet_net *net)
{
    if (!net || !net->arena) {
        return 0u;
    }
    uint32_t crc = UINT32_C(0xffffffff);
    for (int32_t i = 0; i < POET_KEPT; ++i) {
        crc = poet_crc(crc, net->arena + poet_kept[i].word, 4u * (size_t)poet_kept[i].words);
    }
    return ~crc;
}"""


def step_source(step: ExportedStep) -> str:
    """``poet_step.c``."""
    foreseen = () if isinstance(step.prediction, str) else step.prediction.statements
    body = step_body(with_spans(step.statements.statements, step.spans), foreseen)
    called = {call.function for item in step.statements.statements for call in item.calls}
    parts = [
        "/* The schedule of a training step, a line for each run; see poet_step.h. Written by poet. */",
        _INCLUDES,
        _spans(step.spans),
        _RESTORE,
        HOME_OF if step.commits else "",
        *transfers(called),
        *body.constants,
        OP_TYPE,
        *body.functions,
        _order("/* The step, in order. */", "schedule", body.orders[0]),
        _order("/* The forward pass in evaluation, in order. */", "forward", body.orders[1]),
        _init(
            step.optimizer,
            pages=step.page_bytes > 0,
            commits=step.commits,
            sums=bool(step.statements.sums),
        ),
        _pointers(
            "float *poet_input(poet_net *net, int32_t index)", step.interface.inputs, step.interface.rows
        ),
        _numbers(step.interface),
        *_target(step.interface),
        _pointers("const float *poet_output(const poet_net *net, int32_t index)", step.interface.outputs),
        _train_step(step.optimizer, step.interface.loss, pages=step.page_bytes > 0, commits=step.commits),
        _predict(step.prediction, pages=step.page_bytes > 0),
        HOMES if step.has_homes else "",
        _set_storage(step) if step.page_bytes else "",
        _LEARNING_RATE,
        _CRC,
        WRITER,
        "" if step.has_homes else _STATE_CRC,
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _spans(spans: tuple[Span, ...]) -> str:
    """The table of what lives between two steps."""
    rows = [
        f"    {{{span.word}, {span.words}, {-1 if span.first is None else span.first}, "
        f"UINT32_C({span.fill:#010x}), {_places(span)}, {int(span.is_checked)}}}, /* {comment(span.name)} */"
        for span in spans
    ]
    return "const poet_span poet_kept[POET_KEPT] = {\n" + "\n".join(rows) + "\n};"


def _places(span: Span) -> str:
    return "-1, -1, -1" if span.home is None else f"{span.home.first}, {span.home.second}, {span.checksum}"


def _init(spec: OptimizerSpec, *, pages: bool, commits: bool, sums: bool) -> str:
    storage = "    net->storage = 0;\n    net->failed = 0;\n" if pages else ""
    storage += "    net->side = net->committed = net->commits = 0u;\n" if commits else ""
    storage += "    memset(net->sums, 0, sizeof net->sums);\n" if sums else ""
    powers = "".join(f"    net->{name} = 1.0;\n" for name in DOUBLES.get(spec.name, ()))
    floats = "".join(f"    net->{name} = 1.0f;\n" for name in FLOATS[spec.name])
    return f"""poet_status poet_init(poet_net *net, float *arena, uint32_t seed)
{{
    if (!net || !arena || (uintptr_t)arena % sizeof(float)) {{
        return POET_BAD_ARGUMENT;
    }}
    net->arena = arena;
    net->build = POET_BUILD;
    net->learning_rate = {float_text(spec.lr)};
    net->steps = 0u;
    net->seed = seed;
    net->drawn = 0u;
{storage}{floats}{powers}    for (int32_t i = 0; i < POET_KEPT; ++i) {{
        if (poet_kept[i].word >= 0) {{
            restore(net, poet_kept[i].word, i);
        }}
    }}
    return POET_OK;
}}"""


def _train_step(spec: OptimizerSpec, loss: Placed, *, pages: bool, commits: bool) -> str:
    begins = f"    if (!net || !net->arena{' || !net->storage' if pages else ''}) {{"
    ends = "        if (net->failed) {\n            return POET_STORAGE_FAILED;\n        }\n"
    prepared = (_PARTIAL if pages else "") + scalars(spec)
    turns = "    net->side = !net->committed; /* what is at home in storage was written there */\n"
    return f"""poet_status poet_train_step(poet_net *net, float *loss)
{{
{begins}
        return POET_BAD_ARGUMENT;
    }}
{prepared}    for (size_t i = 0; i < sizeof schedule / sizeof schedule[0]; ++i) {{
        schedule[i].run(net, schedule[i].numbers);
{ends if pages else ""}    }}
{turns if commits else ""}    ++net->steps;
    const float made = net->arena[{loss.word}];
    if (loss) {{
        *loss = made;
    }}
    return made - made < 1.0f ? POET_OK : POET_NOT_FINITE; /* false for NaN, which infinity gives as well */
}}"""


def _set_storage(step: ExportedStep) -> str:
    fill, more = "", ""
    if step.commits:
        more = "    if (!storage->sync || net->steps > 0u) { /* the arena is not as it began */\n"
        more += "        return POET_BAD_ARGUMENT;\n    }\n"
        fill = "    if (fill_homes(net, storage)) {\n"
        fill += "        net->storage = 0; /* no step on a part of them */\n"
        fill += "        return POET_STORAGE_FAILED;\n    }\n"
    return f"""poet_status poet_set_storage(poet_net *net, const poet_storage *storage)
{{
    if (!net || !net->arena || !storage || !storage->read || !storage->write) {{
        return POET_BAD_ARGUMENT;
    }}
{more}    net->storage = storage;
{fill}    return POET_OK;
}}"""


def _order(remark: str, name: str, order: tuple[str, ...]) -> str:
    """The table of the runs that make a step or a forward pass."""
    rows = "".join(f"    {row}\n" for row in order)
    return f"{remark}\nstatic const poet_op {name}[] = {{\n{rows}}};" if order else ""


def _predict(prediction: Prediction | str, *, pages: bool) -> str:
    if isinstance(prediction, str):
        return ""
    head = "const float *poet_predicted(const poet_net *net, int32_t index)"
    function = f"""poet_status poet_predict(poet_net *net)
{{
    if (!net || !net->arena) {{
        return POET_BAD_ARGUMENT;
    }}
{_PARTIAL if pages else ""}    for (size_t i = 0; i < sizeof forward / sizeof forward[0]; ++i) {{
        forward[i].run(net, forward[i].numbers);
    }}
    return POET_OK;
}}

"""
    return function + _pointers(head, prediction.outputs)


def _pointers(head: str, places: tuple[tuple[str, Placed], ...], rows: tuple[int, ...] = ()) -> str:
    """A function that gives places by number; those of whole numbers, which have ``rows``, have none."""
    cases = "".join(
        f"    case {index}: /* {comment(name)} */\n        return net->arena + {placed.word};\n"
        for index, (name, placed) in enumerate(places)
        if not (rows and rows[index])
    )
    if not cases:
        return f"{head}\n{{\n    (void)net;\n    (void)index;\n    return 0;\n}}"
    head += "\n{\n    if (!net || !net->arena) {\n        return 0;\n    }"
    return f"{head}\n    switch (index) {{\n{cases}    default:\n        return 0;\n    }}\n}}"


def _numbers(interface: Interface) -> str:
    """The function that sets one number of an input of whole numbers."""
    cases = "".join(
        f"    case {index}: /* {comment(name)} */\n        first = {placed.word};\n"
        f"        count = POET_INPUT_{index}_NUMBERS;\n"
        f"        rows = POET_INPUT_{index}_ROWS;\n        break;\n"
        for index, ((name, placed), rows) in enumerate(zip(interface.inputs, interface.rows, strict=True))
        if rows
    )
    return (
        f"""poet_status poet_set_number(poet_net *net, int32_t index, int32_t at, int32_t number)
{{
    const int64_t row = number;
    int32_t first = 0, count = 0, rows = 0;
    switch (index) {{
{cases}    default:
        break;
    }}
    if (!net || !net->arena || at < 0 || at >= count || number < 0 || number >= rows) {{
        return POET_BAD_ARGUMENT;
    }}
    memcpy(net->arena + first + 2 * at, &row, sizeof row);
    return POET_OK;
}}"""
        if cases
        else ""
    )


def _target(interface: Interface) -> list[str]:
    if interface.target is None:
        return []
    placed = interface.target[1]
    if interface.classes is None:
        place = f"net && net->arena ? net->arena + {placed.word} : 0"
        return [f"float *poet_target(poet_net *net)\n{{\n    return {place};\n}}"]
    return [
        f"""poet_status poet_set_class(poet_net *net, int32_t row, int32_t class_number)
{{
    const int64_t number = class_number;
    const int is_class = class_number >= 0 && class_number < POET_CLASSES;
    if (!net || !net->arena || row < 0 || row >= POET_ROWS
        || !(is_class || class_number == {interface.ignored})) {{
        return POET_BAD_ARGUMENT;
    }}
    memcpy(net->arena + {placed.word} + 2 * row, &number, sizeof number);
    return POET_OK;
}}"""
    ]
