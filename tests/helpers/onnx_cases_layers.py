"""Cases of recurrent layers, attention, losses, and what is left."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from onnx import numpy_helper

from helpers.onnx_case import Given, f, of, product, types

# fmt: off


# -- recurrent, attention, losses -------------------------------------------------------------------


@of("LSTM", "GRU", "RNN")
def _recurrent(op: str, opset: int) -> Iterator[Given]:
    gates, states = {"LSTM": 4, "GRU": 3, "RNN": 1}[op], 2 if op == "LSTM" else 1
    outputs = 1 + states
    names = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}[op]
    for direction, layout, bias, begin in itertools.product(
        (None, "forward", "reverse", "bidirectional"), (None, 0, 1) if opset >= 14 else (None,), (False,
            True), (False, True)
    ):
        d = 2 if direction == "bidirectional" else 1
        x = f(2, 3, 5) if layout == 1 else f(3, 2, 5)
        w, r = f(d, gates * 4, 5, high=0.5, low=-0.5), f(d, gates * 4, 4, high=0.5, low=-0.5)
        b = f(d, gates * 8) if bias else None
        h = (f(2, d, 4) if layout == 1 else f(d, 2, 4)) if begin else None
        given = [x, w, r, b, None, *([h] * states if begin else [])]
        while given[-1] is None:
            given.pop()
        base = {"hidden_size": 4, "direction": direction, "layout": layout}
        base = {k: v for k, v in base.items() if v is not None}
        yield base, given, outputs
        if op == "GRU":
            yield {**base, "linear_before_reset": 1}, given, outputs
        if op == "LSTM" and begin:
            yield base, given[:6], outputs
    x, w, r = f(3, 2, 5), f(1, gates * 4, 5, low=-0.5, high=0.5), f(1, gates * 4, 4, low=-0.5, high=0.5)
    b = f(1, gates * 8)
    for lengths in ((3, 3), (3, 2), (1, 3)):
        yield {"hidden_size": 4}, [x, w, r, b, np.array(lengths, np.int32)], outputs
        yield {"hidden_size": 4, "direction": "reverse"}, [x, w, r, b, np.array(lengths, np.int32)], outputs
    for attributes in (
        {"clip": 0.1}, {"activations": names}, {"activations": ["Relu",
            *names[1:]]}, {"activations": ["Relu"] * len(names)},
        {"activations": ["Affine", *names[1:]], "activation_alpha": [0.5], "activation_beta": [0.1]},
        {"activations": ["bogus", *names[1:]]}, {"direction": "sideways"}, {"activation_alpha": [0.3]},
        {"hidden_size": 5}, {"output_sequence": 1},
    ):
        yield {"hidden_size": 4, **attributes}, [x, w, r, b], outputs
    if op == "LSTM":
        yield {"hidden_size": 4, "input_forget": 1}, [x, w, r, b], outputs
        yield {"hidden_size": 4}, [x, w, r, b, None, None, None, f(1, 12)], outputs
        yield {"hidden_size": 4}, [x, w, r, b, None, None, None, np.zeros((1, 12), np.float32)], outputs
        yield {"hidden_size": 4}, [x, w, r, b, None, None, f(1, 2, 4)], outputs
    yield {"hidden_size": 4}, [x, w, r, b, None, f(1, 1, 4)], outputs
    yield {"hidden_size": 4}, [f(3, 2, 5, dtype=np.float64), w.astype(float), r.astype(float)], outputs
    yield {}, [x, w, r, b], outputs


@of("Attention")
def _attention(op: str, opset: int) -> Iterator[Given]:
    q, k, v = f(2, 4, 3, 8), f(2, 4, 5, 8), f(2, 4, 5, 6)
    for attributes in (
        {}, {"scale": 0.5}, {"is_causal": 1}, {"softcap": 2.0}, {"softmax_precision": 1},
        {"qk_matmul_output_mode": 1}, {"is_causal": 1, "scale": 0.1}, {"softcap": 3.0, "is_causal": 1},
        {"softmax_precision": 11}, {"scale": 0.0},
    ):
        yield attributes, [q, k, v]
        yield attributes, [q, f(2, 2, 5, 8), f(2, 2, 5, 6)]
        for mask in (f(3, 5), f(2, 1, 3, 5), f(1, 4, 3, 5), f(3, 5, dtype=np.bool_), f(2, 4, 3, 5), f(1, 1, 3,
                5, dtype=np.bool_)):
            yield attributes, [q, k, v, mask]
        flat = {**attributes, "q_num_heads": 4, "kv_num_heads": 2}
        yield flat, [f(2, 3, 16), f(2, 5, 8), f(2, 5, 8)]
        yield flat, [f(2, 3, 16), f(2, 5, 8), f(2, 5, 8), f(3, 5)]
    yield {}, [q, k, v, None, f(2, 4, 2, 8), f(2, 4, 2, 6)], 3
    yield {}, [q, k, v, np.zeros((3, 5), np.bool_)]
    yield {}, [q, k, v, f(3, 4)]
    yield {}, [q.astype(np.float16), k.astype(np.float16), v.astype(np.float16)]
    yield {}, [f(2, 3, 16), f(2, 5, 16), f(2, 5, 16)]
    yield {}, [q, k, v], 4
    for mode in (0, 1, 2, 3):
        yield {"qk_matmul_output_mode": mode}, [q, k, v], 4


@of("RotaryEmbedding")
def _rotary(op: str, opset: int) -> Iterator[Given]:
    attributes: dict[str, Any]
    for interleaved, width in itertools.product((None, 0, 1), (None, 0, 4)):
        half = (width or 8) // 2
        attributes = {k: v for k, v in (("interleaved", interleaved), ("rotary_embedding_dim",
                width)) if v is not None}
        ids = np.array([[0, 1, 2], [2, 1, 4]], np.int64)
        yield attributes, [f(2, 4, 3, 8), f(6, half), f(6, half), ids]
        yield attributes, [f(2, 4, 3, 8), f(2, 3, half), f(2, 3, half)]
        yield {**attributes, "num_heads": 4}, [f(2, 3, 32), f(6, half), f(6, half), ids]
    yield {}, [f(2, 3, 32), f(2, 3, 4), f(2, 3, 4)]


@of("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")
def _loss(op: str, opset: int) -> Iterator[Given]:
    for kind in (np.int64, np.int32):
        for shape in ((4, 3), (4, 3, 2), (2, 3, 2, 2)):
            labels = f(shape[0], *shape[2:], dtype=kind, low=0, high=2)
            for attributes in product(reduction=(None, "none", "mean", "sum"), ignore_index=(None, 1, -1)):
                target = np.where(labels == 2, -1,
                        labels).astype(kind) if attributes.get("ignore_index") == -1 else labels
                yield attributes, [f(*shape), target]
                yield attributes, [f(*shape), target, f(3, low=0.2)]
    yield {}, [f(4, 3), f(4, dtype=np.int64, low=0, high=2)], 2 if op.startswith("Softmax") else 1
    yield {"ignore_index": 1}, [f(4, 3), np.ones(4, np.int64)]


@of("Dropout")
def _dropout(op: str, opset: int) -> Iterator[Given]:
    yield {}, [f(2, 3)]
    if opset < 12:
        yield {"ratio": 0.3}, [f(2, 3)]
    else:
        yield {}, [f(2, 3), np.array(0.3, np.float32)]
        yield {"seed": 3}, [f(2, 3), np.array(0.3, np.float32)]
        yield {}, [f(2, 3), np.array(0.3, np.float32), np.array(False)]
        yield {}, [f(2, 3), np.array(0.0, np.float32), np.array(True)]
    if opset >= 10:
        yield {}, [f(2, 3)], 2


@of("Constant")
def _constant(op: str, opset: int) -> Iterator[Given]:
    for value in (f(2, 3), f(2, dtype=np.int64), f(dtype=np.float64), f(2, dtype=np.bool_), f(0, 2)):
        yield {"value": numpy_helper.from_array(value)}, []
    if opset >= 12:
        yield {"value_float": 0.1}, []
        yield {"value_int": -3}, []
        yield {"value_floats": [0.1, 2.0]}, []
        yield {"value_ints": [1, 2]}, []
        yield {"value_string": "a"}, []
        yield {"value_float": 0.1, "value_int": 1}, []
    yield {}, []


@of("Identity")
def _identity(op: str, opset: int) -> Iterator[Given]:
    for dtype in (np.float32, np.int64, np.bool_, np.float16, np.uint8):
        yield {}, [f(2, 3, dtype=dtype)]


@of("NonZero")
def _nonzero(op: str, opset: int) -> Iterator[Given]:
    for dtype in types(op, opset):
        yield {}, [f(2, 3, dtype=dtype)]
    yield {}, [f()]
