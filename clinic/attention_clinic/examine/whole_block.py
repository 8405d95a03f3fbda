"""`diagnose_block`: name the mistakes of a block or a stack."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from inspect import signature
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from attention_clinic.bugs import BUGS, MODELS
from attention_clinic.bugs.blocks import Meant
from attention_clinic.bugs.feeds import ACTIVATIONS
from attention_clinic.engine.arguments import head_widths, needed, tables_for
from attention_clinic.engine.budget import budget, is_spent, steps_of
from attention_clinic.engine.calls import in_order
from attention_clinic.engine.doors import answered
from attention_clinic.engine.layouts import token_counts
from attention_clinic.engine.modes import is_of_types
from attention_clinic.engine.openings import Opening, openings, wants_mask
from attention_clinic.engine.patient import (
    Patient,
    check_positive,
    possible_widths,
    undisturbed,
)
from attention_clinic.engine.refusal import refused
from attention_clinic.engine.report import Report, explain, likelier
from attention_clinic.engine.unheard import flags_for, told
from attention_clinic.engine.unwrapping import unwrapped
from attention_clinic.examine.around import Around, Question, check_masked, opened
from attention_clinic.examine.asking import OTHER_RESULT, asked
from attention_clinic.examine.block_noticed import noticed_of_block, still_dropping
from attention_clinic.examine.filling import is_half
from attention_clinic.examine.first_call import heads_of
from attention_clinic.examine.fused import with_two_layers
from attention_clinic.examine.handed_mask import by_signature, handing_causal
from attention_clinic.examine.held_fast import with_layers_held
from attention_clinic.examine.imaged import call_of_images
from attention_clinic.examine.learning import learned
from attention_clinic.examine.mask_argument import is_deaf
from attention_clinic.examine.masked_block import numberless, with_fill
from attention_clinic.examine.one_block import examined_layer
from attention_clinic.examine.options import Context, check_shared
from attention_clinic.examine.stack import Stack, layers_of
from attention_clinic.examine.switched import unless_switched_off
from attention_clinic.examine.verdict import unless_one_token


@handing_causal
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
    num_kv_heads: int | None = None,
    mask: Tensor | None = None,
    context: Tensor | tuple[int, int] | int | bool | None = None,
    context_mask: Tensor | None = None,
    like: str | None = None,
    effort: float = 1.0,
) -> Report:
    """Compare a Transformer block, or a stack of them, with the course's own and name the mistakes.

    Args:
        block: maps tokens to tokens by attention and feed-forward; or a stack of such blocks.
        num_heads: number of heads, h; None reads it off the block.
        norm_first: True if it is meant to be pre-norm, False for post-norm, None accepts both.
        activation: what it is meant to be ("gelu", "gelu-tanh", "relu", "silu"); None accepts all.
        norm_eps: the eps that its norms are meant to have; None accepts all.
        causal: as in `diagnose`.
        call: how to call it: call(block, x), with a context call(block, x, context), with masks
            call(block, x, mask) or call(block, x, context, mask, context_mask), where these names
            may stand in another order; None reads the signature of `forward`.
        size: numbers of samples and tokens to try.
        num_kv_heads: number of heads of keys and values in each attention; None finds it.
        mask: of the tokens, in the shape that the block takes; True = may attend.
        context: for a decoder's block: the tokens that its cross-attention asks, as in `diagnose`;
            None gives a context to a block whose forward cannot do without.
        context_mask: of the context; True = may attend.
        like: the model whose weights it is meant to hold, as in `diagnose`.
        effort: how long to search, as in `diagnose`.

    Shape:
        x             (b, n, e)
        context       (b, j, c)
        mask          (n, n), (b, 1, 1, n) or broadcastable to (b, h, n, n)
        context_mask  (b, j), (b, 1, 1, j) or broadcastable to (b, h, n, j)
        result        (b, n, e)

    Returns:
        A `Report`: print it, or ask for `healthy` and `explanations`.

    Raises:
        ValueError: not a module, a number of heads that does not fit, or an exception inside it.
    """
    if num_heads is not None:
        check_positive("diagnose_block", num_heads=num_heads)
    if activation is not None and activation not in ACTIVATIONS:
        raise ValueError(
            f"diagnose_block: activation must be one of {sorted(ACTIVATIONS)}, "
            f"got activation={activation!r}. Pass None to accept any."
        )
    if not isinstance(block, nn.Module):
        raise ValueError(
            f"diagnose_block: block must be an nn.Module, got {type(block).__name__}. "
            "Build it first and pass the object."
        )
    if like not in (None, *MODELS):
        raise ValueError(
            f"diagnose_block: like must be one of {', '.join(MODELS)}, got like={like!r}. "
            "Pass None to accept every variant."
        )
    block = unwrapped("diagnose_block", block)
    if num_heads is None:
        with undisturbed(block):
            num_heads = heads_of("diagnose_block", block, call)
    if num_kv_heads is not None:
        check_shared("diagnose_block", num_heads, num_kv_heads)
    wanted = {"norm_first": norm_first, "activation": activation, "norm_eps": norm_eps}
    wanted |= {"causal": causal, "like": like, "effort": effort, "num_kv_heads": num_kv_heads}
    model = None if like is None else MODELS[like]
    meant = Meant(norm_first, activation, norm_eps, model, num_kv_heads)
    said, steps = Context.of("diagnose_block", context), steps_of("diagnose_block", effort)
    masks = {"mask": mask, "context_mask": context_mask}
    masked = [name for name, value in masks.items() if value is not None]
    if call is not None and masked:
        beside = ("mask",) if said is None else ("context", "mask", "context_mask")
        call = in_order("diagnose_block", call, beside, masked)
        call = opened(call, mask, context_mask)
    if call is None:
        check_masked(block, mask, context_mask)
    with undisturbed(block), budget(steps), answered("diagnose_block", block):
        patient = Patient("diagnose_block", block, call)
        patient.flags = flags_for(block, causal, mask)
        sides = patient.sides
        by_itself = said is None and call is None and sides is not None and sides.needed(block)
        said = Context() if by_itself else said
        if said is not None and call is None and sides is None:
            raise ValueError(
                f"diagnose_block: {patient.name} must take a context, got forward"
                f"{signature(block.forward)}. Say how to call it: "
                "call=lambda block, x, context: block(x, context)."
            )

        def examined(patient: Patient, said: Context | None = said, strict: bool = False) -> Report:
            x, around = _first_run(patient, num_heads, size, said, mask, context_mask)
            if strict and is_deaf(patient.anew(), x, around.context):
                raise ValueError("diagnose_block: this mask blocks every place. Try another.")
            asked = Question(patient, x, around, num_heads, meant, causal)
            report = numberless(asked)
            if report is not None:
                return report
            other = patient.anew()
            layers = layers_of(block)
            if layers:
                stack = Stack(block, patient, x, around, layers, num_heads, meant, causal)
                report = stack.report()
            if report is None:
                report = examined_layer(patient, x, around, num_heads, meant, causal)
            if report.ids == ("layers-in-forward",):
                given = {"call": call, "size": size, "context": context, **masks, **wanted}
                report = with_layers_held(
                    report,
                    other,
                    lambda: other.run(x, context=around.context),
                    lambda made: diagnose_block(made, num_heads, **given),
                )
            if not report.healthy and not report.explanations:
                given = {"call": call, "size": size, "context": context, **masks, **wanted}
                report = with_two_layers(
                    report,
                    block,
                    lambda: other.run(x, context=around.context),
                    other.module,
                    lambda made: diagnose_block(made, num_heads, **given),
                )
            report = unless_one_token(report, x.shape[1])
            report = noticed_of_block(report, other, x, around)
            if other.flags:
                report = replace(report, checked=(*report.checked, told(other.flags)))
            report = with_fill(report, replace(asked, patient=other), is_half(block))
            given = [x, *(() if around.context is None else (around.context,))]
            return learned(report, other, lambda: other.run(x, context=around.context), given)

        def tokens_first() -> Report | None:
            turned = Patient("diagnose_block", block)
            turned.time_first = True
            with suppress(ValueError):
                again = examined(turned)
                if again.healthy:
                    detail = "tokens first, samples second it is right: hand it x.transpose(0, 1)"
                    found = explain([BUGS["batch-first"]], detail=detail)
                    return Report(patient.name, False, (found,), checked=again.checked)
            return None

        def ended(report: Report) -> Report:
            patient.call, patient.time_first = call, patient.was_time_first  # as they were
            return still_dropping(report, patient, x, around)

        names = {} if call is not None else needed(block)
        try:
            x, around = _first_run(patient, num_heads, size, said, mask, context_mask)
            early = call is None and not patient.was_time_first
            early = early and _samples_meet(patient, x, around)
            turned = tokens_first() if early else None
            report = examined(patient) if turned is None else turned
        except ValueError as error:
            if call is None and masked:
                given = {"context": context if said is None else context or True, "size": size}
                given |= masks | wanted | {"call": by_signature(block, said is not None)}
                with suppress(ValueError):
                    return diagnose_block(block, num_heads, **given)
            bare = Patient("diagnose_block", block)
            free = (call, mask, context_mask) == (None, None, None) and wants_mask(
                block, lambda: _first_run(bare, num_heads, size, said, None, None)
            )
            handed = _handed(block, names, num_heads, examined, free)
            plain = call is None and (said is None or by_itself) and (size, mask) == (None, None)
            laid = call_of_images(block) if handed is None and plain else None
            if laid is not None:
                report = diagnose_block(block, num_heads, call=laid[0], size=laid[1], **wanted)
                return replace(report, checked=(*report.checked, laid[2]))
            if handed is None and not by_itself:
                raise (asked(error, "diagnose_block", block) if plain else error) from (
                    error.__cause__
                )
            return examined(Patient("diagnose_block", block), None) if handed is None else handed
        if mask is not None and not report.healthy:
            given = {"call": call, "size": size, "context": context, **masks, **wanted}
            report = unless_switched_off(
                report, block, lambda one: diagnose_block(one, num_heads, **given)
            )
        if call is not None or report.healthy:
            return ended(report)
        if by_itself and not report.explanations:
            report = likelier(report, examined(Patient("diagnose_block", block), None))
        if said is not None and sides is not None and sides.guessed:
            turned = Patient("diagnose_block", block)
            turned.sides = sides.exchanged()
            with suppress(ValueError):  # it takes them in one order only
                report = likelier(report, examined(turned))
        if not report.explanations and not report.healthy and not patient.was_time_first:
            turned = tokens_first()
            return ended(report) if turned is None else turned
        return report


def _samples_meet(patient: Patient, x: Tensor, around: Around) -> bool:
    """Say whether another sample changes what a sample gives."""
    other = x.clone()
    other[0] += torch.arange(x.shape[2]).to(x)
    first, second = (patient.run(t, context=around.context) for t in (x, other))
    change = (first - second)[1:].abs()
    return change.numel() > 0 and bool(change.max() > 1e-4)


def _handed(
    block: nn.Module,
    names: dict[str, bool],
    num_heads: int,
    examined: Callable[[Patient], Report],
    free: bool,
) -> Report | None:
    """Examine a block that does not run on tokens alone, None when nothing helps it.

    Args:
        block: what `diagnose_block` was given.
        names: the arguments that take cosines and sines.
        num_heads: h.
        examined: examines a copy of it.
        free: whether masks that block nothing may be handed over.
    """
    best: Report | None = None
    masks = list(product((True, False), openings())) if free else []  # first what is heard
    for strict, opening in ((False, None), *masks):
        if (not strict and best is not None) or (opening is None and not names):
            continue  # a mask that blocks all shows nothing where another one is taken
        report = _with_tables(block, names, num_heads, partial(examined, strict=strict), opening)
        if report is None:
            continue
        if opening is not None:
            said = ("a mask that blocks something: mask=... tries one", *report.untried)
            report = replace(report, untried=said, checked=(*report.checked, opening.words))
        if report.healthy or report.explanations or is_spent():
            return report
        best = best or report
    return best


def _with_tables(
    block: nn.Module,
    names: dict[str, bool],
    num_heads: int,
    examined: Callable[[Patient], Report],
    opening: Opening | None,
) -> Report | None:
    """Examine a block with a mask, and with cosines and sines, as `diagnose` does."""
    widths = head_widths(block, num_heads)
    reports: list[Report] = []
    for tables in tables_for(names, widths) if names else (None,):
        patient = Patient("diagnose_block", block)
        patient.tables, patient.opening = tables, opening
        try:
            reports.append(examined(patient))
        except ValueError:
            continue
        if reports[-1].healthy or reports[-1].explanations or is_spent():
            break
    return min(
        reports, key=lambda report: (not report.healthy, not report.explanations), default=None
    )


def _first_run(
    patient: Patient,
    num_heads: int,
    size: tuple[int, int] | None,
    said: Context | None,
    mask: Tensor | None,
    context_mask: Tensor | None,
) -> tuple[Tensor, Around]:
    """Return tokens of a width that the module takes, and what stands around them."""
    named = dict(patient.module.named_parameters())
    b, n = size or (2 if num_heads != 2 else 3, 5 if num_heads != 5 else 7)
    if mask is not None and size is None:
        n, b = mask.shape[-1], mask.shape[0] if mask.ndim > 2 and mask.shape[0] > 1 else b
    if context_mask is not None and size is None:
        b = context_mask.shape[0] if context_mask.shape[0] > 1 else b
        n = context_mask.shape[-2] if context_mask.ndim > 2 and context_mask.shape[-2] > 1 else n
    j = next(j for j in (6, 7, 8) if j not in (b, n, num_heads))
    if said is not None:
        b, j = said.samples or b, said.length or j
        j = j if context_mask is None else context_mask.shape[-1]
    norms = [p.shape[0] for p in named.values() if p.ndim == 1]
    common = sorted(dict.fromkeys(norms), key=lambda width: -norms.count(width))
    widths = list(dict.fromkeys([*common[:2], *possible_widths(patient.module, named)]))
    first: tuple[Exception, tuple] | None = None
    for way in ("double", "wide", "single"):
        if way == "wide" and (first is None or not is_of_types(first[0])):
            continue
        patient.wide = way == "wide"
        if way == "single":
            patient.single()
        lengths = [(n, j)]
        if said is not None and context_mask is None and mask is None and size is None:
            # a context as long as the tokens is for blocks that take no other
            lengths.append((j, j) if said.length else (n, n))
        if (said, context_mask, mask, size) == (None,) * 4:
            lengths += [(count, j) for count in token_counts(patient.module)]
        for (rows, j), width in product(lengths, widths[:6]):
            x = patient.tokens(b, rows, width)
            context = None if said is None else patient.tokens(b, j, said.width or width, seed=9)
            try:
                if patient.run(x, context=context).shape == x.shape:
                    return x, Around(context, mask, context_mask)
            except Exception as error:
                if first is None or width == (common or widths)[0]:
                    first = first or (error, tuple(x.shape))
    if first is None:
        what = f"diagnose_block: {patient.name} must map (b, n, e) to (b, n, e), got no width with"
        raise refused(f"{what} which it does.", OTHER_RESULT)
    raise patient.complain(*first) from first[0]
