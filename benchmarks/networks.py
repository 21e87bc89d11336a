"""What whole-model families run on: networks with their data, sizes and small siblings."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from benchmarks.architectures import (
    Transformer,
    UNet,
    autoencoder,
    conv_autoencoder,
    dense,
    five_convs,
    one_conv_one_dense,
    resnet,
    three_conv_three_dense,
)
from benchmarks.registry import random

Likelihood = Literal["categorical", "gaussian"]


@dataclass(frozen=True)
class NetworkSize:
    """A network, the side of its images or the length of its sequences, and the batch."""

    network: str
    resolution: int
    samples: int

    def __str__(self) -> str:
        return f"{self.network}-r{self.resolution}-n{self.samples}"

    @property
    def likelihood(self) -> Likelihood:
        return NETWORKS[self.network].likelihood

    @property
    def outputs(self) -> int:
        """C: entries of the output of one sample."""
        return _extent(self)[0]

    @property
    def parameters(self) -> int:
        """P."""
        return _extent(self)[1]

    @property
    def activations(self) -> int:
        """Entries of all modules' outputs for one sample."""
        return _extent(self)[2]


@dataclass(frozen=True)
class Network:
    """How to build a network and one sample for it.

    ``sample(resolution)`` is the shape of an input without the batch; with a ``vocabulary`` inputs
    are tokens. Results are checked at ``check`` where an oracle at full size would take too long.
    ``tiny`` has the same kinds of layer and is fast with every method.
    """

    build: Callable[[], nn.Module]
    sample: Callable[[int], tuple[int, ...]]
    likelihood: Likelihood
    tiny: NetworkSize
    check: NetworkSize | None = None
    vocabulary: int = 0


@dataclass(frozen=True)
class Problem:
    """What every method is given: a network in eval mode, a batch and its targets.

    ``variance`` has a positive tensor of each parameter's shape.
    """

    model: nn.Module
    x: Tensor
    y: Tensor
    likelihood: Likelihood
    variance: dict[str, Tensor]


def make(size: NetworkSize, device: torch.device) -> tuple[Problem]:
    """The problem at a size, from fixed seeds."""
    model, x = _model_and_input(size, device)
    with torch.no_grad():
        shape = model(x[:1]).shape[1:]
    if size.likelihood == "categorical":
        y = torch.arange(size.samples, device=device) % shape[0]
    else:
        (y,) = random(2, (size.samples, *shape), device=device)
    values = random(3, *(p.shape for p in model.parameters()), device=device)
    names = [name for name, _ in model.named_parameters()]
    variance = {name: v.abs() for name, v in zip(names, values, strict=True)}
    return (Problem(model, x, y, size.likelihood, variance),)


def checked(size: NetworkSize) -> NetworkSize:
    """The size at which results are compared with an oracle that goes through all columns."""
    reference = NETWORKS[size.network].check
    return size if reference is None or size.samples * size.outputs <= 2000 else reference


def tiny(size: NetworkSize) -> NetworkSize:
    """The small sibling of a size."""
    return NETWORKS[size.network].tiny


def _model_and_input(size: NetworkSize, device: torch.device) -> tuple[nn.Module, Tensor]:
    network = NETWORKS[size.network]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = network.build()
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                # As after training, so that eval mode is not the identity.
                nn.init.uniform_(module.running_mean, -0.5, 0.5)  # pyright: ignore
                nn.init.uniform_(module.running_var, 0.5, 1.5)  # pyright: ignore
    shape = (size.samples, *network.sample(size.resolution))
    if network.vocabulary:
        generator = torch.Generator().manual_seed(1)
        x = torch.randint(network.vocabulary, shape, generator=generator).to(device)
    else:
        (x,) = random(1, shape, device=device)
    return model.to(device).eval(), x


@functools.cache
def _extent(size: NetworkSize) -> tuple[int, int, int]:
    """Outputs, parameters and activations of one sample."""
    network = NETWORKS[size.network]
    with torch.device("meta"):
        model = network.build().eval()
        dtype = torch.int64 if network.vocabulary else torch.float32
        x = torch.zeros(1, *network.sample(size.resolution), dtype=dtype)
    activations = 0

    def count(module: nn.Module, inputs: object, output: Tensor) -> None:
        nonlocal activations
        activations += output.numel()

    for module in model.modules():
        if not any(module.children()):
            module.register_forward_hook(count)
    outputs = model(x).numel()
    return outputs, sum(p.numel() for p in model.parameters()), activations


