"""What models are made of: by kind, steps that turn `h` into another `h`, between bars.

Between backticks stands what the model holds: a module, or the sizes of a parameter; ``@0`` is the
first such thing of the step. In braces: C and F, the second and the last size of `h`; k from 1 to
4, i below C, p from 1 to C, f below F, q from 1 to F, G = F // 2 + 1; ``v`` an earlier value of the
same shape, ``w`` one of any. A number in front says how many dimensions `h` must have. Steps that
fail for an `h` are not taken.
"""

from __future__ import annotations

STEPS: dict[str, str] = {
    "linear": """
h = `nn.Linear({F}, {k})`(h) | h = `nn.Linear({F}, {k}, bias=False)`(h)
h = torch.tanh(`nn.Linear({F}, {k})`(h)) | h = h @ `{F}, {k}`
2 h = torch.addmm(`{k}`, h, `{F}, {k}`) | 2 h = (`{k}, {F}` @ h.t()).t()
2 h = torch.mv(h, `{F}`).unsqueeze(1) | 3 h = torch.bmm(h, `{F}, {k}`.expand(len(h), {F}, {k}))
3 h = `{k}, {C}` @ h | h = torch.einsum("n...f,fk->n...k", h, `{F}, {k}`)
h = `nn.Bilinear({F}, {F}, {k})`(h, {v})
""",
    "conv": """
3 h = `nn.Conv1d({C}, {k}, {q})`(h) | 3 h = `nn.Conv1d({C}, {k}, 2, stride=2, padding=1)`(h)
3 h = `nn.Conv1d({C}, {C}, 3, padding=2, dilation=2, groups={C})`(h)
3 h = `nn.Conv1d({C}, {k}, 3, padding=1, padding_mode="circular")`(h)
3 h = `nn.ConvTranspose1d({C}, {k}, 2)`(h) | 3 h = `nn.ConvTranspose1d({C}, {k}, 1, stride=2)`(h)
3 h = `nn.ConvTranspose1d({C}, {k}, 3, stride=2, padding=1, output_padding=1)`(h)
4 h = `nn.Conv2d({C}, {k}, 2)`(h) | 4 h = `nn.Conv2d({C}, {k}, 3, padding=1)`(h)
4 h = `nn.Conv2d({C}, {k}, 3, padding=1, stride=2)`(h)
4 h = `nn.Conv2d({C}, {C}, (1, 2), groups={C}, padding="same")`(h)
4 h = `nn.Conv2d({C}, {k}, 3, padding=1, padding_mode="reflect")`(h)
4 h = `nn.ConvTranspose2d({C}, {k}, 2, stride=2)`(h)
4 h = `nn.ConvTranspose2d({C}, {k}, 1, stride=2)`(h)
4 h = `nn.ConvTranspose2d({C}, {C}, 1, 2, 0, 1, groups={C})`(h)
""",
    "embedding": """
2 h = h + `nn.Embedding(5, {F})`(ids[:, 0])
2 h = torch.cat([h, `nn.Embedding(5, {k})`(ids).flatten(1)], 1) | 2 h = h * `5, {F}`[ids[:, 1]]
2 h = h + `nn.EmbeddingBag(5, {F}, mode="mean")`(ids) | 2 h = h.gather(1, ids % {F}) * `3`
2 h = h + F.one_hot(ids[:, 0], 5).to(h) @ `5, {F}`
3 h = h + `nn.Embedding(5, {F}, padding_idx=1)`(ids[:, :1])
3 h = torch.cat([h, F.embedding(ids, `5, {F}`)], 1)
h = h * torch.index_select(`5`, 0, ids[:, 0]).view(-1, *[1] * (h.dim() - 1))
""",
    "norm": """
h = `nn.LayerNorm({F})`(h) | h = `nn.RMSNorm({F})`(h) | h = `nn.GroupNorm(1, {C})`(h)
h = `nn.GroupNorm({C}, {C})`(h * `1`) | 2 h = `with_statistics(nn.BatchNorm1d({F}))`(h)
3 h = `with_statistics(nn.BatchNorm1d({C}))`(h) | 4 h = `with_statistics(nn.BatchNorm2d({C}))`(h)
3 h = `nn.InstanceNorm1d({C}, affine=True)`(h) | 4 h = `nn.InstanceNorm2d({C}, affine=True)`(h)
h = F.normalize(h + `{F}`, dim=-1) | h = h / (1 + h.norm(dim=-1, keepdim=True))
h = h - h.mean(-1, keepdim=True) | h = h / h.std(-1, keepdim=True).add(1)
""",
    "activation": """
h = torch.tanh(h) | h = F.relu(h) | h = F.gelu(h) | h = F.softplus(h) | h = F.leaky_relu(h, 0.2)
h = `nn.PReLU()`(h) | h = `nn.PReLU({C})`(h) | h = F.softmax(h, -1) | h = h.log_softmax(1)
h = F.hardtanh(h) | h = torch.sin(h) | h = torch.exp(-h.square())
h = torch.where(h > 0, h, `1` * h) | h = F.glu(h, 1) | h = h.cumsum(-1) | h = h.clamp(-0.5, 0.5)
h = (1 + h.square()).sqrt() | h = F.threshold(h, 0.1, -1.0) | h = torch.logaddexp(h, `{F}`)
h = torch.atan2(h, 1 + `{F}`.square()) | h = F.logsigmoid(h)
""",
    "pool": """
3 h = F.max_pool1d(h, 2) | 3 h = F.avg_pool1d(h, 2, 1) | 3 h = F.adaptive_avg_pool1d(h, 2)
4 h = F.max_pool2d(h, 2) | 4 h = F.avg_pool2d(h, 2, padding=1) | 4 h = F.adaptive_max_pool2d(h, 1)
4 h = F.adaptive_avg_pool2d(h, (1, 2)) | 4 h = F.interpolate(h, scale_factor=2)
4 h = F.interpolate(h, size=(3, 2), mode="bilinear") | h = h.mean(-1, keepdim=True)
h = h.amax(1, keepdim=True) | h = h.max(-1, keepdim=True).values | h = h.topk({q}, -1).values
h = h.sort(-1, descending=True).values * `{F}` | h = h.logsumexp(1, keepdim=True)
h = h.prod(-1, keepdim=True) | h = h.median(-1, keepdim=True).values
h = h.kthvalue({q}, -1, keepdim=True).values | h = torch.quantile(h, 0.3, dim=-1, keepdim=True)
h = h.cummax(-1).values
""",
    "attention": """
3 h = F.scaled_dot_product_attention(h @ `{F}, {F}`, h, h)
3 h = F.scaled_dot_product_attention(h, h, `nn.Linear({F}, {k})`(h), is_causal=True)
3 h = `nn.MultiheadAttention({F}, 1, batch_first=True)`(h, h, h)[0]
3 h = `nn.MultiheadAttention({F}, 1, batch_first=True)`(h, h, h, need_weights=False)[0]
3 h = torch.softmax(`nn.Linear({F}, {k})`(h) @ `nn.Linear({F}, {k})`(h).mT, -1) @ h
3 h = `nn.TransformerEncoderLayer({F}, 1, 4, 0.0, batch_first=True)`(h)
3 h = torch.softmax((h @ `{F}, {C}`).masked_fill(torch.ones({C}, {C}).triu(1) > 0, -9.0), -1) @ h
2 h = torch.softmax(h @ `{F}, 3`, -1) @ `3, {k}`
2 h = (torch.softmax(torch.einsum("ni,kj->nkij", h, `2, {F}`), -1) @ h[:, None, :, None]).flatten(1)
""",
    "shape": """
2 h = h.unsqueeze(1) | 2 h = h.unsqueeze(2) | 2 h = h.unflatten(1, (2, -1))
2 h = torch.stack([h, {v}], 1) | 2 h = h.t().contiguous().t() | 2 h = (h.t() * `{F}, 1`).t()
2 h = F.pad(h, (1, 1), value=0.5) | 3 h = h.flatten(1) | 3 h = h.transpose(1, 2)
3 h = h.permute(0, 2, 1).reshape(len(h), -1) | 3 h = h.unsqueeze(1)
3 h = torch.cat(h.unbind(1), -1) | 3 h = (h.transpose(0, 1) @ `{F}, {k}`).transpose(0, 1)
3 h = torch.vmap(`nn.Linear({F}, {k})`)(h) | 4 h = h.flatten(2) | 4 h = h.permute(0, 3, 1, 2)
h = h[:, :{p}] | h = h[..., ::2] | h = h[:, [{i}, 0]] | h = h.flip(1)
h = torch.cat([h, h * `{F}`], 1) | h = torch.cat([{v}, h], -1)
h = torch.cat(h.chunk(2, -1)[::-1], -1) | h = torch.stack(h.split(1, 1), 1).flatten(1, 2)
h = h.index_select(1, torch.tensor([{i}, {i}])) | h = h.gather(-1, h.argsort(-1))
h = h.take_along_dim(h.argmax(-1, keepdim=True), -1) * h | h = h.unfold(-1, {q}, 1).sum(-1)
h = h.movedim(0, -1).clone().movedim(-1, 0) | h = h.repeat_interleave(2, 1)
h = h.narrow(-1, {f}, 1).expand_as(h) + h | h = torch.cat([h, h[:, :1]], 1).diff(dim=1)
h = h.reshape(-1).reshape(h.shape) * 0.7 | h = h.tril() if h.dim() > 2 else h.reshape(len(h), -1)
""",
    "broadcast": """
h = h * `{F}` | h = h + `1` | h = h * `()` | h = h / (1 + `{F}`.square()) | h = h + `1, {F}`
2 h = h.unsqueeze(-1) * `{k}` | 2 h = h.unsqueeze(1) + `{k}, 1`
2 h = h + `1, {F}`.repeat(len(h), 1) | 2 h = torch.cat([h, `{k}`.expand(len(h), -1)], 1)
2 h = torch.cdist(h, `{k}, {F}`) | 2 h = F.cosine_similarity(h[:, None], `{k}, {F}`[None], dim=-1)
3 h = h * `{C}, 1` | 3 h = h + `{C}, {F}`
3 h = torch.cat([`1, 1, {F}`.expand(len(h), 1, -1), h], 1) | 4 h = h * `{C}, 1, 1` + `{C}, 1, 1`
h = torch.addcmul(h, h, `{F}`, value=0.3) | h = torch.lerp(h, {v}, `1`)
h = torch.maximum(h, `{F}`) | h = h * `{F}`.exp() | h = `{F}`.expand_as(h) * h
h = torch.where(h > `{F}`, h, `1`) | h = h.abs().add(0.5) ** `{F}`
h = torch.outer(`{C}`, `{F}`).mean() * h
h = h * {w}.mean(tuple(range(1, {w}.dim()))).view(-1, *[1] * (h.dim() - 1))
""",
    "weight": """
h = F.linear(h, 1 + `{k}, {F}`) | h = F.linear(h, F.normalize(`{k}, {F}`, dim=1) * `{k}, 1`)
h = F.linear(h, `{k}, 1` @ `1, {F}`, `{k}`) | h = F.linear(h, torch.softmax(`{k}, {F}`, 1))
h = F.linear(h, `{F}, {k}`.t()) | h = F.linear(h, torch.cat([`1, {F}`, 2 * `2, {F}`]))
h = h @ `{F}, {F}`.tril() | h = h @ torch.linalg.inv(`{F}, {F}` + 9 * torch.eye({F}).to(h))
h = h @ torch.linalg.inv(2 * torch.eye({F}).to(h) + 0.1 * `{F}, {F}`)
h = `nn.utils.parametrizations.weight_norm(nn.Linear({F}, {k}))`(h)
h = F.linear(h, `{k}, {F}`.masked_fill(torch.ones({k}, {F}).triu(1).bool(), 0.0))
h = F.linear(h, `1, {F}`.expand({k}, {F})) | h = h * torch.softmax(`{F}`, 0).cumsum(0)
h = h * (`{F}` * `{F}`).sum() | h = F.linear(h, `{k}, {F}`.clone().mul_(`{F}`))
3 h = F.conv1d(h, `{k}, {C}, 1` - `{k}, {C}, 1`.mean((1, 2), keepdim=True))
4 h = F.conv2d(h, F.softplus(`{k}, {C}, 1, 1`), `{k}`.exp())
""",
    "residual": """
h = h + {v} | h = h * {v} | h = h + `nn.Linear({F}, {F})`(torch.tanh(h))
h = h * torch.sigmoid(`nn.Linear({F}, {F})`({v}))
h = `nn.Sequential(nn.Linear({F}, 2), nn.Tanh(), nn.Linear(2, {F}))`(h) + h
""",
    "shared": """
h = @0(torch.tanh(`nn.Linear({F}, {F})`(h)))
h = torch.tanh(`nn.Linear({F}, {k})`(h)) @ @0.weight
h = F.linear(`nn.Linear({F}, {k})`(h), @0.weight.t())
h = torch.tanh(`nn.Linear({F}, {F})`(h)); h = `tied(@0)`(h) | h = h * `{F}` + @0
h = @0 * torch.tanh(h + `{F}`) | h = `nn.LayerNorm({F})`(@0(h) + {v})
""",
    "inplace": """
h = h.clone(); h[:, :{p}].mul_(`1`) | h = h * 1; h[:, :1].mul_(`{F}`)
h = h.clone(); h[..., {f}].add_(`1`) | h = h.clone(); h.view(-1).mul_(`1`)
h = h.clone(); h.unsqueeze(1).add_(`{F}`) | 2 h = h.clone(); h.t().mul_(`{F}, 1`)
2 h = h.clone(); h.addmm_({v}, `{F}, {F}`)
2 h = h.clone(); h[:, :{p}].addmm_(h.detach(), `{F}, {p}`)
3 h = h.clone(); h.transpose(1, 2).mul_(`{C}`)
3 h = h.clone(); h[:, 0].addmm_({v}[:, 0], `{F}, {F}`)
3 h = h.clone(); h.flatten(1)[:, ::2].mul_(`1`) | h.mul_(`{F}`) | h.add_(`1`) | h[:, :1].mul_(`1`)
h += `{F}` | h = h * 1; h.relu_() | h = F.relu(h, inplace=True)
h = h.clone(); torch.tanh_(h[:, :1]) | h = h.clone(); h[:, :{p}].copy_(`1` * {v}[:, :{p}])
h = h.clone(); h.copy_(`{F}`) | h = h.clone(); h[:, {i}] = `1`
h = h.clone(); h[:, :1] = torch.tanh(h[:, :1] * `1`) | h = h.clone(); h.masked_fill_(h > 0.3, 0.5)
h = h.clone(); h[h > 0] *= 2 | h = h.clone(); h[:, [{i}]] = h[:, [0]] * `1`
h = h.clone(); h.index_add_(1, torch.tensor([{i}]), {v}[:, :1] * `1`)
h = h.clone(); h.index_copy_(1, torch.tensor([{i}]), `1` * h[:, :1])
h = h.clone(); h.scatter_add_(-1, h.detach().argsort(-1), {v} * `{F}`)
h = h.clone(); h.clamp_(-1, 1).mul_(`1`) | h = h.clone(); h.zero_().add_({v}).mul_(`{F}`)
o = torch.zeros_like(h); o[:, :{p}] = h[:, :{p}] * `1`; h = o
o = h.new_zeros(len(h), 2, *h.shape[1:]); o[:, 1] = h * `{F}`; h = o.sum(1)
h = h * 1; u = h[:, :1]; h.mul_(`{F}`); h = h + u
h = h * 1; u = h[..., :{q}]; t = h.view_as(h); u.mul_(`1`); h = t + h
h = h.clone(); h.addcmul_({v}, `{F}`); h.div_(1 + `{F}`.square())
h = h.clone(); h.lerp_({v}, `1`)
h = h.clone(); h.select(1, {i}).sub_(`1`); h.narrow(-1, {f}, 1).neg_()
h = h.clone(); h.squeeze().mul_(`1`)
h = h.expand(2, *h.shape).clone(); h[0].mul_(`{F}`); h = h.sum(0)
""",
    "scripted": """
h = scripted_activation(h) | h = scripted_activation(`nn.Linear({F}, {k})`(h))
h = scripted_product(h, `{F}`) | h = scripted_product(h, {v}) | h = scripted_linear(h, `{F}, {k}`)
h = F.linear(h, scripted_weight(`{k}, {F}`)) | h = scripted_loop(h)
a, b = scripted_pair(h, {v}); h = a + b * `1`
""",
    "complex": """
h = torch.fft.irfft(torch.fft.rfft(h) * torch.view_as_complex(`{G}, 2`), n={F})
h = torch.fft.irfft(torch.fft.rfft(h) * `{G}`, n={F})
h = torch.fft.irfft(torch.fft.rfft(h, n=8) * torch.fft.rfft(`{F}`, n=8), n=8)[..., :{F}]
h = torch.fft.rfft(h + `{F}`).abs() | h = (h * torch.polar(`{F}`.exp(), `{F}`)).real
h = torch.view_as_real(torch.polar(h.abs() + 1, `{F}`.expand_as(h))).sum(-1)
h = (torch.complex(h, `{F}`.expand_as(h)) * torch.complex(`{F}`, @0)).imag
h = (h.to(torch.complex128) @ torch.view_as_complex(`{F}, {k}, 2`)).abs()
h = (h * torch.exp(1j * `{F}`)).real
h = torch.view_as_real((h + 1j * {v}) * torch.view_as_complex(`{F}, 2`).conj()).flatten(-2)
h = h * torch.view_as_complex(`{F}, 2`).abs()
h = h * `{F}`.to(torch.complex128).mul(1j).exp().real | h = (h + 1j * `{F}`).abs()
h = torch.view_as_real(h * torch.view_as_complex(`2`)).mean(-1)
2 h = torch.fft.ifft2(torch.fft.fft2(h[:, None]) * torch.view_as_complex(`{F}, 2`)).real[:, 0]
""",
    "function": """
h = sine(h) | h = product(h, `{F}`.expand(h.shape[1:])) | h = rounded(3 * h)
h = `nn.Linear({F}, {k})`(rounded(h)) + h[..., :1] | h = reversed_gradient(h) * `{F}`
a, b = both(-h.abs()); h = a + b * `1` | h = F.linear(h, rounded(2 * `{k}, {F}`))
""",
    "straight": """
h = h + (h.round() - h).detach() | h = h + (h.sign() * `1` - h).detach()
h = h.detach() * `{F}` + h | h = h * h.detach()
t = `{k}, {F}`; h = F.linear(h, t + (t.sign() - t).detach())
s = F.softmax(h, -1); h = (s > 0.4).to(s) - s.detach() + s | h = h * `1`; h.data.clamp_(-0.5, 0.5)
h = h * `1`; h.detach().clamp_(-0.5, 0.5) | h = torch.tanh(h * `1`); h.data.mul_(2); h = h * `1`
with torch.no_grad(): u = h.round(); h = h + u * `1`
with torch.no_grad(): u = h * `1`; h = h * u.mean(-1, keepdim=True)
u = h.detach().clone().clamp_(-0.5, 0.5); h = h + u * `{F}`
""",
    "hook": """
h = h * `1`; h.register_hook(lambda g: 2 * g)
h = torch.tanh(h); h.register_hook(lambda g: g * torch.arange({F})) if h.requires_grad else None
t = `{k}, {F}` * 2; t.register_hook(lambda g: -g) if t.requires_grad else None; h = F.linear(h, t)
h = `hooked(nn.Linear({F}, {k}), "backward")`(h)
h = `hooked(nn.Linear({F}, {k}), "backward pre")`(h)
h = `hooked(nn.Tanh(), "backward")`(`nn.Linear({F}, {k})`(h))
h = `hooked(nn.Linear({F}, {k}), "detached statistic")`(h)
h = `hooked(nn.Linear({F}, {k}), "statistic")`(h) | h = `hooked(nn.Linear({F}, {k}), "output")`(h)
h = `hooked(nn.Linear({F}, {k}), "input")`(h) | h = `hooked(nn.Linear({F}, {k}), "parameter")`(h)
u = (h.detach().flatten(1).T @ h.detach().flatten(1)).trace(); h = h * `1`
""",
    "python": """
for n in range({k}): h = torch.tanh(`nn.Linear({F}, {F})`(h))
for n in range({F}): h = h + h[..., n : n + 1] * `{F}`[n]
h = sum(part * `1` for part in h.split(1, 1))
h = torch.stack([`nn.Linear({F}, {k})`(h[n]) for n in range(len(h))])
h = torch.cat([torch.tanh(row[None] * `{F}`) for row in h])
h = checkpoint(lambda h: torch.tanh(`nn.Linear({F}, {k})`(h)), h, use_reentrant=False)
h = checkpoint(`nn.Sequential(nn.Linear({F}, {k}), nn.Tanh())`, h, use_reentrant=False) * `1`
with torch.enable_grad(): h = h * `{F}`
h = `nn.ModuleList([nn.Linear({F}, {F}), nn.Tanh()])`[0](h)
h = `nn.ParameterDict({{"a": parameter({F})}})`["a"] * h
h = torch.func.functional_call(`nn.Linear({F}, {k})`, dict(@0.named_parameters()), (h,))
""",
    # Samples depend on each other, or seem to.
    "mixing": """
if h.sum() > 0: h = h * `1` | h = h * `1` if h.detach().mean() > 0 else h | h = h - h.mean(0)
h = h * h.detach().std(0).mean() | h = h.flip(0).flip(0) * `1` | h = h.cumsum(0) * `1`
h = torch.cat([h, h])[: len(h)] * `{F}` | h = h * `1` if len(h) > 2 else h + `1`
""",
}

# How often a kind is drawn, if not once.
FREQUENCY = {"linear": 3.0, "activation": 2.0, "shape": 2.0, "inplace": 2.0, "mixing": 0.15}
