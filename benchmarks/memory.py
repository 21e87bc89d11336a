"""Peak memory of methods, each in a process of its own.

A server imports torch once and forks for every request, so a method starts from a clean process
without paying for the import. The server itself never computes: torch's threads do not survive a
fork. In the child the method first runs at the family's quick size, which loads code and starts
threads; then the peak of one call at the size in question is read. With glibc's mmap threshold
fixed at 64 KiB every larger tensor is a mapping of its own that leaves the resident set when freed,
so that reuse of freed memory is not missed. The resolution is about 1 MB: code that is touched for
the first time counts too.

Timing happens in another process, which keeps freed memory.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from benchmarks.registry import Family, Method, load
from lapkernels.demo.memory import peak_extra_memory

ROOT = Path(__file__).parents[1]
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


class MemoryServer:
    """The process that forks for every measurement; use it as a context manager."""

    def __init__(self, device: torch.device) -> None:
        self._device = str(device)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.memory"],
            cwd=ROOT,
            env={**os.environ, **ALLOCATOR},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        # Its imports would take time from the first case.
        self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the memory server has ended; its messages are on stderr")
        return json.loads(line)

    def measure(self, family: Family, size: Any, method: Method) -> int | None:
        """Peak extra bytes, or None where the system cannot tell or the method failed."""
        assert self._process.stdin is not None
        request = [family.name, str(size), method.name, self._device]
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return self._answer()

    def __enter__(self) -> MemoryServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.communicate()


def measure_here(family: Family, size: Any, method: Method, device: torch.device) -> int | None:
    """Peak extra bytes of one call in this process."""
    # Any op may hand large sizes to torch's convolution, whose first call loads tens of megabytes.
    image, kernel = (
        torch.ones(1, 32, 32, 32, device=device),
        torch.ones(32, 32, 3, 3, device=device),
    )
    torch.nn.functional.conv_transpose2d(image, kernel, padding=1)
    method.run(*_arguments(family, family.quick, method, device))
    given = _arguments(family, size, method, device)
    if device.type == "cuda":
        return peak_on_cuda(lambda: method.run(*given), device)
    return peak_extra_memory(lambda: method.run(*given))[1]


def peak_on_cuda(call: Callable[[], object], device: torch.device) -> int:
    """Peak bytes of torch's allocator during a call, above what it held before."""
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    call()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def _arguments(family: Family, size: Any, method: Method, device: torch.device) -> tuple[Any, ...]:
    arguments = family.make(size, device)
    return method.setup(*arguments) if method.setup else arguments


def serve() -> None:
    """Say that it is ready, then answer requests, one JSON line each, until the input ends."""
    families = load()
    # What children would import themselves, seconds each: torch.func loads this on first use.
    importlib.import_module("torch._dynamo")
    # Methods may print; only answers may go to the pipe.
    answers = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    os.write(answers, b"null\n")  # ready
    for line in sys.stdin:
        family_name, label, method_name, device = json.loads(line)
        family = families[family_name]
        method = family.methods[method_name]
        if method.requires:
            importlib.import_module(method.requires)
        child = os.fork()
        if child == 0:
            answer = None
            try:
                answer = measure_here(family, family.size(label), method, torch.device(device))
            except Exception:
                traceback.print_exc()
            finally:
                os.write(answers, (json.dumps(answer) + "\n").encode())
                os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            # Out of memory, most likely: the child could not answer.
            os.write(answers, b"null\n")


if __name__ == "__main__":
    serve()
