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
from checks.engine.modules import same_module
from checks.engine.shortcuts import EINOPS
from checks.engine.verdict import exercise, open_exercise


@exercise("02.1", "Which shape?")
def which_shape(weight_shape, queries_shape, heads_shape, learned) -> str:
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
        "how many numbers q_proj learns",
        known={
            120: "the biases are missing, one for each number of a query",
            130: "there is one bias for each number of the query, not of the token",
            22: "these are the two widths added; each of the 12 numbers has a row of 10 weights",
            360: "the heads share the 12 rows, they have none of their own",
            396: "the heads share the 12 rows, they have none of their own",
            840: "the number of tokens does not matter: all share the same weights",
        },
    )
    return "the code gives all three shapes and the number"


# ----------------------------------------------------------------------------- split and join

BY_MEMORY = (
    "the numbers were cut as they lie in memory, and tokens and heads never changed places: "
    "reshape or view cannot move an axis, transpose can"
)
EVERY_HTH = (
    "a head takes every h-th number of a token, as (d h) does; it must take neighbours, (h d): "
    "the heads' axis comes before d when the width is split"
)


@exercise("02.2", "Split and join without einops")
def split_and_join(split_heads, join_heads) -> str:
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
            "the heads are shuffled into each other, as in (d h); each head's numbers must stay "
            "together, (h d)": lambda heads: rearrange(heads, "b h n d -> b n (d h)"),
        },
    )


# ------------------------------------------------------------------------- a table for each head


def by_tables(x: Tensor, tables: Tensor, biases: Tensor) -> Tensor:
    return einsum(x, tables, "b n e, h d e -> b h n d") + biases[:, None]


def reshaped(x: Tensor, tables: Tensor, biases: Tensor) -> Tensor:
    wide = einsum(x, tables, "b n e, h d e -> b n h d") + biases
    return wide.reshape(len(x), len(tables), x.shape[1], -1)


TABLE_MISTAKES = {
    "the biases are missing": lambda x, tables, biases: by_tables(x, tables, 0 * biases),
    "the biases are subtracted": lambda x, tables, biases: by_tables(x, tables, -biases),
    "every head has the table of head 0": lambda x, tables, biases: by_tables(
        x, tables[:1].expand_as(tables), biases
    ),
    "every head has the table and the biases of head 0": lambda x, tables, biases: by_tables(
        x, tables[:1].expand_as(tables), biases[:1].expand_as(biases)
    ),
    "every head has the biases of head 0": lambda x, tables, biases: by_tables(
        x, tables, biases[:1].expand_as(biases)
    ),
    "every head has the sum of all tables: h must stand in the tables and in the result": (
        lambda x, tables, biases: by_tables(
            x, tables.sum(0, keepdim=True).expand_as(tables), biases
        )
    ),
    "every head has the sum of all biases": lambda x, tables, biases: by_tables(
        x, tables, biases.sum(0, keepdim=True).expand_as(biases)
    ),
    "the biases are added once for each number of a token: add them after the sum over e": (
        lambda x, tables, biases: by_tables(x, tables, biases * x.shape[-1])
    ),
    "the sum over e is a mean": lambda x, tables, biases: by_tables(
        x, tables / x.shape[-1], biases
    ),
    "the heads are right, but reshape brought them in front; that cuts them elsewhere, name the "
    "axes instead": reshaped,
    "the heads come in reverse order": lambda x, tables, biases: by_tables(x, tables, biases).flip(
        1
    ),
}


