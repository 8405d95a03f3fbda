"""Judge an account of an attention: what each step does, and what it should do.

A step is right where it is that of an attention, whatever the layers before it; it is a mistake
where the catalogue has a form of it that does the same, number by number, to the ids. A step that
is neither leaves the module unexplained.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from attention_clinic.bugs import Setting
from attention_clinic.bugs.joining import MERGE
from attention_clinic.bugs.masks import ITSELF
from attention_clinic.bugs.projections import SPLIT, TOKENS, Together
from attention_clinic.engine.forms import Form, State
from attention_clinic.engine.weights import role
from attention_clinic.examine.account import Account
from attention_clinic.examine.judging import Said, judged
from attention_clinic.examine.scoring import Placed, Scored, Unknown, before, scored
from attention_clinic.examine.unnormed import unnormed
from attention_clinic.examine.written import PRODUCTS, Run, linked, made_by_layers

USUAL = {"add", "mul", "native_layer_norm"}  # what may stand behind the output layer
BACK = {  # of a softmax over those who are asked, whose weights lie the other way round
    "softmax-query": "mix-transposed",
    "mask-inverted": "mask-off-by-one",
    "mask-off-by-one": "mask-inverted",
}


def told(account: Account, causal: bool | None, known: State) -> tuple[Said, Scored] | None:
    """Return what is wrong, and what the scores go through; None where something is not known.

    Args:
        account: of the steps.
        causal: True when the attention must be causal, False when it must not, None for either.
        known: what is known of the module beside.
    """
    ends = account.ends
    if ends.before or not ends.known or not set(ends.after) <= USUAL:
        return None
    turned = [(account.turned(), TOKENS.forms[1].detail)] * (account.run.asked is None)
    for laid, words in ((account, None), *turned):
        try:
            said, placed = split(laid)
            steps = scored(laid, placed)
            more = judged(laid, steps, placed.split, causal, known)
            more = laid_back(more) if exchanged(laid) else more
            said += [*more, *merged(laid, placed), *origins(laid), *groups(laid, placed)]
        except Unknown:
            continue
        return [("batch-first", words)] * (words is not None) + said, steps
    return None


def exchanged(account: Account) -> bool:
    """Say whether what names call keys asks, and what they call queries is asked.

    Of one layer that makes both, queries are the first numbers.
    """
    run, made = account.run, [before(account.run, t)[2] for t in (account.q, account.k)]
    turned = [made_by_layers(run, t) for t in made]
    made = [t if layers is None else layers for t, layers in zip(made, turned, strict=True)]
    names = [run.layers(t) for t in made]
    if len(names[0]) == 1 and names[0] == names[1]:
        asks, asked = (_columns(run, t) for t in made)
        if not asks or not asked or asks & asked:
            return False
        return min(asks) > min(asked)
    return [{role(name) for name in said} for said in names] == [{"k"}, {"q"}]


def laid_back(said: Said) -> Said:
    """Return what was said of scores whose rows are keys, as it is where these are asked.

    Args:
        said: of the steps between scores and weights, see `exchanged`.
    """
    if "softmax-query" not in dict(said):
        return said  # who asks is then a matter of names
    return [(BACK[id], "") if id in BACK else (id, words) for id, words in said
            if words != ITSELF]  # fmt: skip


# ------------------------------------------------------------------------------ tokens and heads


def split(account: Account) -> tuple[Said, Placed]:
    """Judge how queries, keys and values are split into heads."""
    sides = {"q": account.q, "k": account.k, "v": account.v}
    kinds = {name: before(account.run, t)[2] for name, t in sides.items()}
    flats = {name: flat_of(account, t, name) for name, t in kinds.items()}
    right = {name: right_of(account, t, flats[name], name) for name, t in kinds.items()}
    slots, n = len(account.q), account.n
    setting = Setting(account.h, flats["q"].shape[-1], account.q.shape[-1])
    own = account.q.shape[1], account.k.shape[1]
    if all(t is not None for t in right.values()):
        q, k, v = right.values()
        samples = q[0]
        if not (torch.equal(q[0], k[0]) and torch.equal(q[0], v[0]) and torch.equal(k[1], v[1])):
            raise Unknown
        heads = slots // account.b
        if slots % account.b or not torch.equal(samples.bincount(), _all(account.b, heads)):
            raise Unknown
        order = samples.argsort(stable=True)
        placed = Placed(
            (account.b, heads), order, q[1].argsort(1)[order], k[1].argsort(1)[order], None, setting
        )
        alone = heads == 1 < account.h
        said = [("heads-not-split", "")] * alone
        return said, placed
    if own != (n, n) and account.q.shape[0] * n != slots * n:
        raise Unknown
    for form, made in _splits(setting, flats, right):
        found = [order_of(t, made[name]) for name, t in kinds.items()]
        if any(order is None for order in found) or any(
            not torch.equal(order, found[0]) for order in found[1:]
        ):
            continue
        sizes = made["q"].shape[1:3]
        as_they_lie = [torch.arange(t.shape[1]).expand(slots, -1) for t in (account.q, account.k)]
        placed = Placed((sizes[0], sizes[1]), found[0], *as_they_lie, form, setting)
        return [(id, form.detail) for id in form.ids], placed
    return _scattered(account, kinds, right, setting)


def _scattered(
    account: Account, kinds: dict[str, Tensor], right: dict[str, object], setting: Setting
) -> tuple[Said, Placed]:
    """Judge a split of which no form is known, but that vectors hold numbers of several tokens."""
    slots, i, _ = account.q.shape
    j, count = account.k.shape[1], account.b * account.h
    wrong = [name for name in "qkv" if right[name] is None]
    if slots != count or not i == j == account.n:
        raise Unknown
    vectors = kinds[wrong[0]]
    token, sample = account.run.token[vectors], account.run.sample[vectors]
    several = bool((token != token[..., :1]).any() or (sample != sample[..., :1]).any())
    whole = (token == token[:, :1]).flatten(1).all(1) | (sample == sample[:, :1, :1]).flatten(
        1
    ).all(1)
    moved = len(vectors.unique()) == vectors.numel()  # each number once, at another place
    if not several and bool(whole.all()) and not moved:
        raise Unknown
    who = {"q": "queries", "k": "keys", "v": "values"}[wrong[0]]
    others = "samples" if not bool(whole.all()) else "heads, and other tokens,"
    said = f"{who} hold numbers of several tokens" if several else f"{who} of several {others} meet"
    rows, columns = (torch.arange(size).expand(slots, -1) for size in (i, j))
    sizes = (account.b, account.h)
    placed = Placed(sizes, torch.arange(slots), rows, columns, None, setting)
    return [("split-no-transpose", f"by another view: {said}")], placed


def _all(count: int, value: int) -> Tensor:
    return torch.full((count,), value)


def _own(account: Account, name: str) -> tuple[int, int]:
    """Return the first token that queries, keys or values may be made of, and how many."""
    return (0, account.n) if name == "q" else account.asked


def flat_of(account: Account, t: Tensor, name: str) -> Tensor:
    """Return the numbers of queries, keys or values by sample and token, (b, n, f)."""
    ids, (first, count) = t.unique(), _own(account, name)
    token, sample = account.run.token[ids] - first, account.run.sample[ids]
    if bool((token < 0).any() or (token >= count).any() or (sample < 0).any()):
        raise Unknown
    places = sample * count + token
    if len(ids) % (account.b * count) or places.bincount().unique().numel() > 1:
        raise Unknown
    if len(places.unique()) != account.b * count:
        raise Unknown
    return ids[places.argsort(stable=True)].view(account.b, count, -1)


def right_of(account: Account, t: Tensor, flat: Tensor, name: str) -> tuple[Tensor, Tensor] | None:
    """Return sample of each slot, and token of each vector, where a slot holds each token once."""
    first, count = _own(account, name)
    token, sample = account.run.token[t] - first, account.run.sample[t]
    if bool((token != token[..., :1]).any() or (sample != sample[:, :1, :1]).any()):
        return None
    token = token[..., 0]
    every = torch.arange(count).expand(len(token), -1)
    if not torch.equal(token.sort(dim=1).values, every):
        return None
    rank = torch.full((int(flat.max()) + 1,), -1)
    rank[flat] = torch.arange(flat.shape[-1]).expand_as(flat)
    ranks = rank[t].gather(1, token.argsort(1)[..., None].expand_as(t))
    if bool((ranks != ranks[:, :1]).any()):
        return None
    return sample[:, 0, 0], token


def _splits(
    setting: Setting, flats: dict[str, Tensor], right: dict[str, object]
) -> Iterator[tuple[Form, dict[str, Tensor]]]:
    """Yield the mistaken ways to split, and what they make of the ids."""
    lying = {name: t[None] for name, t in flats.items()}
    width = setting.num_heads * setting.head_dim
    if any(t.shape[-1] != width for t in lying.values()):
        return
    state: State = {**lying, "setting": setting, "observed": True, "total": 2, "bias": None}
    for form in SPLIT.forms[1:]:
        if form.applies(state):
            made = SPLIT.apply(form, state)
            yield form, {name: made[name] for name in "qkv"}


def order_of(seen: Tensor, made: Tensor) -> Tensor | None:
    """Return the slots that were seen in the order of those that a form makes, None for others."""
    made = made[0].flatten(0, 1)
    if made.shape != seen.shape:
        return None
    order = seen.amin((1, 2)).argsort(stable=True)
    wanted = made.amin((1, 2)).argsort(stable=True)
    same = torch.equal(seen[order].sort(-1).values, made[wanted].sort(-1).values)
    return order[wanted.argsort()] if same else None


# -------------------------------------------------------------------------------------- joining


def merged(account: Account, placed: Placed) -> Said:
    """Judge how the heads are joined."""
    mixed = account.mixed[placed.order]
    mixed = mixed.gather(1, placed.rows[..., None].expand_as(mixed))
    mixed = mixed.unflatten(0, placed.sizes)[None]  # (1, b, h, n, d)
    form = placed.form
    if form is not None and isinstance(form.run, Together) and form.run.undo is not None:
        mixed = form.run.undo(mixed, placed.split)
    if mixed is None or mixed.shape[3] != account.n:
        raise Unknown
    right = MERGE.reference.run(mixed)[0]
    if right.shape != account.ends.joined.shape:
        raise Unknown
    rank = torch.full((int(max(right.max(), account.ends.joined.max())) + 1,), -1)
    rank[right] = torch.arange(right.shape[-1]).expand_as(right)
    own = torch.equal(right.sort(-1).values, account.ends.joined.sort(-1).values)
    ranks = rank[account.ends.joined]
    if own and not bool((ranks != ranks[:1, :1]).any()):
        return []
    for form in MERGE.forms[1:]:
        if torch.equal(form.run(mixed)[0], account.ends.joined):
            return [(id, form.detail) for id in form.ids]
    if torch.equal(right.flatten().sort().values, account.ends.joined.flatten().sort().values):
        return [("merge-axes", _heard_from(account, right))]
    raise Unknown


def _heard_from(account: Account, right: Tensor) -> str:
    token = torch.empty(int(right.max()) + 1, dtype=torch.long)
    token[right] = torch.arange(account.n)[:, None].expand_as(right)
    first = token[account.ends.joined[0, 0]].unique().tolist()
    return f"the first token gets what tokens {', '.join(map(str, first))} found"


# ------------------------------------------------------------------------ where numbers come from


def origins(account: Account) -> Said:
    """Judge which layers make queries, keys and values."""
    run, said = account.run, []
    given = [name for name, _, _ in run.tape.given]
    raw = []
    made = [before(run, t)[2] for t in (account.q, account.k, account.v)]
    for name, t in zip(("queries", "keys", "values"), made, strict=True):
        numbers = run.given[t.flatten()].unique().tolist()
        if all(number >= 0 and given[number] in ("x", "context") for number in numbers):
            raw.append(name)
    if raw:
        said.append(("projection-unused", f"{' and '.join(raw)} are the tokens themselves"))
    sets = [run.values[t.flatten()].unique() for t in made]  # a layer may be called twice
    if len(raw) < 2:
        if torch.equal(sets[0], sets[1]):
            said.append(("projection-shared", "queries and keys are the same numbers"))
        elif torch.equal(sets[0], sets[2]):
            said.append(("projection-shared", "queries and values are the same numbers"))
        if torch.equal(sets[1], sets[2]) and not torch.equal(sets[0], sets[1]):
            if {role(name) for name in run.layers(made[2])} == {"v"}:
                raise Unknown  # its keys come from the layer of the values
            said.append(("value-from-key", ""))
        columns = [_columns(run, t) for t in made] if run.asked is not None else [None]
        if columns[0] is not None and columns[0] in columns[1:]:
            who = "keys" if columns[0] == columns[1] else "values"
            said.append(("projection-shared", f"one layer makes queries and {who}"))
    said += [*unnormed(account, made), *_bent(account)]
    if account.h > 1 and all(_slices(run, account.h, t) for t in made):
        said.append(("head-shared-projection", ""))
    elif all(_own_slices(run, account.h, t) for t in made):
        said.append(("head-own-slice", ""))
    return said


def _bent(account: Account) -> Said:
    """Return whether an activation bends what the layers of queries, keys and values make."""
    sides = {"queries": account.q, "keys": account.k, "values": account.v}
    bent = [name for name, t in sides.items() if before(account.run, t)[1] == "bent"]
    words = "all three" if len(bent) == 3 else " and ".join(bent)
    return [("projection-bent", words)] if bent else []


def _columns(run: Run, ids: Tensor) -> set[int] | None:
    """Return the columns of parameters that made these numbers, None where others did."""
    found: set[int] = set()
    for event in linked(run, ids):
        place = PRODUCTS.get(event.name)
        weight = None if place is None else event.args[place + 1]
        if weight is None or bool((run.given[weight] < 0).any()):
            return None
        columns = torch.full((run.tape.count,), -1)
        columns[event.out] = weight[..., :1, :].expand(event.out.shape)
        found |= set(columns[ids][columns[ids] >= 0].unique().tolist())
        if not run.tape.given[int(run.given[weight.flatten()[0]])][0]:
            return None
    return found or None


def groups(account: Account, placed: Placed) -> Said:
    """Judge which heads of queries have which head of keys, where a layer says their order."""
    _, kind, ids = before(account.run, account.q)
    if kind != "layer" or placed.form is not None:
        return []
    q, k = (t[placed.order].unflatten(0, placed.sizes)[0].flatten(1) for t in (ids, account.k))
    rows = [tuple(account.run.values[row].tolist()) for row in k[q.amin(1).argsort()]]
    kinds = list(dict.fromkeys(rows))
    order, times = [kinds.index(row) for row in rows], len(rows) // len(kinds)
    if order == [head // times for head in range(len(rows))]:
        return []
    if order != [head % len(kinds) for head in range(len(rows))]:
        raise Unknown
    return [("groups-order", "")]


def _slices(run: Run, h: int, t: Tensor) -> bool:
    """Say whether one narrow layer makes all heads, each of numbers of its own."""
    events = list(linked(run, t))
    if len(events) != 1 or events[0].name not in PRODUCTS:
        return False
    place, out = PRODUCTS[events[0].name], events[0].out
    weight, rows = events[0].args[place + 1], t - out.min()
    if weight.ndim == 3 and bool((weight == weight[:1]).all()):
        weight = weight[0]  # the same for all samples
    if weight.ndim != 2 or run.depends(weight) or weight.shape[0] * h != _wide(run):
        return False
    columns = (rows % out.shape[-1]).flatten(1).sort(dim=1).values
    return len(t) > h and bool((columns == columns[:1]).all()) and len(t.unique()) == t.numel()


def _own_slices(run: Run, h: int, t: Tensor) -> bool:
    """Say whether a layer for each head makes its numbers, of a slice of the token of its own."""
    place = next(number for number, (name, _, _) in enumerate(run.tape.given) if name == "x")
    start, wide = run.tape.given[place][1], _wide(run)
    heard: dict[tuple[int, ...], set[int]] = {}  # the weights of each slice
    for event in linked(run, t):
        if event.name not in PRODUCTS:
            return False
        factors = event.args[PRODUCTS[event.name] :][:2]
        read, weight = (t if t.ndim == 3 else t[None] for t in factors)
        if bool((run.given[read] != place).any()) or read.shape[2] * h != wide:
            return False
        if run.depends(weight):
            return False
        for rows, matrix in zip((read - start) % wide, weight, strict=True):
            if bool((rows != rows[:1]).any()):
                return False
            heard.setdefault(tuple(rows[0].tolist()), set()).add(int(matrix.flatten()[0]))
    weights = set[int]().union(*heard.values())
    return 1 < len(heard) == h == len(weights) == sum(map(len, heard.values()))


def _wide(run: Run) -> int:
    """Return how many numbers a token has."""
    sizes = [end - start for name, start, end in run.tape.given if name == "x"]
    return sizes[0] // (run.y.shape[0] * run.y.shape[1]) if sizes else 0
