"""What a case of the exactness matrix is made of: nets, modes, losses, optimizers and techniques.

A technique lists the nets in which it occurs, and what makes it occur in nets as small as these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import Any

import pytest
import torch
from helpers.nets import NETS as TINY
from helpers.nets import TinyNet
from helpers.part_nets import Products, layers, sums_alike
from helpers.row_net import Vocabulary, Words
from helpers.sequence_nets import NETS as SEQUENCES
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _NormBase
from zoo import NETS as ZOO

from poet.frontend.trace import TrainingStep
from poet.ir.graph import Graph, Op
from poet.ir.optimizer import OptimizerSpec, ParameterGroup
from poet.passes import rewrite

# --- nets -------------------------------------------------------------------------------------


class _Padded(nn.Module):
    """An image that is padded, an inner one with two readers, and one that a sum reads too."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.ZeroPad2d((0, 1, 0, 1)), nn.Conv2d(2, 4, 3, stride=2))
        self.inner = nn.Sequential(nn.Conv2d(4, 4, 3, stride=2, groups=4), nn.BatchNorm2d(4), nn.ReLU())
        self.other, self.last = nn.Conv2d(4, 4, 3, stride=2), nn.Conv2d(4, 4, 3, stride=2)
        self.out = nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = F.pad(torch.relu(self.first(x)), (0, 1, 0, 1))
        y = self.inner(y) + self.other(y)
        padded = F.pad(y, (0, 1, 0, 0))
        y = self.last(padded).flatten(1) + padded.sum((2, 3))
        scores: Tensor = self.out(torch.cat([y, y.tanh(), y.square()], 1))
        return scores


class _Reader(nn.Module):
    """Classes for each of 12 moments, which may stand first."""

    def __init__(self, *, time_first: bool = False) -> None:
        super().__init__()
        self.hidden, self.scores, self.time_first = nn.Linear(6, 8), nn.Linear(8, 5), time_first

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.scores(torch.tanh(self.hidden(x)))
        return found.transpose(0, 1) if self.time_first else found


class _Negative(nn.Module):
    """Its first gradient is a number without dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.layer(x)
        return -scores.square().mean()


class _Moments(nn.Module):
    """A recurrent layer, read at one moment and at the last."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer, self.out = layer, nn.Linear(layer.hidden_size * (1 + layer.bidirectional), 10)

    def forward(self, x: Tensor) -> Tensor:
        read = self.layer(x)[0]
        scores: Tensor = self.out(read[:, 1] + read[:, -1])
        return scores


class _TimeFirst(nn.Module):
    """A layer whose moments come before samples: its batches are strided, and its kernels others."""

    def __init__(self, layer: nn.Module, width: int) -> None:
        super().__init__()
        self.into, self.layer, self.out = nn.Linear(3, 4), layer, nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        read = self.layer(self.into(x).transpose(0, 1))
        scores: Tensor = self.out((read[0] if isinstance(read, tuple) else read)[-1])
        return scores


def _wide() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 40, 3, padding=1), nn.BatchNorm2d(40), nn.ReLU()),
        *(nn.Conv2d(40, 48, 3, bias=False), nn.ReLU(), nn.ConvTranspose2d(48, 5, 2, bias=False)),
        *(nn.Flatten(), nn.Linear(5 * 25, 70)),
    )


def _normal(*shape: int) -> Callable[[], tuple[Tensor, ...]]:
    return partial(_of, *shape)


def _of(*shape: int) -> tuple[Tensor, ...]:
    return (torch.randn(shape),)


def _numbers(below: int, *shape: int) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: (torch.randint(below, shape),)


def _of_classes(build: Callable[[], nn.Module], *shape: int) -> TinyNet:
    return TinyNet(build, _normal(*shape), lambda: torch.randint(10, (shape[0],)))


def _of_words(build: Callable[[], nn.Module], below: int, classes: int, length: int) -> TinyNet:
    targets = _numbers(classes, 2, length)
    return TinyNet(build, _numbers(below, 2, length), lambda: targets()[0], "cross-entropy:dim=-1")


def _of_moments(loss: str) -> TinyNet:
    return TinyNet(lambda: _Reader(time_first="time_first" in loss), _normal(3, 12, 6), lambda: None, loss)


