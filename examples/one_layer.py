"""Exact diagonal GGN of one convolution in a network of your own, checked against autograd.

What the op needs: the layer's input x, and the columns of the loss Hessian's factor at the layer's
output. Autograd gives the columns; the op turns them into the diagonal without ever holding the
Jacobian.
"""

import torch
from torch import Tensor, nn

from lapkernels import ops

torch.manual_seed(0)
features = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2))
layer = nn.Conv2d(8, 16, 3, stride=2)
head = nn.Sequential(nn.Tanh(), nn.Flatten(), nn.Linear(16 * 3 * 3, 5))
images = torch.randn(6, 1, 16, 16)


def softmax_factor(logits: Tensor) -> Tensor:
    """Columns [V, N, C] with sum_v s s^T = diag(p) - p p^T, the cross-entropy's Hessian."""
    p = logits.softmax(1)
    identity = torch.eye(p.shape[1]).unsqueeze(1)
    return p.sqrt().T.unsqueeze(2) * (identity - p)


def diagonal() -> tuple[Tensor, Tensor]:
    """Diagonal of the layer's weight and bias, summed over the images."""
    x = features(images).detach()
    z = layer(x).detach().requires_grad_()
    logits = head(z)
    columns = softmax_factor(logits.detach())
    (s,) = torch.autograd.grad(logits, z, columns, is_grads_batched=True)  # [V, N, O, H, W]
    geometry = ops.Geometry.of(layer)
    return ops.jacobian_squared_sum(s, x, geometry), ops.jacobian_squared_sum_bias(s, geometry)


def check(weight: Tensor, bias: Tensor) -> float:
    """Largest relative difference from one backward pass for every image and column."""
    expected = [torch.zeros_like(weight), torch.zeros_like(bias)]
    for image in images:
        logits = head(layer(features(image[None])))
        for column in softmax_factor(logits.detach()):
            grads = torch.autograd.grad(logits, list(layer.parameters()), column, True)
            for total, grad in zip(expected, grads, strict=True):
                total += grad.square()
    pairs = zip((weight, bias), expected, strict=True)
    return max(float((d - e).abs().max() / e.abs().max()) for d, e in pairs)


if __name__ == "__main__":
    weight, bias = diagonal()
    print(f"diagonal of {tuple(weight.shape)} weights and {tuple(bias.shape)} biases")
    print(f"largest relative difference from autograd: {check(weight, bias):.1e}")
