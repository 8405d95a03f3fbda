"""Checks of the exercises of chapter 02: queries, keys and values."""

from __future__ import annotations

from collections.abc import Callable

import torch
from einops import einsum, rearrange
from torch import Tensor, nn

from checks.engine.answer import written
from checks.engine.cases import Case
from checks.engine.functions import Trials, same_function
from checks.engine.guesses import same_number, same_shape
from checks.engine.measures import same_measure
from checks.engine.message import Message, message
from checks.engine.modules import same_module
from checks.engine.shortcuts import EINOPS
from checks.engine.verdict import exercise, open_exercise


@exercise("02.1", "Which shape?")
def which_shape(weight_shape, queries_shape, heads_shape, learned) -> Message | str:
    written(weight_shape, queries_shape, heads_shape, learned)
    q_proj = nn.Linear(10, 12)
    queries = q_proj(torch.zeros(4, 7, 10))
    heads = rearrange(queries, "b n (h d) -> b h n d", h=3)
    same_shape(weight_shape, q_proj.weight.shape, "new e")
    same_shape(queries_shape, queries.shape, "b n new")
    same_shape(heads_shape, heads.shape, "b h n d")
    same_number(
        learned,
        sum(parameter.numel() for parameter in q_proj.parameters()),
        0,
        "numbers-q-proj-learns",
        known={
            120: "learned-without-biases",
            130: "learned-biases-of-token",
            22: "learned-widths-added",
            360: "heads-share-rows",
            396: "heads-share-rows",
            840: "tokens-share-weights",
        },
    )
    return "gives-shapes-and-number"


# ----------------------------------------------------------------------------- split and join

BY_MEMORY = "heads-cut-by-memory"
EVERY_HTH = "heads-take-every-hth"


@exercise("02.2", "Split and join without einops")
def split_and_join(split_heads, join_heads) -> Message | str:
    written(split_heads, join_heads)
    same_function(
        split_heads,
        lambda x, num_heads: rearrange(x, "b n (h d) -> b h n d", h=num_heads),
        lambda case: (case.randn("b n (h d)"), case["h"]),
        trials=Trials(ones=True),
        forbidden=EINOPS,
        mistakes={
            BY_MEMORY: lambda x, h: x.reshape(len(x), h, x.shape[1], -1),
            EVERY_HTH: lambda x, h: rearrange(x, "b n (d h) -> b h n d", h=h),
        },
    )
    return same_function(
        join_heads,
        lambda heads: rearrange(heads, "b h n d -> b n (h d)"),
        lambda case: (case.randn("b h n d"),),
        trials=Trials(ones=True),
        forbidden=EINOPS,
        mistakes={
            BY_MEMORY: lambda heads: heads.reshape(len(heads), heads.shape[2], -1),
            "heads-shuffled-at-join": lambda heads: rearrange(heads, "b h n d -> b n (d h)"),
        },
    )


# ------------------------------------------------------------------------- a table for each head


def by_tables(x: Tensor, tables: Tensor, biases: Tensor) -> Tensor:
    return einsum(x, tables, "b n e, h d e -> b h n d") + biases[:, None]


def reshaped(x: Tensor, tables: Tensor, biases: Tensor) -> Tensor:
    wide = einsum(x, tables, "b n e, h d e -> b n h d") + biases
    return wide.reshape(len(x), len(tables), x.shape[1], -1)


TABLE_MISTAKES = {
    "head-biases-missing": lambda x, tables, biases: by_tables(x, tables, 0 * biases),
    "head-biases-subtracted": lambda x, tables, biases: by_tables(x, tables, -biases),
    "table-of-head-zero": lambda x, tables, biases: by_tables(
        x, tables[:1].expand_as(tables), biases
    ),
    "table-and-biases-of-head-zero": lambda x, tables, biases: by_tables(
        x, tables[:1].expand_as(tables), biases[:1].expand_as(biases)
    ),
    "biases-of-head-zero": lambda x, tables, biases: by_tables(
        x, tables, biases[:1].expand_as(biases)
    ),
    "sum-of-head-tables": (
        lambda x, tables, biases: by_tables(
            x, tables.sum(0, keepdim=True).expand_as(tables), biases
        )
    ),
    "sum-of-head-biases": lambda x, tables, biases: by_tables(
        x, tables, biases.sum(0, keepdim=True).expand_as(biases)
    ),
    "biases-added-each-time": (
        lambda x, tables, biases: by_tables(x, tables, biases * x.shape[-1])
    ),
    "mean-over-token": lambda x, tables, biases: by_tables(x, tables / x.shape[-1], biases),
    "heads-reshaped-to-front": reshaped,
    "heads-reversed": lambda x, tables, biases: by_tables(x, tables, biases).flip(1),
}


@exercise("02.3", "A table for each head: the loop, then without it")
def table_for_each_head(heads_loop, heads) -> Message | str:
    written(heads_loop, heads)

    def inputs(case: Case) -> tuple[Tensor, ...]:
        return case.randn("b n e"), case.randn("h d e"), case.randn("h d")

    options = {"mistakes": TABLE_MISTAKES, "trials": Trials(ones=True)}
    same_function(heads_loop, by_tables, inputs, loops="asked", **options)
    return same_function(heads, by_tables, inputs, loops="forbidden", **options)


# ----------------------------------------------------------------------------- two projections


class Queries(nn.Module):
    """The right projection, or one with another way to split."""

    def __init__(self, embed_dim: int, num_heads: int, split: Callable | None = None):
        super().__init__()
        self.num_heads, self.split = num_heads, split
        self.q_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x: Tensor) -> Tensor:
        split = self.split or (lambda t, h: rearrange(t, "b n (h d) -> b h n d", h=h))
        return split(self.q_proj(x), self.num_heads)


