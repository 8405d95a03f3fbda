"""Attention that runs in pieces: segments, groups of tokens with layers of their own, templates.

The pieces are laid into one table of scores, by who asks whom: each number knows its token, and the
column of the layer that made it says its head. What the table shows is one attention.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attention_clinic.engine.origins import normed
from attention_clinic.examine.biases import window_of
from attention_clinic.examine.judging import Said
from attention_clinic.examine.scoring import Unknown
from attention_clinic.examine.subject import Subject
from attention_clinic.examine.told import merged, origins, split
from attention_clinic.examine.walks import FACTORS, Told, around, end_of, walk
from attention_clinic.examine.written import NONE, Run, linked

CLOSE = 1e-6
EXACT = 1e-9  # with an eps, a length is another


@dataclass
class Vectors:
    """Where the vectors of queries, keys or values stand.

    Args:
        ids: of their numbers before any factor, (v, d).
        sample, token, head: of each vector, (v,).
    """

    ids: Tensor
    sample: Tensor
    token: Tensor
    head: Tensor

    def parts(self) -> tuple[Tensor, ...]:
        """Return all that is known of them."""
        return self.ids, self.sample, self.token, self.head

    def table(self, h: int, t: Tensor) -> Tensor:
        """Return numbers of the vectors (v, ...) by (b, h, n, ...); each must be there."""
        own = self.token >= 0
        if not bool(own.all()):
            return Vectors(*(part[own] for part in self.parts())).table(h, t[own])
        sizes = int(self.sample.max()) + 1, h, int(self.token.max()) + 1
        found = torch.full((*sizes, *t.shape[1:]), -1, dtype=t.dtype)
        found[self.sample, self.head, self.token] = t
        there = torch.zeros(sizes, dtype=torch.bool)
        there[self.sample, self.head, self.token] = True
        again = found[self.sample, self.head, self.token]
        if not bool(there.all()) or not torch.equal(again, t):
            raise Unknown
        return found


def _vectors(run: Run, ids: Tensor, h: int, own: Tensor | None = None) -> Vectors:
    """Return where vectors (v, d) stand; those that no token made stand nowhere."""
    if own is not None and not bool(own.all()):
        inner = _vectors(run, ids[own], h)
        every = [torch.full((len(ids), *t.shape[1:]), -1) for t in inner.parts()]
        for whole, part in zip(every, inner.parts(), strict=True):
            whole[own] = part
        return Vectors(*every)
    ids = walk(run, ids).ids
    token, sample = run.token[ids], run.sample[ids]
    if bool((token < 0).any() or (sample < 0).any()):
        raise Unknown
    if bool((token != token[:, :1]).any() or (sample != sample[:, :1]).any()):
        raise Unknown
    token, sample = token[:, 0], sample[:, 0]
    # the place of a number among those of its token
    every = ids.unique()
    place = (run.sample[every] * run.y.shape[1] + run.token[every]).sort(stable=True)
    counts = place.values.unique(return_counts=True)[1]
    if bool((counts != counts[0]).any()):
        raise Unknown
    rank = torch.full((run.tape.count,), -1)
    rank[every[place.indices]] = torch.arange(int(counts[0])).repeat(len(counts))
    kinds, head = rank[ids].unique(dim=0, return_inverse=True)
    if len(kinds) != h or len(kinds.unique()) != kinds.numel():
        raise Unknown
    return Vectors(ids, sample, token, head)


@dataclass
class Pieces:
    """All products of an attention that runs in pieces.

    Args:
        q, k, v: ids of vectors, (v, d), of all pieces one after the other.
        asks, answers: for each score the vector that asks, and the one that answers.
        weights: ids of the weights, in the order of the scores.
        mixed: ids of what was mixed, (r, d).
        rows: for each weight its row of `mixed`.
        values: for each weight its vector of values.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    asks: Tensor
    answers: Tensor
    weights: Tensor
    mixed: Tensor
    rows: Tensor
    values: Tensor


