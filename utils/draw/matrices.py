"""Numbers as coloured cells: heat maps of matrices, and every number of a small tensor.

All cells of a picture are squares of one size, whatever the shapes of its tables: a (3, 8) is twice
as wide as a (3, 4), and rows stand beside rows. So every panel is placed by hand, in inches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colorbar import Colorbar
from matplotlib.colors import Normalize
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from utils.draw.style import (
    WIDTH,
    as_array,
    as_texts,
    as_words,
    color_map,
    color_scale,
    heat_colors,
    ink_on,
    is_rendering,
    show_figure,
    text_width,
)

# Inches.
LINE = 0.24  # a line of text beside or above a panel
GAP = 0.22  # between two panels
BAR = 0.16  # the width of a colour bar
BAR_WORDS = 0.55  # the numbers beside it
SMALL_PRINT = 9  # points, for numbers of more than four characters


@dataclass(kw_only=True)
class _Panel:
    """Hold one table with all that is written around it; labels are None where nothing stands."""

    table: np.ndarray
    norm: Normalize
    words: Sequence[str] | None = None  # in the cells, row by row
    title: str = ""
    rows: str = ""  # what the rows are
    columns: str = ""
    row_labels: Sequence[str] | None = None
    column_labels: Sequence[str] | None = None
    bar: bool = False  # a colour bar of its own
    where: str = ""  # what the words for the picture call it, where it has no title
    margins: dict[str, float] = field(default_factory=dict)

    def measure(self, cell: float) -> None:
        """Find out how many inches the texts around the table need on each side."""
        labels = max((text_width(text, 10) for text in self.row_labels or [""]), default=0)
        left = (labels + 0.1 if labels else 0) + (_row_name_width(self.rows) if self.rows else 0)
        below = 0.0
        if self.column_labels:
            widest = max(text_width(text, 10) for text in self.column_labels)
            below = 0.2 if not _turned(self.column_labels, cell) else 0.1 + widest
        beyond = max(0.0, (text_width(self.title) - self.table.shape[1] * cell) / 2)
        self.margins = {
            "left": max(left, beyond),
            "right": max(BAR + BAR_WORDS + 0.1 if self.bar else 0.0, beyond),
            "above": LINE * (1 + self.title.count("\n")) if self.title else 0.05,
            "below": below + (LINE if self.columns else 0.0),
        }


def show_matrices(
    matrices: Tensor | Sequence[Tensor],
    titles: str | Sequence[str] | None = None,
    rows: str | Sequence[str] = "query i",
    columns: str | Sequence[str] = "key j",
    row_labels: Sequence[str] | None = None,
    column_labels: Sequence[str] | None = None,
    values: bool | None = None,
    symmetric: bool = False,
    shared_scale: bool = True,
    alt: str | None = None,
) -> None:
    """Show matrices side by side as heat maps: the brighter, the larger.

    Args:
        matrices: one matrix, several of any sizes, or a stack. Bool ones are masks: True (bright) =
            may attend.
        titles: a text above each; one text does for one matrix.
        rows: what the rows are; one text for all matrices, or one for each.
        columns: what the columns are; one text for all matrices, or one for each.
        row_labels: one text a row instead of its number.
        column_labels: one text a column instead of its number.
        values: write the numbers into the cells; by default where they fit.
        symmetric: put 0 in the middle of the colours, and take those of signed numbers.
        shared_scale: the same colours mean the same numbers in every matrix.
        alt: words for who cannot see the picture; by default what the matrices hold.

    Shape:
        matrices  (rows, columns), a sequence of such, or (k, rows, columns)

    Raises:
        ValueError: no matrix, or one that is not 2-D; titles or labels that do not fit.
    """
    name = "show_matrices"
    tables = _tables(name, matrices)
    count = len(tables)
    titles = [titles] if isinstance(titles, str) else titles
    rows = [rows] * count if isinstance(rows, str) else rows
    columns = [columns] * count if isinstance(columns, str) else columns
    titles, rows, columns = (
        as_texts(name, option, texts, count, "matrices")
        for option, texts in (("titles", titles), ("rows", rows), ("columns", columns))
    )
    for option, texts, axis in (("row_labels", row_labels, 0), ("column_labels", column_labels, 1)):
        for table in tables if texts is not None else ():
            as_texts(name, option, texts, table.shape[axis], option.split("_")[0] + "s")

    mask = all(table.dtype == bool for table in tables)
    words = as_words(tables) if shared_scale else [as_words([table])[0] for table in tables]
    size = np.max([table.shape for table in tables], axis=0)
    cell = _cell(words)
    if values is None:
        values = size[1] * cell <= WIDTH * 0.7 and size[0] <= 16
    if not values:
        cell = _small_cell(count, *size)
    shared = color_scale(tables, symmetric, mask)
    panels = [
        _Panel(
            table=table, title=title, rows=row, columns=column,
            norm=shared if shared_scale else color_scale([table], symmetric, mask),
            words=texts if values else None, bar=not (shared_scale or mask),
            row_labels=_labels(row_labels, table.shape[0]),
            column_labels=_labels(column_labels, table.shape[1]),
        )
        for table, title, row, column, texts in zip(
            tables, titles, rows, columns, words, strict=True
        )
    ]  # fmt: skip
    said = alt or _said("Mask" if mask else "Heat map", panels)
    lines = _lines(panels, cell, bar=shared_scale and not mask)
    _draw(lines, cell, shared if shared_scale and not mask else None, "")
    show_figure(said)


def show_tensor(
    tensor: Tensor, names: str, title: str | None = None, alt: str | None = None
) -> None:
    """Show every number of a hand-sized tensor, so that each can be followed by its colour.

    The last two axes are a table; the axes before them lay out one table for each index.

    Args:
        tensor: a tensor of one to four axes and at most 240 numbers.
        names: one letter or word for each axis, such as "b n e".
        title: a text above the picture.
        alt: words for who cannot see the picture; by default its numbers.

    Raises:
        ValueError: too many axes or numbers, or names that do not fit.
    """
    table = as_array(tensor)
    words = names.split()
    if not 1 <= table.ndim <= 4 or not 0 < table.size <= 240:
        raise ValueError(
            "show_tensor: a tensor must have 1 to 4 axes and 1 to 240 numbers, "
            f"got shape={table.shape}. Take a part of it, such as tensor[0]."
        )
    if len(words) != table.ndim:
        raise ValueError(
            f"show_tensor: names must name every axis, got names={names!r} for "
            f"{table.ndim} axes of shape {table.shape}. Write {table.ndim} words with spaces."
        )
    shape = (1,) * (4 - table.ndim) + table.shape
    words = [""] * (4 - table.ndim) + words
    texts = np.reshape(as_words([table])[0], shape)
    norm = color_scale([table], mask=table.dtype == bool, zero=False)
    lines = []
    for b in range(shape[0]):
        blocks = [
            _Panel(
                table=table.reshape(shape)[b, a], norm=norm, words=list(texts[b, a].flat),
                title=", ".join(f"{w} = {i}" for w, i in ((words[0], b), (words[1], a)) if w),
                rows=words[2], columns=words[3], column_labels=_labels(None, shape[3]),
                row_labels=_labels(None, shape[2]) if words[2] else None, where="the numbers",
            )
            for a in range(shape[1])
        ]  # fmt: skip
        lines += _wrapped(blocks, _cell([list(texts.flat)]), WIDTH + 0.4)
    said = alt or _said(title or "Tensor", [panel for line in lines for panel in line])
    _draw(lines, _cell([list(texts.flat)]), None, title or "")
    show_figure(said)


# ---------------------------------------------------------------------------------------- sizes


def _tables(where: str, matrices: Tensor | Sequence[Tensor]) -> list[np.ndarray]:
    """Return one matrix, several, or a stack, as a list of 2-D arrays."""
    if isinstance(matrices, Tensor | np.ndarray):
        matrices = [matrices] if matrices.ndim == 2 else list(matrices)
    tables = [as_array(matrix) for matrix in matrices]
    if not tables or any(table.ndim != 2 or table.size == 0 for table in tables):
        shapes = [table.shape for table in tables]
        raise ValueError(
            f"{where}: matrices must be one or more non-empty 2-D tensors, got shapes={shapes}. "
            "Pick one matrix with an index, such as weights[0, 0]."
        )
    return tables


def _cell(words: Sequence[Sequence[str]]) -> float:
    """Return the side of a cell into which the longest number fits."""
    longest = max((word for texts in words for word in texts), key=len)
    return max(0.36, 0.1 + text_width("8" * len(longest), _print(longest)))


def _print(word: str) -> int:
    return 10 if len(word) <= 4 else SMALL_PRINT


def _small_cell(count: int, rows: int, columns: int) -> float:
    """Return the side of a cell without a number, so that the panels fill the page, not more."""
    across = count if count <= 4 else 3 if count in (5, 6, 9) else 4
    return min(0.4, ((WIDTH - 1.5) / across - GAP) / columns, 3.4 / rows)


def _labels(texts: Sequence[str] | None, count: int) -> list[str]:
    """Return one text for each row or column: its number, if nothing else was said."""
    if texts is not None:
        return list(map(str, texts))
    step = 1 if count <= 10 else next(s for s in (2, 5, 10, 20, 50, 100, count) if count / s <= 7)
    return [str(i) if i % step == 0 else "" for i in range(count)]


def _turned(labels: Sequence[str], cell: float) -> bool:
    """Say whether labels stand upright because they are wider than the room to the next one."""
    written = [place for place, text in enumerate(labels) if text]
    steps = [after - before for before, after in pairwise(written)]
    room = min(steps, default=len(labels)) * cell
    return max(text_width(text, 10) for text in labels) > 0.95 * max(room, cell)


def _row_name_width(text: str) -> float:
    return LINE if len(text) > 2 else text_width(text) + 0.14


def _lines(panels: list[_Panel], cell: float, bar: bool) -> list[list[_Panel]]:
    """Break panels into lines; panels of one kind share the names of their axes."""
    room = WIDTH - (BAR + BAR_WORDS if bar else 0.0)
    kinds = {(panel.table.shape, panel.rows, panel.columns) for panel in panels}
    if len(kinds) > 1 or panels[0].bar:
        return _wrapped(panels, cell, room)
    lone = _Panel(**{**vars(panels[0]), "rows": "", "row_labels": None})
    lone.title = max((panel.title for panel in panels), key=text_width)
    lines = _wrapped([panels[0], *[lone] * (len(panels) - 1)], cell, room)
    across = len(lines[0])
    for place, panel in enumerate(panels):
        if place % across:
            panel.rows, panel.row_labels = "", None
        if place + across < len(panels):
            panel.columns, panel.column_labels = "", None
    return [panels[at : at + across] for at in range(0, len(panels), across)]


def _wrapped(panels: list[_Panel], cell: float, room: float) -> list[list[_Panel]]:
    """Break panels into as few lines as the room allows, all about equally long."""
    widths = []
    for panel in panels:
        panel.measure(cell)
        wide = panel.table.shape[1] * cell
        widths.append(panel.margins["left"] + wide + panel.margins["right"] + GAP)
    for count in range(1, len(panels) + 1):
        across = math.ceil(len(panels) / count)
        lines = [panels[at : at + across] for at in range(0, len(panels), across)]
        longest = max(sum(widths[at : at + across]) for at in range(0, len(panels), across))
        if longest - GAP <= room:
            break
    return lines


# --------------------------------------------------------------------------------------- drawing


def _draw(lines: list[list[_Panel]], cell: float, shared: Normalize | None, title: str) -> None:
    """Draw lines of panels into a new figure: one size of cells, panels of a column aligned."""
    if not is_rendering():
        return
    for panel in (panel for line in lines for panel in line):
        panel.measure(cell)
    slots = [[line[k] for line in lines if k < len(line)] for k in range(len(lines[0]))]
    left = [max(panel.margins["left"] for panel in slot) for slot in slots]
    wide = [
        max(panel.table.shape[1] * cell + panel.margins["right"] for panel in slot) + GAP
        for slot in slots
    ]
    above = [max(panel.margins["above"] for panel in line) for line in lines]
    tall = [max(p.table.shape[0] * cell + p.margins["below"] for p in line) for line in lines]
    head = 0.3 if title else 0.0
    width = sum(left) + sum(wide) + (BAR + BAR_WORDS if shared else 0)
    height = head + sum(above) + sum(tall) + GAP * (len(lines) - 1)
    figure = plt.figure(figsize=(width, height))

    def axes(x: float, y: float, w: float, h: float) -> Axes:
        return figure.add_axes((x / width, 1 - (y + h) / height, w / width, h / height))

    y = head
    for i, line in enumerate(lines):
        y += above[i]
        x = 0.0
        for k, panel in enumerate(line):
            x += left[k]
            rows, columns = panel.table.shape
            image = _heat(axes(x, y, columns * cell, rows * cell), panel, cell)
            if panel.bar:
                beside = axes(x + columns * cell + 0.1, y, BAR, rows * cell)
                color_bar(figure.colorbar(image, cax=beside), rows * cell)
            x += wide[k]
        y += tall[i] + GAP
    if shared:
        high = min(2.4, max(rows for rows, _ in (p.table.shape for p in lines[0])) * cell)
        beside = axes(sum(left) + sum(wide) - GAP + 0.15, head + above[0], BAR, high)
        color_bar(figure.colorbar(image, cax=beside), high)
    if title:
        figure.suptitle(title, fontsize=11, y=1.0, va="top")


def _heat(ax: Axes, panel: _Panel, cell: float) -> AxesImage:
    """Draw one table into its axes, with the words in its cells and around it."""
    rows, columns = panel.table.shape
    numbers = np.ma.masked_invalid(panel.table.astype(np.float64))
    image = ax.imshow(
        numbers, color_map(panel.norm), panel.norm, interpolation="nearest", aspect="auto"
    )
    ax.set_frame_on(False)
    ax.tick_params(length=0)
    if panel.words or max(rows, columns) <= 20:
        line = {"color": "white", "linewidth": 1.0 if panel.words else 0.4}
        for r in range(1, rows):
            ax.axhline(r - 0.5, **line)
        for c in range(1, columns):
            ax.axvline(c - 0.5, **line)
    if panel.words:
        colors = heat_colors(panel.table, panel.norm)
        size = min(map(_print, panel.words))
        for (r, c), text in zip(np.ndindex(rows, columns), panel.words, strict=True):
            ax.text(c, r, text, ha="center", va="center", color=ink_on(colors[r, c]), size=size)
    ax.set_title(panel.title)
    ax.set_xlabel(panel.columns)
    _name_rows(ax, panel.rows)
    ax.set_yticks(range(rows) if panel.row_labels else [], panel.row_labels)
    ax.set_xticks(range(columns) if panel.column_labels else [], panel.column_labels)
    if panel.column_labels and _turned(panel.column_labels, cell):
        ax.tick_params(axis="x", rotation=90)
    return image


def _name_rows(ax: Axes, text: str) -> None:
    """Write what the rows are; a letter stands upright, for a lying i or n cannot be read."""
    if len(text) > 2:
        ax.set_ylabel(text)
    else:
        ax.set_ylabel(text, rotation=0, ha="right", va="center", labelpad=5)


def color_bar(bar: Colorbar, inches: float) -> None:
    """Write both ends of a scale of colours beside its bar, and round numbers between them."""
    low, high = bar.norm.vmin, bar.norm.vmax
    span = high - low
    whole = span >= 2 and low == round(low) and high == round(high)
    room = 0.22 / inches * span  # what one number takes
    ticks = MaxNLocator(max(1, int(inches / 0.45)), integer=whole).tick_values(low, high)
    ticks = [low, *(tick for tick in ticks if low + room < tick < high - room), high]
    digits = 0 if whole or span >= 20 else 1 if span >= 2 else 2 if span >= 0.05 else 4
    bar.set_ticks(ticks, labels=[f"{tick:.{digits}f}" for tick in ticks])
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=2)


# ----------------------------------------------------------------------------------------- words


def _said(kind: str, panels: Sequence[_Panel]) -> str:
    """Say what tables hold: every number where they are few, else the largest and its place."""
    return f"{kind}. " + " ".join(map(_panel_said, panels))


def _panel_said(panel: _Panel) -> str:
    rows, columns = panel.table.shape
    axes = [
        f"{count} {thing}{'s' if count > 1 else ''}" + (f" ({name})" if name else "")
        for count, thing, name in ((rows, "row", panel.rows), (columns, "column", panel.columns))
    ]
    head = f"{panel.title or panel.where or 'matrix'}, {axes[0]} and {axes[1]}"
    if panel.table.size <= 64:
        texts = np.reshape(as_words([panel.table])[0], panel.table.shape)
        return f"{head}: {'; '.join(' '.join(line) for line in texts)}."
    numbers = panel.table.astype(np.float64)
    finite = np.where(np.isfinite(numbers), numbers, np.nan)
    if np.isnan(finite).all():
        return f"{head}: no finite number."
    at = np.unravel_index(np.nanargmax(finite), finite.shape)
    low, high = as_words([np.array([np.nanmin(finite), np.nanmax(finite)])])[0]
    return f"{head}: from {low} to {high}, the largest in row {at[0]}, column {at[1]}."
