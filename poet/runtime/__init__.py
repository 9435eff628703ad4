"""Training on the device: replays a plan file with PyTorch.

Needs torch, numpy and nothing else of what planning needs::

    with Trainer.open("plan.poet") as trainer:
        result = trainer.step(inputs, targets)
"""

from poet.runtime.trainer import StepResult, Trainer

__all__ = ["StepResult", "Trainer"]
