"""Four small problems of linearised Laplace: what it adds to a network, and how it is tuned.

- Regression: the linearised band against the spread of sampled networks, which leaves the data.
- Two classes: the network is certain far from the data, the posterior is not.
- MacKay's fixed point: prior, noise and the number of well-determined parameters of perceptrons of
  growing width, and the error that their band promises.
- In between: a gap in the inputs seen by full, Kronecker and diagonal posteriors over all weights,
  and by full ones over subnetworks: the weights of largest marginal variance, of largest variance
  along SGD, and with the largest share of the outputs' variance.

    python examples/toy_uncertainty.py --out results
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from common import options, show, table
from pictures import BAND, DATA, PALETTE, bands, claim, figure
from torch import Tensor, nn
from torch.func import functional_call

import lapkernels as lk
from lapkernels.laplace import Swag

GRID = torch.linspace(-3, 3, 91, dtype=torch.float64).unsqueeze(1)
NOISE = 0.15
# Shares of the initialiser's precision that are tried as a prior's.
SHARES = (1.0, 0.1, 0.02)


def wave(count: int, gap: float, seed: int) -> tuple[Tensor, Tensor]:
    """sin(2 x) with noise, x in [-2, 2] but for (-gap, gap)."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(count, 1, generator=generator, dtype=torch.float64) * (2 - gap) + gap
    x = x * (torch.arange(count).unsqueeze(1) % 2 * 2 - 1)
    noise = torch.randn(count, 1, generator=generator, dtype=torch.float64)
    return x, (2 * x).sin() + NOISE * noise


