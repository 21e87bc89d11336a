"""Novelty, imputation and neighbours against formulas, scikit-learn and hand-made models."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from lapkernels.autoencoder import (
    Draws,
    LaplacianAutoencoder,
    PlainAutoencoder,
    areas,
    classify,
    generate,
    impute,
    novelty,
    roc,
)
from lapkernels.autoencoder.neighbours import best_count, vote
from tests.autoencoder.problems import dense_networks, images, vectors


def test_roc_is_that_of_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    generator = torch.Generator().manual_seed(0)
    # Rounded, so that there are ties within and between the two.
    usual = (torch.randn(50, generator=generator) * 3).round()
    unusual = (torch.randn(40, generator=generator) * 3 + 1).round()
    found = roc(usual, unusual)
    truth = [0] * 50 + [1] * 40
    scores = torch.cat([usual, unusual]).numpy()
    assert found.area == pytest.approx(metrics.roc_auc_score(truth, scores))
    false, true, _ = metrics.roc_curve(truth, scores, drop_intermediate=False)
    assert found.false_positive.tolist() == pytest.approx(false.tolist())
    assert found.true_positive.tolist() == pytest.approx(true.tolist())


def test_bad_scores_are_refused() -> None:
    with pytest.raises(ValueError, match="unusual"):
        roc(torch.ones(3), torch.tensor([float("nan")]))
    with pytest.raises(ValueError, match="usual"):
        roc(torch.ones(0), torch.ones(2))


def test_novelty_is_made_of_likelihoods_and_variances() -> None:
    ae = LaplacianAutoencoder(*dense_networks(), initial_precision=20.0)
    x, training = vectors(5), vectors(7) + 0.1
    ae.generator.manual_seed(3)
    found = novelty(ae, x, training, 4)
    ae.generator.manual_seed(3)
    draws = ae.draws(x, 4)
    likelihood = -ae.log_densities(draws.output, x).mean(0)
    entropy = -ae.log_likelihood(training, 4).mean()
    assert torch.allclose(found.likelihood, likelihood)
    assert torch.allclose(found.typicality, (likelihood - entropy).abs())
    assert torch.allclose(found.latent_variance, draws.latent.var(0).sum(1))
    assert torch.allclose(found.output_variance, draws.output.var(0).sum(1))


def test_far_away_inputs_are_more_novel() -> None:
    encoder, decoder = nn.Linear(6, 2).double(), nn.Linear(2, 6).double()
    ae = LaplacianAutoencoder(encoder, decoder, initial_precision=100.0)
    near, far = vectors(20), 10 * vectors(20)
    found = areas(novelty(ae, near, near, 20), novelty(ae, far, near, 20))
    assert min(found.values()) == 1.0


class HalfOf(nn.Module):
    """An encoder that keeps all, or a decoder that halves."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


def test_imputation_in_two_stages_keeps_what_is_observed() -> None:
    ae = PlainAutoencoder(HalfOf(1.0), HalfOf(0.5))
    x = images(3)
    observed = torch.zeros(1, 8, 8, dtype=torch.bool)
    observed[:, 4:] = True
    twin = torch.Generator().manual_seed(0)
    noise = torch.rand(x.shape, generator=twin, dtype=x.dtype)
    found = impute(ae, x, observed, modes=2, refinements=3)
    assert found.shape == (2, *x.shape)
    assert torch.equal(found[:, :, :, 4:], x[:, :, 4:].expand(2, -1, -1, -1, -1))
    # Halved in each of the two stages; observed pixels in the second alone.
    assert torch.allclose(found[0, :, :, :4], noise[:, :, :4] / 4)
    ae.generator.manual_seed(0)
    again = impute(ae, x, observed, modes=2, refinements=3, keep=False)
    assert torch.allclose(again[1, :, :, :4], noise[:, :, :4] / 4)
    assert torch.allclose(again[1, :, :, 4:], x[:, :, 4:] / 2)


