"""C text of a training step: constant records, a function for each run of an op, their order, the API."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from poet.c99.calls import WORD_BYTES, CCall, CStruct, Placed, float_text
from poet.c99.predict import Prediction
from poet.c99.statements import Statement, Statements
from poet.errors import PlanError, UnsupportedOperator
from poet.graph import Graph, Ref
from poet.optimizer import OptimizerSpec

_APPLIED = re.compile(r"\bpoet_apply_\w+")
_NOT_IN_COMMENTS = re.compile(r"[^A-Za-z0-9_.:+ -]")


def comment(text: str) -> str:
    """``text`` without what could end a comment or a line."""
    return _NOT_IN_COMMENTS.sub("_", text)[:200]


@dataclass(frozen=True, slots=True)
class Interface:
    """What the caller fills and reads.

    Attributes:
        inputs: name and place of each input, the target not among them.
        target: name and place, where there is one.
        classes: how many there are, where the target is class numbers.
        ignored: the class number that counts for nothing.
        outputs: name and place of each prediction.
        loss: its place.
    """

    inputs: tuple[tuple[str, Placed], ...]
    target: tuple[str, Placed] | None
    classes: int | None
    ignored: int
    outputs: tuple[tuple[str, Placed], ...]
    loss: Placed


@dataclass(frozen=True, slots=True)
class Span:
    """What lives between two steps: its place, and where its first content is.

    Attributes:
        name: of the buffer.
        word: of the arena; -1: it is not there.
        words: how many.
        first: of the weights; ``None``: it begins filled with ``fill``.
        fill: bits of each word.
        home: offset in storage of what is there between steps; -1: it is a constant. ``None``: it is in RAM.
    """

    name: str
    word: int
    words: int
    first: int | None
    fill: int = 0
    home: int | None = None


def interface_of(graph: Graph, statements: Statements) -> Interface:
    """What the caller of a step of ``graph`` sees.

    Raises:
        UnsupportedOperator: an input is not of floats side by side, or the target neither that nor classes.
    """
    count = len(graph.inputs) - graph.targets
    inputs = tuple((name, statements.given[name]) for name in graph.inputs[:count])
    outputs = tuple((name, statements.left[name]) for name in graph.predictions)
    target = graph.inputs[count] if graph.targets else None
    placed = (target, statements.given[target]) if target is not None else None
    classes, ignored = None, 0
    if placed is not None and placed[1].type.dtype == "int64":
        classes, ignored = _classes(graph, placed[0])
        floats = [*inputs, *outputs]
    else:
        floats = [*inputs, *outputs, *([placed] if placed else [])]
    for name, where in floats:
        if where.type.dtype != "float32" or not where.is_dense:
            raise UnsupportedOperator(
                f"{name} is {where.type} with strides {list(where.type.strides)}; "
                "in C a step is given and gives back floats side by side"
            )
    return Interface(inputs, placed, classes, ignored, outputs, statements.left[graph.loss])


def _classes(graph: Graph, target: str) -> tuple[int, int]:
    """How many classes there are, and which number is ignored."""
    types = {value.name: value.type for value in graph.values}
    for op in graph.ops:
        scores = op.call.args[0] if op.call.args else None
        is_loss = op.call.target == "aten.nll_loss_forward.default" and op.call.args[1] == Ref(target)
        if is_loss and isinstance(scores, Ref):
            ignored = op.call.args[4] if len(op.call.args) > 4 else -100
            return types[scores.value].shape[1], ignored if isinstance(ignored, int) else -100
    raise UnsupportedOperator(f"{target}: whole numbers that are no classes of a loss have no C kernel")


@dataclass(slots=True)
class _Constants:
    """Constant records, each once, by the type of the record."""

    names: dict[CStruct, str] = field(default_factory=dict)

    def name(self, record: CStruct) -> str:
        """What the record is called."""
        if record not in self.names:
            kind = record.type.removeprefix("poet_").removesuffix("_shape")
            self.names[record] = f"{kind}_{len(self.names)}"
        return self.names[record]

    def lines(self) -> Iterator[str]:
        """Their definitions."""
        for record, name in self.names.items():
            yield f"static const {record.type} {name} = {record.text()};"


def _call_lines(call: CCall, constants: _Constants) -> Iterator[str]:
    given = (f"&{constants.name(item)}" if isinstance(item, CStruct) else item for item in call.arguments)
    indent = "    "
    for head in call.heads:
        yield f"{indent}{head} {{"
        indent += "    "
    yield f"{indent}{call.function}({', '.join(given)});"
    for depth in reversed(range(len(call.heads))):
        yield "    " * (depth + 1) + "}"


@dataclass(frozen=True, slots=True)
class StepBody:
    """The functions of a step and the orders in which they are called."""

    functions: tuple[str, ...]
    constants: tuple[str, ...]
    orders: tuple[tuple[str, ...], ...]


def step_body(*sequences: tuple[Statement, ...]) -> StepBody:
    """One function for each different run; a recomputation at the same places is the same function.

    ``orders`` of the body: for each of the sequences, the functions that it calls.
    """
    constants, functions, orders = _Constants(), list[str](), [list[str]() for _ in sequences]
    known: dict[tuple[str, tuple[CCall, ...]], str] = {}
    for statement, order in (
        (item, order) for sequence, order in zip(sequences, orders, strict=True) for item in sequence
    ):
        if not statement.calls:
            continue
        key = (statement.op, statement.calls)
        if key not in known:
            known[key] = f"op_{len(known)}"
            lines = [line for call in statement.calls for line in _call_lines(call, constants)]
            again = ", once more" if statement.is_repeat else ""
            text = "\n".join(lines)
            arena = "    float *const a = net->arena;\n" if re.search(r"\ba\b", text) else ""
            head = f"/* {comment(statement.op)}{again} */\nstatic void {known[key]}(poet_net *net)\n"
            functions.append(f"{head}{{\n{arena}{text}\n}}")
        order.append(known[key])
    return StepBody(tuple(functions), tuple(constants.lines()), tuple(map(tuple, orders)))


# --- transfers -----------------------------------------------------------------------------------


_TRANSFERS = {
    "restore": "",
    "move": """/* From one place in the arena to another, which may overlap. */
