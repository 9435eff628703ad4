"""Frozen tables, read row by row where they lie in storage: the bits, who chooses so, what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from helpers.part_nets import needs_equal_sums, tiny_parts, write
from helpers.row_net import InRam, Words
from torch import nn
from torch.nn import functional as F
from zoo.decoder import ADAPTERS, Decoder

import poet
from poet.devices.costs import estimate
from poet.devices.load import load_profile
from poet.errors import GraphError, InputError, ProfileError, ReplayError
from poet.frontend.trace import TrainingStep, trace_training_step
from poet.ir.graph import Call, Graph, Op, Ref, Symbol, stored_row_bytes
from poet.ir.named import bounds_of
from poet.ir.optimizer import OptimizerSpec
from poet.passes.rewrite import Technique
from poet.passes.stored_rows import row_reads
from poet.planning.prepared import Prepared, prepare
from poet.planning.step_search import offered, solve_choosing, with_choice
from poet.problem import Limits, Place, Problem, ProblemOp, Transfer
from poet.problem import Tensor as Held
from poet.problem.solution import SolveOptions, Status
from poet.report.check import row_lines
from poet.runtime import Trainer
from poet.runtime.kernels import kernel, tables
from poet.runtime.storage.page_file import PageFile
from poet.solvers import solve


@pytest.fixture(autouse=True)
def _tiny_ones_too(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with tiny_parts(monkeypatch):
        yield


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[str, ...]]] = {
    "looked": (partial(Words, twice=True), ("mix*", "head*")),
    "decoder": (
        partial(Decoder, layers=1, width=64, heads=4, shared_heads=2, inner=96, words=500, length=12, rank=2),
        ADAPTERS,
    ),
}
LOSS = "cross-entropy:dim=-1"


def module_of(name: str) -> nn.Module:
    torch.manual_seed(0)
    return NETS[name][0]()


@cache
def traced(name: str) -> TrainingStep:
    return trace_training_step(
        module_of(name),
        torch.zeros(2, 12, dtype=torch.long),
        loss=LOSS,
        optimizer=OptimizerSpec("momentum", lr=0.05),
        train=NETS[name][1],
        in_parts=True,
    )


def by_row(name: str) -> TrainingStep:
    step = traced(name)
    assert step.forms is not None
    taken = step.forms.of(Technique.STORED_ROWS)
    return replace(step, graph=step.forms.graph(taken), kernels=step.forms.kernels(taken), forms=None)


def readers(graph: Graph) -> list[Op]:
    return [op for op in graph.ops if op.stored]


def part_of(step: TrainingStep, row: int) -> list[tuple[str, int]]:
    """The part of the step's only table that ``row`` is in, and that part's first row."""
    (whole,) = step.graph.wholes
    bounds = bounds_of(step.graph, whole)
    return [
        (name, start) for name, (start, stop) in zip(whole.parts, bounds, strict=True) if start <= row < stop
    ]


# --- the kernel -------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (0,), (9,), (3, 7), (2, 3, 2)])
@pytest.mark.parametrize("element", [torch.float32, torch.bfloat16])
def test_rows_in_storage_give_what_an_embedding_gives(shape: tuple[int, ...], element: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(20, 8, generator=generator).to(element)
    numbers = torch.randint(20, shape, generator=generator)
    stored = InRam(table)
    made = tables.stored_rows(stored, numbers, 20, 8, element)
    assert torch.equal(made, F.embedding(numbers, table))
    assert sorted(stored.asked) == sorted(set(numbers.flatten().tolist()))  # each row once
    strided = torch.randint(20, (6, 4), generator=generator).T[1:]
    assert torch.equal(tables.stored_rows(stored, strided, 20, 8, element), F.embedding(strided, table))
    for wrong in (-1, 20):
        with pytest.raises(IndexError, match="index out of range"):
            tables.stored_rows(stored, torch.tensor([1, wrong]), 20, 8, element)


def test_without_a_page_file_no_row_is_read() -> None:
    with pytest.raises(ReplayError, match="row 3 of a table in storage is read where no page file is open"):
        kernel("poet.stored_rows")(torch.tensor([3]), 20, 8, torch.float32)


# --- bits -------------------------------------------------------------------------------------


def test_repeated_and_padded_rows_are_read_where_the_plan_file_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = by_row("looked")
    write(tmp_path / "p", step, seed=None)
    asked, fetched = list[tuple[str, int]](), set[str]()
    read_row, read_into = PageFile.read_row, PageFile.read_into

    def noted_row(pages: PageFile, tensor: str, row: int, target: memoryview) -> None:
        asked.append((tensor, row))
        read_row(pages, tensor, row, target)

    def noted(pages: PageFile, tensor: str, target: memoryview) -> None:
        fetched.add(tensor)
        read_into(pages, tensor, target)

    monkeypatch.setattr(PageFile, "read_row", noted_row)
    monkeypatch.setattr(PageFile, "read_into", noted)
    tokens = torch.tensor([[3, 3, 191, 192, 499, 0, 3, 5, 5, 5, 5, 5]] * 2)
    targets = torch.arange(24).reshape(2, 12) % 7
    module = module_of("looked")
    module.get_parameter("words.weight").requires_grad_(False)
    optimizer = torch.optim.SGD((p for p in module.parameters() if p.requires_grad), lr=0.05, momentum=0.9)
    with Trainer.open(tmp_path / "p", seed=1) as trainer:
        for _ in range(2):
            asked.clear()
            loss = F.cross_entropy(module(tokens).flatten(0, 1), targets.flatten())
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            assert trainer.step(tokens, targets).loss == loss.item()
        rows = [(name, row - start) for row in (3, 191, 192, 499, 0, 5) for name, start in part_of(step, row)]
        assert len({name for name, _ in rows}) > 2
        assert asked[:6] == rows
        assert sorted(asked) == sorted(rows * 2)  # each look-up reads each row once
        assert fetched.isdisjoint(step.graph.wholes[0].parts)
        with pytest.raises(InputError, match=r"holds 500; the rows of its table are 0 to 499"):
            trainer.step(torch.full((2, 12), 500), targets)
        trained = trainer.state_dict()
    assert all(torch.equal(trained[key], item) for key, item in module.named_parameters())


# --- who chooses so ---------------------------------------------------------------------------


def prepared(name: str, home: Place = Place.STORAGE, device: str = "rpi4b-xnnpack") -> Prepared:
    batch = torch.zeros(1, 2, dtype=torch.long) if name == "looked" else torch.zeros(1, 12, dtype=torch.long)
    module = Words(3000, twice=True) if name == "looked" else module_of(name)
    return prepare(module, batch, device=device, loss=LOSS, train=NETS[name][1], home=home)


def test_a_table_that_is_only_looked_up_is_read_by_row_whatever_ram_there_is() -> None:
    of = prepared("looked")
    for ram_bytes in (None, 1 << 20):
        limits, options = Limits(ram_budget_bytes=ram_bytes), SolveOptions(time_limit_seconds=3.0)
        chosen, solution = solve_choosing(of, limits, options)
        whole = solve(of.problem, limits, options)
        assert solution.trace is not None
        assert whole.trace is not None
        assert len(readers(chosen.step.graph)) == 2
        assert solution.trace.joules < whole.trace.joules
        table_bytes = 3000 * 64 * 4
        assert whole.trace.read_bytes - solution.trace.read_bytes > table_bytes - 5 * 8192
        assert ram_bytes is not None or solution.status is Status.OPTIMAL
        assert (
            "2 look-ups read rows where the table lies in storage: at most 4 of them, 1 KiB of 750 KiB"
            in (row_lines(chosen.step.graph)[0])
        )


@needs_equal_sums
def test_a_shared_table_is_fetched_where_it_stays_in_ram_anyway() -> None:
    of = prepared("decoder")
    problem = offered(of, Limits())
    (read,) = [each for each in problem.alternatives if any(op.stored for op in each.ops)]
    assert [len(op.stored) for op in read.ops] == [3]
    assert len(read.omits) == 2
    chosen, solution = solve_choosing(of, Limits(), SolveOptions(time_limit_seconds=5.0))
    assert not readers(chosen.step.graph)
    assert solution.status is Status.OPTIMAL


def test_rows_are_offered_only_where_they_may_be_read() -> None:
    def offers(of: Prepared, limits: Limits) -> bool:
        return any(op.stored for each in offered(of, limits).alternatives for op in each.ops)

    of = prepared("looked")
    either = prepared("looked", Place.EITHER)
    assert offers(of, Limits())
    assert offers(of, Limits(paging=False))
    assert offers(either, Limits())
    assert not offers(either, Limits(paging=False))
    assert not offers(prepared("looked", Place.RAM), Limits())
    assert not offers(prepared("looked", device="pixel"), Limits())  # storage works in the background
    assert row_reads(of.step.graph)
    assert not row_reads(of.step.graph, others=[op.name for op in of.step.graph.ops])


def test_a_row_costs_a_read_of_the_pages_that_it_may_lie_in() -> None:
    of, profile = prepared("looked"), load_profile("rpi4b-xnnpack")
    chosen = with_choice(of, [each.name for each in offered(of, Limits()).alternatives])
    op = readers(chosen.step.graph)[0]
    cost = estimate(chosen.step.graph, profile).ops[op.name]
    assert profile.storage is not None
    page_bytes, read = profile.storage.page_bytes.value, profile.storage.read
    assert cost.stored_read_bytes == 2 * 2 * page_bytes  # two numbers, each perhaps across two pages
    each_seconds = read.latency_seconds.value + 2 * page_bytes / read.bandwidth_bytes_per_second.value
    assert 2 * each_seconds < cost.seconds < 2 * each_seconds + 1e-3
    with pytest.raises(ProfileError, match=r"has no storage for op .* to read rows from; plan again"):
        estimate(chosen.step.graph, profile.model_copy(update={"storage": None}))


@pytest.mark.parametrize(("is_shared", "row_joules"), [(True, 0.5), (True, 5.0), (False, 0.5), (False, 5.0)])
def test_no_choice_takes_less_than_the_sum_that_bounds_all(is_shared: bool, row_joules: float) -> None:
    page = Transfer(1.0, 1.0)
    of = Problem(
        "table",
        (
            Held("n", 4), Held("t", 100, page, page, initially=Place.STORAGE), Held("a", 4), Held("b", 4),
            Held("w", 10, page, page, initially=Place.STORAGE, finally_=Place.STORAGE),
        ),
        (
            ProblemOp("look", ("n", "t"), ("a",), 1.0, 1.0),
            ProblemOp("use", ("a", "t") if is_shared else ("a",), ("b",), 1.0, 1.0),
            ProblemOp("update", ("b", "w"), (), 1.0, 1.0, updates=("w",), recomputable=False),
        ),
        idle_watts=1.0,
    )  # fmt: skip
    other = ProblemOp("look", ("n",), ("a",), 1.0, row_joules, stored=("t",), stored_read_bytes=8)
    of = replace(of, alternatives=(poet.problem.Alternative("rows", (other,)),))
    amounts = []
    for taken in ((), ("rows",)):
        trace = solve(of.resolved(taken), Limits()).trace
        assert trace is not None
        amounts.append(trace.joules)
    answer = solve(of, Limits())
    assert answer.trace is not None
    assert answer.status is Status.OPTIMAL
    assert answer.trace.joules == pytest.approx(min(amounts))


# --- what is refused --------------------------------------------------------------------------


def test_a_strangers_rows_are_refused() -> None:
    graph = by_row("looked").graph
    (op, _), names = readers(graph), [item.name for item in graph.ops]

    def with_op(wrong: Op) -> Graph:
        return replace(graph, ops=tuple(wrong if item is op else item for item in graph.ops))

    numbers, count, width, element = op.call.args
    assert stored_row_bytes(graph) == dict.fromkeys(op.stored, 256)
    for wrong, message in (
        (replace(op, stored=()), "does not read rows of 256 bytes of a table of 500"),
        (replace(op, stored=op.stored[:2]), "does not read rows of 256 bytes of a table of 500"),
        (replace(op, stored=("nothing",)), "rows of nothing are read from storage, where it may change"),
        (replace(op, stored=("mix.weight",)), "rows of mix.weight are read from storage"),
        (_called(op, numbers, count, 63, element), "does not read rows of 252 bytes"),
        (_called(op, numbers, 0, width, element), "does not say what rows it reads"),
        (_called(op, numbers, count, width), "does not say what rows it reads"),
        (_called(op, numbers, count, width, Symbol("dtype", "object")), "does not say what rows it reads"),
        (
            replace(op, call=Call("aten.neg.default", (numbers,))),
            r"reads rows from storage, which aten\.neg\.default does not",
        ),
    ):
        with pytest.raises(GraphError, match=message):
            with_op(wrong)
    assert isinstance(numbers, Ref)
    assert op.name in names
    assert f"reads rows of @{op.stored[0]} in storage" in graph.to_text()


def _called(op: Op, *args: object) -> Op:
    return replace(op, call=Call(op.call.target, args))  # type: ignore[arg-type]