def test_imputation_explores_in_the_first_stage_and_averages_in_the_second() -> None:
    class Counting(PlainAutoencoder):
        asked: list[tuple[int, int]] = []

        def draws(self, x: Tensor, samples: int) -> Draws:
            self.asked.append((len(x), samples))
            steps = torch.arange(samples, dtype=x.dtype).view(-1, *[1] * x.dim())
            return Draws(x.unsqueeze(0), x.unsqueeze(0) + steps)

    ae = Counting(HalfOf(1.0), HalfOf(1.0))
    x = images(2)
    nothing = torch.tensor(False)
    found = impute(ae, x, nothing, modes=4, refinements=3)
    assert Counting.asked == [(2, 4), (8, 3)]
    # Draw s adds s; the second stage adds the mean of 0, 1, 2.
    start = found[0] - 1
    for mode in range(4):
        assert torch.allclose(found[mode], start + mode + 1)


def test_bernoulli_imputation_feeds_probabilities_back() -> None:
    ae = PlainAutoencoder(HalfOf(1.0), HalfOf(2.0), likelihood="bernoulli")
    x = images(2)
    twin = torch.Generator().manual_seed(0)
    noise = torch.rand(x.shape, generator=twin, dtype=x.dtype)
    found = impute(ae, x, torch.tensor(False), modes=1, refinements=1)[0]
    assert torch.allclose(found, (2 * (2 * noise).sigmoid()).sigmoid())


def test_generation_starts_from_noise() -> None:
    ae = PlainAutoencoder(HalfOf(1.0), HalfOf(0.5))
    found = generate(ae, (1, 8, 8), 3)
    twin = torch.Generator().manual_seed(0)
    noise = torch.rand(3, 1, 8, 8, generator=twin, dtype=torch.float64)
    assert torch.allclose(found, noise / 4)


def test_bad_imputations_are_refused() -> None:
    ae, x = PlainAutoencoder(HalfOf(1.0), HalfOf(1.0)), images(2)
    with pytest.raises(TypeError, match="observed"):
        impute(ae, x, torch.ones(1))
    with pytest.raises(ValueError, match="modes=0"):
        impute(ae, x, torch.tensor(True), modes=0)


def test_votes_are_those_of_scikit_learn() -> None:
    neighbors = pytest.importorskip("sklearn.neighbors")
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(3, 30, 2, generator=generator, dtype=torch.float64)
    y = (points[0, :, 0] > 0).long()
    queries = torch.randn(40, 2, generator=generator, dtype=torch.float64)
    for count in (1, 5, 21):  # Odd numbers of two classes: no ties.
        theirs = neighbors.KNeighborsClassifier(count).fit(points.flatten(0, 1), y.repeat(3))
        assert vote(points, y, queries, count).tolist() == theirs.predict(queries).tolist()


def test_ties_go_to_the_nearer_class() -> None:
    points = torch.tensor([[[0.0], [1.0], [5.0]]])
    y = torch.tensor([1, 0, 0])
    assert vote(points, y, torch.tensor([[0.2], [0.9]]), 2).tolist() == [1, 0]


def test_count_of_neighbours_is_validated_on_other_points() -> None:
    """Repeats of a point must not vote for itself: with pure noise, one neighbour is no better."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(60, 2, generator=generator)
    points = centres + 1e-3 * torch.randn(20, 60, 2, generator=generator)
    # A quarter of the labels is wrong: one neighbour errs more often than many.
    y = (centres[:, 0] > 0).long()
    y[::4] = 1 - y[::4]
    assert best_count(points, y, torch.Generator().manual_seed(0), (1, 201)) == 201
    assert best_count(points[:, :1], y[:1], torch.Generator()) == 1


def test_classification_of_separate_classes() -> None:
    encoder, decoder = nn.Linear(6, 2).double(), nn.Linear(2, 6).double()
    ae = LaplacianAutoencoder(encoder, decoder, initial_precision=1e4)
    labelled = torch.cat([vectors(4), vectors(4) + 10])
    y = torch.tensor([0] * 4 + [1] * 4)
    x = torch.cat([vectors(12), vectors(12) + 10])
    found = classify(ae, labelled, y, x, repeats=10)
    assert found.tolist() == [0] * 12 + [1] * 12
    with pytest.raises(ValueError, match="y"):
        classify(ae, labelled, y[:3], x)
