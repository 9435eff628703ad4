"""Trained tables whose rows are read and updated where they lie in storage: bits, choice, failures."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers.part_nets import tiny_parts, write
from helpers.row_net import LOSS, RATE, SGD, InRam, by_row, module_of, traced
from torch import Tensor
from torch.nn import functional as F

import poet
from poet.devices.costs import estimate
from poet.devices.load import load_profile
from poet.errors import GraphError, PoetError, ReplayError
from poet.frontend.evaluation import trace_evaluation
from poet.frontend.trace import TrainingStep
from poet.ir.graph import STORED_ROWS_SGD, Call, Graph, Op, Ref, Symbol
from poet.ir.optimizer import OptimizerSpec, ParameterGroup
from poet.passes.rewrite import Technique
from poet.planning.prepared import Prepared, prepare
from poet.planning.step_search import offered, solve_choosing, with_choice
from poet.problem import Limits, Place
from poet.problem.solution import SolveOptions, Status
from poet.report.check import row_lines
from poet.runtime import Trainer
from poet.runtime.kernels import kernel, tables
from poet.runtime.storage.page_file import PageFile
from poet.runtime.trials import forms, trial
from poet.runtime.trials.trial import same_bits
from poet.solvers import solve
from poet.verification import verify


@pytest.fixture(autouse=True)
def _tiny_ones_too(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with tiny_parts(monkeypatch):
        yield


def op_of(graph: Graph) -> Op:
    (op,) = [op for op in graph.ops if op.call.target == STORED_ROWS_SGD]
    return op


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    """The padded row and others often, some rows twice, the first and the last."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for _ in range(count):
        tokens = torch.randint(500, (2, 12), generator=generator)
        tokens[0, :6] = torch.tensor([3, 3, 0, 499, 7, 7])
        made.append((tokens, torch.randint(7, (2, 12), generator=generator)))
    return made


class Eager:
    """Plain PyTorch."""

    def __init__(self, words: int = 500) -> None:
        self.module = module_of(words)
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=RATE)

    def step(self, tokens: Tensor, targets: Tensor) -> float:
        loss = F.cross_entropy(self.module(tokens).flatten(0, 1), targets.flatten())
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return loss.item()

    def is_in(self, trainer: Trainer) -> bool:
        trained = trainer.state_dict()
        return all(same_bits(trained[name], item.detach()) for name, item in self.module.named_parameters())


# --- the kernel -------------------------------------------------------------------------------

SPECIAL = [0.0, -0.0, 1e-45, -1e-45, 3e38, -3e38, float("inf"), -float("inf"), float("nan"), 1.0]


@pytest.mark.parametrize("rate", [0.05, 0.0, -0.0, -0.05, 1e-50, 3e38, float("inf"), float("nan")])
@pytest.mark.parametrize("threads", [1, 2])
def test_rows_get_the_bits_of_an_update_of_all(rate: float, threads: int) -> None:
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(0)
    for width in (1, 10, 257):
        table = torch.randn(40, width, generator=generator)
        numbers = torch.randint(20, (3, 9), generator=generator)  # the other half stays untouched
        gradient = torch.randn(3, 9, width, generator=generator)
        for tensor in (table[:5], table[-5:], gradient[0, :5]):
            tensor.copy_(torch.tensor(SPECIAL).repeat(5 * width)[: 5 * width].view(5, width))
        stored = InRam(table.clone())
        whole = torch.ops.aten.embedding_dense_backward.default(gradient, numbers, 40, 7, False)
        table.add_(whole, alpha=-rate)
        tables.stored_rows_sgd(stored, numbers, 40, width, torch.float32, gradient, rate, 7)
        assert same_bits(table, stored.rows)
        is_plain = rate in (0.05, 1e-50, 3e38) or str(rate) == "0.0"
        touched = {*numbers.flatten().tolist()} - {7}
        assert stored.asked == (sorted(touched) if is_plain else [*range(40)])


def test_where_numbers_close_to_zero_are_flushed_every_row_is_updated() -> None:
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor flushes none")
    try:
        stored = InRam(torch.full((4, 8), 1e-45))
        numbers, gradient = torch.tensor([1]), torch.zeros(1, 8)
        tables.stored_rows_sgd(stored, numbers, 4, 8, torch.float32, gradient, RATE, -1)
    finally:
        torch.set_flush_denormal(False)
    assert stored.asked == [0, 1, 2, 3]