static void move(poet_net *net, int32_t to, int32_t from, uint32_t size)
{
    memmove(net->arena + to, net->arena + from, size);
}""",
    "page_in": """/* From storage into the arena; after a failure nothing more is tried. */
static void page_in(poet_net *net, int32_t word, uint32_t offset, uint32_t size)
{
    if (net->failed || net->storage->read(net->storage->context, offset, net->arena + word, size)) {
        net->failed = 1;
    }
}""",
    "page_out": """/* From the arena into storage; after a failure nothing more is tried. */
static void page_out(poet_net *net, int32_t word, uint32_t offset, uint32_t size)
{
    if (net->failed || net->storage->write(net->storage->context, offset, net->arena + word, size)) {
        net->failed = 1;
    }
}""",
}
"""Functions that copy whole buffers, by name; ``restore``, which `poet_init` uses, is always there."""


_HOMES_DECLARED = """
/* Some bytes of what lives across steps, wherever it is; 0 where all went well. */
int poet_kept_read(const poet_net *net, int32_t index, uint32_t from, void *bytes, uint32_t size);

/* Likewise the other way; constants stay as they are. */
int poet_kept_write(poet_net *net, int32_t index, uint32_t to, const void *bytes, uint32_t size);
"""

_HOMES = """int poet_kept_read(const poet_net *net, int32_t index, uint32_t from, void *bytes, uint32_t size)
{
    const poet_span *const span = &poet_kept[index];
    if (span->word < 0 && span->home >= 0) {
        return net->storage->read(net->storage->context, (uint32_t)span->home + from, bytes, size);
    }
    for (uint32_t k = 0u; k < size; k += 4u) {
        const void *at = span->first < 0 ? &span->fill : poet_weights + span->first + (from + k) / 4u;
        if (span->word >= 0) {
            at = net->arena + (uint32_t)span->word + (from + k) / 4u;
        }
        memcpy((unsigned char *)bytes + k, at, 4u);
    }
    return 0;
}

