"""What any attention must do: asked when no known mistake explains the output."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from einops import rearrange
from torch import Tensor

from attention_clinic.engine.begins import no_numbers
from attention_clinic.engine.grouped import GroupedReader
from attention_clinic.engine.pieces import Piece
from attention_clinic.engine.readings import Reader
from attention_clinic.engine.report import NO_NUMBERS
from attention_clinic.examine.explaining import Explaining
from attention_clinic.examine.subject import Subject


def failing(subject: Subject, random: bool) -> Iterator[str]:
    """Yield the properties that do not hold, in words.

    Args:
        subject: the module.
        random: True when two calls in eval mode differ; then nothing else can be asked.
    """
    blank = subject.patient.tokens(subject.b, subject.n, subject.e)
    y = subject.open_run(blank)
    if not y.isfinite().all():
        said = no_numbers(subject.patient.module, lambda: subject.open_run(blank), y)
        yield f"{NO_NUMBERS}{said}"
        return
    if random:
        yield "two calls in eval mode give the same output"
        return
    mask = subject.mask
    if subject.crossed:
        yield from failing_crossed(subject)
        return
    try:
        probe = subject.probe(0, mask=mask is not None)
    except Exception:
        return
    x, y = probe.x, probe.y
    if mask is not None and not y.isfinite().any():
        said = no_numbers(subject.patient.module, lambda: subject.run(x, mask), y)
        yield f"{NO_NUMBERS}with the mask {said}"
        return

    def run(other: Tensor) -> Tensor:
        return subject.inside(other) if mask is None else subject.run(other, mask)

    limit = 1e3 * subject.patient.tolerance * (1 + y.abs().max().item())
    b, n, _ = x.shape
    changed = x.clone()
    if b > 1:
        changed[0] = subject.patient.tokens(*x.shape[1:], seed=21)
        if (run(changed)[1:] - y[1:]).abs().max() > limit:
            yield "samples stay apart: changing one changes another"
    if y.shape[1] == 1 < n:  # one token alone: the other properties speak of all
        return
    later = x.clone()
    later[:, -1] = subject.patient.tokens(b, x.shape[2], seed=22)
    sees_future = (run(later)[:, :-1] - y[:, :-1]).abs().max() > limit
    if subject.options.causal and sees_future:
        yield "the past does not see the future: changing the last token changes earlier ones"
    if mask is None and sees_future:
        order = torch.arange(n).roll(2)
        if (run(x[:, order]) - y[:, order]).abs().max() > limit:
            yield "order does not matter: permuted tokens do not give permuted outputs"
    if mask is not None:
        blocked = ~probe.mask.expand(b, -1, n, n).any(dim=1).any(dim=1)  # keys that no query sees
        if blocked.any():
            padded = torch.where(blocked[..., None], subject.patient.tokens(*x.shape, seed=23), x)
            if (run(padded) - y)[~blocked].abs().max() > limit:
                yield "padding does not leak: changing blocked tokens changes others"
    if (
        subject.patient.is_module
        and subject.mode is None
        and rows_sum_to_one(subject, limit) is False
    ):
        yield "rows sum to 1: tokens with equal values do not give equal outputs"


def failing_crossed(subject: Subject) -> Iterator[str]:
    """Yield the properties of a cross-attention that do not hold, in words."""
    probe = subject.probe(0)
    x, y, context = probe.x, probe.y, probe.context
    assert context is not None, "there is one for every call of a cross-attention"
    limit = 1e3 * subject.patient.tolerance * (1 + y.abs().max().item())
    if y.shape[1] != x.shape[1]:
        yield "there is one result for each token that asks: there is one for each of the context"
        return

    def moved(other: Tensor, around: Tensor) -> Tensor:
        return (subject.patient.run(other, context=around) - y).abs()

    changed = x.clone()
    changed[0] = subject.patient.tokens(*x.shape[1:], seed=21)
    if len(x) > 1 and moved(changed, context)[1:].max() > limit:
        yield "samples stay apart: changing one changes another"
    later = x.clone()
    later[:, -1] = subject.patient.tokens(len(x), x.shape[2], seed=22)
    if moved(later, context)[:, :-1].max() > limit:
        yield "tokens that ask stay apart: changing one changes the result of another"
    if moved(x, context.flip(1)).max() > limit:
        yield "the order of the context does not matter: permuted, it gives another output"
    if moved(x, subject.patient.tokens(*context.shape, seed=23)).max() <= limit:
        yield "the context is heard: another one gives the same output"


@torch.no_grad()
def rows_sum_to_one(subject: Subject, limit: float) -> bool | None:
    """Say whether equal values give equal outputs, None when that cannot be tried.

    The value projection of the copy is made to return one vector for every token: its bias alone,
    or, without a bias, its first column where all tokens have a 1. Doubling that vector must
    double what it adds to the output, the same for all tokens.

    Args:
        subject: the module.
        limit: the largest difference that counts as equal.
    """
    piece, reader = _values(subject)
    if piece is None:
        return None
    source = reader.sources[piece.source]
    rows = torch.arange(piece.parts * reader.f)
    rows = rearrange(rows, f"({piece.layout}) -> k (h d)", k=piece.parts, h=reader.h, d=reader.d)
    rows = rows[piece.part]
    weight = source.weight if piece.form == "oi" else source.weight.T
    if source.bias is None and any(
        "norm" in type(part).__name__.lower() for part in subject.patient.module.modules()
    ):
        return None  # a norm before the projection changes the 1
    kept = weight.clone(), None if source.bias is None else source.bias.clone()
    x = subject.patient.tokens(subject.b, subject.n, subject.e, seed=24)
    x[..., 0] = 1.0
    made = []
    try:
        for times in (0.0, 1.0, 2.0):
            changed = torch.zeros_like(kept[0][rows])
            if source.bias is None:
                changed[:, 0] = times * kept[0][rows, 0]
            else:
                source.bias[rows] = times * (kept[1][rows] + 0.5)
            weight[rows] = changed
            made.append(subject.open_run(x))
    finally:
        weight.copy_(kept[0])
        if source.bias is not None:
            source.bias.copy_(kept[1])
    once, twice = made[1] - made[0], made[2] - made[0]
    if once.abs().max() <= limit or (twice - 2 * once).abs().max() > limit:
        return None  # the values do not reach the output, or something bends it
    return bool((once - once[:1, :1]).abs().max() <= limit)


def _values(subject: Subject) -> tuple[Piece | None, Reader | None]:
    """Return the value projection that the names point to."""
    try:
        readers = Explaining(subject).readers(subject.probe(0).y.shape[-1])
    except Exception:
        return None, None
    for reader, readings in readers:
        if isinstance(reader, GroupedReader):
            continue
        for reading in readings:
            piece = reader.pieces[reading.v]
            source = reader.sources[piece.source]
            known = source.role in ("v", "qkv", "kqv", "kv") and not reading.ids
            if known and piece.form in ("oi", "io") and not piece.shared and source.weight.is_leaf:
                return piece, reader
    return None, None
