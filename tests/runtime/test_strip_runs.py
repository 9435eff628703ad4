"""Strips: the bits of plain PyTorch under any schedule, chosen by trial, refused by name where it fails."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers.hand_net import write_step
from helpers.part_nets import tiny_strips
from torch import Tensor, nn

from poet.devices.costs import estimate
from poet.devices.load import load_profile
from poet.devices.profile import Profile
from poet.errors import InputError, ReplayError
from poet.frontend.trace import TrainingStep, trace_training_step
from poet.ir.graph import Call, Graph, Link, Op, Ref, Strip
from poet.ir.kernel_facts import KernelFacts, OpFacts
from poet.ir.optimizer import OptimizerSpec
from poet.passes import block_choice, strips
from poet.passes.block_choice import chosen_strips, offered, with_strips
from poet.report.check import strip_lines, strips_data
from poet.report.html.subject import subject_of_plan
from poet.runtime import Trainer
from poet.runtime.data.random_batches import random_batch
from poet.runtime.trials import blocks, trial
from poet.runtime.trials.blocks import Offer


@pytest.fixture(autouse=True)
def _tiny_ones_too() -> Iterator[None]:
    with tiny_strips(LEAST_BYTES=1024):
        yield


MM = "aten.mm.default"


def conv_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 40, 3, padding=1),
        nn.BatchNorm2d(40),
        nn.ReLU(),
        nn.Conv2d(40, 48, 3, bias=False),
        nn.ReLU(),
        nn.ConvTranspose2d(48, 5, 2, bias=False),
        nn.Flatten(),
        nn.Linear(5 * 25, 70),
    ).train()


INPUTS = torch.zeros(2, 3, 6, 6)


def traced(gradients: str = "stream") -> TrainingStep:
    torch.manual_seed(0)
    spec = OptimizerSpec("sgd", lr=0.05, weight_decay=0.01)
    return trace_training_step(conv_net(), INPUTS, loss="cross-entropy", optimizer=spec, gradients=gradients)


def strips_in(graph: Graph) -> list[Strip]:
    return [op.strip for op in graph.ops if op.strip is not None]


def test_a_tapped_step_trains_as_any_other(tmp_path: Path) -> None:
    write_step(tmp_path / "p", traced(), None)
    ends = []
    for tapped in (False, True):
        seen: dict[str, Tensor] = {}

        def tap(name: str, gradient: Tensor, seen: dict[str, Tensor] = seen) -> None:
            seen[name] = gradient.clone()

        with Trainer.open(tmp_path / "p", arena=False) as trainer:
            for number in range(3):
                trainer.step(*random_batch(trainer.plan, number), on_gradient=tap if tapped else None)
            ends.append(trainer.parameters())
    assert {name: tensor.shape for name, tensor in seen.items()} == {
        name: tensor.shape for name, tensor in ends[0].items()
    }
    assert all(torch.equal(tensor, ends[1][name]) for name, tensor in ends[0].items())


@pytest.fixture
def in_two_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine's kernels make of it."""
    monkeypatch.setattr(block_choice, "offer", lambda *_: Offer(2, 1024, 0.0))
    monkeypatch.setattr(block_choice, "is_exact", lambda *_: True)


def test_the_gradient_is_never_whole(in_two_blocks: None) -> None:
    kept, streamed = (traced(gradients=word) for word in ("keep", "stream"))
    assert not strips_in(kept.graph)
    assert kept.digest == streamed.digest  # a saved state fits both
    (product,) = (item for item in strips_in(streamed.graph) if item.links[0].call.target == MM)
    op = next(op for op in streamed.graph.ops if op.strip is product)
    # a block, and its sum with the decayed block of the weight
    assert streamed.kernels.of(op.name).workspace_bytes == 2 * product.block_bytes < 2 * product.whole_bytes
    assert {buffer.name for buffer in streamed.graph.buffers} == {
        buffer.name for buffer in kept.graph.buffers
    } - {value.buffer for item in strips_in(streamed.graph) for value in item.inner}


def test_reports_say_what_runs_in_strips(in_two_blocks: None, tmp_path: Path) -> None:
    plan = write_step(tmp_path / "p", traced(), None)
    found = strips_in(plan.graph)
    (line,) = strip_lines(plan.graph)
    assert line.startswith(f"{len(found)} ops run block by block: ")
    rows = strips_data(plan.graph)
    assert [row["whole_bytes"] for row in rows] == [strip.whole_bytes for strip in found]
    assert all(0 < row["saved_bytes"] == row["whole_bytes"] - row["block_bytes"] for row in rows)
    assert line in subject_of_plan(plan).training
    assert not strip_lines(traced(gradients="keep").graph)


