"""Models as people import them: what is right, what is refused, time and memory, in docs/models.md.

    python -m benchmarks.imported [MODEL ...] [--untimed] [--write docs/models.md]

Every model runs in a process of its own. Small configurations, random weights, no downloads. Exact
diagonals, Monte Carlo ones and predictive variances are compared, in float64, with gradients of
single samples by autograd; then all methods are timed in float32, interleaved with one forward and
backward pass of the same batch.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

import lapkernels as lk
from benchmarks import document
from benchmarks.general import NETWORKS
from lapkernels.demo.memory import peak_extra_memory
from lapkernels.likelihoods import Categorical, resolve

CLASSES = 10
METHODS = ("exact", "mc", "approx", "kfac", "predictive")
# Of the largest entry of a tensor; some models round to float32 inside.
TOLERANCE = 1e-4
ROUNDS, SECONDS, LONGEST = 3, 20.0, 240

Inputs = dict[str, Any]
Made = tuple[nn.Module, Inputs]


def _vision(name: str, size: int = 64, batch: int = 2, **options: Any) -> Made:
    import torchvision  # pyright: ignore[reportMissingImports]

    model = torchvision.models.get_model(name, weights=None, num_classes=CLASSES, **options)
    return model, {"args": (torch.randn(batch, 3, size, size),)}


def _timm(name: str, size: int = 64, batch: int = 2, **options: Any) -> Made:
    import timm  # pyright: ignore[reportMissingImports]

    model = timm.create_model(name, num_classes=CLASSES, **options)
    return model, {"args": (torch.randn(batch, 3, size, size),)}


TOKENS = {"vocab_size": 300, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
WIDE = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}


def _tokens(name: str, batch: int = 4, length: int = 32, **options: Any) -> Made:
    import transformers  # pyright: ignore[reportMissingImports]

    config = getattr(transformers, f"{name}Config")(num_labels=CLASSES, **TOKENS, **options)
    model = getattr(transformers, f"{name}ForSequenceClassification")(config)
    tokens = torch.randint(3, TOKENS["vocab_size"], (batch, length))
    return model, {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


def _pictures(name: str, batch: int = 4, size: int = 32, **options: Any) -> Made:
    import transformers  # pyright: ignore[reportMissingImports]

    config = getattr(transformers, f"{name}Config")(
        num_labels=CLASSES, image_size=size, patch_size=4, **options
    )
    model = getattr(transformers, f"{name}ForImageClassification")(config)
    return model, {"pixel_values": torch.randn(batch, 3, size, size)}


def _own(name: str) -> Made:
    model, x = NETWORKS[name].problem()
    return model, {"args": (x,)}


GPT2 = {"n_embd": 128, "n_layer": 4, "n_head": 4, "n_positions": 64}
DISTILLED = {"dim": 128, "hidden_dim": 256, "n_layers": 4, "n_heads": 4}
# Library, model: how it is made.
MODELS: dict[str, Callable[[], Made]] = {
    **{
        f"torchvision {name}": partial(_vision, name)
        for name in (
            *("resnet18", "resnet50", "densenet121", "mobilenet_v3_small", "efficientnet_b0"),
            *("convnext_tiny", "swin_t", "regnet_y_400mf", "shufflenet_v2_x1_0", "squeezenet1_1"),
        )
    },
    "torchvision vit_b_16": partial(_vision, "vit_b_16", image_size=64),
    **{
        f"timm {name}": partial(_timm, name)
        for name in ("ghostnet_100", "resnetv2_50", "mobilevit_xxs", "edgenext_xx_small")
    },
    "timm nf_resnet26": partial(_timm, "nf_resnet26"),
    "timm deit_tiny": partial(_timm, "deit_tiny_patch16_224", img_size=64),
    "timm mixer_s32": partial(_timm, "mixer_s32_224", img_size=64),
    "timm xcit_nano": partial(_timm, "xcit_nano_12_p16_224", img_size=64),
    **{
        f"transformers {name}": partial(_tokens, name, **WIDE)
        for name in ("Bert", "Roberta", "Electra", "Albert", "Llama", "Qwen2", "Gemma", "Mistral")
    },
    "transformers DistilBert": partial(_tokens, "DistilBert", **DISTILLED),
    "transformers GPT2": partial(_tokens, "GPT2", **GPT2),
    "transformers DebertaV2": partial(_tokens, "DebertaV2", **WIDE),
    "transformers ViT": partial(_pictures, "ViT", **WIDE),
    **{f"torch {name}": partial(_own, name) for name in NETWORKS},
}


# Declarations last as long as these objects.
_LIBRARIES: list[Any] = []


def declare_torchvision_ops() -> None:
    """Declare the ops that torchvision registers fakes for, where its library does not load."""
    try:
        torch.ops.torchvision.nms  # noqa: B018
    except AttributeError:
        pass
    else:
        return
    names = [
        *("nms", "qnms", "roi_align", "_roi_align_backward", "qroi_align", "roi_pool"),
        *("_roi_pool_backward", "ps_roi_align", "_ps_roi_align_backward", "ps_roi_pool"),
        *("_ps_roi_pool_backward", "deform_conv2d", "_deform_conv2d_backward"),
    ]
    library = torch.library.Library("torchvision", "DEF")
    _LIBRARIES.append(library)
    for name in names:
        library.define(f"{name}(Tensor x) -> Tensor")


def logits(result: Any) -> Tensor:
    """The output that is differentiated."""
    return result if isinstance(result, Tensor) else result.logits


def call(model: nn.Module, inputs: Inputs) -> Tensor:
    """The logits of a batch."""
    options = {name: value for name, value in inputs.items() if name != "args"}
    return logits(model(*inputs.get("args", ()), **options))


def batch_of(inputs: Inputs) -> Any:
    """The batch as the package takes it."""
    return inputs["args"][0] if "args" in inputs else inputs


def converted(inputs: Inputs, change: Callable[[Tensor], Tensor]) -> Inputs:
    """The inputs with each tensor changed."""
    return {
        name: tuple(map(change, value)) if name == "args" else change(value)
        for name, value in inputs.items()
    }


def run(method: Any, model: nn.Module, inputs: Inputs, likelihood: Any, **options: Any) -> Any:
    """One method on a batch."""
    x, options = batch_of(inputs), {"output": logits, **options}
    if method == "predictive":
        ones = {name: torch.ones_like(p) for name, p in model.named_parameters()}
        return lk.predictive_variance(model, x, ones, **options)
    if method == "kfac":
        return lk.kron(model, x, likelihood, "mc", **options)
    return lk.diag(model, x, likelihood, method, **options)


def _batch_norm(
    x: Tensor,
    mean: Tensor,
    variance: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Batch norm in eval mode, whose gradient in torch 2.13 may be wrong."""
    shape = (1, -1, *(1,) * (x.dim() - 2))
    scale = (variance + eps).rsqrt() if weight is None else weight * (variance + eps).rsqrt()
    shifted = (x - mean.view(shape)) * scale.view(shape)
    return shifted if bias is None else shifted + bias.view(shape)


