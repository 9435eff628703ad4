"""The Trainer of Hugging Face inside a RAM budget: a text classifier, an image classifier, adapters of GPT-2.

pip install '.[huggingface]'
python examples/huggingface_trainer.py [distilbert|vit|gpt2-lora] [RAM]

The models are made from a configuration and the data from a seed; nothing is loaded.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.utils.data import Dataset
from transformers import (
    DistilBertConfig,
    DistilBertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
)

from poet.integrations.huggingface import PoetCallback

WORDS = 4000


class Samples(Dataset[dict[str, Any]]):
    """Texts or images and their labels, from a seed."""

    def __init__(self, kind: str, count: int, length: int) -> None:
        draw = torch.Generator().manual_seed(1)
        if kind == "vit":
            images = torch.randn(count, 3, length, length, generator=draw)
            labels = torch.randint(10, (count,), generator=draw)
            images += labels.view(-1, 1, 1, 1) / 10
            self.columns: dict[str, torch.Tensor] = {"pixel_values": images, "labels": labels}
            return
        tokens = torch.randint(2, WORDS, (count, length), generator=draw)
        ends = torch.randint(length // 2, length + 1, (count, 1), generator=draw)
        mask = (torch.arange(length) < ends).long()
        labels = (
            (tokens[:, 0] % 2) if kind == "distilbert" else torch.where(mask == 1, tokens, -100)
        )  # of positions that are filled up, none
        self.columns = {"input_ids": tokens * mask, "attention_mask": mask, "labels": labels}

    def __len__(self) -> int:
        return len(self.columns["labels"])

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {name: column[number] for name, column in self.columns.items()}


def distilbert(width: int, layers: int) -> nn.Module:
    """A text classifier."""
    config = DistilBertConfig(
        vocab_size=WORDS, dim=width, hidden_dim=4 * width, n_layers=layers, n_heads=width // 32
    )
    model: nn.Module = DistilBertForSequenceClassification(config)
    return model


def vit(width: int, layers: int) -> nn.Module:
    """An image classifier."""
    config = ViTConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 32,
        intermediate_size=4 * width,
        image_size=IMAGE,
        patch_size=8,
        num_labels=10,
        hidden_dropout_prob=0.1,
    )
    model: nn.Module = ViTForImageClassification(config)
    return model


def gpt2_lora(width: int, layers: int) -> nn.Module:
    """A language model, of which low-rank adapters are trained."""
    config = GPT2Config(
        vocab_size=WORDS, n_embd=width, n_layer=layers, n_head=width // 32, bos_token_id=0, eos_token_id=0
    )
    lora = LoraConfig(
        task_type="CAUSAL_LM", r=8, lora_dropout=0.1, target_modules=["c_attn"], fan_in_fan_out=True
    )
    model: nn.Module = get_peft_model(GPT2LMHeadModel(config), lora)
    return model


IMAGE = 64
MODELS: dict[str, Callable[[int, int], nn.Module]] = {
    "distilbert": distilbert,
    "vit": vit,
    "gpt2-lora": gpt2_lora,
}


class Losses(TrainerCallback):  # type: ignore[misc]
    """Keeps the loss of each step."""

    def __init__(self) -> None:
        self.found: list[float] = []

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """See `TrainerCallback`."""
        if "loss" in kwargs["logs"]:
            self.found.append(kwargs["logs"]["loss"])


def trainer_of(
    name: str,
    *,
    width: int = 64,
    layers: int = 2,
    batch: int = 8,
    length: int = 32,
    steps: int = 10,
    **more: Any,
) -> Trainer:
    """The script as it is without poet."""
    torch.manual_seed(0)
    return Trainer(
        MODELS[name](width, layers),
        TrainingArguments(
            use_cpu=True, report_to=[], disable_tqdm=True, max_steps=steps, logging_steps=1,
            learning_rate=1e-3, per_device_train_batch_size=batch,
            **{"output_dir": tempfile.mkdtemp(), "save_strategy": "no", **more},
        ),
        train_dataset=Samples(name, 10 * batch, IMAGE if name == "vit" else length),
    )  # fmt: skip


def main(name: str = "distilbert", ram: str | int | None = "8MiB", *, steps: int = 10) -> list[float]:
    """Train; the loss of each step. Without ``ram``: plain."""
    trainer = trainer_of(name, steps=steps)
    log = Losses()
    trainer.add_callback(log)
    if ram is not None:
        trainer.add_callback(PoetCallback(ram=ram, time_limit_seconds=5.0))  # the one line that is new
    trainer.train()
    print(f"{name}: {steps} steps, loss {log.found[0]:.4f} to {log.found[-1]:.4f}")
    return log.found


if __name__ == "__main__":
    main(*sys.argv[1:3])
