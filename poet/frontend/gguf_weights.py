"""Weights of a GGUF file for the parameters of a module, by their names."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from poet.errors import ModelError
from poet.files.gguf import GgufFile, GgufTensor
from poet.frontend.onnx.reader import from_bytes
from poet.ir.packed import BLOCK_BYTES, Packed
from poet.passes.base import Weights
from poet.runtime.kernels.dequantised import as_used

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
    """What the file has for tensors of ``module``, and a line about what does not match, or nothing.

    Names are those of the module's state dict, of which what is tied gets the first. Those of a module that
    ``peft`` wrapped may be given as they were before it was, and those of `_AS_LLAMA_CPP` as llama.cpp has
    them in place of transformers' names.

    Raises:
        InputError: the file is damaged, or of a type that is not read.
        ModelError: a shape differs, no name matches, or the file has two contents of one tensor.
    """
    path = Path(path)
    own: dict[str, Tensor] = dict(module.named_parameters(remove_duplicate=False))
    own |= module.named_buffers(remove_duplicate=False)
    first = {id(item): name for name, item in reversed(own.items())}
    names = {_before_peft(name): name for name in own} | {name: name for name in own}
    found: dict[str, tuple[Tensor, Packed | None]] = {}
    with GgufFile(path) as file:
        if file.architecture in _AS_LLAMA_CPP:
            names |= {_as_llama_cpp(name): own for name, own in names.items()}
        for stored, tensor in file.tensors.items():
            name = names.get(stored)
            if name is None:
                continue
            if tuple(own[name].shape) != tensor.shape:
                wanted = list(own[name].shape)
                raise ModelError(f"{path.name}: {stored} is {list(tensor.shape)}, the model's is {wanted}")
            made = _made(file.read(stored), tensor, own[name].dtype)
            name = first[id(own[name])]
            if name in found and not torch.equal(as_used(*made), as_used(*found[name])):
                raise ModelError(
                    f"{path.name}: {stored} is {name} in the model, and the file has two contents of it; "
                    "untie them in the model, or leave one out of the file"
                )
            found.setdefault(name, made)
        unread = [name for name in file.tensors if name not in names]
    if not found:
        raise ModelError(
            f"{path.name}: none of its tensors ({', '.join(unread[:_LISTED])}, ...) is called as a tensor "
            f"of the model ({', '.join([*own][:_LISTED])}, ...)"
        )
    return found, f"{path.name}: the model has no {_in_words(unread)}" if unread else ""


def _made(content: bytearray, tensor: GgufTensor, dtype: torch.dtype) -> tuple[Tensor, Packed | None]:
    if tensor.type not in BLOCK_BYTES:
        return from_bytes(content, getattr(torch, tensor.type), tensor.shape).to(dtype), None
    how = Packed(tensor.type, tensor.shape if len(tensor.shape) > 1 else (1, *tensor.shape))
    rows = torch.frombuffer(content, dtype=torch.uint8).view(how.packed_shape)
    return (rows, how) if how.shape == tensor.shape else (as_used(rows, how)[0], None)


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
