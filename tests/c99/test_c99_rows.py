"""Each operator in C against float64, with PyTorch's own float32 error as the yardstick.

The cases come from traced nets: every op of each, on the very tensors that PyTorch gave it.
"""

from __future__ import annotations

import ctypes
import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.c_build import build
from helpers.c_plans import traced
from helpers.pace import few_or_many
from torch import Tensor, nn

from poet.c99 import sources
from poet.c99.calls import OpRun, Placed, float_text
from poet.c99.functions import functions_of, step_body
from poet.c99.rows import ROWS, c_calls
from poet.c99.statements import Statement
from poet.c99.vectors import PlainSteps, doubled
from poet.errors import UnsupportedOperator
from poet.graph import Call, Graph, Op
from poet.optimizer import OptimizerSpec
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


class _Norms(nn.Module):
    """Operators that the nets of the benchmark lack, on tensors that are views."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(5, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.sigmoid(self.inner(x)) - torch.tanh(self.inner(x * 0.5))
        y = (y * y.mean(1, keepdim=True) + 0.25 * y.sum(0) - (-y)).t().clone().t()
        result: Tensor = self.outer(y * 0.5)
        return result


def _convolutions(rng: random.Random) -> tuple[nn.Module, Tensor]:
    """Two convolutions of random sizes, strides, paddings, dilations and groups, and pooling."""
    groups, kernel, stride = (
        rng.choice([1, 1, 2, 3]),
        rng.choice([1, 2, 3, 3, 3, 5]),
        rng.choice([1, 1, 2, 3]),
    )
    padding, dilation = rng.randint(0, kernel // 2 + 1), rng.choice([1, 1, 1, 2])
    height, width = rng.randint(9, 14), rng.randint(9, 14)
    between = groups * rng.randint(1, 3)
    module = nn.Sequential(
        nn.Conv2d(2, between, 1, stride=rng.choice([1, 2]), bias=rng.random() < 0.5),
        nn.Tanh(),
        nn.Conv2d(
            between,
            groups * rng.randint(1, 3),
            (kernel, rng.choice([kernel, 1, 3])),
            stride=stride,
            padding=padding,
            dilation=dilation,
            groups=groups,
            padding_mode="zeros",
        ),
        nn.AvgPool2d(2, stride=1, padding=rng.choice([0, 1]), count_include_pad=rng.random() < 0.5),
        nn.Flatten(),
        nn.LazyLinear(3),
    )
    inputs = torch.randn(rng.randint(1, 3), 2, height + 4 * stride, width + 4 * stride)
    module(inputs)
    return module, inputs


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

    def by_torch(self, op: Op, *, is_double: bool) -> dict[str, Tensor]:
        """Outputs, and the buffers that the op updates, by name; the plain steps are left as they were."""
        names = {self.graph.buffer_of(name) for name in op.call.refs()}
        flats = {name: self.plain.tensors[name].clone() for name in names}
        if is_double:
            flats = {
                name: flat.double() if flat.is_floating_point() else flat for name, flat in flats.items()
            }

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


def _ratio(of_c: Tensor, of_torch: Tensor, exact: Tensor) -> float:
    """The error of C over what is allowed; up to 1 is right."""
    if not exact.is_floating_point():
        return 0.0 if torch.equal(of_c, exact) else float("inf")
    if not exact.numel():
        return 0.0
    allowed = ALLOWED * float((of_torch.double() - exact).abs().max()) + FLOOR * float(exact.abs().max())
    error = float((of_c.double() - exact).abs().max())
    return error / allowed if allowed else (0.0 if error == 0.0 else float("inf"))


def _worst(module: nn.Module, inputs: Tensor, folder: Path, loss: str, optimizer: str) -> dict[str, float]:
    """The worst ratio of each operator over all ops of a net's second step."""
    spec = OptimizerSpec(optimizer, lr=0.05, weight_decay=0.01)
    net = traced(module, inputs, loss=loss, optimizer=spec)
    graph = net.step.graph
    kept = {graph.buffer_of(name): tensor.detach().flatten() for name, tensor in net.step.tensors.items()}
    for parameter in graph.parameters:
        for _, value in parameter.optimizer_state:
            kept[graph.buffer_of(value)] = torch.rand(kept[graph.buffer_of(parameter.value)].numel())
    plain = PlainSteps(graph, spec, kept)
    types = {value.name: value.type for value in graph.values}
    count = len(graph.inputs) - graph.targets
    given = {name: torch.randn(types[name].shape) for name in graph.inputs[:count]}
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
    used = sources.needed(functions_of(statements, spec))
    table = f"static void (*const cases[])(poet_net *) = {{{', '.join(body.orders[0])}}};\n"
    run = "void run_case(poet_net *net, int index)\n{\n    cases[index](net);\n}\n"
    folder.mkdir()
    (folder / "poet_kernels.h").write_text(sources.header_text(used))
    (folder / "poet_kernels.c").write_text(sources.source_text(used))
    text = "\n\n".join([HEAD, "\n".join(body.constants), *body.functions, table + run])
    (folder / "cases.c").write_text(text)
    library = ctypes.CDLL(str(build(folder, "-O2")))
    worst: dict[str, float] = {}
    scalars = spec.hyperparameters(3)
    for index, op in enumerate(graph.ops):
        places = cases.places(op.call, op)
        arena = np.full(sum(cases.buffers[name] // 4 + 8 for name in places) + 8, np.nan, dtype=np.float32)
        for name in {graph.buffer_of(name) for name in op.call.refs()}:
            bits = np.frombuffer(plain.tensors[name].numpy().tobytes(), dtype=np.float32)
            arena[places[name] : places[name] + len(bits)] = bits
        record = (ctypes.c_uint64 * 16)()
        record[0] = arena.ctypes.data
        numbers = [scalars.get(name, 0.0) for name in SCALARS]
        ctypes.memmove(ctypes.addressof(record) + 8, np.array(numbers, np.float32).tobytes(), 20)
        library.run_case(record, index)
        right = cases.by_torch(op, is_double=True)
        for name, found in cases.by_torch(op, is_double=False).items():
            buffer = name[1:] if name[0] == "@" else graph.buffer_of(name)
            flat = torch.from_numpy(arena[places[buffer] :].copy())
            if found.dtype == torch.int64:
                flat = flat[: len(flat) // 2 * 2].view(torch.int64)
            if name[0] == "@":
                of_c = flat[: found.numel()]
            else:
                of_c = flat.as_strided(types[name].shape, types[name].strides, types[name].offset)
            ratio = _ratio(of_c, found, right[name])
            worst[op.call.target] = max(worst.get(op.call.target, 0.0), ratio)
        plain.run(op, scalars)
    return worst


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adamw"])
def test_operators_on_views(optimizer: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    worst = _worst(_Norms(), torch.randn(7, 5), tmp_path / "c", "mse", optimizer)
    assert {f"poet.{optimizer}", "aten.tanh_backward.default", "aten.sub.Tensor"} <= worst.keys()
    assert max(worst.values()) <= 1.0, worst


@few_or_many("seeds", range(2), range(2, 60))
def test_convolutions_of_random_shapes(seeds: range, tmp_path: Path) -> None:
    for seed in seeds:
        torch.manual_seed(seed)
        module, inputs = _convolutions(random.Random(seed))
        worst = _worst(module, inputs, tmp_path / str(seed), "cross-entropy", "sgd")
        assert {"aten.convolution.default", "aten.convolution_backward.default"} <= worst.keys()
        assert max(worst.values()) <= 1.0, (seed, worst)


def test_convolutions_whose_windows_have_kernels_of_their_own(tmp_path: Path) -> None:
    """Rows of four taps, windows that move by two columns with rows outside, single points by two."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 3, (5, 4), stride=2), nn.Conv2d(3, 4, 3, stride=2, padding=(1, 0))]
    module = nn.Sequential(*layers, nn.Conv2d(4, 3, 1, stride=2), nn.Flatten(), nn.Linear(48, 6))
    worst = _worst(module, torch.randn(4, 2, 33, 35), tmp_path / "c", "cross-entropy", "sgd")
    assert max(worst.values()) <= 1.0, worst


@pytest.mark.parametrize("wide", [70, pytest.param(640, marks=pytest.mark.slow)])
def test_wide_layers_with_batch_norm(wide: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(wide, 33), nn.BatchNorm1d(33), nn.ReLU(), nn.Linear(33, wide))
    worst = _worst(module, torch.randn(5, wide), tmp_path / "c", "mse", "sgd")
    assert {"aten.native_batch_norm.default", "aten.native_batch_norm_backward.default"} <= worst.keys()
    assert max(worst.values()) <= 1.0, worst


def test_an_operator_without_a_row_is_refused_by_name() -> None:
    call = Call("aten.gelu.default", ())
    with pytest.raises(UnsupportedOperator, match=r"op act: aten\.gelu\.default has no C kernel"):
        c_calls(OpRun("act", call, (), {}))


def test_every_row_calls_functions_that_exist(tmp_path: Path) -> None:
    folder = Path(sources.__file__).parent
    text = "".join(path.read_text() for path in (folder / "rows.py", *sorted(folder.glob("rules/*.py"))))
    named = {name for name in sources.pieces() if re.search(rf'["{{]{name}[",]', text)}
    reached = {piece.name for piece in sources.needed(named)}
    assert reached == set(sources.pieces()), "a piece of C that no row needs"
    assert len(ROWS) >= 28


@pytest.mark.parametrize("number", [0.1, 1.0, -2.5, 1e-5, 1e30, 1.0 / 3.0, 2.0**-126, 16777217.0])
def test_numbers_in_c_are_the_floats_they_stand_for(number: float) -> None:
    assert np.float32(float(float_text(number)[:-1])) == np.float32(number)
