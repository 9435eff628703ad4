"""What trials of strips showed, kept from one process to the next."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from helpers.part_nets import tiny_strips
from torch import nn
from torch import zeros as torch_zeros

from poet.frontend.trace import TrainingStep, trace_training_step
from poet.ir.calls import Blank, Call, TensorType
from poet.ir.kernel_facts import KernelFacts, OpFacts
from poet.ir.wholes import Axis, PartedCall
from poet.passes import block_choice, strips
from poet.passes.strips import gradient_candidates
from poet.runtime.system.process import likely_thread_counts
from poet.runtime.trials import blocks, forms, trial


@pytest.fixture(autouse=True)
def _kept_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(trial, "cache_folder", lambda: tmp_path / "poet")
    monkeypatch.delenv(trial.VARIABLE, raising=False)
    with tiny_strips(LEAST_BYTES=1024):
        yield


def another_process(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(blocks, "_offers", {})
    patch.setattr(trial, "_exact", {})


def traced() -> TrainingStep:
    return trace_training_step(nn.Sequential(nn.Linear(40, 48), nn.Linear(48, 32)), torch_zeros(2, 40))


def in_strips(step: TrainingStep) -> dict[str, int]:
    return {op.name: op.strip.blocks for op in step.graph.ops if op.strip is not None}


def no_trial(*_: object) -> bool:
    raise AssertionError("a trial is made")


def test_another_process_tries_nothing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    first = in_strips(traced())
    assert first
    another_process(monkeypatch)
    monkeypatch.setattr(blocks.StripBench, "__init__", no_trial)
    assert in_strips(traced()) == first


def test_so_it_does_with_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    type_ = TensorType("float32", (8, 4), (4, 1))
    call = Call("aten.mm.default", (Blank(TensorType("float32", (2, 8), (8, 1))), Blank(type_)))
    parted, bounds = PartedCall(call, Axis.SUM), ((0, 4), (4, 8))
    tried: list[bool] = []

    def tries(*_: object) -> bool:
        tried.append(True)
        return True

    monkeypatch.setattr(forms, "_try_parts", tries)
    for _ in range(2):  # processes
        monkeypatch.setattr(trial, "_exact", {})
        with trial.recalled():
            assert forms.is_exact_in_parts(parted, bounds)
    once = len(tried)
    assert once == len(likely_thread_counts())
    monkeypatch.setattr(trial, "_exact", {})
    assert forms.is_exact_in_parts(parted, bounds)  # nothing is recalled here
    assert len(tried) == 2 * once


def test_who_trains_tries_again_whatever_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    traced()
    another_process(monkeypatch)
    step = traced()
    monkeypatch.setattr(blocks.StripBench, "is_exact", no_trial)
    with pytest.raises(AssertionError, match="a trial is made"):
        forms.check_exact(step.graph)


@pytest.mark.parametrize("said", ["{", "[]", '{"format": "poet-trials-1"}', '{"format": 2, "found": {}}'])
def test_a_file_that_is_none_of_ours_says_nothing(said: str, tmp_path: Path) -> None:
    trial.remember({"a": True})
    assert trial.known() == {"a": True}
    (path,) = (tmp_path / "poet" / "trials").iterdir()
    path.write_text(said)
    assert trial.known() == {}
    trial.remember({"b": False})
    assert trial.known() == {"b": False}


def test_an_offer_that_cannot_be_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for told in (True, [1, 2], [16, 5, math.inf], [3, 5, 0.1], [16, 5, -1.0], [32, 5, 0.1], "[]"):
        assert not blocks._is_offer(told, blocks.BLOCK_COUNTS), told
    assert blocks._is_offer([16, 5, 0.1], blocks.BLOCK_COUNTS)
    assert blocks._is_offer([32, 5, 0.1], (32, 64))
    traced()
    (path,) = (tmp_path / "poet" / "trials").iterdir()
    kept = json.loads(path.read_text())
    kept["found"] = {name: item if isinstance(item, bool) else [1, 2] for name, item in kept["found"].items()}
    path.write_text(json.dumps(kept))
    another_process(monkeypatch)
    monkeypatch.setattr(blocks, "_offered", no_trial)
    with pytest.raises(AssertionError, match="a trial is made"):
        traced()


def test_what_kernels_depend_on_names_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    trial.remember({"a": True})
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    assert trial.known() == {}
    monkeypatch.delenv("MKL_CBWR")
    assert trial.known() == {"a": True}
    monkeypatch.setenv(trial.VARIABLE, "anew")
    assert trial.known() == {}


def test_so_do_switches_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    before = trial.machine_digest()
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", not torch.backends.mkldnn.enabled)
    without = trial.machine_digest()
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "medium")
    assert len({before, without, trial.machine_digest()}) == 3


def test_the_oldest_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_MOST_ENTRIES", 2)
    trial.remember({"a": True, "b": True})
    trial.remember({"c": True})
    assert trial.known() == {"b": True, "c": True}


def test_what_could_save_most_for_its_seconds_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of the step's time, each distinct one once."""
    monkeypatch.setattr(block_choice, "TRIED_SHARE", 0.25)
    monkeypatch.setattr(block_choice, "LARGE_SHARE", math.inf)
    monkeypatch.setattr(strips, "LEAST_WORKSPACE_BYTES", math.inf)
    layers = (nn.Linear(40, 48), nn.Linear(48, 48), nn.Linear(48, 48), nn.Linear(48, 32))
    graph = trace_training_step(nn.Sequential(*layers), torch_zeros(2, 40), gradients="keep").graph

    ends = [ways[0].last.name for ways in gradient_candidates(graph) if ways]

    def tried(seconds: float) -> list[str]:
        rest = OpFacts("rest", seconds=24.0 - seconds * len(ends))
        facts = KernelFacts("test", (*(OpFacts(name, seconds=seconds) for name in ends), rest))
        return [ways[0].of for ways in block_choice.worth_trying(graph, facts)]

    assert tried(0.1) == ["0.weight", "1.weight", "2.weight", "3.weight"]
    assert tried(2.5) == ["0.weight", "1.weight", "2.weight"]  # two alike, paid once, then the next largest
    assert tried(3.5) == ["1.weight", "2.weight"]
    assert tried(5.9) == ["1.weight", "2.weight"]
    monkeypatch.setattr(block_choice, "TRIED_SHARE", 0.2)
    assert tried(5.9) == []


