"""Seeded random planning problems for tests: tiny ones for the oracle, training graphs of any size.

Every feature of the problem format can be switched on alone; the same seed and arguments always
give the same problem.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Collection
from dataclasses import dataclass

from poet.problem import Limits, Pins, Place, Problem, ProblemOp, Tensor, Transfer

FEATURES = (
    "outputs",  # several outputs per op
    "workspace",
    "updates",  # in-place updates, so that contents have versions
    "initially",  # sources begin in storage or in both places
    "finally",  # contents must end in RAM or in storage
    "unpageable",  # tensors without a page_in or page_out cost
    "once",  # ops that must not be recomputed
    "recompute_inputs",  # a rerun reads other tensors than the first run
    "random",  # ops whose first runs keep their order
    "alignment",
    "idle",  # idle_watts
    "background",  # transfers beside compute
    "capacity",  # a full storage, whole pages per copy
    "free",  # ops and transfers that cost nothing, tensors of no bytes
)


def random_problem(seed: int, *, ops: int = 6, features: Collection[str] = ()) -> Problem:
    """A problem of ``ops`` ops that uses exactly ``features``; half are forward-and-backward graphs.

    Sizes are 1 to 12 bytes, costs about 1 joule and 1 second each, so that keeping, recomputing
    and paging all pay somewhere.
    """
    unknown = set(features) - set(FEATURES)
    if unknown:
        raise ValueError(f"no such feature: {sorted(unknown)}")
    builder = _Builder(random.Random(f"{seed} {ops} {sorted(features)}"), frozenset(features))
    if builder.rng.random() < 0.5:
        builder.mirror(ops)
    else:
        builder.dag(ops)
    return builder.problem(f"random{seed}")


def mixed_problem(seed: int, *, smallest: int = 4, largest: int = 7) -> Problem:
    """A random problem of random size with a random set of features."""
    rng = random.Random(f"mixed {seed}")
    features = [feature for feature in FEATURES if rng.random() < 0.3]
    return random_problem(seed, ops=rng.randint(smallest, largest), features=features)


def floor_bytes(problem: Problem) -> int:
    """The most that a single op, or the start, or the end needs: no schedule holds less."""
    sizes = {tensor.name: problem.aligned_bytes(tensor.bytes) for tensor in problem.tensors}
    produced = {name for op in problem.ops for name in op.outputs}
    away = (Place.STORAGE, Place.EITHER)
    start = [t.name for t in problem.tensors if t.name not in produced and t.initially not in away]
    end = [t.name for t in problem.tensors if t.finally_ is Place.RAM]
    needs = [
        sum(sizes[name] for name in {*op.inputs, *op.outputs}) + problem.aligned_bytes(op.workspace_bytes)
        for op in problem.ops
    ]
    return max([*needs, sum(sizes[name] for name in start), sum(sizes[name] for name in end)])


def keep_bytes(problem: Problem) -> int:
    """RAM for every tensor and the largest workspace together: enough for any plan of single runs."""
    workspaces = [problem.aligned_bytes(op.workspace_bytes) for op in problem.ops]
    return sum(problem.aligned_bytes(tensor.bytes) for tensor in problem.tensors) + max(workspaces)


def random_limits(problem: Problem, seed: int, *, deadline: bool = False) -> Limits:
    """A RAM budget between the floor and everything; sometimes without recomputation or paging."""
    rng = random.Random(f"limits {problem.name} {seed}")
    low, high = floor_bytes(problem), keep_bytes(problem)
    recompute, paging = rng.choice([(True, True)] * 4 + [(True, False), (False, True)])
    return Limits(
        ram_budget_bytes=low + round((high - low) * rng.choice([0.0, 0.0, 0.15, 0.3, 0.5, 0.7])),
        deadline_seconds=problem.compute_seconds * rng.uniform(1.0, 3.0) if deadline else None,
        recompute=recompute,
        paging=paging,
        written_budget_bytes=rng.randint(0, high) if rng.random() < 0.15 else None,
    )


def with_homes(problem: Problem, seed: int) -> Problem:
    """``problem`` in which it is left to the plan where some of what is there from the start is at home."""
    rng = random.Random(f"homes {problem.name} {seed}")
    produced = {name for op in problem.ops for name in op.outputs}

    def chosen(tensor: Tensor) -> Tensor:
        page_in, page_out = tensor.page_in or Transfer(0.3, 0.4), tensor.page_out or Transfer(0.2, 0.5)
        if tensor.name in produced or rng.random() < 0.2:
            return tensor
        return dataclasses.replace(
            tensor, page_in=page_in, page_out=page_out, initially=Place.EITHER, finally_=None
        )

    return dataclasses.replace(problem, tensors=tuple(chosen(tensor) for tensor in problem.tensors))


def random_pins(problem: Problem, limits: Limits, seed: int) -> Limits:
    """``limits`` with some tensors pinned, in ways that do not contradict the problem as such."""
    rng = random.Random(f"pins {problem.name} {seed}")
    makers = {name: op for op in problem.ops for name in op.outputs}
    updated = {name for op in problem.ops for name in op.updates}
    pinned: dict[str, list[str]] = {"keep": [], "recompute": [], "page": [], "never_page": []}
    for tensor in problem.tensors:
        name, homeless = tensor.name, Place.STORAGE not in (tensor.initially, tensor.finally_)
        words = ["keep"]
        words += ["never_page"] if homeless else []
        if limits.paging and tensor.page_in is not None and tensor.page_out is not None:
            words.append("page")
        if limits.recompute and homeless and name in makers and name not in updated:
            words += ["recompute"] if makers[name].recomputable else []
        if rng.random() < 0.3:
            pinned[rng.choice(words)].append(name)
    pins = Pins(**{word: tuple(names) for word, names in pinned.items()})
    return dataclasses.replace(limits, pins=pins)


class _Builder:
    """A problem while it grows."""

    def __init__(self, rng: random.Random, features: frozenset[str]) -> None:
        self.rng, self.features = rng, features
        self.tensors: dict[str, Tensor] = {}
        self.ops: list[ProblemOp] = []
        self.sources: list[str] = []

    def chance(self, feature: str, probability: float) -> bool:
        return feature in self.features and self.rng.random() < probability

    def cost(self, scale: float) -> float:
        return 0.0 if self.chance("free", 0.15) else round(scale * self.rng.uniform(0.2, 2.0), 3)

    def tensor(self) -> str:
        name = f"t{len(self.tensors)}"
        size = 0 if self.chance("free", 0.1) else self.rng.randint(1, 12)
        page_in: Transfer | None = Transfer(self.cost(0.05 * size), self.cost(0.08 * size))
        page_out: Transfer | None = Transfer(self.cost(0.05 * size), self.cost(0.08 * size))
        if self.chance("unpageable", 0.4):
            page_out = None
            page_in = page_in if self.rng.random() < 0.3 else None
        stored = -(-size // 4) * 4 if "capacity" in self.features else None
        self.tensors[name] = Tensor(name, size, page_in, page_out, stored_bytes=stored)
        return name

    def source(self) -> str:
        name = self.tensor()
        self.sources.append(name)
        if self.chance("initially", 0.7):
            place = self.rng.choice([Place.STORAGE, Place.STORAGE, Place.BOTH, Place.RAM])
            tensor = self.tensors[name]
            page_in = tensor.page_in or Transfer(self.cost(0.3), self.cost(0.4))
            self.tensors[name] = dataclasses.replace(tensor, initially=place, page_in=page_in)
        return name

    def op(
        self, inputs: list[str], *, updates: tuple[str, ...] = (), outputs: int | None = None
    ) -> list[str]:
        if outputs is None:
            outputs = 2 if self.chance("outputs", 0.4) else 1
        earlier = list(self.tensors)
        written = [self.tensor() for _ in range(outputs)]
        recompute_inputs = None
        if self.chance("recompute_inputs", 0.4) and earlier:
            recompute_inputs = tuple(self.rng.sample(earlier, min(len(earlier), self.rng.randint(1, 2))))
        self.ops.append(
            ProblemOp(
                name=f"op{len(self.ops)}",
                inputs=tuple(dict.fromkeys((*inputs, *updates))),
                outputs=tuple(written),
                seconds=self.cost(1.0),
                joules=self.cost(1.0),
                workspace_bytes=self.rng.randint(0, 6) if "workspace" in self.features else 0,
                updates=updates,
                recompute_inputs=recompute_inputs,
                recomputable=not self.chance("once", 0.3) and outputs > 0,
                random=self.chance("random", 0.4),
            )
        )
        return written

    def maybe_update(self) -> None:
        if self.chance("updates", 0.5):
            target = self.rng.choice(list(self.tensors))
            others = [name for name in self.tensors if name != target]
            read = self.rng.sample(others, min(len(others), self.rng.randint(0, 2)))
            self.op(read, updates=(target,), outputs=self.rng.choice([0, 0, 1]))

    def dag(self, ops: int) -> None:
        """Each op reads one to three earlier tensors, mostly recent ones, sometimes the oldest."""
        for _ in range(self.rng.randint(1, 3)):
            self.source()
        while len(self.ops) < ops:
            names = list(self.tensors)
            reads = [names[-1 - min(int(self.rng.expovariate(0.7)), len(names) - 1)] for _ in range(2)]
            if self.rng.random() < 0.4:
                reads.append(self.rng.choice(names))
            self.op(list(dict.fromkeys(reads[: self.rng.randint(1, 3)])))
            if len(self.ops) < ops:
                self.maybe_update()

    def mirror(self, ops: int) -> None:
        """A forward chain, perhaps with residuals, and a backward chain that reads its activations."""
        activations = [self.source()]
        weights = []
        for layer in range(ops // 2):
            reads = [activations[-1]]
            if self.rng.random() < 0.4:
                weights.append(self.source())
                reads.append(weights[-1])
            if layer > 1 and self.rng.random() < 0.4:
                reads.append(activations[-3])
            activations.append(self.op(reads)[0])
        gradient = activations[-1]
        while len(self.ops) < ops and activations:
            reads = [gradient, activations.pop()]
            if weights and self.rng.random() < 0.4:
                reads.append(weights.pop())
            gradient = self.op(list(dict.fromkeys(reads)))[0]
            if len(self.ops) < ops:
                self.maybe_update()

    def problem(self, name: str) -> Problem:
        if "finally" in self.features:
            for tensor in list(self.tensors.values()):
                if self.rng.random() < 0.3:
                    place = self.rng.choice([Place.RAM, Place.STORAGE])
                    page_out = tensor.page_out or Transfer(self.cost(0.3), self.cost(0.4))
                    self.tensors[tensor.name] = dataclasses.replace(tensor, finally_=place, page_out=page_out)
        total = sum(self.stored(tensor) for tensor in self.tensors.values())
        begun = sum(
            self.stored(t) for t in self.tensors.values() if t.initially in (Place.STORAGE, Place.BOTH)
        )
        return Problem(
            name=name,
            tensors=tuple(self.tensors.values()),
            ops=tuple(self.ops),
            source="tests/helpers/random_problems.py",
            alignment_bytes=self.rng.choice([2, 4]) if "alignment" in self.features else 1,
            idle_watts=round(self.rng.uniform(0.1, 2.0), 3) if "idle" in self.features else 0.0,
            background_storage="background" in self.features,
            storage_capacity_bytes=(
                begun + round(total * self.rng.uniform(0.1, 0.8)) if "capacity" in self.features else None
            ),
        )

    @staticmethod
    def stored(tensor: Tensor) -> int:
        return tensor.bytes if tensor.stored_bytes is None else tensor.stored_bytes


@dataclass(frozen=True, slots=True)
class Speeds:
    """Costs of a made-up device: joules follow seconds at 1 W of compute and 1 W of storage."""

    flops_per_second: float = 1e9
    page_bytes_per_second: float = 5e7
    page_latency_seconds: float = 1e-4


def training_like(
    layers: int,
    *,
    seed: int = 0,
    widths: int = 4,
    parameters: Place = Place.RAM,
    momentum: bool = False,
    speeds: Speeds = Speeds(),
) -> Problem:
    """A training step of a residual net: about ten ops per layer, updates in place, one output each.

    Args:
        layers: convolution, normalisation and activation each; every second one closes a residual.
        widths: stages, each with half the activation and four times the parameters of the last.
        parameters: where parameters and momenta begin and end.
        momentum: keep a momentum buffer beside every parameter.
    """
    rng = random.Random(f"training {seed} {layers}")
    net = _Net(speeds, parameters)
    value = net.tensor("x", 4096 * rng.randint(30, 50), role="input")
    saved: list[tuple[int, str, str, str, str]] = []
    entry = value
    for layer in range(layers):
        stage = layer * widths // layers
        size = 4096 * max(4, 256 >> stage) + 64 * rng.randint(0, 16)
        weight = net.parameter(f"w{layer}", 4608 << (2 * stage), momentum=momentum)
        conv = net.op(f"conv{layer}", [value, weight], size, 300.0, workspace=size // 2)
        norm = net.op(f"norm{layer}", [conv], size, 6.0)
        if layer % 2 == 1:
            norm = net.op(f"add{layer}", [norm, entry], size, 1.0)
        relu = net.op(f"relu{layer}", [norm], size, 1.0)
        saved.append((layer, value, weight, conv, relu))
        entry = relu if layer % 2 == 1 else entry
        value = relu
    gradient = net.op("loss", [value], 4096, 1.0)
    for layer, value, weight, conv, relu in reversed(saved):
        size = net.bytes[relu]
        gradient = net.op(f"relu{layer}.back", [gradient, relu], size, 1.0)
        gradient = net.op(f"norm{layer}.back", [gradient, conv], size, 10.0)
        update = net.op(f"conv{layer}.weight", [gradient, value], net.bytes[weight], 300.0, workspace=size)
        net.update(f"update{layer}", weight, update)
        if layer > 0:
            gradient = net.op(f"conv{layer}.input", [gradient, weight], net.bytes[value], 300.0)
    # the input gradient reads the parameter that the update overwrites: updates go after it
    ops = _updates_last_moment(net.ops)
    return Problem(f"training{layers}", tuple(net.tensors), ops, source="tests/helpers/random_problems.py")


def dear_storage(seed: int, *, layers: int = 3) -> Problem:
    """A net whose page-outs cost as much as many ops, as on flash."""
    problem = training_like(layers, seed=seed)
    dear = (
        tensor if (out := tensor.page_out) is None
        else dataclasses.replace(tensor, page_out=dataclasses.replace(out, joules=20.0 * out.joules + 1.0))
        for tensor in problem.tensors
    )  # fmt: skip
    return dataclasses.replace(problem, tensors=tuple(dear))


def _updates_last_moment(ops: list[ProblemOp]) -> tuple[ProblemOp, ...]:
    ordered = list(ops)
    for index in range(len(ordered) - 1):
        first, second = ordered[index], ordered[index + 1]
        if first.updates and set(first.updates) & set(second.inputs):
            ordered[index], ordered[index + 1] = second, first
    return tuple(ordered)


class _Net:
    """A training graph while it grows."""

    def __init__(self, speeds: Speeds, place: Place) -> None:
        self.speeds, self.place = speeds, place
        self.tensors: list[Tensor] = []
        self.bytes: dict[str, int] = {}
        self.ops: list[ProblemOp] = []
        self.momenta: dict[str, str] = {}

    def tensor(self, name: str, size: int, *, role: str, place: Place | None = None) -> str:
        seconds = self.speeds.page_latency_seconds + size / self.speeds.page_bytes_per_second
        cost = Transfer(seconds, seconds)
        self.tensors.append(Tensor(name, size, cost, cost, role=role, initially=place, finally_=place))
        self.bytes[name] = size
        return name

    def parameter(self, name: str, size: int, *, momentum: bool) -> str:
        if momentum:
            self.momenta[name] = self.tensor(f"m.{name}", size, role="optimizer state", place=self.place)
        return self.tensor(name, size, role="parameter", place=self.place)

    def op(
        self, name: str, inputs: list[str], size: int, flops_per_byte: float, *, workspace: int = 0
    ) -> str:
        output = self.tensor(f"{name}.out", size, role="activation")
        seconds = flops_per_byte * size / self.speeds.flops_per_second
        self.ops.append(ProblemOp(name, tuple(inputs), (output,), seconds, seconds, workspace))
        return output

    def update(self, name: str, weight: str, gradient: str) -> None:
        updates = (weight, self.momenta[weight]) if weight in self.momenta else (weight,)
        seconds = 3 * self.bytes[weight] / self.speeds.flops_per_second
        self.ops.append(
            ProblemOp(name, (*updates, gradient), (), seconds, seconds, updates=updates, recomputable=False)
        )
