"""The parts of a block: its attentions, read as programs, and its feed-forwards."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from attention_clinic.attention.facts import complete
from attention_clinic.attention.operands import arguments
from attention_clinic.attention.positions import read_turn
from attention_clinic.attention.program import Lost, Program
from attention_clinic.attention.reading import read_program
from attention_clinic.attention.rules import Judgement, judge, prove
from attention_clinic.blocks.norms import made_from
from attention_clinic.blocks.stream import Node, Stream, Whole
from attention_clinic.capture.run import ACTIVATIONS as BENDS
from attention_clinic.capture.run import FACTORS, LAYERS, NONE, SEVERAL, Run
from attention_clinic.capture.trial import Trial
from attention_clinic.catalogue.blocks import ACTIVATIONS

STEPS = 24


@dataclass
class Feed:
    """What a feed-forward does."""

    activation: str  # "" for a function without a name, "none" for none
    gated: str  # "", "gated", "gate-second" or "gate-product"
    last: bool  # whether an activation comes after the last layer
    width: int  # between its layers


@dataclass
class Masks:
    """The rules that the masks of a block may mean, () for no mask; `causal` as in `diagnose`."""

    own: tuple[Tensor, ...] = ()
    context: tuple[Tensor, ...] = ()
    causal: bool | None = None


def part_weights(run: Run, node: Node) -> frozenset[str]:
    """Return the names of the parameters of the layers inside a part."""
    read = [t for m in node.events if run.events[m].name in LAYERS for t in run.events[m].read()]
    return frozenset().union(*(made_from(run, t) for t in read if not run.depends(t)))


# ------------------------------------------------------------------------- runs of one part


def inner_run(stream: Stream, node: Node) -> Run:
    """Return the run of one part: its tokens are those of the stream that it reads."""
    run = stream.run
    reads = dict(zip(("x", "context"), node.reads, strict=False))
    if not stream.is_own(node.source):
        raise Lost("a part that reads the context alone")
    made = copy.copy(run)
    for name in ("used", "given"):
        made.__dict__.pop(name, None)
    made.y, made.context = node.ids, None
    made.tape = copy.copy(run.tape)
    made.tape.given = [one for one in run.tape.given if one[0] not in ("x", "context")]
    made.producer = run.producer.clone()
    for name, read in reads.items():
        first, last = int(read.ids.min()), int(read.ids.max())
        if last - first + 1 != read.ids.numel():
            raise Lost("a stream in pieces")
        made.tape.given.append((name, first, last + 1))
        made.producer[read.ids] = -1
    if "context" in reads:
        made.context = reads["x"].ids.shape[1], reads["context"].ids.shape[1]
    tokens = [read.ids[:, k] for read in reads.values() for k in range(read.ids.shape[1])]
    made.token = _depends(run, node.events, tokens)
    every = range(len(node.ids))
    samples = [torch.cat([r.ids[k].flatten() for r in reads.values()]) for k in every]
    made.sample = _depends(run, node.events, samples)
    return made


def _depends(run: Whole, events: list[int], changes: Iterable[Tensor]) -> Tensor:
    """Return for each number which one of the changes moves it: NONE, its place, or SEVERAL."""
    found = torch.full((run.tape.count,), NONE)
    before = run.values.nan_to_num(7e77)
    outs = torch.cat([run.events[m].out.flatten() for m in events])
    generator = torch.Generator().manual_seed(5)
    for place, ids in enumerate(changes):
        values = run.values.clone()
        values[ids] = torch.randn(ids.shape, generator=generator, dtype=values.dtype)
        values = values[run.same]
        moved = torch.zeros_like(found, dtype=torch.bool)
        moved[ids] = True
        for m in events:
            event = run.events[m]
            if any(bool(moved[t].any()) for t in event.read()):
                try:
                    new = event.again(values)
                    values[event.out] = new
                except (RuntimeError, IndexError) as error:  # sizes that depend on the numbers
                    raise Lost("operations that depend on the numbers of the tokens") from error
                values = values[run.same] if run.repeats[m] else values
                moved[event.out] = new.nan_to_num(7e77) != before[event.out]
        found[ids] = place
        mine = outs[moved[outs]]
        found[mine] = torch.where(found[mine] == NONE, place, SEVERAL)
    return found


# ------------------------------------------------------------------------------- attention


def is_attention(stream: Stream, node: Node) -> bool:
    """Return whether a part weighs tokens: it multiplies what depends on tokens by one another."""
    if len(node.reads) > 1 or not stream.is_own(node.source):
        return True
    ids, run = node.source.ids, stream.run
    for k in {0, ids.shape[1] - 1}:
        moved = _depends(run, node.events, [ids[:, k]])[node.ids] != NONE
        moved[:, k] = False
        if bool(moved.any()):
            return True
    return False


def attended(stream: Stream, node: Node, trial: Trial, masks: Masks) -> Judgement:
    """Read, judge and prove an attention of a block, which must attend as its masks say."""
    run = inner_run(stream, node)
    crossed = run.context is not None
    b, n, e = node.source.ids.shape
    j = run.context[1] if run.context is not None else n
    causal = None if crossed else masks.causal
    p = Program(trial.h, e, e // trial.h, (b, trial.h, n, j), causal=causal)
    p.asked = {**trial.options.more, "crossed": crossed, "out_proj": trial.h > 1}
    p.meant = masks.context if crossed else masks.own
    read_program(run, p)
    p.turn = read_turn(run, p)
    complete(trial, run, p, stream.run)
    judged = judge(p)
    judged.difference = prove(run, p, judged, trial.patient.tolerance)
    return judged


# ---------------------------------------------------------------------------- feed-forward


def read_feed(stream: Stream, node: Node) -> Feed:
    """Read a feed-forward of two layers, the first of which may be gated."""
    run, source = stream.run, node.source.ids
    leaves, bent = _leaves(run, node.ids, source)
    if len(leaves) != 1:
        raise Lost("the result of a feed-forward is not that of one layer")
    how = _activation(run, node.ids, leaves, bent)
    below = _entry(run, leaves[0][1])
    leaves, bent = _leaves(run, below, source)
    name = _activation(run, below, leaves, bent)
    for _, layer in leaves:
        entry = _entry(run, layer)
        if entry.shape != source.shape or not torch.equal(entry, source):
            raise Lost("a feed-forward of more than two layers")
    if how is None or name is None:
        raise Lost("a feed-forward with an unknown activation")
    name, _, gated = name.partition("/")
    return Feed(name, gated, how != "none", below.shape[-1])


def _leaves(run: Run, ids: Tensor, source: Tensor) -> tuple[list[tuple[Tensor, Tensor]], int]:
    """Return the results of layers that numbers are made from, and the number of activations.

    A result is its ids with the bias, (b, n, f), and those of the product itself.
    """
    leaves: list[tuple[Tensor, Tensor]] = []
    bent = 0
    todo = [ids]
    for _ in range(STEPS):
        if not todo:
            return leaves, bent
        at = todo.pop()
        if any(torch.equal(at, known) for known, _ in leaves):
            continue
        if torch.equal(at, source):
            raise Lost("a feed-forward of one layer")
        layer = _layer(run, at)
        if layer is not None:
            leaves.append((at, layer))
            continue
        makers = run.makers(at)
        found = {run.events[m].name for m in makers if m >= 0}
        if -1 in makers or len(found) != 1:
            raise Lost("a feed-forward in pieces")
        bent += len(found & BENDS)
        args = arguments(run, at, makers)
        todo += [a for a in args if isinstance(a, Tensor) and run.depends(a)]
    raise Lost("too many steps in a feed-forward")


def _layer(run: Run, ids: Tensor) -> Tensor | None:
    """Return the ids of the product in a layer's result, which may add a bias; None for others."""
    makers = run.makers(ids)
    names = {run.events[m].name if m >= 0 else "" for m in makers}
    if names <= {*FACTORS}:
        return ids
    if names != {"add"}:
        return None
    try:
        args = arguments(run, ids, makers)
    except Lost:
        return None
    held = [a for a in args if isinstance(a, Tensor) and run.depends(a)]
    others = [a for a in args if isinstance(a, Tensor) and not run.depends(a)]
    if len(held) != 1 or len(others) != 1 or not run.learned(others[0]):
        return None
    made = {run.events[m].name for m in run.makers(held[0]) if m >= 0}
    return held[0] if made and made <= {*FACTORS} else None


