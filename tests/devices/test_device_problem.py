"""The problem of a training step on a device: homes, workspaces, idle power, deadlines."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from helpers import hand_net
from helpers.schedules import keep_everything
from helpers.simulated_board import tensor_type

from poet import api
from poet.devices.device_problem import build_problem, deadline_seconds, kernels_on
from poet.devices.load import load_profile, profile_names
from poet.devices.profile import Profile
from poet.errors import InputError, ProfileError
from poet.ir.graph import Buffer, Call, Graph, Op, Ref, Role, Value
from poet.ir.kernel_facts import KernelAllocation, KernelFacts, OpFacts
from poet.problem import Limits, Place, Problem
from poet.problem.simulator import simulate

WITH_STORAGE = tuple(name for name in profile_names() if load_profile(name).storage is not None)


def _without_storage(profile: Profile) -> Profile:
    return profile.model_copy(update={"storage": None})


def _problem(graph: Graph, profile: Profile, *, workspace_bytes: int = 0, home: Place = Place.RAM) -> Problem:
    """Where torch's kernels were measured to need ``workspace_bytes`` each."""
    ops = tuple(OpFacts(op.name, workspace_bytes) for op in graph.ops)
    kernels = kernels_on(profile, graph, KernelFacts("pytorch-cpu", ops))
    return build_problem(graph, profile, kernels, home=home)


def _frozen(graph: Graph) -> Graph:
    """The hand-written net with its first bias frozen."""
    ops = tuple(op for op in graph.ops if op.name != "update_first.bias")
    parameters = tuple(
        dataclasses.replace(p, gradient=None) if p.name == "first.bias" else p for p in graph.parameters
    )
    return dataclasses.replace(graph, ops=ops, parameters=parameters)


@pytest.mark.parametrize("name", WITH_STORAGE)
@pytest.mark.parametrize("home", [Place.RAM, Place.STORAGE])
def test_the_problem_of_a_training_step(name: str, home: Place) -> None:
    graph, profile = _frozen(hand_net.graph()), load_profile(name)
    problem = _problem(graph, profile, home=home)
    tensors = {tensor.name: tensor for tensor in problem.tensors}
    weight, frozen = tensors["b_first.weight"], tensors["b_first.bias"]
    if home is Place.RAM:
        assert (weight.initially, weight.finally_) == (Place.RAM, Place.RAM)
        assert (frozen.initially, frozen.finally_) == (Place.BOTH, Place.RAM)
        simulate(problem, keep_everything(problem))
    else:
        assert (weight.initially, weight.finally_) == (Place.STORAGE, Place.STORAGE)
        assert (frozen.initially, frozen.finally_) == (Place.STORAGE, None)
    for handed_over in ("b_loss", "b_p"):
        assert (tensors[handed_over].initially, tensors[handed_over].finally_) == (None, Place.RAM)
    assert (tensors["b_x"].initially, tensors["b_x"].finally_) == (None, None)
    assert tensors["b_h"].role == "saved-for-backward"
    ops = {op.name: op for op in problem.ops}
    assert ops["update_first.weight"].updates == ("b_first.weight",)
    assert not ops["update_first.weight"].recomputable
    assert ops["op_h"].recomputable
    assert problem.alignment_bytes == profile.memory.alignment_bytes.value
    assert problem.idle_watts == profile.charged_idle_watts
    assert problem.kernels == profile.kernels.name
    assert Problem.from_json(json.loads(json.dumps(problem.to_json()))) == problem


def test_a_recomputation_reads_what_its_repeat_call_reads() -> None:
    """A mask is drawn once from the generator and again from the generator's saved state."""
    type_, state = tensor_type(16), tensor_type(5056, dtype="uint8")
    size = (16,), (1,)
    graph = Graph(
        name="random",
        buffers=tuple(
            Buffer(name, size_bytes, role)
            for name, size_bytes, role in (("x", 64, Role.INPUT), ("s", 5056, Role.ACTIVATION),
                                           ("m", 64, Role.SAVED), ("y", 64, Role.ACTIVATION))
        ),
        values=tuple(Value(name, name, state if name == "s" else type_) for name in "xsmy"),
        ops=(
            Op("state", Call("poet.rng_state", ()), ("s",), repeatable=False),
            Op(
                "mask",
                Call("poet.bernoulli", (*size, "float32", 0.5)),
                ("m",),
                repeat_call=Call("poet.with_rng_state", (Ref("s"), "poet.bernoulli", *size, "float32", 0.5)),
                random=True,
            ),
            Op("product", Call("aten.mul.Tensor", (Ref("x"), Ref("m"))), ("y",)),
        ),
        inputs=("x",),
        targets=0,
        loss="y",
        predictions=(),
    )  # fmt: skip
    ops = {op.name: op for op in _problem(graph, load_profile("rpi4b")).ops}
    assert ops["mask"].random
    assert ops["mask"].inputs == ()
    assert ops["mask"].rerun_inputs == ("s",)
    assert not ops["state"].recomputable


