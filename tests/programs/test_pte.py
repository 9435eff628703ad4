"""`poet export pte`: rules and kernels in ExecuTorch's wheel against PyTorch, and whole steps."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.command import invoke
from helpers.program_plans import write, written
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from poet.frontend.trace import trace_training_step
from poet.plans.plan_file import PlanFile
from poet.plans.training_plan import Plan
from poet.programs import pages, portable, pte
from poet.programs.pt2 import as_program
from poet.programs.row_major import RowMajorWalk
from poet.programs.schedule import contents, traced
from poet.runtime.data.random_batches import random_batch
from poet.runtime.kernels import outputs_of

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
"""ExecuTorch warns of its own code."""

_F, _IMAGE, _ROWS = torch.float32, (2, 4, 6, 6), (3, 5, 8)


def _positive(*shape: int) -> Tensor:
    return torch.rand(shape) + 0.5


def _cases() -> list[tuple[str, list[Any], dict[str, Any]]]:
    """Operators with arguments as a trace has them."""
    torch.manual_seed(0)
    rows, small = torch.randn(_ROWS), torch.rand(_ROWS)
    tanh = ("aten.gelu_backward.default", [rows, small * 4 - 2], {"approximate": "tanh"})
    cases = (
        *_of_images(torch.randn(_IMAGE), torch.randn(4)),
        *_by_element(rows, small),
        *_of_rows(rows, small),
    )
    return [*((f"aten.{name}", given, {}) for name, given in cases), tanh]


def _of_images(image: Tensor, channel: Tensor) -> Iterator[tuple[str, list[Any]]]:
    """Windows and batch norm."""
    weight, convolution = torch.randn(6, 2, 3, 3), [[2, 2], [1, 1], [1, 1], False, [0, 0], 2]
    made = torch.ops.aten.convolution.default(image, weight, None, *convolution)
    yield "convolution.default", [image, weight, torch.randn(6), *convolution]
    yield "convolution_backward.default", [made, image, weight, [6], *convolution, [True, True, True]]
    yield "constant_pad_nd.default", [image, [1, 2, 0, 1], 0.0]
    yield "constant_pad_nd.default", [image, [0, -1, -2, 1], 0.0]
    for size, stride, count in ((2, 2, 3), (3, 2, 2), (6, 6, 1)):
        window, given = [[size] * 2, [stride] * 2], torch.randn(2, 4, count, count)
        if size != 3:
            yield "avg_pool2d.default", [image, *window]
        yield "avg_pool2d_backward.default", [given, image, *window, [0, 0], False, True, None]
    pool = [[3, 3], [2, 2], [1, 1], [1, 1], False]
    pooled, places = torch.ops.aten.max_pool2d_with_indices.default(image, *pool)
    yield "max_pool2d_with_indices.default", [image, *pool]
    yield "max_pool2d_with_indices_backward.default", [pooled, image, *pool, places]
    spread, flipped, wanted = _positive(4), image.flip(0), [True, True, True]
    running, normed = [channel, spread], [channel, torch.rsqrt(spread)]
    norm = "native_batch_norm.default", "native_batch_norm_backward.default"
    yield norm[0], [image, channel, channel, None, None, True, 0.1, 1e-5]
    yield norm[0], [image, channel, channel, *running, False, 0.1, 1e-5]
    yield norm[1], [flipped, image, channel, None, None, *normed, True, 1e-5, wanted]
    yield norm[1], [flipped, image, channel, *running, None, None, False, 1e-5, wanted]


def _by_element(rows: Tensor, small: Tensor) -> Iterator[tuple[str, list[Any]]]:
    """Element by element, and reductions."""
    curves = ("exp", "sigmoid", "tanh", "gelu", "erf", "sin", "cos", "silu")
    for name in ("abs", "neg", "relu", "clone", "mean", *curves):
        yield f"{name}.default", [rows]
    for name in ("log", "sqrt", "rsqrt", "reciprocal"):
        yield f"{name}.default", [_positive(3, 4)]
    for name in ("add", "sub", "mul", "div"):
        yield f"{name}.Tensor", [rows, rows[0, 0]]
    for name in ("add", "sub", "mul", "div", "eq", "ne", "ge", "gt", "le", "lt"):
        yield f"{name}.Scalar", [rows, 0.3]
    for name in ("maximum", "minimum", "tanh_backward", "sigmoid_backward"):
        yield f"{name}.default", [rows, small]
    yield "clamp.default", [rows, -0.5, 0.5]
    yield "hardtanh.default", [rows, 0.0, 1.0]
    yield "leaky_relu.default", [rows, 0.1]
    yield "pow.Tensor_Scalar", [rows, 2.0]
    yield "where.self", [rows > 0, rows, small]
    yield "masked_fill.Scalar", [rows, rows > 0, 0.0]
    yield "threshold_backward.default", [rows, small - 0.5, 0]
    yield "hardtanh_backward.default", [rows, small, 0.2, 0.7]
    yield "gelu_backward.default", [rows, small * 4 - 2]
    yield "amax.default", [rows, [1], True]
    yield "amin.default", [rows, [1], False]
    yield "sum.dim_IntList", [rows, [0, 2], True]
    yield "mean.dim", [rows, [0]]


def _of_rows(rows: Tensor, small: Tensor) -> Iterator[tuple[str, list[Any]]]:
    """Products, softmax, layer norm, losses, look-ups and copies."""
    row, one, wide = torch.randn(8), torch.ones(()), torch.randn(8, 4)
    yield "bmm.default", [rows, torch.randn(3, 8, 4)]
    yield "mm.default", [rows[0], wide]
    yield "addmm.default", [torch.randn(4), rows[0], wide]
    yield "_softmax.default", [rows, -1, False]
    yield "_log_softmax.default", [rows, 1, False]
    for dim in (-1, 1):
        yield "_softmax_backward_data.default", [rows, rows.softmax(dim), dim, _F]
    yield "_log_softmax_backward_data.default", [rows, rows.log_softmax(-1), -1, _F]
    layer = [rows.mean(-1, True), torch.rsqrt(rows.var(-1, correction=0, keepdim=True) + 1e-5), row, row]
    yield "native_layer_norm.default", [rows, [8], row, row, 1e-5]
    yield "native_layer_norm_backward.default", [rows.flip(0), rows, [8], *layer, [True, True, True]]
    labelled = [torch.randn(5, 7).log_softmax(1), torch.tensor([0, 6, -100, 3, 3]), None, 1, -100]
    yield "nll_loss_forward.default", labelled
    yield "nll_loss_backward.default", [one, *labelled, torch.tensor(4.0)]
    yield "mse_loss.default", [rows, small, 1]
    yield "mse_loss_backward.default", [one, rows, small, 1]
    table = torch.randint(9, (3, 5))
    yield "embedding.default", [torch.randn(9, 4), table]
    yield "embedding_dense_backward.default", [torch.randn(3, 5, 4), table, 9, 2, False]
    yield "slice_backward.default", [rows, [3, 9, 8], 1, 2, 7, 1]
    yield "select_backward.default", [row, [3, 8], 0, 1]
    yield "cat.default", [[rows, small], 1]
    yield "gather.default", [rows[0], 1, torch.zeros(5, 2, dtype=torch.int64)]
    yield "repeat.default", [row, [2, 3]]
    yield "flip.default", [rows, [0]]
    yield "stack.default", [[row, row]]


class _Direct:
    """A walk of calls that are given tensors themselves."""

    def given(self, argument: Any) -> Any:
        return argument

    def transposed(self, _: Any) -> None:
        return None


def _by_rules(cases: list[tuple[str, list[Any], dict[str, Any]]]) -> list[Tensor]:
    found: list[Tensor] = []
    for target, given, named in cases:
        call = SimpleNamespace(target=target, args=given, kwargs=tuple(named.items()))
        made = portable.made(target, call, _Direct())  # type: ignore[arg-type]
        found += [item for item in outputs_of(made) if item is not None and item.numel()]
    return found


def _executed(program: bytes, given: list[Tensor]) -> list[Tensor]:
    from executorch.runtime import Runtime

    return list(Runtime.get().load_program(program).load_method("forward").execute(given))


def test_rules_and_kernels_are_pytorchs() -> None:
    pytest.importorskip("executorch")
    cases = _cases()
    tensors: list[Tensor] = []

    def numbered(item: Any) -> Any:
        if isinstance(item, list):
            return [numbered(each) for each in item]
        if not isinstance(item, Tensor):
            return item
        tensors.append(item.contiguous())
        return len(tensors) - 1, Tensor

    def filled(item: Any, of: tuple[Tensor, ...]) -> Any:
        if isinstance(item, list):
            return [filled(each, of) for each in item]
        return of[item[0]] if isinstance(item, tuple) else item

    marked = [(target, numbered(given), named) for target, given, named in cases]

    def program(*of: Tensor) -> tuple[Tensor, ...]:
        return tuple(_by_rules([(target, filled(given, of), named) for target, given, named in marked]))

    with FakeTensorMode() as mode, torch.no_grad():
        made: fx.GraphModule = make_fx(program, tracing_mode="fake")(*map(mode.from_tensor, tensors))
    lowered = pte.with_executorch(as_program(made, {}, set()), placed_in=pte.Placing(0, None))
    results = iter(_executed(lowered.buffer, tensors))
    for target, given, named in cases:
        expected = getattr(getattr(torch.ops.aten, target.split(".")[1]), target.split(".")[2])(
            *given, **named
        )
        for item in outputs_of(expected):
            if item is not None and item.numel():
                found = next(results)
                close = torch.allclose(found.to(item.dtype), item, rtol=1e-4, atol=1e-5)
                assert close, f"{target}: {found} in place of {item}"
    tried = {target for target, _, _ in cases}
    untried = {name for name in (*portable.PLAIN, *portable.RULES, *portable.READING) if name[:5] == "aten."}
    assert untried - tried <= {
        f"aten.{name}"  # whose kernels others of the list are, with other arguments
        for name in [
            "eq.Tensor",
            "ne.Tensor",
            "logical_and.default",
            "logical_not.default",
            "logical_or.default",
            "var.correction",
            "index_select.default",
            "tril.default",
        ]
    }


@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
def test_a_step_trains_in_the_wheel_inside_the_plans_bytes(tmp_path: Path, optimizer: str) -> None:
    pytest.importorskip("executorch")
    plan = written(tmp_path / "a.poet", pool=nn.AvgPool2d(2), optimizer=optimizer)
    code, _, said = invoke("export", "pte", tmp_path / "a.poet", "-o", tmp_path / "a.pte")
    assert code == 0, said
    kept = written(tmp_path / "b.poet", most=0, pool=nn.AvgPool2d(2), optimizer=optimizer)
    assert invoke("export", "pte", tmp_path / "b.poet", "-o", tmp_path / "b.pte")[0] == 0
    assert plan.trace.recomputed_runs > kept.trace.recomputed_runs

    from executorch.runtime import Runtime

    both = [Runtime.get().load_program(tmp_path / name).load_method("forward") for name in ("a.pte", "b.pte")]
    for number in range(3):
        inputs, targets = random_batch(plan, number)
        assert isinstance(targets, Tensor)
        one, two = (method.execute([*inputs, targets]) for method in both)
        assert torch.equal(one[0], two[0])
        assert torch.equal(one[1], two[1])


class _Filed(fx.Interpreter):
    """Runs a program in PyTorch, its pages in a bytearray."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.file, self.paged_out, self.paged_in = bytearray(1 << 20), 0, 0

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is torch.ops.poet.page_out_.default:
            file, page, begin = args
            self.file[begin : begin + page.nbytes] = page.numpy().tobytes()
            self.paged_out += 1
            return file
        if target is torch.ops.poet.page_in.default:
            _, shape, element, begin = args
            count = torch.Size(shape).numel()
            self.paged_in += 1
            return torch.frombuffer(bytes(self.file), dtype=element, count=count, offset=begin).view(shape)
        return super().call_function(target, args, kwargs)