def _pieces(run: Run) -> Pieces | None:
    """Return the products of an attention that runs in pieces, None where there is none."""
    products = run.products()
    kept: dict[str, list[Tensor]] = {name: [] for name in ("q", "k", "asks", "answers")}
    start = {"q": 0, "k": 0}
    whose = torch.full((run.tape.count,), -1)  # for each score its place among all scores
    count, second = 0, []
    for number, a, b in products:
        back = [walk(run, t) for t in (a, b)]
        scores = [bool((whose[side.ids] >= 0).all()) for side in back]
        if any(scores):
            second.append((number, a, b, back, scores))
            continue
        out = run.tape.events[number].out
        out = out if out.ndim == 3 else out[None]
        s, r, c = out.shape
        whose[out] = torch.arange(count, count + out.numel()).view(out.shape)
        count += out.numel()
        asks = torch.arange(s * r).view(s, r, 1).expand(s, r, c) + start["q"]
        answers = torch.arange(s * c).view(s, 1, c).expand(s, r, c) + start["k"]
        kept["q"].append(a.flatten(0, 1)), kept["k"].append(b.mT.flatten(0, 1))
        kept["asks"].append(asks.flatten()), kept["answers"].append(answers.flatten())
        start = {"q": start["q"] + s * r, "k": start["k"] + s * c}
    ends: dict[str, list[Tensor]] = {name: [] for name in ("w", "of", "v", "mixed", "row", "value")}
    rows = values = 0
    for number, a, b, back, scores in second:
        out = run.tape.events[number].out
        out = out if out.ndim == 3 else out[None]
        if scores[0]:
            w, of, v = a, back[0].ids, b
        else:
            w, of, v, out = b.mT, back[1].ids.mT, a.mT, out.mT
        s, r, c = w.shape
        ends["w"].append(w.flatten()), ends["of"].append(whose[of].flatten())
        ends["v"].append(v.flatten(0, 1)), ends["mixed"].append(out.flatten(0, 1))
        row = torch.arange(s * r).view(s, r, 1).expand(s, r, c) + rows
        value = torch.arange(s * c).view(s, 1, c).expand(s, r, c) + values
        ends["row"].append(row.flatten()), ends["value"].append(value.flatten())
        rows, values = rows + s * r, values + s * c
    of = torch.cat(ends["of"]) if second else torch.zeros(0, dtype=torch.long)
    if not count or len(of.unique()) != count or len(of) != count:
        return None
    order = of.argsort()
    held = {name: torch.cat(parts) for name, parts in kept.items()}
    last = {name: torch.cat(parts) for name, parts in ends.items()}
    return Pieces(
        *(held["q"], held["k"], last["v"], held["asks"], held["answers"]),
        *(last["w"][order], last["mixed"], last["row"][order], last["value"][order]),
    )


def _without_padding(run: Run, found: Pieces) -> Pieces:
    """Return the pieces without the scores of keys that no token made and nobody hears."""
    made = (run.token[found.k] != NONE).any(dim=1)[found.answers]
    some = made | (run.values[found.weights] != 0)
    held = {name: getattr(found, name)[some] for name in ("asks", "answers", "weights")}
    return replace(found, **held, rows=found.rows[some], values=found.values[some])


