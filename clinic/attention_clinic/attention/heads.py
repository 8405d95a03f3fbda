"""Read how heads are split, and how they are joined again."""

from __future__ import annotations

from collections.abc import Callable

import torch
from einops import rearrange
from torch import Tensor

from attention_clinic.attention.program import Lost, Program
from attention_clinic.capture.run import FACTORS, Run, varies
from attention_clinic.catalogue.joining import MERGE
from attention_clinic.catalogue.projections import SPLIT

Arrange = Callable[[Tensor], Tensor]
Rows = tuple[Tensor, Tensor]  # the sample of each slot, (s,), and the token of each row, (s, n)


def _rows_of(run: Run, ids: Tensor, b: int) -> Rows | None:
    """Return whose numbers rows are; None unless each slot has each token of a sample once."""
    count, sample, whole = ids.shape[1], run.sample[ids], _by_token(run, ids, b)
    if whole is None or varies(sample, 1) or varies(sample, 2):
        return None
    rank = torch.full((run.tape.count,), -1)  # the index of a number among those of its token
    rank[whole] = torch.arange(whole.shape[-1]).expand_as(whole)
    sides = [(0, count)] if run.context is None else [(0, run.context[0]), run.context]
    for first in (first for first, size in sides if size == count):
        token = run.token[ids] - first
        order = token[..., 0].argsort(1)
        full = torch.equal(token[..., 0].gather(1, order), torch.arange(count).expand_as(order))
        same = not varies(rank[ids].gather(1, order[..., None].expand_as(ids)), 1)
        if full and same and not varies(token, 2):
            return sample[:, 0, 0], token[..., 0]
    return None


def _by_token(run: Run, ids: Tensor, b: int) -> Tensor | None:
    """Return the numbers of a layer as (b, n, f), None if they are not rows of tokens."""
    distinct = ids.unique()
    token, sample = run.token[distinct], run.sample[distinct]
    key = sample * (int(run.token.max()) + 1) + token
    counts = key.unique(return_counts=True)[1]
    known = bool((token >= 0).all() and (sample >= 0).all())
    if not known or counts.unique().numel() > 1 or len(counts) % b:
        return None
    return distinct[key.argsort(stable=True)].view(b, -1, int(counts[0]))


def arrangement(run: Run, p: Program, ids: dict[str, Tensor]) -> Arrange:
    """Return a function from (s, i, ...) to (b, h, i, ...), and fill the split into the program."""
    rows = {name: _rows_of(run, t, p.sizes[0]) for name, t in ids.items()}
    if any(one is None for one in rows.values()):
        return _by_split(run, p, ids)
    return _by_rows(p, ids, rows)  # type: ignore[arg-type]


def _by_rows(p: Program, ids: dict[str, Tensor], rows: dict[str, Rows]) -> Arrange:
    """Arrange slots that hold whole heads."""
    b, _, i, j = p.sizes
    sample = rows["q"][0]
    if any(not torch.equal(sample, rows[name][0]) for name in "kv"):
        raise Lost("samples meet")
    if not torch.equal(rows["k"][1], rows["v"][1]):
        raise Lost("keys and values in different orders")
    heads = len(sample) // b
    if not torch.equal(sample.bincount(minlength=b), torch.full((b,), heads)):
        raise Lost("samples with different numbers of heads")
    p.sizes = (b, heads, i, j)
    if heads not in (1, p.h):
        raise Lost(f"{heads} heads")
    p.split = p.split if heads == p.h else "heads-not-split"
    order = ids["q"].flatten(1).amin(1).argsort()
    order = order[sample[order].argsort(stable=True)]  # by sample, then by the first number
    _grouped(p, ids, sample)
    row, column = (rows[name][1].argsort(1)[order] for name in "qk")

    def arrange(t: Tensor) -> Tensor:
        t = t[order].gather(1, row.view(*row.shape, *[1] * (t.ndim - 2)).expand_as(t[order]))
        if t.shape[1:] == (i, j):
            t = t.gather(2, column[:, None].expand_as(t))
        return t.unflatten(0, (b, heads))

    return arrange


