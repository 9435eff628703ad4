"""Export a net of `zoo` from plain torch to ONNX, and random data for it.

python examples/export_net.py resnet18 resnet18.onnx --size small --data data.npz
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from zoo import EXPORTERS, NETS, export


def main() -> None:
    """Write the ONNX file and, where asked for, 64 samples."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("net", choices=NETS)
    parser.add_argument("file", type=Path)
    parser.add_argument("--size", choices=("small", "medium", "full"), default="full")
    parser.add_argument("--exporter", choices=EXPORTERS, default="dynamo")
    parser.add_argument("--evaluation", action="store_true", help="export in evaluation mode")
    parser.add_argument("--data", type=Path, metavar="FILE.npz")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    net = NETS[arguments.net]
    if arguments.size not in net.sizes:
        parser.error(f"{arguments.net} comes in the sizes {', '.join(net.sizes)}")
    size = net.sizes[arguments.size]
    export(
        size.build(),
        size.inputs(2),
        arguments.file,
        exporter=arguments.exporter,
        training=not arguments.evaluation,
    )
    if arguments.data is not None:
        np.savez(arguments.data, inputs=size.inputs(64)[0].numpy(), targets=size.targets(64).numpy())


if __name__ == "__main__":
    main()
