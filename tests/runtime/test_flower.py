"""Clients of Flower on loopback: the bits of FedAvg in plain PyTorch, also where one was killed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import poet
from poet.errors import InputError
from poet.plans.plan_file import PlanFile
from poet.runtime import Trainer

pytest.importorskip("flwr")
ENVIRONMENT = {**os.environ, "PYTHONMALLOC": "malloc"}
EXAMPLE = Path(__file__).parents[2] / "examples" / "flower_clients.py"


@contextlib.contextmanager
def started(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """The example, as a process that is ended with the block."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", EXAMPLE, *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def free_address() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{found.getsockname()[1]}"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.filterwarnings("ignore")
def test_ten_confined_clients_give_the_bits_of_plain_fedavg(tmp_path: Path) -> None:
    import flower_clients as example

    from poet.integrations.flower import tensors_of

    torch.set_num_threads(1)
    path, made, address = tmp_path / "clients.poet", tmp_path / "weights.npz", free_address()
    example.plan(path)
    names = list("abcdefghij")
    with contextlib.ExitStack() as running:
        server = running.enter_context(started("server", made, "--address", address, "--clients", len(names)))
        clients = {
            name: running.enter_context(started("client", path, name, "--address", address)) for name in names
        }
        victim = clients["c"]
        assert victim.stdout is not None
        assert any("round 2" in line for line in victim.stdout)
        victim.send_signal(signal.SIGKILL)
        again = running.enter_context(started("client", path, "c", "--address", address))
        _, errors = server.communicate()
        assert server.returncode == 0, errors
        for name, process in (clients | {"c": again}).items():
            _, errors = process.communicate()
            assert process.returncode == 0, f"{name}: {errors}"
    expected = example.plain(names)
    with PlanFile(path) as file, np.load(made) as found:
        order = list(tensors_of(file))
        assert sorted(order) == sorted(expected)
        for name, key in zip(order, found.files, strict=True):
            assert torch.equal(torch.as_tensor(found[key]), expected[name]), name


_CONFINED = """
import sys
import torch
sys.path.insert(0, sys.argv[1])
import flower_clients as example
from poet.integrations.flower import PlanClient
torch.set_num_threads(1)
client = PlanClient(sys.argv[2], lambda number: example.batches("a", number), name="a", ram="64MiB")
weights = client.get_parameters({})
client.fit(weights, {"round": 1})
client.fit(weights, {"round": 2})
print("planned")
example.plain(["a"])
"""


@pytest.mark.slow
def test_the_kernel_holds_a_client_to_its_budget(tmp_path: Path) -> None:
    pytest.importorskip("resource")
    import flower_clients as example

    path = tmp_path / "clients.poet"
    example.plan(path)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _CONFINED, str(EXAMPLE.parent), str(path)],
        capture_output=True, text=True, env=ENVIRONMENT, check=False,
    )  # fmt: skip
    assert done.stdout == "planned\n", done.stderr
    assert done.returncode != 0
    assert "can't allocate memory" in done.stderr


@pytest.fixture
def planned(tmp_path: Path) -> tuple[Path, nn.Module]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).train()
    path = tmp_path / "small.poet"
    options: dict[str, Any] = {"loss": "cross-entropy", "optimizer": "sgd:lr=0.1", "time_limit_seconds": 1.0}
    poet.plan(net, torch.zeros(5, 6), device="rpi4b", ram="1MiB", **options).save(path)
    return path, net


def test_a_trainer_begins_with_weights_that_it_is_given(planned: tuple[Path, nn.Module]) -> None:
    path, net = planned
    weights = {name: item.clone() for name, item in net.state_dict().items()}
    weights["0.weight"] += 1
    weights["1.num_batches_tracked"] += 7
    with Trainer.open(path, weights=weights) as trainer:
        found = trainer.state_dict()
    assert all(torch.equal(found[name], item) for name, item in weights.items())
    for wrong, said in (
        ({**weights, "0.weight": torch.zeros(2, 2)}, "0.weight is .* the plan has"),
        ({**weights, "other": torch.zeros(1)}, "other is not of the plan"),
        ({"0.weight": weights["0.weight"]}, "is missing"),
    ):
        with pytest.raises(InputError, match=said):
            Trainer.open(path, weights=wrong)


