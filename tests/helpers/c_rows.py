"""Each op of a net as a C function of its own, held against float64 by PyTorch's float32 error."""

from __future__ import annotations

import atexit
import ctypes
import functools
import math
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from helpers.c_build import build
from helpers.c_plans import traced
from poet.c99 import sources
from poet.c99.calls import OpRun, Placed
from poet.c99.emit import functions_of, step_body
from poet.c99.rows import c_calls
from poet.c99.statements import Statement
from poet.c99.vectors import PlainSteps, doubled
from poet.ir.graph import Call, Graph, Op
from poet.ir.optimizer import OptimizerSpec
from poet.passes.fused import with_norms_and_relus, with_padded_windows
from poet.runtime import kernels

HEAD = """#include "poet_kernels.h"
#include <stdint.h>
typedef struct {
    float *arena, learning_rate, gradient_share, decay_factor, step_size, second_moment_correction;
    uint32_t seed;
    uint64_t drawn;
} poet_net;
void run_case(poet_net *net, int index);
"""
SCALARS = ("lr", "gradient_share", "decay_factor", "step_size", "second_moment_correction")
ALLOWED, FLOOR = 4.0, 2.0**-21
"""How often torch's own error; and the share of the largest result that is always allowed."""
CANCELLED, UNIT = 2.0**-12, 2.0**-24
"""Above which share of the largest result torch's error says that sums cancelled; and the share of the sum of
absolute products that is allowed then."""
SUMS = {f"aten.{name}.default" for name in ("convolution", "convolution_backward", "mm", "addmm", "bmm")}
SUMS |= {"aten.sum.dim_IntList", "aten.sum.default", "aten.mv.default", "aten.dot.default"}


