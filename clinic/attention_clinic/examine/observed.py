"""The steps of an attention that was followed, put together: is each right, and what is it called?

Each step must be that of a right attention, or a variant that has a name, or a mistake that can be
said; what comes out must be what the module returns.
"""

from __future__ import annotations

import math
import re

import torch
from torch import Tensor

from attention_clinic.bugs import FOLLOWED
from attention_clinic.engine.products import Event
from attention_clinic.examine.biases import names_of, window_of
from attention_clinic.examine.ended import ALONE, OUT_BENT, ended, unsunk
from attention_clinic.examine.factored import each_by_its_width, grown, norms_of, scaled
from attention_clinic.examine.score_law import Law, kind_of_places, law_of, unshifted
from attention_clinic.examine.subject import Subject
from attention_clinic.examine.traced import (
    Lost,
    Run,
    Seen,
    Side,
    answering,
    by_head,
    products_of,
    sides_of_product,
)
from attention_clinic.examine.turning_law import BASES, is_rounded, names_of_turn
from attention_clinic.examine.unnormed import bare_sides, needs_context
from attention_clinic.examine.wrong_turns import Wrong, wrong_turn

BLOCKED = -1e4
UNSHIFTED = "relative-unshifted"
PLACED = {"axes": "decomposed-positions", "key": UNSHIFTED}  # a law of the queries, and its name
RELATIVE = re.compile(r"(^|[._])(rel(?!u)|dist|e_?r$)", re.IGNORECASE)
HARD = {"relative-keys", "relative-values", "attention-sink", "alibi", "relative-bias"}


def seen_in(subject: Subject, run: Run) -> Seen:
    """Return what one call shows."""
    caps, norms = subject.known["caps"], subject.known["query_norms"]
    if caps is not None and caps.said:
        raise Lost  # it says what it is, and the search asks whether it does so
    before, weigh, after = products_of(run)
    names: list[str] = []
    asked, answered, parts, widths = _asking(run, before)
    raw = sum(parts[1:], parts[0])
    given, made, sink = unsunk(run, weigh, raw.shape[-1])
    scores = _way(given, run, raw)
    seen = _allowed(scores)
    causal, more = _sight(seen, answered.kept)
    names += more
    mixed_sides = run.both.origins and scores.shape[-1] == run.n + run.j
    names += ["context-and-self"] * bool(mixed_sides)
    heads, keys = asked.heads, answered.heads
    law = law_of(scores, raw, heads, keys, seen) or law_of(
        unshifted(scores, raw, seen), raw, heads, keys, seen
    )
    law = law or each_by_its_width(scores, parts, (asked, answered), widths, seen)
    if law is None:
        raise Lost
    wrong = _wrongly(subject, asked, answered)
    hidden = wrong is not None and bool(norms_of(asked, answered))  # a factor beside their weights
    if norms is not None and norms.sure and not hidden:
        raise Lost  # as above
    names += _turns(subject, asked, answered) if wrong is None else []
    names += _of_law(subject, law, seen, asked, answered)
    filled = scores.double().masked_fill(~seen, -torch.inf)
    ways, more = _weighed(weigh.said, filled, _way(made, run, raw), sink)
    names += [*more, *["attention-sink"] * (sink is not None)]
    mixed, values, weights = _mixing(run, after, ways)
    if values.kept != answered.kept:
        raise Lost
    names += _grouped(answered, values)
    _apart(run, asked, answered, values)
    names += _latent(run, asked, answered, values)
    names += ["value-norm"] * any(o.norm for row in values.origins for o in row)
    end, words = ended(subject, run, mixed, values, weights)
    names += end
    ids, detail = scaled(subject, run, law, asked, answered) if not hidden else ((), "")
    if ids and run.grown:
        raise Lost  # the number between two layers may be meant for it
    if not math.isclose(values.factor, 1, rel_tol=1e-6):
        more = grown(subject, values)
        ids, detail = (*ids, more[0]), "; ".join(filter(None, (detail, more[1])))
    if wrong is not None:
        ids, detail = (*wrong[0], *ids), "; ".join(filter(None, (wrong[1], detail)))
    bare = "" if needs_context(subject.original) else bare_sides(run, asked, answered, values)
    if bare:
        ids, detail = (*ids, "norm-missing"), "; ".join(filter(None, (detail, bare)))
    for wrongly in {UNSHIFTED, OUT_BENT} & set(names):
        names, ids = [name for name in names if name != wrongly], (wrongly, *ids)
    if subject.options.causal is True and not causal:
        ids += ("mask-not-causal",)
    if subject.options.causal is False and causal:
        raise Lost
    read = [*run.reads.values(), *asked.origins, *answered.origins]
    ids += ("rms-eps",) * any(o.norm == "rms-eps" for origins in read for o in origins)
    turned = asked.turned
    beyond = bool(FOLLOWED & set(names)) or (turned is not None and is_rounded(turned[0]))
    beyond |= wrong is not None or bool({UNSHIFTED, OUT_BENT} & set(ids))
    beyond |= not ids and bool(HARD & set(names))
    beyond |= not ids and turned is not None  # after norms of any name, by any base
    names, alone = list(dict.fromkeys(names)), ALONE in words
    return Seen(tuple(names), ids, detail, causal, words, alone, beyond, law)