def test_what_is_paged_in_is_what_was_paged_out(tmp_path: Path) -> None:
    results, runs = [], []
    for most in (99, 0):
        path = tmp_path / f"{most}.poet"
        plan = written(path, most=most, pool=nn.AvgPool2d(2), paging=True)
        with PlanFile(path) as file:
            held = contents(file, None, whole=False)
        inputs, targets = random_batch(plan, 0)
        runs.append(_Filed(traced(plan, portable.run, walk=RowMajorWalk)))
        results.append(runs[-1].run(*held.values(), *inputs, targets))
    assert len(plan.slots) == runs[1].paged_out == 0 < runs[0].paged_out <= runs[0].paged_in
    assert all(map(torch.equal, *results))


_APP = """
import ctypes, os, sys
import torch
from executorch.runtime import Runtime

runtime, folder = Runtime.get(), sys.argv[1]
ctypes.CDLL(folder + "/a.pte.so")
both = [runtime.load_program(f"{folder}/{name}.pte").load_method("forward") for name in "ab"]
for number in range(20):
    torch.manual_seed(number)
    batch = [torch.randn(64, 32), torch.randint(32, (64,))]
    one, two = (method.execute(batch) for method in both)
    assert all(map(torch.equal, one, two)), number
open_files = (f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd"))
print(*(os.readlink(name) for name in open_files if os.path.lexists(name)))
"""


