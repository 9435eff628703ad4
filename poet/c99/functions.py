"""C text of the runs of ops: constant records, a function for each different run, the orders of calls."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from poet.c99.calls import CCall, CStruct
from poet.c99.interface import Span, comment
from poet.c99.optimizer_numbers import functions_of_numbers
from poet.c99.statements import Statement
from poet.c99.storage_text import TRANSFERS
from poet.optimizer import OptimizerSpec

_APPLIED = re.compile(r"\bpoet_apply_\w+")


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
    text = f"{call.function}({', '.join(given)});"
    is_own = "(poet_update){" in text  # a block of its own, so that two records take one place in the stack
    yield f"{indent}{{ {text} }}" if is_own else indent + text
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


def with_spans(statements: tuple[Statement, ...], spans: tuple[Span, ...]) -> tuple[Statement, ...]:
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


def functions_of(statements: Iterable[Statement], spec: OptimizerSpec) -> set[str]:
    """Names of the kernels that runs of ops and the optimizer's numbers call."""
    calls = [call for statement in statements for call in statement.calls]
    called = {call.function for call in calls}
    texts = (item for call in calls for item in call.arguments if isinstance(item, str))
    handed = {name for text in texts for name in _APPLIED.findall(text)}
    return functions_of_numbers(spec) | handed | (called - set(TRANSFERS))