def _asking(run: Run, before: list[Event]) -> tuple[Side, Side, list[Tensor], list[int]]:
    """Return queries and keys of all products of two things that layers made, beside each other.

    Beside them, the products, and the width of each.
    """
    found = []
    for event in before:
        try:
            found.append(next(sides_of_product(run, event)))
        except (Lost, StopIteration):  # a table's, perhaps: then the law of the scores has it
            continue
    if not found:
        raise Lost
    (asked, answered, _), *rest = found
    for q, k, _ in rest:
        if q.offset is not None or asked.offset is not None or (q.turned and asked.turned):
            raise Lost
        asked, answered = _beside(asked, q), _beside(answered, k)
    widths = [q.heads.shape[-1] for q, _, _ in found]
    return asked, answered, [made for _, _, made in found], widths


def _beside(one: Side, other: Side) -> Side:
    """Return two sides as one that is as wide as both."""
    turned, width = one.turned, one.heads.shape[-1]
    if other.turned is not None:
        turned = other.turned[0], [c + width for c in other.turned[1]]
    if not math.isclose(one.factor, other.factor, rel_tol=1e-6):
        raise Lost
    rows = [[*a, *c] for a, c in zip(one.origins, other.origins, strict=True)]
    return Side(torch.cat([one.heads, other.heads], -1), rows, turned, one.factor)


def _way(t: Tensor, run: Run, like: Tensor) -> Tensor:
    """Return scores or weights by head, laid out as the products of queries and keys."""
    ways = [way for way in by_head(t, t.shape[:-2], run.b, run.h) if way.shape == like.shape]
    if not ways:
        raise Lost
    if len(ways) == 1 or t.shape[0] == run.b:
        return ways[0]
    shown = [(way - like).masked_fill(way < BLOCKED, 0.0).abs().mean() for way in ways]
    return ways[0] if shown[0] <= shown[1] else ways[1]


def _allowed(scores: Tensor) -> Tensor:
    """Return which places are seen, (h, i, j), the same for all samples."""
    seen = scores > BLOCKED
    if not bool((seen == seen[:1]).all()) or not bool(seen.any(-1).all()):
        raise Lost
    return seen[0]


def _sight(seen: Tensor, kept: tuple[int, ...]) -> tuple[bool, list[str]]:
    """Return whether no token sees later ones, and the name of a window."""
    shown = [place for place in range(seen.shape[2]) if place not in kept]
    if not bool(seen[..., list(kept)].all()):
        raise Lost
    own, names = seen[..., shown], ["memory-keys"] * bool(kept)
    if bool(own.all()):
        return False, names
    if own.shape[1] != own.shape[2]:
        raise Lost
    if bool((own == torch.ones_like(own).tril()).all()):
        return True, names
    if not window_of(own):
        raise Lost
    return not bool(own.triu(1).any()), [*names, "window"]


def _wrongly(subject: Subject, asked: Side, answered: Side) -> Wrong | None:
    """Return what is wrong with a turn that is none; lose where one is not understood."""
    sides = [side.turned[0] if side.turned is not None else None for side in (asked, answered)]
    turning = subject.known["turning"]
    told = frozenset() if turning is None else turning.told | {*turning.bases}
    wrong = wrong_turn(*sides, told) if any(side is not None for side in sides) else None
    if wrong is None and any(side is not None and side.matrices is not None for side in sides):
        raise Lost
    return wrong