@pytest.mark.filterwarnings("ignore")
def test_what_a_client_cannot_do_is_said(planned: tuple[Path, nn.Module]) -> None:
    from poet.integrations.flower import FedAvgAgain, PlanClient

    client = PlanClient(planned[0], lambda number: [], name="a")
    weights = client.get_parameters({})
    with pytest.raises(InputError, match="gives no round"):
        client.fit(weights, {})
    with pytest.raises(InputError, match="no batch in round 1"):
        client.fit(weights, {"round": 1})
    with pytest.raises(InputError, match="sends 1 tensors"):
        client.fit(weights[:1], {"round": 1})
    strategy = FedAvgAgain(clients=2, rounds=1)
    assert strategy.aggregate_fit(1, [], [RuntimeError()]) == (None, {})


@pytest.mark.filterwarnings("ignore")
def test_a_packed_base_stays_with_the_client_and_batches_of_any_size_count(tmp_path: Path) -> None:
    from poet.integrations.flower import PlanClient

    net, path = nn.Sequential(nn.Linear(32, 4), nn.Linear(4, 3)).train(), tmp_path / "base.poet"
    options: dict[str, Any] = {"base": "q8_0", "train": ["1.*"], "time_limit_seconds": 1.0}
    large = torch.randn(5, 32)
    poet.plan(net, large, device="rpi4b", ram=None, shapes=[large[:2]], **options).save(path)
    given = [(large, torch.arange(5) % 3), (large[:2], torch.arange(2))]
    client = PlanClient(path, lambda number: given, name="a")
    weights = client.get_parameters({})
    assert [item.shape for item in weights] == [(4,), (3, 4), (3,)]
    weights[2] += 1
    made, samples, _ = client.fit(weights, {"round": 1})
    assert samples == 7
    named = dict(zip(("0.bias", "1.weight", "1.bias"), map(torch.from_numpy, weights), strict=True))
    with Trainer.open(path, weights=named) as trainer:
        for inputs, targets in given:
            trainer.step(inputs, targets)
        found = trainer.state_dict()
        with pytest.raises(InputError, match=r"0\.weight is not of the plan, or packed there"):
            Trainer.open(path, weights=found)
    assert all(np.array_equal(item, found[name].numpy()) for name, item in zip(named, made, strict=True))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_clients_over_the_c_library_average_what_each_would_have_trained(tmp_path: Path) -> None:
    from poet.c99.library import Step
    from poet.integrations.flower import LibraryClient, seed_of

    if shutil.which("cc") is None or shutil.which("make") is None:
        pytest.skip("a C compiler and make build the library")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)).train()
    options: dict[str, Any] = {"loss": "cross-entropy", "optimizer": "momentum:lr=0.1"}
    poet.plan(net, torch.zeros(5, 6), device="nrf52840", ram="16KiB", time_limit_seconds=1.0, **options).save(
        tmp_path / "net.poet"
    )
    paths = [str(tmp_path / "net.poet"), "-o", str(tmp_path / "step")]
    command = [sys.executable, "-m", "poet", "export", "c", *paths]
    subprocess.run(command, check=True, capture_output=True)
    subprocess.run(["make", "-C", str(tmp_path / "step"), "lib"], check=True, capture_output=True)
    library = tmp_path / "step" / "build" / "libpoet_step.so"
    inputs = np.random.default_rng(0).standard_normal((2, 5, 6)).astype(np.float32)
    classes = np.arange(5) % 3

    def batches(number: int) -> Iterator[tuple[Any, Any]]:
        yield from ((each * number, classes) for each in inputs)

    client = LibraryClient(library, batches, name="a")
    begun = client.get_parameters({})
    first, samples, told = client.fit(begun, {"round": 1})
    assert samples == 10
    assert told["client"] == "a"
    again, _, _ = client.fit(begun, {"round": 1})
    with Step(library, seed=seed_of("a", 1)) as step:
        for each in inputs:
            step.set_input(0, each)
            step.set_classes(classes)
            step.train()
        kept = [step.kept(index) for index in range(step.facts.kept)]
    for one, other, item in zip(first, again, kept, strict=True):
        assert np.array_equal(one, other)
        assert item is None or np.array_equal(one, item)
    assert any(not np.array_equal(one, other) for one, other in zip(first, begun, strict=True))
    with pytest.raises(InputError, match="1 tensors came"):
        client.fit(begun[:1], {"round": 1})
