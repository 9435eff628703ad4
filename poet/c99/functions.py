"""C text of the runs of ops and transfers: records, a function for each kind of run, a row for each run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from poet.c99.calls import Address, CCall, CStruct, Given, Update
from poet.c99.interface import Span, comment, functions_of_numbers
from poet.c99.statements import Statement
from poet.ir.optimizer import OptimizerSpec

TRANSFERS = {
    "restore": "",
    "move": """/* From one place in the arena to another, which may overlap. */
static void move(poet_net *net, int32_t to, int32_t from, uint32_t size)
{
    memmove(net->arena + to, net->arena + from, size);
}""",
    "page_in": """/* From storage into the arena, the bytes that were written; after a failure no more. */
static void page_in(poet_net *net, int32_t word, uint32_t offset, uint32_t size, int32_t sum)
{
    if (net->failed || net->storage->read(net->storage->context, offset, net->arena + word, size)
        || poet_checksum(0u, net->arena + word, size) != net->sums[sum]) {
        net->failed = 1;
    }
}""",
    "page_out": """/* From the arena into storage; after a failure nothing more is tried. */
static void page_out(poet_net *net, int32_t word, uint32_t offset, uint32_t size, int32_t sum)
{
    poet_writer to;
    poet_begin(&to, net->storage, offset);
    if (net->failed || poet_put(&to, net->arena + word, size) || poet_put_rest(&to)) {
        net->failed = 1;
    }
    net->sums[sum] = to.sum;
}""",
    "home_in": """/* From the place in storage of what lives there between steps. */
static void home_in(poet_net *net, int32_t word, int32_t index, int32_t is_new)
{
    const poet_span *const span = &poet_kept[index];
    const uint32_t side = is_new ? !net->committed : net->side;
    page_in(net, word, home_of(span, side), 4u * (uint32_t)span->words, span->sum);
}""",
    "home_out": """/* To that of its two places which holds nothing that was committed. */
static void home_out(poet_net *net, int32_t word, int32_t index)
{
    const poet_span *const span = &poet_kept[index];
    page_out(net, word, home_of(span, !net->committed), 4u * (uint32_t)span->words, span->sum);
}""",
}
"""Functions that copy whole buffers, by name; ``restore``, which `poet_init` uses, is always there."""
_USES = {"home_in": "page_in", "home_out": "page_out"}


def transfers(called: set[str]) -> list[str]:
    """C text of those that are ``called``, each after what it uses itself."""
    own = called & TRANSFERS.keys()
    own |= {_USES[name] for name in own & _USES.keys()}
    return [TRANSFERS[name] for name in TRANSFERS if name in own]


def _text(name: str) -> str:
    return (Path(__file__).parent / "folder" / name).read_text(encoding="utf-8").strip()


WRITER = _text("writer.c")
"""Writing in whole pieces, and the checksum of what is written."""

HOMES_DECLARED = """
/*
 * Some words of what lives across steps, wherever it is; `from`, `to` and `size` are in bytes. 0 where all
 * went well, else 1: a callback failed, there is no storage yet, there are no such words, or a tensor read as
 * a whole is not what was written.
 */
int poet_kept_read(const poet_net *net, int32_t index, uint32_t from, void *bytes, uint32_t size);

/* Likewise the other way; constants stay as they are, and what lives in storage is written as a whole. */
int poet_kept_write(poet_net *net, int32_t index, uint32_t to, const void *bytes, uint32_t size);
"""

HOME_OF = """/* Where in storage a tensor is that lives there: at one of two places. */
static uint32_t home_of(const poet_span *span, uint32_t side)
{
    return (uint32_t)(side ? span->second : span->home);
}"""

HOMES = _text("homes.c")
"""Reading, writing and summing up what lives across steps where not all of it is in the arena."""


_LARGEST = 2**31 - 1

OP_TYPE = """/* A run of an op: its function, what it takes: places in the arena, sizes, records. */
typedef struct {
    void (*run)(poet_net *net, const int32_t *n);
    const int32_t *numbers;
} poet_op;"""


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
            return f"a + {self.blank(item.word)}{item.advance}"
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
    return functions_of_numbers(spec) | handed | (called - set(TRANSFERS))