@mock.patch.object(torch.nn.functional, "batch_norm", _batch_norm)
def truth(model: nn.Module, inputs: Inputs, likelihood: Any) -> dict[str, Any]:
    """Exact and drawn diagonals and predictive variances by gradients of single samples."""
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        f = call(model, inputs)
    noise = resolve(likelihood)
    columns = noise.columns(f)
    drawn = noise.sampled_column(f, torch.Generator().manual_seed(0))
    units = torch.eye(f[0].numel(), dtype=f.dtype).reshape(-1, 1, *f.shape[1:])
    sets = {
        "exact": columns.chunk(0, columns.count),
        "mc": drawn,
        "predictive": units.expand(-1, len(f), *f.shape[1:]),
    }
    diagonals = {key: {name: torch.zeros_like(p) for name, p in parameters.items()} for key in sets}
    variances = torch.zeros_like(f).flatten(1)
    for n in range(len(f)):
        one = call(model, converted(inputs, lambda x, n=n: x[n : n + 1]))
        for key, s in sets.items():
            for v in range(len(s)):
                gradients = torch.autograd.grad(
                    one, list(parameters.values()), s[v, n : n + 1].contiguous(),
                    retain_graph=True, allow_unused=True,
                )  # fmt: skip
                for name, g in zip(parameters, gradients, strict=True):
                    if g is None:
                        continue
                    if key == "predictive":
                        variances[n, v] += g.square().sum()
                    else:
                        diagonals[key][name] += g.square()
    return {
        "exact": diagonals["exact"],
        "mc": diagonals["mc"],
        "predictive": {"variance": variances.reshape(f.shape)},
    }


def error(found: Any, true: dict[str, Tensor]) -> float:
    """The largest error, relative to the largest entry of its tensor."""
    found = found if not isinstance(found, Tensor) else {"variance": found}
    scale = max(float(value.abs().max()) for value in true.values())
    return max(
        float((found[name] - value).abs().max()) / max(float(value.abs().max()), 1e-6 * scale)
        for name, value in true.items()
    )


def study(name: str, rounds: int = ROUNDS) -> dict[str, Any]:
    """What a model gives: by method "right", "runs" or why not, its ratio and memory."""
    declare_torchvision_ops()
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    model.eval()
    with torch.no_grad():
        outputs = call(model, inputs)
    likelihood: Any = "categorical"
    if name.startswith("torch ") and NETWORKS[name[6:]].likelihood == "gaussian":
        likelihood = "gaussian"
    elif outputs.dim() == 3:
        likelihood = Categorical(dim=-1)
    few = outputs[0].numel() <= 100
    wide = converted(inputs, lambda x: x[:2].double() if x.is_floating_point() else x[:2])
    verdicts: dict[str, str] = {}
    double = model.double()
    true = truth(double, wide, likelihood) if few else {}
    for method in METHODS:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                options = {}
                if method == "mc":
                    options = {"generator": torch.Generator().manual_seed(0)}
                found = run(method, double, wide, likelihood, **options)
            except Exception as raised:
                verdicts[method] = f"refused: {raised}"
                continue
        slow = any("one at a time" in str(one.message) for one in caught)
        verdicts[method] = "one at a time" if slow else "runs"
        if method in true:
            worst = error(found, true[method])
            right = "right" if worst < TOLERANCE else f"wrong: {worst:.1e}"
            verdicts[method] = f"{right}, one at a time" if slow else right
    model.float()
    return {"verdicts": verdicts, **timed(model, inputs, likelihood, verdicts, rounds)}


