"""One laplace-torch script with its default backend and with ours: the same numbers, sooner.

A small convolutional network classifies drawn stripes; its posteriors are fitted by laplace-torch.

    python examples/laplace_torch_backend.py --out results

Needs laplace-torch 0.3: see docs/laplace_torch.md.
"""

import time
from typing import Any

import matplotlib
import torch
from common import minimise, options, show, table
from laplace import Laplace
from laplace.curvature import CurvlinopsGGN
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lapkernels.integrations import LaplaceTorchGGN, without_jacobians

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402


def stripes(count: int) -> tuple[Tensor, Tensor]:
    """Noisy images of 16 x 16 with waves in one of four directions."""
    label = torch.randint(4, (count,))
    angle = label * torch.pi / 4
    row, column = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    phase = angle.cos()[:, None, None] * row + angle.sin()[:, None, None] * column
    start = 6 * torch.rand(count, 1, 1)
    return ((phase + start).sin() + torch.randn(count, 16, 16)).unsqueeze(1), label


def main() -> None:
    """Command line of the example."""
    arguments = options(__doc__).parse_args()
    torch.manual_seed(arguments.seed)
    x, y = stripes(32 if arguments.quick else 512)
    new, _ = stripes(8 if arguments.quick else 64)
    model = nn.Sequential(
        *(nn.Conv2d(1, 8, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(256, 4)),
    )
    minimise(lambda: nn.functional.cross_entropy(model(x), y), model.parameters(), 60, 1e-2)
    loader = DataLoader(TensorDataset(x, y), batch_size=32)
    figure, axes = plt.subplots(1, 2, figsize=(8, 4), layout="constrained")
    rows = []
    for structure, axis in zip(("diag", "kron"), axes, strict=True):
        found: dict[str, tuple[float, float, Any]] = {}
        for name, backend in (("default", CurvlinopsGGN), ("lapkernels", LaplaceTorchGGN)):
            start = time.perf_counter()
            la: Any = Laplace(model, "classification", "all", structure, backend=backend)
            la.fit(loader)
            la.optimize_prior_precision()
            fitted = time.perf_counter()
            p = (without_jacobians(la) if backend is LaplaceTorchGGN else la)(new)
            found[name] = (fitted - start, time.perf_counter() - fitted, p)
        difference = float((found["default"][2] - found["lapkernels"][2]).abs().max())
        for name, (fit, predict, _) in found.items():
            rows.append(
                [structure, name, f"{fit:.2f} s", f"{1e3 * predict:.0f} ms", f"{difference:.1e}"]
            )
        axis.plot(found["default"][2], found["lapkernels"][2], "k.", markersize=3)
        axis.set(title=structure, xlabel="p, default backend", ylabel="p, lapkernels")
    header = ("structure", "backend", "fit and tune", "predict", "largest difference of p")
    show("laplace_torch_backend", table(header, rows), figure, arguments.out)


if __name__ == "__main__":
    main()