def perceptron(*sizes: int, activation: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    """Linear layers with activations between them, in float64."""
    layers: list[nn.Module] = []
    for inner, outer in zip(sizes, sizes[1:], strict=False):
        layers += [nn.Linear(inner, outer), activation()]
    return nn.Sequential(*layers[:-1]).double()


def penalty(model: nn.Module, prior: lk.Prior) -> Tensor:
    """θᵀ Λ θ / 2."""
    found = [prior.precision[n] * p.square().sum() for n, p in model.named_parameters()]
    return 0.5 * torch.stack(found).sum()


def to_optimum(model: nn.Module, loss: Any, precision: float | lk.Prior, steps: int) -> None:
    """The maximum a posteriori: Adam, then L-BFGS."""
    if not isinstance(precision, lk.Prior):
        precision = lk.Prior.of_groups({"": [n for n, _ in model.named_parameters()]}, precision)

    def objective() -> Tensor:
        return loss() + penalty(model, precision)

    first = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(steps):
        first.zero_grad()
        objective().backward()
        first.step()
    second = torch.optim.LBFGS(model.parameters(), max_iter=steps, line_search_fn="strong_wolfe")

    def closure() -> float:
        second.zero_grad()
        value = objective()
        value.backward()
        return float(value.detach())

    second.step(closure)


def regression(axes: Any, steps: int) -> str:
    """Linearised and sampled bands of two networks."""
    x, y = wave(40, 0.5, 0)
    new, target = wave(400, 0.5, 1)
    networks = {
        "50 tanh": perceptron(1, 50, 1),
        "20-20 ReLU": perceptron(1, 20, 20, 1, activation=nn.ReLU),
    }
    rows = []
    for column, (name, model) in enumerate(networks.items()):
        likelihood = lk.likelihoods.Gaussian(NOISE**2)
        to_optimum(model, lambda m=model: (m(x) - y).square().sum() / (2 * NOISE**2), 1.0, steps)
        la = lk.Laplace(model, likelihood, "full", prior=1.0).fit((x, y))
        for row, how in enumerate(("linearised", "weights")):
            generator = torch.Generator().manual_seed(0)
            points = torch.cat([GRID, new])
            p = la.predict(points, how=how, samples=200, generator=generator)
            score = p.log_likelihood(torch.cat([torch.zeros_like(GRID), target]))[len(GRID) :]
            inside = ((target - p.mean[len(GRID) :]).square()
                      < 4 * (p.variance + p.noise)[len(GRID) :]).double().mean()  # fmt: skip
            rows.append([f"{name}, {how}", f"{float(score.mean()):.2f}", f"{float(inside):.3f}"])
            ax = axes[2 * column + row]
            if how == "linearised":
                band = la.predict(GRID)
                bands(
                    ax,
                    GRID.flatten(),
                    band.mean.flatten(),
                    (band.variance + band.noise).sqrt()[:, 0],
                )
            else:
                for step in zip(*la.sample(15, generator).values(), strict=True):
                    moved = [p + d for p, d in zip(model.parameters(), step, strict=True)]
                    names = [n for n, _ in model.named_parameters()]
                    drawn = functional_call(model, dict(zip(names, moved, strict=True)), (GRID,))
                    ax.plot(GRID, drawn.detach(), color=BAND, linewidth=0.8)
            ax.plot(x, y, ".", color=DATA)
            what = "linearised, 1σ and 2σ" if how == "linearised" else "networks drawn"
            ax.set(title=f"{name}: {what}", ylim=(-4, 4))
    return table(["regression", "log-likelihood of new points", "inside 2σ"], rows)


def classes(axes: Any, steps: int) -> str:
    """Two half-moons: confidence at the data and far from them."""
    generator = torch.Generator().manual_seed(0)
    angle = math.pi * torch.rand(100, generator=generator, dtype=torch.float64)
    y = (torch.arange(100) % 2).long()
    upper = torch.stack([angle.cos(), angle.sin()], 1)
    lower = torch.stack([1 - angle.cos(), 0.5 - angle.sin()], 1)
    x = torch.where(y.unsqueeze(1) == 0, upper, lower)
    x = x + 0.1 * torch.randn(100, 2, generator=generator, dtype=torch.float64)
    model = perceptron(2, 20, 20, 2, activation=nn.ReLU)
    to_optimum(model, lambda: F.cross_entropy(model(x), y, reduction="sum"), 0.1, steps)
    la = lk.Laplace(model, "classification", "full", prior=0.1).fit((x, y))
    side = torch.linspace(-6, 7, 160, dtype=torch.float64)
    plane = torch.cartesian_prod(side, side)
    turn = torch.linspace(0, 2 * math.pi, 101, dtype=torch.float64)[:-1]
    far = 10 * torch.stack([turn.cos(), turn.sin()], 1)
    ways = {
        "MAP": lambda points: model(points).detach().softmax(1),
        "Laplace": lambda points: la.predict(points).probabilities,
    }
    rows = []
    for ax, (name, way) in zip(axes, ways.items(), strict=True):
        confidence = [float(way(points).max(1).values.mean()) for points in (x, far)]
        right = float((way(x).argmax(1) == y).double().mean())
        rows.append([name, f"{right:.2f}", *(f"{value:.3f}" for value in confidence)])
        image = way(plane)[:, 1].reshape(160, 160).T
        shown = ax.imshow(
            image, origin="lower", extent=(-6, 7, -6, 7), cmap="RdBu", vmin=0, vmax=1, aspect="auto"
        )
        for label, color in ((0, PALETTE[1]), (1, PALETTE[0])):
            ax.plot(*x[y == label].T, ".", color=color, markersize=3)
        ax.set(title=f"{name}: probability of class 1", xticks=[], yticks=[])
        ax.figure.colorbar(shown, ax=ax, ticks=[0, 0.5, 1])
    head = ["two classes", "accuracy", "confidence at the data", "at distance 10"]
    return table(head, rows)


def mackay(ax: Any, steps: int) -> str:
    """α, β and γ by turns of training and fixed point, for growing networks."""
    x, y = wave(40, 0.0, 3)
    new = torch.linspace(-2, 2, 200, dtype=torch.float64).unsqueeze(1)
    truth = (2 * new).sin()
    rows = []
    for hidden in (2, 6, 20):
        torch.manual_seed(hidden)
        model = perceptron(1, hidden, 1)
        alpha, variance = 0.1, 0.25
        la = None
        for _ in range(4):
            to_optimum(
                model, lambda v=variance, m=model: (m(x) - y).square().sum() / (2 * v), alpha, steps
            )
            la = lk.Laplace(model, lk.likelihoods.Gaussian(variance), "full", prior=alpha)
            la.fit((x, y)).tune(by="mackay")
            alpha = float(la.prior.values[""])
            variance = float(la.likelihood.variance)  # pyright: ignore
        assert la is not None
        gamma = la.posterior.effective(la.prior.groups)[""]
        p = la.predict(new)
        error, promised = float((p.mean - truth).square().mean().sqrt()), float(p.std.mean())
        size = sum(q.numel() for q in model.parameters())
        numbers = [f"{alpha:.3f}", f"{variance**0.5:.3f}", f"{gamma:.1f} of {size}"]
        evidence = float(la.log_evidence())
        rows.append(
            [f"1-{hidden}-1", *numbers, f"{evidence:.1f}", f"{error:.3f}", f"{promised:.3f}"]
        )
        if hidden == 6:
            band = la.predict(GRID)
            bands(
                ax, GRID.flatten(), band.mean.flatten(), (band.variance + band.noise).sqrt()[:, 0]
            )
            ax.plot(x, y, ".", color=DATA)
            ax.set(title="1-6-1, prior and noise by MacKay", ylim=(-4, 4))
    head = ["network", "α", "noise (0.15)", "γ", "log evidence", "error of f", "mean σ of f"]
    return table(head, rows)


def weights_along_sgd(
    model: nn.Module, x: Tensor, y: Tensor, prior: lk.Prior, steps: int
) -> dict[str, Tensor]:
    """Variances of the weights along SGD at a constant rate from the optimum, which is kept."""
    trained = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), 2e-6, momentum=0.9)
    swag, generator = Swag(model), torch.Generator().manual_seed(0)
    for step in range(steps):
        part = torch.randperm(len(x), generator=generator)[:10]
        error = (model(x[part]) - y[part]).square().sum() * len(x) / len(part)
        optimizer.zero_grad()
        (error / (2 * NOISE**2) + penalty(model, prior)).backward()
        optimizer.step()
        if step % 5 == 0:
            swag.update()
    model.load_state_dict(trained)
    return swag.variance()


