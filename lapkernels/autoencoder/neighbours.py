"""Classification with few labels, by neighbours in the latent space."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lapkernels.autoencoder.interface import StochasticAutoencoder

CANDIDATES = (1, 3, 5, 11, 21, 51)


def classify(
    model: StochasticAutoencoder,
    labelled: Tensor,
    y: Tensor,
    x: Tensor,
    *,
    repeats: int = 100,
    candidates: Sequence[int] = CANDIDATES,
) -> Tensor:
    """Classes [M] of x by their nearest neighbours among embeddings of ``labelled`` [N, *shape].

    Every labelled point is embedded by ``repeats`` drawn encoders, so that few labels fill as much
    of the latent space as the encoder is unsure of; x is embedded as the mean over draws. The
    number of neighbours is the one of ``candidates`` with the best two-fold cross-validation, in
    which all embeddings of a point are in one fold (Miani et al., 2022, A.4).
    """
    if y.shape != labelled.shape[:1]:
        raise ValueError(f"y {tuple(y.shape)} must have a class for each of {len(labelled)} points")
    points = model.draws(labelled, repeats).latent.flatten(2)  # [S, N, K]
    queries = model.latent(x, repeats).mean.flatten(1)
    count = best_count(points, y, model.generator, candidates)
    return vote(points, y, queries, count)


def best_count(
    points: Tensor, y: Tensor, generator: torch.Generator, candidates: Sequence[int] = CANDIDATES
) -> int:
    """The number of neighbours that classifies each half of the points best by the other half.

    ``points`` is [S, N, K]. The smallest of equally good ones, and of more than there are points
    the largest that can be had.
    """
    draws, count = points.shape[:2]
    if count < 2:
        return 1
    order = torch.randperm(count, generator=generator, device=points.device)
    halves = order[: count // 2], order[count // 2 :]
    most = draws * len(halves[0])
    tried = sorted({min(candidate, most) for candidate in candidates})
    right = [0] * len(tried)
    for own, other in (halves, halves[::-1]):
        truth = y[other]
        for index, k in enumerate(tried):
            found = vote(points[:, own], y[own], points[:, other].mean(0), k)
            right[index] += int((found == truth).sum())
    return tried[right.index(max(right))]


def vote(points: Tensor, y: Tensor, queries: Tensor, count: int) -> Tensor:
    """The most frequent class [M] among the ``count`` nearest of points [S, N, K].

    Among classes with equally many votes the one whose voters are nearest on the whole.
    """
    known = points.flatten(0, 1)
    classes = y.repeat(points.shape[0])
    size = int(y.max()) + 1
    found = []
    for part in queries.split(256):
        near = torch.cdist(part, known).topk(min(count, len(known)), largest=False)
        votes = part.new_zeros(len(part), size)
        # A vote is worth 1, less at most half of what would outweigh another by distance.
        spread = near.values / (near.values.amax(1, keepdim=True) + 1e-30)
        worth = 1 - spread / (2 * near.values.shape[1])
        votes.scatter_add_(1, classes[near.indices], worth)
        found.append(votes.argmax(1))
    return torch.cat(found)