def embedding_and_heads(case: Case) -> dict[str, int]:
    return {"embed_dim": case["h"] * case["d"], "num_heads": case["h"]}


def queries_that(split: Callable) -> Callable[..., nn.Module]:
    return lambda embed_dim, num_heads: Queries(embed_dim, num_heads, split)


@exercise("02.4", "Find the bug")
def find_the_bug(Healthy) -> Message | str:
    return same_module(
        Healthy,
        Queries,
        embedding_and_heads,
        lambda case: (case.randn("b n (h d)"),),
        mistakes={
            BY_MEMORY: queries_that(lambda t, h: t.reshape(len(t), h, t.shape[1], -1)),
            EVERY_HTH: queries_that(lambda t, h: rearrange(t, "b n (d h) -> b h n d", h=h)),
        },
    )


class Wide(nn.Module):
    """The right wide projection, or one that reads its rows otherwise."""

    def __init__(self, embed_dim: int, num_heads: int, read: Callable | str | None = None):
        super().__init__()
        self.num_heads = num_heads
        self.read = read or "b n (three h d) -> three b h n d"
        self.qkv_proj = nn.Linear(embed_dim, 3 * embed_dim)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        wide = self.qkv_proj(x)
        if callable(self.read):
            return self.read(wide, self.num_heads)
        return tuple(rearrange(wide, self.read, three=3, h=self.num_heads))


def wide_that(read: Callable | str) -> Callable[..., nn.Module]:
    return lambda embed_dim, num_heads: Wide(embed_dim, num_heads, read)


def thirds(wide: Tensor, h: int) -> Tensor:
    return rearrange(wide, "b n (three h d) -> three b h n d", three=3, h=h)


WIDE_MISTAKES = {
    "wide-read-head-by-head": ("b n (h three d) -> three b h n d"),
    "wide-read-in-turns": "b n (h d three) -> three b h n d",
    "wide-every-hth": "b n (three d h) -> three b h n d",
    "wide-heads-by-memory": (
        lambda wide, h: tuple(
            part.reshape(len(wide), h, wide.shape[1], -1) for part in wide.chunk(3, dim=-1)
        )
    ),
    "wide-parts-by-memory": (
        lambda wide, h: tuple(wide.reshape(3, len(wide), h, wide.shape[1], -1))
    ),
    "wide-queries-keys-exchanged": lambda wide, h: tuple(thirds(wide, h)[[1, 0, 2]]),
    "wide-keys-values-exchanged": lambda wide, h: tuple(thirds(wide, h)[[0, 2, 1]]),
    "wide-reversed": lambda wide, h: tuple(thirds(wide, h)[[2, 1, 0]]),
    "wide-keys-as-values": lambda wide, h: tuple(thirds(wide, h)[[0, 1, 1]]),
    "wide-all-queries": lambda wide, h: tuple(thirds(wide, h)[[0, 0, 0]]),
}


def sorted_by(pattern: str) -> Callable[[Tensor, int], Tensor]:
    return lambda weight, h: rearrange(weight, pattern, three=3, h=h)


@exercise("02.5", "One wide projection, and weights from elsewhere")
def wide_projection(WideProjection, in_our_order) -> Message | str:
    written(WideProjection, in_our_order)
    compared = same_module(
        WideProjection,
        Wide,
        embedding_and_heads,
        lambda case: (case.randn("b n (h d)"),),
        mistakes={words: wide_that(read) for words, read in WIDE_MISTAKES.items()},
    )
    same_function(
        in_our_order,
        sorted_by("(h three d) e -> (three h d) e"),
        lambda case: (case.randn("(h 3 d) e"), case["h"]),
        mistakes={
            "order-ours-to-theirs": sorted_by("(three h d) e -> (h three d) e"),
            "order-every-hth": sorted_by("(h three d) e -> (three d h) e"),
            "order-read-in-turns": sorted_by("(h d three) e -> (three h d) e"),
            "order-read-dh-three": sorted_by("(d h three) e -> (three h d) e"),
        },
    )
    return message("and-weights-find-places", compared=compared)


# -------------------------------------------------------------------------------- the experiment


@exercise("02.6", "How large is the first query?")
def first_query(measure, gain) -> Message | str:
    written(measure, gain)
    measured = same_measure(
        measure,
        lambda e, tables: 2 / (1 + tables),
        [(64, 3), (96, 2), (80, 1), (48, 6)],
        what="variance-of-queries",
        mistakes={
            "variance-of-own-table": lambda e, tables: 1.0,
            "deviation-not-variance": lambda e, tables: (2 / (1 + tables)) ** 0.5,
            "variance-of-weights": lambda e, tables: 2 / (1 + tables) / e,
            "linear-fills-otherwise": lambda e, tables: 1 / 3,
        },
    )
    same_measure(
        gain,
        lambda tables: ((1 + tables) / 2) ** 0.5,
        [(8,), (2,), (3,), (5,)],
        what="gain-for-variance-one",
        within=0.05,
        draws=False,
        mistakes={
            "gain-root-missing": lambda tables: (1 + tables) / 2,
            "gain-root-of-tables": lambda tables: tables**0.5,
            "gain-upside-down": lambda tables: (2 / (1 + tables)) ** 0.5,
            "gain-is-variance": lambda tables: 2 / (1 + tables),
            "gain-for-three-tables": lambda tables: 2**0.5,
            "gain-is-number-of-tables": lambda tables: float(tables),
        },
    )
    return message("and-gain-fits", measured=measured)


open_exercise("02.7", "One table for query and key")
