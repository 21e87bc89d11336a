"""Prints the peak extra memory of kernels, as JSON.

`jacobian_squared_sum` on 3c3d's convolutions, and the weight of a convolution on a long line.

Run by test_workspace.py in a process of its own, where blocks of 64 KiB and more leave the resident
set when they are freed. A first call loads code and starts threads.
"""

from __future__ import annotations

import json
from functools import partial

import torch

from lapkernels.demo.memory import peak_extra_memory
from lapkernels.ops import Geometry, jacobian_squared_sum, squared_conv_weight

# Inputs, outputs, kernel size, padding, resolution; a batch of 16 with nine columns.
LAYERS = {"conv1": (3, 64, 5, 0, 32), "conv2": (64, 96, 3, 0, 14), "conv3": (96, 128, 3, 1, 6)}


def main() -> None:
    torch.set_num_threads(2)
    found = {}
    for name, (inputs, outputs, kernel, padding, size) in LAYERS.items():
        side = size + 2 * padding - kernel + 1
        s = torch.randn(9, 16, outputs, side, side)
        x = torch.randn(16, inputs, size, size)
        geometry = Geometry.conv(kernel, padding=padding)
        out = torch.zeros(outputs, inputs, kernel, kernel)
        call = partial(jacobian_squared_sum, s, x, geometry, out=out)
        call()
        found[name] = peak_extra_memory(call)[1]
    m, x = torch.randn(1, 4, 100_000), torch.randn(1, 24, 100_004)
    out = torch.zeros(4, 24, 5)
    call = partial(squared_conv_weight, m, x, Geometry.conv(5, dims=1), out=out)
    call()
    found["line"] = peak_extra_memory(call)[1]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
