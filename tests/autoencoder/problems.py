"""Small autoencoders and images for tests."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


def dense_networks(dtype: torch.dtype = torch.float64) -> tuple[nn.Module, nn.Module]:
    """6 - 4 - 2 - 4 - 6 with tanh."""
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2))
    decoder = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 6))
    return encoder.to(dtype), decoder.to(dtype)


def conv_networks(dtype: torch.dtype = torch.float64) -> tuple[nn.Module, nn.Module]:
    """Images [N, 1, 8, 8] to two latent variables and back."""
    torch.manual_seed(0)
    encoder = nn.Sequential(
        *(nn.Conv2d(1, 2, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32, 2)),
    )
    decoder = nn.Sequential(
        *(nn.Linear(2, 32), nn.Unflatten(1, (2, 4, 4)), nn.Upsample(scale_factor=2)),
        *(nn.Tanh(), nn.Conv2d(2, 1, 3, padding=1)),
    )
    return encoder.to(dtype), decoder.to(dtype)


def vectors(count: int = 12, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(count, 6, generator=generator, dtype=dtype)


def images(count: int = 5, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(count, 1, 8, 8, generator=generator, dtype=dtype)


def shuffled(x: Tensor, batch: int) -> DataLoader[tuple[Tensor, ...]]:
    return DataLoader(TensorDataset(x), batch, shuffle=True)