NETS: dict[str, TinyNet] = TINY | {
    "reader": _of_moments("ctc"),
    "reader, summed": _of_moments("ctc:length=5,reduction=sum"),
    "reader, other blank": _of_moments("ctc:blank=4,zero_infinity=yes,length=3"),
    "reader, time first": _of_moments("ctc:time_first=yes"),
    "negative": TinyNet(_Negative, _normal(2, 4), lambda: None, "output"),
    "padded": _of_classes(_Padded, 2, 2, 12, 12),
    "wide": _of_classes(_wide, 2, 3, 6, 6),
    "layers": _of_classes(layers, 3, 12),
    "products": _of_classes(Products, 3, 40),
    "gru, odd size": _of_classes(lambda: _Moments(nn.GRU(5, 9, batch_first=True)), 5, 4, 5),
    "gru without bias": _of_classes(lambda: _Moments(nn.GRU(5, 7, bias=False, batch_first=True)), 3, 4, 5),
    "gru, two layers": _of_classes(
        lambda: _Moments(nn.GRU(5, 10, 2, bidirectional=True, dropout=0.4, batch_first=True)), 2, 20, 5
    ),
    "rnn of relu": _of_classes(
        lambda: _Moments(nn.RNN(5, 8, 2, nonlinearity="relu", bidirectional=True, batch_first=True)), 5, 4, 5
    ),
    "lstm, time first": _of_classes(lambda: _TimeFirst(nn.LSTM(4, 5, 2, dropout=0.2), 5), 5, 5, 3),
    "encoder, time first": _of_classes(
        lambda: _TimeFirst(nn.TransformerEncoderLayer(4, 2, 7, dropout=0.2), 4), 5, 5, 3
    ),
    "table": _of_words(Words, 500, 7, 12),
    "table twice": _of_words(lambda: Words(twice=True), 500, 7, 12),
    "vocabulary": _of_words(lambda: Vocabulary(tied=False), 640, 640, 16),
    "tied vocabulary": _of_words(lambda: Vocabulary(tied=True), 640, 640, 16),
}

for _name, _sequence in SEQUENCES.items():
    NETS[f"sequence, {_name}"] = TinyNet(_sequence.build, partial(_of, *_sequence.shape), lambda: None)
for _name, _net in ZOO.items():
    NETS[f"zoo, {_name}"] = TinyNet(
        _net.small.build, partial(_net.small.inputs, 4), partial(_net.small.targets, 4), _net.loss
    )

OWN_LOSS = "the net's"
"""Of `LOSSES`: what each net says itself."""

QUICK = frozenset(
    {
        "cnn", "mobile", "dropout", "noise", "masked-attention", "gru", "tied", "norms", "channels-last",
        "own-state", "normed-weights", "shared-norm", "checkpointed", "sums", "bags", "bce",
        "bfloat16", "negative", "padded", "wide", "layers", "products", "rnn of relu", "table",
        "reader, summed", "vocabulary",
    }
)  # fmt: skip
"""Nets that the fast half has."""

TEN_CLASSES = frozenset(
    {
        "cnn", "mobile", "dropout", "noise", "transformer", "masked-attention", "lstm", "gru", "frozen",
        "norms", "channels-last", "evaluating", "writes", "normed-weights", "shared-norm", "checkpointed",
        "padded", "gru, odd size", "gru without bias", "gru, two layers",
        "rnn of relu",
    }
)  # fmt: skip
"""Nets that every loss is tried on."""

_WEIGHTS = "weight=" + "/".join(["1.0", "2.0", "0.5", "1.0", "3.0"] * 2)
LOSSES = (
    OWN_LOSS,
    f"cross-entropy:label_smoothing=0.1,ignore_index=2,{_WEIGHTS}",
    f"cross-entropy:label_smoothing=0.2,{_WEIGHTS},reduction=sum",
    f"nll:ignore_index=1,{_WEIGHTS}",
    "focal",
    "focal:gamma=1.5,reduction=sum",
    "mse",
    "mse:reduction=sum",
    "l1",
    "huber:delta=0.3",
    "smooth-l1:beta=0.4",
    "bce",
    "bce-with-logits:pos_weight=3.0",
    "kl-div:reduction=sum",
    "kl-div:log_target=yes",
    "distillation:temperature=3.0",
    "output",
)
_LAST: dict[str, Callable[[], nn.Module]] = {
    "bce": nn.Sigmoid,
    "nll": lambda: nn.LogSoftmax(1),
    "kl-div": lambda: nn.LogSoftmax(1),
}
"""What a loss of probabilities or of their logarithms has before it."""


def built(net: str, loss: str) -> nn.Module:
    """The net with seed 0, ending as the loss needs it."""
    torch.manual_seed(0)
    module = NETS[net].build()
    last = _LAST.get(loss.partition(":")[0])
    return nn.Sequential(module, last()) if last else module


