"""Training on the device: replays a plan file with PyTorch.

Needs torch, numpy and nothing else of what planning needs::

    with Trainer.open("plan.poet") as trainer:
        result = trainer.step(inputs, targets)
"""

from poet.runtime.data.given import Buckets
from poet.runtime.runs.fit import Allowance, Spending, fit, load_samples
from poet.runtime.runs.watching import MemoryWatcher
from poet.runtime.training.trainer import StepResult, Trainer

__all__ = [
    "Allowance",
    "Buckets",
    "MemoryWatcher",
    "Spending",
    "StepResult",
    "Trainer",
    "fit",
    "load_samples",
]