def dense_seen(subject: Subject, run: Run, x: Tensor) -> Told | None:
    """Return what an attention does that runs in pieces, None where it is none.

    Args:
        subject: the module.
        run: what was written down.
        x: tokens, (b, n, e).
    """
    found, h, n = _pieces(run), subject.h, x.shape[1]
    if found is None:
        return None
    found = _without_padding(run, found)
    learned = [(run.token[t] == NONE).all(dim=1) for t in (found.k, found.v)]
    kept = learned[0][found.answers]  # scores of keys that no token made
    if not torch.equal(kept, learned[1][found.values]):
        raise Unknown
    q, k, v = (
        _vectors(run, found.q, h),
        *map(lambda t, own: _vectors(run, t, h, ~own), (found.k, found.v), learned),
    )
    if not walk(run, found.v[~learned[1]]).names <= FACTORS:
        raise Unknown
    asks, answers, given = found.asks[~kept], found.answers[~kept], found.values[~kept]
    same = [
        (q.sample[asks], k.sample[answers], v.sample[given]),
        (q.head[asks], k.head[answers], v.head[given]),
        (k.token[answers], k.token[answers], v.token[given]),
    ]
    if not all(torch.equal(one, three) and torch.equal(two, three) for one, two, three in same):
        raise Unknown
    columns = _columns(found, k, kept, n)
    places = q.sample[found.asks], q.head[found.asks], q.token[found.asks], columns
    if len(torch.stack(places).unique(dim=1).T) != len(columns):
        raise Unknown  # a pair of tokens meets twice
    weights = torch.zeros(len(x), h, n, int(columns.max()) + 1, dtype=torch.float64)
    weights[places] = run.values[found.weights]
    mixed = _mixed(found, q, h)
    names = _kinds(run, found, q, k, ~learned[0])
    scale = _scale(run, found, weights, places)
    said = _judged(scale, found.q.shape[1], x.shape[2])
    if "cosine" in names:
        if not said:
            raise Unknown  # a cosine does not grow with its width
        usual = math.isclose(scale, found.q.shape[1] ** 0.5, rel_tol=1e-5)  # as long as a norm's
        names, said = ["qk-norm" if usual else "cosine"], []
    sides = [t.table(h, t.ids).flatten(0, 1) for t in (q, k, v)]
    end = end_of(run, mixed.flatten(0, 1))
    if end is None:
        return None
    account = end.account(run, h, tuple(sides), mixed.flatten(0, 1), [])
    more, placed = split(account)
    said += [*more, *merged(account, placed), *origins(account)]
    causal, more = _sight(weights, n)
    layers = [run.producer[side[:, :, 0]] for side in sides]
    joint = any(bool((made != made[:, :1]).any()) for made in layers)
    names = [*names, *more, *["joint-attention"] * joint]
    words = around(subject, run, x, end, sides)
    return Told(tuple(names), said, words, end.layer, causal) if names else None


def _columns(found: Pieces, k: Vectors, kept: Tensor, n: int) -> Tensor:
    """Return who answers in each score: a token, or a key that none made, behind them."""
    columns = k.token[found.answers]
    asks, answers = found.asks[kept], found.answers[kept]
    order = (asks * (int(found.answers.max()) + 1) + answers).argsort()
    counts = asks.unique(return_counts=True)[1]
    if len(counts):
        if bool((counts != counts[0]).any()) or len(counts) != len(found.asks.unique()):
            raise Unknown
        own = torch.empty_like(order)
        own[order] = n + torch.arange(int(counts[0])).repeat(len(counts))
        columns[kept] = own
    return columns


def _mixed(found: Pieces, q: Vectors, h: int) -> Tensor:
    """Return ids of what was mixed for each query, (b, h, n, d)."""
    first = torch.full((len(found.mixed),), -1)
    first[found.rows] = found.asks
    if not torch.equal(first[found.rows], found.asks):
        raise Unknown
    sample, head, token = (t[first] for t in (q.sample, q.head, q.token))
    return Vectors(found.mixed, sample, token, head).table(h, found.mixed)


def _kinds(run: Run, found: Pieces, q: Vectors, k: Vectors, keys: Tensor) -> list[str]:
    """Return the name of norms of queries and keys; `Unknown` for what else is done to them."""
    names = []
    for made, ids in ((found.q, q.ids), (found.k[keys], k.ids[keys])):
        own, raw = run.values[made], run.values[ids]
        plain = (own * raw).sum() / raw.square().sum()
        if torch.allclose(own, plain * raw):
            names.append("")
            continue
        for kind, norm in sorted(normed(raw), key=lambda pair: pair[0] != "length"):
            times = own / norm
            if all(
                bool((times[m] - times[m][:1]).abs().max() <= EXACT * times.abs().max())
                for m in (run.producer[ids[:, 0]] == p for p in run.makers(ids[:, 0]))
            ):
                names.append("cosine" if kind == "length" else "qk-norm")
                break
        else:
            raise Unknown
    if names[0] != names[1]:
        raise Unknown
    return [names[0]] * bool(names[0])


