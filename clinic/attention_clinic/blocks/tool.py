"""`diagnose_block`: examine a Transformer block, or a stack of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attention_clinic.blocks.examine import examined
from attention_clinic.blocks.judging import Asked
from attention_clinic.blocks.parts import Masks
from attention_clinic.capture import calling
from attention_clinic.capture.module import undisturbed, unwrapped
from attention_clinic.capture.trial import Context, Options, Trial, heads_of, working
from attention_clinic.catalogue.blocks import ACTIVATIONS
from attention_clinic.report import Report, fewest_mistakes

OWN = ("tgt_mask", "attn_mask", "attention_mask", "mask")
WHAT = ("mask", "context_mask")
CROSS = (*calling.CONTEXT_WORDS, "inter", "ctx")
Given = tuple[Tensor | None, Tensor | None]  # the masks of the tokens and of the context


def diagnose_block(
    block: nn.Module,
    num_heads: int | None = None,
    *,
    norm_first: bool | None = None,
    activation: str | None = None,
    norm_eps: float | None = None,
    causal: bool | None = None,
    call: Callable[..., Any] | None = None,
    size: tuple[int, int] | None = None,
    embed_dim: int | None = None,
    mlp_dim: int | None = None,
    num_kv_heads: int | None = None,
    mask: Tensor | None = None,
    context: Tensor | tuple[int, int] | int | bool | None = None,
    context_mask: Tensor | None = None,
) -> Report:
    """Examine a Transformer block, or a stack of them: report its known mistakes.

    Args:
        block: maps tokens to tokens by attention and feed-forward; or a stack of such blocks.
        num_heads: number of heads, h; None reads it off the block.
        norm_first: True if it is meant to be pre-norm, False for post-norm, None accepts both.
        activation: what it is meant to be ("gelu", "gelu-tanh", "relu", "silu"); None accepts all.
        norm_eps: the eps that its norms are meant to have; None accepts all.
        causal: as in `diagnose`.
        call: how to call it: call(block, x), with a context call(block, x, context), with masks
            call(block, x, mask) or call(block, x, context, mask, context_mask); None follows the
            signature of forward.
        size: numbers of samples and tokens, for blocks that take no others.
        embed_dim: width of a token, e; None finds it.
        mlp_dim: width of the feed-forward that is meant; None accepts all.
        num_kv_heads: number of heads of keys and values in each attention; None finds it.
        mask: of the tokens, in the shape that the block takes; True = may attend.
        context: for a decoder block: the tokens that its cross-attention attends to, as in
            `diagnose`; None gives a context to a block whose forward needs one.
        context_mask: of the context; True = may attend.

    Shape:
        x             (b, n, e)
        context       (b, j, c)
        mask          (n, n), (b, 1, 1, n) or broadcastable to (b, h, n, n)
        context_mask  (b, j), (b, 1, 1, j) or broadcastable to (b, h, n, j)
        result        (b, n, e)

    Returns:
        A `Report`: print it, or read `healthy`, `ids` and `explanations`.

    Raises:
        ValueError: not a module, a number of heads that does not fit, or an error inside it.
    """
    if activation not in (None, *ACTIVATIONS):
        raise ValueError(
            f"diagnose_block: activation must be one of {sorted(ACTIVATIONS)}, "
            f"got activation={activation!r}. Pass None to accept any."
        )
    if not isinstance(block, nn.Module):
        raise ValueError(
            f"diagnose_block: block must be an nn.Module, got {type(block).__name__}. "
            "Build it first and pass the object."
        )
    block = unwrapped("diagnose_block", block)
    options = Options(
        "diagnose_block",
        heads_of("diagnose_block", block) if num_heads is None else num_heads,
        causal=causal,
        call=call,
        size=size,
        context=Context.of("diagnose_block", context),
        more={"num_kv_heads": num_kv_heads},
    ).checked()
    asked = Asked(Masks(causal=causal), norm_first, activation, norm_eps, mlp_dim)
    with undisturbed():
        sides = calling.sides_of(block) if options.context is None and call is None else None
        parameters = calling.parameters_of(block) if sides else {}
        if sides and all(calling.is_needed(parameters[name]) for name in sides.context):
            options = replace(options, context=Context())
        return _best(block, options, asked, (mask, context_mask), embed_dim)


def _best(
    block: nn.Module, options: Options, asked: Asked, masks: Given, embed_dim: int | None
) -> Report:
    """Return the report of the way to call a block with which it has the fewest mistakes."""
    if any(one is not None for one in masks):
        options = masked_call(block, options, masks)
    reports: list[Report] = []
    try:
        for trial in working(block, options, embed_dim):
            asked.masks = rules_of(trial, masks, asked.masks.causal)
            report = examined(trial, asked)
            if report.healthy:
                return report
            reports.append(report)
    except ValueError:
        if not reports:
            raise
    return fewest_mistakes(reports)


# ------------------------------------------------------------------------------------ masks


def mask_names(block: nn.Module, crossed: bool) -> tuple[str | None, str | None]:
    """Return the arguments that take the mask of the tokens and that of the context."""
    names = [name for name in calling.parameters_of(block) if calling.is_mask(name)]
    other = [n for n in names if any(word in n.lower() for word in CROSS)] if crossed else []
    if len(other) == len(names) > 1:
        other = other[1:]
    own = [n for n in names if n not in other]
    if crossed and not other and len(own) > 1:
        own, other = own[:1], own[1:]
    return next((n for n in (*OWN, *own) if n in own), None), next(iter(other), None)


def masked_call(block: nn.Module, options: Options, masks: Given) -> Options:
    """Return options whose call gives a block its masks, and whose sizes fit them."""
    crossed, context = options.context is not None, options.context
    run = _users(options.call, masks) if options.call else _by_name(block, masks, crossed)
    b, n = options.size or (2 if options.num_heads != 2 else 3, 5 if options.num_heads != 5 else 7)
    own, other = masks
    if own is not None and options.size is None:
        n = own.shape[-1]
        batched = own.ndim > 2 or own.shape[0] != n
        b = own.shape[0] if batched and own.shape[0] > 1 else b
    if other is not None and context is not None:
        if options.size is None:
            b = other.shape[0] if other.shape[0] > 1 and (other.ndim > 2 or own is None) else b
            n = other.shape[-2] if other.ndim > 2 and other.shape[-2] > 1 else n
        context = replace(context, length=other.shape[-1])
    if context is not None and context.samples is not None:
        b = context.samples

    def alone(block: nn.Module, x: Tensor) -> Any:
        return run(block, x)

    def with_context(block: nn.Module, x: Tensor, context: Tensor) -> Any:
        return run(block, x, context)

    return replace(options, call=with_context if crossed else alone, size=(b, n), context=context)


def _users(run: Callable[..., Any], masks: Given) -> Callable[..., Any]:
    """Return a call of a user with the masks in the places that it has for them."""

    def made(block: nn.Module, x: Tensor, *context: Tensor) -> Any:
        given = [*context, *masks[: 1 + len(context)]]
        return run(block, x, *given[: max(calling.positional(run) - 2, len(context))])

    return made


def _by_name(block: nn.Module, masks: Given, crossed: bool) -> Callable[..., Any]:
    """Return a call that gives masks by the names of their arguments."""
    layout = calling.Layout("n b e") if calling.is_time_first(block) else calling.Layout()
    way = calling.Way(layout, calling.sides_of(block) if crossed else None)
    given: dict[str, Tensor] = {}
    for name, value, what in zip(mask_names(block, crossed), masks, WHAT, strict=True):
        if value is None:
            continue
        if name is None:
            raise ValueError(
                f"diagnose_block: {type(block).__name__} must have an argument for {what}, got "
                f"forward({', '.join(calling.parameters_of(block))}). Say how to call it: "
                "call=lambda block, x, mask: block(x, mask)."
            )
        turned = isinstance(block, calling.TORCH_STACKS) and value.dtype == torch.bool
        given[name] = ~value if turned else value

    def made(block: nn.Module, x: Tensor, context: Tensor | None = None) -> Any:
        cast = {k: v.to(x.dtype) if v.is_floating_point() else v for k, v in given.items()}
        bound = partial(block, **cast)
        rest = [p for name, p in calling.parameters_of(block).items() if name not in cast]
        bound.__signature__ = inspect.Signature(rest)  # type: ignore[attr-defined]
        return calling.call(bound, way, x, None, context)

    return made


def rules_of(trial: Trial, masks: Given, causal: bool | None) -> Masks:
    """Return what the masks of a trial may mean."""
    names = mask_names(trial.patient.original, trial.crossed)
    given = zip(masks, names, (None, trial.j), strict=True)
    return Masks(*(trial.meant(mask, name, keys) for mask, name, keys in given), causal)