def _turns(subject: Subject, asked: Side, answered: Side) -> list[str]:
    """Return the names of how queries and keys are turned, which must be the same way."""
    turning = subject.known["turning"]
    if asked.turned is None and answered.turned is None:
        if turning is not None and turning.declared:
            raise Lost
        return []
    if asked.turned is None or answered.turned is None:
        raise Lost
    (one, numbers), (other, others) = asked.turned, answered.turned
    if numbers != others or one.layout != other.layout or one.turn.shape != other.turn.shape:
        raise Lost
    if bool((one.turn - other.turn).abs().max() > 1e-5):
        raise Lost
    layout = subject.patient.layout
    grid = layout.grid(subject.n) if layout is not None and layout.grids else None
    bases = turning.bases if turning is not None and turning.declared else BASES
    names = names_of_turn(one, asked.heads.shape[-1], grid, tuple(bases))
    if names is None:
        raise Lost
    return list(names)


def _grouped(answered: Side, values: Side) -> list[str]:
    """Return the name of keys that several heads share: whole heads, neighbours together.

    The values of a head belong to its keys.
    """
    shared = []
    for side in (answered, values):
        rows = [tuple((o.layer, o.column) for o in row) for row in side.origins]
        kinds = list(dict.fromkeys(rows))
        shared.append([kinds.index(row) for row in rows])
    keys, count = shared[0], max(shared[0]) + 1
    if shared[1] != keys:
        raise Lost
    if count == len(keys):
        return []
    times = len(keys) // count
    if keys != [i // times for i in range(len(keys))]:
        raise Lost
    return ["multi-query" if count == 1 else "grouped-queries"]


def _of_law(subject: Subject, law: Law, seen: Tensor, asked: Side, answered: Side) -> list[str]:
    """Return the names of what is added to scores."""
    layout = subject.patient.layout
    grid = layout.grid(seen.shape[1]) if layout is not None and layout.grids else None
    names = []
    norms = norms_of(asked, answered)
    names += ["cosine"] if norms == {"length"} else ["qk-norm"] * bool(norms)
    names += ["content-bias"] * (asked.offset is not None)
    # what is the same for all keys changes no weight
    apart = None if law.asked is None else (law.asked - law.asked[:, :, :1]) * seen[..., None]
    if apart is not None and bool(apart.abs().max() > 1e-5):
        kind = kind_of_places(law.asked, seen, grid)
        if kind is None:
            raise Lost
        names.append(PLACED.get(kind, "relative-keys"))
    if law.answered is not None and bool(law.answered.abs().max() > 1e-5):
        if kind_of_places(law.answered, seen, grid) not in ("offset", "axes"):
            raise Lost
        first = law.answered[:, :1, :1]
        alike = bool(((law.answered - first) * seen[..., None]).abs().max() < 1e-5)
        names.append("content-bias" if alike else "relative-queries")
    if law.added is not None and bool((law.added * seen).abs().max() > 1e-5):
        # alone, only the parameters that hold it prove it
        alone = "content-bias" not in names or not {"relative-keys", UNSHIFTED} & set(names)
        if alone:
            names.append(_of_bias(subject, law.added, seen, answered.kept))
        elif kind_of_places(law.added[..., None], seen, grid) is None:
            raise Lost
    told = (name for name, _ in subject.patient.module.named_parameters())
    if UNSHIFTED in names and "content-bias" not in names and not any(map(RELATIVE.search, told)):
        raise Lost  # nothing says that a distance was meant
    return names


def _of_bias(subject: Subject, added: Tensor, seen: Tensor, kept: tuple[int, ...]) -> str:
    """Return the name of what is added to scores alone, which the parameters must prove."""
    shown = [place for place in range(seen.shape[2]) if place not in kept]
    own, rest = added[..., shown], added[..., list(kept)]
    away = own.masked_fill(~seen[..., shown], -torch.inf)
    if own.shape[1] != own.shape[2] or (kept and bool(rest.abs().max() > 1e-5)):
        raise Lost
    names = names_of(away, seen[..., shown], subject.patient.module)
    names = names or _found_before(subject, away)
    if not names or names[0] not in HARD:
        raise Lost
    return names[0]


def _found_before(subject: Subject, added: Tensor) -> tuple[str, ...]:
    """Return the names of a bias that tokens which are all alike have shown, where it is this."""
    other = subject.bias(subject.b, added.shape[1])
    if (
        other is None
        or other.shape != added.shape
        or not torch.equal(other > BLOCKED, added > BLOCKED)
    ):
        return ()
    gap = (other - added).nan_to_num(0.0)
    gap = gap - gap.amax(dim=-1, keepdim=True)
    return subject.bias_names if bool(gap.abs().max() < 1e-5) else ()


def _weighed(
    said: tuple, scores: Tensor, made: Tensor, sink: Tensor | None
) -> tuple[list[Tensor], list[str]]:
    """Return what the weights of scores may be; the softmax must be that of the module."""
    if sink is not None:
        column = sink[:, None, None].expand(*scores.shape[:-1], 1)
        softmax, name = torch.cat([scores, column], dim=-1).softmax(dim=-1)[..., :-1], []
        if not torch.allclose(softmax, made.double(), rtol=1e-5, atol=1e-7):
            raise Lost
        return [softmax], name
    softmax, name = scores.softmax(dim=-1), []
    if not torch.allclose(softmax, made.double(), rtol=1e-5, atol=1e-7):
        softmax, name = scores.softmax(dim=-2), ["slot-attention"]
        if not torch.allclose(softmax, made.double(), rtol=1e-5, atol=1e-7):
            raise Lost
        more = [softmax + eps for eps in (0.0, 1e-8, 1e-6, 1e-5)]
        return [t / t.sum(dim=-1, keepdim=True) for t in more], name
    return [softmax], name


def _mixing(run: Run, event: Event, ways: list[Tensor]) -> tuple[Tensor, Side, Tensor]:
    """Return what each head mixed, (b, h, i, d), the values, and the weights."""
    size = ways[0].numel()
    first, second, made = *event.given, event.made
    if first.numel() != size:
        first, second, made = second.mT, first.mT, made.mT
    lead = made.shape[:-2]
    laid = zip(*(by_head(t, lead, run.b, run.h) for t in (first, second, made)), strict=True)
    for own, v, out in laid:
        fitting = [
            w for w in ways if own.shape == w.shape and torch.allclose(own.double(), w, 1e-6, 1e-9)
        ]
        values = answering(run, v) if fitting else None
        if values is not None and values.turned is None and values.offset is None:
            return out, values, fitting[0]
    raise Lost


def _apart(run: Run, *sides: Side) -> None:
    """Lose where queries, keys and values share numbers, or leave some of a layer unused."""
    used: set[tuple[int, int]] = set()
    for side in sides:
        own: set[tuple[int, int]] = set()
        for row in side.origins:
            numbers = [(o.layer, o.column) for o in row]
            if len(set(numbers)) < len(numbers) or any(layer < 0 for layer, _ in numbers):
                raise Lost
            own |= set(numbers)
        if used & own:
            raise Lost
        used |= own
    read = used | {(o.layer, o.column) for origins in run.reads.values() for o in origins}
    for layer in {layer for layer, _ in used}:
        if sum(number == layer for number, _ in read) != run.widths[layer]:
            raise Lost
        heard = [o.column for o in run.reads.get(layer, ()) if o.layer < 0]
        if heard and run.asked is run.pool and len(set(heard)) < run.x.shape[2]:
            raise Lost  # a piece of each token
    queries = [(o.layer, o.column) for row in sides[0].origins for o in row]
    if len(set(queries)) < len(queries):
        raise Lost


def _latent(run: Run, *sides: Side) -> list[str]:
    """Return the name of keys and values that a narrow layer's result is made into."""
    inner = []
    for side in sides:
        layers = {o.layer for row in side.origins for o in row}
        deep = set()
        for layer in layers:
            reads = {o.layer for o in run.reads[layer]}
            if len(reads) != 1:
                raise Lost
            source = reads.pop()
            normed = any(o.norm for o in run.reads[layer])
            if source >= 0:
                wide = max(run.widths[source], len(run.reads[layer])) >= run.x.shape[2]
                if run.reads[source][0].layer >= 0 or (wide and not normed):
                    raise Lost  # two layers in a row that one could be
                deep.add(source)
        inner.append(deep)
    queries = ["latent-queries"] * bool(inner[0])
    if inner[1] & inner[2]:
        return ["latent-attention", *queries]
    if inner[1] or inner[2]:
        raise Lost
    return queries