int poet_kept_write(poet_net *net, int32_t index, uint32_t to, const void *bytes, uint32_t size)
{
    const poet_span *const span = &poet_kept[index];
    if (span->word < 0) {
        const uint32_t at = (uint32_t)span->home + to;
        return span->home < 0 ? 0 : net->storage->write(net->storage->context, at, bytes, size);
    }
    memcpy(net->arena + (uint32_t)span->word + to / 4u, bytes, size);
    return 0;
}"""

_FILL_HOMES = """    uint32_t words[16];
    for (int32_t i = 0; storage && i < POET_KEPT; ++i) {
        const poet_span *const span = &poet_kept[i];
        for (int32_t k = 0; span->word < 0 && span->home >= 0 && k < span->words; k += 16) {
            const int32_t left = span->words - k, count = left < 16 ? left : 16;
            for (int32_t at = 0; at < count; ++at) {
                words[at] = span->first < 0 ? span->fill : poet_weights[span->first + k + at];
            }
            if (poet_kept_write(net, i, 4u * (uint32_t)k, words, 4u * (uint32_t)count)) {
                return POET_STORAGE_FAILED;
            }
        }
    }
    if (storage && storage->sync(storage->context)) {
        return POET_STORAGE_FAILED;
    }
"""

_CRC_WITH_HOMES = """uint32_t poet_state_crc(const poet_net *net)
{
    uint32_t crc = UINT32_C(0xffffffff);
    for (int32_t i = 0; i < POET_KEPT; ++i) {
        const uint32_t size = 4u * (uint32_t)poet_kept[i].words;
        for (uint32_t at = 0u; at < size; at += 64u) {
            unsigned char bytes[64] = {0u};
            const uint32_t count = size - at < 64u ? size - at : 64u;
            (void)poet_kept_read(net, i, at, bytes, count); /* where that fails the sum is another one */
            crc = poet_crc(crc, bytes, count);
        }
    }
    return ~crc;
}"""


def _with_spans(statements: tuple[Statement, ...], spans: tuple[Span, ...]) -> tuple[Statement, ...]:
    """``statements`` with the numbers of spans in place of the names of buffers."""
    numbers = {f"@{span.name}": str(index) for index, span in enumerate(spans)}

    def of(argument: str | CStruct) -> str | CStruct:
        return numbers.get(argument, argument) if isinstance(argument, str) else argument

    return tuple(
        replace(
            item, calls=tuple(replace(call, arguments=tuple(map(of, call.arguments))) for call in item.calls)
        )
        for item in statements
    )


# --- the optimizer ----------------------------------------------------------------------------


_DOUBLES = {"adamw": ("beta1_power", "beta2_power")}
_FLOATS = {
    "sgd": (),
    "momentum": ("gradient_share",),
    "adamw": ("decay_factor", "step_size", "second_moment_correction"),
}


def check_optimizer(spec: OptimizerSpec) -> None:
    """Refuse an optimizer whose numbers the C code does not make.

    Raises:
        PlanError: it is another one than SGD, SGD with momentum and AdamW, or has parameter groups.
    """
    if spec.name not in _FLOATS:
        raise PlanError(f"optimizer {spec.name} is none that the C code has; plan with {', '.join(_FLOATS)}")
    if spec.groups:
        raise PlanError("the C code has one learning rate; plan without parameter groups")


def _scalars(spec: OptimizerSpec) -> str:
    """C text that makes the numbers of the step about to be made."""
    if spec.name == "momentum":
        rest = float_text(1 - spec.dampening)
        return f"    net->gradient_share = net->steps == 0u ? 1.0f : {rest};\n"
    if spec.name == "adamw":
        beta1, beta2 = spec.both_betas
        return (
            f"    net->beta1_power *= {beta1!r};\n"
            f"    net->beta2_power *= {beta2!r};\n"
            f"    net->decay_factor = (float)(1.0 - (double)net->learning_rate * {spec.decay!r});\n"
            "    net->step_size = (float)((double)net->learning_rate / (1.0 - net->beta1_power));\n"
            "    net->second_moment_correction = poet_sqrt((float)(1.0 - net->beta2_power));\n"
        )
    return ""


# --- files ------------------------------------------------------------------------------------


def step_header(
    interface: Interface,
    arena_bytes: int,
    page_bytes: int,
    spans: tuple[Span, ...],
    spec: OptimizerSpec,
    prediction: Prediction | str,
    *,
    model: str,
    digest: str,
) -> str:
    """``poet_step.h``."""
    macros = [f"#define POET_PLAN UINT32_C(0x{digest[:8]})"]
    macros += [f"#define POET_KEPT {len(spans)}"]
    macros += [f"#define POET_HOMES {int(any(span.home is not None for span in spans))}"]
    macros += [f"#define POET_STATE_BYTES {WORD_BYTES * sum(span.words for span in spans)}u"]
    macros += [f"#define POET_ARENA_BYTES {arena_bytes}", f"#define POET_PAGE_BYTES {page_bytes}"]
    macros += [f"#define POET_ARENA_FLOATS (POET_ARENA_BYTES / {WORD_BYTES})"]
    macros += [f"#define POET_INPUTS {len(interface.inputs)}"]
    for index, (name, placed) in enumerate(interface.inputs):
        shape = " x ".join(map(str, placed.type.shape)) or "1"
        macros += [f"#define POET_INPUT_{index}_FLOATS {placed.type.elements} /* {comment(name)}: {shape} */"]
    macros += [f"#define POET_OUTPUTS {len(interface.outputs)}"]
    for index, (name, placed) in enumerate(interface.outputs):
        shape = " x ".join(map(str, placed.type.shape)) or "1"
        macros += [
            f"#define POET_OUTPUT_{index}_FLOATS {placed.type.elements} /* {comment(name)}: {shape} */"
        ]
    target = ""
    if interface.target is not None and interface.classes is not None:
        macros += [f"#define POET_ROWS {interface.target[1].type.elements}"]
        macros += [f"#define POET_CLASSES {interface.classes}"]
        target = (
            "\n/* The class of a row of the batch, 0 to POET_CLASSES - 1; each row's before each step. */\n"
            "poet_status poet_set_class(poet_net *net, int32_t row, int32_t class_number);\n"
        )
    elif interface.target is not None:
        macros += [f"#define POET_TARGET_FLOATS {interface.target[1].type.elements}"]
        target = (
            "\n/* Where the target goes: POET_TARGET_FLOATS of them, anew before every step. */\n"
            "float *poet_target(poet_net *net);\n"
        )
    predict = (
        f"/* There is no poet_predict: {comment(prediction)} */\n\n"
        if isinstance(prediction, str)
        else "/* The forward pass in evaluation mode on inputs filled anew; targets need not be. */\n"
        "poet_status poet_predict(poet_net *net);\n\n"
        "/* What it gave, until inputs are filled or a step is made; sizes as of poet_output. */\n"
        "const float *poet_predicted(const poet_net *net, int32_t index);\n\n"
    )
    numbers = "".join(f" {name}," for name in _FLOATS[spec.name]).rstrip(",")
    members = f"    float{numbers};\n" if numbers else ""
    powers = ", ".join(_DOUBLES.get(spec.name, ()))
    members += f"    double {powers};\n" if powers else ""
    members += "    const poet_storage *storage;\n    int failed;\n" if page_bytes else ""
    paging = (
        "/*\n * Where a step keeps POET_PAGE_BYTES of tensors for a while; to be set before the first step.\n"
        " * Between steps nothing of worth is there. After POET_STORAGE_FAILED a step was made in part:\n"
        " * go on with poet_load, or with poet_init and this."
        + (
            "\n * What is at home in storage is written there by this, as it begins, and each step\n"
            " * writes it in place: after a power cut go on with poet_load."
            if any(span.home is not None and span.home >= 0 for span in spans)
            else ""
        )
        + "\n */\npoet_status poet_set_storage(poet_net *net, const poet_storage *storage);\n\n"
        if page_bytes
        else ""
    )
    homes = _HOMES_DECLARED if any(span.home is not None for span in spans) else ""
    return f"""/*
 * A training step of {comment(model)}, written by poet. Plan (SHA-256):
 * {digest}
 */
