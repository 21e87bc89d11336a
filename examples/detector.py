"""Uncertainty of a detector's boxes: variances passed forward, against twenty sampled networks.

A single-shot detector is trained on drawn street scenes and gets a diagonal Laplace posterior over
all its weights, of both its heads: classes of anchors and offsets of boxes. For every box that it
keeps in new scenes, half of them dark and noisy, the standard deviation of the class score and of
the corners is found in four ways:

- passed forward through the network, for all anchors at once (``lk.propagated_variance``);
- exactly for the linearised network, with a column for each score (``lk.predictive_variance``);
- from 20 networks drawn anew for each image;
- from 20 networks drawn once and kept in memory.

Prints time for an image, and how well each ranks wrong boxes above right ones (AUROC), for three
detectors of other seeds and scenes. With ``--networks`` the trained ones are kept, so that they can
be measured again.

    python examples/detector.py --out results
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from common import options, show, spread, table
from scenes import CLASSES, HEIGHT, WIDTH, Scene, scene
from torch import Tensor, nn

import lapkernels as lk

# Width and height of the anchors of each cell, for maps of stride 8 and 16.
ANCHORS = {8: ((9.0, 22.0), (26.0, 14.0)), 16: ((36.0, 18.0), (26.0, 24.0))}
DRAWS = 20
# Of the prior; one is chosen on scenes kept aside.
PRECISIONS = (1e3, 1e4, 1e5, 1e6)
IGNORED = -100


class Detector(nn.Module):
    """Class logits [N, C, A] and offsets [N, 4, A] of all anchors.

    With a ``mask`` [N, 1, A] the offsets of other anchors are zero, as only matched ones have a
    target.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        w = width

        def conv(inner: int, outer: int, stride: int) -> nn.Sequential:
            return nn.Sequential(nn.Conv2d(inner, outer, 3, stride, 1), nn.ReLU())

        self.near = nn.Sequential(
            conv(3, w, 2), conv(w, 2 * w, 2), conv(2 * w, 4 * w, 2), conv(4 * w, 8 * w, 1)
        )
        self.far = nn.Sequential(conv(8 * w, 16 * w, 2), conv(16 * w, 16 * w, 1))
        self.numbers = len(CLASSES) + 4
        self.near_head = nn.Conv2d(8 * w, 2 * self.numbers, 3, 1, 1)
        self.far_head = nn.Conv2d(16 * w, 2 * self.numbers, 3, 1, 1)
        for name, weight in self.named_parameters():
            if name.endswith("head.weight"):
                nn.init.normal_(weight, std=0.01)
            elif name.endswith("weight"):
                nn.init.kaiming_normal_(weight, nonlinearity="relu")

    def forward(self, x: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
        """Both heads."""
        near = self.near(x)
        far = self.far(near)
        parts = [
            head.unflatten(1, (2, self.numbers)).transpose(1, 2).flatten(2)
            for head in (self.near_head(near), self.far_head(far))
        ]
        both = torch.cat(parts, 2)
        offsets = both[:, len(CLASSES) :]
        masked = offsets if mask is None else offsets * mask
        return {"logits": both[:, : len(CLASSES)], "offsets": masked}


def anchors() -> Tensor:
    """Centre, width and height of all anchors, [A, 4], in the order of the detector's outputs."""
    found = []
    for stride, sizes in ANCHORS.items():
        rows = (torch.arange(HEIGHT // stride) + 0.5) * stride
        columns = (torch.arange(WIDTH // stride) + 0.5) * stride
        y, x = torch.meshgrid(rows, columns, indexing="ij")
        for width, height in sizes:
            size = torch.tensor([width, height]).expand(x.numel(), 2)
            found.append(torch.cat([x.reshape(-1, 1), y.reshape(-1, 1), size], 1))
    return torch.cat(found)


def corners(centred: Tensor) -> Tensor:
    """Left, top, right, bottom of centre, width, height."""
    centre, half = centred[:, :2], centred[:, 2:] / 2
    return torch.cat([centre - half, centre + half], 1)


def overlap(a: Tensor, b: Tensor) -> Tensor:
    """Intersection over union [len(a), len(b)]."""
    low, high = torch.max(a[:, None, :2], b[:, :2]), torch.min(a[:, None, 2:], b[:, 2:])
    inner = (high - low).clamp_min(0).prod(2)
    area = [(box[:, 2:] - box[:, :2]).prod(1) for box in (a, b)]
    return inner / (area[0][:, None] + area[1] - inner)


def targets(found: Scene, grid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Labels [A], offsets [4, A] and mask [1, A] of a scene."""
    shared = overlap(corners(grid), found.boxes)
    best, which = shared.max(1)
    # Every thing has the anchor that fits it best, even if that is not by much.
    forced = shared.argmax(0)
    best[forced], which[forced] = 1.0, torch.arange(len(found.boxes))
    labels = torch.where(best >= 0.5, found.labels[which], torch.zeros_like(which))
    labels[(best >= 0.4) & (best < 0.5)] = IGNORED
    boxes = found.boxes[which]
    size = boxes[:, 2:] - boxes[:, :2]
    shift = ((boxes[:, 2:] + boxes[:, :2]) / 2 - grid[:, :2]) / grid[:, 2:]
    mask = (best >= 0.5).float().unsqueeze(0)
    offsets = torch.cat([shift, (size / grid[:, 2:]).log()], 1).T
    return labels, offsets * mask, mask


def decoded(offsets: Tensor, grid: Tensor) -> Tensor:
    """Corners [A, 4] of offsets [4, A]."""
    centre = grid[:, :2] + offsets[:2].T * grid[:, 2:]
    return corners(torch.cat([centre, grid[:, 2:] * offsets[2:].T.exp()], 1))


@dataclass(frozen=True)
class Boxes:
    """What the detector keeps of an image: K anchors, classes, scores and corners."""

    anchor: Tensor
    label: Tensor
    score: Tensor
    corner: Tensor


def kept(found: dict[str, Tensor], grid: Tensor, threshold: float) -> Boxes:
    """Scores above the threshold, the best of those that overlap."""
    probability = found["logits"][0].softmax(0)
    score, label = probability[1:].max(0)
    boxes = decoded(found["offsets"][0], grid)
    left = (score > threshold).nonzero().flatten()
    left = left[score[left].argsort(descending=True)]
    picked = []
    while len(left):
        picked.append(left[0])
        left = left[1:][overlap(boxes[left[:1]], boxes[left[1:]])[0] < 0.45]
    chosen = torch.stack(picked) if picked else torch.zeros(0, dtype=torch.long)
    return Boxes(chosen, label[chosen] + 1, score[chosen], boxes[chosen])


def wrong(boxes: Boxes, truth: Scene) -> Tensor:
    """Whether each box has no thing of its class left that it covers by half, best scores first."""
    free = torch.ones(len(truth.boxes), dtype=torch.bool)
    result = torch.ones(len(boxes.anchor), dtype=torch.bool)
    for index in boxes.score.argsort(descending=True):
        shared = overlap(boxes.corner[index : index + 1], truth.boxes)[0]
        shared = shared * free * (truth.labels == boxes.label[index])
        if float(shared.max()) >= 0.5:
            result[index] = False
            free[shared.argmax()] = False
    return result


def darkened(x: Tensor) -> Tensor:
    """Images [N, 3, H, W] in less light and with more noise, on the way to hard scenes."""
    light, noise = torch.rand(2, len(x), 1, 1, 1)
    return x * (1 - light / 2) + 0.1 * noise * torch.randn_like(x)


def trained(data: list[Scene], grid: Tensor, width: int, steps: int, batch: int) -> Detector:
    """Sum of both heads' losses over the number of matched anchors, by Adam with a warm-up."""
    model = Detector(width)
    parts = [targets(one, grid) for one in data]
    labels, offsets, mask = (torch.stack(part) for part in zip(*parts, strict=True))
    x = torch.stack([one.image for one in data])
    optimizer = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, steps, pct_start=0.1)
    for _ in range(steps):
        pick = torch.randint(len(data), (batch,))
        found = model(darkened(x[pick]), mask[pick])
        classes = F.cross_entropy(
            found["logits"], labels[pick], ignore_index=IGNORED, reduction="sum"
        )
        boxes = (found["offsets"] - offsets[pick]).square().sum() / (2 * 0.1)
        optimizer.zero_grad()
        ((classes + boxes) / mask[pick].sum()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        schedule.step()
    return model.eval()


def curvature(model: Detector, data: list[Scene], grid: Tensor) -> dict[str, Tensor]:
    """The diagonal of both heads' Gauss-Newton matrices, with the noise of the offsets as found."""
    batches = []
    for start in range(0, len(data), 20):
        part = data[start : start + 20]
        labels, offsets, mask = (
            torch.stack(one) for one in zip(*(targets(s, grid) for s in part), strict=True)
        )
        batches.append((torch.stack([one.image for one in part]), mask, labels, offsets))
    with torch.no_grad():
        squares = torch.stack(
            [
                (model(x, mask)["offsets"] - offsets).square().sum()
                for x, mask, _, offsets in batches
            ]
        ).sum()
    noise = float(squares) / (4 * sum(float(mask.sum()) for _, mask, *_ in batches))
    classes = lk.diag(
        model, [(x, labels) for x, _, labels, _ in batches],
        lk.likelihoods.Categorical(ignore_index=IGNORED), method="approx", output="logits",
    )  # fmt: skip
    boxes = lk.diag(
        model, [((x, mask), offsets) for x, mask, _, offsets in batches],
        lk.likelihoods.Gaussian(noise), method="approx", output="offsets",
    )  # fmt: skip
    return {name: h + boxes[name] for name, h in classes.items()}


@dataclass(frozen=True)
class Spread:
    """Standard deviations of the K kept boxes: of the class score, of the corners on average."""

    score: Tensor
    box: Tensor


def both_heads(found: dict[str, Tensor]) -> Tensor:
    """Logits above offsets, [N, C + 4, A]."""
    return torch.cat([found["logits"], found["offsets"]], 1)


def box_spread(offset_variance: Tensor, boxes: Boxes) -> Tensor:
    """Mean deviation of the corners in pixels, from variances of offsets [4, K]."""
    size = (boxes.corner[:, 2:] - boxes.corner[:, :2]).T
    centre = offset_variance[:2] * size.square()
    extent = offset_variance[2:] * size.square() / 4
    return (centre + extent).sqrt().mean(0)


def passed_forward(
    model: Detector, x: Tensor, logits: Tensor, boxes: Boxes, variance: dict[str, Tensor]
) -> Spread:
    """Variances of all outputs, then of the score to first order, the logits independent."""
    spread = lk.propagated_variance(model, x, variance, output=both_heads)[0][:, boxes.anchor]
    p = logits[0].softmax(0)[:, boxes.anchor]
    own = p.gather(0, boxes.label.unsqueeze(0))
    change = own * (F.one_hot(boxes.label, len(CLASSES)).T - p)
    score = (change.square() * spread[: len(CLASSES)]).sum(0).sqrt()
    return Spread(score, box_spread(spread[len(CLASSES) :], boxes))


def by_columns(model: Detector, x: Tensor, boxes: Boxes, variance: dict[str, Tensor]) -> Spread:
    """Exact for the linearised network: a column for each score and each offset that is kept."""

    def numbers(found: dict[str, Tensor]) -> Tensor:
        p = found["logits"].softmax(1)[:, boxes.label, boxes.anchor]
        return torch.cat([p, found["offsets"][:, :, boxes.anchor].flatten(1)], 1)

    spread = lk.predictive_variance(model, x, variance, output=numbers)[0]
    score, rest = spread[: len(boxes.anchor)], spread[len(boxes.anchor) :]
    return Spread(score.sqrt(), box_spread(rest.reshape(4, -1), boxes))


Weights = dict[str, Tensor]


def drawn(model: Detector, variance: Weights) -> Callable[[], Weights]:
    """A function that draws a network."""
    centre = {name: p.detach() for name, p in model.named_parameters()}
    deviation = {name: value.sqrt() for name, value in variance.items()}
    return lambda: {n: p + deviation[n] * torch.randn_like(p) for n, p in centre.items()}


@torch.no_grad()
def by_draws(model: Detector, x: Tensor, boxes: Boxes, draw: Callable[[], Weights]) -> Spread:
    """Spread over drawn networks at the kept anchors."""
    scores, offsets = [], []
    for _ in range(DRAWS):
        found = torch.func.functional_call(model, draw(), (x,))
        scores.append(found["logits"][0].softmax(0)[boxes.label, boxes.anchor])
        offsets.append(found["offsets"][0][:, boxes.anchor])
    return Spread(torch.stack(scores).std(0), box_spread(torch.stack(offsets).var(0), boxes))


@torch.no_grad()
def tuned(model: Detector, h: Weights, data: list[Scene], grid: Tensor) -> float:
    """The precision with which the average of drawn networks gives labels the most likelihood."""
    x = torch.stack([one.image for one in data])
    labels = torch.stack([targets(one, grid)[0] for one in data])
    losses = []
    for precision in PRECISIONS:
        draw = drawn(model, {name: 1 / (value + precision) for name, value in h.items()})
        outputs = [torch.func.functional_call(model, draw(), (x,))["logits"] for _ in range(10)]
        average = torch.stack([logits.softmax(1) for logits in outputs]).mean(0)
        losses.append(float(F.nll_loss(average.log(), labels, ignore_index=IGNORED)))
    return PRECISIONS[min(range(len(losses)), key=losses.__getitem__)]


@torch.no_grad()
def evaluate(
    model: Detector, variance: Weights, data: list[Scene], grid: Tensor, threshold: float
) -> tuple[dict[str, dict[str, Tensor]], dict[str, list[float]], list[tuple[Scene, Boxes, Any]]]:
    """Spreads of all kept boxes by each way, seconds for each image, and what was found."""
    draw = drawn(model, variance)
    stored = [draw() for _ in range(DRAWS)]
    spreads: dict[str, list[Spread]] = {}
    seconds: dict[str, list[float]] = {}
    results, mistakes, scores = [], [], []
    for one in data:
        x = one.image.unsqueeze(0)
        found = model(x)
        boxes = kept(found, grid, threshold)
        if not len(boxes.anchor):
            continue
        again = iter(stored)
        ways: dict[str, Callable[[], Spread]] = {
            "passed forward": lambda x=x, f=found, b=boxes: passed_forward(
                model, x, f["logits"], b, variance
            ),
            "columns": lambda x=x, b=boxes: by_columns(model, x, b, variance),
            f"{DRAWS} draws": lambda x=x, b=boxes: by_draws(model, x, b, draw),
            f"{DRAWS} stored draws": lambda x=x, b=boxes, a=again: by_draws(
                model, x, b, a.__next__
            ),
        }
        for name, way in ways.items():
            start = time.perf_counter()
            spreads.setdefault(name, []).append(way())
            seconds.setdefault(name, []).append(time.perf_counter() - start)
        results.append((one, boxes, spreads["passed forward"][-1]))
        mistakes.append(wrong(boxes, one))
        scores.append(1 - boxes.score)
    joined = {
        name: {
            "score": torch.cat([s.score for s in found]),
            "box": torch.cat([s.box for s in found]),
        }
        for name, found in spreads.items()
    }
    low = torch.cat(scores)
    joined["1 - score, no posterior"] = {"score": low, "box": low}
    joined["wrong"] = {"score": torch.cat(mistakes), "box": torch.cat(mistakes)}
    return joined, seconds, results


def picture(results: list[tuple[Scene, Boxes, Any]]) -> object:
    """Scenes with boxes, their scores and the deviation of the scores; wrong ones in red."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 3, figsize=(15, 6))
    for ax, (one, boxes, width) in zip(axes.flat, results, strict=False):
        ax.imshow(one.image.clamp(0, 1).permute(1, 2, 0))
        ax.set_axis_off()
        bad = wrong(boxes, one)
        for k, (left, top, right, bottom) in enumerate(boxes.corner.tolist()):
            colour = "red" if bad[k] else "lime"
            box = pyplot.Rectangle(
                (left, top), right - left, bottom - top, fill=False, color=colour
            )
            ax.add_patch(box)
            word = f"{CLASSES[int(boxes.label[k])]} {boxes.score[k]:.2f} ± {width.score[k]:.2f}"
            shade = {"facecolor": "black", "linewidth": 0, "pad": 1}
            ax.text(left, top - 2, word, color=colour, fontsize=8, bbox=shade)
    figure.tight_layout()
    return figure


@dataclass(frozen=True)
class Comparison:
    """Of each way the median time of an image, and AUROC by the spread of score and corners."""

    seconds: dict[str, float]
    ranks: dict[str, tuple[float, float]]
    found: str
    results: list[tuple[Scene, Boxes, Any]]


def fitted(
    seed: int, width: int, steps: int, quick: bool, folder: Path | None
) -> tuple[Detector, Weights]:
    """A detector and its curvature, from scenes of a seed or from a file in the folder."""
    path = None if folder is None else folder / f"detector_{seed}_{width}_{steps}.pt"
    if path is not None and path.exists():
        model = Detector(width).eval()
        stored = torch.load(path, weights_only=True)
        model.load_state_dict(stored["model"])
        return model, stored["curvature"]
    torch.manual_seed(seed)
    data = [scene(1_000_000 * seed + i) for i in range(80 if quick else 1500)]
    grid = anchors()
    model = trained(data, grid, width, steps, 8)
    part = data[: 40 if quick else 200]
    # Of all training images, estimated from a part of them.
    scale = len(data) / len(part)
    h = {name: scale * value for name, value in curvature(model, part, grid).items()}
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save({"model": model.state_dict(), "curvature": h}, path)
    return model, h


def compare(seed: int, width: int, steps: int, quick: bool, folder: Path | None) -> Comparison:
    """Train on scenes of a seed, fit, and compare on other ones."""
    model, h = fitted(seed, width, steps, quick, folder)
    torch.manual_seed(seed)
    start, grid = 1_000_000 * seed, anchors()
    aside = [scene(start + 400_000 + i) for i in range(4 if quick else 20)]
    new = [scene(start + 500_000 + i, hard=i % 2 == 1) for i in range(6 if quick else 120)]
    precision = tuned(model, h, aside, grid)
    variance = {name: 1 / (value + precision) for name, value in h.items()}
    # A detector of a few steps is sure of nothing.
    joined, seconds, results = evaluate(model, variance, new, grid, 0.1 if quick else 0.3)
    mistakes = joined.pop("wrong")["score"]
    found = (
        f"seed {seed}: {len(mistakes)} boxes of {len(new)} scenes, {int(mistakes.sum())} of them "
        f"wrong, prior precision {precision:.0e}"
    )
    ranks = {
        name: (_auroc(mistakes, spread["score"]), _auroc(mistakes, spread["box"]))
        for name, spread in joined.items()
    }
    typical = {name: median(times) for name, times in seconds.items()}
    print(found, *(f"{n}: {_mean([s])}, {_mean([b])}" for n, (s, b) in ranks.items()), sep="\n  ")
    print("  ms:", *(f"{name} {1e3 * value:.1f}" for name, value in typical.items()), flush=True)
    return Comparison(typical, ranks, found, results)


def main() -> None:
    """Some detectors, one table."""
    parser = options(__doc__)
    parser.add_argument("--width", type=int, default=24, help="channels of the first layer")
    parser.add_argument("--steps", type=int, default=1500, help="steps of training")
    parser.add_argument("--seeds", type=int, default=3, help="how many detectors")
    parser.add_argument(
        "--networks", type=Path, metavar="FOLDER", help="of trained detectors: read, or written"
    )
    arguments = parser.parse_args()
    quick = arguments.quick
    width, steps = (8, 250) if quick else (arguments.width, arguments.steps)
    seeds = 1 if quick else arguments.seeds
    folder = arguments.networks
    runs = [compare(arguments.seed + n, width, steps, quick, folder) for n in range(seeds)]
    rows = []
    for name in runs[0].ranks:
        clock = ["–", "–"]
        if name in runs[0].seconds:
            gains = [run.seconds[f"{DRAWS} draws"] / run.seconds[name] for run in runs]
            clock = [spread([1e3 * run.seconds[name] for run in runs], 1), f"{spread(gains, 1)}×"]
        ranks = zip(*(run.ranks[name] for run in runs), strict=True)
        rows.append([name, *clock, *(_mean(list(column)) for column in ranks)])
    head = ["way", "ms an image", "faster than draws", "AUROC, score", "AUROC, corners"]
    size = sum(p.numel() for p in Detector(width).parameters())
    text = [table(head, rows), f"{size} parameters; " + "; ".join(run.found for run in runs) + "."]
    show("detector", "\n\n".join(text), picture(runs[0].results), arguments.out)


def _mean(values: list[float]) -> str:
    """Mean ± standard error; none if a detector had no wrong or no right box."""
    return "–" if any(map(isnan, values)) else spread(values)


def _auroc(mistakes: Tensor, spread: Tensor) -> float:
    """How often a wrong box has the larger number."""
    from sklearn.metrics import roc_auc_score

    if mistakes.all() or not mistakes.any():
        return float("nan")
    return float(roc_auc_score(mistakes.numpy(), spread.numpy()))


if __name__ == "__main__":
    main()
