"""`diagnose_block`: examine a Transformer block, or a stack of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attention_clinic.attention.examine import (
    active_dropout,
    behaving,
    builds_layers,
    read_twice,
    unexplained,
    untried,
    written,
)
from attention_clinic.attention.program import Lost
from attention_clinic.attention.rules import Finding
from attention_clinic.behaviour.gradients import learned
from attention_clinic.blocks.judging import Asked, read_once
from attention_clinic.capture import calling
from attention_clinic.capture.module import undisturbed, unwrapped
from attention_clinic.capture.trial import Context, Options, Trial, heads_of, working
from attention_clinic.catalogue.blocks import ACTIVATIONS
from attention_clinic.report import Report, fewest_mistakes

EVIDENCE = "each connection, and each part, gives exactly your numbers"
OWN = ("tgt_mask", "attn_mask", "attention_mask", "mask")
WHAT = ("mask", "context_mask")
CROSS = (*calling.CONTEXT_WORDS, "inter", "ctx")


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
        embed_dim: embedding dimension, e; None finds it.
        mlp_dim: the intended inner dimension of the feed-forward; None accepts all.
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
    with undisturbed():
        sides = calling.sides_of(block) if options.context is None and call is None else None
        parameters = calling.parameters_of(block) if sides else {}
        if sides and all(calling.is_needed(parameters[name]) for name in sides.context):
            options = replace(options, context=Context())
        names = mask_names(block, options.context is not None)
        asked = Asked((mask, context_mask), names, norm_first, activation, norm_eps, mlp_dim)
        if any(mask is not None for mask in asked.masks):
            options = masked_call(block, options, asked)
        reports: list[Report] = []
        try:
            for trial in working(block, options, embed_dim):
                reports.append(examined(trial, asked))
                if reports[-1].healthy:
                    break
        except ValueError:
            if not reports:
                raise
        return fewest_mistakes(reports)


def mask_names(block: nn.Module, crossed: bool) -> tuple[str | None, str | None]:
    """Return the arguments that take the mask of the tokens and that of the context."""
    names = [name for name in calling.parameters_of(block) if calling.is_mask(name)]
    other = [n for n in names if any(word in n.lower() for word in CROSS)] if crossed else []
    own = [n for n in names if n not in other]
    if crossed and not other and len(own) > 1:
        own, other = own[:1], own[1:]
    return next((n for n in (*OWN, *own) if n in own), None), next(iter(other), None)


def masked_call(block: nn.Module, options: Options, asked: Asked) -> Options:
    """Return options whose call gives a block its masks, and whose sizes fit them."""
    (own, other), context = asked.masks, options.context
    crossed = context is not None
    run = _users(options.call, asked.masks) if options.call else _by_name(block, asked, crossed)
    b, n = options.size or (2 if options.num_heads != 2 else 3, 5 if options.num_heads != 5 else 7)
    if own is not None and options.size is None:
        n = own.shape[-1]
        b = own.shape[0] if own.ndim > 2 and own.shape[0] > 1 else b
    if other is not None and context is not None:
        b = other.shape[0] if options.size is None and other.shape[0] > 1 else b
        context = replace(context, length=other.shape[-1])

    def alone(block: nn.Module, x: Tensor) -> Any:
        return run(block, x)

    def with_context(block: nn.Module, x: Tensor, context: Tensor) -> Any:
        return run(block, x, context)

    return replace(options, call=with_context if crossed else alone, size=(b, n), context=context)


def _users(run: Callable[..., Any], masks: tuple[Tensor | None, ...]) -> Callable[..., Any]:
    """Return a call of a user with the masks as the arguments that it has for them."""

    def made(block: nn.Module, x: Tensor, *context: Tensor) -> Any:
        given = [*context, *masks[: 1 + len(context)]]
        return run(block, x, *given[: max(calling.positional(run) - 2, len(context))])

    return made


def _by_name(block: nn.Module, asked: Asked, crossed: bool) -> Callable[..., Any]:
    """Return a call that gives masks by the names of their arguments."""
    way = calling.Way(calling.is_time_first(block), calling.sides_of(block) if crossed else None)
    given: dict[str, Tensor] = {}
    for name, value, what in zip(asked.arguments, asked.masks, WHAT, strict=True):
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


def examined(trial: Trial, asked: Asked) -> Report:
    """Return the report on a block, for one way to call it."""
    inputs = [t for t in (trial.tokens(), trial.context()) if t is not None]

    def run() -> Tensor:
        return trial.run(*inputs)

    y = run()
    if y.shape != inputs[0].shape:
        raise ValueError(
            f"diagnose_block: {trial.patient.name} must return tokens (b, n, e) as it gets them, "
            f"got {tuple(y.shape)} for x of shape {tuple(inputs[0].shape)}. Say how to call it: "
            "call=lambda block, x: block(x)[0]."
        )
    found = builds_layers(trial, run)
    if found is not None:
        return found
    extra: list[Finding] = []
    masked = any(mask is not None for mask in asked.masks)
    try:
        extra += active_dropout(trial, run)
        verdict = read_twice(trial, partial(read_once, asked=asked), masked)
    except Lost as lost:
        report = unexplained(trial, None, f"understood up to here: {lost}", extra)
        judged = not extra and bool(torch.isfinite(run()).all())
        return learned(report, trial.patient, run, inputs) if judged else report
    verdict.found += [*extra, *behaving(trial, run)]
    report = written(trial, verdict, checked=verdict.words, untried=untried(trial))
    if report.explanations and "dropout-eval" not in verdict.ids:
        [made] = report.explanations
        if "exactly" in made.evidence:
            report = replace(report, explanations=(replace(made, evidence=EVIDENCE),))
    return learned(report, trial.patient, run, inputs)
