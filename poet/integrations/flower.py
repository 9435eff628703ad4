"""Clients of Flower that train inside a RAM budget, and a strategy whose rounds give the same bits again.

    client = PlanClient("plan.poet", batches, name="board-7", ram="64MiB")
    flwr.client.start_client(server_address="127.0.0.1:8080", client=client.to_client())

Needs the extra ``flower``. A round depends on what the server sends and on the client's own batches alone:
each begins with the server's weights, a new optimizer, and a seed of the round's own. So a client that was
killed needs nothing but to be started again.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.client import NumPyClient
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.strategy import FedAvg
from flwr.server.strategy.aggregate import aggregate

from poet.c99.library import Step
from poet.errors import InputError
from poet.ir.calls import TensorType
from poet.ir.named import named_parameters, packed_values
from poet.plans.plan_file import PlanFile
from poet.runtime.data.given import as_tensors
from poet.runtime.system.confinement import Confinement, Rehearsal
from poet.runtime.system.memory import use_one_heap
from poet.runtime.training.trainer import Trainer
from poet.util.units import parse_bytes

Arrays = list[np.ndarray[Any, Any]]
Round = tuple[Arrays, list[float], int]
"""Weights, losses and the count of samples."""
Batches = Callable[[int], Iterable[tuple[Any, Any]]]
"""Inputs and targets of each step of a round, which is given by its number, from 1."""

_REHEARSALS = 3


def seed_of(name: str, number: int) -> int:
    """The seed of a client's round: that of ``torch.manual_seed`` for the same bits in plain PyTorch."""
    return zlib.crc32(f"{name}/{number}".encode())


class _Client(NumPyClient):  # type: ignore[misc]
    """What clients share: rounds, and how they are reported."""

    def __init__(self, batches: Batches, name: str) -> None:
        self.name, self._batches = name, batches

    def fit(self, parameters: Arrays, config: dict[str, Any]) -> tuple[Arrays, int, dict[str, Any]]:
        """Train for a round; weights, count of samples, and the mean loss."""
        if not isinstance(config.get("round"), int):
            raise InputError("the server gives no round; use poet.integrations.flower.FedAvgAgain")
        made, losses, samples = self._round(parameters, config["round"])
        if not losses:
            raise InputError(f"{self.name} has no batch in round {config['round']}")
        return made, samples, {"client": self.name, "loss": float(np.mean(losses))}

    def _round(self, weights: Arrays, number: int) -> Round:
        raise NotImplementedError


class PlanClient(_Client):
    """A client whose training replays a plan.

    What it exchanges are parameters and module state, in the order of `tensors_of`.
    """

    def __init__(
        self,
        plan: str | Path,
        batches: Batches,
        *,
        name: str,
        page_file: str | Path | None = None,
        ram: str | int | None = None,
    ) -> None:
        """Prepare.

        Args:
            plan: path of the plan file.
            batches: of a round, by its number; each time the same for the same number.
            name: of this client, no other's; clients are summed up in the order of their names.
            page_file: where tensors are paged; ``None``: an unnamed file in the plan's folder.
            ram: what the kernel lets this process have above its idle size (setrlimit(2)), from the first
                round on; ``None``: it is not limited.
        """
        super().__init__(batches, name)
        self._plan, self._page_file = Path(plan), page_file
        self._ram_bytes = parse_bytes(ram) if isinstance(ram, str) else ram
        self._is_confined = False
        if ram is not None:
            use_one_heap()  # before threads of the connection start

    def get_parameters(self, config: dict[str, Any]) -> Arrays:
        """The plan's own weights."""
        with Trainer.open(self._plan, page_file=self._page_file) as trainer:
            return self._exchanged(trainer)

    def _round(self, weights: Arrays, number: int) -> Round:
        if self._ram_bytes is not None and not self._is_confined:
            self._confine(weights, number, self._ram_bytes)
        return self._trained(weights, number)[0]

    def _trained(self, weights: Arrays, number: int) -> tuple[Round, int]:
        """A round, and its peak in bytes."""
        losses, samples = [], 0
        with PlanFile(self._plan) as file:
            seed, given = seed_of(self.name, number), _named(file, weights)
            trainer = Trainer.of(file, page_file=self._page_file, weights=given, seed=seed)
        with trainer, trainer.peak_meter() as meter:
            for inputs, targets in self._batches(number):
                losses.append(trainer.step(inputs, targets).loss)
                samples += len(as_tensors(inputs)[0])
            made = self._exchanged(trainer)
        peak = meter.peak
        peak_bytes = peak.bytes if peak.is_counted and peak.bytes else trainer.plan.held_bytes
        return (made, losses, samples), peak_bytes

    def _exchanged(self, trainer: Trainer) -> Arrays:
        with PlanFile(self._plan) as file:
            names = tensors_of(file)
        state = trainer.state_dict()
        return [state[name].numpy() for name in names]

    def _confine(self, weights: Arrays, number: int, ram_bytes: int) -> None:
        """Limit the process to what it takes without tensors in such a round, and the budget."""
        for _ in range(_REHEARSALS):  # in the first, libraries make their tables
            with Rehearsal() as rehearsal:
                peak_bytes = self._trained(weights, number)[-1]
        Confinement(rehearsal.idle_bytes(peak_bytes), ram_bytes).enforce()
        self._is_confined = True


