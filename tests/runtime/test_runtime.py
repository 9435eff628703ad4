"""The trainer: any valid schedule gives the bits of plain PyTorch, and errors leave a known state."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from helpers import hand_net
from helpers.failing_pages import fail_write
from helpers.nets import small_net
from helpers.pace import with_slow
from helpers.schedules import keep_everything, random_schedule
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from poet.errors import InputError, PageFileError, PlanError, ReplayError
from poet.frontend.trace import TrainingStep, trace_training_step
from poet.ir.graph import Graph
from poet.ir.optimizer import OptimizerSpec
from poet.plans.plan_file import write_plan
from poet.plans.training_plan import Plan
from poet.problem.schedule import Compute, PageIn, PageOut
from poet.runtime import Trainer, native
from poet.runtime.data.random_batches import random_batch
from poet.runtime.storage.page_file import PageFile
from poet.runtime.storage.state import raw_tensor
from poet.runtime.system.memory import PeakMeter, return_freed_memory
from poet.verification import verify

ROOT = Path(__file__).parents[2]


@cache
def traced(optimizer: str) -> TrainingStep:
    spec = OptimizerSpec(optimizer, lr=0.05, weight_decay=0.01)
    return trace_training_step(small_net(), torch.zeros(6, 2, 8, 8), optimizer=spec, measure=False)


def write_small(
    path: Path, optimizer: str, seed: int, *, share: float, in_storage: bool = False, slack: float = 0.0
) -> Plan:
    return hand_net.write_step(path, traced(optimizer), seed, share=share, in_storage=in_storage, slack=slack)


# --- exactness --------------------------------------------------------------------------------


any_schedule = given(
    optimizer=st.sampled_from(["sgd", "momentum", "adamw"]),
    seed=st.integers(0, 10**6),
    share=st.sampled_from([0.0, 0.1, 0.5, 0.9]),
    in_storage=st.booleans(),
    threads=st.sampled_from([1, 2]),
)
few = settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@few
@any_schedule
def test_any_valid_schedule_gives_the_bits_of_plain_pytorch(
    tmp_path: Path, optimizer: str, seed: int, share: float, in_storage: bool, threads: int
) -> None:
    assert_exact(tmp_path / "net.poet", optimizer, seed, share=share, in_storage=in_storage, threads=threads)


def assert_exact(
    path: Path, optimizer: str, seed: int, *, share: float, in_storage: bool, threads: int
) -> None:
    write_small(path, optimizer, seed, share=share, in_storage=in_storage)
    report = verify(path, module=small_net(), steps=3, threads=(threads,), seed=seed)
    report.require()
    assert report.comparisons[0].tensors >= 3 * (1 + 1 + 6 + 9)  # loss, output, gradients, state


def test_the_trainer_pages_what_the_plan_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that kept everything would pass the tests above."""
    plan = write_small(tmp_path / "p", "sgd", 1, share=0.9)
    moved: list[str] = []
    with Trainer.open(tmp_path / "p") as trainer:
        pages = trainer.page_file
        assert pages is not None
        for word, method in (("out", "write"), ("in", "read_into")):
            monkeypatch.setattr(pages, method, partial(_noted, moved, word, getattr(pages, method)))
        (images,), classes = random_batch(plan, 0)
        trainer.step(images, classes)
    assert moved == [
        f"{'out' if isinstance(step, PageOut) else 'in'} {step.tensor}"
        for step in plan.schedule
        if isinstance(step, PageIn | PageOut)
    ]


def _noted(
    moved: list[str], word: str, transfer: Callable[[str, memoryview], None], tensor: str, data: memoryview
) -> None:
    moved.append(f"{word} {tensor}")
    transfer(tensor, data)


# --- what a step takes and leaves alone -------------------------------------------------------


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[Trainer]:
    of = hand_net.problem(hand_net.graph())
    hand_net.write(tmp_path / "net.poet", random_schedule(of, 5))
    with Trainer.open(tmp_path / "net.poet") as trainer:
        yield trainer


def test_inputs_are_copied(trainer: Trainer) -> None:
    x, y = hand_net.batch(0)
    copies = x.clone(), y.clone()
    trainer.step(x, y)
    assert torch.equal(x, copies[0])
    assert torch.equal(y, copies[1])


def test_what_is_handed_out_is_not_the_trainers(trainer: Trainer) -> None:
    before = trainer.parameters()
    for tensor in trainer.parameters().values():
        tensor.fill_(7.0)
    assert all(torch.equal(tensor, before[name]) for name, tensor in trainer.parameters().items())


def test_between_steps_only_what_lives_across_steps_is_held(trainer: Trainer) -> None:
    trainer.step(*hand_net.batch(0))
    held = {name for name in trainer._tensors.cells.of_buffer if trainer._tensors.cells.holds(name)}
    assert held == trainer.plan.graph.persistent()


