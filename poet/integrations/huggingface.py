"""The Trainer of Hugging Face inside a RAM budget: one line, a callback.

    trainer = Trainer(model, arguments, train_dataset=data, callbacks=[PoetCallback(ram="1GiB")])

Needs the extra ``huggingface``. With Accelerate alone: `poet.plan_forward`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from poet.errors import InputError
from poet.integrations.planned_forward import plan_forward, release


class PoetCallback(TrainerCallback):  # type: ignore[misc]
    """Plans the training passes of a `transformers.Trainer` by `poet.plan_forward`, while it trains.

    The Trainer's loss, optimizer, schedule, accumulation, clipping, evaluation and checkpoints stay its own.
    """

    def __init__(self, *, ram: str | int | None, page_file: str | Path | None = None, **options: Any) -> None:
        """What `poet.plan_forward` takes."""
        self._options: dict[str, Any] = {"ram": ram, "page_file": page_file, **options}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Plan the model from here on.

        Raises:
            InputError: the Trainer does what a plan cannot: another device, several, a compiled model.
        """
        refused = [
            name for name in ("torch_compile", "gradient_checkpointing", "fp16") if getattr(args, name)
        ]
        refused += [f"device {args.device}"] if args.device.type != "cpu" else []
        refused += [f"{args.world_size} processes"] if args.world_size > 1 else []
        if refused:
            raise InputError(
                f"the Trainer is set to {refused[0]}, which a plan is not for: one process on the CPU "
                "(use_cpu=True), eager, float32 or bf16, and recomputing by the plan alone"
            )
        model: nn.Module = kwargs["model"]
        release(model)  # of a training that was broken off
        plan_forward(model, **self._options)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Give the model its own forward back."""
        release(kwargs["model"])
