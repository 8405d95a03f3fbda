"""What a module has and no call of it tried: arguments, a mask, a cache, its dropout."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from attention_clinic.engine.copies import origin_of
from attention_clinic.engine.unheard import (
    calls_dropout,
    causal_flags,
    held_masks,
    keyword_masks,
)

CACHE = re.compile(r"cache(?!_pos)|past(?!_(len|seq))")
DROPOUT = re.compile(r"drop|p_attn")
WHOLE_CACHE = "diagnose_cache tries that of a whole model"


def untried_of(
    module: nn.Module | Callable[..., Any], given: Collection[str], mask: bool, cache: str
) -> list[str]:
    """Say what was never tried.

    Args:
        module: the module, or a function.
        given: the arguments of forward that got a value.
        mask: whether the tool that asks could have tried a mask.
        cache: how a cache is tried.
    """
    function = module.forward if isinstance(module, nn.Module) else module
    parameters = inspect.signature(function).parameters
    caches = [name for name in parameters if CACHE.search(name)]
    names = [
        name
        for name, parameter in parameters.items()
        if _is_free(name, parameter) and name not in given and name not in caches
    ]
    masks = [name for name in names if mask and "mask" in name.lower()]
    others = [name for name in names if name not in masks]
    said = []
    if masks:
        said.append(f"a mask ({arguments(masks)}): mask=... tries one")
    if caches and not set(caches) & set(given):
        said.append(f"a cache ({arguments(caches)}): {cache}")
    if others:
        said.append(arguments(others))
    flags = [name for name in causal_flags(module) if name not in given]
    if flags:
        said.append(f"a causal mask ({arguments(flags)}, which was False): causal=True tries it")
    for name in [n for n in keyword_masks(module) if n not in given] if mask else ():
        said.append(
            f"a mask (the keyword {name}): mask=..., call=lambda module, x, mask: "
            f"module(x, {name}=mask) tries one"
        )
    for name in held_masks(module):
        said.append(f"a mask (the attribute {name}, which is None)")
    shares = sorted(set(dropouts(module)) if isinstance(module, nn.Module) else ())
    if shares:
        numbers = " and ".join(f"{share:g}" for share in shares)
        said.append(f"dropout (p = {numbers}), which rests in eval mode")
    elif isinstance(module, nn.Module) and calls_dropout(module):
        said.append("dropout (a function that drops), which rests in eval mode")
    return said


def _is_free(name: str, parameter: inspect.Parameter) -> bool:
    """Say whether an argument may be None: by its default, or as a mask that must be named."""
    kinds = (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    needed = parameter.default is parameter.empty and parameter.kind not in kinds
    return parameter.default is None or (needed and "mask" in name.lower())


def dropouts(module: nn.Module) -> Iterator[float]:
    """Yield the shares that a module drops in training."""
    for part in module.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):
            yield from [part.p] * (part.p > 0)
            continue
        for name, value in vars(part).items():
            if DROPOUT.search(name) and isinstance(value, float) and 0 < value < 1:
                yield value


def odd_weights(module: nn.Module) -> list[str]:
    """Say which of a module's own weights are no numbers, or zero for ever.

    A copy gets random weights, with which neither shows. What holds -inf is a mask.

    Args:
        module: a copy of the module that kept its weights.
    """
    odd, zero = [], []
    for name, p in module.named_parameters():
        if isinstance(p, UninitializedParameter) or not p.is_floating_point():
            continue
        if not bool(p.isfinite().all()):
            odd += [name] * bool((p.isnan() | p.isposinf()).any())
        elif p.ndim > 1 and not (origin_of(p) is p or origin_of(p).requires_grad or p.any()):
            zero.append(name)
    found = ((odd, "are NaN or infinity"), (zero, "are zero, and frozen"))
    return [
        f"its own numbers in {listed(names)}, which {words}: random ones stood in their place"
        for names, words in found
        if names
    ]


def listed(names: list[str]) -> str:
    """Return "a", "a and b" or "a, b, c and 3 more"."""
    shown = names if len(names) < 5 else [*names[:3], f"{len(names) - 3} more"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def arguments(names: list[str]) -> str:
    """Return "the argument a", or "the arguments a, b, c and 3 more"."""
    return f"the argument{'s' * (len(names) > 1)} {listed(names)}"


def note(zeros: set[str], masks: dict[str, bool], given: Mapping[str, Any]) -> None:
    """Note the arguments that get zeros, and for each mask whether all its numbers are alike.

    Args:
        zeros: the arguments so far.
        masks: those so far; one that was filled in any call stays so.
        given: what a call gives.
    """
    for name, value in given.items():
        if not isinstance(value, Tensor) or not value.numel():
            continue
        if "mask" in name.lower():
            alike = bool((value == value.flatten()[0]).all())
            masks[name] = alike and masks.get(name, True)
        elif value.ndim == 3 and not bool(value.any()):
            zeros.add(name)


def empty(zeros: set[str], masks: dict[str, bool]) -> list[str]:
    """Say which arguments got zeros, or masks that are alike everywhere."""
    level = [name for name, alike in masks.items() if alike]
    said = [f"what is added as {', '.join(sorted(zeros))}: it was 0"] * bool(zeros)
    if level:
        said.append(f"a mask ({arguments(level)}): what call gives is alike everywhere")
    return said