def _image(channels: int) -> Callable[[int], tuple[int, ...]]:
    return lambda resolution: (channels, resolution, resolution)


def _vector(resolution: int) -> tuple[int, ...]:
    return (resolution**2,)


def _networks() -> dict[str, Network]:
    tiny_3c3d = NetworkSize("tiny", 8, 6)
    tiny_conv5 = NetworkSize("conv5", 6, 6)
    tiny_mlp_ae = NetworkSize("tiny-mlp-ae", 4, 6)
    tiny_conv_ae = NetworkSize("tiny-conv-ae", 8, 6)
    tiny_mlp = NetworkSize("tiny-mlp", 4, 6)
    tiny_resnet = NetworkSize("tiny-resnet", 8, 6)
    tiny_transformer = NetworkSize("tiny-transformer", 5, 6)
    tiny_unet = NetworkSize("tiny-unet", 8, 6)
    return {
        "3c3d": Network(three_conv_three_dense, _image(3), "categorical", tiny_3c3d),
        "tiny": Network(one_conv_one_dense, _image(3), "categorical", tiny_3c3d),
        "conv5": Network(
            five_convs, _image(3), "gaussian", tiny_conv5, check=NetworkSize("conv5", 16, 2)
        ),
        "mlp-ae": Network(
            functools.partial(autoencoder, (784, 512, 256, 2)),
            _vector,
            "gaussian",
            tiny_mlp_ae,
            check=NetworkSize("mlp-ae", 28, 2),
        ),
        "tiny-mlp-ae": Network(
            functools.partial(autoencoder, (16, 8, 2)), _vector, "gaussian", tiny_mlp_ae
        ),
        "conv-ae": Network(
            functools.partial(conv_autoencoder, (8, 12), (100, 50), 7),
            _image(1),
            "gaussian",
            tiny_conv_ae,
            check=NetworkSize("conv-ae", 28, 2),
        ),
        "conv-ae-64": Network(
            functools.partial(conv_autoencoder, (8, 12), (100, 50), 16),
            _image(1),
            "gaussian",
            tiny_conv_ae,
        ),
        "tiny-conv-ae": Network(
            functools.partial(conv_autoencoder, (2, 3), (6, 5), 2),
            _image(1),
            "gaussian",
            tiny_conv_ae,
        ),
        "mlp": Network(
            functools.partial(dense, (784, 256, 256, 10), nn.ReLU), _vector, "categorical", tiny_mlp
        ),
        "tiny-mlp": Network(
            functools.partial(dense, (16, 8, 3), nn.ReLU), _vector, "categorical", tiny_mlp
        ),
        "resnet": Network(
            functools.partial(resnet, (16, 32, 64), 2, 10), _image(3), "categorical", tiny_resnet
        ),
        "tiny-resnet": Network(
            functools.partial(resnet, (4, 6), 1, 3), _image(3), "categorical", tiny_resnet
        ),
        "transformer": Network(
            functools.partial(Transformer, 128, 64, 4, 2, 10),
            lambda length: (length,),
            "categorical",
            tiny_transformer,
            vocabulary=128,
        ),
        "tiny-transformer": Network(
            functools.partial(Transformer, 7, 8, 2, 1, 3),
            lambda length: (length,),
            "categorical",
            tiny_transformer,
            vocabulary=7,
        ),
        "unet": Network(
            functools.partial(UNet, (16, 32, 64)),
            _image(1),
            "gaussian",
            tiny_unet,
            check=NetworkSize("unet", 16, 2),
        ),
        "tiny-unet": Network(functools.partial(UNet, (2, 3, 4)), _image(1), "gaussian", tiny_unet),
    }


NETWORKS = _networks()

FIVE_CONVS = [
    NetworkSize("conv5", resolution, samples)
    for samples in (4, 1)
    for resolution in (32, 64, 128, 256, 512)
]
CLASSIFIERS = [
    NetworkSize("3c3d", 32, 16),
    NetworkSize("mlp", 28, 128),
    NetworkSize("resnet", 32, 16),
    NetworkSize("transformer", 32, 16),
]
AUTOENCODERS = [NetworkSize("mlp-ae", 28, 16), NetworkSize("conv-ae", 28, 16)]
STEPS = [NetworkSize("conv-ae", 28, 64), NetworkSize("conv-ae-64", 64, 64)]
UNETS = [NetworkSize("unet", 64, 4)]
# Two networks may have one sibling.
TINY = list(dict.fromkeys(network.tiny for network in NETWORKS.values()))