def posteriors_of_a_gap(
    hidden: int, steps: int, share: float | None, parts: tuple[float, ...]
) -> dict[str, lk.Laplace]:
    """Posteriors of one network by name, fitted to data with a gap.

    The prior has ``share`` of the initialiser's precision, or a precision of 1 for all if it is
    None. Subnetworks have ``parts`` of the weights.
    """
    x, y = wave(60, 1.0, 2)
    torch.manual_seed(0)
    model = perceptron(1, hidden, hidden, 1)
    prior = lk.Prior.of_groups({"": [n for n, _ in model.named_parameters()]})
    if share is not None:
        initial = lk.Prior.from_initialiser(model)
        prior = lk.Prior(initial.groups, {k: v * share for k, v in initial.values.items()})
    to_optimum(model, lambda: (model(x) - y).square().sum() / (2 * NOISE**2), prior, steps)
    cases: dict[str, dict[str, Any]] = {
        "full": {"structure": "full"},
        "Kronecker": {"structure": "kron", "method": "exact"},
        "diagonal": {"structure": "diag"},
    }
    size = sum(p.numel() for p in model.parameters())
    rules: dict[str, dict[str, Any]] = {
        "variance": {},
        "SGD": {"by": weights_along_sgd(model, x, y, prior, steps)},
        "outputs": {"by": "outputs", "inputs": GRID},
    }
    for rule, own in rules.items():
        for part in parts:
            name = f"{part:.0%} by {rule}"
            cases[name] = {"structure": "subnetwork", "size": round(part * size), **own}
    likelihood = lk.likelihoods.Gaussian(NOISE**2)
    return {
        name: lk.Laplace(model, likelihood, prior=prior, **settings).fit((x, y))
        for name, settings in cases.items()
    }