class _Cases:
    """Every op of a graph as a C function of its own, and what PyTorch gives for it in both precisions."""

    def __init__(self, graph: Graph, spec: OptimizerSpec, plain: PlainSteps) -> None:
        self.graph, self.plain = graph, plain
        self.types = {value.name: value.type for value in graph.values}
        self.scalars = spec.hyperparameters(3)
        self.buffers = {buffer.name: buffer.size_bytes for buffer in graph.buffers}

    def places(self, call: Call, op: Op) -> dict[str, int]:
        """A word of the arena for each buffer that the op touches."""
        names = [self.graph.buffer_of(name) for name in (*call.refs(), *filter(None, op.outputs))]
        found, end = {}, 0
        for name in dict.fromkeys(names):
            found[name] = end
            end += -(-self.buffers[name] // 8) * 2 + 2
        return found

    def placed(self, name: str, places: dict[str, int]) -> Placed:
        kind = self.types[name]
        items = 2 if kind.dtype == "int64" else 1
        return Placed(kind, places[self.graph.buffer_of(name)] + kind.offset * items)

    def statement(self, op: Op) -> Statement:
        places = self.places(op.call, op)
        values = {name: self.placed(name, places) for name in op.call.refs()}
        outputs = tuple(None if name is None else self.placed(name, places) for name in op.outputs)
        return Statement(op.name, False, tuple(c_calls(OpRun(op.name, op.call, outputs, values))))

    def by_torch(self, op: Op, *, is_double: bool, is_absolute: bool = False) -> dict[str, Tensor]:
        """Outputs, and the buffers that the op updates, by name; the plain steps are left as they were.

        With ``is_absolute`` of the absolute values of what the op reads.
        """
        names = {self.graph.buffer_of(name) for name in op.call.refs()}
        flats = {name: self.plain.tensors[name].clone() for name in names}
        if is_double:
            flats = {
                name: flat.double() if flat.is_floating_point() else flat for name, flat in flats.items()
            }

        if is_absolute:
            flats = {name: flat.abs() if flat.is_floating_point() else flat for name, flat in flats.items()}

        def value(name: str) -> Tensor:
            kind = self.types[name]
            return flats[self.graph.buffer_of(name)].as_strided(kind.shape, kind.strides, kind.offset)

        made = kernels.run(doubled(op.call) if is_double else op.call, value, self.scalars.__getitem__)
        found = {
            name: tensor
            for name, tensor in zip(op.outputs, made, strict=False)
            if name and tensor is not None
        }
        return {**found, **{f"@{name}": flats[name] for name in op.updates}}


@dataclass(frozen=True, slots=True)
class Errors:
    """Of one tensor that an op made: the largest distances from float64, and the largest element there.

    ``summed`` is the largest sum of absolute products, of ops that are nothing but sums of products; else 0.
    Whole numbers and truth values are right or infinitely wrong.
    """

    of_c: float
    of_torch: float
    largest: float
    summed: float = 0.0

    @property
    def is_cancelled(self) -> bool:
        """Whether next to nothing is left in float64, so that PyTorch's own error is far above a rounding."""
        return self.of_torch > CANCELLED * self.largest

    @property
    def ratio(self) -> float:
        """The error of C over what is allowed; up to 1 is right."""
        floor = FLOOR * self.largest
        if self.is_cancelled:
            floor = max(floor, UNIT * self.summed)
        allowed = ALLOWED * self.of_torch + floor
        if self.of_c == 0.0:
            return 0.0
        return self.of_c / allowed if allowed else math.inf


def _errors(of_c: Tensor, of_torch: Tensor, exact: Tensor, summed: float) -> Errors:
    if not exact.is_floating_point():
        return Errors(0.0 if torch.equal(of_c, exact) else math.inf, 0.0, 1.0)
    if not exact.numel():
        return Errors(0.0, 0.0, 0.0)
    finite = exact[exact.isfinite()]
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    return Errors(_distance(of_c, exact), _distance(of_torch, exact), largest, summed)


def _distance(found: Tensor, exact: Tensor) -> float:
    """The largest; 0 between equal infinities, infinite for what is no number."""
    apart = (found.double() - exact).abs()[found.double() != exact]
    return float(apart.nan_to_num(math.inf, math.inf).max()) if apart.numel() else 0.0


@functools.cache
def every_kernel() -> Path:
    """A library of all kernels, compiled once for the nets of all tests."""
    folder = Path(tempfile.mkdtemp(prefix="poet-kernels-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    every = sources.needed(sources.pieces())
    (folder / "poet_kernels.h").write_text(sources.header_text(every))
    (folder / "poet_kernels.c").write_text(sources.source_text(every))
    return build(folder, "-O2", name="kernels")


def worst_ratios(
    module: nn.Module, inputs: Tensor | Sequence[Tensor], folder: Path, loss: str, optimizer: str
) -> dict[str, float]:
    """The worst ratio of each operator over all ops of a net's second step."""
    found = errors_of(module, inputs, folder, loss, optimizer)
    return {target: max(each.ratio for each in errors) for target, errors in found.items()}


def errors_of(
    module: nn.Module, inputs: Tensor | Sequence[Tensor], folder: Path, loss: str, optimizer: str
) -> dict[str, list[Errors]]:
    """Of each operator, the errors of every tensor that its ops make in a net's second step."""
    spec = OptimizerSpec(optimizer, lr=0.05, weight_decay=0.01)
    net = traced(module, inputs, loss=loss, optimizer=spec)
    graph = with_norms_and_relus(with_padded_windows(net.step.graph))
    kept = {graph.buffer_of(name): tensor.detach().flatten() for name, tensor in net.step.tensors.items()}
    for parameter in graph.parameters:
        for _, value in parameter.optimizer_state:
            kept[graph.buffer_of(value)] = torch.rand(kept[graph.buffer_of(parameter.value)].numel())
    plain = PlainSteps(graph, spec, kept)
    types = {value.name: value.type for value in graph.values}
    count = len(graph.inputs) - graph.targets
    given = {
        name: torch.randint(5, types[name].shape)
        if types[name].dtype == "int64"
        else torch.randn(types[name].shape)
        for name in graph.inputs[:count]
    }
    for name in graph.inputs[count:]:
        kind = types[name]
        given[name] = torch.randint(2, kind.shape) if kind.dtype == "int64" else torch.randn(kind.shape)
    plain.fill(given)
    plain.step()
    plain.fill(given)
    cases = _Cases(graph, spec, plain)
    statements = tuple(cases.statement(op) for op in graph.ops)
    body = step_body(statements)
    assert len(body.orders[0]) == len(statements)
    assert sources.needed(functions_of(statements, spec))
    rows = "".join(f"    {row}\n" for row in body.orders[0])
    table = f"static const poet_op cases[] = {{\n{rows}}};\n"
    run = "void run_case(poet_net *net, int index)\n{\n    cases[index].run(net, cases[index].numbers);\n}\n"
    folder.mkdir()
    text = "\n\n".join([HEAD, *body.constants, sources.part("op_type"), *body.functions, table + run])
    (folder / "cases.c").write_text(text)
    made = every_kernel()
    library = ctypes.CDLL(str(build(folder, "-O2", f"-I{made.parent}", "-Wl,--no-as-needed", str(made))))
    errors: dict[str, list[Errors]] = {}
    scalars = spec.hyperparameters(3)
    for index, op in enumerate(graph.ops):
        places = cases.places(op.call, op)
        arena = np.full(sum(cases.buffers[name] // 4 + 8 for name in places) + 8, np.nan, dtype=np.float32)
        for name in {graph.buffer_of(name) for name in op.call.refs()}:
            raw = plain.tensors[name].numpy().tobytes()
            bits = np.frombuffer(raw + bytes(-len(raw) % 4), dtype=np.float32)  # masks are of bytes
            arena[places[name] : places[name] + len(bits)] = bits
        record = (ctypes.c_uint64 * 16)()
        record[0] = arena.ctypes.data
        numbers = [scalars.get(name, 0.0) for name in SCALARS]
        ctypes.memmove(ctypes.addressof(record) + 8, np.array(numbers, np.float32).tobytes(), 20)
        library.run_case(record, index)
        right = cases.by_torch(op, is_double=True)
        is_sum = op.call.target in SUMS
        sums = cases.by_torch(op, is_double=True, is_absolute=True) if is_sum else {}
        for name, found in cases.by_torch(op, is_double=False).items():
            if found.dtype == torch.uint8:  # the state of torch's generator, for which C has a counter
                continue
            buffer = name[1:] if name[0] == "@" else graph.buffer_of(name)
            flat = torch.from_numpy(arena[places[buffer] :].copy())
            if found.dtype == torch.int64:
                flat = flat[: len(flat) // 2 * 2].view(torch.int64)
            if found.dtype == torch.bool:
                flat = flat.view(torch.uint8).bool()
            if name[0] == "@":
                of_c = flat[: found.numel()]
            else:
                of_c = flat.as_strided(types[name].shape, types[name].strides, types[name].offset)
            exact = right[name].double() if found.is_floating_point() else right[name]
            summed = float(sums[name].max()) if name in sums and sums[name].numel() else 0.0
            errors.setdefault(op.call.target, []).append(_errors(of_c, found, exact, summed))
        plain.run(op, scalars)
    return errors
