"""PyTorch's gradients over what they are made from: which, their RAM, and the bits of plain training."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers.oracle import least_joules
from helpers.pace import with_slow
from helpers.random_problems import floor_bytes, keep_bytes
from torch import Tensor, nn

from poet import api
from poet.c99.calls import Placed
from poet.c99.rows import overwrites, strip_calls
from poet.errors import ReplayError, UnsupportedOperator
from poet.frontend.trace import TrainingStep, trace_training_step
from poet.ir import strips
from poet.ir.graph import Graph, Ref
from poet.passes import in_place
from poet.passes.in_place import chosen_takeovers, with_results_in_place
from poet.passes.rewrite import Technique
from poet.planning.prepared import Prepared
from poet.planning.ram_survey import keep_everything_bytes
from poet.planning.step_search import with_room
from poet.problem import Limits, Objective, Pins, Problem, ProblemOp, Transfer
from poet.problem import Tensor as Bytes
from poet.problem.simulator import simulate
from poet.problem.solution import SolveOptions, Status
from poet.report.check import strip_lines
from poet.runtime import Trainer
from poet.runtime.kernels import overwriting
from poet.runtime.trials import trial
from poet.runtime.trials.measure import measured
from poet.solvers import minimum_ram_bytes, solve

QUICK = SolveOptions(time_limit_seconds=2.0)


class _Net(nn.Module):
    """Batch norm, rectifiers, dropout, a sum that two branches read, a softmax and GELU."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Sequential(nn.Conv2d(2, 8, 1), nn.BatchNorm2d(8), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8), nn.Dropout(0.2))
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        y = torch.relu(self.second(y) + y)
        y = nn.functional.gelu(torch.softmax(y * 0.5, 1))
        result: Tensor = self.last(y.mean((2, 3)))
        return result


X = torch.zeros(2, 2, 24, 24)


@pytest.fixture(autouse=True)
def _small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_place, "LEAST_BYTES", 16 * 1024)
    monkeypatch.setattr(in_place, "LEAST_COPIED_BYTES", 16 * 1024)
    monkeypatch.setattr(strips, "_COPIED_BLOCK_BYTES", 8 * 1024)


@pytest.fixture(scope="module")
def prepared() -> Prepared:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(in_place, "LEAST_BYTES", 16 * 1024)
        patch.setattr(in_place, "LEAST_COPIED_BYTES", 16 * 1024)
        patch.setattr(strips, "_COPIED_BLOCK_BYTES", 8 * 1024)
        return api.prepare(_Net(), X, device="rpi4b")


def written_over(graph: Graph) -> list[str]:
    over = [op.strip for op in graph.ops if op.strip is not None and op.strip.overwritten is not None]
    return sorted({strip.links[0].call.target.split(".")[1] for strip in over})


def test_gradients_take_over_memory(prepared: Prepared) -> None:
    graph = prepared.step.graph
    found = set(written_over(graph))
    assert {"native_batch_norm_backward", "gelu_backward", "_softmax_backward_data", "add"} <= found
    assert {"relu_backward", "threshold_backward"} & found
    assert Graph.from_json(graph.to_json()) == graph
    (line,) = [line for line in strip_lines(graph) if "in-place" in line]
    assert "the largest 36 KiB" in line
    forms = prepared.step.forms
    assert forms is not None
    assert forms.plain is not None
    assert not written_over(forms.plain)
    assert written_over(forms.long)
    assert not chosen_takeovers(graph), "each result once"


def test_less_is_held(prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_place, "LEAST_BYTES", 1 << 40)
    monkeypatch.setattr(in_place, "LEAST_COPIED_BYTES", 1 << 40)
    apart = api.prepare(_Net(), X, device="rpi4b")
    assert not written_over(apart.step.graph)
    assert minimum_ram_bytes(prepared.problem).bytes <= minimum_ram_bytes(apart.problem).bytes
    assert keep_everything_bytes(prepared.problem) < keep_everything_bytes(apart.problem)
    assert prepared.step.digest == apart.step.digest


def test_whoever_keeps_gradients_has_all_of_them_apart() -> None:
    step = trace_training_step(_Net(), X, gradients="keep")
    assert not written_over(step.graph)


