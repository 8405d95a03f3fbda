"""Read the halves and the parts of a block off a recorded call, and judge them."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations

import torch
from torch import nn

from attention_clinic.attention.facts import idle_weights
from attention_clinic.attention.program import Lost
from attention_clinic.blocks.parts import (
    Feed,
    Masks,
    attended,
    is_attention,
    part_weights,
    read_feed,
)
from attention_clinic.blocks.rules import WORDS, Found, Wiring, layers_of, order_of, wired
from attention_clinic.blocks.stream import Stream, Whole
from attention_clinic.capture.module import CallFailed
from attention_clinic.capture.run import Run
from attention_clinic.capture.tape import TooLong, recorded
from attention_clinic.capture.trial import Trial

LARGE = 0.02  # an eps that nobody means


@dataclass
class Asked:
    """What the user announced of a block, as in `diagnose_block`; None accepts all."""

    masks: Masks
    norm_first: bool | None = None
    activation: str | None = None
    norm_eps: float | None = None
    mlp_dim: int | None = None


@dataclass
class Verdict:
    """What one run shows."""

    found: list[Found] = field(default_factory=list)  # bugs and where they are
    variants: list[str] = field(default_factory=list)
    words: tuple[str, ...] = ()  # what was checked
    difference: float = 0.0  # the largest one of a proof
    remarks: list[Found] = field(default_factory=list)  # bugs that may be meant

    @property
    def ids(self) -> list[str]:
        """The bugs, once each."""
        return list(dict.fromkeys(id for id, _ in self.found))


def read_once(trial: Trial, asked: Asked, number: int) -> Verdict:
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
    verdict = Verdict([("stack-last-only", "")] * last + layers + norms)
    if order in ("norm-of-part", "sandwich-norm", "parallel"):
        verdict.variants.append(order)
    if any(half.scaled for half in halves):
        if not all(half.scaled for half in halves):
            raise Lost("some parts are scaled")
        verdict.variants.append("layer-scale")
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
    verdict.variants = list(dict.fromkeys(verdict.variants))
    return verdict


def _recorded(trial: Trial, number: int) -> Stream:
    """Record one call and return its stream."""
    patient = trial.patient
    b, n, j = trial.shape(number)
    x, context = trial.tokens(number, seed=51), trial.context(number, seed=151)
    given = [("x", x), *([] if context is None else [("context", context)])]
    kept = [t for _, t in given]
    try:
        tape, y = recorded(lambda: trial.run(*kept), [*given, *patient.module.named_parameters()])
    except (CallFailed, TooLong) as failed:
        raise Lost("a run that is too long") from failed
    classes = {
        f"{path}.{name}" if path else name: type(part).__name__
        for path, part in patient.module.named_modules()
        for name, _ in part.named_parameters(recurse=False)
    }
    tolerance = max(patient.tolerance, 1e-9)
    return Stream(Whole(tape, y), (b, n, trial.e, j, trial.c), tolerance, classes)


def _idle_part(trial: Trial, stream: Stream) -> Found | None:
    """Return the bug of a part that no result is made from, None without one."""
    idle = idle_weights(trial, stream.run)
    if not idle:
        return None
    called = called_weights(stream.run) & set(idle)
    path = idle[0].rpartition(".")[0].split(".")[0]
    words = f"nothing uses what {path} returns" if called else f"{path} is never called"
    return "part-unused", words


def _layers(trial: Trial, wiring: Wiring, stream: Stream) -> tuple[int, list[Found]]:
    """Return how many parts a layer has, and bugs of parts that are missing or in another order."""
    halves = wiring.halves
    kinds = [half.kind for half in halves]
    if wiring.gaps and len(kinds) != 1:
        raise Lost("the stream is added to itself")
    if trial.crossed and kinds == ["self", "self", "feed"]:
        return 3, []
    if len(kinds) == 1 or kinds == ["self", "cross"]:
        idle = _idle_part(trial, stream)
        if idle is None:
            raise Lost(f"a block of the {WORDS[kinds[0]]} alone")
        weighs = any(event.name == "_softmax" for event in stream.run.events)
        return len(kinds), [("attention-unused", "") if kinds == ["feed"] and weighs else idle]
    if kinds and kinds[0] == "feed" and halves[0].side:
        kinds = kinds[::-1]
    return layers_of(kinds)


def _norms(wiring: Wiring, asked: Asked, verdict: Verdict) -> list[str]:
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
    trial: Trial, asked: Asked, stream: Stream, wiring: Wiring, verdict: Verdict
) -> list[str]:
    """Read, judge and prove each part; return the activations."""
    activations: list[str] = []
    crossed = any(half.kind == "cross" for half in wiring.halves)
    for half in wiring.halves:
        if half.kind == "feed":
            feed = read_feed(stream, half.part)
            _judge_feed(feed, asked, verdict)
            activations += [feed.activation] * (feed.activation not in ("none", ""))
            continue
        judged = attended(stream, half.part, trial, asked.masks)
        where = f"in the {WORDS[half.kind]}" if crossed else ""
        details = "; ".join(filter(None, [where, *judged.details]))
        for id in judged.ids:
            dropped = id == "mask-dropped" and half.kind == "cross"
            verdict.found.append(("context-mask-dropped" if dropped else id, details))
        verdict.variants += judged.variants
        verdict.remarks += judged.remarks
        verdict.difference = max(verdict.difference, judged.difference)
    return list(dict.fromkeys(activations))


def _judge_feed(feed: Feed, asked: Asked, verdict: Verdict) -> None:
    """Add the bugs and variants of a feed-forward."""
    if feed.last:
        detail = "it comes after both layers" if feed.activation == "none" else ""
        verdict.found.append(("activation-last", detail))
    if feed.activation == "none":
        verdict.found.append(("activation-missing", ""))
    elif asked.activation not in (None, feed.activation):
        gelus = {asked.activation, feed.activation} == {"gelu", "gelu-tanh"}
        words = f"it is {feed.activation}, not {asked.activation}"
        verdict.found.append(("gelu-tanh" if gelus else "activation-other", words))
    if feed.gated == "gate-product":
        verdict.found.append(("gate-product", ""))
    elif feed.gated:
        verdict.variants += ["gated", *(["gate-second"] if feed.gated == "gate-second" else [])]
    verdict.variants += ["quick-gelu"] * (feed.activation == "quick-gelu")
    if asked.mlp_dim not in (None, feed.width):
        raise Lost(f"its feed-forward is {feed.width} wide, not {asked.mlp_dim}")


def _shared(trial: Trial, stream: Stream, wiring: Wiring, size: int, verdict: Verdict) -> None:
    """Judge weights that are used in several places."""
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


# ----------------------------------------------------------------------------------- stacks


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
    """Return whether all layers of a list run, and the result is made by the last one alone."""
    idle = set(idle_weights(trial, run))
    called = called_weights(run)
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


def called_weights(run: Run) -> set[str]:
    """Return the names of the parameters that an operation of the run reads."""
    read = torch.zeros(run.tape.count, dtype=torch.bool)
    for event in run.events:
        for t in event.read():
            read[t.flatten()] = True
    return {name for name, start, end in run.tape.given if bool(read[start:end].any())}
