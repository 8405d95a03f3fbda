"""Weights that are absorbed: (q w) k is q (w k), and (p v) w is p (v w), which is read more easily.

DeepSeek's latent attention multiplies its queries, and what its heads mixed, with the weights that
would make keys and values of each head. The numbers are the same; the heads show again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_clinic.engine.modes import Aside, Mode

PRODUCTS = ("matmul", "__matmul__", "bmm")


@dataclass(frozen=True)
class Product:
    """A product of two tensors, and a letter for each of their axes.

    Args:
        factors: the tensors, without axes of one number, or of one number again and again.
        letters: of both.
        made: letters of what comes out.
        out: that, once it is there.
        number: which product of the run it is.
        version: of the result: what is changed in its place is no product any more.
    """

    factors: tuple[Tensor, Tensor]
    letters: tuple[str, str]
    made: str
    out: Tensor | None = None
    number: int = 0
    version: int = 0


class Regrouped(Mode):
    """Multiply the keys, or values, that all heads share with the weights of each head first.

    Args:
        weights: the parameters of the module that will run.
        aside: the products, counted from 0, that nobody need hear: an earlier run took them apart.

    Attributes:
        apart: the products that were taken apart.
    """

    def __init__(self, weights: Iterable[Tensor], aside: Collection[int] = ()) -> None:
        super().__init__()
        self.weights = {_place(w) for w in weights}
        self.made: dict[int, Product] = {}  # by where its result lies
        self.aside, self.apart, self.count = aside, set[int](), 0

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        product = _product(getattr(func, "__name__", ""), args) if not kwargs else None
        if product is None:
            return func(*args, **kwargs)
        aside = Aside()
        if self.count in self.aside:
            aside.begin()
        try:
            result = self._otherwise(product)
            result = func(*args) if result is None else result
        finally:
            aside.end()
        made = replace(product, out=result, number=self.count, version=result._version)
        self.made[_place(result)] = made
        self.count += 1
        return result

    def _otherwise(self, product: Product) -> Tensor | None:
        """Return a product of three tensors in the other order, None where none is absorbed."""
        for side in (0, 1):
            inner = self.made.get(_place(product.factors[side]))
            names = inner and _renamed(inner, product.factors[side], product.letters[side])
            if not inner or not names:
                continue
            rest = product.factors[1 - side], product.letters[1 - side]
            three = [*zip(inner.factors, names, strict=True), rest]
            held = [one for one in three if _place(one[0]) in self.weights]
            free = [one for one in three if _place(one[0]) not in self.weights]
            if len(held) != 1:
                continue
            # of two, the queries, or weights, have heads; the keys, or values, have none
            ways = (free, free[::-1]) if held[0] is rest else ([free[0], rest],)
            for asks, answers in ways:
                made = _in_heads(asks, held[0], answers, product.made)
                if made is not None:
                    self.apart.add(inner.number)
                    return made
        return None


def _in_heads(
    asks: tuple[Tensor, str], weight: tuple[Tensor, str], answers: tuple[Tensor, str], made: str
) -> Tensor | None:
    """Return what comes of keys or values that get heads first, None where they have some.

    Args:
        asks: the queries, or the weights of a softmax, with their letters.
        weight: a matrix for each head.
        answers: what all heads share.
        made: letters of the result.
    """
    (q, q_letters), (w, w_letters), (k, k_letters) = asks, weight, answers
    heads = {*w_letters} & {*q_letters} & {*made} - {*k_letters}
    narrow = {*w_letters} & {*k_letters} - {*made, *q_letters}
    wide = {*w_letters} - heads - narrow
    if len(w_letters) != 3 or not len(heads) == len(narrow) == len(wide) == 1:
        return None
    if len(k_letters) != 3 or not wide <= {*q_letters} ^ {*made}:
        return None
    (head,), (inner,), (own,) = heads, narrow, wide
    before = k_letters.replace(inner, "")
    k = k.permute([k_letters.index(c) for c in before + inner])
    w = w.permute([w_letters.index(c) for c in (head, own, inner)])
    k = F.linear(k, w.flatten(0, 1)).unflatten(-1, w.shape[:2])
    return torch.einsum(f"{q_letters},{before}{head}{own}->{made}", q, k)


def _place(t: Tensor) -> int:
    """Return where a tensor, or what it is a view of, lies."""
    return t.untyped_storage().data_ptr()


def _product(name: str, args: tuple[Any, ...]) -> Product | None:
    """Return what is multiplied, None where it is no product of two tensors with axes in front."""
    if name == "einsum" and len(args) == 3 and isinstance(args[0], str):
        equation, *factors = args
        sides, arrow, made = equation.replace(" ", "").partition("->")
        letters = sides.split(",")
        if not arrow or "." in equation or not all(c.islower() for c in "".join((*letters, made))):
            return None
        if any(len(set(s)) != len(s) for s in (*letters, made)):
            return None
        return Product((factors[0], factors[1]), (letters[0], letters[1]), made)
    if name not in PRODUCTS or len(args) != 2 or min(t.ndim for t in args) < 2:
        return None
    lead = "zyxwvu"[-(max(t.ndim for t in args) - 2) :] if max(t.ndim for t in args) > 2 else ""
    factors, letters = [], []
    for t, own in zip(args, ("ic", "cj"), strict=True):
        axes = (lead + own)[-t.ndim :] if t.ndim > 2 else own
        kept = [a for a in range(t.ndim) if a >= t.ndim - 2 or (t.shape[a] > 1 and t.stride(a))]
        factors.append(t[tuple(slice(None) if a in kept else 0 for a in range(t.ndim))])
        letters.append("".join(axes[axis] for axis in kept))
    if any(c not in "".join(letters) for c in lead):
        return None
    return Product((factors[0], factors[1]), (letters[0], letters[1]), lead + "ij")


def _renamed(inner: Product, seen: Tensor, letters: str) -> tuple[str, str] | None:
    """Return letters of both factors of a product, in the words of one that reads its result.

    Args:
        inner: the product.
        seen: its result, perhaps with its axes in another order.
        letters: of that.
    """
    assert inner.out is not None, "it was made"
    if seen.numel() != inner.out.numel() or seen._version != inner.version:
        return None
    own = [*zip(inner.out.shape, inner.out.stride(), inner.made, strict=True)]
    names = {}
    for size, step, letter in zip(seen.shape, seen.stride(), letters, strict=True):
        fitting = [c for one, by, c in own if (one, by) == (size, step)]
        if len(fitting) != 1 or fitting[0] in names:
            return None
        names[fitting[0]] = letter
    first, second = ("".join(names.get(c, c.upper()) for c in s) for s in inner.letters)
    return (first, second) if len(names) == len(inner.made) else None
