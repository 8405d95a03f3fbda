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
    mixed: bool = False  # whether the two numbers of a pair have different angles
    still: bool = False  # whether all tokens are rotated by the same angle
    flat: bool = False  # whether all heads are rotated together, before the split
    values: bool = False  # whether values are rotated, too


@dataclass
class Operand:
    """Queries, keys or values: from the output of a layer to a factor of a product."""

    ids: Tensor  # of the layer's numbers, in the order of the operand, (s, n, d)
    values: Tensor  # of the operand, (s, n, d)
    factor: float = 1.0  # constant that multiplies them
    activation: str = ""
    norm: str = ""  # "rms" or "layer", over the numbers of a head; "" for none
    weighted: bool = False  # whether a parameter multiplies them
    ratio: Tensor | None = None  # square of what they are divided by, (s, n), if written by hand
    rotation: Rotation | None = None  # by position


@dataclass
class Program:
    """One attention in canonical form: q (b, h, i, d), k and v (b, h, j, d), scores (b, h, i, j).

    Names of bugs and variants, and of what is not there, are "" for the correct way.
    """

    h: int  # heads, as given
    e: int  # embedding dimension, as given
    d: int  # head dimension, as built
    sizes: tuple[int, int, int, int]  # b, h, i, j as built
    causal: bool | None = None  # whether it must be causal; None accepts both
    asked: dict[str, Any] = field(default_factory=dict)  # options of the caller, such as out_proj
    meant: tuple[Tensor, ...] = ()  # what the mask may mean, (1 or b, 1 or h, 1 or i, j) each

    sides: dict[str, Operand] = field(default_factory=dict)  # "q", "k" and "v"
    numbers: dict[str, Tensor] = field(default_factory=dict)  # the operands in canonical layout
    sources: dict[str, frozenset[str]] = field(default_factory=dict)  # the parameters of each
    inner: dict[str, frozenset[str]] = field(default_factory=dict)  # layers before the projection
    made_from: str = ""  # the sides of queries, keys and values: x or c each, such as "xcc"
    bare: bool = False  # whether queries, keys or values are bare tokens
    idle_layers: bool = False  # whether layers of their shape are never used
    turn: Turn | None = None  # rotary positions
    declares_rotation: bool = False  # whether the module holds rotary tables and rotates nothing
    misspaced: bool = False  # whether the rotary frequencies are wrong

    split: str = ""  # how heads are split
    layers: str = ""  # how layers are shared by heads
    groups: str = ""  # how heads of queries share those of keys: "", "grouped", or a bug
    kv_heads: int = 0

    factor: float = 1.0  # multiplies the scores
    factors: tuple[float, ...] = ()  # constants whose product it is
    holds_scale: bool = False  # whether the module holds a factor that it does not use
    bias: Tensor | None = None  # added to the scores, (b, h, i, j)
    bias_learned: bool = False  # whether it is made from parameters
    allow: Tensor | None = None  # which key each query may attend to, (b, h, i, j), None for all
    fills: list[tuple[float, str]] = field(default_factory=list)  # what masked scores get, and how:
    # a value, and "fill", "add", "multiply" or "weights"
    empty_rows_differ: bool = False  # whether a fully masked row does not give 0
    axes: tuple[int, ...] | None = None  # over which the softmax sums; None without a softmax
    sums: Tensor | None = None  # of the weights, by the id of a weighted sum divided by it later
    after: float = 1.0  # multiplies the weights

    transposed: bool = False  # whether the weighted sum uses transposed weights
    joined: str = ""  # how heads are joined
    merge: Form | None = None  # the form of a wrong join
    joined_ids: Tensor = field(default_factory=lambda: torch.empty(0))  # (b, i, h * d)
    out: str = "layer"  # or "none"
    idle_output: bool = False  # whether an output layer is never used
    out_activation: str = ""  # after the output layer
    residual: bool = False  # whether the tokens are added to the result

    @property
    def own_dim(self) -> int:
        """The head dimension; the scores should be divided by its root."""
        narrow = self.d // self.h
        wide = self.split == "heads-not-split"
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
            said += [f"{side.norm} norm over the head"] if side.norm else []
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