def test_the_largest_are_tried_whatever_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """As AlexNet's first dense layer, three fifths of all gradients, for which others leave no time."""
    monkeypatch.setattr(strips, "LEAST_WORKSPACE_BYTES", math.inf)
    layers = (nn.Linear(640, 32), nn.Linear(32, 64), nn.Linear(64, 32), nn.Linear(32, 40), nn.Linear(40, 32))
    graph = trace_training_step(nn.Sequential(*layers), torch_zeros(2, 640), gradients="keep").graph
    seconds_of = {ways[0].last.name: 1.0 for ways in gradient_candidates(graph) if ways}

    def tried(of_the_first: float) -> list[str]:
        ops = {**seconds_of, next(iter(seconds_of)): of_the_first}
        rest = OpFacts("rest", seconds=20.0 - sum(ops.values()))
        facts = KernelFacts("test", (*(OpFacts(name, seconds=each) for name, each in ops.items()), rest))
        return [ways[0].of for ways in block_choice.worth_trying(graph, facts)]

    every = [f"{number}.weight" for number in range(5)]
    assert tried(2.0) == every
    assert tried(12.0) == every  # it takes nothing from the quarter of the others
    monkeypatch.setattr(block_choice, "TRIED_SHARE", 0.1)
    assert tried(12.0) == ["0.weight", "1.weight", "2.weight"]  # two seconds for the others
    monkeypatch.setattr(block_choice, "LARGE_SHARE", math.inf)
    assert tried(12.0) == ["1.weight", "2.weight"]
