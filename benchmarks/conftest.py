"""Options of the benchmarks, their parametrisation, and what they add to the JSON file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from benchmarks.measure import Outcome, measure
from benchmarks.memory import MemoryServer
from benchmarks.registry import Family, Method, load
from lapkernels.kernels import current_backend, simd_level

REFUSED = pytest.StashKey[list[dict[str, str]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("lapkernels benchmarks")
    group.addoption("--quick", action="store_true", help="one small size a family, few rounds")
    group.addoption("--device", default="cpu", help="cpu or cuda (default: %(default)s)")
    group.addoption("--rounds", type=int, default=30, help="most rounds a case (%(default)s)")
    group.addoption(
        "--case-seconds", type=float, default=2.0, help="time for a case's rounds (%(default)s)"
    )
    group.addoption(
        "--method-seconds",
        type=float,
        default=60.0,
        help="longest call of a method; a longer one is reported as too slow (%(default)s)",
    )
    group.addoption("--no-memory", action="store_true", help="skip the pass for peak memory")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[REFUSED] = []
    device = torch.device(config.option.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise pytest.UsageError(
            f"--device {device}: torch {torch.__version__} finds no CUDA device; "
            "without the option, or with `make bench DEVICE=cpu`, the CPU is measured"
        )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each case and each method."""
    if "method" not in metafunc.fixturenames:
        return
    quick = metafunc.config.option.quick
    cases = [
        pytest.param(family, size, method, id=f"{family.name}-{size}-{method.name}")
        for family in load().values()
        for size in ([family.quick] if quick else family.sizes)
        for method in family.methods.values()
    ]
    metafunc.parametrize(("family", "size", "method"), cases)


@pytest.fixture(scope="session")
def device(pytestconfig: pytest.Config) -> torch.device:
    return torch.device(pytestconfig.option.device)


@pytest.fixture(scope="session")
def memory_server(pytestconfig: pytest.Config, device: torch.device) -> Iterator[Any]:
    if pytestconfig.option.no_memory:
        yield None
    else:
        with MemoryServer(device) as server:
            yield server


class Interleaved:
    """Outcomes of the case at hand: its first test measures all its selected methods at once."""

    def __init__(self, request: pytest.FixtureRequest, device: torch.device) -> None:
        self._config = request.config
        self._device = device
        self._case: tuple[str, str] | None = None
        self._outcomes: dict[str, Outcome] = {}
        self._selected: dict[tuple[str, str], list[Method]] = {}
        for item in request.session.items:
            params = getattr(getattr(item, "callspec", None), "params", {})
            if "method" in params and params["method"].obstacle(params["size"]) is None:
                case = (params["family"].name, str(params["size"]))
                self._selected.setdefault(case, []).append(params["method"])

    def outcome(self, family: Family, size: Any, method: Method) -> Outcome:
        case = (family.name, str(size))
        if case != self._case:
            quick = self._config.option.quick
            self._outcomes = measure(
                family,
                size,
                self._selected[case],
                device=self._device,
                rounds=3 if quick else self._config.option.rounds,
                seconds=self._config.option.case_seconds,
                longest=self._config.option.method_seconds,
            )
            self._case = case
        return self._outcomes[method.name]


@pytest.fixture(scope="session")
def interleaved(request: pytest.FixtureRequest, device: torch.device) -> Interleaved:
    return Interleaved(request, device)


@pytest.fixture
def refuse(pytestconfig: pytest.Config) -> Any:
    """Records a method that is not timed, for the report."""

    def record(family: Family, size: Any, method: Method, reason: str) -> None:
        entry = {"family": family.name, "case": str(size), "method": method.name, "reason": reason}
        pytestconfig.stash[REFUSED].append(entry)

    return record


def pytest_benchmark_update_machine_info(
    config: pytest.Config, machine_info: dict[str, Any]
) -> None:
    device = torch.device(config.option.device)
    machine_info["lapkernels"] = {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "simd": simd_level(),
        "backend": current_backend(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
    }


def pytest_benchmark_update_json(
    config: pytest.Config, benchmarks: list[Any], output_json: dict[str, Any]
) -> None:
    output_json["refused"] = config.stash[REFUSED]
