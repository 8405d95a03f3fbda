"""Weights that lie in another order: packed, per head, for halves or for neighbours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import permutations

import torch
from einops import rearrange
from torch import Tensor

from attention_clinic.engine.forms import Form, Stage, State, bug
from attention_clinic.engine.loaded import Values, kind, parts
from attention_clinic.engine.weights import role

Change = Callable[[Values], dict[str, Tensor]]


def changed(form: Form, state: State) -> State | None:
    """Put changed values among the others; None where nothing changes."""
    if form.run is None:
        return {}
    values = state["values"]
    made = form.run(values)
    if not made or all(torch.equal(value, values[name]) for name, value in made.items()):
        return None
    return {"values": {**values, **made}}


def if_wrong(find: Callable[[State], Iterator[Form]]) -> Callable[[State], Iterator[Form]]:
    """Find mistakes only where one more is asked for."""
    return lambda state: find(state) if state["left"] else iter(())


def each(names: list[str], change: Callable[[Tensor], Tensor]) -> Change:
    return lambda values: {name: change(values[name]) for name in names}


def listed(names: list[str]) -> str:
    shown = [kind(name) for name in names]
    shown = list(dict.fromkeys(shown))
    return ", ".join(shown[:4]) + (f" and {len(shown) - 4} more" if len(shown) > 4 else "")


# ---------------------------------------------------------------- packed, and cut otherwise

bug(
    "loading-packed",
    "cuts packed weights in another order than they were packed: per head, or other thirds",
    'find out how theirs lie, "(k h d)" or "(h k d)", and rearrange the rows: '
    'rearrange(w, "(h k d) e -> (k h d) e", k=3, h=num_heads).',
    "15",
    "sgl-project/sglang#40127",
    "sgl-project/sglang#24321",
    "huggingface/transformers#40253",
    "huggingface/transformers#21519",
    "awslabs/slapo#46",
)
ORDERS = ("h k d", "k d h", "h d k", "d h k", "d k h")


def _cut(t: Tensor, axis: int, before: str, after: str, sizes: Mapping[str, int]) -> Tensor:
    t = t.movedim(axis, 0)
    used = {k: v for k, v in sizes.items() if k in before}
    return rearrange(t, f"({before}) ... -> ({after}) ...", **used).movedim(0, axis)


def _packs(state: State) -> Iterator[Form]:
    values, heads = state["values"], state["heads"]
    for name, leaves in parts(values).items():
        weights = [names for names in leaves.values() if values[names[0]].ndim == 2]
        if not weights:
            continue
        rows, columns = values[weights[0][0]].shape
        axis = (
            0 if rows == 3 * columns or (role(f"{name}.weight") == "qkv" and rows > columns) else 1
        )
        wide = (rows, columns)[axis]
        every = [n for names in leaves.values() for n in names]

        def on_axis(change: Callable, axis: int = axis, wide: int = wide) -> Callable:
            def run(t: Tensor) -> Tensor:
                at = axis if t.ndim == 2 else 0
                return change(t, at) if t.shape[at] == wide else t

            return run

        if wide % 3 == 0 and wide == 3 * (columns, rows)[axis]:
            for order in list(permutations(range(3)))[1:]:

                def thirds(t: Tensor, at: int, order: tuple = order) -> Tensor:
                    cut = t.chunk(3, dim=at)
                    return torch.cat([cut[i] for i in order], dim=at)

                yield Form(each(every, on_axis(thirds)), ("loading-packed",), name)
            for h in heads:
                if wide // 3 % h or h == 1:
                    continue
                for before, after in (
                    *((order, "k h d") for order in ORDERS),
                    *(("k h d", order) for order in ORDERS),
                ):

                    def cut(t: Tensor, at: int, b: str = before, a: str = after, h: int = h):
                        return _cut(t, at, b, a, {"k": 3, "h": h})

                    said = f"{name}: ({before}) instead of ({after})"
                    yield Form(each(every, on_axis(cut)), ("loading-packed",), said)
        elif max(rows, columns) == 2 * min(rows, columns) or "gate" in name:
            for at in (0, 1):

                def halves(t: Tensor, at: int = at) -> Tensor:
                    at = at if t.ndim == 2 else 0
                    return torch.cat(t.chunk(2, dim=at)[::-1], dim=at)

                if (rows, columns)[at] % 2 == 0:
                    names = [n for n in every if values[n].ndim == 2 or at == 0]
                    yield Form(each(names, halves), ("loading-packed",), f"{name}: its halves")
    yield from _apart(state)
    yield from _patches(state)


def _patches(state: State) -> Iterator[Form]:
    """Find a Linear on patches whose columns lie in another order than those of a convolution."""
    values = state["values"]
    for other in state["theirs"].values():
        for name, value in values.items():
            if other.ndim != 4 or value.ndim != 2 or value.numel() != other.numel():
                continue
            if value.shape[0] != other.shape[0]:
                continue
            sizes = dict(zip("cpq", other.shape[1:], strict=True))
            orders = [" ".join(order) for order in permutations("cpq")]
            for order in orders[1:]:
                for before, after in (("c p q", order), (order, "c p q")):

                    def run(t: Tensor, b: str = before, a: str = after, s: dict = sizes) -> Tensor:
                        return rearrange(t, f"e ({b}) -> e ({a})", **s)

                    said = f"{name} lies as ({before}), and must as ({after})"
                    yield Form(each([name], run), ("patch-order",), said)


def _apart(state: State) -> Iterator[Form]:
    """Find queries, keys and values in layers of their own that were cut from a packed one."""
    for leaves in _beside(state["values"], "qkv"):
        sizes = [state["values"][names[0]].shape[0] for names in leaves[0]]
        for h in state["heads"]:
            if h < 2 or sizes[0] % h or sizes[1] != sizes[2]:
                continue
            d = sizes[0] // h
            if sizes[1] % d:
                continue
            g = sizes[1] // d

            def run(values: Values, leaves: list = leaves, d: int = d, g: int = g) -> dict:
                made = {}
                for triple in leaves:
                    for names in zip(*triple, strict=True):
                        whole = torch.cat([values[name] for name in names])
                        r = values[names[0]].shape[0] // d // g
                        grouped = rearrange(whole, "(g k d) ... -> g k d ...", g=g, d=d)
                        cut = (grouped[:, :r], grouped[:, r : r + 1], grouped[:, r + 1 :])
                        made.update(
                            (name, part.flatten(0, 2))
                            for name, part in zip(names, cut, strict=True)
                        )
                return made

            said = "queries, keys and values lie head by head in theirs"
            yield Form(run, ("loading-packed",), said)


def _beside(values: Values, roles: str) -> Iterator[list[list[list[str]]]]:
    """Yield, for layers of one parent with these roles, the names of each leaf, role by role."""
    found: dict[str, dict[str, dict[str, list[str]]]] = {}
    for name, leaves in parts(values).items():
        said = role(f"{name}.weight")
        if said in roles and "weight" in leaves and values[leaves["weight"][0]].ndim == 2:
            found.setdefault(name.rpartition(".")[0], {})[said] = leaves
    for held in found.values():
        if set(held) >= set(roles):
            shared = [leaf for leaf in held[roles[0]] if all(leaf in held[r] for r in roles)]
            yield [[held[r][leaf] for r in roles] for leaf in shared]


PACKED = Stage("packed", changed, found=if_wrong(_packs), forms=[Form(None)])

# ------------------------------------------------------------- rotary: halves or neighbours


def _rotaries(state: State) -> Iterator[Form]:
    values = state["values"]
    packed = [
        [n for names in leaves.values() for n in names]
        for name, leaves in parts(values).items()
        if role(f"{name}.weight") == "qkv"
    ]
    for h in state["heads"]:
        for before, after, said in (
            ("s p", "p s", "yours lie for halves, and your model turns neighbours"),
            ("p s", "s p", "yours lie for neighbours, and your model turns halves"),
        ):

            def moved(t: Tensor, d: int, before: str = before, after: str = after) -> Tensor:
                return rearrange(t, f"(h {before}) ... -> (h {after}) ...", s=2, p=d // 2)

            for leaves in _beside(values, "qk"):
                rows = values[leaves[0][0][0]].shape[0]
                d = rows // h
                if rows % h or d % 2 or values[leaves[0][1][0]].shape[0] % d:
                    continue
                names = [n for pair in leaves for one in pair for n in one]
                norms = [n for n in values if "norm" in n and values[n].shape == (d,)]
                for more in (norms, []) if norms else ([],):
                    yield Form(
                        each([*names, *more], lambda t, d=d, m=moved: m(t, d)),
                        ("rotary-convention",),
                        said,
                    )
            for names in packed:
                rows = values[names[0]].shape[0]
                d = rows // 3 // h
                if rows % 3 or rows // 3 % h or d % 2:
                    continue

                def run(t: Tensor, d: int = d, m: Callable = moved) -> Tensor:
                    q, k, v = t.chunk(3)
                    return torch.cat([m(q, d), m(k, d), v])

                yield Form(each(names, run), ("rotary-convention",), said)


TURNING = Stage("rotary", changed, found=if_wrong(_rotaries), forms=[Form(None)])
