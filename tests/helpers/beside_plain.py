"""A plan trained beside its module in plain PyTorch, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from poet.frontend.plain import PlainTrainer
from poet.ir.optimizer import OptimizerSpec
from poet.runtime import Trainer


def assert_trains_alike(plan: Path, net: nn.Module, spec: OptimizerSpec, shape: Sequence[int]) -> None:
    """Three steps of a classifier of three classes give the losses and the state of ``net`` beside it.

    Args:
        plan: the file of its plan, with the loss cross-entropy.
        net: in the mode that the plan trains in.
        spec: the plan's optimizer.
        shape: of the inputs, the batch first.
    """
    names = [name for name, _ in net.named_parameters()]
    plain = PlainTrainer(net, loss="cross-entropy", optimizer=spec, trained=names)
    with Trainer.open(plan, seed=1) as trainer:
        torch.manual_seed(1)
        for number in range(3):
            generator = torch.Generator().manual_seed(number)
            inputs = torch.randn(*shape, generator=generator)
            targets = torch.randint(3, (shape[0],), generator=generator)
            assert trainer.step(inputs, targets).loss == float(plain.step([inputs], targets)[0])
        state = trainer.state_dict()
        assert all(torch.equal(tensor, state[name]) for name, tensor in net.state_dict().items())
