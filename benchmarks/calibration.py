"""Do posteriors make predictions better? Real tasks, structures, ways of tuning, and baselines.

python -m benchmarks.calibration --data DIR --out docs/measured/calibration.md

Networks are trained once and kept in ``--cache``. ``DIR`` has mnist.npz, fashion_mnist.npz,
cifar10_subset.npz and uci.npz; without it the tasks of scikit-learn alone run. One seed screens
everything, ``--seeds`` more repeat the finalists.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn

import lapkernels as lk
from benchmarks.calibration_tasks import TASKS, Data, Task
from benchmarks.document import table, write
from lapkernels.laplace.calibration import auroc, calibration

# A difference in mean test NLL that counts as worse.
WORSE = 0.003
TESTED, SHIFTED = 500, 200
FINALISTS = ("network", "temperature", "last, held out", "kron, held out", "kron, cautious")
LEGEND = [
    "Test NLL minus that of the network alone (negative is better), over tasks; *worse* counts "
    f"those above {WORSE}, *beyond noise* those where the paired difference over test samples is "
    "also more than two standard errors. ECE and AUROC are mean differences; AUROC tells "
    "turned images by the largest probability, and far rows by the standard deviation. Coverage is "
    "the share of test targets inside of 90 % intervals. Seconds are fit and tune together, on a "
    "shared machine.",
    "",
]


@dataclass(frozen=True)
class Result:
    """What one way predicts for one task and seed."""

    task: str
    way: str
    nll: Tensor  # of each test sample
    calibration: float  # ECE, or coverage
    auroc: float
    seconds: float


Predict = Callable[[Tensor], tuple[Tensor, Tensor]]


def scored(task: Task, way: str, data: Data, predict: Predict, seconds: float) -> Result:
    """Scores of ``predict``: probabilities and None, or means and variances of y."""
    x, y = data.test[0][:TESTED], data.test[1][:TESTED]
    m, v = predict(x)
    other, other_v = predict(data.shifted[:SHIFTED])
    if task.regression:
        nll = 0.5 * ((y - m).square() / v + (2 * math.pi * v).log()).sum(1)
        inside = ((y - m).abs() <= 1.6449 * v.sqrt()).double().mean()
        far = auroc(v.flatten(), other_v.flatten())
        return Result(task.name, way, nll.double(), float(inside), far, seconds)
    nll = -m.clamp_min(1e-30).log().gather(1, y.unsqueeze(1))[:, 0]
    far = auroc(-m.max(1).values, -other.max(1).values)
    return Result(task.name, way, nll.double(), calibration(m, y).ece, far, seconds)


def baselines(
    task: Task, data: Data, model: nn.Module, members: Sequence[nn.Module]
) -> Iterator[Result]:
    """The network, a temperature or noise from held-out data, dropout, an ensemble."""
    x, y = data.train
    residual = float((model(x) - y).square().mean()) if task.regression else 0.0

    def of(model: nn.Module, noise: float, temperature: float = 1.0) -> Predict:
        def predict(x: Tensor) -> tuple[Tensor, Tensor]:
            f = model(x)
            if task.regression:
                return f, torch.full_like(f, noise)
            return (f / temperature).softmax(1), f

        return predict

    yield scored(task, "network", data, of(model, residual), 0.0)
    start = time.perf_counter()
    f, held = model(data.held_out[0]), data.held_out[1]
    if task.regression:
        noise, temperature = float((f - held).square().mean()), 1.0
    else:
        grid = torch.logspace(-0.5, 0.7, 200).tolist()
        noise = 0.0
        temperature = min(grid, key=lambda t: float(nn.functional.cross_entropy(f / t, held)))
    seconds = time.perf_counter() - start
    yield scored(task, "temperature", data, of(model, noise, temperature), seconds)
    if any(isinstance(module, nn.Dropout) and module.p for module in model.modules()):
        yield scored(task, "dropout, 20 passes", data, averaged(task, [model] * 20, residual), 0.0)
    if members:
        ensemble = averaged(task, [model, *members], residual)
        yield scored(task, f"{len(members) + 1} networks", data, ensemble, 0.0)


def averaged(task: Task, models: Sequence[nn.Module], noise: float) -> Predict:
    """The mean over models; one model several times runs with its dropout."""
    random = len(models) > 1 and models[0] is models[1]

    def predict(x: Tensor) -> tuple[Tensor, Tensor]:
        outputs: list[Tensor] = []
        for model in models:
            for module in model.modules():
                if isinstance(module, nn.Dropout):
                    module.training = random
            outputs.append(model(x))
            model.eval()
        f = torch.stack(outputs)
        if task.regression:
            return f.mean(0), f.var(0, correction=0) + noise
        return f.softmax(-1).mean(0), f[0]

    return predict


def posteriors(task: Task, data: Data, model: nn.Module, screening: bool) -> Iterator[Result]:
    """Structures and ways of tuning."""
    train, held = batches(data.train), batches(data.held_out)
    last = list(model.children())[-1]
    structures: dict[str, dict[str, Any]] = {
        "last": {"structure": "kron", "params": last},
        "kron": {"structure": "kron"},
    }
    if screening:
        structures |= {
            "diag": {"structure": "diag"},
            "last full": {"structure": "full", "params": last},
            "ekfac": {"structure": "kron_corrected"},
        }
    for name, options in structures.items():
        start = time.perf_counter()
        likelihood = "regression" if task.regression else "classification"
        la = lk.Laplace(model, likelihood, **options).fit(train)
        fitted = time.perf_counter() - start
        ways = {"cautious": None, "held out": held}
        if screening and name != "ekfac":
            ways["evidence"] = None
        # Dozens of sweeps over the data: for networks where these are quick.
        quick = not any(isinstance(module, nn.Conv2d) for module in model.modules())
        if screening and quick and name == "last":
            ways["linearised"] = train
        for way, given in ways.items():
            start = time.perf_counter()
            la.set_prior(1.0).tune(given, by=way.replace(" ", "_"))
            seconds = fitted + time.perf_counter() - start
            yield scored(task, f"{name}, {way}", data, predictions(la), seconds)
            if name == "last" and way == "held out" and screening and not task.regression:
                for link in ("mc", "mean_field"):
                    call = predictions(la, link=link)
                    yield scored(task, f"{name}, {way}, {link}", data, call, seconds)
    if screening:
        start = time.perf_counter()
        la = lk.Laplace(model, "regression" if task.regression else "classification", "kron",
                        prior="layer").fit(train).tune(held)  # fmt: skip
        seconds = time.perf_counter() - start
        yield scored(task, "kron by layer, held out", data, predictions(la), seconds)


def predictions(la: lk.Laplace, **options: Any) -> Predict:
    """Class probabilities, or mean and variance of y."""

    def predict(x: Tensor) -> tuple[Tensor, Tensor]:
        p = la.predict(list(x.split(100)), **options)
        gaussian = isinstance(p.likelihood, lk.likelihoods.Gaussian)
        return (p.mean, p.total_variance) if gaussian else (p.probabilities, p.variance)

    return predict


def other_package(task: Task, data: Data, model: nn.Module) -> Iterator[Result]:
    """The defaults of laplace-torch, if it is installed."""
    try:
        from laplace import Laplace
    except ImportError:
        return
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(*data.train), batch_size=100
    )
    start = time.perf_counter()
    with torch.enable_grad():
        la: Any = Laplace(model, "regression" if task.regression else "classification")
        la.fit(loader)
        la.optimize_prior_precision()
    seconds = time.perf_counter() - start

    def predict(x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            found = la(x)
        if not task.regression:
            return found.detach(), found.detach()
        m, v = (part.detach() for part in found)
        return m, v.reshape(m.shape) + float(la.sigma_noise) ** 2

    yield scored(task, "laplace-torch, its default", data, predict, seconds)


def batches(pair: tuple[Tensor, Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Of 200 samples."""
    return list(zip(pair[0].split(200), pair[1].split(200), strict=True))


