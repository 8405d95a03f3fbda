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
from checks.engine.patches import patches
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
    products = einsum(x, tables, "b n e, h d e -> b h n d")
    heads = products + biases[:, None]
    return heads


PLUS, BIASES_OF_ZERO = " + biases[:, None]", ("biases[:, None]", "biases[0]")
TABLE_OF_ZERO = ("x, tables,", "x, tables[:1].expand_as(tables),")
RESHAPED = "heads = (products + biases).reshape(len(x), len(tables), x.shape[1], -1)"
TABLE_MISTAKES = patches(
    by_tables,
    {
        "head-biases-missing": (PLUS, ""),
        "head-biases-subtracted": (PLUS, " - biases[:, None]"),
        "table-of-head-zero": TABLE_OF_ZERO,
        "table-and-biases-of-head-zero": (*TABLE_OF_ZERO, *BIASES_OF_ZERO),
        "biases-of-head-zero": BIASES_OF_ZERO,
        "sum-of-head-tables": ("x, tables,", "x, tables.sum(0).expand_as(tables),"),
        "sum-of-head-biases": ("biases[:, None]", "biases.sum(0)"),
        "biases-added-each-time": (PLUS, f"{PLUS} * x.shape[-1]"),
        "mean-over-token": (PLUS, f" / x.shape[-1]{PLUS}"),
        "heads-reshaped-to-front": ("b h n d", "b n h d", f"heads = products{PLUS}", RESHAPED),
        "heads-reversed": ("return heads", "return heads.flip(1)"),
    },
)


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
    """The right projection."""

    def __init__(self, embed_dim: int, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x: Tensor) -> Tensor:
        q = self.q_proj(x)
        return rearrange(q, "b n (h d) -> b h n d", h=self.num_heads)


def embedding_and_heads(case: Case) -> dict[str, int]:
    return {"embed_dim": case["h"] * case["d"], "num_heads": case["h"]}


SPLIT = 'rearrange(q, "b n (h d) -> b h n d", h=self.num_heads)'


@exercise("02.4", "Find the bug")
def find_the_bug(Healthy) -> Message | str:
    return same_module(
        Healthy,
        Queries,
        embedding_and_heads,
        lambda case: (case.randn("b n (h d)"),),
        mistakes=patches(
            Queries,
            {
                BY_MEMORY: (SPLIT, "q.reshape(len(q), self.num_heads, q.shape[1], -1)"),
                EVERY_HTH: ("(h d)", "(d h)"),
            },
        ),
    )


class Wide(nn.Module):
    """The right wide projection."""

    def __init__(self, embed_dim: int, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.qkv_proj = nn.Linear(embed_dim, 3 * embed_dim)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        wide, h = self.qkv_proj(x), self.num_heads
        q, k, v = rearrange(wide, "b n (three h d) -> three b h n d", three=3, h=h)
        return q, k, v


READ = 'rearrange(wide, "b n (three h d) -> three b h n d", three=3, h=h)'
BY_THIRDS = "(t.reshape(len(x), h, x.shape[1], -1) for t in wide.chunk(3, dim=-1))"
RETURNED = "return q, k, v"
WIDE_MISTAKES = patches(
    Wide,
    {
        "wide-read-head-by-head": ("(three h d)", "(h three d)"),
        "wide-read-in-turns": ("(three h d)", "(h d three)"),
        "wide-every-hth": ("(three h d)", "(three d h)"),
        "wide-heads-by-memory": (READ, BY_THIRDS),
        "wide-parts-by-memory": (READ, "wide.reshape(3, len(x), h, x.shape[1], -1)"),
        "wide-queries-keys-exchanged": (RETURNED, "return k, q, v"),
        "wide-keys-values-exchanged": (RETURNED, "return q, v, k"),
        "wide-reversed": (RETURNED, "return v, k, q"),
        "wide-keys-as-values": (RETURNED, "return q, k, k"),
        "wide-all-queries": (RETURNED, "return q, q, q"),
    },
)


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
        mistakes=WIDE_MISTAKES,
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