def timed(
    model: nn.Module, inputs: Inputs, likelihood: Any, verdicts: dict[str, str], rounds: int
) -> dict[str, Any]:
    """Minimum over interleaved rounds of each method, and its peak memory, next to the unit's."""
    parameters = list(model.parameters())

    def unit() -> Any:
        f = call(model, inputs)
        return torch.autograd.grad(f.logsumexp(-1).sum(), parameters, allow_unused=True)

    calls: dict[str, Callable[[], Any]] = {"unit": unit}
    for method in METHODS:
        if not verdicts[method].startswith("refused"):
            calls[method] = partial(run, method, model, inputs, likelihood)
    warnings.simplefilter("ignore")
    seconds = {key: float("inf") for key in calls if rounds}
    memory = {key: peak_extra_memory(one)[1] or 0 for key, one in calls.items()}
    start = time.perf_counter()
    for index in range(rounds):
        for key, one in calls.items():
            if index and time.perf_counter() - start > SECONDS:
                break
            began = time.perf_counter()
            one()
            seconds[key] = min(seconds[key], time.perf_counter() - began)
    count = sum(p.numel() for p in parameters)
    return {"seconds": seconds, "memory": memory, "parameters": count}


def rows(found: dict[str, dict[str, Any]]) -> list[list[str]]:
    """A row for each model: a cell "ratio, memory" for each method, or a word."""
    made: list[list[str]] = []
    for name, one in found.items():
        if "verdicts" not in one:
            made.append([name, "", *([one["problem"]] * len(METHODS))])
            continue
        seconds, cells = one["seconds"], list[str]()
        for method in METHODS:
            verdict = one["verdicts"][method]
            if verdict.startswith("refused"):
                cells.append("refused")
                continue
            words = verdict if verdict in ("right", "runs") else f"**{verdict}**"
            ratio = f", {seconds[method] / seconds['unit']:.1f}" if seconds else ""
            cells.append(f"{words}{ratio}, {one['memory'][method] / 2**20:.0f}")
        made.append([name, f"{one['parameters'] / 1e6:.1f}", *cells])
    return made


def refusals(found: dict[str, dict[str, Any]]) -> list[str]:
    """A line for each reason."""
    reasons: dict[str, list[str]] = {}
    for name, one in found.items():
        for method, verdict in one.get("verdicts", {}).items():
            if verdict.startswith("refused: "):
                reasons.setdefault(verdict[9:].replace("\n", " "), []).append(f"{name} {method}")
    return [f"- {', '.join(where)}: {reason}" for reason, where in reasons.items()]


INTRODUCTION = (
    "Small configurations with random weights in eval mode; images of 64 pixels, batches of two to "
    "four. A cell has the verdict, the time in units of one forward and backward pass of the same "
    "batch in float32 (if it was measured), and the peak memory in MiB, results included. "
    "*Right*: exact and Monte Carlo diagonals and predictive variances that agree with gradients "
    "of single samples by autograd in float64. *Runs*: `approx` and `kfac`, whose definitions the "
    "tests check layer by layer.",
)
NOTE = (
    "In eval mode torch 2.13's batch norm on CPUs returns wrong gradients for some gradients that "
    "are not contiguous: models of the families LeViT and XCiT differ from autograd there, and "
    "finite differences agree with this package. timm's LeViT keeps autograd's graph of its "
    "attention biases in eval mode, so that plain torch too can take only one gradient of it.",
)


def main() -> None:
    """Run the models, each in a process, and print or write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--write", type=Path)
    parser.add_argument("--untimed", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(study(options.one, 0 if options.untimed else ROUNDS)))
        return
    found: dict[str, dict[str, Any]] = {}
    for name in options.models:
        command = [sys.executable, "-m", "benchmarks.imported", "--one", name]
        command += ["--untimed"] if options.untimed else []
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST)
        except subprocess.TimeoutExpired:
            found[name] = {"problem": f"over {LONGEST} s"}
        else:
            lines = done.stdout.splitlines()
            if done.returncode or not lines:
                found[name] = {"problem": done.stderr.strip().splitlines()[-1][:200]}
            else:
                found[name] = json.loads(lines[-1])
        print(*rows({name: found[name]})[0], sep=" | ", flush=True)
    parts = [
        *INTRODUCTION,
        "",
        *document.table(["model", "parameters, millions", *METHODS], rows(found)),
        "",
        *NOTE,
        "",
    ]
    refused = refusals(found)
    if refused:
        parts += ["## Refused", "", *refused]
    if options.write:
        untimed = "--untimed " if options.untimed else ""
        command = f"python -m benchmarks.imported {untimed}--write {options.write}"
        document.write(options.write, "Models of other libraries", command, parts)
    else:
        print(*parts, sep="\n")


if __name__ == "__main__":
    main()