def _entry(run: Run, ids: Tensor) -> Tensor:
    """Return what a layer reads, laid out like its result."""
    rows: list[Tensor] = []
    row = torch.full((run.tape.count,), -1)
    past, weights = 0, set()
    for m in run.makers(ids):
        event = run.events[m]
        first, second = event.args[FACTORS[event.name] :][:2]
        if not isinstance(first, Tensor) or run.depends(second):
            raise Lost("a product of tokens in a feed-forward")
        weights |= made_from(run, second)
        rows.append(first.reshape(-1, first.shape[-1]))
        out = event.out.reshape(len(rows[-1]), -1)
        row[out] = torch.arange(past, past + len(out))[:, None].expand_as(out)
        past += len(out)
    if len({one.shape[1] for one in rows}) > 1 or len(weights) != 1:
        raise Lost("a feed-forward of several layers side by side")
    return torch.cat(rows)[row[ids][..., 0]]


def _activation(
    run: Run, ids: Tensor, leaves: list[tuple[Tensor, Tensor]], bent: int
) -> str | None:
    """Return the function of one or two results of layers that some numbers are."""
    made = run.values[ids]
    seen = made.isfinite()
    if not bool(seen.any()):
        raise Lost("a feed-forward of numbers that are NaN or infinite")

    def equal(t: Tensor) -> bool:
        return torch.allclose(t[seen], made[seen], rtol=1e-6, atol=1e-7)

    given = [run.values[at] for at, _ in leaves]
    if len(given) == 1:
        if equal(given[0]):
            return "none"
        ratio = (made / given[0])[seen]
        if bool((ratio - ratio.flatten()[0]).abs().max() < 1e-6):
            return "none"
        known = (name for name, function in ACTIVATIONS.items() if equal(function(given[0])))
        return next(known, "" if bent <= 1 else None)
    if len(given) != 2:
        return None
    first = int(leaves[0][0].min()) > int(leaves[1][0].min())
    up, other = given[::-1] if first else given
    if equal(up * other):
        return None
    packed = run.makers(leaves[0][1]) == run.makers(leaves[1][1])  # one layer makes both
    for name, function in ACTIVATIONS.items():
        if equal(function(up * other)):
            return f"{name}/gate-product"
        if equal(function(up) * other):
            return f"{name}/gated"
        if equal(up * function(other)):
            return f"{name}/gate-second" if packed else f"{name}/gated"
    return None