def copied(graph: Graph) -> set[str]:
    """The ops of ``graph`` whose result is copied over an operand."""
    over = {
        op.name: op.strip for op in graph.ops if op.strip is not None and op.strip.overwritten is not None
    }
    return {name for name, strip in over.items() if strip.links[0].call.target in overwriting.COPIED}


def test_where_there_is_room_nothing_is_copied(prepared: Prepared) -> None:
    """As many results are copied over operands as the budget asks for, and none where all fits apart."""
    every = copied(prepared.step.graph)
    assert len(every) == 2
    ample = with_room(prepared, Limits())
    assert not copied(ample.step.graph)
    assert written_over(ample.step.graph), "what takes no time stays"
    most = keep_everything_bytes(ample.problem)
    counts = []
    for share in range(20):
        limits = Limits(ram_budget_bytes=round((1.0 - share / 20) * most))
        here = with_room(prepared, limits)
        counts.append(len(copied(here.step.graph)))
        forms = here.step.forms
        assert forms is not None
        assert forms.long_kernels == forms.kernels(())
        assert forms.graph(forms.of(Technique.COMPRESSED)) == forms.short == here.step.graph
        if not counts[-1]:
            continue
        assert here.problem.compute_joules > ample.problem.compute_joules
    assert counts == sorted(counts)
    assert counts[0] == 0
    assert counts[-1] == len(every)
    assert with_room(prepared, Limits(), Objective.RAM) is prepared
    assert with_room(prepared, Limits(pins=Pins(keep=("y",)))) is prepared


def test_what_is_apart_is_measured_so(prepared: Prepared) -> None:
    forms = prepared.step.forms
    assert forms is not None
    assert set(forms.apart) == copied(prepared.step.graph)
    ample = with_room(prepared, Limits())
    _, facts = measured(ample.step.graph, known={})
    for name in forms.apart:
        assert ample.step.kernels.of(name).workspace_bytes == facts.of(name).workspace_bytes
        assert ample.step.kernels.of(name).workspace_bytes < forms.long_kernels.of(name).workspace_bytes


def _other_bits(*args: Tensor, out: Tensor, **_: object) -> Tensor:
    return out.add_(1.0)


def test_what_gives_other_bits_is_made_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    right = overwriting.kernel

    def wrong(target: str) -> object:
        return _other_bits if target == "aten.gelu_backward.default" else right(target)

    monkeypatch.setattr(trial, "_exact", {})
    monkeypatch.setattr("poet.runtime.trials.trial.told", lambda digest: "nothing")
    monkeypatch.setattr("poet.runtime.trials.trial.note", lambda digest, told: None)
    monkeypatch.setattr(overwriting, "kernel", wrong)
    found = written_over(trace_training_step(_Net(), X).graph)
    assert "gelu_backward" not in found
    assert "_softmax_backward_data" in found


