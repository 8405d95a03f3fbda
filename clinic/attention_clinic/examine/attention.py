"""`diagnose`: name the mistake of an attention that runs and has every shape right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from inspect import signature
from typing import Any, Literal

import torch
from torch import Tensor, nn

from attention_clinic.bugs import BUGS, VARIANTS, Built, Made, globals_read
from attention_clinic.engine.arguments import head_widths, needed, tables_for
from attention_clinic.engine.budget import Spent, budget, is_spent, steps_of
from attention_clinic.engine.doors import answered
from attention_clinic.engine.modes import JoinHeads, NoDropout
from attention_clinic.engine.openings import openings, wants_mask
from attention_clinic.engine.patient import same, undisturbed
from attention_clinic.engine.report import Report, explain, likelier
from attention_clinic.engine.unwrapping import unwrapped
from attention_clinic.examine.adapters import folded
from attention_clinic.examine.as_block import as_block
from attention_clinic.examine.asking import asked, other_result
from attention_clinic.examine.bare import WithLayers
from attention_clinic.examine.explaining import Explaining
from attention_clinic.examine.filling import fill_remark, misfits
from attention_clinic.examine.first_call import (
    Way,
    check_heads,
    differs,
    forget,
    found_out,
    heads_of,
    tryable,
    wants_context,
)
from attention_clinic.examine.followed import Followed, as_followed, seen_in_run
from attention_clinic.examine.foreign import with_foreign
from attention_clinic.examine.given_apart import given_apart
from attention_clinic.examine.handed_mask import handing_causal
from attention_clinic.examine.held_fast import held_fast
from attention_clinic.examine.in_steps import seen_in_steps
from attention_clinic.examine.laid import by_layout, kernels_of
from attention_clinic.examine.learning import learned_with
from attention_clinic.examine.masked import with_mask
from attention_clinic.examine.noticed import ignores, noticed
from attention_clinic.examine.options import Context, Options
from attention_clinic.examine.righted import part_by_part
from attention_clinic.examine.searching import search, with_its_own_heads, with_other_heads
from attention_clinic.examine.showing import shown
from attention_clinic.examine.standing import turned_alike
from attention_clinic.examine.subject import Subject, Unreadable
from attention_clinic.examine.switched import unless_switched_off
from attention_clinic.examine.tried_mask import with_tried_mask
from attention_clinic.examine.vanishing import vanishing
from attention_clinic.examine.verdict import (
    as_meant,
    built_in,
    explanations_of,
    remarks_of,
    unexplained,
    unmasked,
    untried,
    variants_of,
    what,
)
from attention_clinic.examine.wired import EXAMINERS


@handing_causal
def diagnose(
    module: nn.Module | Callable[..., Any],
    num_heads: int | None = None,
    *,
    mask: Tensor | None = None,
    causal: bool | None = None,
    call: Callable[..., Any] | None = None,
    weights: dict[str, Tensor] | None = None,
    embed_dim: int | None = None,
    size: tuple[int, int] | None = None,
    out_proj: bool | None = None,
    true_means: Literal["attend", "block"] | None = None,
    context: Tensor | tuple[int, int] | int | bool | None = None,
    num_kv_heads: int | None = None,
    like: str | None = None,
    cache: Callable[[], Any] | None = None,
    effort: float = 1.0,
) -> Report:
    """Compare an attention with a faithful one and name the mistakes that explain it.

    A copy of the module gets random weights and random tokens. Its own parameters are read as the
    projections of the reference, whatever they are called; then each known mistake is put into
    the reference, then each pair. An explanation is reported only when it gives the same output.

    >>> print(diagnose(my_attention, num_heads=8))
    >>> assert_healthy(my_attention, num_heads=8)  # in your tests

    Args:
        module: maps tokens to tokens by attention, or takes queries, keys and values under such
            names; stays as it is. A function of tokens needs `weights`.
        num_heads: number of heads, h; None reads it off the module.
        mask: a mask to call the module with, in the shape that it takes. Bool: True = may
            attend; integers, and floats that are all 0 or 1: 1 = may attend; other floats are
            added to the scores: 0 = may attend.
        causal: True when token i must see tokens 0 to i only (what needs a mask gets a causal
            one), False when it must see all; None accepts both.
        call: how to call the module: call(module, x), or call(module, x, mask), with a context
            call(module, x, context) or call(module, x, context, mask); None reads the signature
            of `forward`. Its result is a tensor, or begins with one.
        weights: the weights of a function, by name: {"q": ..., "k": ..., "v": ..., "out": ...}.
        embed_dim: width of a token, e; None finds it.
        size: numbers of samples and tokens to try, for modules that take no others.
        out_proj: True when it must have an output projection of its own, False when that stands
            outside; None accepts both and makes a remark.
        true_means: what True, or 1, means in the mask, "attend" or "block"; None is "attend",
            unless the argument is named after what it blocks, such as key_padding_mask.
        context: for a cross-attention, whose keys and values are made of other tokens: a tensor
            (b, j, c), (length j, width c), a width c, or True for tokens as wide as x. Only its
            sizes matter. None examines it as a self-attention.
        num_kv_heads: number of heads of keys and values, g; None finds it.
        like: the model whose weights it is meant to hold ("llama", "qwen3", "gpt-j", ...): what
            that model does otherwise is then a mistake, not a variant; None accepts all.
        cache: makes an empty cache of keys and values. The module is then called twice, on the
            first tokens and on the others, with one cache; `call` gets it in the place of a mask.
        effort: how long to search: 1 tries what takes seconds, 10 ten times as many steps.

    Shape:
        x        (b, n, e)
        context  (b, j, c)
        mask     (n, n), (b, n), (b, 1, 1, n), (b, 1, n, n) or broadcastable to (b, h, n, n);
                 with a context (b, j), (b, 1, 1, j), (b, 1, n, j) or broadcastable to (b, h, n, j)
        result   (b, n, e)

    Returns:
        A `Report`: print it, or ask for `healthy` and `explanations`.

    Raises:
        ValueError: not a module or function, a number of heads that does not fit, weights that
            cannot be read, or an exception inside the module.
    """
    module, steps = unwrapped("diagnose", module), steps_of("diagnose", effort)
    options = Options(
        1 if num_heads is None else num_heads,
        *(mask, causal, call, weights, size, out_proj, true_means),
        context=Context.of("diagnose", context),
        num_kv_heads=num_kv_heads,
        like=like,
        cache=cache,
    ).checked()
    with undisturbed(module):
        free = weights is None and cache is None
        bare = kernels_of(module, num_heads, options, embed_dim) if free else ()
        own = not free or isinstance(module, nn.Module) or not callable(module)
        if num_heads is None and not bare and own:
            options = replace(options, num_heads=heads_of("diagnose", module, call))

    def again(way: Way) -> Report:
        layout, found, width = way
        return opened(module, replace(options, layout=layout, size=found), width)

    with undisturbed(module), budget(steps), answered("diagnose", module):
        try:
            if bare:
                given = replace(options, call=None)
                return by_layout(bare, lambda one, more: opened(one, replace(given, **more), None))
            report = opened(module, options, embed_dim)
            return unless_switched_off(report, module, lambda m: opened(m, options, embed_dim))
        except ValueError as error:
            free = (call, weights, size, options.context, cache, mask) == (None,) * 6
            if free and not bare and wants_context(module, error):
                try:
                    return opened(module, replace(options, context=Context()), embed_dim)
                except ValueError as beside:
                    error = beside
            found = found_out(module, embed_dim, again) if free and not bare else None
            if found is not None:
                return found
            raise (asked(error, "diagnose", module) if free else error) from error.__cause__


def both_ways(subject: Subject, embed_dim: int | None) -> Report:
    """Examine a module, and a second time with the sides exchanged where no name says who asks."""
    other, call = subject.options.context, subject.options.call
    sides = subject.patient.sides
    if other is not None and call is None and sides is None:
        raise ValueError(
            f"diagnose: {subject.patient.name} must take a context, got forward"
            f"{signature(getattr(subject.original, 'forward', subject.original))}. "
            "Say how to call it: call=lambda module, x, context: module(x, context)."
        )
    subject.find_width(embed_dim, join_heads)
    report = with_tried_mask(subject, given_apart(subject, examined(subject), examined), examined)
    if other is None or call is not None or report.healthy or not sides.guessed:
        return report
    turned = Subject(subject.original, subject.options)
    turned.patient.sides = sides.exchanged()
    try:
        turned.find_width(embed_dim, join_heads)
        return likelier(report, examined(turned))
    except ValueError:
        return report


def with_tables(
    module: nn.Module | Callable[..., Any], options: Options, embed_dim: int | None
) -> Report:
    """Examine a module, and hand over cosines and sines where it does not run without.

    Nobody but the module's own code says how they must lie: the layout with which the module is
    right, or has the fewest mistakes, is the one that it takes.
    """
    subject = Subject(module, options)
    names = {} if options.call else needed(module)
    if not names or not any(names.values()):
        try:
            return both_ways(subject, embed_dim)
        except ValueError:
            if not names:
                raise
    reports: list[Report] = []
    failed: ValueError | None = None
    ways = tables_for(names, head_widths(module, subject.h))
    handed = tryable(subject, embed_dim, "tables", ways)
    for most in (0, options.most):  # right with some table, before mistakes with any are looked for
        shape = None  # of the tables with which it was explained: then only their layout is open
        for tables in list(handed):
            if shape not in (None, replace(tables, layout="")):
                continue
            subject = Subject(module, replace(options, tables=tables, most=most))
            try:
                report = both_ways(subject, embed_dim)
            except ValueError as error:
                failed = failed or error
                handed.remove(tables)
                continue
            if report.healthy or is_spent():
                return report
            if most or not options.most:
                reports.append(report)
            if report.explanations and most:
                shape = replace(tables, layout="")
    if not reports:
        assert failed is not None, "there is a way to hand tables over"
        raise failed
    return min(reports, key=lambda report: (not report.explanations, len(report.ids)))


def opened(
    module: nn.Module | Callable[..., Any], options: Options, embed_dim: int | None
) -> Report:
    """Examine a module, and hand over a mask that blocks nothing where it does not run without."""
    try:
        return with_tables(module, options, embed_dim)
    except ValueError:
        free = options.mask is None and options.call is None and options.cache is None
        bare = Subject(module, options)
        if not free or not wants_mask(module, lambda: bare.find_width(embed_dim, lambda *_: False)):
            raise
        fitting = tryable(bare, embed_dim, "opening", openings())
        for most in (0, options.most):  # right with some mask, before mistakes with any
            best: Report | None = None
            for opening in list(fitting):
                given = replace(options, opening=opening, most=most)
                try:
                    report = with_tables(module, given, embed_dim)
                except ValueError:
                    # by identity: a mask of False is equal to one of 0.0
                    fitting = [one for one in fitting if one is not opening]
                    continue
                shut = "ignores-input" in report.ids  # as all do where a mask hides every token
                if report.healthy or (report.explanations and not shut) or is_spent():
                    return report
                best = report if best is None or "ignores-input" in best.ids else best
        if best is None:
            raise
        return best


def join_heads(subject: Subject, shape: tuple[int, int, int]) -> bool:
    """Say whether the module runs, and is explained, once its heads are joined for it."""
    for axis in (1, 2):
        repair = JoinHeads(subject.h, axis)
        subject.mode = lambda repair=repair: repair
        try:
            y = subject.blank(shape)
        except Exception:
            continue
        if repair.calls and y.shape[:2] == shape[:2]:
            subject.b, subject.n, subject.e = shape
            try:
                explained = bool(Explaining(subject).explained(most=1))
            except (Unreadable, ValueError, Spent):
                explained = False
            if explained:
                subject.extra.append("heads-not-joined")
                return True
    subject.mode = None
    return False


def examined(subject: Subject) -> Report:
    """Examine a module that runs, and say what was found until the budget is spent."""
    try:
        report = part_by_part(subject, found_in)
        return with_foreign(with_its_own_heads(subject, report, found_in), subject)
    except Spent as spent:
        said = unexplained(subject, stopped=spent.steps)
        return seen_in_run(subject, lambda: with_other_heads(subject, said))


def found_in(subject: Subject) -> Report:
    """Examine a module that runs, and say what was found."""
    name, x = subject.patient.name, subject.patient.tokens(subject.b, subject.n, subject.e)
    with Built() as built:  # the call that found the width was the first: nothing is lazy now
        y = subject.open_run(x)
    if built.kinds:
        return held_fast(subject, built_in(subject, built), found_in)
    blind = vanishing(subject, y)
    if blind is not None:
        return blind
    if not subject.crossed and ignores(subject, y):
        read = globals_read(subject.original)
        detail = f"forward reads {' and '.join(read)} from outside the module" if read else ""
        found = explain([BUGS["ignores-input"]], detail=detail)
        return Report(name, False, (found,), checked=("two inputs",), untried=untried(subject))
    if y.ndim == 4 and y.shape[1] == 1 and y.shape[0] == subject.b and subject.h == 1:
        y = y[:, 0]
    counts = (subject.n, subject.j) if subject.crossed else (subject.n, 1)
    if y.ndim != 3 or y.shape[0] != subject.b or y.shape[1] not in counts:
        raise other_result(name, x, y)
    check_heads(subject, y)
    if differs(subject, x, y):
        subject.mode = NoDropout
        if not same(subject.probe(0).y, subject.probe(0).y):
            subject.mode = None
            with Made() as made:
                subject.open_run(x)
            return built_in(subject, made) if made.kinds else unexplained(subject, random=True)
        subject.extra.append("dropout-eval")
        forget(subject)
    random = subject.patient.is_module and not subject.own_weights
    low = folded(subject.patient.module, lambda: subject.open_run(x)) if random else []
    try:
        report = as_block(subject) if subject.options.most else None
        if report is not None:
            return report
        matches = search(subject)
    except Followed as followed:
        return as_followed(subject, followed.seen)
    except Unreadable:
        said = "no weights that could be the projections of queries, keys and values"
        report = Report(name, False, checked=(said,), untried=untried(subject))
        return seen_in_run(subject, lambda: report)
    if not matches and subject.options.most:
        return seen_in_steps(subject, lambda: with_other_heads(subject, unexplained(subject)))
    if not matches:
        return Report(name, False)
    blind = shown(subject, [pair for pair in matches if not pair[1].ids])
    if blind is not None:
        return blind
    checked = [what(subject, matches[0][1])]
    checked += [f"with what low-rank layers add to their weights: {', '.join(low)}"] * bool(low)
    blocks_nothing = False
    if subject.mask is not None:
        found_with = with_mask(subject, matches)
        if not found_with.matches:
            return seen_in_steps(subject, lambda: unmasked(subject, matches))
        matches, blocks_nothing = found_with.matches, found_with.blocks_nothing
        checked += found_with.checked
    remarked = fill_remark(misfits(subject))  # or one more mistake, of which the subject hears
    said = [*turned_alike(subject, matches), *noticed(subject, matches)]
    explanations = explanations_of(matches, subject.extra, "; ".join(said))
    explanations = [as_meant(subject, one) for one in explanations]
    remarks = remarks_of(subject, matches, remarked)
    only_scale = [explanation.ids for explanation in explanations] == [("scale-missing",)]
    if only_scale and "relative-bias" in subject.bias_names:
        words = "right where the queries' weights start smaller instead, as in T5, wrong elsewhere"
        explanations, remarks = [], (*remarks, replace(explanations[0], detail=words))
    checked += ["in single precision"] * (subject.patient.dtype == torch.float32)
    report = Report(
        name,
        not explanations,
        tuple(explanations),
        checked=tuple(checked),
        untried=untried(subject, blocks_nothing),
        remarks=remarks,
        variants=(*variants_of(matches), *(VARIANTS[name] for name in subject.bias_names)),
        tolerance=subject.patient.tolerance,
    )
    learns = not isinstance(subject.original, WithLayers)
    return report if subject.options.cache else learned_with(subject, report, learns)


EXAMINERS["attention"] = diagnose
