"""What a block gets beside its tokens, and how it is called with that."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from itertools import product, takewhile
from typing import Any

import torch
from torch import Tensor, nn

from attention_clinic.bugs.blocks import Meant
from attention_clinic.engine.arguments import TABLES, Tables
from attention_clinic.engine.calls import takes
from attention_clinic.engine.crossing import Sides, nothing
from attention_clinic.engine.openings import NO_MASK, Opening, mask_names, mask_takers
from attention_clinic.engine.patient import Patient
from attention_clinic.engine.weighing import WholeScores, hides_all
from attention_clinic.examine.mask_argument import adds

CROSS = re.compile(r"cross|(?<!qu)enc|src|source|mem|context|ctx|inter|multihead_attn|co_?att")


@dataclass(frozen=True)
class Around:
    """What a block gets beside its tokens.

    Args:
        context: the tokens of the context, or None.
        mask: of the tokens, or None.
        context_mask: of the context, or None.
    """

    context: Tensor | None = None
    mask: Tensor | None = None
    context_mask: Tensor | None = None


@dataclass(frozen=True)
class Question:
    """What is asked of a block.

    Args:
        patient: its copy.
        x: tokens that it takes.
        around: what it gets beside them.
        num_heads: h.
        meant: what it is meant to be.
        causal: as in `diagnose`.
    """

    patient: Patient
    x: Tensor
    around: Around
    num_heads: int
    meant: Meant
    causal: bool | None


def mask_arguments(module: nn.Module) -> tuple[str | None, str | None]:
    """Return the names of the arguments that mask the tokens and the context."""
    names = mask_takers(inspect.signature(module.forward).parameters)
    crossed = [n for n in names if CROSS.search(n.lower())]
    if len(names) > 1 and len(crossed) == len(names):  # an encoder's: src_mask alone
        crossed = crossed[1:]
    crossed = crossed if len(names) > 1 or (crossed and len(names) == 1) else []
    own = [n for n in names if n not in crossed]
    usual = [n for n in ("tgt_mask", "attn_mask", "attention_mask", "mask") if n in own]
    return next(iter((*usual, *own)), None), next(iter(crossed), None)


def check_masked(module: nn.Module, mask: Tensor | None, context_mask: Tensor | None) -> None:
    """Refuse masks for which a block has no argument: nothing could be said of them.

    Args:
        module: the block.
        mask: of the tokens, or None.
        context_mask: of the context, or None.

    Raises:
        ValueError: there is none.
    """
    own, crossed = mask_arguments(module)
    nowhere = mask is not None and (own or crossed) is None
    if nowhere or (context_mask is not None and crossed is None):
        raise ValueError(f"diagnose_block: {type(module).__name__}: {NO_MASK}")


def called(
    module: nn.Module,
    x: Tensor,
    around: Around,
    sides: Sides | None,
    tables: Tables | None = None,
    opening: Opening | None = None,
) -> object:
    """Call a block on tokens and on what stands around them, as its signature suggests."""
    context = around.context
    heads = next((m for m in module.modules() if isinstance(m, nn.MultiheadAttention)), None)
    blocks = type(module).__module__.startswith("torch.")  # True means blocked there
    where, where_context = mask_arguments(module)
    if context is None and where is None:
        where = where_context
    given: dict[str, Any] = {}
    parameters = inspect.signature(module.forward).parameters
    if context is not None and sides is not None:
        given |= dict.fromkeys(sides.asks, x) | dict.fromkeys(sides.asked, context)
    else:
        given[next(iter(parameters))] = x
    for name, mask, keys in (
        (where, around.mask, x),
        (where_context, around.context_mask, context),
    ):
        if mask is not None and keys is not None:
            if name is None:
                raise TypeError(NO_MASK)
            if blocks and heads is not None:
                mask = ~mask if mask.dtype == torch.bool else mask
                if mask.ndim > 2:
                    shape = (x.shape[0], heads.num_heads, x.shape[1], keys.shape[1])
                    mask = mask.expand(shape).reshape(-1, *shape[2:])
            given[name] = mask
    if tables is not None:
        named = {n for n, p in parameters.items() if p.default in (p.empty, None)}
        given |= {n: tables.value(n, x.shape[1], x.dtype) for n in named & TABLES}
    for name in [] if opening is None else mask_names(module):
        crossed = name == where_context and context is not None
        given.setdefault(name, opening.made(name, x, context.shape[1] if crossed else None))
    for name, parameter in parameters.items():
        needed = parameter.default is parameter.empty and name not in given
        if needed and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            empty = "mask" in name.lower() or context is not None or nothing(name, x) is not None
            given[name] = nothing(name, x) if empty else x
    plain = takewhile(lambda p: p.kind == p.POSITIONAL_ONLY, parameters.values())
    return module(*(given.pop(p.name) for p in plain), **given)


def opened(
    call: Callable[..., Any], mask: Tensor | None, context_mask: Tensor | None
) -> Callable[..., Any]:
    """Return a call that gets masks that block nothing where it does not run on None.

    Where a mask that allows all hides all, the module takes it upside down, and gets the contrary.

    Args:
        call: that of a user: call(block, x, mask), or call(block, x, context, mask, context_mask).
        mask: of the tokens, or None.
        context_mask: of the context, or None.
    """

    most = takes(call)

    @wraps(call)
    def run(block: nn.Module, *given: Any) -> Any:
        given = (*given, *[None] * (most - 1 - len(given)))
        try:
            return call(block, *given)
        except (AttributeError, TypeError):
            held = [t for t in given if t is not None]
            if len(held) == len(given) or not held:
                raise
            sizes = [(held[0], held[0].shape[1]), (held[-1], held[-1].shape[1])]
            masks = zip((mask, context_mask), sizes, strict=True)
            open_ = [None if one is None else open_mask(one, x, keys) for one, (x, keys) in masks]
            if not sides:  # found out once: who listens to later calls hears nothing else
                sides.append(_open_side(partial(call, block), given, open_))
            return call(block, *_filled(given, open_, sides[0]))

    sides: list[tuple[bool, ...]] = []
    return run


def _filled(
    given: tuple[Any, ...], masks: list[Tensor | None], turned: tuple[bool, ...]
) -> list[Any]:
    """Return arguments with masks in the place of None, some of them turned to the contrary."""
    left = [t.logical_not().to(t.dtype) if turn and t is not None else t
            for t, turn in zip(masks, turned, strict=True)]  # fmt: skip
    return [left.pop(0) if t is None and left else t for t in given]


def _open_side(
    run: Callable[..., Any], given: tuple[Any, ...], masks: list[Tensor | None]
) -> tuple[bool, ...]:
    """Say which masks a block takes upside down: that allow all, and hide all.

    Args:
        run: calls the block.
        given: the arguments, None where masks belong.
        masks: that should allow all.
    """
    turns = [(False,) if t is None or adds(t) else (False, True) for t in masks]
    for turned in product(*turns):
        with WholeScores() as scores:
            run(*_filled(given, masks, turned))
        if not any(map(hides_all, scores.heard)):
            return turned
    return (False,) * len(masks)


def open_mask(mask: Tensor, x: Tensor, keys: int) -> Tensor:
    """Return a mask of the same kind that blocks nothing, for these tokens."""
    b, n, own = len(x), x.shape[1], list(mask.shape)
    first = n if len(own) == 2 and own[0] == own[1] else b
    sizes = [first, keys] if len(own) == 2 else [b, *own[1:-2], n, keys]
    shape = [1 if size == 1 else new for size, new in zip(own, sizes, strict=True)]
    return torch.full(shape, 0 if adds(mask) else 1, dtype=mask.dtype)
