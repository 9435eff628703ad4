"""Federated training with Flower: each client trains inside 64 MiB, and a killed one just starts again.

pip install '.[flower]'
python examples/flower_clients.py plan clients.poet
python examples/flower_clients.py server weights.npz &
for name in a b c; do python examples/flower_clients.py client clients.poet $name & done; wait
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import poet

CLIENTS, ROUNDS, STEPS, BATCH, SIDE = 3, 3, 2, 16, 96
OPTIMIZER = "momentum:lr=0.05"


def net() -> nn.Module:
    """Convolutions on large images: plain training takes more than twice the budget."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs in (3, 8, 8, 8, 8, 8, 8):
        layers += [nn.Conv2d(inputs, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Dropout(0.1), nn.Linear(128, 5))


def batches(name: str, number: int) -> Iterator[tuple[Tensor, Tensor]]:
    """A client's own samples in round ``number``; made here from a seed."""
    draw = torch.Generator().manual_seed(sum(name.encode()) * 1000 + number)
    for _ in range(STEPS):
        yield (
            torch.randn(BATCH, 3, SIDE, SIDE, generator=draw),
            torch.randint(5, (BATCH,), generator=draw),
        )


def plan(path: Path) -> None:
    """Plan the step."""
    example = torch.zeros(BATCH, 3, SIDE, SIDE)
    poet.plan(
        net().train(), example, device="rpi4b", ram="60MiB", loss="cross-entropy", optimizer=OPTIMIZER,
        time_limit_seconds=5.0,
    ).save(path)  # fmt: skip


def client(path: Path, name: str, address: str) -> None:
    """Train whenever the server asks."""
    from flwr.client import start_client

    from poet.integrations.flower import PlanClient

    def told(number: int) -> Iterator[tuple[Tensor, Tensor]]:
        print(f"{name}: round {number}", flush=True)
        return batches(name, number)

    torch.set_num_threads(1)
    planned = PlanClient(path, told, name=name, ram="64MiB")
    start_client(server_address=address, client=planned.to_client(), insecure=True)


def server(path: Path, address: str, clients: int) -> None:
    """Ask all clients, average, and write the weights after the last round."""
    from flwr.server import ServerConfig, start_server

    from poet.integrations.flower import FedAvgAgain

    strategy = FedAvgAgain(clients=clients, rounds=ROUNDS)
    start_server(
        server_address=address,
        config=ServerConfig(num_rounds=ROUNDS + 2),  # two may be asked again
        strategy=strategy,
    )
    if strategy.completed != ROUNDS:
        sys.exit(f"{strategy.completed} of {ROUNDS} rounds were complete")
    np.savez(path, *strategy.weights)


def plain(names: list[str]) -> dict[str, Tensor]:
    """The same in plain PyTorch: FedAvg, client by client; the global weights after the last round."""
    from poet.integrations.flower import seed_of

    module = net().train()
    weights = {key: value.clone() for key, value in module.state_dict().items()}
    for number in range(1, ROUNDS + 1):
        sums: dict[str, Tensor] = {}
        for name in sorted(names):
            module.load_state_dict(weights)
            torch.manual_seed(seed_of(name, number))
            optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9, foreach=False)
            for inputs, targets in batches(name, number):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(module(inputs), targets)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            for key, value in module.state_dict().items():
                part = value * (STEPS * BATCH)
                sums[key] = sums[key] + part if key in sums else part
        weights = {key: value / (len(names) * STEPS * BATCH) for key, value in sums.items()}
    return weights


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=("plan", "client", "server"))
    parser.add_argument("file", type=Path)
    parser.add_argument("name", nargs="?", default="a")
    parser.add_argument("--address", default="127.0.0.1:8080")
    parser.add_argument("--clients", type=int, default=CLIENTS)
    asked = parser.parse_args()
    if asked.what == "plan":
        plan(asked.file)
    elif asked.what == "client":
        client(asked.file, asked.name, asked.address)
    else:
        server(asked.file, asked.address, asked.clients)