def tensors_of(plan: PlanFile) -> dict[str, TensorType]:
    """What clients of a plan exchange, in this order: types of parameters and module state by name.

    A packed base stays where it is.
    """
    graph, packed = plan.plan.graph, packed_values(plan.plan.graph)
    types = {value.name: value.type for value in graph.values}
    parameters = {item.name: item.content.type for item in named_parameters(graph) if not item.packed}
    return parameters | {name: types[value] for name, value in graph.states if value not in packed}


def _named(file: PlanFile, weights: Arrays) -> dict[str, torch.Tensor]:
    """Weights as they came, by the module's names and in its types."""
    wanted = tensors_of(file)
    if len(wanted) != len(weights):
        raise InputError(f"the server sends {len(weights)} tensors, the plan has {len(wanted)}")
    made = {}
    for (name, kind), item in zip(wanted.items(), weights, strict=True):
        dtype = getattr(torch, kind.dtype)
        found = torch.from_numpy(np.array(item, order="C"))
        made[name] = found.to(dtype) if dtype.is_floating_point else found.round().to(dtype)
    return made


class LibraryClient(_Client):
    """A client whose training runs in the C library of `poet export c`; `batches` gives classes as targets.

    What it exchanges is all that lives across steps, the optimizer's state included. Its bits are those of
    C: all clients of a training should be of this kind.
    """

    def __init__(
        self, library: str | Path, batches: Batches, *, name: str, pages: str | Path | None = None
    ) -> None:
        """As `PlanClient`; ``library``: the shared object that ``make lib`` builds, your own code."""
        super().__init__(batches, name)
        self._library, self._pages = Path(library), pages

    def get_parameters(self, config: dict[str, Any]) -> Arrays:
        """The state that the library begins with."""
        with Step(self._library, pages=self._pages) as step:
            return _kept(step)

    def _round(self, weights: Arrays, number: int) -> Round:
        losses = []
        with Step(self._library, pages=self._pages, seed=seed_of(self.name, number)) as step:
            if len(weights) != step.facts.kept:
                raise InputError(f"{len(weights)} tensors came, the library has {step.facts.kept}")
            for index, item in enumerate(weights):
                if item.size:  # else it is a constant
                    step.put(index, item)
            for inputs, classes in self._batches(number):
                step.set_input(0, inputs)
                step.set_classes(classes)
                losses.append(step.train())
            return _kept(step), losses, step.facts.rows * len(losses)


def _kept(step: Step) -> Arrays:
    nothing = np.zeros(0, dtype=np.float32)
    return [nothing if (item := step.kept(index)) is None else item for index in range(step.facts.kept)]


class FedAvgAgain(FedAvg):  # type: ignore[misc]
    """FedAvg (McMahan et al., 2017, algorithm 1) whose bits do not depend on who answers first.

    Every round asks all clients, and sums up in the order of their names. A round in which one fell away
    changes nothing and is asked again, once all are there.

    Attributes:
        weights: after the last round that was complete.
        completed: how many were.
    """

    def __init__(self, *, clients: int, rounds: int, **options: Any) -> None:
        """``options`` are those of `flwr.server.strategy.FedAvg`."""
        self.completed = 0
        super().__init__(
            fraction_fit=1.0, fraction_evaluate=0.0, min_fit_clients=clients, min_available_clients=clients,
            on_fit_config_fn=lambda _: {"round": self.completed + 1}, **options,
        )  # fmt: skip
        self._clients, self._rounds = clients, rounds
        self.weights: Arrays = []

    def configure_fit(self, server_round: int, parameters: Any, client_manager: Any) -> Any:
        """See `FedAvg`; nobody is asked once all rounds are complete."""
        if self.completed == self._rounds:
            return []
        client_manager.wait_for(self._clients)
        return super().configure_fit(server_round, parameters, client_manager)

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        """See `FedAvg`; raises InputError where two clients have one name."""
        if failures or len(results) != self._clients:
            return None, {}
        found = sorted((item for _, item in results), key=lambda item: str(item.metrics["client"]))
        if len({item.metrics["client"] for item in found}) != self._clients:
            raise InputError("two clients have the same name; give each its own")
        pairs = [(parameters_to_ndarrays(item.parameters), item.num_examples) for item in found]
        self.weights = aggregate(pairs)
        self.completed += 1
        return ndarrays_to_parameters(self.weights), {}