@pytest.mark.parametrize(
    ("inputs", "targets", "message"),
    [
        (torch.zeros(8, 63), torch.zeros(8, 64), r"x is float32\[8,63\], the plan takes float32\[8,64\]"),
        (torch.zeros(8, 64, dtype=torch.float64), torch.zeros(8, 64), r"x is float64\[8,64\]"),
        (torch.zeros(8, 64), None, "1 tensors were given, the plan takes 2: x, y"),
        ([torch.zeros(8, 64)] * 2, torch.zeros(8, 64), "3 tensors were given"),
    ],
)
def test_wrong_inputs_change_nothing(
    trainer: Trainer, inputs: Tensor | list[Tensor], targets: Tensor | None, message: str
) -> None:
    before = trainer.parameters()
    with pytest.raises(InputError, match=message):
        trainer.step(inputs, targets)
    assert all(torch.equal(tensor, before[name]) for name, tensor in trainer.parameters().items())
    trainer.step(*hand_net.batch(0))


def test_the_learning_rate_can_be_set_and_changed(tmp_path: Path) -> None:
    hand_net.write(tmp_path / "net.poet")
    x, y = hand_net.batch(0)
    module = hand_net.net()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    with Trainer.open(tmp_path / "net.poet", learning_rate=0.5) as trainer:
        for rate in (0.5, 0.25):
            trainer.learning_rate = optimizer.param_groups[0]["lr"] = rate
            trainer.step(x, y)
            optimizer.zero_grad()
            nn.functional.mse_loss(module(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        assert torch.equal(trainer.parameters()["first.weight"], module.first.weight)
    with pytest.raises(InputError, match="lr is -1"):
        Trainer.open(tmp_path / "net.poet", learning_rate=-1.0)


def test_dropout_follows_the_seed_and_leaves_the_process_generator_alone(tmp_path: Path) -> None:
    plan = write_small(tmp_path / "p", "sgd", 0, share=0.0)
    (images,), classes = random_batch(plan, 0)

    def losses(seed: int | None) -> list[float]:
        with Trainer.open(tmp_path / "p", seed=seed) as trainer:
            return [trainer.step(images, classes).loss for _ in range(2)]

    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    first = losses(7)
    assert torch.equal(torch.rand(1), expected)
    assert losses(7) == first != losses(8)
    torch.manual_seed(7)
    assert losses(None) == first


# --- save and resume --------------------------------------------------------------------------


@pytest.mark.parametrize(("optimizer", "in_storage"), [("sgd", True), ("momentum", False), ("adamw", True)])
def test_resuming_goes_on_bit_for_bit(optimizer: str, in_storage: bool, tmp_path: Path) -> None:
    plan = write_small(tmp_path / "p", optimizer, 2, share=0.4, in_storage=in_storage)
    replanned = write_small(tmp_path / "q", optimizer, 3, share=0.1)
    assert plan.schedule != replanned.schedule
    batches = [random_batch(plan, number) for number in range(4)]

    def train(trainer: Trainer, which: list[int]) -> dict[str, Tensor]:
        for number in which:
            (images,), classes = batches[number]
            trainer.step(images, classes)
        return trainer.state_dict()

    with Trainer.open(tmp_path / "p", seed=3) as trainer:
        expected = train(trainer, [0, 1, 2, 3])
    with Trainer.open(tmp_path / "p", seed=3) as trainer:
        train(trainer, [0, 1])
        trainer.save(tmp_path / "state")
    for path in ("p", "q"):
        with Trainer.open(tmp_path / path, resume=tmp_path / "state") as trainer:
            assert trainer.steps == 2
            found = train(trainer, [2, 3])
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_a_saved_state_has_the_modules_names(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    write_small(tmp_path / "p", "momentum", 0, share=0.0)
    with Trainer.open(tmp_path / "p", seed=0) as trainer:
        trainer.save(tmp_path / "state")
    stored = load_file(tmp_path / "state")
    names = small_net().state_dict().keys()
    assert names <= stored.keys()
    assert {name.split("/")[0] for name in stored.keys() - names} == {"optimizer", "poet.random_state"}


def test_a_state_of_something_else_is_refused(tmp_path: Path) -> None:
    plan = hand_net.write(tmp_path / "p")
    with Trainer.open(tmp_path / "p") as trainer:
        trainer.save(tmp_path / "state")
    other = replace(plan, model=replace(plan.model, sha256="1" * 64))
    write_plan(tmp_path / "q", other, hand_net.stored(hand_net.net()))
    adam = replace(plan, optimizer=OptimizerSpec("momentum"))
    write_plan(tmp_path / "r", adam, hand_net.stored(hand_net.net()))
    for path, message in (("q", "another model"), ("r", "another optimizer")):
        with pytest.raises(PlanError, match=message):
            Trainer.open(tmp_path / path, resume=tmp_path / "state")
    with pytest.raises(PlanError, match="not a saved training state"):
        Trainer.open(tmp_path / "p", resume=tmp_path / "p")
    content = bytearray((tmp_path / "state").read_bytes())
    content[-5] ^= 1
    (tmp_path / "state").write_bytes(content)
    with pytest.raises(PlanError, match="its tensors are damaged"):
        Trainer.open(tmp_path / "p", resume=tmp_path / "state")


# --- failures ---------------------------------------------------------------------------------


@pytest.mark.parametrize("in_storage", [False, True])
def test_a_failure_before_the_first_update_leaves_the_last_step(
    in_storage: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = hand_net.problem(hand_net.graph(), parameters_in_storage=in_storage)
    plan = hand_net.write(tmp_path / "p", random_schedule(of, 7), parameters_in_storage=in_storage)
    updates = {op.name for op in plan.graph.ops if op.updates}
    first_update = next(
        at for at, s in enumerate(plan.schedule) if isinstance(s, Compute) and s.op in updates
    )
    writes = sum(isinstance(step, PageOut) for step in plan.schedule[:first_update])
    assert writes >= 3
    batches = [hand_net.batch(number) for number in range(2)]
    with Trainer.open(tmp_path / "p") as trainer:
        trainer.step(*batches[0])
        trainer.step(*batches[1])
        expected = trainer.parameters()
    for number in range(writes):
        with Trainer.open(tmp_path / "p") as trainer, monkeypatch.context() as patched:
            trainer.step(*batches[0])
            committed = trainer.parameters()
            fail_write(trainer, number, patched)
            with pytest.raises(PageFileError, match="Input/output error"):
                trainer.step(*batches[1])
            found = trainer.parameters()
            assert all(torch.equal(found[name], tensor) for name, tensor in committed.items())
            patched.undo()
            trainer.step(*batches[1])
            found = trainer.parameters()
            assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_a_failure_after_an_update_ends_the_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of = hand_net.problem(hand_net.graph())
    plan = hand_net.write(tmp_path / "p", random_schedule(of, 7))
    writes = sum(isinstance(step, PageOut) for step in plan.schedule)
    with Trainer.open(tmp_path / "p") as trainer:
        fail_write(trainer, writes - 1, monkeypatch)
        with pytest.raises(PageFileError):
            trainer.step(*hand_net.batch(0))
        for use in (lambda: trainer.step(*hand_net.batch(0)), trainer.parameters, trainer.state_dict):
            with pytest.raises(ReplayError, match=r"failed halfway .* reopen it with resume="):
                use()
        with pytest.raises(ReplayError, match="failed halfway"):
            trainer.save(tmp_path / "state")
    assert not (tmp_path / "state").exists()


def test_an_error_of_the_gradient_tap_is_passed_on(trainer: Trainer) -> None:
    def tap(name: str, gradient: Tensor) -> None:
        raise KeyError(name)

    before = trainer.parameters()
    with pytest.raises(KeyError):
        trainer.step(*hand_net.batch(0), on_gradient=tap)
    assert all(torch.equal(tensor, before[name]) for name, tensor in trainer.parameters().items())


def test_a_closed_trainer_says_so(trainer: Trainer) -> None:
    trainer.close()
    trainer.close()
    with pytest.raises(ReplayError, match="it is closed"):
        trainer.step(*hand_net.batch(0))


def _with_type(graph: Graph, value: str, **changes: object) -> Graph:
    values = tuple(
        replace(item, type=replace(item.type, **changes)) if item.name == value else item  # type: ignore[arg-type]
        for item in graph.values
    )
    return replace(graph, values=values)


def test_a_plan_that_is_wrong_about_a_result_is_stopped(tmp_path: Path) -> None:
    what = _with_type(hand_net.graph(), "h", shape=(64, 8), strides=(8, 1))
    of = hand_net.problem(what)
    write_plan(tmp_path / "p", hand_net.plan(of, what, keep_everything(of)), hand_net.stored(hand_net.net()))
    with (
        Trainer.open(tmp_path / "p") as trainer,
        pytest.raises(ReplayError, match=r"op_h: h came out as .*\[8, 64\].* the plan says float32\[64,8\]"),
    ):
        trainer.step(*hand_net.batch(0))


def test_an_op_that_torch_refuses_is_named(tmp_path: Path) -> None:
    what = hand_net.graph()
    ops = tuple(
        replace(op, call=replace(op.call, args=op.call.args[::-1])) if op.name == "op_gh" else op
        for op in what.ops
    )
    what = replace(what, ops=ops)
    of = hand_net.problem(what)
    write_plan(tmp_path / "p", hand_net.plan(of, what, keep_everything(of)), hand_net.stored(hand_net.net()))
    with (
        Trainer.open(tmp_path / "p") as trainer,
        pytest.raises(ReplayError, match="step 1 failed at running op_gh: mat1 and mat2") as error,
    ):
        trainer.step(*hand_net.batch(0))
    assert "\n" not in str(error.value)


# --- memory -----------------------------------------------------------------------------------

_MEASURE = """
import sys, torch
torch.set_num_threads(1)
from poet.runtime import Trainer, native
with Trainer.open(sys.argv[1]) as trainer:
    batch = [torch.zeros(kind.shape, dtype=getattr(torch, kind.dtype)) for kind in trainer.input_types]
    for _ in range(2):
        trainer.step(*batch)
    with trainer.peak_meter() as meter:
        for _ in range(3):
            trainer.step(*batch)
    print(meter.peak.bytes)
"""


@pytest.mark.slow
@pytest.mark.skipif(not return_freed_memory(), reason="needs glibc")
@pytest.mark.parametrize("share", with_slow([0.0, 0.3], {0.0}))
def test_the_measured_peak_is_the_predicted_one(share: float, tmp_path: Path) -> None:
    layers = [layer for _ in range(6) for layer in (nn.Linear(512, 512), nn.Tanh())]
    step = trace_training_step(nn.Sequential(*layers), torch.zeros(2048, 512))
    of = hand_net.problem(step.graph)
    plan = hand_net.plan(of, step.graph, random_schedule(of, 1, share=share), loss="cross-entropy")
    write_plan(tmp_path / "p", plan, {name: raw_tensor(tensor) for name, tensor in step.tensors.items()})
    command = [sys.executable, "-c", _MEASURE, str(tmp_path / "p")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    predicted_bytes = plan.prediction.peak_ram_bytes + plan.page_buffer_bytes
    assert int(done.stdout) == pytest.approx(predicted_bytes, rel=0.05, abs=1 << 20)


needs_native = pytest.mark.skipif(not native.available(), reason="needs a C++ compiler")


@needs_native
def test_an_arena_that_does_not_fit_is_not_used(tmp_path: Path) -> None:
    """A batch of 3 leaves gaps between tensors, which a budget without slack has no room for."""
    write_small(tmp_path / "p", "sgd", 0, share=0.0)
    with Trainer.open(tmp_path / "p", arena=True) as trainer:
        for number in range(5):
            trainer.step(*random_batch(trainer.plan, number))
        assert re.fullmatch(
            r"heap: the arena would take .* KiB, the budget leaves .* KiB; .*", trainer.memory
        )


@pytest.mark.slow
@needs_native
def test_only_one_trainer_has_the_arena(tmp_path: Path) -> None:
    write_small(tmp_path / "p", "sgd", 0, share=0.0, slack=1.0)
    first = Trainer.open(tmp_path / "p", arena=True, seed=0)
    second = Trainer.open(tmp_path / "p", arena=True, seed=0)
    with first as one, second as other:
        for trainer in (one, other):
            for number in range(5):
                trainer.step(*random_batch(trainer.plan, number))
        assert one.memory.startswith("arena of")
        assert other.memory.startswith("heap: ")
        assert all(torch.equal(tensor, other.parameters()[name]) for name, tensor in one.parameters().items())


def test_without_proc_nothing_is_measured(tmp_path: Path) -> None:
    with PeakMeter(0, process=tmp_path) as meter:
        pass
    assert meter.peak.bytes is None
    assert str(meter.peak) == "not measured"


def test_the_page_file_is_where_it_was_asked_for(tmp_path: Path) -> None:
    of = hand_net.problem(hand_net.graph())
    hand_net.write(tmp_path / "p", random_schedule(of, 5))
    pages = tmp_path / "pages"
    with Trainer.open(tmp_path / "p", page_file=pages) as trainer:
        assert isinstance(trainer.page_file, PageFile)
        assert pages.exists()
        trainer.step(*hand_net.batch(0))
    assert not pages.exists()
    hand_net.write(tmp_path / "p")
    with Trainer.open(tmp_path / "p", page_file=pages) as trainer:
        assert trainer.page_file is None
    assert not pages.exists()


@pytest.mark.parametrize("value", ["x", "first.bias"])
def test_what_is_filled_may_not_overlap_itself(value: str, tmp_path: Path) -> None:
    what = _with_type(hand_net.graph(), value, strides=(0, 1) if value == "x" else (0,))
    of = hand_net.problem(what)
    write_plan(tmp_path / "p", hand_net.plan(of, what, keep_everything(of)), hand_net.stored(hand_net.net()))
    with pytest.raises(PlanError, match=f"{value}(, which)? is .* its elements overlap"):
        Trainer.open(tmp_path / "p")