# --- modes ------------------------------------------------------------------------------------


def _norms(module: nn.Module) -> dict[str, _NormBase]:
    return {name: item for name, item in module.named_modules() if isinstance(item, _NormBase)}


def _evaluating(module: nn.Module) -> None:
    module.eval()


def _frozen_norms(module: nn.Module) -> None:
    for norm in _norms(module).values():
        norm.eval().requires_grad_(False)


def _norm_weights(module: nn.Module) -> tuple[str, ...]:
    return tuple(f"{name}.weight" for name, norm in _norms(module).items() if norm.weight is not None)


def _last_layer(module: nn.Module) -> tuple[str, ...]:
    return ([name for name, _ in module.named_parameters()][-1].rpartition(".")[0] + "*",)


MODES: dict[str, Callable[[nn.Module], tuple[str, ...] | None]] = {
    "as built": lambda module: None,
    "evaluating": _evaluating,
    "frozen norms": _frozen_norms,
    "last layer": _last_layer,
    "biases": lambda module: ("*bias*",),
    "norm weights": _norm_weights,
}
"""By name what sets a module up, and gives patterns of what is trained; ``None``: all of it."""

NORMED = {"cnn", "mobile", "norms", "channels-last", "shared-norm", "padded", "wide"}

# --- optimizers -------------------------------------------------------------------------------

OPTIMIZERS = {
    name: OptimizerSpec.parse(text)
    for name, text in {
        "sgd": "sgd:lr=0.05",
        "sgd, decay": "sgd:lr=0.1,weight_decay=0.1",
        "momentum": "momentum:lr=0.05,weight_decay=0.01",
        "dampened": "momentum:lr=0.05,dampening=0.1",
        "nesterov": "momentum:lr=0.05,nesterov=yes,weight_decay=0.01,maximize=yes",
        "adam": "adam:lr=0.05,weight_decay=0.1",
        "amsgrad": "adam:lr=0.05,weight_decay=0.1,amsgrad=yes",
        "adamw": "adamw:lr=0.01",
        "adamw, amsgrad": "adamw:lr=0.05,amsgrad=yes,maximize=yes",
        "rmsprop": "rmsprop:lr=0.05,momentum=0.5,centered=yes",
        "adagrad": "adagrad:lr=0.05,lr_decay=0.1,initial=0.5",
        "adadelta": "adadelta:lr=0.5,rho=0.8",
        "adamax": "adamax:lr=0.05,weight_decay=0.1,maximize=yes",
        "nadam": "nadam:lr=0.05,momentum_decay=0.1,decoupled_weight_decay=yes",
        "radam": "radam:lr=0.05,betas=0.9/0.95,weight_decay=0.1",
        "lion": "lion:lr=0.05,weight_decay=0.1",
    }.items()
} | {
    "clipped values": OptimizerSpec("momentum", lr=0.1, nesterov=True, clip_value=0.01),
    "clipped norm": OptimizerSpec("adamw", lr=0.1, clip_norm=0.05, clip_value=0.1),
    "groups": OptimizerSpec("adamw", lr=0.1, weight_decay=0.1),
    "groups of momentum": OptimizerSpec("momentum", lr=0.1, momentum=0.5),
}


def optimizer_of(name: str, first: str) -> OptimizerSpec:
    """As named; ``first`` is the parameter that has settings of its own where there are groups."""
    spec = OPTIMIZERS[name]
    if not name.startswith("groups"):
        return spec
    own = {"momentum": 0.3} if spec.name == "momentum" else {"weight_decay": 0.0}
    return replace(spec, groups=(ParameterGroup((first,), lr=0.5, **own),))


# --- techniques -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Technique:
    """One way to need less memory.

    Attributes:
        occurs: whether a step's graph has it.
        nets: in which it occurs; ``None``: in all.
        options: of the trace.
        thresholds: by dotted name, that are lowered so that it occurs in a tiny net.
        device: whose kernels run the step, where they are not torch's.
    """

    occurs: Callable[[Graph], bool]
    nets: frozenset[str] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    thresholds: Mapping[str, Any] = field(default_factory=dict)
    device: str | None = None

    @contextmanager
    def in_tiny_nets(self) -> Iterator[None]:
        """The thresholds are lowered."""
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.thresholds.items():
                patch.setattr(name, value)
            for name in _TRIED:
                patch.setattr(name, {})
            yield


def _calls(*targets: str) -> Callable[[Graph], bool]:
    return lambda graph: any(op.call.target in targets for op in graph.ops)


