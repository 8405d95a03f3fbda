"""A product of matrices to touch: choose one number of the result and see what it is made of."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from utils.draw.explorer import check_name, page
from utils.draw.style import as_array, as_texts, as_words, color_scale, heat_colors, ink_on

if TYPE_CHECKING:
    from IPython.display import HTML

MOST = 120  # numbers in a table that an eye can still follow
EXAMPLE = "'i d, j d -> i j'"
Place = dict[str, int]  # axis letter -> index


@dataclass(frozen=True)
class _Table:
    """Hold what is seen of a factor or of the product: its numbers as words, and their colours."""

    title: str
    axes: list[str]  # (loop,) rows, columns
    words: np.ndarray
    colors: np.ndarray
    result: bool = False

    def word(self, place: Mapping[str, int]) -> str:
        return str(self.words[tuple(place[axis] for axis in self.axes)])


def explore_product(
    name: str,
    left: Tensor,
    right: Tensor,
    axes: str = "i d, j d -> i j",
    *,
    titles: Sequence[str] = ("left", "right", "product"),
    chosen: tuple[int, int] = (0, 0),
) -> HTML:
    """Show two tables and their product, in which every number can be taken apart.

    A click on a number of the product, or the arrow keys, light up the numbers that it is made of
    and write out their sum. Where no script runs, the page says it for the chosen number.

    >>> explore_product("scores", q, k, "i d, j d -> i j", titles=("queries", "keys", "scores"))

    Args:
        name: lower-case letters, digits and hyphens; another one for each explorer of a page.
        left: the first factor.
        right: the second factor.
        axes: the axes of both factors and of the product, as in einsum; the product lacks the one
            that is summed over. A letter that stands first in all three, such as `h` in
            "h i d, h j d -> h i j", is chosen from a list.
        titles: texts above the left table, the right one and the product.
        chosen: row and column of the number that is taken apart first.

    Shape:
        left, right  two axes, or three with the one to choose from; at most 120 numbers a table

    Raises:
        ValueError: a bad name, axes that do not fit, too many numbers, or chosen outside.
    """
    check_name("explore_product", name)
    titles = as_texts("explore_product", "titles", titles, 3, "tables")
    letters = _letters(axes)
    numbers = _multiply(axes, letters, as_array(left), as_array(right))
    tables = [
        _Table(title, axis, np.reshape(as_words([table])[0], table.shape),
               heat_colors(table, color_scale([table])), axis is letters[2])
        for title, axis, table in zip(titles, letters, numbers, strict=True)
    ]  # fmt: skip
    loop, rows, columns = numbers[2].shape if len(letters[2]) == 3 else (1, *numbers[2].shape)
    if not (0 <= chosen[0] < rows and 0 <= chosen[1] < columns):
        raise ValueError(
            f"explore_product: chosen must be a cell of the {rows} x {columns} product, "
            f"got chosen={tuple(chosen)}. Use (0, 0)."
        )
    first = dict(zip(letters[2][-2:], chosen, strict=True))
    looped = letters[2][:-2]
    rounded = any(not np.allclose(table, np.round(table, 2), atol=1e-9) for table in numbers)
    body = "\n".join(
        _part(tables, {**dict.fromkeys(looped, index), **first}, rounded) for index in range(loop)
    )
    data = {"chosen": [int(index) for index in chosen], "loop": "".join(looped)}
    return page(name, "product", f"\n{body}\n", data)


def _letters(axes: str) -> list[list[str]]:
    """Return the axes of the left factor, of the right one and of the product."""
    sides = [side.split() for side in axes.replace("->", ",").split(",")]
    fits = axes.count("->") == 1 and len(sides) == 3 and len({len(s) for s in sides}) == 1
    if fits:
        left, right, result = sides
        looped, own = result[:-2], [*result[-2:]]
        summed = [axis for axis in left if axis in right and axis not in result]
        fits = (
            len(result) in (2, 3)
            and left[:-2] == right[:-2] == looped
            and len(summed) == 1
            and sorted([*own, *summed * 2]) == sorted([*left[-2:], *right[-2:]])
            and len({*own, *summed, *looped}) == len(result) + 1
        )
    if not fits:
        raise ValueError(
            "explore_product: axes must name two factors and a product of two axes each, with one "
            f"axis summed over, got axes={axes!r}. Write for example {EXAMPLE}."
        )
    return sides


def _multiply(
    axes: str, letters: Sequence[Sequence[str]], left: np.ndarray, right: np.ndarray
) -> list[np.ndarray]:
    """Return both factors and their product, after checking that the sizes fit."""
    sizes: dict[str, int] = {}
    for side, table in zip(letters[:2], (left, right), strict=True):
        fits = len(side) == table.ndim and 0 < table.size <= MOST
        if not fits or any(
            sizes.setdefault(axis, size) != size
            for axis, size in zip(side, table.shape, strict=True)
        ):
            raise ValueError(
                f"explore_product: the factors must have the axes {axes!r} and 1 to {MOST} "
                f"numbers each, got left={left.shape} and right={right.shape}. "
                "Take a small part, such as q[0]."
            )
    short = {axis: chr(ord("a") + place) for place, axis in enumerate(sizes)}
    sides = ["".join(short[axis] for axis in side) for side in letters]
    factors = [left.astype(np.float64), right.astype(np.float64)]
    return [*factors, np.einsum(f"{sides[0]},{sides[1]}->{sides[2]}", *factors)]


def _part(tables: Sequence[_Table], chosen: Place, rounded: bool) -> str:
    """Return the three tables of one index of the loop, and the sum of the chosen number."""
    left, right, result = tables
    sums = {at: _sum(left, right, result, place, rounded) for at, place in _places(result, chosen)}
    shown = "\n".join(_table(table, chosen, sums) for table in tables)
    looped = result.axes[:-2]
    head = "".join(f'<p class="sbs-title">{axis} = {chosen[axis]}</p>\n' for axis in looped)
    said = html.escape(sums[tuple(chosen[axis] for axis in result.axes[-2:])])
    return (
        f'<div class="sbs-part">\n{head}<div class="sbs-row sbs-panels">\n{shown}\n</div>\n'
        f'<p class="sbs-said">{said}</p>\n</div>'
    )


def _places(table: _Table, chosen: Place) -> Iterator[tuple[tuple[int, int], Place]]:
    """Give (row, column) and the place of every number of a table, row by row."""
    rows, columns = table.words.shape[-2:]
    for at in product(range(rows), range(columns)):
        yield at, {**chosen, **dict(zip(table.axes[-2:], at, strict=True))}


def _sum(left: _Table, right: _Table, result: _Table, place: Place, rounded: bool) -> str:
    """Write out the products that one number of the result is the sum of."""
    (summed,) = set(left.axes) - set(result.axes)
    size = left.words.shape[left.axes.index(summed)]
    terms = [
        f"{_signed(left.word(at))} × {_signed(right.word(at))}"
        for at in ({**place, summed: index} for index in range(size))
    ]
    where = ", ".join(f"{axis} = {place[axis]}" for axis in result.axes)
    total = result.word(place)
    note = ", computed before rounding to two digits" if rounded else ""
    return f"{result.title} at {where}, the sum over {summed}: {' + '.join(terms)} = {total}{note}."


def _signed(word: str) -> str:
    return f"({word})" if word.startswith("-") else word


def _table(table: _Table, chosen: Place, sums: Mapping[tuple[int, int], str]) -> str:
    """Return a table as HTML; what the chosen number is made of is marked."""
    rows, columns = table.axes[-2:]
    heads = [_head("col", {columns: c}, chosen) for c in range(table.words.shape[-1])]
    lines = [f"<tr><th>{rows} \\ {columns}</th>{''.join(heads)}</tr></thead>\n<tbody>"]
    for at, place in _places(table, chosen):
        if at[1] == 0:
            lines.append("<tr>" + _head("row", {rows: at[0]}, chosen))
        lines[-1] += _cell(table, place, chosen, sums[at] if table.result else "")
        if at[1] == table.words.shape[-1] - 1:
            lines[-1] += "</tr>"
    kind = "sbs-table sbs-result" if table.result else "sbs-table"
    inside = "\n".join(lines)
    return (
        f'<table class="{kind}"><caption>{html.escape(table.title)}</caption>\n'
        f"<thead>{inside}\n</tbody></table>"
    )


def _head(scope: str, place: Place, chosen: Place) -> str:
    """Return the head of a row or column: its number, with its letter for a screen reader."""
    ((axis, index),) = place.items()
    return f'<th scope="{scope}" aria-label="{axis} {index}"{_marks(place, chosen)}>{index}</th>'


def _cell(table: _Table, place: Place, chosen: Place, said: str) -> str:
    """Return one number on its colour; one of the product knows how it came about."""
    at = {axis: place[axis] for axis in table.axes[-2:]}
    color = table.colors[tuple(place[axis] for axis in table.axes)]
    red, green, blue = (round(255 * level) for level in color)
    where, word = ", ".join(f"{axis} = {index}" for axis, index in at.items()), table.word(place)
    data = f' data-said="{html.escape(said)}"' if said else ""
    return (
        f'<td{_marks(at, chosen)}{data} title="{where}: {word}" '
        f'style="background-color: rgb({red}, {green}, {blue}); color: {ink_on(color)}">{word}</td>'
    )


def _marks(at: Place, chosen: Place) -> str:
    """Say where a cell stands; it is lit when it agrees with the chosen one in what they share."""
    shared = at.keys() & chosen.keys()
    lit = shared and all(at[axis] == chosen[axis] for axis in shared)
    places = " ".join(f"{axis}={index}" for axis, index in at.items())
    return f' data-at="{places}"' + (" data-lit" if lit else "")
