"""The choice between the compiled kernel and the reference.

The library is replaced by a pretended one, so that the tests say the same with and without it.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lapkernels.kernels import (
    BACKENDS,
    compiled,
    current_backend,
    report,
    selector,
    triton,
    use_backend,
)
from lapkernels.kernels.native import Native, load
from lapkernels.ops import OPS


def kernel(*arguments: Any) -> None:
    """Stands for a compiled op."""


def pretend(
    monkeypatch: pytest.MonkeyPatch,
    native: Native,
    cuda: frozenset[str] = frozenset(),
    **ops: Callable[..., Any],
) -> None:
    monkeypatch.setattr(selector, "NATIVE", native)
    monkeypatch.setattr(selector, "_native_op", ops.get)
    monkeypatch.setattr(selector, "_cuda_ops", lambda: cuda)
    monkeypatch.setattr(selector, "_why_not_cuda", {1: "on cuda:1, it is too old"}.get)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library with the one op `known`."""
    pretend(monkeypatch, Native(Path("_native.abi3.so"), None), known=kernel)


@pytest.fixture
def cuda_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library with two ops, of which `known` has a CUDA kernel, on a machine with a GPU."""
    native = Native(Path("_native.abi3.so"), None)
    pretend(monkeypatch, native, frozenset({"known"}), known=kernel, other=kernel)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, Native(None, "it was left out"))


@pytest.fixture(autouse=True)
def auto_backend() -> Iterator[None]:
    selector._warn_that_reference_serves.cache_clear()
    with use_backend("auto"):
        yield
    selector._warn_that_reference_serves.cache_clear()


def test_call_sets_and_block_restores() -> None:
    use_backend("reference")
    assert current_backend() == "reference"
    with use_backend("cpp"):
        assert current_backend() == "cpp"
        with use_backend("auto"):
            assert current_backend() == "auto"
        assert current_backend() == "cpp"
    assert current_backend() == "reference"


def test_block_restores_after_an_error() -> None:
    with pytest.raises(KeyError), use_backend("cpp"):
        raise KeyError
    assert current_backend() == "auto"


def test_unknown_backend_names_the_valid_ones() -> None:
    with pytest.raises(ValueError, match="'fortran'.*" + ", ".join(BACKENDS)):
        use_backend("fortran")
    assert current_backend() == "auto"


def test_a_thread_does_not_see_the_block_of_another() -> None:
    entered, checked = threading.Event(), threading.Event()

    def other() -> None:
        with use_backend("reference"):
            entered.set()
            checked.wait(timeout=30)

    thread = threading.Thread(target=other)
    thread.start()
    try:
        assert entered.wait(timeout=30)
        assert current_backend() == "auto"
    finally:
        checked.set()
        thread.join()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("backend", ["auto", "cpp", "reference"])
@pytest.mark.usefixtures("library")
def test_compiled_serves(backend: str, dtype: torch.dtype) -> None:
    x = torch.ones(2, dtype=dtype)
    with use_backend(backend):
        assert compiled("known", x, None, x) is (None if backend == "reference" else kernel)


@pytest.fixture
def interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton with two ops, in its interpreter."""
    monkeypatch.setattr(triton, "absent", lambda: None)
    monkeypatch.setattr(triton, "interpreted", lambda: True)
    monkeypatch.setattr(triton, "MODULES", {"known": "known", "jacobian_gram": "jacobian_gram"})
    monkeypatch.setattr(triton, "triton_op", lambda op: other_kernel)


def other_kernel(*arguments: Any) -> None:
    """Stands for a Triton op."""


ONE, INTEGERS, HALF = torch.ones(2), torch.ones(2, dtype=torch.int64), torch.ones(2).half()
META, BOTH = torch.ones(2, device="meta"), torch.ones(2, 1, 1, 1)
UNSUITABLE: list[tuple[str, str, list[torch.Tensor], str]] = [
    ("cpp", "known", [HALF], "dtype torch.float16"),
    ("cpp", "known", [INTEGERS], "dtype torch.int64"),
    ("cpp", "known", [ONE, ONE.double()], "torch.float64 are mixed"),
    ("cpp", "known", [ONE, META], "on meta"),
    ("cpp", "unknown", [ONE], "no kernel of that name"),
    ("cuda", "known", [ONE], "built without CUDA"),
    ("triton", "unknown", [ONE], "no Triton kernel of that name"),
    ("triton", "known", [INTEGERS], "dtype torch.int64"),
    ("triton", "known", [ONE, HALF], "are mixed"),
    ("triton", "known", [META], "on meta"),
    ("triton", "jacobian_gram", [BOTH, BOTH], "both tensors depend"),
]