@exercise("02.3", "A table for each head: the loop, then without it")
def table_for_each_head(heads_loop, heads) -> str:
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
def find_the_bug(Healthy) -> str:
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
    "the rows are read head by head, (h three d); here all queries come first, (three h d)": (
        "b n (h three d) -> three b h n d"
    ),
    "q, k and v take turns in every row, (h d three); here all queries come first, "
    "(three h d)": "b n (h d three) -> three b h n d",
    "a head takes every h-th number, (three d h); it must take neighbours, "
    "(three h d)": "b n (three d h) -> three b h n d",
    "the heads of all three are cut as they lie in memory: view or reshape alone moves no axis": (
        lambda wide, h: tuple(
            part.reshape(len(wide), h, wide.shape[1], -1) for part in wide.chunk(3, dim=-1)
        )
    ),
    "the three are cut as they lie in memory: view or reshape cannot bring `three` to the front": (
        lambda wide, h: tuple(wide.reshape(3, len(wide), h, wide.shape[1], -1))
    ),
    "queries and keys are exchanged": lambda wide, h: tuple(thirds(wide, h)[[1, 0, 2]]),
    "keys and values are exchanged": lambda wide, h: tuple(thirds(wide, h)[[0, 2, 1]]),
    "the three come in reverse order": lambda wide, h: tuple(thirds(wide, h)[[2, 1, 0]]),
    "the keys are given out as values, too": lambda wide, h: tuple(thirds(wide, h)[[0, 1, 1]]),
    "all three are the queries": lambda wide, h: tuple(thirds(wide, h)[[0, 0, 0]]),
}


def sorted_by(pattern: str) -> Callable[[Tensor, int], Tensor]:
    return lambda weight, h: rearrange(weight, pattern, three=3, h=h)


@exercise("02.5", "One wide projection, and weights from elsewhere")
def wide_projection(WideProjection, in_our_order) -> str:
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
            "this is the way from our order to theirs": sorted_by("(three h d) e -> (h three d) e"),
            "all is in another order than asked for, (three d h): the numbers of a head must stay "
            "neighbours, (three h d)": sorted_by("(h three d) e -> (three d h) e"),
            "the rows are taken as (h d three): of each head, q, k and v take turns; theirs are "
            "(h three d)": sorted_by("(h d three) e -> (three h d) e"),
            "the rows are taken as (d h three); theirs are (h three d)": sorted_by(
                "(d h three) e -> (three h d) e"
            ),
        },
    )
    return f"{compared}, and weights from elsewhere find their places"


# -------------------------------------------------------------------------------- the experiment


@exercise("02.6", "How large is the first query?")
def first_query(measure, gain) -> str:
    written(measure, gain)
    measured = same_measure(
        measure,
        lambda e, tables: 2 / (1 + tables),
        [(64, 3), (96, 2), (80, 1), (48, 6)],
        what="the variance of such queries",
        mistakes={
            "this is what a table (e, e) of its own gives; all tables must be filled at once, as "
            "one": lambda e, tables: 1.0,
            "this is the standard deviation, not its square": lambda e, tables: (
                (2 / (1 + tables)) ** 0.5
            ),
            "this is the variance of the weights, not of the queries": lambda e, tables: (
                2 / (1 + tables) / e
            ),
            "nn.Linear fills its table in another way: use nn.init.xavier_uniform_": (
                lambda e, tables: 1 / 3
            ),
        },
    )
    same_measure(
        gain,
        lambda tables: ((1 + tables) / 2) ** 0.5,
        [(8,), (2,), (3,), (5,)],
        what="the gain for a variance of 1",
        within=0.05,
        draws=False,
        mistakes={
            "a gain multiplies the variance by its square, so a root is missing": lambda tables: (
                (1 + tables) / 2
            ),
            "this is the square root of the number of tables: measure again with 3 tables, the "
            "variance is 1/2": lambda tables: tables**0.5,
            "it is upside down: the variance must grow": lambda tables: (2 / (1 + tables)) ** 0.5,
            "this is the variance without a gain": lambda tables: 2 / (1 + tables),
            "this is right for 3 tables only": lambda tables: 2**0.5,
            "this is the number of tables": lambda tables: float(tables),
        },
    )
    return f"{measured}, and the gain brings it to 1"


open_exercise("02.7", "One table for query and key")