def _hourglass(path: Path, *, most: int) -> Plan:
    """A plan of layers that widen and narrow, the first trained, with up to ``most`` results paged."""
    torch.manual_seed(0)
    sizes = (32, 128) * 3
    layers = [[nn.Linear(before, after), nn.Tanh()] for before, after in itertools.pairwise((*sizes, 32))]
    net = nn.Sequential(*itertools.chain(*layers))
    step = trace_training_step(net, torch.zeros(64, 32), measure=False, train=["0.*"])
    return write(path, step, most=most, paging=True)


def test_pages_lie_in_a_file_while_an_app_trains(tmp_path: Path) -> None:
    pytest.importorskip("executorch")
    plan, _ = (_hourglass(tmp_path / f"{name}.poet", most=most) for name, most in (("a", 99), ("b", 0)))
    made, kept = (pte.export_pte(tmp_path / f"{name}.poet", tmp_path / f"{name}.pte") for name in "ab")
    assert made.ram_bytes == pte.plan_bytes(plan) < kept.ram_bytes
    assert kept.library is None
    (tmp_path / "flash").mkdir()

    def app(folder: Path) -> subprocess.CompletedProcess[str]:
        given = [sys.executable, "-c", _APP, str(tmp_path)]
        environment = {**os.environ, "POET_PAGES": str(folder)}
        return subprocess.run(given, env=environment, capture_output=True, text=True, check=False)

    done = app(tmp_path / "flash")
    assert done.returncode == 0, done.stderr
    assert f"{tmp_path / 'flash'}/poet-pages-" in done.stdout
    assert not list((tmp_path / "flash").iterdir())
    refused = app(tmp_path / "missing")
    assert refused.returncode
    assert "a page cannot be moved: No such file" in refused.stdout + refused.stderr


def test_without_a_compiler_pages_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("executorch")
    _hourglass(tmp_path / "a.poet", most=99)
    monkeypatch.setenv("CXX", "no-such-compiler")
    pages.kernels.cache_clear()
    code, _, said = invoke("export", "pte", tmp_path / "a.poet", "-o", tmp_path / "a.pte")
    assert code == 2
    assert "no C++ compiler" in said
    assert "--no-paging" in said
    assert len(said.strip().splitlines()) == 1
    assert not list(tmp_path.glob("a.pte*"))
