"""How to call a module that reads a context beside its tokens: which argument is which."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from attention_clinic.engine.arguments import ADDED
from attention_clinic.engine.openings import NO_MASK, Opening, mask_names, mask_takers

ASKS = re.compile(
    r"q|q_?in|que\w*|qry|x|x_?[1q]|x_in|tgt\w*|trg\w*|target\w*|dec\w*|hidden_states?|latents?"
    r"|tokens|stream|inputs?"
)
ASKED = re.compile(
    r"k|v|kv|k_?in|v_?in|key\w*|val(?!id)\w*|context\w*|ctx|mem|memory\w*|enc\w*|src\w*|source\w*|cond"
    r"|x_?(kv|k|v|a)|e_out\w*"
)
NO_TOKENS = re.compile(
    r"mask|past|^prev(ious)?$|cache|pos|bias|norm|rope|freq|cos|sin|rot|len|head|weights|layer"
    r"|(^|_)ids?$"
)


def role(name: str) -> str:
    """Return whose side an argument is on, by its name: "asks", "asked" or "", which is unknown."""
    name = name.lower()
    if NO_TOKENS.search(name) or ADDED.search(name):
        return "no tokens"
    if ASKED.fullmatch(name):
        return "asked"
    return "asks" if ASKS.fullmatch(name) else ""


def nothing(name: str, x: Tensor) -> Tensor | None:
    """Return what changes nothing for an argument: zeros where it is added to tokens, or None."""
    return x.new_zeros(1, 1, 1) if ADDED.search(name.lower()) else None


@dataclass(frozen=True)
class Sides:
    """Which arguments of forward take the tokens and which the context.

    Args:
        asks: those of the tokens.
        asked: those of the context.
        empty: those that are needed and get nothing.
        guessed: True when only their order says so.
    """

    asks: tuple[str, ...]
    asked: tuple[str, ...]
    empty: tuple[str, ...] = ()
    guessed: bool = False

    def needed(self, module: nn.Module) -> bool:
        """Say whether forward cannot do without a context."""
        parameters = inspect.signature(module.forward).parameters
        names = [parameters[name] for name in self.asked]
        return all(p.default is inspect.Parameter.empty for p in names)

    def exchanged(self) -> Sides:
        """Return the sides the other way round."""
        return Sides(self.asked, self.asks, self.empty, self.guessed)


def sides_of(module: nn.Module | Callable) -> Sides | None:
    """Return which arguments are which, None for a module that takes no context.

    By their names; where these say nothing, the first is the tokens and the others are the context.
    """
    function = module.forward if isinstance(module, nn.Module) else module
    asks: list[str] = []
    asked: list[str] = []
    empty: list[str] = []
    unknown: list[str] = []
    optional: list[str] = []
    asking: list[str] = []
    spare: dict[str, bool] = {}  # whether something says that it takes tokens
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        side = role(name)
        if parameter.default is not inspect.Parameter.empty:
            free = parameter.default is None
            optional += [name] * (side == "asked" and free)
            asking += [name] * (side == "asks" and free)
            tokens = "Tensor" in str(parameter.annotation) or re.fullmatch(r"[xyz]\d?", name)
            spare |= {name: bool(tokens)} if side == "" and free else {}
        elif side == "asks":
            asks.append(name)
        elif side == "asked":
            asked.append(name)
        else:
            (empty if side else unknown).append(name)
    asks = asks or asking[: not unknown]  # none has to be given
    if not asked and optional and (asks or unknown):
        pair = [name for name in optional if re.fullmatch(r"k|v|kv|key\w*|val\w*", name.lower())]
        asked = pair if optional[0] in pair else optional[:1]
        asks, unknown, empty = asks + unknown[:1], [], empty + unknown[1:]
    guessed = bool(unknown)
    for name in unknown:
        (asked if asks else asks).append(name)
    if len(asks) > 1 and not asked:  # x1 and x2, or q and x
        asks, asked, guessed = asks[:1], asks[1:], True
    if asks and not asked:  # x, and y: Tensor = None, or whatever else may be left out
        asked = sorted(spare, key=lambda name: not spare[name])[:1]
    return Sides(tuple(asks), tuple(asked), tuple(empty), guessed) if asks and asked else None


def context_mask_argument(module: nn.Module | Callable) -> str | None:
    """Return the name of the argument that masks the context, None when there is none."""
    function = module.forward if isinstance(module, nn.Module) else module
    masks = mask_takers(inspect.signature(function).parameters)
    speaking = [m for m in masks if re.search(r"context|mem|enc|src|source|cross", m.lower())]
    usual = [m for m in ("attn_mask", "mask", "attention_mask") if m in masks]
    return next(iter((*speaking, *usual, *masks)), None)


def crossed_call(
    module: nn.Module | Callable,
    x: Tensor,
    context: Tensor,
    mask: Tensor | None = None,
    sides: Sides | None = None,
    opening: Opening | None = None,
) -> object:
    """Call a module on tokens and a context as its signature suggests.

    Args:
        module: takes both.
        x: tokens that ask.
        context: tokens that are asked.
        mask: of the context, or None.
        sides: which arguments are which; None finds out.
        opening: a mask that blocks nothing, for a module that does not run without one.

    Raises:
        TypeError: a module that takes no context.
    """
    if isinstance(module, nn.MultiheadAttention):
        if mask is not None:
            b, i, j = x.shape[0], x.shape[1], context.shape[1]
            blocked = ~mask if mask.dtype is not None and not mask.is_floating_point() else mask
            mask = blocked.expand(b, module.num_heads, i, j).reshape(-1, i, j)
        if not module.batch_first:
            x, context = x.transpose(0, 1), context.transpose(0, 1)
        result = module(x, context, context, attn_mask=mask, need_weights=False)[0]
        return result if module.batch_first else result.transpose(0, 1)
    sides = sides or sides_of(module)
    if sides is None:
        raise TypeError("forward takes no context: no argument beside the tokens")
    given: dict[str, Tensor | None] = dict.fromkeys(sides.asks, x)
    given |= dict.fromkeys(sides.asked, context)
    given |= {name: nothing(name, x) for name in sides.empty}
    if opening is not None and mask is None:
        given |= {n: opening.made(n, x, context.shape[1]) for n in mask_names(module)}
    where = context_mask_argument(module)
    if mask is not None:
        if where is None:
            raise TypeError(NO_MASK)
        given[where] = mask
    function = module.forward if isinstance(module, nn.Module) else module
    positional = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind != parameter.POSITIONAL_ONLY:
            break
        positional.append(given.pop(name, None))
    return module(*positional, **given)