#ifndef POET_STEP_H
#define POET_STEP_H

#include <stddef.h>
#include <stdint.h>

{chr(10).join(macros)}

typedef enum {{
    POET_OK = 0,
    POET_BAD_ARGUMENT = 1, /* a null pointer, or a row or class that there is not */
    POET_NOT_FINITE = 2,   /* the loss is NaN or infinite; the parameters may be, too */
    POET_STORAGE_FAILED = 3,
    POET_NO_STATE = 4      /* nothing whole was saved; see poet_state.h */
}} poet_status;

/* The caller's storage; each function gives 0 where all went well, `sync` when a power cut does no harm. */
typedef struct {{
    void *context;
    int (*read)(void *context, uint32_t offset, void *bytes, uint32_t size);
    int (*write)(void *context, uint32_t offset, const void *bytes, uint32_t size);
    int (*sync)(void *context);
}} poet_storage;

/* Everything but the arena; the caller's. Only poet_ functions write to it. */
typedef struct {{
    float *arena;
    float learning_rate;
    uint32_t steps, seed;
    uint64_t drawn;
{members}}} poet_net;

/*
 * Begins with the plan's weights, at step 0. `arena` holds POET_ARENA_FLOATS, aligned for 8 bytes, and
 * belongs to the net from here on. `seed` is that of dropout.
 */
