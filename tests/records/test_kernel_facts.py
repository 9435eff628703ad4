"""What is said about kernels: how it is read, written and asked for, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from helpers import hand_net
from helpers.schedules import keep_everything
from poet.cli.main import app
from typer.testing import CliRunner

from poet.devices.profile import Profile
from poet.errors import InputError, KernelFactsError, PlanError
from poet.ir.kernel_facts import KernelAllocation, KernelFacts, OpFacts
from poet.planning.cache import pack, unpack
from poet.plans.plan_file import read_plan, write_plan
from poet.plans.training_plan import Plan
from poet.report.plan import graph_text
from poet.util.codec import encode
from poet.whatif import models

OUTPUT = KernelAllocation(2048, 1, None, 0)
FACTS = KernelFacts(
    "somebody's",
    (
        OpFacts("op_a", 64, 0.5, (KernelAllocation(64, 0, 2), OUTPUT), (OUTPUT,)),
        OpFacts("op_h", seconds=0.25),
    ),
    alignment_bytes=16,
    threads=2,
)


def test_facts_survive_json() -> None:
    data = json.loads(json.dumps(FACTS.to_json()))
    assert KernelFacts.from_json(data) == FACTS
    assert data["ops"][1] == {"name": "op_h", "seconds": 0.25}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "poet-graph"}, "not a kernel profile"),
        ({"version": 2}, "version 2, this poet reads 1"),
        ({"colour": 1}, "'colour' is not a field"),
        ({"_by_name": {}}, "'_by_name' is not a field"),
        ({"threads": 0}, "measured with 0 threads"),
        ({"alignment_bytes": 0}, "an alignment of 0 bytes"),
        ({"alignment_bytes": 1 << 40}, "an alignment of"),
        ({"ops": [{"name": "f"}, {"name": "f"}]}, "two records of one op"),
        ({"ops": [{"name": "f", "workspace_bytes": -1}]}, "op f: workspace of -1 bytes is negative"),
        ({"ops": [{"name": "f", "seconds": -1.0}]}, "a run of -1.0 seconds"),
        ({"ops": [{"name": "f", "allocations": [[8, 0, -1, 0], [8, 1, -1, 0]]}]}, "become one output"),
        ({"ops": [{"name": "f", "repeat_allocations": [[8, 3, 3, -1]]}]}, "cannot be"),
    ],
)
def test_what_cannot_be_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(KernelFactsError, match=message):
        KernelFacts.from_json(json.loads(json.dumps(FACTS.to_json())) | change)


def test_what_is_asked() -> None:
    assert FACTS.of("op_a").of_run(is_repeat=True) == (OUTPUT,)
    assert FACTS.of("op_a").outputs == 1
    assert FACTS.of("op_h").of_run(is_repeat=True) is None
    assert FACTS.of("unheard of") == OpFacts("unheard of")
    assert FACTS.step_seconds(["op_h", "op_a"]) == {"op_h": 0.25, "op_a": 0.5}
    assert FACTS.step_seconds(["op_h", "unheard of"]) is None


# --- in a plan --------------------------------------------------------------------------------


def _plan(kernels: KernelFacts, host_kernels: KernelFacts | None = None) -> Plan:
    graph = hand_net.graph()
    problem = hand_net.problem(graph, kernels=kernels)
    made = hand_net.plan(problem, graph, keep_everything(problem), kernels=kernels)
    return dataclasses.replace(made, host_kernels=host_kernels)


def test_a_plan_file_keeps_the_facts_of_the_devices_kernels_and_of_those_that_replay_it(
    tmp_path: Path,
) -> None:
    torchs = KernelFacts("pytorch-cpu", (OpFacts("op_a", 128, 1e-3),), alignment_bytes=64, threads=1)
    for plan in (_plan(FACTS), _plan(FACTS, torchs)):
        write_plan(tmp_path / "p", plan, hand_net.stored(hand_net.net()))
        read = read_plan(tmp_path / "p")
        assert (read.kernels, read.host_kernels) == (plan.kernels, plan.host_kernels)
        assert read.replayed_kernels == (plan.host_kernels or FACTS)
        assert not {"workspace_bytes", "seconds", "allocations"} & set(plan.to_json()["graph"]["ops"][0])


def test_facts_that_contradict_a_plan_are_refused() -> None:
    plan = _plan(FACTS)
    too_little = dataclasses.replace(FACTS, ops=(OpFacts("op_a", 65),))
    with pytest.raises(PlanError, match="op op_a of the problem has a smaller workspace than its kernel"):
        dataclasses.replace(plan, kernels=too_little)
    with pytest.raises(PlanError, match="there is no op 'f'"):
        dataclasses.replace(plan, kernels=dataclasses.replace(FACTS, ops=(OpFacts("f"),)))
    second = OpFacts("op_a", 0, None, (KernelAllocation(8, 0, None, 1),))
    with pytest.raises(PlanError, match="do not become its outputs"):
        dataclasses.replace(plan, host_kernels=KernelFacts("pytorch-cpu", (second,)))
    with pytest.raises(PlanError, match="counts kernels \"somebody's\", the plan's are 'loops'"):
        dataclasses.replace(plan, kernels=FACTS.workspaces_as("loops"))


def test_the_graph_of_a_plan_as_text(tmp_path: Path) -> None:
    """`poet export graph`: the graph, with the workspaces and allocations that the plan counts."""
    plan = _plan(FACTS)
    write_plan(tmp_path / "plan.poet", plan, hand_net.stored(hand_net.net()))
    printed = CliRunner().invoke(app, ["export", "graph", str(tmp_path / "plan.poet")])
    assert (printed.exit_code, printed.stderr) == (0, "")
    lines = printed.stdout.splitlines()
    assert [line.partition("    # ")[0] for line in lines] == [
        line.partition("    # ")[0] for line in plan.graph.to_text().splitlines()
    ]
    (making_a,) = (line for line in lines if line.startswith("  %a: "))
    assert making_a.endswith("    # workspace 64 B, 2 allocations")
    (update,) = (line for line in lines if "poet.sgd(%first.weight" in line)
    assert update.endswith("    # updates @b_first.weight; never recomputed")
    written = ["export", "graph", str(tmp_path / "plan.poet"), "-o", str(tmp_path / "graph.txt")]
    assert CliRunner().invoke(app, written).stdout == ""
    assert (tmp_path / "graph.txt").read_text() == printed.stdout


def test_what_a_strangers_graph_calls_its_parts_does_not_steer_the_terminal() -> None:
    plan = _plan(FACTS)
    graph = dataclasses.replace(plan.graph, name="net\x1b[2J")
    assert graph_text(dataclasses.replace(plan, graph=graph)).startswith("graph net\\x1b[2J\n  %x: ")


def test_an_imported_graph_is_kept_with_its_kernels() -> None:
    """What workers hand over and the cache of a sweep keeps; what is damaged is one line, not a traceback."""
    packed = pack(encode(models._Imported(hand_net.graph(), FACTS)))
    assert models._imported(unpack(packed)) == models._Imported(hand_net.graph(), FACTS)
    broken: tuple[Any, ...] = ([], {"graph": {}}, unpack(packed) | {"kernels": {"library": 1}})
    for damaged in broken:
        with pytest.raises(InputError, match="an imported graph"):
            models._imported(damaged)


def test_a_second_library_is_one_more_record() -> None:
    """The same graph and device with facts that were read from JSON: these are counted and laid out."""
    from poet.devices.device_problem import build_problem, kernels_on
    from poet.devices.load import load_profile
    from poet.planning.arena import fit
    from poet.problem import Limits
    from poet.problem.solution import SolveOptions
    from poet.solvers import solve

    raw = load_profile("rpi4b").model_dump()
    raw["kernels"]["name"] = FACTS.library
    profile, graph = Profile.model_validate(raw), hand_net.graph()
    second = KernelFacts.from_json(json.loads(json.dumps(FACTS.to_json())))
    kernels = kernels_on(profile, graph, KernelFacts("pytorch-cpu", threads=1), second)
    problem = build_problem(graph, profile, kernels)
    assert {op.name: op.workspace_bytes for op in problem.ops if op.workspace_bytes} == {"op_a": 64}
    options = SolveOptions(time_limit_seconds=2.0)
    fitted = fit(problem, Limits(), solve(problem, Limits(), options), options, kernels=kernels)
    assert fitted is not None
    schedule = fitted.solution.schedule
    assert schedule is not None
    plan = dataclasses.replace(hand_net.plan(problem, graph, schedule, kernels=kernels), arena=fitted.arena)
    temporary = [block for block in plan.demand.blocks if (block.owner, block.tensor) == ("op_a", None)]
    assert [block.size_bytes for block in temporary] == [64]
