"""Nets that do what a trace cannot see, and what is said of each."""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential, create_selective_checkpoint_contexts


class Net(nn.Module):
    """Layers, between which ``run`` does something; ``setup`` adds what it needs."""

    def __init__(self, run: Callable[..., Any], setup: Callable[..., object] | None = None) -> None:
        super().__init__()
        self.a, self.m, self.o, self.n = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4), 0
        self.run: Any = run
        if setup is not None:
            setup(self)

    def forward(self, x: Tensor) -> Any:
        return self.o(self.run(self, torch.tanh(self.a(x))))


def with_parts(**parts: Callable[[], object]) -> Callable[[Net], None]:
    def setup(net: Net) -> None:
        for key, make in parts.items():
            setattr(net, key, make())

    return setup


def _block(s: Any, v: Tensor) -> Tensor:
    return F.dropout(torch.tanh(s.m(v)), 0.5) * v


def _ck(run: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return lambda s, h: checkpoint(functools.partial(run, s), h, **{"use_reentrant": False, **options})


def same(s: Any, h: Tensor) -> Tensor:
    return h


def _attention(s: Any, v: Tensor) -> Any:
    return torch.softmax(s.q(v) @ s.k(v).T, -1) @ s.m(v) + 0.1 * v


def _norm(s: Any, v: Tensor) -> Tensor:
    return F.relu(s.bn(s.m(v)))


def _mean(s: Any, v: Tensor) -> Any:
    s.e.mul_(0.9).add_(v.detach().mean(0), alpha=0.1)
    return torch.tanh(s.m(v)) - s.e


def _repeated(s: Any, h: Tensor, *, uses: int, reentrant: bool = True) -> Any:
    def inner(v: Tensor) -> Any:
        for _ in range(uses):
            v = torch.tanh(s.m(v))
        return v

    h = torch.sin(s.m(h))
    for _ in range(3):
        h = checkpoint(inner, h, use_reentrant=reentrant)
    return torch.sin(s.m(h)) if uses > 1 else h


def _nested(s: Any, h: Tensor, *, outer: bool, inner: bool) -> Any:
    def around(v: Tensor) -> Any:
        return checkpoint(lambda u: _block(s, u), F.dropout(v, 0.2), use_reentrant=inner) * v

    return checkpoint(around, h, use_reentrant=outer)


def _first(*, reentrant: bool) -> nn.Module:
    class First(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.o = nn.Linear(8, 8), nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Any:
            return self.o(checkpoint(lambda v: torch.tanh(self.a(v)), x, use_reentrant=reentrant))

    return First()


def _fork(s: Any, h: Tensor) -> Tensor:
    with torch.random.fork_rng():
        return F.dropout(h, 0.5)


def _fork_nothing(s: Any, h: Tensor) -> Tensor:
    with torch.random.fork_rng():
        torch.manual_seed(1)
    return F.dropout(h, 0.5)


def _twice_the_same(s: Any, h: Tensor) -> Tensor:
    state = torch.get_rng_state()
    first = F.dropout(h, 0.5)
    torch.set_rng_state(state)
    return first + F.dropout(h * 2, 0.5)


def _after(call: Callable[..., object]) -> Callable[..., Any]:
    def run(s: Any, h: Tensor) -> Tensor:
        call(s)
        return F.dropout(h, 0.5)

    return run


def _lazy_generator(s: Any, h: Tensor) -> Tensor:
    if not s.n:
        s.n, s.g = 1, torch.Generator().manual_seed(1)
    return h + torch.rand(6, 8, generator=s.g)


def _counted(of: Callable[[int], float]) -> Callable[..., Any]:
    def run(s: Any, h: Tensor) -> Tensor:
        s.n += 1
        return h * of(s.n)

    return run


def _in_closure() -> nn.Module:
    count = 0

    def run(s: Any, h: Tensor) -> Tensor:
        nonlocal count
        count += 1
        return h * min(1.0, count / 10)

    return Net(run)


GLOBAL_STEPS = 0
GLOBAL_NUMBERS = np.random.default_rng(5)


def _global(s: Any, h: Tensor) -> Tensor:
    global GLOBAL_STEPS
    GLOBAL_STEPS += 1
    return h * (2 if GLOBAL_STEPS > 5000 else 1)


class _OfClass(Net):
    seen = 0

    def forward(self, x: Tensor) -> Any:
        _OfClass.seen += 1
        return super().forward(x) * (2 if _OfClass.seen > 5000 else 1)


def _carried(s: Any, h: Tensor) -> Any:
    s.h = (h if s.h is None else h + s.h).detach()
    return s.h + h


def _cached(s: Any, h: Tensor) -> Any:
    if s.t is None:
        s.t = torch.zeros(8)
        s.t[::2] = torch.arange(4).float().sin()
        s.length = 8
    return h + s.t[: s.length]


def _replaced(s: Any, h: Tensor) -> Any:
    s.e = 0.9 * s.e + 0.1 * h.detach().mean(0)
    return h - s.e


def _aux(s: Any, h: Tensor) -> Tensor:
    s.aux = h.pow(2).mean()
    return h


class _ByHand(torch.autograd.Function):
    """Its backward pass draws the mask again, from the state that forward kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.state = torch.get_rng_state()
        return F.dropout(x, 0.5)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        with torch.random.fork_rng():
            torch.set_rng_state(ctx.state)
            return F.dropout(gradient, 0.5)


class _Counting(torch.autograd.Function):
    calls = 0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        _Counting.calls += 1
        return gradient / _Counting.calls


def on_weight(*hooks: Callable[[Tensor], Tensor | None]) -> Callable[[Any], object]:
    return lambda net: [net.a.weight.register_hook(hook) for hook in hooks]


def _two_contexts() -> Any:
    return contextlib.suppress(ValueError), contextlib.suppress(KeyError)


def _with_counter(s: Any) -> None:
    s.a.weight.register_hook(functools.partial(_times_next, itertools.count(1)))


def _times_next(counter: Any, g: Tensor) -> Tensor:
    return g.mul(next(counter))


def _tied() -> nn.Module:
    layer: Any = nn.Linear(8, 8)
    layer.weight.register_hook(lambda g: g.clamp(-0.01, 0.01))
    return nn.Sequential(layer, nn.Tanh(), nn.Sequential(layer, nn.Tanh()), nn.Linear(8, 4))


def _on_node(net: Any) -> None:
    net.node = torch.autograd.graph.get_gradient_edge(net.a.weight).node
    net.node.register_prehook(lambda g: (g[0] * 0.5,))


_by_hand: Any = _ByHand.apply
_counting: Any = _Counting.apply
_sequential: Any = checkpoint_sequential
BN = with_parts(bn=lambda: nn.BatchNorm1d(8))
EMA = lambda net: net.register_buffer("e", torch.zeros(8))  # noqa: E731
OWN = with_parts(g=lambda: torch.Generator().manual_seed(1))
ADDS_UP = "in an order of its own; leave checkpoint out"
STATE, GENERATOR = "sets the state of torch's random generator", "draws from a torch.Generator of its own"
LATER, AGAIN = "in every pass, and a plan's steps do not", "something else in its next pass, by "
SELECTIVE = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default])

Row = tuple[Callable[[], nn.Module], str, str]


def _row(run: Any, setup: Any = None, plan: str = "", wrap: str | None = None) -> Row:
    """How to make a module, what `poet.plan` says of it, and `poet.wrap`: nothing where both are right."""
    return lambda: Net(run, setup), plan, plan if wrap is None else wrap


ROWS: dict[str, Row] = {
    "block": _row(_ck(_block)),
    "block, reentrant": _row(_ck(_block, use_reentrant=True)),
    "block, selective": _row(_ck(_block, context_fn=SELECTIVE)),
    "block, other context": _row(_ck(_block, context_fn=_two_contexts), plan="another context_fn"),
    "block, named argument": _row(
        lambda s, h: checkpoint(lambda v, *, k: _block(s, v) * k, h, k=h, use_reentrant=False)
    ),
    "block, no state kept": _row(_ck(_block, preserve_rng_state=False), plan="draws other numbers"),
    "first block, reentrant": (
        lambda: _first(reentrant=True), "not trained, as in plain PyTorch.*a.bias, a.weight",
        "not trained, as in plain PyTorch.*a.bias, a.weight",
    ),
    "first block": (lambda: _first(reentrant=False), "", ""),
    "sequence of blocks": _row(
        lambda s, h: _sequential(s.q, 2, h, use_reentrant=True),
        with_parts(
            q=lambda: nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.4), nn.Linear(8, 8), nn.Dropout(0.2))
        ),
    ),
    "nested blocks, reentrant": _row(functools.partial(_nested, outer=True, inner=True)),
    "nested blocks, mixed": _row(functools.partial(_nested, outer=False, inner=True)),
    "block with batch norm": _row(_ck(_norm), BN),
    "block with batch norm, reentrant": _row(_ck(_norm, use_reentrant=True), BN),
    "block that writes": _row(_ck(_mean), EMA, "writes e; leave checkpoint out"),
    "attention, reentrant": _row(
        lambda s, h: h + _ck(_attention, use_reentrant=True)(s, h) + torch.sin(h),
        with_parts(q=lambda: nn.Linear(8, 8), k=lambda: nn.Linear(8, 8)),
    ),
    "shared once, reentrant": _row(functools.partial(_repeated, uses=1), wrap=ADDS_UP),
    "shared twice, reentrant": _row(functools.partial(_repeated, uses=2), plan=ADDS_UP),
    "shared twice": _row(functools.partial(_repeated, uses=2, reentrant=False)),
    "LSTM, reentrant": _row(
        lambda s, h: checkpoint(lambda v: s.l(v[None])[0][0], h, use_reentrant=True),
        with_parts(l=lambda: nn.LSTM(8, 8, batch_first=True)), "has an LSTM",
    ),
    "manual_seed": _row(_after(lambda s: torch.manual_seed(7)), plan=STATE),
    "default_generator": _row(_after(lambda s: torch.default_generator.manual_seed(3)), plan=STATE),
    "manual_seed at the end": _row(lambda s, h: (F.dropout(h), torch.manual_seed(4))[0], plan=STATE),
    "fork_rng": _row(_fork, plan=STATE),
    "fork_rng around nothing": _row(_fork_nothing),
    "set_rng_state": _row(_twice_the_same, plan=STATE),
    "state as a number": _row(lambda s, h: h * (torch.initial_seed() % 97), plan=AGAIN),
    "function that sets the state": _row(lambda s, h: _by_hand(h), plan=STATE),
    "generator": _row(lambda s, h: h + torch.rand(6, 8, generator=s.g), OWN, GENERATOR),
    "generator of bernoulli_": _row(
        lambda s, h: h * torch.empty_like(h).bernoulli_(0.5, generator=s.g), OWN, GENERATOR
    ),
    "generator made late": _row(_lazy_generator, plan=GENERATOR),
    "gradient hook": _row(same, on_weight(lambda g: g.clamp(-0.01, 0.01))),
    "gradient hook in place": _row(same, on_weight(lambda g: (g.mul_(0.5), None)[1])),
    "gradient hook reads": _row(
        same, lambda net: net.a.weight.register_hook(lambda g: g + 0.1 * net.a.weight.detach())
    ),
    "gradient hook that draws": _row(same, on_weight(lambda g: g + 0.1 * torch.randn_like(g))),
    "gradient hooks of all": _row(same, lambda s: [p.register_hook(torch.neg) for p in s.parameters()]),
    "gradient hook of a shared part": (_tied, "", ""),
    "gradient hook that counts": _row(same, _with_counter, AGAIN, ""),
    "later gradient hook": _row(
        same, lambda s: s.a.weight.register_post_accumulate_grad_hook(lambda p: (p.grad.mul_(0.5), None)[1]),
        "a.weight has a hook that runs where its gradient is added up", "",
    ),
    "gradient hook of a node": _row(same, _on_node, "a.weight has a hook that runs where", ""),
    "forward hook": _row(same, lambda s: s.a.register_forward_hook(lambda m, i, o: o * 2)),
    "backward hook": _row(same, lambda s: s.o.register_full_backward_hook(lambda m, i, o: (i[0] * 0.5,))),
    "state dict": _row(
        same, lambda s: s._register_state_dict_hook(lambda m, d, p, i: (d.pop("a.bias"), None)[1]),
        r"changes its state dict .*\(a.bias\)", "",
    ),
    "count": _row(_counted(lambda n: min(1.0, n / 10)), plan=AGAIN + "Net.n, which it changes"),
    "count, third step": _row(_counted(lambda n: 2 if n == 3 else 1), plan=AGAIN + "Net.n, which"),
    "count, late": _row(_counted(lambda n: 2 if n > 50 else 1), plan=f"changes Net.n {LATER}"),
    "count in a closure": (_in_closure, AGAIN + "count, which", AGAIN + "count, which"),
    "count in a global": _row(_global, plan=f"changes GLOBAL_STEPS {LATER}"),
    "count in a class": (
        lambda: _OfClass(same), f"changes _OfClass.seen {LATER}", f"changes _OfClass.seen {LATER}"
    ),
    "count in a function": _row(lambda s, h: _counting(h), plan=AGAIN + "_Counting.calls, which"),
    "list": _row(lambda s, h: (s.k.append(1), h * len(s.k))[1], with_parts(k=list), AGAIN + "Net.k, which"),
    "deque, late": _row(
        lambda s, h: (s.k.append(1), h * (2 if len(s.k) > 50 else 1))[1],
        with_parts(k=collections.deque), f"changes Net.k {LATER}",
    ),
    "iterator": _row(
        lambda s, h: h * next(s.k), with_parts(k=lambda: iter([1] * 30 + [2])), f"changes Net.k {LATER}"
    ),
    "nested count": (
        lambda: nn.Sequential(nn.Linear(8, 8), nn.Sequential(Net(_counted(lambda n: n / 10)))),
        AGAIN + "1.0.n, which", AGAIN + "1.0.n, which",
    ),
    "random": _row(lambda s, h: h * 2 if random.random() < 0.01 else h, plan="draws from Python's random"),
    "numpy": _row(lambda s, h: h * float(np.random.rand()), plan="draws from numpy.random"),
    "numpy's generator": _row(
        lambda s, h: h * (2 if s.k.random() < 0.01 else 1), with_parts(k=lambda: np.random.default_rng(0)),
        "draws from Net.k",
    ),
    "a global generator": _row(
        lambda s, h: h * (2 if GLOBAL_NUMBERS.random() < 0.01 else 1), plan="draws from GLOBAL_NUMBERS"
    ),
    "Random": _row(
        lambda s, h: h * (2 if s.k.random() < 0.01 else 1), with_parts(k=lambda: random.Random(0)),
        "draws from Net.k",
    ),
    "clock": _row(lambda s, h: h * (time.perf_counter() % 7), plan=AGAIN + "something out of sight"),
    "carried tensor": _row(_carried, with_parts(h=lambda: None), AGAIN + "Net.h, which"),
    "replaced buffer": _row(_replaced, EMA),
    "cached table": _row(_cached, with_parts(t=lambda: None)),
    "attribute": _row(_aux, plan=f"changes Net.aux {LATER}"),
}  # fmt: skip
FAST = {
    "block", "block with batch norm, reentrant", "manual_seed", "gradient hook", "count", "random",
    "carried tensor",
}  # fmt: skip