poet_status poet_init(poet_net *net, float *arena, uint32_t seed);

{paging}/* Where input `index` goes, POET_INPUT_<index>_FLOATS, anew before each step; null: there is none. */
float *poet_input(poet_net *net, int32_t index);
{target}
/* One step: forward, backward, update. `loss` may be null. */
poet_status poet_train_step(poet_net *net, float *loss);

/* The net's output of the last step, until an input or a target is filled; null: there is none. */
const float *poet_output(const poet_net *net, int32_t index);

{predict}/* The learning rate from the next step on; poet_init sets that of the plan. */
void poet_set_learning_rate(poet_net *net, float learning_rate);

/* CRC-32 of all that lives across steps: equal on two machines that trained alike. */
uint32_t poet_state_crc(const poet_net *net);

/* Goes on with a CRC-32, which begins with 0xffffffff and ends inverted. */
uint32_t poet_crc(uint32_t crc, const void *bytes, size_t count);

/*
 * What lives across steps: place in the arena, words, first of the weights; or -1, and what fills it. What is
 * not in the arena (-1) is at `home` in the storage, or a constant (-1 as well).
 */
typedef struct {{
    int32_t word, words, first;
    uint32_t fill;
    int32_t home;
}} poet_span;

extern const poet_span poet_kept[POET_KEPT];
{homes}
#endif
"""


def step_source(
    interface: Interface,
    statements: Statements,
    prediction: Prediction | str,
    spans: tuple[Span, ...],
    spec: OptimizerSpec,
) -> str:
    """``poet_step.c``."""
    foreseen = None if isinstance(prediction, str) else prediction
    has_homes = any(span.home is not None for span in spans)
    body = step_body(_with_spans(statements.statements, spans), foreseen.statements if foreseen else ())
    called = {call.function for item in statements.statements for call in item.calls}
    transfers = [_TRANSFERS[name] for name in sorted(called & set(_TRANSFERS))]
    rows = [
        f"    {{{span.word}, {span.words}, {-1 if span.first is None else span.first}, "
        f"UINT32_C({span.fill:#010x}), {-1 if span.home is None else span.home}}}, /* {comment(span.name)} */"
        for span in spans
    ]
    storage = "    net->storage = 0;\n    net->failed = 0;\n" if statements.page_bytes else ""
    begins = "    if (!net) {" if not statements.page_bytes else "    if (!net || !net->storage) {"
    ends = "        if (net->failed) {\n            net->failed = 0;\n"
    ends += "            return POET_STORAGE_FAILED;\n        }\n"
    powers = "".join(f"    net->{name} = 1.0;\n" for name in _DOUBLES.get(spec.name, ()))
    floats = "".join(f"    net->{name} = 1.0f;\n" for name in _FLOATS[spec.name])
    parts = [
        "/* The schedule of a training step, one function for each op; see poet_step.h. Written by poet. */",
        '#include "poet_step.h"\n\n#include "poet_kernels.h"\n#include "poet_weights.h"\n\n'
        "#include <string.h>",
        "const poet_span poet_kept[POET_KEPT] = {\n" + "\n".join(rows) + "\n};",
        """/* What a tensor that lives across steps begins with. */