@pytest.mark.parametrize(("backend", "op", "tensors", "reason"), UNSUITABLE)
@pytest.mark.usefixtures("library", "interpreter")
def test_unsuitable_arguments(
    backend: str, op: str, tensors: list[torch.Tensor], reason: str
) -> None:
    if backend == "cpp":
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert compiled(op, *tensors) is None
    with use_backend(backend), pytest.raises(RuntimeError, match=f"cannot serve {op}: .*{reason}"):
        compiled(op, *tensors)


@pytest.mark.usefixtures("no_library")
def test_missing_library_warns_once() -> None:
    with pytest.warns(UserWarning, match="it was left out") as caught:
        assert compiled("known", torch.ones(2)) is None
        assert compiled("other", torch.ones(2)) is None
    assert len(caught) == 1


@pytest.mark.usefixtures("no_library")
def test_missing_library_raises_when_forced() -> None:
    with use_backend("cpp"), pytest.raises(RuntimeError, match="known: it was left out"):
        compiled("known", torch.ones(2))


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("backend", "serving"),
    [
        ("auto", {"known": "cpp", "unknown": "reference"}),
        ("reference", {"known": "reference", "unknown": "reference"}),
        ("cpp", {"known": "cpp", "unknown": None}),
    ],
)
def test_report(backend: str, serving: dict[str, str | None]) -> None:
    with use_backend(backend):
        rows = [row for row in report(serving) if row.device == "cpu"]
    assert {row.op: row.backend for row in rows} == serving
    for row in rows:
        assert set(row.reasons) == {"cpp", "cuda", "triton", "reference"} - {row.backend}
        assert all(row.reasons.values())


@pytest.mark.usefixtures("cuda_library")
@pytest.mark.parametrize(
    ("backend", "serving"),
    [
        ("auto", {"known": "cuda", "other": "reference"}),
        ("cuda", {"known": "cuda", "other": None}),
        ("cpp", {"known": None, "other": None}),
    ],
)
def test_report_for_a_gpu(backend: str, serving: dict[str, str | None]) -> None:
    with use_backend(backend):
        rows = [row for row in report(serving) if row.device == "cuda"]
    assert {row.op: row.backend for row in rows} == serving
    reasons = {row.op: row.reasons for row in rows}
    assert reasons["known"]["cpp"] == "it is for cpu"
    assert reasons["other"]["cuda"] == "the compiled library has no CUDA kernel of that name"


@pytest.mark.usefixtures("cuda_library")
def test_columns_in_both_tensors_are_not_for_the_cuda_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(
        selector.KERNELS,
        "cuda",
        selector.Kernels("cpu", (torch.float32,), frozenset({"jacobian_gram"})),
    )
    monkeypatch.setattr(selector, "_native_op", {"jacobian_gram": kernel}.get)
    monkeypatch.setattr(selector, "_cuda_ops", lambda: frozenset({"jacobian_gram"}))
    one, both = torch.ones(1, 2), torch.ones(2, 2)
    assert selector.why_not("cuda", "jacobian_gram", [both, one, None]) is None
    assert "both tensors" in (selector.why_not("cuda", "jacobian_gram", [both, both]) or "")


def on_gpu(index: int) -> Any:
    """A tensor on a GPU, as far as the selector asks."""
    device = torch.device("cuda", index)
    return SimpleNamespace(device=device, is_cpu=False, dtype=torch.float32, shape=(1, 2))


@pytest.mark.usefixtures("cuda_library")
def test_a_device_the_kernels_do_not_run_on_is_left_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(triton, "absent", lambda: "triton is not installed")
    assert compiled("known", on_gpu(0)) is kernel
    assert compiled("known", on_gpu(1)) is None
    with use_backend("cuda"), pytest.raises(RuntimeError, match="known: on cuda:1, it is too old"):
        compiled("known", on_gpu(1))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    (row,) = [row for row in report(["known"]) if row.device == "cuda"]
    assert row.backend == "reference" and "too old" in row.reasons["cuda"]


