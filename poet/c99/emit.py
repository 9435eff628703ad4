"""C text of ``poet_step``: the header with its sizes and the record of a net, and the source.

The source has constant records, a function for each kind of run of an op, the rows of these in order, and the
functions that the caller has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from poet.c99.calls import WORD_BYTES, Address, CCall, CStruct, Given, Placed, Update, float_text
from poet.c99.interface import ExportedStep, Interface, Span, comment
from poet.c99.prediction import Prediction
from poet.c99.rules.updates import DOUBLES, FLOATS, functions_of_numbers, scalars
from poet.c99.sources import filled, part
from poet.c99.statements import Statement
from poet.ir.optimizer import OptimizerSpec

_INCLUDES = """#include "poet_step.h"

#include "poet_kernels.h"
#include "poet_weights.h"

#include <string.h>"""

_PARTIAL = """    if (net->failed) { /* the step before was made in part */
        return POET_STORAGE_FAILED;
    }
"""


def step_source(step: ExportedStep) -> str:
    """``poet_step.c``."""
    foreseen = () if isinstance(step.prediction, str) else step.prediction.statements
    body = step_body(with_spans(step.statements.statements, step.spans), foreseen)
    called = {call.function for item in step.statements.statements for call in item.calls}
    parts = [
        "/* The schedule of a training step, a line for each run; see poet_step.h. Written by poet. */",
        _INCLUDES,
        _spans(step.spans),
        part("restore"),
        part("home_of") if step.commits else "",
        *transfers(called),
        *body.constants,
        part("op_type"),
        *body.functions,
        _order("/* The step, in order. */", "schedule", body.orders[0]),
        _order("/* The forward pass in evaluation, in order. */", "forward", body.orders[1]),
        _init(
            step.optimizer, pages=step.page_bytes > 0, commits=step.commits, sums=bool(step.statements.sums)
        ),
        _pointers(
            "float *poet_input(poet_net *net, int32_t index)", step.interface.inputs, step.interface.rows
        ),
        _numbers(step.interface),
        *_target(step.interface),
        _pointers("const float *poet_output(const poet_net *net, int32_t index)", step.interface.outputs),
        _train_step(step.optimizer, step.interface.loss, pages=step.page_bytes > 0, commits=step.commits),
        _predict(step.prediction, pages=step.page_bytes > 0),
        filled("homes.c").strip() if step.has_homes else "",
        part("set_storage_of_homes" if step.commits else "set_storage") if step.page_bytes else "",
        part("set_learning_rate"),
        part("set_between"),
        part("crc"),
        filled("writer.c").strip(),
        "" if step.has_homes else part("state_crc"),
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
    return part("init", LEARNING_RATE=float_text(spec.lr), MEMBERS=storage + floats + powers)


def _train_step(spec: OptimizerSpec, loss: Placed, *, pages: bool, commits: bool) -> str:
    turns = "    net->side = !net->committed; /* what lives in storage was written there */\n"
    failed = "        if (net->failed) {\n            return POET_STORAGE_FAILED;\n        }\n"
    return part(
        "train_step",
        NO_STORAGE=" || !net->storage" if pages else "",
        BEGINS=(_PARTIAL if pages else "") + scalars(spec),
        FAILED=failed if pages else "",
        TURNS=turns if commits else "",
        LOSS=str(loss.word),
    )


def _order(remark: str, name: str, order: tuple[str, ...]) -> str:
    """The table of the runs that make a step or a forward pass."""
    rows = "".join(f"    {row}\n" for row in order)
    return f"{remark}\nstatic const poet_op {name}[] = {{\n{rows}}};" if order else ""


def _predict(prediction: Prediction | str, *, pages: bool) -> str:
    if isinstance(prediction, str):
        return ""
    head = "const float *poet_predicted(const poet_net *net, int32_t index)"
    begins = _PARTIAL if pages else ""
    return part("predict", BEGINS=begins) + "\n\n" + _pointers(head, prediction.outputs)


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
    return part("set_number", CASES=cases) if cases else ""


def _target(interface: Interface) -> list[str]:
    if interface.target is None:
        return []
    word = str(interface.target[1].word)
    if interface.classes is None:
        return [part("target", WORD=word)]
    return [part("set_class", WORD=word, IGNORED=str(interface.ignored))]


# --- runs of ops and transfers ----------------------------------------------------------------

_TRANSFERS = ("move", "page_in", "page_out", "home_in", "home_out")
"""Functions that copy whole buffers; ``restore``, which `poet_init` uses, is always there."""
_USES = {"home_in": "page_in", "home_out": "page_out"}


def transfers(called: set[str]) -> list[str]:
    """C text of those that are ``called``, each after what it uses itself."""
    own = called | {_USES[name] for name in called & _USES.keys()}
    return [part(name) for name in _TRANSFERS if name in own]


_LARGEST = 2**31 - 1


@dataclass(slots=True)
class _Constants:
    """Constant records, each once, in an array for each type."""

    numbers: dict[str, dict[CStruct, int]] = field(default_factory=dict)

    def number(self, record: CStruct) -> int:
        """Its place in the array of its type."""
        known = self.numbers.setdefault(record.type, {})
        return known.setdefault(record, len(known))

    @staticmethod
    def array(record: CStruct) -> str:
        """What the array of its type is called."""
        return record.type.removeprefix("poet_").removesuffix("_shape") + "_shapes"

    def lines(self) -> Iterator[str]:
        """Their definitions."""
        for kind, records in self.numbers.items():
            rows = "".join(f"    {record.text()}, /* {number} */\n" for record, number in records.items())
            yield f"static const {kind} {self.array(next(iter(records)))}[] = {{\n{rows}}};"


@dataclass(slots=True)
class _Pattern:
    """C text with blanks ``@0@``, ``@1@`` ... for whole numbers, and the numbers of one run."""

    constants: _Constants
    values: list[int] = field(default_factory=list)

    def blank(self, value: int) -> str:
        self.values.append(value)
        return f"@{len(self.values) - 1}@"

    def argument(self, item: Given) -> str:
        """An argument of a call; numbers that no int32_t holds stay in the text."""
        if isinstance(item, CStruct):
            return f"{self.constants.array(item)} + {self.blank(self.constants.number(item))}"
        if isinstance(item, Address):
            return f"{item.base} + {self.blank(item.word)}{item.advance}"
        if isinstance(item, Update):
            places = ("0" if place is None else self.argument(place) for place in item.places)
            return f"&(poet_update){{{item.function}, {', '.join(places)}, {{{', '.join(item.numbers)}}}}}"
        digits = item.removesuffix("u")
        if digits.isdecimal() and 0 < int(digits) <= _LARGEST:
            return f"{'(uint32_t)' if item != digits else ''}{self.blank(int(digits))}"
        return item

    def lines(self, calls: Iterable[CCall]) -> str:
        """The calls, one a line, each inside its loops."""
        return "\n".join(line for call in calls for line in self._call(call))

    def _call(self, call: CCall) -> Iterator[str]:
        indent = "    "
        for head in call.heads:
            yield f"{indent}{head} {{"
            indent += "    "
        text = f"{call.function}({', '.join(map(self.argument, call.arguments))});"
        # a block of its own, so that two records take one place in the stack
        is_own = any(isinstance(item, Update) for item in call.arguments)
        yield f"{indent}{{ {text} }}" if is_own else indent + text
        for depth in reversed(range(len(call.heads))):
            yield "    " * (depth + 1) + "}"


@dataclass(slots=True)
class _Kind:
    """Runs whose text differs in whole numbers alone; ``name``: of their function."""

    name: str
    text: str
    runs: list[tuple[int, ...]] = field(default_factory=list)

    def differing(self) -> list[int]:
        """The blanks that a run must fill: those which differ, each once where two are always the same."""
        columns = list(zip(*self.runs, strict=True))
        return [
            at for at, column in enumerate(columns) if len(set(column)) > 1 and columns.index(column) == at
        ]

    def function(self) -> str:
        """Its definition."""
        columns, taken = list(zip(*self.runs, strict=True)), self.differing()

        def filled(at: int) -> str:
            column = columns[at]
            return f"n[{taken.index(columns.index(column))}]" if len(set(column)) > 1 else str(column[0])

        pieces = enumerate(self.text.split("@"))  # each second one is a blank
        text = "".join(filled(int(piece)) if number % 2 else piece for number, piece in pieces)
        arena = "    float *const a = net->arena;\n    (void)a;\n    (void)n;\n"
        return f"static void {self.name}(poet_net *net, const int32_t *n)\n{{\n{arena}{text}\n}}"

    def row(self, run: tuple[int, ...], differing: list[int]) -> str:
        """A row of the schedule; ``differing``: as above, once for all runs."""
        numbers = ", ".join(str(run[at]) for at in differing)
        return f"{{{self.name}, (const int32_t[]){{{numbers}}}}}" if numbers else f"{{{self.name}, 0}}"


@dataclass(frozen=True, slots=True)
class StepBody:
    """The functions of a step; and for each sequence its rows, one run each, with the op's name."""

    functions: tuple[str, ...]
    constants: tuple[str, ...]
    orders: tuple[tuple[str, ...], ...]


def step_body(*sequences: tuple[Statement, ...]) -> StepBody:
    """One function for all runs that differ in places, sizes and records alone."""
    constants, kinds = _Constants(), dict[str, _Kind]()
    made = [[_run(item, constants, kinds) for item in sequence if item.calls] for sequence in sequences]
    blanks = {kind.name: kind.differing() for kind in kinds.values()}
    orders = (
        tuple(f"{kind.row(run, blanks[kind.name])}, /* {said} */" for kind, run, said in order)
        for order in made
    )
    functions = tuple(kind.function() for kind in kinds.values())
    return StepBody(functions, tuple(constants.lines()), tuple(orders))


def _run(
    statement: Statement, constants: _Constants, kinds: dict[str, _Kind]
) -> tuple[_Kind, tuple[int, ...], str]:
    pattern = _Pattern(constants)
    text = pattern.lines(statement.calls)
    if text not in kinds:
        name = "run_" + statement.calls[0].function.removeprefix("poet_")
        alike = sum(kind.name == name or kind.name.startswith(f"{name}_v") for kind in kinds.values())
        kinds[text] = _Kind(f"{name}_v{alike + 1}" if alike else name, text)
    run = tuple(pattern.values)
    kinds[text].runs.append(run)
    return kinds[text], run, comment(statement.op) + (", once more" if statement.is_repeat else "")


def with_spans(statements: tuple[Statement, ...], spans: tuple[Span, ...]) -> tuple[Statement, ...]:
    """``statements`` with the numbers of spans in place of the names of buffers."""
    numbers = {f"@{span.name}": str(index) for index, span in enumerate(spans)}

    def of(argument: Given) -> Given:
        return numbers.get(argument, argument) if isinstance(argument, str) else argument

    return tuple(
        replace(
            item, calls=tuple(replace(call, arguments=tuple(map(of, call.arguments))) for call in item.calls)
        )
        for item in statements
    )


def functions_of(statements: Iterable[Statement], spec: OptimizerSpec) -> set[str]:
    """Names of the kernels that runs of ops and the optimizer's numbers call."""
    calls = [call for statement in statements for call in statement.calls]
    called = {call.function for call in calls}
    handed = {item.function for call in calls for item in call.arguments if isinstance(item, Update)}
    handed |= {str(item) for call in calls for item in call.arguments if str(item).startswith("poet_unpack_")}
    return functions_of_numbers(spec) | handed | (called - {"restore", *_TRANSFERS})


# --- the header -------------------------------------------------------------------------------

_IS_SUM, _NO_SUM = "(net)->sums[number] == (found)", "(void)(found), 1"


def step_header(step: ExportedStep, *, model: str, digest: str, build: int) -> str:
    """``poet_step.h``; ``digest``: SHA-256 of the plan, as hexadecimal digits; ``build``: 32 bits."""
    macros = [*_macros(step, digest), *_sizes("INPUT", step.interface.inputs, step.interface.rows)]
    macros += [*_sizes("OUTPUT", step.interface.outputs), *_target_macros(step)]
    storage = "declare_storage_of_homes" if step.commits else "declare_storage"
    target = "declare_target" if step.interface.classes is None else "declare_class"
    return filled(
        "poet_step.h",
        MODEL=comment(model),
        DIGEST=digest,
        BUILD=f"{build:#010x}",
        MACROS="\n".join(macros),
        MEMBERS=_members(step),
        STORAGE=f"{part(storage)}\n\n" if step.page_bytes else "",
        NUMBERS=f"\n{part('declare_numbers')}\n" if any(step.interface.rows) else "",
        TARGET="" if step.interface.target is None else f"\n{part(target)}\n",
        PREDICT=f"{_declared_predict(step)}\n\n",
        HOMES=f"\n{part('declare_homes')}\n" if step.has_homes else "",
    )


def _macros(step: ExportedStep, digest: str) -> list[str]:
    return [
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


def _declared_predict(step: ExportedStep) -> str:
    if isinstance(step.prediction, str):
        return f"/* There is no poet_predict: {comment(step.prediction)} */"
    return part("declare_predict")


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
    words = 4 + 2 * bool(step.page_bytes) + 3 * step.commits
    size = -(-WORD_BYTES * words // 8) * 8 + _numbers_bytes(step) + WORD_BYTES * len(step.statements.sums)
    return -(-size // 8) * 8
