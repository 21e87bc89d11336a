"""A posterior fitted by several processes, of a network that they have trained together.

    torchrun --nproc-per-node=2 examples/many_processes.py

trains with DistributedDataParallel on shards and fits a Kronecker posterior, to which every process
contributes every second batch; as ``python examples/many_processes.py`` it is all done by one. The
first process compares with a fit of its own on all data.
"""

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import lapkernels as lk


def patterns(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Noisy stripes of four directions, and which one."""
    labels = torch.arange(count) % 4
    y, x = torch.meshgrid(torch.arange(12.0), torch.arange(12.0), indexing="ij")
    waves = torch.stack([x, y, x + y, x - y]).mul(torch.pi / 3).sin()
    noise = torch.randn(count, 12, 12, generator=torch.Generator().manual_seed(seed))
    return (waves[labels] + 2.5 * noise).unsqueeze(1), labels


def network() -> nn.Module:
    """A small convolutional classifier, the same in every process."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(8, 16, 3), nn.Tanh(),
        nn.Flatten(), nn.Linear(16 * 9, 4),
    )  # fmt: skip


def trained(x: Tensor, y: Tensor, rank: int, size: int, steps: int) -> nn.Module:
    """Each process has a shard of the data; gradients are averaged."""
    model = network()
    if size > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[rank::size]), y[rank::size]).backward()
        optimizer.step()
    return model.eval()


def entropies(la: lk.Laplace, x: Tensor) -> Tensor:
    """Entropy of the predicted classes, in bits."""
    p = la.predict(x).probabilities
    return -(p * p.log2()).nan_to_num().sum(1)


def main() -> None:
    """Train, fit, compare, draw."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="less data, fewer steps")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="save the figure there")
    options = parser.parse_args()
    if "RANK" in os.environ:  # started by torchrun
        dist.init_process_group("gloo")
    rank, size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    x, y = patterns(256 if options.quick else 4096, seed=0)
    model = trained(x, y, rank, size, 20 if options.quick else 60)

    # The same batches on all processes, of which each takes every size-th.
    batches = list(zip(x.split(64), y.split(64), strict=True))
    start = time.perf_counter()
    la = lk.Laplace(model, "classification", structure="kron").fit(batches)
    seconds = time.perf_counter() - start
    la.tune(by="evidence")

    if rank == 0:
        start = time.perf_counter()
        with lk.use_processes(None):
            alone = lk.Laplace(model, "classification", structure="kron").fit(batches)
        others = time.perf_counter() - start
        alone.tune(by="evidence")
        apart = abs(float(la.log_evidence() / alone.log_evidence()) - 1)
        print(f"{'processes':<12}{'seconds':>9}{'log evidence':>15}")
        print(f"{size:<12}{seconds:>9.2f}{float(la.log_evidence()):>15.3f}")
        print(f"{1:<12}{others:>9.2f}{float(alone.log_evidence()):>15.3f}")
        print(f"relative difference {apart:.1e}")
    if rank == 0 and options.out:
        from matplotlib import pyplot

        figure, ax = pyplot.subplots(figsize=(6, 3.2))
        shown = {"stripes": patterns(400, seed=1)[0], "noise": 3 * torch.randn(400, 1, 12, 12)}
        for name, images in shown.items():
            ax.hist(entropies(la, images).numpy(), bins=40, range=(0, 2), alpha=0.6, label=name)
        ax.set(xlabel="entropy of the prediction in bits", ylabel="images")
        ax.legend()
        figure.tight_layout()
        options.out.mkdir(parents=True, exist_ok=True)
        figure.savefig(options.out / "many_processes.png", dpi=90)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