@pytest.mark.usefixtures("triton_gpu")
def test_triton_asks_the_tensors_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the current one, which is another."""
    monkeypatch.setattr(triton, "_too_old", {1: "it is too old"}.get)
    assert compiled("jacobian_gram", on_gpu(0), on_gpu(0)) is other_kernel
    assert compiled("jacobian_gram", on_gpu(1), on_gpu(1)) is None


@pytest.mark.usefixtures("cuda_library")
def test_forced_cuda_refuses_tensors_of_the_cpu() -> None:
    with use_backend("cuda"), pytest.raises(RuntimeError, match="on cpu, .* are for cuda"):
        compiled("known", torch.ones(2))


@pytest.mark.usefixtures("library", "interpreter")
def test_triton_is_interpreted_only_if_forced() -> None:
    assert compiled("known", torch.ones(2)) is kernel
    with use_backend("triton"):
        assert compiled("known", torch.ones(2)) is other_kernel
        assert compiled("known", torch.ones(2, dtype=torch.bfloat16)) is other_kernel
    (row,) = report(["known"])
    assert row.backend == "cpp" and "interpreter" in row.reasons["triton"]


@pytest.mark.usefixtures("no_library", "interpreter")
def test_triton_is_not_taken_for_the_missing_library() -> None:
    with pytest.warns(UserWarning, match="it was left out"):
        assert compiled("known", torch.ones(2)) is None


def test_without_triton_or_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "absent", lambda: "triton is not installed")
    with use_backend("triton"):
        with pytest.raises(RuntimeError, match="jacobian_gram: triton is not installed"):
            compiled("jacobian_gram", torch.ones(1), torch.ones(1))
        monkeypatch.setattr(triton, "absent", lambda: None)
        monkeypatch.setattr(triton, "interpreted", lambda: False)
        with pytest.raises(RuntimeError, match="TRITON_INTERPRET=1"):
            compiled("jacobian_gram", torch.ones(1), torch.ones(1))
        (row,) = [row for row in report(["jacobian_gram"]) if row.device == "cpu"]
        assert row.backend is None and "TRITON_INTERPRET" in row.reasons["triton"]


@pytest.fixture
def triton_gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A GPU and Triton, but no CUDA kernels; a tensor on that GPU, as far as the selector asks."""
    monkeypatch.setattr(selector, "_cuda_ops", lambda: frozenset())
    monkeypatch.setattr(triton, "absent", lambda: None)
    monkeypatch.setattr(triton, "interpreted", lambda: False)
    monkeypatch.setattr(triton, "_too_old", lambda device: None)
    monkeypatch.setattr(triton, "triton_op", lambda op: other_kernel)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    return on_gpu(0)


def test_on_a_gpu_triton_serves_what_it_has_and_the_reference_the_rest(triton_gpu: Any) -> None:
    rest = set(OPS) - set(triton.MODULES)
    assert rest == {
        *("window_pull", "window_squared_sum", "sparse_conv_input", "sparse_squared_sum"),
        *("conv_input", "conv_weight", "layer_chain", "scaled_product"),
    }
    for op in OPS:
        assert compiled(op, triton_gpu, triton_gpu) is (None if op in rest else other_kernel)
    for row in [row for row in report(OPS) if row.device == "cuda"]:
        assert row.backend == ("reference" if row.op in rest else "triton")
        if row.op in rest:
            assert row.reasons["triton"] == "there is no Triton kernel of that name"
    with use_backend("triton"), pytest.raises(RuntimeError, match="cannot serve window_pull: "):
        compiled("window_pull", triton_gpu)


def test_load_reports_a_library_that_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LAPKERNELS_NO_NATIVE", raising=False)
    (tmp_path / "_native.abi3.so").write_text("not a library")
    native = load(tmp_path)
    assert native.path is None
    assert native.reason is not None and "could not be loaded" in native.reason


def test_load_repeats_the_reason_of_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LAPKERNELS_NO_NATIVE", raising=False)
    assert load(tmp_path) == Native(None, "the compiled library was never built")
    (tmp_path / "_build.json").write_text('{"success": false, "reason": "no compiler"}')
    assert load(tmp_path) == Native(None, "no compiler")
