"""A training that ends its own process by SIGKILL before a step, for the tests of checkpoints.

python -m tests.autoencoder.killed CHECKPOINT STEP
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

import lapkernels as lk
from tests.autoencoder.problems import conv_networks, images, shuffled


def training(checkpoint: Path | None, kill_before: int | None = None) -> Any:
    """Three epochs of four batches with validation and a schedule."""

    class Mortal(lk.LaplacianAutoencoder):
        steps = 0

        def step(self, x: torch.Tensor) -> torch.Tensor:
            if self.steps == kill_before:
                os.kill(os.getpid(), signal.SIGKILL)
            self.steps += 1
            return super().step(x)

    ae = Mortal(*conv_networks(torch.float32), initial_precision=10.0)
    x = images(14, torch.float32)
    ae.fit(
        shuffled(x, 4), 3, validation=[x[:5]], schedule="plateau", checkpoint=checkpoint, every=3
    )
    return ae


if __name__ == "__main__":
    training(Path(sys.argv[1]), int(sys.argv[2]))