def _strips(matches: Callable[[Op], bool]) -> Callable[[Graph], bool]:
    return lambda graph: any(op.strip is not None and matches(op) for op in graph.ops)


def _is_over_an_operand(op: Op) -> bool:
    return op.strip is not None and op.strip.overwritten is not None


def _is_streamed(op: Op) -> bool:
    return op.strip is not None and bool(op.strip.inner) and not _is_over_an_operand(op)


def _is_slice(op: Op) -> bool:
    return op.strip is not None and not op.strip.inner


_TRIED = ("poet.runtime.trials.blocks._offers", "poet.runtime.trials.trial._exact")
"""What earlier trials found, under other thresholds."""

_ANY_TIME = {
    "poet.passes.block_choice.ALLOWANCE": inf,
    "poet.passes.block_choice.TRIED_SHARE": inf,
    "poet.runtime.trials.blocks.LEAST_BLOCK_BYTES": 0,
    "poet.runtime.trials.blocks._LEAST_PAIRS": 1,
    "poet.runtime.trials.blocks._TIMING_SECONDS": 0.0,
    "poet.runtime.trials.blocks._WALL_TIMING_SECONDS": 0.0,
}
_IN_PARTS = {
    "poet.passes.parts.LEAST_BYTES": 2048,
    "poet.passes.parts.LEAST_SHARE": 0.0,
    "poet.passes.parts._LEAST_PART_BYTES": 1024,
    "poet.passes.parts._STEPS": (8, 16),
}
_TABLE_IN_PARTS = _IN_PARTS | {
    "poet.passes.parts.LEAST_BYTES": 24 * 1024,
    "poet.passes.parts._STEPS": (96, 192),
}
TECHNIQUES: dict[str, Technique] = {
    "none": Technique(lambda graph: True, options={"measure": False, "gradients": "keep"}),
    "packed saves": Technique(
        _calls("poet.relu", "poet.max_pool", "poet.masked", "poet.bernoulli_bits"),
        frozenset({"cnn", "dropout", "transformer", "masked-attention", "lstm", "unet", "evaluating"}),
        thresholds={"poet.passes.compressed.LEAST_BYTES": 64},
    ),
    "in place": Technique(
        _strips(_is_over_an_operand),
        frozenset({"cnn", "mobile", "dropout", "norms", "writes", "unet", "shared-norm", "normed-weights"}),
        thresholds={
            "poet.passes.in_place.LEAST_BYTES": 64,
            "poet.passes.in_place.LEAST_COPIED_BYTES": 64,
            "poet.ir.strips._COPIED_BLOCK_BYTES": 256,
        },
    ),
    "strips": Technique(
        _strips(_is_streamed),
        frozenset({"gpt", "transformer", "writes", "wide"}),
        thresholds=_ANY_TIME | {"poet.passes.strips.LEAST_BYTES": 1024},
    ),
    "slices": Technique(
        _strips(_is_slice),
        frozenset({"wide", "norms", "mobile"}),
        thresholds=_ANY_TIME
        | {"poet.passes.strips.LEAST_WORKSPACE_BYTES": 256, "poet.passes.strips.LEAST_SHARE": 0.0},
    ),
    "logits in blocks": Technique(
        _calls("poet.logits_loss"),
        frozenset({"vocabulary", "tied vocabulary"}),
        options={"gradients": "logits"},
    ),
    "C kernels": Technique(
        _strips(lambda op: True),
        frozenset(
            {"cnn", "mobile", "padded", "dropout", "masked-attention", "norms", "shared-norm", "negative"}
        ),
        device="nrf52840",
    ),
    "row reads": Technique(
        _calls("poet.stored_rows"),
        frozenset({"table", "table twice"}),
        options={"in_parts": True, "train": ("mix*", "head*")},
        thresholds=_TABLE_IN_PARTS,
    ),
    "row updates": Technique(
        _calls("poet.stored_rows_sgd"),
        frozenset({"table"}),
        options={"in_parts": True},
        thresholds=_TABLE_IN_PARTS,
    ),
}
if sums_alike():
    TECHNIQUES["parts"] = Technique(
        lambda graph: bool(graph.wholes),
        frozenset({"layers", "products"}),
        options={"in_parts": True},
        thresholds=_IN_PARTS,
    )


def by_row(step: TrainingStep) -> TrainingStep:
    """``step`` with its table's rows read, and updated, where they lie in storage."""
    assert step.forms is not None
    taken = step.forms.of(rewrite.Technique.STORED_ROWS)
    return replace(step, graph=step.forms.graph(taken), kernels=step.forms.kernels(taken), forms=None)
