"""Calls of every kernel of the allow-list, and what becomes of wrong ones, in processes that may end.

    LD_PRELOAD=guard_pages.so python tests/helpers/kernel_calls.py TARGET ...    counts, one JSON line each

tests/instances/kernel_calls.txt has a right call a line: tensors as ``f[2,3]``, of random numbers from 0 to
1, or ``i[2]=0,4``, lists as ``(1 2)``, element types as ``@float32``, a generator's state as ``rng``.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from helpers import hand_net
from helpers.schedules import keep_everything
from poet.errors import PlanError, PoetError
from poet.ir.calls import contiguous
from poet.ir.graph import Argument, Buffer, Call, Graph, Op, Ref, Role, Symbol, TensorType, Value
from poet.ir.operators import RANDOM
from poet.plans.plan_file import write_plan
from poet.runtime import Trainer, kernels
from poet.runtime.kernels.guards import check_calls
from poet.runtime.kernels.signatures import MADE_BY

CALLS = Path(__file__).parents[1] / "instances" / "kernel_calls.txt"
GUARD = Path(__file__).with_name("guard_pages.c")
_KINDS = {
    "f": "float32", "d": "float64", "h": "bfloat16", "g": "float16", "i": "int64", "j": "int32",
    "s": "int16", "c": "int8", "u": "uint8", "b": "bool",
}  # fmt: skip
_WHOLE = (0, -1, 1, 2, 3, -2, 7, 100, 2**31 - 1, 2**31, 2**40, 2**62, -(2**62), 2**63 - 1, -(2**63))
_FLOATS = (0.0, -1.0, 1e-30, 1e30, float("nan"), float("inf"), -float("inf"), 1e300)
_LARGEST_BYTES, _PATIENCE_SECONDS = 1 << 20, 20.0
WITHOUT_KERNEL = {
    "aten._fused_rms_norm_backward.default", "aten._thnn_fused_lstm_cell.default",
    "aten.linear_backward.default", "poet.stored_rows", "poet.stored_rows_sgd",
}  # fmt: skip
"""torch has none for a CPU, or a table in storage is needed."""


@dataclasses.dataclass(frozen=True)
class Given:
    """A tensor that a call is given; ``content`` is repeated, none is random."""

    type: TensorType
    content: tuple[float, ...] = ()

    def tensor(self) -> torch.Tensor:
        element = getattr(torch, self.type.dtype)
        size = max(self.type.extent_bytes // element.itemsize, 0)
        if self.content:
            flat = (
                torch.tensor(self.content, dtype=element).repeat(-(-size // len(self.content)))[:size].clone()
            )
        else:
            flat = torch.rand(size, dtype=torch.float64).to(element)
        return flat.as_strided(self.type.shape, self.type.strides)


@dataclasses.dataclass(frozen=True)
class Known:
    """A call; a `Given` stands for each tensor."""

    target: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]


def known() -> dict[str, list[Known]]:
    """The right calls, by operator."""
    found: dict[str, list[Known]] = {}
    for line in CALLS.read_text().splitlines():
        target, *words = line.replace("(", " ( ").replace(")", " ) ").split()
        args, kwargs = _read(iter(words))
        found.setdefault(target, []).append(Known(target, args, kwargs))
    return found


def _read(words: Iterator[str]) -> tuple[tuple[Any, ...], tuple[tuple[str, Any], ...]]:
    items: list[Any] = []
    named: list[tuple[str, Any]] = []
    for word in words:
        if word == ")":
            break
        key, equals, rest = word.partition("=")
        is_named = equals and key.isidentifier()
        item = _read(words)[0] if word.endswith("(") else _item(rest if is_named else word)
        if is_named:
            named.append((key, item))
        else:
            items.append(item)
    return tuple(items), tuple(named)


def _item(word: str) -> Any:
    if word == "rng":
        state = torch.Generator().manual_seed(0).get_state()
        return Given(contiguous("uint8", (len(state),)), tuple(state.tolist()))
    if word.startswith("@"):
        return Symbol("dtype", word[1:])
    if "[" in word:
        head, _, content = word.partition("=")
        shape = tuple(int(size) for size in head[2:-1].split(",") if size)
        return Given(
            contiguous(_KINDS[head[0]], shape), tuple(float(item) for item in content.split(",") if item)
        )
    constants = {"None": None, "True": True, "False": False}
    if word in constants:
        return constants[word]
    if word[0] == "'":
        return word[1:-1]
    return float(word) if any(mark in word for mark in ".en") else int(word)


# --- wrong ones -----------------------------------------------------------------------------------


def wrong(call: Known, rng: random.Random, count: int | None = None) -> list[Known]:
    """Calls with an argument changed, and some with several: all single ones, or ``count`` of them."""
    places = [*range(len(call.args)), *(key for key, _ in call.kwargs)]
    singles = [(place, other) for place in places for other in _others(_at(call, place))]
    if count is not None and len(singles) > count:
        singles = rng.sample(singles, count)
    found = [_with(call, place, other) for place, other in singles]
    for _ in range(len(found) // 4):
        several = call
        for place, other in rng.sample(singles, min(2, len(singles))):
            several = _with(several, place, other)
        found.append(several)
    return found


def _at(call: Known, place: int | str) -> Any:
    return call.args[place] if isinstance(place, int) else dict(call.kwargs)[place]


def _with(call: Known, place: int | str, item: Any) -> Known:
    if isinstance(place, int):
        return dataclasses.replace(call, args=(*call.args[:place], item, *call.args[place + 1 :]))
    named = tuple((key, item if key == place else old) for key, old in call.kwargs)
    return dataclasses.replace(call, kwargs=named)


def _others(item: Any) -> Iterator[Any]:
    if isinstance(item, Given):
        yield from filter(_fits, _tensors(item))
        yield None
    elif isinstance(item, tuple):
        for at, old in enumerate(item):
            yield from ((*item[:at], other, *item[at + 1 :]) for other in _others(old))
        yield from (item[:-1], (*item, *item[-1:]), (), item[::-1], None)
        if item and all(type(old) is int for old in item):
            yield from ((number,) * len(item) for number in _WHOLE)
    elif isinstance(item, bool):
        yield from (not item, None, 2)
    elif isinstance(item, int):
        yield from (*(number for number in _WHOLE if number != item), item + 1, item - 1, None, 1.5)
    elif isinstance(item, float):
        yield from (*(number for number in _FLOATS if number != item), None, 3)
    elif item is None:
        yield from (1, -1, 2**40, 1e-30, (1, 1), (-1, 0), Given(contiguous("float32", (3,))))
    elif isinstance(item, Symbol):
        yield from (Symbol("dtype", name) for name in _KINDS.values() if name != item.name)
    elif isinstance(item, str):
        yield from ("", "x", "mean")


def _fits(given: Given) -> bool:
    return given.type.extent_bytes <= _LARGEST_BYTES


def _tensors(given: Given) -> Iterator[Given]:
    kind, shape = given.type, given.type.shape

    def shaped(*sizes: int) -> Given:
        return dataclasses.replace(given, type=contiguous(kind.dtype, sizes))

    def strided(*strides: int) -> Given:
        return dataclasses.replace(given, type=dataclasses.replace(kind, strides=strides))

    for dim, size in enumerate(shape):
        for other in {0, 1, size - 1, size + 1, 2 * size, 9 * size} - {size, -1}:
            yield shaped(*shape[:dim], other, *shape[dim + 1 :])
        yield strided(*kind.strides[:dim], 0, *kind.strides[dim + 1 :])
    for other_shape in {(1, *shape), (*shape, 1), (2, *shape), (*shape, 3), shape[1:], shape[:-1], (), (0,)}:
        if other_shape != shape:
            yield shaped(*other_shape)
    yield strided(*(2 * stride for stride in kind.strides))
    yield strided(*contiguous(kind.dtype, shape[::-1]).strides[::-1])
    if len(shape) == 4:
        yield strided(*torch.empty(shape, device="meta").to(memory_format=torch.channels_last).stride())
    for name in _KINDS.values():
        if name != kind.dtype:
            yield dataclasses.replace(given, type=contiguous(name, shape))
    if not kind.elements or kind.dtype == "bool":
        return
    if kind.dtype.startswith(("float", "bfloat")):
        yield from (dataclasses.replace(given, content=(number,)) for number in _FLOATS[3:])
        return
    bits = 8 * getattr(torch, kind.dtype).itemsize
    for number in (-1, -5, 100, 1 << (bits - 2), (1 << (bits - 2)) * -2, -100):
        if kind.dtype != "uint8" or 0 <= number < 256:
            yield dataclasses.replace(given, content=(number,))
            yield dataclasses.replace(given, content=(*given.content[:-1], number))


# --- what becomes of them -------------------------------------------------------------------------


def graph_of(call: Known, outputs: Sequence[TensorType | None] = ()) -> Graph:
    """A graph of this one op, whose tensors are inputs; the loss is an input as well."""
    values, types = ["loss"], [contiguous("float32", ())]

    def name(item: Any) -> Argument:
        if isinstance(item, Given):
            values.append(f"t{len(values)}")
            types.append(item.type)
            return Ref(values[-1])
        return tuple(map(name, item)) if isinstance(item, tuple) else item

    asked = Call(
        call.target, tuple(map(name, call.args)), tuple((key, name(item)) for key, item in call.kwargs)
    )
    made = [None if kind is None else f"o{place}" for place, kind in enumerate(outputs)]
    given = list(values)
    for kind, output in zip(outputs, made, strict=True):
        if kind is not None and output is not None:
            values.append(output)
            types.append(kind)
    op = Op("op", asked, tuple(made), repeatable=call.target not in RANDOM, random=call.target in RANDOM)
    return Graph(
        name="one call",
        buffers=tuple(
            Buffer(name, kind.extent_bytes, Role.INPUT if name in given else Role.ACTIVATION)
            for name, kind in zip(values, types, strict=True)
        ),
        values=tuple(Value(name, name, kind) for name, kind in zip(values, types, strict=True)),
        ops=(op,),
        inputs=tuple(given),
        targets=0,
        loss="loss",
        predictions=tuple(name for name in made if name is not None),
    )


def tensors_of(call: Known) -> list[torch.Tensor]:
    """What a plan of `graph_of` is given in a step."""
    found = [torch.zeros(())]

    def add(item: Any) -> None:
        if isinstance(item, Given):
            found.append(item.tensor())
        for inner in item if isinstance(item, tuple) else ():
            add(inner)

    for item in (*call.args, *(item for _, item in call.kwargs)):
        add(item)
    return found


def outputs_of(call: Known) -> tuple[TensorType | None, ...]:
    """The types of what a right call gives."""

    def torchs(item: Any) -> Any:
        if isinstance(item, Given):
            return item.tensor()
        if isinstance(item, Symbol):
            return getattr(torch, item.name)
        return [torchs(inner) for inner in item] if isinstance(item, tuple) else item

    with torch.no_grad():
        made = kernels.kernel(call.target)(
            *map(torchs, call.args), **{key: torchs(v) for key, v in call.kwargs}
        )
    return tuple(
        None
        if item is None
        else TensorType(str(item.dtype).removeprefix("torch."), tuple(item.shape), tuple(item.stride()))
        for item in kernels.outputs_of(made)
    )


def fate(call: Known, right: Known, outputs: Sequence[TensorType | None]) -> str:
    """Where a call would be refused that a plan has in place of ``right``; ``fits``: nowhere."""
    try:
        check_calls(graph_of(call))
    except PlanError as error:
        trusted = MADE_BY.get(call.target)
        is_other = trusted is not None and any(
            call.args[at] != right.args[at] for at in (trusted.place, *(own for _, own in trusted.alike))
        )
        if is_other or "without what" not in str(error):
            return "opening"
    except PoetError:
        return "opening"
    try:
        made = outputs_of(call)
    except Exception:  # of a kernel that looks
        return "kernel"
    alike = len(made) >= len(outputs) and all(
        kind is None or (found is not None and found == kind)
        for kind, found in zip(outputs, made, strict=False)
    )
    return "fits" if alike else "outputs"


def counted(target: str, rng: random.Random, count: int | None) -> Counter[str]:
    """How many wrong calls of ``target`` were refused where.

    ``signal``: one ended its process; ``outside``: one wrote outside of its tensors.
    """
    counts: Counter[str] = Counter()
    for call in known()[target]:
        outputs = () if target in WITHOUT_KERNEL else outputs_of(call)
        calls = [call, *wrong(call, rng, count)]
        for at_start in (0, 1):
            ends = list(in_children(calls, functools.partial(fate, right=call, outputs=outputs), at_start))
            if ends[0] not in (("kernel", "opening") if target in WITHOUT_KERNEL else ("fits",)):
                counts[f"right call: {ends[0]}"] += 1
            counts.update(ends[1:])
    return counts


def in_children(calls: Sequence[Known], end_of: Callable[[Known], str], at_start: int) -> Iterator[str]:
    """What ``end_of`` says of each; a child that ends is followed by another."""
    done = 0
    while done < len(calls):
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            with contextlib.suppress(BaseException):
                _child(calls[done:], end_of, at_start, writing)
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as told:
            lines = told.read().split()
        _, status = os.waitpid(child, 0)
        yield from lines
        done += len(lines)
        if done < len(calls):
            ended = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
            yield {0: "traceback", signal.SIGALRM: "hung"}.get(ended, "signal")
            done += 1


def _child(calls: Sequence[Known], end_of: Callable[[Known], str], at_start: int, writing: int) -> None:
    own = ctypes.CDLL(os.environ["LD_PRELOAD"])
    guard, start = (ctypes.c_int.in_dll(own, name) for name in ("guard", "at_start"))
    outside = ctypes.c_long.in_dll(own, "written_outside")
    start.value = at_start
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for call in calls:
        signal.setitimer(signal.ITIMER_REAL, _PATIENCE_SECONDS)
        before, guard.value = outside.value, 1
        end = end_of(call)
        guard.value = 0
        os.write(writing, (("outside" if outside.value > before else end) + "\n").encode())


def counted_plans(target: str, rng: random.Random, count: int | None) -> Counter[str]:
    """Likewise of plan files, each with one call of ``target``, that are opened and make a step."""
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for call in known()[target]:
            outputs = outputs_of(call)
            calls = [call, *wrong(call, rng, count)]
            ends = list(
                in_children(calls, functools.partial(opened, outputs=outputs, folder=Path(folder)), 0)
            )
            counts.update(ends[1:])
            counts[f"right call: {ends[0]}"] += ends[0] != ("opening" if target in MADE_BY else "fits")
    return +counts


def opened(call: Known, outputs: Sequence[TensorType | None], folder: Path) -> str:
    """What becomes of a plan file with ``call`` in it, up to a step with what it is given."""
    path, graph = folder / "plan.poet", graph_of(call, outputs)
    problem = hand_net.problem(graph)
    write_plan(path, hand_net.plan(problem, graph, keep_everything(problem)), {})
    try:
        with Trainer.open(path, seed=0) as trainer:
            try:
                trainer.step(tensors_of(call), None)
            except PoetError:
                return "step"
    except PoetError:
        return "opening"
    return "fits"


def built(folder: Path) -> Path:
    """The library that stands before torch's allocator."""
    library = folder / "guard_pages.so"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", library, GUARD, "-ldl"], check=True)
    return library


def main() -> None:
    """Count for the operators that are named, of so many wrong calls for each right one (0: of all)."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    way, count, *targets = sys.argv[1:]
    for target in targets:
        count_of = counted if way == "calls" else counted_plans
        print(json.dumps([target, count_of(target, random.Random(target), int(count) or None)]), flush=True)


if __name__ == "__main__":
    main()