def _scale(run: Run, found: Pieces, weights: Tensor, places: tuple) -> float:
    """Return the factor of the scores; `Unknown` where weights are no softmax of them."""
    q, k = run.values[found.q], run.values[found.k]
    own = [_by(run, t) for t in (found.q, found.k)]
    raw = torch.zeros_like(weights)
    raw[places] = (q[found.asks] * k[found.answers]).sum(-1)
    seen = weights > 0
    logs = weights.clamp(min=1e-300).log()
    count = seen.sum(-1, keepdim=True)
    if bool((count == 0).any()):
        raise Unknown
    ours, theirs = (
        ((t * seen) - (t * seen).sum(-1, keepdim=True) / count) * seen for t in (logs, raw)
    )
    factors = (ours * theirs).sum((0, 2, 3)) / theirs.square().sum((0, 2, 3))
    made = (factors[:, None, None] * raw).masked_fill(~seen, -torch.inf).softmax(dim=-1)
    if bool((made - weights).abs().max() > CLOSE):
        raise Unknown
    if bool((factors - factors.mean()).abs().max() > CLOSE):
        raise Unknown
    return float(factors.mean()) * own[0] * own[1]


def _judged(factor: float, width: int, embed_dim: int) -> Said:
    """Return the mistake of the factor of the scores."""
    if math.isclose(factor, width**-0.5, rel_tol=1e-5):
        return []
    for id, other in (("scale-missing", 1.0), ("scale-embed", embed_dim**-0.5)):
        if math.isclose(factor, other, rel_tol=1e-5):
            return [(id, "")]
    return [("scale-other", f"it multiplies by {factor:.4g}")]


def _by(run: Run, ids: Tensor) -> float:
    """Return what queries or keys, (v, d), are multiplied by after norms, one number for all."""
    value, ids = 1.0, ids[(run.token[ids] != NONE).all(dim=1)]
    for _ in range(4):
        events = list(linked(run, ids))
        if any(event.name not in ("mul", "div") for event in events):
            break
        factors = {
            t if isinstance(t, int | float) else _one(run, t) for e in events for t in e.args
        }
        factors -= {None}
        if len(factors) != 1 or len({event.name for event in events}) > 1:
            break
        factor = float(factors.pop())
        value *= factor if events[0].name == "mul" else 1 / factor
        back = torch.full((run.tape.count,), -1)
        for event in events:
            main = next(t for t in event.read() if run.depends(t))
            back[event.out] = main.expand(event.out.shape)
        ids = back[ids]
    return value


def _one(run: Run, t: Tensor) -> float | None:
    """Return the one value of a tensor that no token reaches, None for any other."""
    values = run.values[t.flatten()]
    same = isinstance(t, Tensor) and not run.depends(t) and bool((values == values[0]).all())
    return float(values[0]) if same else None


def _sight(weights: Tensor, n: int) -> tuple[bool, list[str]]:
    """Return whether no token sees later ones, and the name of who sees whom."""
    seen = weights > 0
    if not bool((seen == seen[:1, :1]).all()) or not bool(seen[..., n:].all()):
        raise Unknown
    own = seen[0, 0, :, :n]
    causal, names = _rule(own)
    return causal, [*["memory-keys"] * (seen.shape[-1] > n), *names]


def _rule(own: Tensor) -> tuple[bool, list[str]]:
    """Return whether no token sees later ones, and the name of the rule who sees whom, (n, n)."""
    n, every = len(own), torch.ones_like(own)
    if bool(own.all()):
        return False, []
    if torch.equal(own, every.tril()):
        return True, []
    causal = not bool(own.triu(1).any())
    if window_of(own[None]):
        return causal, ["window"]
    for m in range(2, n):  # segments of m
        part = torch.arange(n) // m
        within = (part[:, None] - part[None]).abs() <= 1  # the one beside it as well
        if torch.equal(own, within & every.tril() if causal else within):
            return causal, ["window"]
    first = int(own[0].sum())  # templates see each other, the others see all
    mixed = every.clone()
    mixed[:first, first:] = False
    if torch.equal(own, mixed):
        return False, ["mixed-attention"]
    raise Unknown
