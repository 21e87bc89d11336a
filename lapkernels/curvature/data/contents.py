"""The modules and parameters of a model, looked up once, chosen and checked."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn

from lapkernels.curvature.data.autocast import present_casts
from lapkernels.curvature.errors import Refused
from lapkernels.ops import value_samples
from lapkernels.ops.base.precision import HALF

Parameter = str | nn.Module | nn.Parameter
Parameters = (
    Parameter | re.Pattern[str] | Iterable[Parameter] | Callable[[str, nn.Parameter], bool] | None
)


@dataclass(frozen=True)
class Contents:
    """A model's modules by name, and its parameters by every name: tied ones have several.

    ``firsts`` has the first name of each parameter, and ``paths`` of each module, by identity.
    ``places`` are where modules hold tensors: the module, its table (``_parameters`` or
    ``_buffers``), and pairs of a key in it and the first name of what is there.
    """

    model: nn.Module
    modules: list[tuple[str, nn.Module]]
    aliases: dict[str, nn.Parameter]
    firsts: dict[int, str]
    paths: dict[int, str]
    places: list[tuple[nn.Module, str, list[tuple[str, str]]]]
    buffers: list[Tensor]

    @classmethod
    def of(cls, model: nn.Module) -> Contents:
        """Traverse the model once, in the order of ``named_parameters``."""
        found = cls(model, list(_modules("", model)), {}, {}, {}, [], [])
        aliases, firsts, paths, places = found.aliases, found.firsts, found.paths, found.places
        for path, module in found.modules:
            new = id(module) not in paths
            keys: list[tuple[str, str]] = []
            for key, parameter in module._parameters.items():
                if parameter is not None:
                    name = f"{path}.{key}" if path else key
                    aliases[name] = parameter
                    keys.append((key, firsts.setdefault(id(parameter), name)))
            if not new:
                continue
            paths[id(module)] = path
            if keys:
                places.append((module, "_parameters", keys))
            held = [(key, buffer) for key, buffer in module._buffers.items() if buffer is not None]
            if held:
                found.buffers.extend([buffer for _, buffer in held])
                keys = [(key, f"{path}.{key}" if path else key) for key, _ in held]
                places.append((module, "_buffers", keys))
        return found

    @property
    def recurrent(self) -> bool:
        """Whether it has modules that torch runs as one fused op."""
        return any([isinstance(module, nn.RNNBase) for _, module in self.modules])

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """Each parameter once, by its first name."""
        return {name: self.aliases[name] for name in self.firsts.values()}


def _modules(path: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """A faster ``named_modules(remove_duplicate=False)``."""
    yield path, module
    for name, child in module._modules.items():
        if child is not None:
            yield from _modules(f"{path}.{name}" if path else name, child)


def plain(model: nn.Module) -> nn.Module:
    """The model inside of wrappers for data parallelism or compilation."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is a {type(model).__name__}: an nn.Module is needed")
    if isinstance(model, torch.jit.ScriptModule):
        raise Refused(f"the model {_SCRIPTED}")
    while True:
        if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            model = model.module
            continue
        # The only child of what torch.compile returns.
        inside = model._modules.get("_orig_mod")
        if inside is None or len(model._modules) > 1:
            return model
        model = inside


def parameters_of(
    contents: Contents, params: Parameters, *, half: bool = False
) -> dict[str, nn.Parameter]:
    """The chosen parameters by name, in the model's order; of ``half`` precision if allowed.

    ``params`` is None for all that require a gradient, the name of a parameter or module, a
    parameter or module itself, a list of such, a compiled pattern, or a predicate of name and
    parameter. A module stands for all its parameters.
    """
    every = contents.parameters
    for name, parameter in every.items():
        kind = type(parameter.data)
        # A FakeTensor has its whole shape, and no values.
        whole = kind is Tensor or kind.__name__ == "FakeTensor"
        if type(parameter) is not nn.Parameter and not whole:
            raise Refused(
                f"{name} is a {kind.__name__}, of which a process may hold a part only: "
                "copy the whole values into a plain model, those of fully_shard from "
                "get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))"
            )
        if parameter.is_inference():
            raise Refused(
                f"{name} was made inside torch.inference_mode(), where no gradient can be "
                "followed: make the model outside of it"
            )
        if parameter._backward_hooks:
            raise Refused(
                f"{name} has a hook on its gradient (register_hook), which sees sums over samples "
                "and not each of them: remove it by the handle that register_hook returned"
            )
    if params is None:
        chosen = {name: p for name, p in every.items() if p.requires_grad}
    elif isinstance(params, re.Pattern):
        chosen = {name: p for name, p in every.items() if params.search(name)}
    elif isinstance(params, Parameter):
        picked = _picked(contents, [params])
        chosen = {name: p for name, p in every.items() if id(p) in picked}
    elif callable(params):
        chosen = {name: p for name, p in every.items() if params(name, p)}
    else:
        picked = _picked(contents, list(params))
        chosen = {name: p for name, p in every.items() if id(p) in picked}
    if not chosen:
        raise ValueError("params chooses no parameter of the model")
    for name, parameter in chosen.items():
        if parameter.dtype in (torch.float32, torch.float64) and not parameter.is_meta:
            continue
        if not parameter.is_floating_point():
            raise TypeError(f"{name} has dtype {parameter.dtype}: real parameters are needed")
        if parameter.element_size() < 4 and not (half and parameter.dtype in HALF):
            raise Refused(
                f"{name} has dtype {parameter.dtype}, in which sums over samples are rounded away: "
                "give the model and its inputs in float32, model.float()"
            )
        if parameter.is_meta:
            raise ValueError(f"{name} is on the meta device: it has no values")
    return chosen