def test_a_block_in_the_cache_is_not_charged_for_its_way_to_ram(in_two_blocks: None) -> None:
    """Alone, the gradient of a product is written and read; in the cache, neither."""
    whole, streamed = (traced(gradients=word).graph for word in ("keep", "stream"))
    profile = load_profile("rpi4b")
    (product,) = (op for op in streamed.ops if op.strip is not None and op.strip.links[0].call.target == MM)
    assert product.strip is not None
    parts = estimate(whole, profile)
    alone = [parts.ops[op.name] for op in whole.ops if op.name in ("7.mm_1", "7.weight.update")]
    without, large, small = (
        estimate(streamed, with_cache(profile, size)).ops[product.name]
        for size in (None, product.strip.block_bytes, product.strip.block_bytes - 1)
    )
    assert len(alone) == 2
    assert without == small
    assert without.bytes_moved == sum(part.bytes_moved for part in alone)
    assert without.flops == sum(part.flops for part in alone)
    overhead = profile.compute.call_overhead_seconds.value
    assert without.seconds == pytest.approx(sum(part.seconds for part in alone) + 2 * overhead)
    assert without.bytes_moved - large.bytes_moved == 2 * product.strip.whole_bytes
    assert large.seconds < without.seconds


def with_cache(profile: Profile, size_bytes: int | None) -> Profile:
    given = None if size_bytes is None else {"value": size_bytes, "kind": "assumed", "source": "a test"}
    data = profile.model_dump(exclude_none=True)
    data["memory"].pop("cache_bytes", None)
    data["memory"] |= {} if given is None else {"cache_bytes": given}
    return Profile.model_validate(data)


def test_without_measuring_nothing_is_run_and_all_gradients_are_kept() -> None:
    assert not strips_in(trace_training_step(conv_net(), INPUTS, measure=False).graph)


def test_gradients_are_streamed_or_kept() -> None:
    with pytest.raises(
        InputError, match="gradients 'streem' is not one of stream, logits, keep; did you mean"
    ):
        traced(gradients="streem")


def lasting(step_seconds: float) -> KernelFacts:
    """What is known of kernels that ask for nothing."""
    return KernelFacts("test", (OpFacts("step", seconds=step_seconds),))


def test_strips_take_no_more_than_their_share_of_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = traced(gradients="keep").graph
    monkeypatch.setattr(block_choice, "ALLOWANCE", 0.02)
    monkeypatch.setattr(blocks, "_seconds_of", lambda _, count: 1e-3 * max(count, 1))
    monkeypatch.setattr(block_choice, "is_exact", lambda *_: True)  # of seconds alone
    offers = [given for _, given in offered(graph, lasting(0.0))]
    assert offers
    assert all(given.block_seconds == pytest.approx(1e-3) for given in offers)
    for blocks_to_pay in (0, 1, 5, 200):
        chosen = chosen_strips(graph, lasting((blocks_to_pay + 0.5) * 1e-3 / block_choice.ALLOWANCE))
        paid = sum(candidate.strip.blocks - 1 for candidate in chosen)
        assert paid <= blocks_to_pay
        assert bool(paid) == bool(blocks_to_pay)
    assert len(chosen) == len(offers)
    assert not strips_in(with_strips(graph, lasting(0.0)))


