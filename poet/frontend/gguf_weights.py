"""Weights of a GGUF file for the parameters of a module, by their names."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from poet.errors import ModelError
from poet.files.gguf import GgufFile
from poet.frontend.onnx.reader import from_bytes
from poet.ir.packed import BLOCK_BYTES, Packed
from poet.passes.base import Weights

_LISTED = 3
_AS_LLAMA_CPP = frozenset(("qwen2", "qwen3"))
"""Architectures of which llama.cpp stores each weight as transformers has it."""
_LLAMA_CPP = (
    ("model.embed_tokens.", "token_embd."), ("model.norm.", "output_norm."), ("lm_head.", "output."),
    ("model.layers.", "blk."), (".self_attn.q_proj.", ".attn_q."), (".self_attn.k_proj.", ".attn_k."),
    (".self_attn.v_proj.", ".attn_v."), (".self_attn.o_proj.", ".attn_output."),
    (".self_attn.q_norm.", ".attn_q_norm."), (".self_attn.k_norm.", ".attn_k_norm."),
    (".mlp.gate_proj.", ".ffn_gate."), (".mlp.up_proj.", ".ffn_up."), (".mlp.down_proj.", ".ffn_down."),
    (".input_layernorm.", ".attn_norm."), (".post_attention_layernorm.", ".ffn_norm."),
)  # fmt: skip


def gguf_weights(path: str | Path, module: nn.Module) -> tuple[Weights, str]:
    """What the file has for parameters of ``module``, and a line about what does not match, or nothing.

    Names are those of the module's state dict. Those of a module that ``peft`` wrapped may be given as they
    were before it was, and those of `_AS_LLAMA_CPP` as llama.cpp has them in place of transformers' names.

    Raises:
        InputError: the file is damaged, or of a type that is not read.
        ModelError: a shape differs, or no name matches.
    """
    path = Path(path)
    parameters = dict(module.named_parameters(remove_duplicate=False))
    names = {_before_peft(name): name for name in parameters} | {name: name for name in parameters}
    found: dict[str, tuple[Tensor, Packed | None]] = {}
    with GgufFile(path) as file:
        if file.architecture in _AS_LLAMA_CPP:
            names |= {_as_llama_cpp(name): own for name, own in names.items()}
        for stored, tensor in file.tensors.items():
            name = names.get(stored)
            if name is None:
                continue
            if tuple(parameters[name].shape) != tensor.shape:
                wanted = list(parameters[name].shape)
                raise ModelError(f"{path.name}: {stored} is {list(tensor.shape)}, the model's is {wanted}")
            content = file.read(stored)
            if tensor.type in BLOCK_BYTES:
                how = Packed(tensor.type, tensor.shape)
                found[name] = torch.frombuffer(content, dtype=torch.uint8).view(how.packed_shape), how
            else:
                plain = from_bytes(content, getattr(torch, tensor.type), tensor.shape)
                found[name] = plain.to(parameters[name].dtype), None
        unread = [name for name in file.tensors if name not in names]
    if not found:
        raise ModelError(
            f"{path.name}: none of its tensors ({', '.join(unread[:_LISTED])}, ...) is called as a parameter "
            f"of the model ({', '.join([*parameters][:_LISTED])}, ...)"
        )
    return found, f"{path.name}: the model has no {_in_words(unread)}" if unread else ""


def _before_peft(name: str) -> str:
    return name.removeprefix("base_model.model.").replace(".base_layer.", ".")


def _as_llama_cpp(name: str) -> str:
    """What llama.cpp calls a tensor of transformers' causal decoders."""
    for theirs, ours in _LLAMA_CPP:
        name = name.replace(theirs, ours)
    return name


def _in_words(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more