def _picked(contents: Contents, given: list[Parameter]) -> set[int]:
    """Ids of parameters by their own name or a module's, or of those given themselves."""
    aliases, every = contents.aliases, set(contents.firsts)
    picked: set[int] = set()
    for one in given:
        if isinstance(one, nn.Module):
            found = list(one.parameters())
        elif isinstance(one, Tensor):
            found = [one]
        elif isinstance(one, str):
            inside = (p for name, p in aliases.items() if name.startswith(one + "."))
            found = [aliases[one]] if one in aliases else list(inside)
        else:
            raise TypeError(
                f"params has a {type(one).__name__}: names, modules or parameters are needed"
            )
        if not found and isinstance(one, str):
            raise ValueError(
                f"params: the model has no parameter or module {one!r}, but {_children(contents)}"
            )
        strange = [p for p in found if id(p) not in every]
        if strange or not found:
            kind = type(one).__name__
            raise ValueError(f"params: the {kind} given has no parameter of this very model")
        picked.update(id(p) for p in found)
    return picked


def _children(contents: Contents) -> str:
    """The names of the model's first modules and parameters that have any."""
    tops = list(dict.fromkeys(name.split(".")[0] for name in contents.aliases))
    return ", ".join(map(repr, tops[:12])) + (", .." if len(tops) > 12 else "")


_SCRIPTED = (
    "is scripted or traced, so that its parameters cannot be told from constants: give the module "
    "that it was made of"
)
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_DROPOUTS = (
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d),
    *(nn.AlphaDropout, nn.FeatureAlphaDropout),
)


def check_differentiation() -> None:
    """Raise inside inference mode, where torch saves nothing for derivatives."""
    if torch.is_inference_mode_enabled():
        raise Refused("inside torch.inference_mode() no gradient can be followed; use no_grad()")


def check_precision(contents: Contents, *, autocast: bool = False) -> None:
    """Raise inside autocast, where ops would round to another dtype than that of the parameters.

    ``autocast`` allows one under which the model alone runs.
    """
    casts = {} if autocast else dict(present_casts())
    for kind in {device.type for device in {p.device for p in contents.aliases.values()}}:
        if torch.is_autocast_enabled(kind):
            casts[kind] = torch.get_autocast_dtype(kind)
        if kind in casts:
            raise Refused(
                f"inside torch.autocast({kind!r}) the model is rounded to {casts[kind]}, and its "
                "curvature with it: call this outside, or in "
                f"`with torch.autocast({kind!r}, enabled=False)`"
            )


def check_mode(contents: Contents, *, autocast: bool = False) -> None:
    """Raise where a model cannot be differentiated, or not as a function of single samples."""
    check_differentiation()
    check_eval(contents, autocast=autocast)


def check_eval(contents: Contents, *, autocast: bool = False) -> None:
    """Raise where training mode makes samples random or dependent on each other.

    Autocast is refused unless the model alone runs under it.
    """
    check_precision(contents, autocast=autocast)
    for name, module in contents.modules:
        reason = _refusal(module) if _has_modes(type(module)) else None
        if reason is not None:
            raise Refused(f"{name or 'the model'} ({type(module).__name__}) {reason}")


@lru_cache(256)
def _has_modes(kind: type[nn.Module]) -> bool:
    """Whether some settings of modules of this kind leave no curvature."""
    others = (nn.Embedding, nn.EmbeddingBag, nn.RReLU, nn.RNNBase, torch.jit.ScriptModule)
    return issubclass(kind, (*_BATCH_NORMS, *_DROPOUTS, *others))


def _refusal(module: nn.Module) -> str | None:
    """Why there is no curvature of a model with this module as it is."""
    if isinstance(module, torch.jit.ScriptModule):
        return _SCRIPTED if any(True for _ in module.parameters()) else None
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        if module.scale_grad_by_freq:
            return "has scale_grad_by_freq, so gradients depend on the whole batch; set it to False"
        return None
    if isinstance(module, _BATCH_NORMS) and module.running_mean is None:
        return "has no running statistics, so samples depend on each other"
    if not module.training:
        return None
    if isinstance(module, _BATCH_NORMS):
        return "is in training mode, where samples depend on each other; call model.eval() first"
    if isinstance(module, nn.RNNBase):
        random = module.dropout != 0 and module.num_layers > 1
    else:
        random = isinstance(module, nn.RReLU) or module.p != 0
    if random:
        return "is in training mode, where the output is random; call model.eval() first"
    return None


@torch.no_grad()
def fingerprint(parameters: Mapping[str, Tensor]) -> str:
    """A fingerprint of parameters: names, shapes, dtypes, and some of their values."""
    values = list(parameters.values())
    kinds = _kinds(tuple(parameters), tuple([(p.shape, p.dtype) for p in values]))
    digest = hashlib.sha256(kinds)
    digest.update(value_samples(values).numpy().tobytes())
    return digest.hexdigest()[:16]


@lru_cache(256)
def _kinds(names: tuple[str, ...], kinds: tuple[tuple[torch.Size, torch.dtype], ...]) -> bytes:
    pairs = zip(names, kinds, strict=True)
    return "".join(f"{name}{tuple(shape)}{dtype}" for name, (shape, dtype) in pairs).encode()