def widening(la: lk.Laplace) -> float:
    """σ of f in the gap over σ of f at the data."""
    inside = torch.linspace(-0.5, 0.5, 11, dtype=torch.float64).unsqueeze(1)
    return float(la.predict(inside).std.mean() / la.predict(wave(60, 1.0, 2)[0]).std.mean())


def in_between(axes: Any, bars: Any, steps: int, quick: bool) -> str:
    """σ in the gap over σ at the data, of posteriors over all and over few weights."""
    hidden, parts = (10, (0.2,)) if quick else (50, (0.05, 0.2, 0.5))
    tried = {share: posteriors_of_a_gap(hidden, steps, share, parts) for share in SHARES}
    evidence = {share: float(found["full"].log_evidence()) for share, found in tried.items()}
    best = max(evidence, key=lambda share: evidence[share])
    found, single = tried[best], posteriors_of_a_gap(hidden, steps, None, parts)
    new, target = wave(400, 1.0, 5)
    middle, truth = wave(400, 0.0, 6)
    middle, truth = middle[middle.abs() < 1].unsqueeze(1), truth[middle.abs() < 1].unsqueeze(1)
    rows = []
    for name, la in found.items():
        scores = [
            float(la.predict(points).log_likelihood(values).mean())
            for points, values in ((new, target), (middle, truth))
        ]
        ratios = [f"{widening(each[name]):.1f}" for each in (found, single)]
        rows.append([name, ratios[0], *(f"{value:.2f}" for value in scores), ratios[1]])
    pictured = ("full", "Kronecker", "20% by outputs", "20% by SGD")
    for ax, name in zip(axes, pictured, strict=True):
        band = found[name].predict(GRID)
        bands(ax, GRID.flatten(), band.mean.flatten(), (band.variance + band.noise).sqrt()[:, 0])
        ax.plot(*wave(60, 1.0, 2), ".", color=DATA)
        ax.set(title=name, ylim=(-4, 4))
    names = [name for name in found if name[:2] not in ("5%", "50")]
    for number, (each, label) in enumerate(
        ((found, f"{best:g} of the initialiser's"), (single, "1 for all weights"))
    ):
        places = [place + 0.4 * number for place in range(len(names))]
        values = [widening(each[name]) for name in names]
        bars.barh(places, values, 0.38, label=label, color=PALETTE[number])
    bars.axvline(1, color=DATA, linewidth=1)
    bars.set_yticks([place + 0.2 for place in range(len(names))], names)
    bars.invert_yaxis()
    bars.set(xlabel="σ in the gap over σ at the data", title="gap by prior precision")
    bars.legend(loc="center right", bbox_to_anchor=(1, 0.6), fontsize=8)
    size = sum(p.numel() for p in found["full"].model.parameters())
    head = ["in between", "σ in the gap / at the data", "log-likelihood at the data", "in the gap",
            "σ ratio, precision 1"]  # fmt: skip
    values = ", ".join(f"{value:.1f} for {share:g}" for share, value in evidence.items())
    return (
        f"{table(head, rows)}\n\n{size} weights, noise {NOISE}. Prior of {best:g} of the "
        f"initialiser's precision, by log evidence: {values}."
    )


def main() -> None:
    """All four."""
    arguments = options(__doc__).parse_args()
    steps = 30 if arguments.quick else 1500
    torch.manual_seed(arguments.seed)
    drawing, axes = figure(3, 4, (15, 10))
    panels = [
        regression(axes[0], steps),
        classes(axes[1, :2], steps),
        mackay(axes[1, 2], steps),
        in_between(axes[2], axes[1, 3], steps, arguments.quick),
    ]
    claim(drawing, "Linearised posteriors are unsure between the data, whole ones and subnetworks")
    show("toy_uncertainty", "\n\n".join(panels), drawing, arguments.out)


if __name__ == "__main__":
    main()