def test_numbers_of_no_row_and_a_missing_page_file_are_refused() -> None:
    gradient = torch.zeros(1, 8)
    for wrong in (-1, 4):
        with pytest.raises(IndexError, match="index out of range"):
            tables.stored_rows_sgd(
                InRam(torch.zeros(4, 8)), torch.tensor([wrong]), 4, 8, torch.float32, gradient, RATE, -1
            )
    with pytest.raises(ReplayError, match="row 3 of a table in storage is updated where no page file is"):
        kernel(STORED_ROWS_SGD)(torch.tensor([3]), 4, 8, torch.float32, gradient, RATE, -1)


# --- bits of whole steps ----------------------------------------------------------------------


def test_an_evaluation_reads_by_row_what_training_does() -> None:
    tokens, module = torch.zeros(2, 12, dtype=torch.long), module_of()
    found = trace_evaluation(module, tokens, by_row())
    (reader,) = [op for op in found.graph.ops if op.stored]
    assert reader.stored == op_of(by_row().graph).stored
    assert reader.repeatable
    assert {op.name for op in found.graph.ops} == {facts.name for facts in found.kernels.ops}
    parted = trace_evaluation(module, tokens, traced(module))
    assert not any(op.stored for op in parted.graph.ops)


def test_only_rows_that_are_looked_up_come_and_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = by_row()
    write(tmp_path / "p", step, seed=None)
    read, changed, fetched = list[tuple[str, int]](), list[tuple[str, int]](), set[str]()
    read_row, change_row, read_into = PageFile.read_row, PageFile.change_row, PageFile.read_into

    def noted_read(pages: PageFile, tensor: str, row: int, target: memoryview) -> None:
        read.append((tensor, row))
        read_row(pages, tensor, row, target)

    def noted_change(pages: PageFile, tensor: str, row: int, change: Callable[..., None]) -> None:
        changed.append((tensor, row))
        change_row(pages, tensor, row, change)

    def noted(pages: PageFile, tensor: str, target: memoryview) -> None:
        fetched.add(tensor)
        read_into(pages, tensor, target)

    monkeypatch.setattr(PageFile, "read_row", noted_read)
    monkeypatch.setattr(PageFile, "change_row", noted_change)
    monkeypatch.setattr(PageFile, "read_into", noted)
    eager, gradients = Eager(), dict[str, Tensor]()
    with Trainer.open(tmp_path / "p", seed=1) as trainer:
        for tokens, targets in batches(3):
            read.clear()
            changed.clear()
            fetched.clear()
            result = trainer.step(
                tokens, targets, on_gradient=lambda name, it: gradients.update({name: it.clone()})
            )
            assert result.loss == eager.step(tokens, targets)
            asked = set(tokens.flatten().tolist())
            assert len(read) == len(asked)
            assert len(changed) == len(asked - {3})  # of padding nothing changes
            assert set(changed) <= set(read)
            assert fetched.isdisjoint(step.graph.wholes[0].parts)
            for name, item in eager.module.named_parameters():
                assert item.grad is not None
                assert same_bits(gradients[name], item.grad)
        assert eager.is_in(trainer)


def test_a_training_that_is_saved_and_goes_on_has_the_same_bits(tmp_path: Path) -> None:
    write(tmp_path / "p", by_row(), seed=None)
    eager = Eager()
    for part in range(2):
        with Trainer.open(tmp_path / "p", resume=tmp_path / "s" if part else None) as trainer:
            for batch in batches(4)[2 * part : 2 * part + 2]:
                assert trainer.step(*batch).loss == eager.step(*batch)
            trainer.save(tmp_path / "s")
            assert eager.is_in(trainer)


