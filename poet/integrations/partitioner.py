"""A solver for the partitioner of ``torch.compile``: what to save for backward, chosen for a peak in bytes.

The partitioner asks a knapsack solver which of its candidates (results that its other rules would save) to
recompute, and is given a fraction. A saved set decides the peak only by way of the graphs that are made of
it, so here the graphs are made: each set of a pool is partitioned as torch would, both graphs are walked with
the storages that are alive, and the cheapest set whose peak fits is taken. The pool does not depend on the
budget, hence a smaller budget never has the higher peak. What draws random numbers is saved in every set:
torch would draw others in backward, and the gradients would be those of another mask.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx
from torch._functorch import config as functorch_config
from torch._functorch import partitioners
from torch._functorch._activation_checkpointing.knapsack import dp_knapsack
from torch._inductor.custom_graph_pass import CustomKnapsackSolver
from torch.fx.experimental.proxy_tensor import is_sym_node
from torch.utils import _pytree as pytree
from torch.utils._ordered_set import OrderedSet
from torch.utils.checkpoint import CheckpointPolicy
from torch.utils.flop_counter import flop_registry

from poet.util.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from torch._functorch.partitioners import NodeInfo

_SIZES = 14  # nested sets that are tried
_FRACTIONS = (0.1, 0.25, 0.5, 0.75, 0.9)  # at which torch's own knapsack is asked for more
_LONGEST_SEGMENT = 8  # candidates between two that are saved
_FLOPS_PER_SECOND, _BYTES_PER_SECOND = 50e9, 10e9
_ATEN = torch.ops.aten
_LIKE = {_ATEN._scaled_dot_product_flash_attention_for_cpu: _ATEN._scaled_dot_product_flash_attention}
"""Operators that torch has no formula for, with one of the same products."""
_UNKNOWN_SIZE = 4096  # of a dimension of which torch knows nothing, as in its own estimate
_ASKED = 1e-9  # a fraction at which the partitioner asks its solver, whatever its other rules would save


@dataclass(frozen=True, slots=True)
class PartitionChoice:
    """What was chosen for one graph of ``torch.compile``.

    Attributes:
        peak_bytes: by the walk through both graphs: parameters, the batch and whatever is alive beside them.
        recomputed_seconds: a rough price of what runs twice.
        fits: whether the peak is within the budget.
        tried: how many sets were.
        recomputed: how many of the candidates are not saved.
    """

    peak_bytes: int
    recomputed_seconds: float
    fits: bool
    tried: int
    recomputed: int


def torch_solver(ram: str | int) -> TorchSolver:
    """A solver for the partitioner of ``torch.compile`` that keeps forward and backward within ``ram``.

        with poet.torch_solver(ram="64MiB").used():
            step(torch.compile(net, backend="aot_eager"))  # compiles at its first call

    The budget counts parameters and the batch, what lives between forward and backward, gradients and
    outputs; not the workspaces of kernels, the optimizer's state, or what the loss outside of the graph
    takes. Where no set of the pool fits, the one of the least peak is taken and a warning says so.

    Args:
        ram: bytes, or text (``"64MiB"``).

    Raises:
        InputError: ``ram`` is no size.
    """
    return TorchSolver(parse_bytes(ram) if isinstance(ram, str) else ram)


class TorchSolver(CustomKnapsackSolver):
    """See `torch_solver`.

    Attributes:
        ram_bytes: the budget.
        choices: what was chosen, graph by graph.
    """

    def __init__(self, ram_bytes: int) -> None:
        self.ram_bytes = ram_bytes
        self.choices: list[PartitionChoice] = []
        self._judged: dict[str, _Judged] = {}  # by graph

    def within(self, ram: str | int) -> TorchSolver:
        """A solver for another budget, which judges no set again of a graph that this one has seen.

        Args:
            ram: bytes, or text.

        Raises:
            InputError: ``ram`` is no size.
        """
        made = torch_solver(ram)
        made._judged = self._judged
        return made

    @contextmanager
    def used(self) -> Iterator[None]:
        """Compilations inside of the ``with`` block ask this solver.

        torch asks none where what it saves by its own rules is smaller than parameters and batch together; a
        warning says so where it never asked.
        """
        before = len(self.choices)
        with functorch_config.patch(activation_memory_budget=_ASKED, activation_memory_budget_solver=self):
            yield
        if len(self.choices) == before:
            warnings.warn(
                f"poet.torch_solver: torch never asked how to stay within {format_bytes(self.ram_bytes)}: no "
                "graph was compiled here, or what it saves takes less than parameters and batch together; "
                "compile with a larger batch, or use poet.wrap",
                stacklevel=3,
            )

    def uuid(self) -> object:
        """For torch's cache of compiled graphs."""
        return ("poet.torch_solver", 1, self.ram_bytes)

    def __call__(
        self,
        memory: list[float],
        joint_graph: fx.Graph,
        max_memory: float,
        node_info: NodeInfo,
        all_recomputable_banned_nodes: list[fx.Node],
    ) -> tuple[list[int], list[int]]:
        """Numbers of the candidates to save and to recompute."""
        nodes = all_recomputable_banned_nodes
        for node in joint_graph.nodes:
            if _draws(node):
                node.meta.setdefault("recompute", CheckpointPolicy.MUST_SAVE)
        key = _told(joint_graph, nodes)
        if key not in self._judged:
            self._judged[key] = _judged_pool(memory, joint_graph, node_info, nodes)
        tried = self._judged[key]
        fitting = {chosen: found for chosen, found in tried.items() if found[0] <= self.ram_bytes}
        if fitting:
            chosen = min(fitting, key=lambda item: (fitting[item][1], fitting[item][0], len(item)))
        else:
            chosen = min(tried, key=lambda item: (*tried[item], len(item)))
            warnings.warn(
                f"poet.torch_solver: no saved set that was tried fits {format_bytes(self.ram_bytes)}; the "
                f"one of the least peak is taken, {format_bytes(tried[chosen][0])}",
                stacklevel=2,
            )
        peak_bytes, seconds = tried[chosen]
        self.choices.append(PartitionChoice(peak_bytes, seconds, bool(fitting), len(tried), len(chosen)))
        saved = [number for number in range(len(nodes)) if number not in chosen]
        return saved, sorted(chosen)