def test_a_plan_is_refused_where_it_gives_other_bits(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    planned = api.plan_step(prepared, Limits(), QUICK)
    planned.save(tmp_path / "net.poet")
    monkeypatch.setattr(trial, "_exact", {})
    monkeypatch.setattr(overwriting, "kernel", lambda target: _other_bits)
    with pytest.raises(ReplayError, match="written over an operand gives other bits"):
        Trainer.open(tmp_path / "net.poet")


# --- bounds ---------------------------------------------------------------------------------------


def way_back(seed: int) -> Problem:
    """A chain there and back; on the way back each gradient is made over the one before, or apart.

    Sizes, costs, what is read again and which gradients are written over differ from seed to seed.
    """
    rng = random.Random(seed)
    layers = 3
    page = Transfer(rng.uniform(0.5, 3.0), rng.uniform(0.5, 3.0))
    sizes = {"x": 2}
    ops = []
    for number in range(layers):
        source = f"y{number - 1}" if number else "x"
        sizes[f"y{number}"] = rng.randint(1, 4)
        cost = rng.uniform(0.5, 2.0)
        ops.append(ProblemOp(f"f{number}", (source,), (f"y{number}",), cost, cost))
    gradient = "g"
    sizes[gradient] = rng.randint(2, 4)
    ops.append(ProblemOp("loss", (f"y{layers - 1}",), (gradient,), 1.0, 1.0))
    for number in reversed(range(layers)):
        cost = rng.uniform(0.5, 2.0)
        workspace_bytes = rng.choice([0, 0, 1])
        if rng.random() < 0.7:
            ops.append(
                ProblemOp(
                    f"b{number}", (gradient, f"y{number}"), (), cost, cost, workspace_bytes,
                    updates=(gradient,), recomputable=False,
                )
            )  # fmt: skip
        else:
            new = f"g{number}"
            sizes[new] = rng.randint(1, 4)
            ops.append(ProblemOp(f"b{number}", (gradient, f"y{number}"), (new,), cost, cost, workspace_bytes))
            gradient = new
    tensors = tuple(Bytes(name, size, page, page) for name, size in sizes.items())
    return Problem("way back", tensors, tuple(ops))


@pytest.mark.parametrize("seed", with_slow(range(12), {0, *range(4, 12)}))
def test_no_bound_is_above_the_optimum(seed: int) -> None:
    problem = way_back(seed)
    least, most = floor_bytes(problem), keep_bytes(problem)
    assert minimum_ram_bytes(problem).bytes <= least
    for budget in {least, (least + most) // 2}:
        limits = Limits(ram_budget_bytes=budget)
        best = least_joules(problem, limits)
        found = solve(problem, limits, SolveOptions(time_limit_seconds=10.0))
        if best is None:
            assert found.status is Status.INFEASIBLE
            continue
        optimum = simulate(problem, best, limits).joules
        assert found.bound_joules <= optimum + 1e-6
        assert found.joules is not None
        assert found.joules >= optimum - 1e-6
        assert found.status is not Status.OPTIMAL or found.joules <= optimum + 1e-6


# --- by the kernels of C ---------------------------------------------------------------------------


class _NetOfC(nn.Module):
    """Batch norm, ReLU, and a sum that two branches read."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Sequential(nn.Conv2d(2, 4, 1), nn.BatchNorm2d(4), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))
        self.last = nn.Linear(36, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        result: torch.Tensor = self.last(torch.relu(self.second(y) + y).flatten(1))
        return result


def _traced() -> TrainingStep:
    return trace_training_step(_NetOfC(), torch.randn(2, 2, 3, 3), measure=False)


def test_the_way_back_takes_over_memory() -> None:
    step = _traced()
    graph = with_results_in_place(step.graph, overwrites)
    changed = {op.strip.links[0].call.target for op in graph.ops if op.strip is not None}
    assert changed == {
        "aten.threshold_backward.default",
        "aten.native_batch_norm_backward.default",
        "aten.add.Tensor",
    }
    assert len(graph.buffers) == len(step.graph.buffers) - sum(op.strip is not None for op in graph.ops)
    assert Graph.from_json(graph.to_json()) == graph
    assert with_results_in_place(graph, lambda call: ()) is graph
    forward = [op.name for op in step.graph.ops if op.call.target == "aten.relu.default"]
    assert all(op.strip is None for op in graph.ops if op.name in forward), "the way there is left alone"


def test_c_writes_over_operands_alone() -> None:
    """A stranger's plan that writes a result over something else is refused."""
    graph = with_results_in_place(_traced().graph, overwrites)
    op = next(op for op in graph.ops if op.strip is not None and not op.outputs)
    assert op.strip is not None
    places = {value.buffer: 1024 * index for index, value in enumerate(graph.values)}
    values = {value.name: Placed(value.type, places[value.buffer]) for value in graph.values}
    assert len(strip_calls(op.name, op.strip, values, {})) == 1
    assign = op.strip.links[1].call
    elsewhere = replace(op.strip.links[1], call=replace(assign, args=(Ref(graph.loss), assign.args[1])))
    with pytest.raises(UnsupportedOperator, match="cannot be written over"):
        strip_calls(op.name, replace(op.strip, links=(op.strip.links[0], elsewhere)), values, {})
    first = replace(op.strip.links[0], call=replace(op.strip.links[0].call, target="aten.relu.default"))
    with pytest.raises(UnsupportedOperator, match="cannot be written over"):
        strip_calls(op.name, replace(op.strip, links=(first, op.strip.links[1])), values, {})