static void restore(poet_net *net, int32_t word, int32_t index)
{
    const poet_span *const span = &poet_kept[index];
    for (int32_t k = 0; k < span->words; ++k) {
        const uint32_t *from = span->first < 0 ? &span->fill : poet_weights + span->first + k;
        memcpy(net->arena + word + k, from, sizeof *from);
    }
}""",
        *transfers,
        "\n".join(body.constants),
        *body.functions,
        "typedef void (*poet_op)(poet_net *net);",
        _order("/* The step, in order. */", "schedule", body.orders[0]),
        _order("/* The forward pass in evaluation, in order. */", "forward", body.orders[1]),
        f"""poet_status poet_init(poet_net *net, float *arena, uint32_t seed)
{{
    if (!net || !arena) {{
        return POET_BAD_ARGUMENT;
    }}
    net->arena = arena;
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
}}""",
        _pointers("float *poet_input(poet_net *net, int32_t index)", interface.inputs),
        *_target(interface),
        _pointers("const float *poet_output(const poet_net *net, int32_t index)", interface.outputs),
        f"""poet_status poet_train_step(poet_net *net, float *loss)
{{
{begins}
        return POET_BAD_ARGUMENT;
    }}
{_scalars(spec)}    for (size_t i = 0; i < sizeof schedule / sizeof schedule[0]; ++i) {{
        schedule[i](net);
{ends if statements.page_bytes else ""}    }}
    ++net->steps;
    const float made = net->arena[{interface.loss.word}];
    if (loss) {{
        *loss = made;
    }}
    return made - made < 1.0f ? POET_OK : POET_NOT_FINITE; /* false for NaN, which infinity gives as well */
}}""",
        _predict(foreseen),
        _HOMES if has_homes else "",
        f"""poet_status poet_set_storage(poet_net *net, const poet_storage *storage)
{{
    net->storage = storage;
{_FILL_HOMES if has_homes else ""}    return POET_OK;
}}"""
        if statements.page_bytes
        else "",
        """void poet_set_learning_rate(poet_net *net, float learning_rate)
{
    net->learning_rate = learning_rate;
}""",
        """uint32_t poet_crc(uint32_t crc, const void *bytes, size_t count)
{
    const unsigned char *next = bytes;
    while (count--) {
        crc ^= *next++;
        for (int bit = 0; bit < 8; ++bit) {
            crc = crc & 1u ? (crc >> 1) ^ UINT32_C(0xedb88320) : crc >> 1;
        }
    }
    return crc;
}""",
        """uint32_t poet_state_crc(const poet_net *net)
{
    uint32_t crc = UINT32_C(0xffffffff);
    for (int32_t i = 0; i < POET_KEPT; ++i) {
        crc = poet_crc(crc, net->arena + poet_kept[i].word, 4u * (size_t)poet_kept[i].words);
    }
    return ~crc;
}"""
        if not has_homes
        else _CRC_WITH_HOMES,
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _order(remark: str, name: str, order: tuple[str, ...]) -> str:
    """The table of the functions that make a step or a forward pass."""
    rows = "".join(f"    {', '.join(order[at : at + 12])},\n" for at in range(0, len(order), 12))
    return f"{remark}\nstatic const poet_op {name}[] = {{\n{rows}}};" if order else ""


def _predict(prediction: Prediction | None) -> str:
    if prediction is None:
        return ""
    head = "const float *poet_predicted(const poet_net *net, int32_t index)"
    return """poet_status poet_predict(poet_net *net)
{
    if (!net) {
        return POET_BAD_ARGUMENT;
    }
    for (size_t i = 0; i < sizeof forward / sizeof forward[0]; ++i) {
        forward[i](net);
    }
    return POET_OK;
}