_Judged = dict[frozenset[int], tuple[int, float]]
"""Peak in bytes and seconds of what runs twice, by the numbers of the candidates that are recomputed."""


def _told(graph: fx.Graph, nodes: Sequence[fx.Node]) -> str:
    """What the judgement of a pool depends on: the graph's calls and sizes, and its candidates."""
    calls = [
        (node.name, str(node.target), str(node.args), str(node.kwargs), [*_storages([node]).values()])
        for node in graph.nodes
    ]
    return repr((calls, [node.name for node in nodes]))


def _judged_pool(
    memory: Sequence[float], graph: fx.Graph, node_info: NodeInfo, nodes: Sequence[fx.Node]
) -> _Judged:
    """Every set of the pool, without what draws random numbers."""
    drawn = {number for number, node in enumerate(nodes) if _draws(node)}
    partition = _Partition(graph, node_info)
    judged: _Judged = {}
    for wished in _pool(memory, nodes, node_info):
        recomputed = wished - drawn
        if recomputed not in judged:
            judged[recomputed] = partition.judged([nodes[number] for number in recomputed])
    return judged


def _pool(memory: Sequence[float], nodes: Sequence[fx.Node], node_info: NodeInfo) -> list[frozenset[int]]:
    """Sets of candidates to recompute.

    Nested ones, by bytes per second and by their way from backward; those of torch's own knapsack; and all
    but every so many in the order of the forward pass (Chen et al., 2016, "Training deep nets with sublinear
    memory cost").
    """
    seconds = [_seconds_of(node) for node in nodes]
    order = sorted(
        range(len(nodes)), key=lambda number: (-memory[number] / (seconds[number] + 1e-12), number)
    )
    sizes = {round(len(nodes) * step / _SIZES) for step in range(_SIZES + 1)}
    pool = [frozenset(order[:size]) for size in sorted(sizes)]
    by_depth = sorted(range(len(nodes)), key=lambda number: getattr(nodes[number], "dist_from_bw", 0))
    pool += [frozenset(by_depth[:size]) for size in sorted(sizes)]
    whole = sum(memory)
    for fraction in _FRACTIONS:
        _, _, recomputed = dp_knapsack(list(memory), seconds, fraction * whole)
        pool.append(frozenset(recomputed))
    forward = sorted(range(len(nodes)), key=lambda number: node_info.fw_order.get(nodes[number], 0))
    for stride in range(2, min(_LONGEST_SEGMENT, len(nodes)) + 1):
        pool += [
            frozenset(forward) - frozenset(forward[first::stride]) for first in {0, stride // 2, stride - 1}
        ]
    return pool


class _Partition:
    """Makes the forward and the backward graph of a saved set, as torch does, and judges them."""

    def __init__(self, joint_graph: fx.Graph, node_info: NodeInfo) -> None:
        self._graph, self._info = joint_graph, node_info
        base = partitioners.MinCutOptions(
            ban_if_used_far_apart=False,
            ban_if_long_fusible_chains=False,
            ban_if_materialized_backward=False,
            ban_if_not_in_allowlist=False,
            ban_if_reduction=functorch_config.ban_recompute_reductions,
        )
        self._options = replace(base)
        primals = [node for node in joint_graph.find_nodes(op="placeholder") if _is_primal(node)]
        self._held = _storages(primals)
        results = pytree.tree_leaves(joint_graph.find_nodes(op="output")[0].args[0])
        self._fwd_outputs = len(results) - len(primals)

    def judged(self, recomputed: Iterable[fx.Node]) -> tuple[int, float]:
        """The peak in bytes, and the seconds of what runs a second time, where these are not saved."""
        module = self._graph.owning_module
        assert module is not None
        saved, _ = partitioners.solve_min_cut(self._graph, self._info, self._options, OrderedSet(recomputed))
        symbolic = [node for node in saved if is_sym_node(node)]
        values = [node for node in saved if not is_sym_node(node)]
        forward, backward = partitioners._extract_fwd_bwd_modules(
            module,
            values,
            saved_sym_nodes=symbolic,
            num_fwd_outputs=self._fwd_outputs,
            static_lifetime_input_nodes=self._info.static_lifetime_input_nodes,
        )
        backward = partitioners.reordering_to_mimic_autograd_engine(backward)
        handed = _storages(_results(forward.graph)[: self._fwd_outputs])
        peak_bytes = max(
            _peak_bytes(forward.graph, self._held), _peak_bytes(backward.graph, self._held | handed)
        )
        once = {node.name for node in forward.graph.nodes if node.op == "call_function"}
        twice = [node for node in backward.graph.nodes if node.op == "call_function" and node.name in once]
        return peak_bytes, sum(map(_seconds_of, twice))


def _peak_bytes(graph: fx.Graph, held: Mapping[int, int]) -> int:
    """The most that is alive while ``graph`` runs: ``held`` throughout, others to their last use."""
    nodes = list(graph.nodes)
    last: dict[int, int] = {}
    for place, node in enumerate(nodes):
        for storage in _storages([node, *node.all_input_nodes]):
            last[storage] = place
    alive = dict(held)
    current = sum(alive.values())
    peak = current
    ends: dict[int, list[int]] = {}
    for storage, place in last.items():
        if storage not in held:
            ends.setdefault(place, []).append(storage)
    for node in nodes:  # placeholders are all there when the graph begins
        if node.op == "placeholder":
            current += _added(node, alive)
    for place, node in enumerate(nodes):
        if node.op not in ("placeholder", "output"):
            current += _added(node, alive)
        peak = max(peak, current)
        for storage in ends.get(place, ()):
            current -= alive.pop(storage, 0)
    return peak


def _added(node: fx.Node, alive: dict[int, int]) -> int:
    """Bytes of storages that ``node`` brings; they are put among those ``alive``."""
    new = {storage: size for storage, size in _storages([node]).items() if storage not in alive}
    alive.update(new)
    return sum(new.values())


def _results(graph: fx.Graph) -> list[fx.Node]:
    leaves = pytree.tree_leaves(graph.find_nodes(op="output")[0].args[0])
    return [leaf if isinstance(leaf, fx.Node) else None for leaf in leaves]  # type: ignore[misc]


def _storages(nodes: Iterable[fx.Node | None]) -> dict[int, int]:
    """Bytes of the memory behind the values of ``nodes``, by an identity of it."""
    found = {}
    for node in nodes:
        for item in pytree.tree_leaves(node.meta.get("val") if node is not None else None):
            if isinstance(item, Tensor):
                storage = item.untyped_storage()
                found[storage._cdata] = int(storage.nbytes())
    return found


def _seconds_of(node: fx.Node) -> float:
    """A rough time of one run: its FLOPs, and its result written and as much read."""
    if not isinstance(node.target, torch._ops.OpOverload) or node.target.is_view:
        return 0.0
    moved = 2 * sum(_storages([node]).values())
    return _flops_of(node) / _FLOPS_PER_SECOND + moved / _BYTES_PER_SECOND


def _flops_of(node: fx.Node) -> float:
    """By torch's formula for its shapes, at least 1; nothing runs, as what indices hold is not known here."""
    packet: Any = getattr(node.target, "overloadpacket", None)
    count = flop_registry.get(_LIKE.get(packet, packet))
    if count is None:
        return 1.0

    def shaped(item: object) -> object:
        value = item.meta.get("val") if isinstance(item, fx.Node) else item
        if isinstance(value, Tensor):
            return partitioners._remove_symbols_without_guarding(value, fallback=_UNKNOWN_SIZE)
        return value

    args, kwargs, out = pytree.tree_map(shaped, (node.args, dict(node.kwargs), node.meta.get("val")))
    return max(float(count(*args, **kwargs, out_val=out)), 1.0)


def _draws(node: fx.Node) -> bool:
    """Whether it draws random numbers: run again in backward, it would draw others, and torch lets it."""
    return isinstance(node.target, torch._ops.OpOverload) and (
        torch.Tag.nondeterministic_seeded in node.target.tags
    )


def _is_primal(node: fx.Node) -> bool:
    return not any(str(node.target).startswith(kind) for kind in ("tangents", "bwd_", "fwd_seed", "bwd_seed"))
