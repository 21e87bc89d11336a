"""Missing pixels, and whole images from noise."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lapkernels.autoencoder.interface import StochasticAutoencoder


@torch.no_grad()
def impute(
    model: StochasticAutoencoder,
    x: Tensor,
    observed: Tensor,
    *,
    modes: int = 5,
    refinements: int = 5,
    keep: bool = True,
) -> Tensor:
    """Images [modes, N, *shape] whose missing pixels are filled in, in two stages.

    Missing pixels start as uniform noise. ``modes`` drawn autoencoders reconstruct the image: they
    may disagree on what it shows. Each of the results, with the observed pixels put back, is
    reconstructed by ``refinements`` more, which mostly agree, and whose mean is sharper than one of
    them (Miani et al., 2022, A.3). ``observed`` is a mask that broadcasts to x [N, *shape]. With
    ``keep`` the results have the observed pixels; without, all of their pixels are reconstructed.
    """
    if modes < 1 or refinements < 1:
        raise ValueError(f"modes={modes} and refinements={refinements}: one each at least")
    if observed.dtype != torch.bool:
        raise TypeError(f"observed has dtype {observed.dtype}: a mask of booleans is needed")
    observed = observed.expand_as(x)
    noise = torch.rand(x.shape, generator=model.generator, dtype=x.dtype, device=x.device)
    first = model.expected(_exactly(model, torch.where(observed, x, noise), modes))
    mixed = torch.where(observed, x, first)
    again = model.expected(_exactly(model, mixed.flatten(0, 1), refinements)).mean(0)
    again = again.unflatten(0, mixed.shape[:2])
    return torch.where(observed, x, again) if keep else again


def generate(
    model: StochasticAutoencoder, shape: Sequence[int], count: int, *, refinements: int = 5
) -> Tensor:
    """Images [count, *shape] by the same procedure where every pixel is missing."""
    parameter = next(iter(model.parameters.values()))
    x = parameter.new_zeros(count, *shape)
    nothing = torch.zeros((), dtype=torch.bool, device=x.device)
    return impute(model, x, nothing, modes=1, refinements=refinements)[0]


def _exactly(model: StochasticAutoencoder, x: Tensor, samples: int) -> Tensor:
    """Outputs of that many draws, repeating those of a model that has fewer."""
    output = model.draws(x, samples).output
    return output[torch.arange(samples, device=x.device) % len(output)]