def run(
    names: Sequence[str], data: Path | None, cache: Path, seeds: int, quick: bool, out: Path
) -> None:
    """Write all results, anew after every task; each is printed as it is found."""
    found: dict[int, list[Result]] = {}
    for seed in range(1 if quick else seeds):
        for name in names:
            task = TASKS[name]
            epochs = 3 if quick else None
            both = task.prepared(data, cache, seed, epochs)
            members: list[nn.Module] = []
            if seed == 0 and not quick:
                members = [task.member(both[0], cache, seed, number) for number in (1, 2)]
            screening = seed == 0
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ways = [
                    *baselines(task, *both, members),
                    *posteriors(task, *both, screening),
                    *(other_package(task, *both) if screening else ()),
                ]
            found.setdefault(seed, []).extend(ways)
            for one in ways:
                print(f"{seed} {name}, {one.way}: {float(one.nll.mean()):.4f}", flush=True)
            report(found, out)


def summary(results: Sequence[Result], regression: bool) -> list[list[str]]:
    """A row for each way: how it differs from the network, over tasks."""
    base = {one.task: one for one in results if one.way == "network"}
    rows: list[list[str]] = []
    for way in dict.fromkeys(one.way for one in results):
        own = [one for one in results if one.way == way]
        pairs = [(one, base[one.task]) for one in own]
        gaps = [one.nll - other.nll for one, other in pairs]
        means = [float(gap.mean()) for gap in gaps]
        errors = [float(gap.std()) / len(gap) ** 0.5 for gap in gaps]
        worse = sum(m > WORSE for m in means)
        beyond = sum(m > max(WORSE, 2 * e) for m, e in zip(means, errors, strict=True))
        spread = mean(
            one.calibration if regression else one.calibration - other.calibration
            for one, other in pairs
        )
        far = mean(one.auroc - other.auroc for one, other in pairs)
        rows.append(
            [
                way, str(len(own)), f"{mean(means):+.4f}", f"{max(means):+.4f}",
                f"{sum(m < 0 for m in means)}", str(worse), str(beyond), f"{spread:.3f}",
                f"{far:+.3f}", f"{mean(one.seconds for one in own):.2f}",
            ]
        )  # fmt: skip
    return rows


