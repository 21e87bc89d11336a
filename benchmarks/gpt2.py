"""Memory and time of curvature of GPT-2, 124 million random weights, on two sequences of 64 tokens.

    python -m benchmarks.gpt2 [--out docs/measured/gpt2.md]

Sequences are classified by their last token. Each row is the first call in a process of its own,
the check against autograd included; its memory is the peak of the resident set above that of the
loaded model.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import lapkernels as lk
from benchmarks.document import table, write

MIB = 1 << 20
HEAD = ["call", "peak MiB", "above a forward and backward pass", "MiB of its result", "s"]


def is_linear(name: str, parameter: nn.Parameter) -> bool:
    """The weights of linear layers."""
    return parameter.dim() == 2 and "wte" not in name and "wpe" not in name


def backward(model: nn.Module, batch: dict[str, Tensor]) -> list[Tensor]:
    """Gradients of the loss."""
    model(**batch).loss.backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


def diagonal(model: nn.Module, batch: dict[str, Tensor]) -> list[Tensor]:
    """The sampled diagonal."""
    return list(lk.diag(model, batch, "categorical", method="mc").values())


def kronecker(model: nn.Module, batch: dict[str, Tensor]) -> list[Tensor]:
    """Kronecker factors of the linear layers."""
    found = lk.kron(model, batch, "categorical", params=is_linear).values()
    return [one for f in found for one in (f.output, f.input_sum) if one is not None]


CALLS: dict[str, Callable[[nn.Module, dict[str, Tensor]], list[Tensor]]] = {
    "forward and backward pass": backward,
    'diag(method="mc")': diagonal,
    "kron of its linear layers": kronecker,
}


def made() -> tuple[nn.Module, dict[str, Tensor]]:
    """GPT-2 with random weights, and a batch as of a collator."""
    import transformers

    library: Any = transformers
    torch.manual_seed(0)
    config = library.GPT2Config(num_labels=2, pad_token_id=0)
    model = library.GPT2ForSequenceClassification(config).eval()
    tokens = torch.randint(1, config.vocab_size, (2, 64))
    batch = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    return model, {**batch, "labels": torch.tensor([0, 1])}


def measured(name: str) -> dict[str, float]:
    """Of one call, in this process."""
    model, batch = made()
    before, start = _peak(), time.perf_counter()
    result = CALLS[name](model, batch)
    seconds = time.perf_counter() - start
    size = sum(tensor.nbytes for tensor in result) / MIB
    return {"peak": _peak() - before, "result": size, "seconds": seconds}


def _peak() -> float:
    """MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(argv: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/measured/gpt2.md"))
    parser.add_argument("--call", choices=CALLS, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.call:
        print(json.dumps(measured(arguments.call)))
        return
    found: dict[str, dict[str, float]] = {}
    for name in CALLS:
        command = [sys.executable, "-m", "benchmarks.gpt2", "--call", name]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found[name] = json.loads(done.stdout.splitlines()[-1])
    base = found["forward and backward pass"]["peak"]
    rows = [
        [name, f"{one['peak']:.0f}", f"{one['peak'] - base:.0f}", f"{one['result']:.0f}"]
        + [f"{one['seconds']:.1f}"]
        for name, one in found.items()
    ]
    model, _ = made()
    size = sum(p.nbytes for p in model.parameters()) / MIB
    write(
        arguments.out,
        "GPT-2 of 124 million parameters",
        "python -m benchmarks.gpt2",
        [f"Two sequences of 64 tokens, float32; the parameters have {size:.0f} MiB.", ""]
        + table(HEAD, rows),
    )


if __name__ == "__main__":
    main()
