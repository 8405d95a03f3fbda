"""An attention as a small canonical program, which `reading` fills from a recorded run."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from attention_clinic.catalogue.forms import Form


class Lost(Exception):
    """A step that is not one of an attention, or that is not understood."""


@dataclass
class Rotation:
    """Pairs of numbers that are rotated by position."""

    own: Tensor  # ids of the numbers before the rotation, (m,)
    other: Tensor  # ids of the other number of each pair, the same id for none, (m,)
    matrix: Tensor  # coefficients of own and other number, (m, 2)


@dataclass
class Turn:
    """The rotary positions of an attention."""

    layout: str  # "halves", "pairs", or "other"
    width: int  # rotated numbers of a head
    head_dim: int  # d
    sign: int  # 1, or -1 for a rotation backwards
    frequencies: Tensor  # angle of each pair from one position to the next, (width / 2,)
    offset: int = 0  # positions of a query beyond those of a key of the same token
    mixed: bool = False  # whether the two numbers of a pair have different angles
    still: bool = False  # whether all tokens are rotated by the same angle
    flat: bool = False  # whether all heads are rotated together, before the split
    values: bool = False  # whether values are rotated, too


@dataclass
class Operand:
    """Queries, keys or values: from the output of a layer to a factor of a product.

    Args:
        ids: of the layer's numbers, in the order of the operand, (s, n, d).
        values: of the operand, (s, n, d).
        factor: constant that multiplies them.
        activation: its name, "" for none.
        norm: "rms", "layer", "length", or "" for none; "+" after it where it has a weight.
        norm_first: whether the norm comes before the rotation.
        over: what the norm runs over: "head", "token" or "other".
        weights: names of parameters of the norm.
        rotation: by position, None for none.
        weighted: whether a parameter multiplies them.
        centred: whether a mean is subtracted by hand.
        ratio: the square of what they are divided by, (s, n), where that is written by hand.
    """

    ids: Tensor
    values: Tensor
    factor: float = 1.0
    activation: str = ""
    norm: str = ""
    norm_first: bool = True
    over: str = ""
    weights: tuple[str, ...] = ()
    rotation: Rotation | None = None
    weighted: bool = False
    centred: bool = False
    ratio: Tensor | None = None


@dataclass
class Program:
    """One attention in canonical form: q (b, h, i, d), k and v (b, h, j, d), scores (b, h, i, j).

    Args:
        h, e: heads and width of a token, as asked.
        d: width of a head, as built.
        sizes: b, h, i, j as built.
        sides: "q", "k" and "v".
        numbers: the operands in canonical layout.
        sources: names of the parameters that make each operand; "x" or "context" for bare tokens.
        inner: names of layers before the projection of each operand.
        split: how heads are split, "" for the correct way.
        groups: how heads of queries share those of keys: "", "grouped", or the id of a bug.
        layers: how layers are shared by heads: "", or the id of a bug.
        factor, after: constants that multiply the scores, and the weights or their sums.
        after_sum: the part of `after` that multiplies the weighted sums.
        factors: constants that multiply the scores, one each.
        rounded: whether the scores are rounded.
        bias: added to the scores, (b, h, i, j), None for nothing.
        bias_learned: whether the bias is made from parameters.
        cap: of a soft cap, None for none; `capped_late` if it comes after the mask.
        allow: which key each query may attend to, (b, h, i, j), None for all.
        fills: what masked scores get: value, and "fill", "add", "multiply" or "weights".
        axes: of the scores over which the softmax sums; None without a softmax.
        sums: the sum of the weights of each weighted sum that is divided by it later, by id; None
            where weights are divided before.
        transposed: whether the weighted sum uses transposed weights.
        joined: how heads are joined, "" for the correct way; `merge` is its form.
        joined_ids: of the joined numbers, (b, i, h * d).
        out: "layer" or "none".
        out_activation: after the output layer, "" for none.
        residual: whether the tokens are added to the result.
        meant: the masks that the given mask may mean, (1 or b, 1 or h, 1 or i, j) each.
        causal: whether it must be causal; None accepts both.
        asked: options of the caller, such as out_proj.
        turn: of rotary positions, None for none.
        bare: whether queries, keys or values are bare tokens, and `idle_layers`, whether layers
            of their shape are never used.
        idle_output: whether an output layer is never used.
        holds_scale: whether the module holds a factor of the scores that it does not use.
        misspaced: the formula of wrong rotary frequencies, "" for correct ones.
        declares_rotation: whether the module holds rotary tables and rotates nothing.
        empty_rows_differ: whether a fully masked row does not give 0.
        made_from: the side that queries, keys and values are made from, such as "xcc".
    """

    h: int
    e: int
    d: int
    sizes: tuple[int, int, int, int]
    sides: dict[str, Operand] = field(default_factory=dict)
    numbers: dict[str, Tensor] = field(default_factory=dict)
    sources: dict[str, frozenset[str]] = field(default_factory=dict)
    inner: dict[str, frozenset[str]] = field(default_factory=dict)
    split: str = ""
    groups: str = ""
    kv_heads: int = 0
    layers: str = ""
    factor: float = 1.0
    after: float = 1.0
    after_sum: float = 1.0
    factors: tuple[float, ...] = ()
    rounded: bool = False
    bias: Tensor | None = None
    bias_learned: bool = False
    cap: float | None = None
    capped_late: bool = False
    allow: Tensor | None = None
    fills: list[tuple[float, str]] = field(default_factory=list)
    axes: tuple[int, ...] | None = None
    sums: Tensor | None = None
    transposed: bool = False
    joined: str = ""
    merge: Form | None = None
    joined_ids: Tensor = field(default_factory=lambda: torch.empty(0))
    out: str = "layer"
    out_activation: str = ""
    residual: bool = False
    meant: tuple[Tensor, ...] = ()
    causal: bool | None = None
    asked: dict[str, Any] = field(default_factory=dict)
    turn: Turn | None = None
    bare: bool = False
    idle_layers: bool = False
    idle_output: bool = False
    holds_scale: bool = False
    empty_rows_differ: bool = False
    misspaced: str | None = ""
    declares_rotation: bool = False
    made_from: str = ""

    @property
    def own_dim(self) -> int:
        """The width of a head that the scores should be divided by the root of."""
        narrow = self.d // self.h
        wide = self.split in ("heads-not-split", "split-tokens")
        return narrow if wide and math.isclose(self.factor, narrow**-0.5, rel_tol=1e-5) else self.d

    @property
    def square(self) -> bool:
        """Whether there are as many keys as queries."""
        return self.sizes[2] == self.sizes[3]

    @property
    def past(self) -> Tensor:
        """The causal rule, (1, 1, i, j)."""
        return torch.ones(self.sizes[2], self.sizes[3], dtype=torch.bool).tril()[None, None]

    @property
    def scaled(self) -> bool:
        """Whether the scores are divided by the root of a width."""
        widths = (self.d, self.e, self.own_dim)
        return any(math.isclose(self.factor, w**-0.5, rel_tol=1e-5) for w in widths)

    @property
    def open(self) -> Tensor:
        """Which key each query may attend to, (b, h, i, j)."""
        return torch.ones(self.sizes, dtype=torch.bool) if self.allow is None else self.allow

    @property
    def sees_later(self) -> bool:
        """Whether a token attends to a later one that the given mask leaves open."""
        return bool((self.open & ~self.past).any())

    def shares(self, one: str, other: str) -> bool:
        """Return whether two sides are made by the same layer."""
        return not self.bare and self.sources[one] == self.sources[other] != frozenset()

    def from_side(self, sides: str) -> bool:
        """Return whether queries, keys and values are made from these sides: x or c each."""
        return self.made_from == sides

    def allows(self, rule: Tensor) -> bool:
        """Return whether the program lets tokens attend exactly by this rule."""
        sizes = zip(reversed(rule.shape), reversed(self.sizes), strict=False)
        fits = all(size in (1, wanted) for size, wanted in sizes)
        return fits and torch.equal(self.open, rule.expand(self.sizes))

    @property
    def rules(self) -> list[Tensor]:
        """The rules that are correct here, each (1 or b, 1 or h, 1 or i, j)."""
        every = torch.ones(1, 1, 1, self.sizes[3], dtype=torch.bool)
        free = [every] * (self.causal is not True)
        free += [self.past] * (self.square and self.causal is not False)
        pairs = [m & m.mT for m in self.meant if m.shape[-2] == 1 and self.square]
        return [mask & rule for mask in (*self.meant, *pairs) or (every,) for rule in free]

    def table(self) -> list[tuple[str, str]]:
        """Return the program as rows of step and value, for people."""
        b, h, i, j = self.sizes
        rows = [("split", self.split or "correct")]
        for name, side in self.sides.items():
            said = [f"({b}, {h}, {i if name == 'q' else j}, {self.d})"]
            said += [f"activation {side.activation}"] if side.activation else []
            said += [f"{side.norm.rstrip('+')} norm over the {side.over}"] if side.norm else []
            said += ["rotated by position"] if side.rotation is not None else []
            rows.append(({"q": "queries", "k": "keys", "v": "values"}[name], ", ".join(said)))
        rows.append(("scores", f"({b}, {h}, {i}, {j}) times {self.factor:.6g}"))
        if self.bias is not None:
            rows.append(("bias", "learned" if self.bias_learned else "fixed"))
        if self.allow is not None:
            rows.append(("mask", f"{int((~self.allow).sum())} of {self.allow.numel()} hidden"))
            rows.append(("masked scores", "; ".join(f"{how} {v:g}" for v, how in self.fills)))
        axes = "none" if self.axes is None else " and ".join("bhij"[a] for a in self.axes)
        rows.append(("softmax over", axes))
        rows.append(("weighted sum", "transposed weights" if self.transposed else "correct"))
        rows.append(("join", self.joined or "correct"))
        rows.append(("output layer", "yes" if self.out == "layer" else "no"))
        return rows