def cells(results: Sequence[Result]) -> list[list[str]]:
    """Test NLL of each task and way."""
    ways = list(dict.fromkeys(one.way for one in results))
    known = {(one.task, one.way): float(one.nll.mean()) for one in results}
    return [
        [task, *(f"{known[task, way]:.4f}" if (task, way) in known else "" for way in ways)]
        for task in dict.fromkeys(one.task for one in results)
    ]


def main(argv: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="a folder with the .npz files")
    parser.add_argument("--cache", type=Path, default=Path("build/calibration"))
    parser.add_argument("--out", type=Path, default=Path("docs/measured/calibration.md"))
    parser.add_argument("--tasks", nargs="*", help="all by default")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="three epochs of one task of a kind")
    chosen = parser.parse_args(argv)
    names = chosen.tasks or [
        name for name, task in TASKS.items() if chosen.data is not None or task.file is None
    ]
    if chosen.quick:
        names = ["digits, MLP", "diabetes"]
    run(names, chosen.data, chosen.cache, chosen.seeds, chosen.quick, chosen.out)


def report(found: dict[int, list[Result]], out: Path) -> None:
    """The document."""
    lines = list(LEGEND)
    head = ["way", "cells", "NLL", "largest", "better", "worse", "beyond noise"]
    for title, regression in (("Classes", False), ("Regressions", True)):
        columns = [*head, "coverage" if regression else "ECE", "AUROC", "seconds"]
        for part, seeds in (("one seed, everything", [0]), ("all seeds, finalists", list(found))):
            results = [
                one for seed in seeds for one in keyed(found[seed], seed)
                if TASKS[one.task.rpartition("#")[0]].regression == regression
                and (part[0] == "o" or one.way in FINALISTS)
            ]  # fmt: skip
            if results:
                lines += [f"## {title}, {part}", ""]
                lines += [*table(columns, summary(results, regression)), ""]
    shown = [one for one in found[0] if one.way in SHOWN]
    ways = list(dict.fromkeys(one.way for one in shown))
    lines += ["## Test NLL of each task, first seed", "", *table(["task", *ways], cells(shown))]
    command = "python -m benchmarks.calibration --data DIR"
    write(out, "Calibration on real tasks", command, lines)


# Columns of the table of tasks.
SHOWN = (
    "network", "temperature", "last, cautious", "last, held out", "kron, held out",
    "diag, held out", "kron, evidence", "laplace-torch, its default",
)  # fmt: skip


def keyed(results: Sequence[Result], seed: int) -> list[Result]:
    """The results with the seed in the task's name."""
    return [
        Result(f"{one.task}#{seed}", one.way, one.nll, one.calibration, one.auroc, one.seconds)
        for one in results
    ]


if __name__ == "__main__":
    main()