""" + _pointers(head, prediction.outputs)


def _pointers(head: str, places: tuple[tuple[str, Placed], ...]) -> str:
    cases = "".join(
        f"    case {index}: /* {comment(name)} */\n        return net->arena + {placed.word};\n"
        for index, (name, placed) in enumerate(places)
    )
    return f"{head}\n{{\n    switch (index) {{\n{cases}    default:\n        return 0;\n    }}\n}}"


def _target(interface: Interface) -> list[str]:
    if interface.target is None:
        return []
    placed = interface.target[1]
    if interface.classes is None:
        return [f"float *poet_target(poet_net *net)\n{{\n    return net->arena + {placed.word};\n}}"]
    return [
        f"""poet_status poet_set_class(poet_net *net, int32_t row, int32_t class_number)
{{
    const int64_t number = class_number;
    const int is_class = class_number >= 0 && class_number < POET_CLASSES;
    if (row < 0 || row >= POET_ROWS || !(is_class || class_number == {interface.ignored})) {{
        return POET_BAD_ARGUMENT;
    }}
    memcpy(net->arena + {placed.word} + 2 * row, &number, sizeof number);
    return POET_OK;
}}"""
    ]


def functions_of(statements: Iterable[Statement], spec: OptimizerSpec) -> set[str]:
    """Names of the kernels that runs of ops and the optimizer's numbers call."""
    own = {"poet_sqrt"} if spec.name == "adamw" else set()
    calls = [call for statement in statements for call in statement.calls]
    called = {call.function for call in calls}
    texts = (item for call in calls for item in call.arguments if isinstance(item, str))
    handed = {name for text in texts for name in _APPLIED.findall(text)}
    return own | handed | (called - set(_TRANSFERS))


def weights_header() -> str:
    """``poet_weights.h``."""
    return (
        "/* The weights that training begins with. Written by poet. */\n#ifndef POET_WEIGHTS_H\n"
        "#define POET_WEIGHTS_H\n\n#include <stdint.h>\n\nextern const uint32_t poet_weights[];\n\n#endif\n"
    )


def weights_source(words: tuple[int, ...]) -> str:
    """``poet_weights.c``: the bits of the weights, which are little-endian where they are 64 bits long."""
    rows = (", ".join(f"{word:#010x}u" for word in words[at : at + 8]) for at in range(0, len(words), 8))
    return (
        '/* Bits of the weights that training begins with. Written by poet. */\n#include "poet_weights.h"\n\n'
        "#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__\n"
        '#error "counters of 64 bits are written for little-endian machines"\n#endif\n\n'
        f"const uint32_t poet_weights[{len(words)}] = {{\n"
        + "".join(f"    {row},\n" for row in rows)
        + "};\n"
    )
