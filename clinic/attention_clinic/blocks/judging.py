"""Read the halves and the parts of a block off a recorded call, and judge them."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor, nn

from attention_clinic.attention.examine import proved
from attention_clinic.attention.program import Lost, Program
from attention_clinic.attention.rules import Finding, Judgement, idle_weights, read_weights
from attention_clinic.blocks.formulas import Feed, made_from, read_feed
from attention_clinic.blocks.rules import WORDS, Wiring, order_of, parts_of_layer, wired
from attention_clinic.blocks.stream import Node, Stream, Whole
from attention_clinic.capture.module import CallFailed
from attention_clinic.capture.run import LAYERS, NONE, SEVERAL, Run
from attention_clinic.capture.tape import TooLong, recorded
from attention_clinic.capture.trial import Trial

LARGE = 0.02  # an eps that cannot be intended


@dataclass
class Asked:
    """What the user announced of a block, as in `diagnose_block`; None accepts all."""

    masks: tuple[Tensor | None, Tensor | None]  # of the tokens and of the context
    arguments: tuple[str | None, str | None]  # that take them
    norm_first: bool | None = None
    activation: str | None = None
    norm_eps: float | None = None
    mlp_dim: int | None = None


def read_once(trial: Trial, number: int, asked: Asked) -> Judgement:
    """Read and judge one call of a block, the first or the second size; `Lost` if that fails."""
    stream = _recorded(trial, number)
    if stream.run.y.shape != stream.shape:
        raise Lost("the result is not one row for each token")
    wiring = wired(stream, stream.node(stream.run.y))
    halves = wiring.halves
    for half in halves:
        half.weights = part_weights(stream.run, half.part)
        weighs = is_attention(stream, half.part)
        half.kind = ("cross" if len(half.part.reads) > 1 else "self") if weighs else "feed"
    last = last_only(trial, stream.run, [half.weights for half in halves])
    size, layers = _layers(trial, wiring, stream)
    order, norms = order_of(wiring, asked.norm_first)
    verdict = Judgement(found=[("stack-last-only", "")] * last + layers + norms)
    if order in ("norm-of-part", "sandwich-norm", "parallel"):
        verdict.variants.append(order)
    checked = ["residuals", order, *_norms(wiring, asked, verdict)]
    checked += _parts(trial, asked, stream, wiring, verdict)
    crossed = any(half.kind == "cross" for half in halves)
    if trial.crossed and not crossed:
        if [half.kind for half in halves] != ["self", "self", "feed"]:
            raise Lost("the result does not depend on the context")
        path = min(halves[1].weights, default="").rpartition(".")[0].split(".")[0]
        verdict.found.append(("cross-ignored", f"{path} attends to its own tokens" if path else ""))
    _shared(trial, stream, wiring, size, verdict)
    what = (
        f"self-attention and cross-attention (context {trial.c} wide)" if crossed else "attention"
    )
    checked.append(f"{what} with {trial.h} head{'s' * (trial.h > 1)}")
    lines = [f"{len(halves) // size} layers in a row"] * (len(halves) > size)
    verdict.words = (*lines, "; ".join([*checked, *trial.patient.way.words]))
    return verdict


def _recorded(trial: Trial, number: int) -> Stream:
    """Record one call and return its residual stream."""
    patient = trial.patient
    b, n, j = trial.shape(number)
    x, context = trial.tokens(number, seed=51), trial.context(number, seed=151)
    given = [("x", x), *([] if context is None else [("context", context)])]
    kept = [t for _, t in given]
    try:
        tape, y = recorded(lambda: trial.run(*kept), [*given, *patient.module.named_parameters()])
    except (CallFailed, TooLong) as failed:
        raise Lost("a run that is too long") from failed
    return Stream(Whole(tape, y), (b, n, trial.e, j, trial.c), max(patient.tolerance, 1e-9))


def _idle_part(trial: Trial, stream: Stream) -> Finding | None:
    """Return the bug of a part that no result is made from, None without one."""
    idle = idle_weights(trial, stream.run)
    if not idle:
        return None
    called = read_weights(stream.run) & set(idle)
    path = idle[0].rpartition(".")[0].split(".")[0]
    words = f"nothing uses what {path} returns" if called else f"{path} is never called"
    return "part-unused", words


def _layers(trial: Trial, wiring: Wiring, stream: Stream) -> tuple[int, list[Finding]]:
    """Return how many parts a layer has, and bugs of parts that are missing."""
    halves = wiring.halves
    kinds = [half.kind for half in halves]
    if trial.crossed and kinds == ["self", "self", "feed"]:
        return 3, []
    if len(kinds) == 1 or kinds == ["self", "cross"]:
        idle = _idle_part(trial, stream)
        if idle is None:
            raise Lost(f"a block of the {WORDS[kinds[0]]} alone")
        weighs = any(event.name == "_softmax" for event in stream.run.events)
        return len(kinds), [("attention-unused", "") if kinds == ["feed"] and weighs else idle]
    return parts_of_layer(kinds), []


def _norms(wiring: Wiring, asked: Asked, verdict: Judgement) -> list[str]:
    """Judge the norms; return their eps in words."""
    norms = [node.norm for node in wiring.norms if node.norm is not None]
    for norm in norms:
        verdict.found += [(id, norm.detail) for id in norm.ids]
    if len({norm.variants for norm in norms if not norm.ids}) > 1:
        raise Lost("norms of different kinds")
    verdict.variants += [name for norm in norms for name in norm.variants]
    values = sorted({norm.eps for norm in norms if norm.layer})
    large = [v for v in values if v >= LARGE]
    if large and asked.norm_eps is None:
        verdict.found.append(("norm-eps", f"it is {large[0]:g}, as large as a dropout probability"))
    if asked.norm_eps is not None and any(abs(v - asked.norm_eps) > 1e-3 * v for v in values):
        listed = ", ".join(f"{v:g}" for v in values)
        verdict.found.append(("norm-eps", f"it is {listed}, not {asked.norm_eps:g}"))
    return [f"eps {v:.0e}" for v in values]


def _parts(
    trial: Trial, asked: Asked, stream: Stream, wiring: Wiring, verdict: Judgement
) -> list[str]:
    """Read, judge and prove each part; return the activations."""
    activations: list[str] = []
    crossed = any(half.kind == "cross" for half in wiring.halves)
    for half in wiring.halves:
        if half.kind == "feed":
            feed = read_feed(stream.run, half.part.ids, half.part.source.ids)
            _judge_feed(feed, asked, verdict)
            activations += [feed.activation] * (feed.activation not in ("none", ""))
            continue
        judged = attended(stream, half.part, trial, asked)
        where = f"in the {WORDS[half.kind]}" if crossed else ""
        for id, words in judged.found:
            dropped = id == "mask-dropped" and half.kind == "cross"
            found = "context-mask-dropped" if dropped else id
            verdict.found.append((found, "; ".join(filter(None, (where, words)))))
        verdict.variants += judged.variants
        verdict.remarks += judged.remarks
        verdict.difference = max(verdict.difference, judged.difference)
    return list(dict.fromkeys(activations))


def _judge_feed(feed: Feed, asked: Asked, verdict: Judgement) -> None:
    """Add the bugs and variants of a feed-forward."""
    if feed.last:
        detail = "it comes after both layers" if feed.activation == "none" else ""
        verdict.found.append(("activation-last", detail))
    if feed.activation == "none":
        verdict.found.append(("activation-missing", ""))
    elif asked.activation not in (None, feed.activation):
        words = f"it is {feed.activation}, not {asked.activation}"
        verdict.found.append(("activation-other", words))
    if feed.gated:
        verdict.variants += ["gated", *(["gate-second"] if feed.gated == "gate-second" else [])]
    verdict.variants += ["quick-gelu"] * (feed.activation == "quick-gelu")
    if asked.mlp_dim not in (None, feed.width):
        raise Lost(f"its feed-forward is {feed.width} wide, not {asked.mlp_dim}")


def _shared(trial: Trial, stream: Stream, wiring: Wiring, size: int, verdict: Judgement) -> None:
    """Judge weights that are used several times."""
    weights = [half.weights for half in wiring.halves]
    layers = [weights[k : k + size] for k in range(0, len(weights), size)]
    shared = shared_layers(layers)
    if shared:
        verdict.found.append(("layers-shared", ""))
    elif len(layers) > 1 and same_start(trial, layers):
        verdict.found.append(("layers-same-init", ""))
    twice = any(a & b for one in layers for k, a in enumerate(one) for b in one[:k])
    if twice and not any(half.side for half in wiring.halves):
        verdict.found += [("part-shared", ""), *filter(None, [_idle_part(trial, stream)])]
    norms = wiring.norms
    if shared:
        norms = Wiring(wiring.halves[:size], []).norms
    names = [node.norm.weights for node in norms if node.norm is not None and node.norm.weights]
    if len(names) > len(set(names)):
        verdict.found.append(("norm-shared", ""))


def shared_layers(layers: list[list[frozenset[str]]]) -> bool:
    """Return whether some layers, given as weights of their parts, share all their weights."""
    for one, other in combinations(layers, 2):
        common = any(a & b for a, b in zip(one, other, strict=True))
        if common and frozenset().union(*one) != frozenset().union(*other):
            raise Lost("layers share the weights of some of their parts")
    return len({frozenset().union(*parts) for parts in layers}) < len(layers)


def same_start(trial: Trial, layers: list[list[frozenset[str]]]) -> bool:
    """Return whether two layers have different parameters with the same initial values."""
    held = dict(trial.patient.original.named_parameters())
    whole = [frozenset().union(*parts) for parts in layers]
    names = [[n for n in held if n in one and held[n].ndim > 1] for one in whole]
    for one, other in combinations(names, 2):
        pairs = [(held[a], held[b]) for a, b in zip(one, other, strict=False)]
        same = [torch.equal(a, b) for a, b in pairs if len(a.unique()) > 2]
        if len(one) == len(other) and one != other and same and all(same):
            return True
    return False


def last_only(trial: Trial, run: Run, parts: list[frozenset[str]]) -> bool:
    """Return whether all layers of a list run, but only the last one makes the result."""
    idle = set(idle_weights(trial, run))
    called = read_weights(run)
    for path, holder in trial.patient.module.named_modules() if idle else ():
        if not isinstance(holder, nn.ModuleList | nn.Sequential) or len(holder) < 2:
            continue
        prefix = f"{path}." if path else ""
        inside = [
            {n for n, p in child.named_parameters(prefix=f"{prefix}{name}") if p.ndim > 1}
            for name, child in holder.named_children()
        ]
        lost = all(names and names <= idle and names & called for names in inside[:-1])
        whole = all(part & inside[-1] for part in parts) and not inside[-1] & idle
        if lost and whole and len({type(child) for child in holder}) == 1:
            return True
    return False


def part_weights(run: Run, node: Node) -> frozenset[str]:
    """Return the names of the parameters of the layers inside a part."""
    read = [t for m in node.events if run.events[m].name in LAYERS for t in run.events[m].read()]
    return frozenset().union(*(made_from(run, t) for t in read if not run.depends(t)))


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
    """Return for each number which one of the changes moves it: NONE, its index, or SEVERAL."""
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


def is_attention(stream: Stream, node: Node) -> bool:
    """Return whether a part weighs tokens, or samples: what it returns depends on several."""
    if len(node.reads) > 1 or not stream.is_own(node.source):
        return True
    ids, run = node.source.ids, stream.run
    for axis, k in ((1, 0), (1, ids.shape[1] - 1), (0, 0)):
        moved = _depends(run, node.events, [ids.select(axis, k)])[node.ids] != NONE
        moved.select(axis, k).fill_(False)
        if bool(moved.any()):
            return True
    return False


def attended(stream: Stream, node: Node, trial: Trial, asked: Asked) -> Judgement:
    """Read, judge and prove an attention of a block, which must attend as its masks say."""
    run = inner_run(stream, node)
    crossed = run.context is not None
    b, n, e = node.source.ids.shape
    j = run.context[1] if run.context is not None else n
    causal = None if crossed else trial.options.causal
    p = Program(trial.h, e, e // trial.h, (b, trial.h, n, j), causal=causal)
    p.asked = {**trial.options.more, "crossed": crossed, "out_proj": trial.h > 1}
    mask, argument = asked.masks[crossed], asked.arguments[crossed]
    p.meant = trial.meant(mask, argument, trial.j if crossed else None)
    return proved(trial, run, p, stream.run)