def test_workspaces_are_the_targets() -> None:
    graph = hand_net.graph()
    counted = {
        name: {op.workspace_bytes for op in _problem(graph, load_profile(name), workspace_bytes=99).ops}
        for name in ("rpi4b", "nrf52840")
    }
    assert counted == {"rpi4b": {99}, "nrf52840": {0}}


@pytest.mark.parametrize("name", profile_names())
def test_whose_facts_are_asked(name: str) -> None:
    """A profile's own, those of its library where there are some, else torch's workspaces alone."""
    graph, profile = hand_net.graph(), load_profile(name)
    runs = (KernelAllocation(4, 0, 1),)
    torchs = KernelFacts(
        "pytorch-cpu",
        tuple(OpFacts(op.name, 99, 1.0, runs) for op in graph.ops),
        alignment_bytes=64,
        threads=1,
    )
    found = kernels_on(profile, graph, torchs)
    assert found.library == profile.kernels.name
    if profile.kernels.workspace_bytes is None:
        assert found is torchs
        raw = profile.model_dump()
        raw["kernels"]["name"] = "somebody's"
        other = Profile.model_validate(raw)
        assumed = KernelFacts("somebody's", tuple(OpFacts(op.name, 99) for op in graph.ops))
        assert kernels_on(other, graph, torchs) == assumed
        second = KernelFacts("somebody's", (OpFacts("op_a", 7),))
        assert kernels_on(other, graph, torchs, second) is second
        problem = build_problem(graph, other, second)
        assert {op.name: op.workspace_bytes for op in problem.ops if op.workspace_bytes} == {"op_a": 7}
        assert problem.kernels == "somebody's"
    else:
        stated_bytes = profile.kernels.workspace_bytes.value
        assert found == KernelFacts(
            profile.kernels.name, tuple(OpFacts(op.name, stated_bytes) for op in graph.ops)
        )


def test_a_device_without_storage_keeps_all_in_ram() -> None:
    profile = _without_storage(load_profile("rpi4b"))
    problem = _problem(_frozen(hand_net.graph()), profile)
    assert all(tensor.page_in is None and tensor.page_out is None for tensor in problem.tensors)
    assert {tensor.initially for tensor in problem.tensors} <= {None, Place.RAM}
    with pytest.raises(ProfileError, match="rpi4b has no storage"):
        _problem(hand_net.graph(), profile, home=Place.STORAGE)


def test_total_accounting_charges_idle_power_and_marginal_does_not() -> None:
    graph, total = hand_net.graph(), load_profile("rpi4b")
    raw = total.model_dump()
    raw["energy"]["accounting"] = "marginal"
    marginal = Profile.model_validate(raw)
    charged, free = _problem(graph, total), _problem(graph, marginal)
    assert charged.idle_watts == total.energy.idle_watts.value
    assert free.idle_watts == 0.0
    # the same busy draw either way: 6 W in total mode is 3 W idle and 3 W on top
    assert charged.compute_joules == pytest.approx(6.0 * charged.compute_seconds)
    assert free.compute_joules == pytest.approx(6.0 * free.compute_seconds)


def test_deadlines() -> None:
    problem = _problem(hand_net.graph(), load_profile("rpi4b"))
    assert deadline_seconds("1.5x", problem) == pytest.approx(1.5 * problem.compute_seconds)
    assert deadline_seconds("20ms", problem) == 0.02
    for text in ("soon", "0x", "0s", "1e999s", "-1s", "x"):
        with pytest.raises(
            InputError, match=rf"^'{text}' is not a deadline; write for example 1\.3x or 20ms$"
        ):
            deadline_seconds(text, problem)


def test_parameters_have_one_home() -> None:
    with pytest.raises(InputError, match="not in both"):
        _problem(hand_net.graph(), load_profile("rpi4b"), home=Place.BOTH)


def test_a_plan_at_other_costs_than_the_devices_has_no_range() -> None:
    prepared = api.prepare(torch.nn.Linear(4, 3), torch.zeros(2, 4), device="x86-host")
    ops = tuple(dataclasses.replace(op, seconds=0.5, joules=0.5) for op in prepared.problem.ops)
    other = dataclasses.replace(prepared, problem=dataclasses.replace(prepared.problem, ops=ops))
    found = [api.plan_step(each, Limits()).plan.prediction for each in (prepared, other)]
    assert found[0].range is not None
    assert found[1].range is None
    assert found[1].seconds == pytest.approx(0.5 * len(ops))