@pytest.mark.parametrize("operation", ["pwrite", "preadv"])
def test_what_strikes_among_the_rows_loses_no_committed_step(
    operation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "p", by_row(), seed=None)
    eager, (first, second, _) = Eager(), batches(3)
    change_row, rows, plain = PageFile.change_row, list[int](), getattr(os, operation)

    def fails(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    def at_the_fifth(pages: PageFile, tensor: str, row: int, change: Callable[..., None]) -> None:
        rows.append(row)
        with monkeypatch.context() as struck:
            if len(rows) == 5:
                struck.setattr(os, operation, fails)
            change_row(pages, tensor, row, change)

    with Trainer.open(tmp_path / "p", seed=1) as trainer:
        trainer.step(*first)
        eager.step(*first)
        trainer.save(tmp_path / "s")
        with monkeypatch.context() as struck:
            struck.setattr(PageFile, "change_row", at_the_fifth)
            with pytest.raises(PoetError, match=r"row \d+ of words.weight.* cannot be changed"):
                trainer.step(*second)
        assert getattr(os, operation) is plain
        with pytest.raises(ReplayError, match=r"the trainer cannot go on: .* resume= from the last save"):
            trainer.step(*second)
    with Trainer.open(tmp_path / "p", resume=tmp_path / "s") as trainer:
        assert trainer.step(*second).loss == eager.step(*second)
        assert eager.is_in(trainer)


# --- who chooses so ---------------------------------------------------------------------------


def has_row_updates(step: TrainingStep) -> bool:
    changes = () if step.forms is None else step.forms.of(Technique.STORED_ROWS).values()
    return any(op.updates for change in changes for op in change.ops.values() if op is not None)


@pytest.mark.parametrize(
    "optimizer",
    [
        OptimizerSpec("momentum", lr=RATE),
        OptimizerSpec("adamw"),
        OptimizerSpec("sgd", weight_decay=0.1),
        OptimizerSpec("sgd", maximize=True),
        OptimizerSpec("sgd", clip_value=1.0),
        OptimizerSpec("sgd", clip_norm=1.0),
        OptimizerSpec("sgd", groups=(ParameterGroup(("words*",), weight_decay=0.1),)),
    ],
    ids=lambda spec: f"{spec.name}, {spec.decay}, {spec.maximize}, {spec.clip_value}, {spec.clip_norm}",
)
def test_other_updates_are_of_the_whole_table(optimizer: OptimizerSpec) -> None:
    assert not has_row_updates(traced(module_of(), optimizer))


def test_a_group_of_its_own_has_its_own_rate() -> None:
    spec = OptimizerSpec(
        "sgd", lr=0.1, weight_decay=0.1, groups=(ParameterGroup(("words*",), lr=0.3, weight_decay=0.0),)
    )
    step = traced(module_of(), spec)
    assert step.forms is not None
    (change,) = step.forms.of(Technique.STORED_ROWS).values()
    (update,) = [op for op in change.ops.values() if op is not None and op.updates]
    assert isinstance(rate := update.call.args[5], Symbol)
    assert spec.hyperparameters(1)[rate.name] == 0.3


def test_a_table_that_something_else_reads_is_updated_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not has_row_updates(traced(module_of(tied=True)))
    assert not has_row_updates(traced(module_of(twice=True)))
    assert has_row_updates(traced(module_of()))
    step = by_row()  # before anything is patched: it is made once for all tests
    monkeypatch.setattr(forms, "_try_row_updates", lambda width: False)
    monkeypatch.setattr(trial, "_exact", {})
    assert not trial.is_exact(forms.row_trial(64))
    assert not has_row_updates(traced(module_of()))
    with pytest.raises(ReplayError, match="updates single rows of 64 numbers, gives other bits"):
        forms.check_exact(step.graph)


def prepared(home: Place = Place.STORAGE, device: str = "rpi4b-xnnpack", words: int = 3000) -> Prepared:
    batch = torch.zeros(1, 2, dtype=torch.long)
    return prepare(module_of(words), batch, device=device, loss=LOSS, optimizer=SGD, home=home)


@pytest.mark.slow
@pytest.mark.parametrize("home", [Place.STORAGE, Place.EITHER])
def test_rows_are_updated_in_storage_where_ram_is_dear(home: Place) -> None:
    of = prepared(home)
    limits, options = Limits(ram_budget_bytes=256 << 10), SolveOptions(time_limit_seconds=20.0)
    chosen, solution = solve_choosing(of, limits, options)
    whole = solve(of.problem, limits, options)
    assert solution.trace is not None
    assert whole.trace is not None
    assert solution.trace.joules < whole.trace.joules / 2
    assert solution.status is Status.OPTIMAL
    op = op_of(chosen.step.graph)
    costed = {each.name: each for each in chosen.problem.ops}[op.name]
    assert costed.stored_updates == op.stored
    assert solution.trace.written_bytes < whole.trace.written_bytes
    assert "2 at most are updated there" in row_lines(chosen.step.graph)[0]


def test_rows_are_offered_only_where_they_may_be_written() -> None:
    def offers(of: Prepared, limits: Limits | None = None) -> bool:
        alternatives = offered(of, limits or Limits()).alternatives
        return any(op.stored_updates for each in alternatives for op in each.ops)

    of = prepared()
    assert offers(of)
    assert offers(of, Limits(paging=False))
    assert not offers(prepared(Place.RAM))
    assert not offers(prepared(words=40))  # fewer bytes than the rows' pages
    storage = of.profile.storage
    assert storage is not None
    erased = load_profile("stm32h743").storage
    assert erased is not None
    assert erased.erase is not None
    profile = of.profile.model_copy(update={"storage": storage.model_copy(update={"erase": erased.erase})})
    assert not offers(replace(of, profile=profile))


def test_a_row_costs_a_read_and_a_write_of_its_pages() -> None:
    of, profile = prepared(), load_profile("rpi4b-xnnpack")
    chosen = with_choice(of, [each.name for each in offered(of, Limits()).alternatives])
    op, storage = op_of(chosen.step.graph), profile.storage
    assert storage is not None
    cost, span_bytes = estimate(chosen.step.graph, profile).ops[op.name], 2 * storage.page_bytes.value
    assert (cost.stored_reads, cost.stored_read_bytes) == (2, 2 * span_bytes)
    assert (cost.stored_writes, cost.stored_written_bytes) == (2, 2 * span_bytes)
    least_seconds = 2 * sum(
        each.latency_seconds.value + span_bytes / each.bandwidth_bytes_per_second.value
        for each in (storage.read, storage.write)
    )
    assert least_seconds < cost.seconds < least_seconds + 1e-3


@pytest.mark.slow
def test_a_plan_trains_by_row_and_evaluates_what_it_trained(tmp_path: Path) -> None:
    planned = poet.plan(
        module_of(3000), torch.zeros(1, 12, dtype=torch.long), device="rpi4b-xnnpack", ram="1MiB",
        home="storage", loss=LOSS, optimizer=SGD, time_limit_seconds=5.0,
    )  # fmt: skip
    assert op_of(planned.plan.graph)
    planned.save(tmp_path / "p")
    report = verify(tmp_path / "p", module=module_of(3000), steps=2, threads=(1, 2))
    assert [comparison.difference for comparison in report.comparisons] == [None, None]
    eager = Eager(3000)
    with Trainer.open(tmp_path / "p", seed=1, arena="require") as trainer:
        for tokens, targets in batches(3):
            batch = tokens[:1], targets[:1]
            assert trainer.step(*batch).loss == eager.step(*batch)
        eager.module.eval()
        with torch.no_grad():
            loss = F.cross_entropy(eager.module(batch[0]).flatten(0, 1), batch[1].flatten())
        assert trainer.evaluate([batch]).loss == loss.item()
        assert eager.is_in(trainer)


# --- what is refused --------------------------------------------------------------------------


def test_a_strangers_updates_are_refused() -> None:
    graph = by_row().graph
    op = op_of(graph)
    (reader,) = [each for each in graph.ops if each.stored and each is not op]
    update = next(each for each in graph.ops if each.call.target == "poet.sgd")

    def with_ops(**wrong: Op) -> Graph:
        own = {"op": op.name, "reader": reader.name, "update": update.name}
        ops = {own[key]: each for key, each in wrong.items()}
        return replace(graph, ops=tuple(ops.get(each.name, each) for each in graph.ops))

    args, table = op.call.args, Ref(op.stored[0])
    in_ram = replace(update, call=Call("poet.sgd", (update.call.args[0], table, *update.call.args[2:])))
    for wrong, message in (
        ({"reader": replace(reader, repeatable=True)}, "are read from storage, where it may change"),
        ({"update": in_ram}, r"rows of words.weight\[0:96\] are read from storage, where it may change"),
        (
            {"op": replace(op, updates=op.stored[1:])},
            "reads rows from storage, which poet.stored_rows_sgd does not",
        ),
        ({"op": replace(op, call=Call(op.call.target, args[:4]))}, "does not say what rows it reads"),
        (
            {"op": replace(op, call=Call(op.call.target, (*args[:3], Symbol("dtype", "int32"), *args[4:])))},
            "updates rows of 256 bytes in storage that are",
        ),
    ):
        with pytest.raises(GraphError, match=message):
            with_ops(**wrong)
    assert "updates @" in graph.to_text()