def _grouped(p: Program, ids: dict[str, Tensor], sample: Tensor) -> None:
    """Find out how heads of queries share heads of keys and values."""
    own = (sample == 0).nonzero()[:, 0]
    heads = len(own)
    order = own[ids["q"][own].flatten(1).amin(1).argsort()]
    firsts = [ids[name][order].flatten(1).amin(1).tolist() for name in "kv"]
    ranks = [[sorted(set(row)).index(one) for one in row] for row in firsts]
    count = len(set(ranks[0]))
    p.kv_heads = count
    if ranks[0] == ranks[1] == [i // (heads // count) for i in range(heads)]:
        p.groups = "" if count == heads else "grouped"
    elif heads % count == 0 and ranks[0] == ranks[1] == [i % count for i in range(heads)]:
        p.groups = "groups-order"
    else:
        raise Lost("heads share keys in an unknown order")


def _by_split(run: Run, p: Program, ids: dict[str, Tensor]) -> Arrange:
    """Arrange slots of a known wrong split."""
    b, _, n, j = p.sizes
    whole = {name: _by_token(run, t, b) for name, t in ids.items()}
    if run.context is not None or n != j or any(t is None for t in whole.values()):
        raise Lost("an unknown split")
    for form in SPLIT.forms[1:]:
        try:
            made = {name: form.run(t, p) for name, t in whole.items()}
        except (RuntimeError, ValueError):
            continue
        orders = [_matching(ids[name], t) for name, t in made.items()]
        if all(o is not None and torch.equal(o, orders[0]) for o in orders):
            p.split = form.ids[0]
            samples, p.kv_heads, rows, _ = made["q"].shape
            p.sizes = (samples, p.kv_heads, rows, made["k"].shape[2])
            return lambda t, o=orders[0]: t[o].unflatten(0, p.sizes[:2])
    raise Lost("an unknown split")


def _matching(seen: Tensor, made: Tensor) -> Tensor | None:
    """Return the order of slots in which what was seen is what was made."""
    made = made.flatten(0, 1)
    if made.shape != seen.shape:
        return None
    order, wanted = (t.flatten(1).amin(1).argsort() for t in (seen, made))
    return order[wanted.argsort()] if torch.equal(seen[order], made[wanted]) else None


PLAIN = ("alias", "native_dropout")
ONE_SIDED = ("relu", "gelu", "silu", "elu", "leaky_relu", "softplus")  # hardly below 0


def read_join(run: Run, p: Program, mixed: Tensor) -> None:
    """Fill in how weighted sums become the result."""
    own = torch.full((run.tape.count,), -1)  # the weighted sum that a number is, up to a factor
    own[mixed] = mixed
    row = torch.full((run.tape.count,), -1)  # the row of the output layer that a number is in
    rows: list[Tensor] = []
    used = run.ancestors(run.y)
    for number, event in enumerate(run.events):
        if not used[number] or bool((own[event.out] >= 0).all()):
            continue
        held = [t for t in event.read() if bool((own[t] >= 0).any())]
        after = [t for t in event.read() if bool((row[t] >= 0).any())]
        if held and event.name in FACTORS:
            _enter_layer(run, event, own, row, rows)
        elif held:
            _keep(run, p, event, held, own)
        elif after:
            _after_layer(run, p, event, after[0], row)
    if p.sums is not None and p.axes is None:
        raise Lost("exp without a sum")
    if not rows:
        p.out = "none"
        joined = own[run.y]
    else:
        ends = row[run.y]
        if bool((ends < 0).any()) or varies(ends, 2):
            raise Lost("the result is not one row of the output layer")
        joined = torch.cat(rows)[ends[..., 0]]
    if bool((joined < 0).any()):
        raise Lost("the result holds numbers that are no weighted sums")
    p.joined_ids = joined
    p.joined = _join_order(run, p, mixed, joined)


def _enter_layer(run: Run, event, own: Tensor, row: Tensor, rows: list[Tensor]) -> None:
    """Note which weighted sums each row of the output layer reads."""
    place = FACTORS[event.name]
    first, second, out = event.args[place], event.args[place + 1], event.out
    if run.depends(second) or not bool((own[first] >= 0).all()):
        raise Lost("a product after the weighted sum")
    if event.name == "bmm":  # a layer on tokens that are not contiguous
        first, out = first.flatten(0, 1), out.flatten(0, 1)
    past = sum(len(one) for one in rows)
    row[out] = torch.arange(past, past + len(first))[:, None].expand(out.shape)
    if rows and rows[0].shape[1] != first.shape[1]:
        raise Lost("two output layers")
    rows.append(own[first])


def _keep(run: Run, p: Program, event, held: list[Tensor], own: Tensor) -> None:
    """Follow a weighted sum through a division by the sum of its weights."""
    first = held[0]
    plain = first.shape == event.out.shape and len(held) == 1
    if plain and event.name == "div" and p.sums is not None and p.axes is None:
        by = run.values[event.args[1]].expand(event.out.shape)
        if not torch.allclose(by, p.sums[own[first]], rtol=1e-9):
            raise Lost("a division by other sums than those of the weights")
        p.axes = (3,)
    elif not plain or event.name not in PLAIN:
        raise Lost(f"after the weighted sum: {event.name}")
    own[event.out] = own[first]


def _after_layer(run: Run, p: Program, event, first: Tensor, row: Tensor) -> None:
    """Follow the result of the output layer through its bias and an activation."""
    others = [t for t in event.read() if t is not first]
    known = event.name in PLAIN or (event.name == "add" and not any(map(run.depends, others)))
    if p.residual:
        known = event.name == "native_layer_norm"
    elif event.name == "add" and len(others) == 1 and run.name(others[0]) == "x":
        x = next(torch.arange(a, b) for name, a, b in run.tape.given if name == "x")
        token = torch.full((run.tape.count,), -1)
        token[event.out] = others[0].expand(event.out.shape)
        known = event.out.shape == run.y.shape and torch.equal(token[event.out].flatten(), x)
        p.residual = known
    elif event.name in ONE_SIDED:
        p.out_activation, known = event.name, True
    if not known or first.shape != event.out.shape:
        raise Lost(f"after the output layer: {event.name}")
    row[event.out] = row[first]


def regrouped(p: Program, mixed: Tensor) -> Tensor:
    """Return weighted sums as (b, h, n, d) where a wrong split has them in a different order."""
    if p.split == "heads-as-tokens":
        return mixed.transpose(1, 2)
    return rearrange(mixed, "n h b d -> b h n d") if p.split == "batch-first" else mixed


def _join_order(run: Run, p: Program, mixed: Tensor, joined: Tensor) -> str:
    """Return the id of a wrong order of axes, "" for the correct one."""
    mixed = regrouped(p, mixed)
    right = MERGE.reference.run(mixed)
    if right.shape == joined.shape:
        place = torch.full((run.tape.count,), -1)
        place[right] = torch.arange(right.shape[-1]).expand_as(right)
        seen = place[joined]
        same = torch.equal(right.sort(-1).values, joined.sort(-1).values)
        if same and not varies(seen, 0) and not varies(seen, 1):
            return ""  # features in any fixed order: the output layer learns it
        if torch.allclose(run.values[right], run.values[joined]):
            return ""  # equal heads, in any order
    for form in MERGE.forms[1:]:
        try:
            if torch.equal(form.run(mixed), joined):
                p.merge = form
                return form.ids[0]
        except RuntimeError:
            continue
    whole = joined.flatten().sort().values
    if joined.numel() == mixed.numel() and torch.equal(whole, mixed.flatten().sort().values):
        return "merge-axes"
    raise Lost("heads are joined in an unknown way")
