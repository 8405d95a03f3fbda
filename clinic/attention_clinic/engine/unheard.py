"""What a module could do that no call of it asked for: flags, keywords, masks that it may hold."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from types import CodeType
from typing import Any

from torch import Tensor, nn

from attention_clinic.engine.calls import mask_argument
from attention_clinic.engine.constants import codes_in
from attention_clinic.engine.mentions import codes_of

FLAG = re.compile(r"(^|_)causal$")
LENGTHS = re.compile(r"valid_?len|seq_?len|(^|_)len(gth)?s$|attn_bias|attention_bias|pad")
WORD = re.compile(r"\w*mask\w*")
SHARES = (0.01, 0.95)  # that a dropout may have, and hardly an eps


def causal_flags(module: nn.Module | Callable[..., Any]) -> list[str]:
    """Return the arguments of forward that make it causal, and do not unless they are asked to."""
    if type(module).__module__.startswith("torch."):  # they want a mask beside it
        return []
    return [n for n, p in _parameters(module).items() if FLAG.search(n) and p.default is False]


def hides_if_asked(module: nn.Module | Callable[..., Any]) -> bool:
    """Say whether who calls a module may hand it a mask, or ask it to hide later tokens."""
    return mask_argument(module, handed=True) is not None or bool(causal_flags(module))


def flags_for(
    module: nn.Module | Callable[..., Any], causal: bool | None, mask: Tensor | None
) -> tuple[str, ...]:
    """Return the arguments of forward that get True because its caller wants it to be causal."""
    wanted = bool(causal) and mask is None and isinstance(module, nn.Module)
    return tuple(causal_flags(module)) if wanted else ()


def told(flags: Sequence[str]) -> str:
    """Say which arguments of forward got True."""
    return f"called with {' and '.join(f'{name}=True' for name in flags)}"


def keyword_masks(module: nn.Module | Callable[..., Any]) -> list[str]:
    """Return the masks that forward reads out of its **keywords."""
    parameters = _parameters(module)
    code = getattr(inspect.unwrap(_function(module)), "__code__", None)
    if code is None or all(p.kind != p.VAR_KEYWORD for p in parameters.values()):
        return []
    words = [
        one for one in code.co_consts if isinstance(one, str) and one != inspect.getdoc(module)
    ]
    return [w for w in dict.fromkeys(words) if WORD.fullmatch(w) and w not in parameters]


def held_masks(module: nn.Module | Callable[..., Any]) -> list[str]:
    """Return the attributes that may hold a mask, which the code reads, and which are None."""
    if not isinstance(module, nn.Module):
        return []
    return [
        f"{path}.{name}".removeprefix(".")
        for path, part in module.named_modules()
        for name, value in vars(part).items()
        if value is None and WORD.fullmatch(name) and name in _names(part)
    ]


def calls_dropout(module: nn.Module) -> bool:
    """Say whether the code of a part calls a function that drops, by some share above 0."""
    for part in module.modules():
        if hasattr(part, "dropout") or "dropout" not in _names(part):
            continue
        numbers = [*vars(part).values(), *(n for code in _codes(part) for n in code.co_consts)]
        if any(isinstance(n, float) and SHARES[0] <= n <= SHARES[1] for n in numbers):
            return True
    return False


def reads_training(module: nn.Module) -> bool:
    """Say whether the code of a part asks whether it is training, beside a norm of batches."""
    parts = list(module.modules())
    if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in parts):
        return False
    return any("training" in _names(part) for part in parts)


def may_hide(module: nn.Module | Callable[..., Any]) -> bool:
    """Say whether a module may hide tokens in a call that was not made."""
    names = [n for n, p in _parameters(module).items() if p.default is None and LENGTHS.search(n)]
    return bool(names or causal_flags(module) or keyword_masks(module) or held_masks(module))


def _function(module: nn.Module | Callable[..., Any]) -> Callable[..., Any]:
    return type(module).forward if isinstance(module, nn.Module) else module


def _parameters(module: nn.Module | Callable[..., Any]) -> dict[str, inspect.Parameter]:
    function = module.forward if isinstance(module, nn.Module) else module
    return dict(inspect.signature(function).parameters)


def calls_pad(module: nn.Module) -> bool:
    """Say whether a module's own code fills tensors up with zeros."""
    parts = (part for part in module.modules() if not type(part).__module__.startswith("torch."))
    return any("pad" in _names(part) for part in parts)


def _names(part: nn.Module) -> frozenset[str]:
    return frozenset(name for code in _codes(part) for name in code.co_names)


def _codes(part: nn.Module) -> Iterator[CodeType]:
    """Yield the code of a part's own classes, and what it holds."""
    for kind in type(part).__mro__:
        yield from _all_codes(kind)


@lru_cache(512)
def _all_codes(kind: type) -> tuple[CodeType, ...]:
    return tuple(inner for code in codes_of(kind) for inner in codes_in(code))