def test_noise_of_the_clock_does_not_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run may last a seventh longer, and two imports choose the same blocks of the large gradients."""
    graph = traced(gradients="keep").graph
    monkeypatch.setattr(block_choice, "ALLOWANCE", 0.02)
    found = []
    for seed in range(6):
        noise = random.Random(seed)
        monkeypatch.setattr(blocks, "_offers", {})
        monkeypatch.setattr(
            blocks,
            "_seconds_of",
            lambda _, count, noise=noise: (5e-3 + 1e-3 * count) * noise.uniform(1, 1.15),
        )
        chosen = chosen_strips(graph, lasting(noise.uniform(1, 1.1)))
        whole = {candidate.of: candidate.strip.whole_bytes for candidate in chosen}
        largest = max(whole, key=whole.__getitem__)
        counts = {candidate.of: candidate.strip.blocks for candidate in chosen}
        saved = sum(whole[name] * (1 - 1 / count) for name, count in counts.items())
        found.append((largest, counts[largest], saved))
    assert len({(name, count) for name, count, _ in found}) == 1
    assert max(saved for _, _, saved in found) < 1.1 * min(saved for _, _, saved in found)


def test_what_a_smaller_count_does_not_make_exact_is_chosen_again(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = traced(gradients="keep").graph
    monkeypatch.setattr(block_choice, "ALLOWANCE", 0.02)
    monkeypatch.setattr(blocks, "_seconds_of", lambda _, count: 1e-3 * max(count, 1))
    step_seconds = 4.5e-3 / block_choice.ALLOWANCE
    usual = chosen_strips(graph, lasting(step_seconds))
    monkeypatch.setattr(block_choice, "is_exact", lambda strip, *_: strip.blocks != usual[0].strip.blocks)
    other = chosen_strips(graph, lasting(step_seconds))
    assert all(candidate.strip.blocks != usual[0].strip.blocks for candidate in other)


def test_a_trial_without_memory_is_not_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_step(tmp_path / "p", traced(), None)
    monkeypatch.setattr(trial, "available_bytes", lambda: 0.0)
    monkeypatch.setattr(trial, "_exact", {})
    monkeypatch.setattr(blocks, "_offers", {})
    assert not strips_in(traced().graph)
    Trainer.open(tmp_path / "p", arena=False).close()
    assert "forms of ops were not tried" in caplog.text


@pytest.mark.slow
def test_trials_leave_torch_as_it_was() -> None:
    torch.set_num_threads(2)
    graph = traced(gradients="keep").graph
    torch.manual_seed(4)
    expected = torch.rand(1)
    torch.manual_seed(4)
    assert strips_in(with_strips(graph, lasting(1.0)))
    assert torch.equal(torch.rand(1), expected)
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(
    ("gives", "message"), [("a running sum", "gives other bits here"), ("another shape", "cannot run here")]
)
def test_a_strip_that_is_not_exact_is_refused_by_name(
    gives: str, message: str, in_two_blocks: None, tmp_path: Path
) -> None:
    """A running sum over what is cut starts anew in each block; torch refuses operands that do not fit."""
    step = traced()

    def wrong(op: Op) -> Op:
        if op.strip is None or op.strip.links[0].call.target != MM:
            return op
        (value, first, update) = (op.strip.inner[0], op.strip.links[0], op.strip.links[-1])
        if gives == "a running sum":
            call = Call("aten.cumsum.default", (update.call.args[0], 0))
            links: tuple[Link, ...] = (Link(call, (value.name,), ((0, 0),), ((0, 0),)), update)
        else:
            call = Call(first.call.target, (first.call.args[0], Ref("input")))
            links = (replace(first, call=call), *op.strip.links[1:])
        strip = replace(op.strip, links=links)
        return replace(op, strip=strip, call=strip.call)

    graph = replace(step.graph, ops=tuple(map(wrong, step.graph.ops)))
    write_step(tmp_path / "p", replace(step, graph=graph), None)
    with pytest.raises(ReplayError, match=rf"op 7\.weight\.update in \d+ blocks {message}"):
        Trainer.open(tmp_path / "p")


@pytest.mark.parametrize("threads", [1, 2])
def test_a_busy_machine_makes_no_blocks_free(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the wall's clock others' time counts, and comes to whole runs as often as to those in blocks."""
    step = traced("keep")
    ways = next(iter(strips.gradient_candidates(step.graph)))
    strip, outputs = ways[0].strip, ways[0].outputs
    torch.set_num_threads(threads)
    bench = blocks.StripBench(strip, outputs, {value.name: value for value in step.graph.values})
    others = iter([9.0, 0.0, 9.0, 0.0, 0.0, 9.0] + [0.0] * 40)  # first and third whole run are held up

    def seconds_of(run: Callable[[int], object], count: int) -> float:
        run(count)
        own_seconds = 1.0 if count == blocks.WHOLE else 1.5
        return own_seconds + (next(others) if threads > 1 else 0.0)

    monkeypatch.setattr(blocks, "_seconds_of", seconds_of)
    assert bench.slowdown_seconds(2) == pytest.approx(0.5)
