"""The few pictures that the chapters share: one line draws one, and all of them look alike."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike
from torch import Tensor

if TYPE_CHECKING:
    from IPython.display import HTML

WIDTH = 8.0  # inches: what a notebook shows without scrolling
HEAT = "viridis"  # its lightness only rises, so it survives a grey printer
# Black, blue, orange, sky, green: told apart by every kind of colour blindness, and in grey by
# the line style and the marker that go with each.
COLORS = ("#000000", "#0072b2", "#d55e00", "#56b4e9", "#009e73", "#7a7a7a")
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 3)))
MARKERS = ("o", "s", "^", "D", "v", "x")


def use_course_style() -> None:
    """Set the look of every picture of the course; call it once, in a chapter's import cell.

    Under Jupyter it also drops matplotlib's version from the PNG files, so that a picture that did
    not change is stored in the same bytes.
    """
    plt.rcParams.update(
        {
            "figure.dpi": 90,
            "savefig.dpi": "figure",
            "figure.facecolor": "white",
            "figure.figsize": (WIDTH, 4.0),
            "font.family": "DejaVu Sans",
            "font.size": 11,
            "axes.titlesize": 11,
            "axes.labelsize": 11,
            "xtick.labelsize": 10,
            "ytick.labelsize": 10,
            "legend.fontsize": 10,
            "legend.frameon": False,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.prop_cycle": plt.cycler(color=COLORS),
            "image.cmap": HEAT,
            "image.interpolation": "nearest",
            "lines.linewidth": 1.8,
            "lines.markersize": 5,
        }
    )
    try:
        from IPython import get_ipython
        from matplotlib_inline.config import InlineBackend
    except ImportError:  # plain Python
        return
    shell = get_ipython()
    if shell is not None:
        backend = InlineBackend.instance(parent=shell)
        backend.print_figure_kwargs = {"bbox_inches": "tight", "metadata": {"Software": None}}


def show_images(
    images: Tensor,
    titles: Sequence[str] | None = None,
    patch_size: int | tuple[int, int] | None = None,
    columns: int = 6,
) -> None:
    """Show pictures side by side, optionally with the lines along which patches are cut.

    Args:
        images: pictures with values from 0 to 1.
        titles: one text above each picture.
        patch_size: draw the grid of patches of this size; an int or (height, width).
        columns: pictures in one row.

    Shape:
        images  (k, c, H, W), c = 1 or 3

    Raises:
        ValueError: pictures of another shape or range; titles or patches that do not fit.
    """
    pictures = _pictures("show_images", images)
    titles = _texts("show_images", "titles", titles, len(pictures), "pictures")
    if columns < 1:
        raise ValueError(f"show_images: columns must be at least 1, got columns={columns}. Use 6.")
    grid = None if patch_size is None else _grid("show_images", pictures, patch_size)
    for ax, picture, title in zip(
        _panels(len(pictures), min(columns, len(pictures)), pictures.shape[1] / pictures.shape[2]),
        pictures,
        titles,
        strict=False,
    ):
        _picture(ax, picture, grid)
        ax.set_title(title)
    _show()


def show_patches(
    patches: Tensor,
    grid: tuple[int, int],
    titles: Sequence[str] | None = None,
    title: str | None = None,
) -> None:
    """Show patches apart from one another, in the grid that they were cut from.

    Args:
        patches: patches with values from 0 to 1, in token order.
        grid: rows and columns of the grid.
        titles: one text in each patch; by default its token number, where it fits.
        title: a text above the picture.

    Shape:
        patches  (n, c, ph, pw) with n = gh * gw, c = 1 or 3

    Raises:
        ValueError: patches of another shape or range; a grid or titles that do not fit.
    """
    pictures = _pictures("show_patches", patches)
    n, ph, pw, channels = pictures.shape
    gh, gw = _pair("show_patches", "grid", grid)
    if gh * gw != n:
        raise ValueError(
            f"show_patches: grid must hold every patch once, got grid={(gh, gw)} and {n} patches. "
            f"Pass a (rows, columns) whose product is {n}."
        )
    labels = titles
    if labels is None:
        labels = [str(i) for i in range(n)] if gw <= 16 else None
    labels = _texts("show_patches", "titles", labels, n, "patches")
    gap = max(1, round(max(ph, pw) / 6))
    sheet = np.ones((gh * (ph + gap) - gap, gw * (pw + gap) - gap, channels))
    corners = [(r * (ph + gap), c * (pw + gap)) for r, c in product(range(gh), range(gw))]
    for (y, x), picture in zip(corners, pictures, strict=True):
        sheet[y : y + ph, x : x + pw] = picture
    height, width = sheet.shape[:2]
    scale = min(WIDTH * 0.65 / width, 5.0 / height)
    _, ax = plt.subplots(figsize=(max(2.0, width * scale), height * scale), layout="constrained")
    _picture(ax, sheet, None)
    ax.set_title(title or "")
    for (y, x), label in zip(corners, labels, strict=True):
        # A frame, because a white patch on white would not be seen.
        ax.add_patch(Rectangle((x - 0.5, y - 0.5), pw, ph, fill=False, ec="#7a7a7a", lw=0.8))
        ax.text(
            x + (pw - 1) / 2, y + (ph - 1) / 2, label, ha="center", va="center", color="white",
            fontsize=float(np.clip(pw * scale * 72 / 3.2, 7, 12)),
            path_effects=[patheffects.withStroke(linewidth=2.5, foreground="black")],
        )  # fmt: skip
    _show()


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
    mask: bool = False,
) -> None:
    """Show matrices side by side as heat maps: the brighter, the larger.

    Args:
        matrices: one matrix, several of any sizes, or a stack.
        titles: a text above each; one text does for one matrix.
        rows: what the rows are; one text for all matrices, or one for each.
        columns: what the columns are; one text for all matrices, or one for each.
        row_labels: one text a row instead of its number.
        column_labels: one text a column instead of its number.
        values: write the numbers into the cells; by default where they fit.
        symmetric: put 0 in the middle of the colours.
        shared_scale: the same colours mean the same numbers in every matrix.
        mask: the matrices are masks, True (bright) = may attend. Bool matrices always are.

    Shape:
        matrices  (rows, columns), a sequence of such, or (k, rows, columns)

    Raises:
        ValueError: no matrix, or one that is not 2-D; titles or labels that do not fit.
    """
    name = "show_matrices"
    if isinstance(matrices, Tensor | np.ndarray):
        matrices = [matrices] if matrices.ndim == 2 else list(matrices)
    tables = [_array(matrix) for matrix in matrices]
    if not tables or any(table.ndim != 2 or table.size == 0 for table in tables):
        shapes = [table.shape for table in tables]
        raise ValueError(
            f"{name}: matrices must be one or more non-empty 2-D tensors, got shapes={shapes}. "
            "Pick one matrix with an index, such as weights[0, 0]."
        )
    titles = [titles] if isinstance(titles, str) else titles
    titles = _texts(name, "titles", titles, len(tables), "matrices")
    rows = [rows] * len(tables) if isinstance(rows, str) else rows
    rows = _texts(name, "rows", rows, len(tables), "matrices")
    columns = [columns] * len(tables) if isinstance(columns, str) else columns
    columns = _texts(name, "columns", columns, len(tables), "matrices")
    for option, texts, axis in (("row_labels", row_labels, 0), ("column_labels", column_labels, 1)):
        if texts is not None:
            for table in tables:
                _texts(name, option, texts, table.shape[axis], option.split("_")[0] + "s")
    mask = mask or all(table.dtype == bool for table in tables)

    most_rows, most_columns = (int(size) for size in np.max([t.shape for t in tables], axis=0))
    words = _words(tables) if shared_scale else [_words([table])[0] for table in tables]
    longest = max(len(word) for texts in words for word in texts)
    cell = max(0.34, 0.12 + 0.085 * longest)  # inches that the longest number needs
    if values is None:
        values = most_columns * cell <= WIDTH * 0.7 and most_rows <= 16
    kinds = zip([table.shape for table in tables], rows, columns, strict=True)
    alike = len(set(kinds)) == 1
    own_bar = not (shared_scale or mask)
    margin = 0.8 + 0.08 * max(map(len, row_labels or [""]))
    if not values:
        count = len(tables)
        across = count if count <= 4 else 3 if count in (5, 6, 9) else 4
        cell = min(
            0.4, (6.3 / across - (0.15 if alike else margin)) / most_columns, 3.4 / most_rows
        )
    width = max(most_columns * cell, 0.8)
    height = max(most_rows * (0.3 if values else cell), 0.4)
    each = width + (0.15 if alike else margin) + (0.7 if own_bar else 0)
    if values:
        across = max(1, min(len(tables), int((WIDTH - (1.4 if alike else 0.5)) / each)))
    down = math.ceil(len(tables) / across)
    figure, axes = plt.subplots(
        down, across, squeeze=False, layout="constrained",
        figsize=(across * each + (margin if alike else 0) + 0.7, down * (height + 0.45) + 0.5),
    )  # fmt: skip
    shared, image = _scale(tables, symmetric, mask), None
    for k, (table, title, texts) in enumerate(zip(tables, titles, words, strict=True)):
        ax = axes.flat[k]
        norm = shared if shared_scale else _scale([table], symmetric, mask)
        image = _heat(ax, table, norm, values, texts)
        ax.set_title(title)
        _ticks(ax, table.shape, row_labels, column_labels)
        # Matrices of one shape share their axes: say what they are once.
        below = k + across < len(tables)
        ax.set_xlabel("" if alike and below else columns[k])
        _name_rows(ax, "" if alike and k % across else rows[k])
        ax.tick_params(labelbottom=not (alike and below), labelleft=not (alike and k % across))
        if own_bar:
            figure.colorbar(image, ax=ax, shrink=0.8)
    for ax in axes.flat[len(tables) :]:
        ax.axis("off")
    if shared_scale and not mask:
        figure.colorbar(image, ax=axes, shrink=0.9 / down**0.5, aspect=18)
    _show()


def show_tensor(tensor: Tensor, names: str, title: str | None = None) -> None:
    """Show every number of a hand-sized tensor, so that each can be followed by its colour.

    The last two axes are a table; the axes before them lay out one table for each index.

    Args:
        tensor: a tensor of one to four axes and at most 240 numbers.
        names: one letter or word for each axis, such as "b n e".
        title: a text above the picture.

    Raises:
        ValueError: too many axes or numbers, or names that do not fit.
    """
    table = _array(tensor)
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
    blocks = table.reshape(shape)
    texts = _words([table])[0]
    cell = max(0.34, 0.12 + 0.085 * max(map(len, texts)))
    each = max(shape[3] * cell + 0.6, 1.3 if words[0] else 0.9)
    # Two leading axes make rows and columns of tables; one makes a row that may have to wrap.
    fit = max(1, int((WIDTH + 0.4) / each))
    across = min(shape[1], fit)
    down = shape[0] * math.ceil(shape[1] / across)
    figure, axes = plt.subplots(
        down, across, squeeze=False, layout="constrained",
        figsize=(max(across * each, 1.6), down * (shape[2] * 0.32 + 0.72) + (0.3 if title else 0)),
    )  # fmt: skip
    norm = _scale([table], False, table.dtype == bool, from_zero=False)
    wraps = math.ceil(shape[1] / across)
    for ax in axes.flat:
        ax.axis("off")
    for b, a in product(range(shape[0]), range(shape[1])):
        ax = axes[b * wraps + a // across, a % across]
        ax.axis("on")
        block = blocks[b, a]
        first = (b * shape[1] + a) * block.size
        _heat(ax, block, norm, True, texts[first : first + block.size])
        where = [f"{w} = {i}" for w, i in ((words[0], b), (words[1], a)) if w]
        ax.set_title(", ".join(where))
        ax.set_xlabel(words[3])
        _name_rows(ax, words[2])
        _ticks(ax, block.shape, None if words[2] else [""], None)
    if title:
        figure.suptitle(title, fontsize=12)
    _show()


def show_lines(
    x: ArrayLike | Tensor,
    series: Mapping[str, ArrayLike | Tensor | tuple[ArrayLike | Tensor, ArrayLike | Tensor]],
    x_label: str,
    y_label: str,
    title: str | None = None,
    log_x: bool = False,
    log_y: bool = False,
) -> None:
    """Show curves over one x axis; each has its own colour, line style and marker.

    Args:
        x: positions, as many as every curve has values.
        series: name -> values, or name -> (mean, standard deviation), drawn as a band.
        x_label: what x is.
        y_label: what the values are.
        title: a text above the picture.
        log_x: each step to the right multiplies x.
        log_y: each step up multiplies the value.

    Raises:
        ValueError: curves of another length than x, none, or more than six.
    """
    places = _array(x).astype(float)
    if places.ndim != 1 or not len(series):
        raise ValueError(
            "show_lines: x must be 1-D and series must not be empty, "
            f"got x of shape {places.shape} and {len(series)} series. Pass {{name: values}}."
        )
    if len(series) > len(COLORS):
        raise ValueError(
            f"show_lines: at most {len(COLORS)} series can be told apart, "
            f"got series={list(series)}. Draw two pictures."
        )
    _, ax = plt.subplots(figsize=(WIDTH * 0.85, 3.6), layout="constrained")
    for i, (name, curve) in enumerate(series.items()):
        banded = isinstance(curve, tuple) and len(curve) == 2 and np.ndim(_array(curve[0])) == 1
        mean, spread = [_array(c).astype(float) for c in (curve if banded else (curve, 0 * places))]
        if mean.shape != places.shape or spread.shape != places.shape:
            plt.close()
            raise ValueError(
                f"show_lines: every series must have one value for each x, got {name!r} of shape "
                f"{mean.shape} for x of shape {places.shape}. Pass values or (mean, sd)."
            )
        ax.plot(
            places, mean, label=name, color=COLORS[i], linestyle=LINES[i],
            marker=MARKERS[i] if len(places) <= 200 else None,
            markevery=max(1, len(places) // 12),
        )  # fmt: skip
        if banded:
            ax.fill_between(
                places, mean - spread, mean + spread, color=COLORS[i], alpha=0.18, linewidth=0
            )
    ax.set_xscale("log" if log_x else "linear")
    ax.set_yscale("log" if log_y else "linear")
    if len(places) <= 8 and (log_x or np.ptp(np.diff(places)) < 1e-9 * np.ptp(places)):
        ax.set_xticks([], minor=True)
        ax.set_xticks(places, [f"{place:g}" for place in places])
    elif not log_x and np.all(places == np.round(places)):
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel(x_label)
    ax.set_ylabel(y_label)
    ax.set_title(title or "")
    ax.grid(color="#dddddd", linewidth=0.6)
    if len(series) > 1:
        # Beside the curves, in the order of their ends: a legend that reads like direct labels.
        ends = {name: line.get_ydata()[-1] for name, line in zip(series, ax.lines, strict=True)}
        handles = sorted(ax.lines, key=lambda line: -np.nan_to_num(ends[line.get_label()]))
        ax.legend(handles=handles, loc="center left", bbox_to_anchor=(1.0, 0.5), handlelength=3.2)
    _show()


def show_bars(
    labels: Sequence[str],
    values: ArrayLike | Tensor,
    y_label: str,
    title: str | None = None,
    errors: ArrayLike | Tensor | None = None,
    reference: float | None = None,
    reference_label: str = "",
    limits: tuple[float, float] | None = None,
    digits: int = 2,
) -> None:
    """Show one horizontal bar for each label, with its value written at the end.

    Args:
        labels: what is compared, from top to bottom.
        values: one number for each label.
        y_label: what the numbers are, with the unit.
        title: a text above the picture.
        errors: one standard deviation for each label.
        reference: a number to compare with, drawn as a dashed line.
        reference_label: what that number is.
        limits: ends of the number axis, where 0 would hide the differences.
        digits: digits after the decimal point.

    Raises:
        ValueError: another number of values or errors than labels.
    """
    lengths = _array(values).astype(float)
    spread = None if errors is None else _array(errors).astype(float)
    labels = list(labels)
    bad = spread is not None and spread.shape != lengths.shape
    if lengths.shape != (len(labels),) or not labels or bad:
        raise ValueError(
            "show_bars: values and errors must have one number for each label, got "
            f"{len(labels)} labels, values of shape {lengths.shape} and errors of shape "
            f"{None if spread is None else spread.shape}. Make them equally long."
        )
    _, ax = plt.subplots(figsize=(WIDTH * 0.8, 0.36 * len(labels) + 1.0), layout="constrained")
    places = np.arange(len(labels))
    start = limits[0] if limits else 0.0
    ax.barh(places, lengths - start, left=start, color="#8fb8d9", edgecolor="black", height=0.66)
    if spread is not None and spread.any():
        some = spread > 0
        ax.errorbar(
            lengths[some], places[some], xerr=spread[some], fmt="none", color="black", capsize=3
        )
    if limits:
        ax.set_xlim(*limits)
    else:
        reach = lengths + (0 if spread is None else spread)
        low, high = min(0.0, lengths.min()), max(0.0, reach.max(), reference or 0.0)
        ax.set_xlim(low * 1.15, (high or 1.0) * 1.02)
    for place, length in zip(places, lengths, strict=True):
        error = 0.0 if spread is None else spread[place]
        text = f"{length:.{digits}f}" + (f" ± {error:.{digits}f}" if error > 0 else "")
        ax.annotate(
            text, (max(length, 0) + error, place), xytext=(5, 0), textcoords="offset points",
            va="center", annotation_clip=False, bbox={"fc": "white", "ec": "none", "pad": 1},
        )  # fmt: skip
    if reference is not None:
        ax.axvline(reference, color="black", linestyle="--", linewidth=1.2)
        ax.annotate(
            reference_label, (reference, -0.5), xytext=(0, 2), textcoords="offset points",
            ha="center", va="bottom", fontsize=10, annotation_clip=False,
        )  # fmt: skip
    ax.set_yticks(places, labels)
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(len(labels) - 0.5, -0.5)
    ax.set_xlabel(y_label)
    ax.set_title(title or "", pad=18 if reference_label else 6)
    _show()


def show_attention(
    images: Tensor,
    maps: Tensor,
    titles: Sequence[str] | None = None,
    query: int | tuple[int, int] | None = None,
) -> None:
    """Show pictures and, below each, where attention looks in it: the brighter, the more.

    Args:
        images: pictures with values from 0 to 1.
        maps: one share of attention for each patch of each picture.
        titles: one text above each picture.
        query: the patch that asks, framed: its number or (row, column); None for a class token.

    Shape:
        images  (k, c, H, W), c = 1 or 3
        maps    (k, gh, gw)

    Raises:
        ValueError: pictures, maps, titles or a query that do not fit together.
    """
    name = "show_attention"
    pictures, heats = _pictures(name, images), _array(maps)
    if heats.ndim != 3 or len(heats) != len(pictures) or heats.size == 0:
        raise ValueError(
            f"{name}: maps must be (k, gh, gw) with one map for each picture, got "
            f"maps={heats.shape} and images={_shape(images)}. Rearrange 'k (gh gw) -> k gh gw'."
        )
    titles = _texts(name, "titles", titles, len(pictures), "pictures")
    gh, gw = heats.shape[1:]
    high, wide = pictures.shape[1:3]
    if query is not None and not isinstance(query, tuple):
        query = divmod(int(query), gw)
    if query is not None and not (0 <= query[0] < gh and 0 <= query[1] < gw):
        raise ValueError(
            f"{name}: query must be a patch of the grid {(gh, gw)}, got query={query}. "
            f"Pick a number from 0 to {gh * gw - 1}, or None."
        )
    across = min(len(pictures), 6)
    blocks = math.ceil(len(pictures) / across)
    side = min(2.2, (WIDTH - 0.9) / across)
    figure, axes = plt.subplots(
        2 * blocks, across, squeeze=False, layout="constrained",
        figsize=(across * side + 0.9, blocks * (2 * side * high / wide + 0.35)),
    )  # fmt: skip
    norm, overlay = Normalize(0, max(float(np.nanmax(heats)), 1e-9)), None
    for ax in axes.flat:
        ax.axis("off")
    for k, (picture, heat) in enumerate(zip(pictures, heats, strict=True)):
        row, column = divmod(k, across)
        upper, lower = axes[2 * row, column], axes[2 * row + 1, column]
        for ax in (upper, lower):
            ax.axis("on")
            _picture(ax, picture, (gh, gw), thickness=0.5)
        box = (-0.5, wide - 0.5, high - 0.5, -0.5)
        overlay = lower.imshow(heat, HEAT, norm, alpha=0.85, extent=box, interpolation="nearest")
        # Wide enough for the picture, or smaller.
        fit = side * 72 / (0.62 * max(len(titles[k]), 1))
        upper.set_title(titles[k], fontsize=float(np.clip(fit, 7, 11)))
        if query is not None:
            corner = (query[1] * wide / gw - 0.5, query[0] * high / gh - 0.5)
            for ax, (line, color) in product((upper, lower), ((4.5, "black"), (2, "white"))):
                ax.add_patch(
                    Rectangle(corner, wide / gw, high / gh, fill=False, ec=color, lw=line, zorder=3)
                )
    figure.colorbar(overlay, ax=axes, shrink=0.7, aspect=25, label="share of attention")
    _show()


# --- clickable pictures ---------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Frame:
    """Hold what an explorer shows for one choice of its controls.

    A query is what can be chosen with a click: first the explorer's buttons (such as a class
    token), then the cells of the grid, row by row; with select="row" the rows of the grid.

    Args:
        image: the picture under the grid, values from 0 to 1; None shows the heat alone.
        heat: numbers of the cells, one grid for all queries or one for each; a bool heat is a mask.
            None enlarges the chosen cell of the image instead.
        grid: rows and columns; needed only without heat.
        caption: one text, in which {row}, {column} and {token} stand for the chosen cell, or one
            text for each query.

    Shape:
        image  (c, H, W), c = 1 or 3
        heat   (gh, gw) or (queries, gh, gw)
    """

    image: Tensor | None = None
    heat: Tensor | None = None
    grid: tuple[int, int] | None = None
    caption: str | Sequence[str] = ""


def explorer(
    name: str,
    frames: Mapping[Any, Frame],
    controls: Mapping[str, Sequence[Any]],
    *,
    titles: tuple[str, str] = ("", ""),
    select: str | None = "cell",
    buttons: Sequence[str] = (),
    rows: str = "",
    columns: str = "",
    scale_label: str = "",
    peak: float | None = None,
    start: Any = None,
    query: int = 0,
) -> HTML:
    """Make a clickable picture: controls choose a frame, a click in its grid chooses a query.

    The result is HTML and JavaScript that needs no network and no kernel. Heats travel as whole
    per cent (per mille where no heat is above 0.2): compute them in float64, so that no last digit
    of a float changes the output.

    Args:
        name: lower-case letters, digits and hyphens; another one for each explorer of a page.
        frames: a frame for each combination of options, keyed by their tuple (or by the option
            itself if there is one control).
        controls: label -> options. Numbers make a slider, texts a list.
        titles: texts above the picture and above the heat (or the enlarged patch).
        select: what a click chooses: a "cell", a "row", or None for nothing.
        buttons: queries outside the grid, such as ["class token"]; they come first.
        rows: what the rows are; numbers them.
        columns: what the columns are; numbers them.
        scale_label: what the heat means.
        peak: the brightest value; by default the next tenth above the largest heat.
        start: the key of the frame that is shown first.
        query: the query that is chosen first.

    Raises:
        ValueError: a bad name, missing frames, values out of range, or captions that do not fit.
    """
    if not re.fullmatch(r"[a-z][a-z0-9-]*", name):
        raise ValueError(
            "explorer: name must be lower-case letters, digits and hyphens, "
            f"got name={name!r}. Write something like 'patch-size'."
        )
    if select not in ("cell", "row", None):
        raise ValueError(
            f"explorer: select must be 'cell', 'row' or None, got select={select!r}. Pick one."
        )
    keys = list(product(*controls.values()))
    found = {key if isinstance(key, tuple) else (key,): frame for key, frame in frames.items()}
    if not keys or not controls or set(keys) != set(found):
        odd = sorted(map(repr, set(keys) ^ set(found)))[:3]
        raise ValueError(
            "explorer: frames must hold one frame for each combination of options, got "
            f"{len(found)} frames for {len(keys)} combinations, odd ones={odd}. "
            "Use the options as keys."
        )
    start = keys[0] if start is None else start if isinstance(start, tuple) else (start,)
    if start not in found:
        raise ValueError(
            f"explorer: start must be a key of frames, got start={start}. Use {keys[0]}."
        )

    heats = {key: None if f.heat is None else _array(f.heat) for key, f in found.items()}
    known = [heat for heat in heats.values() if heat is not None]
    mask = bool(known) and all(heat.dtype == bool for heat in known)
    numbers = np.concatenate([heat.ravel().astype(np.float64) for heat in known] or [np.zeros(1)])
    low, high = float(numbers.min()), float(numbers.max())
    if peak is None:
        peak = 1.0 if mask or not high < np.inf else max(1, math.ceil(high * 10 - 1e-4)) / 10
    if not (low >= 0 and high <= peak * (1 + 1e-4)):  # also catches nan
        raise ValueError(
            f"explorer: heat must lie from 0 to peak, got {low:g} to {high:g} and "
            f"peak={peak:g}. Pass shares, such as softmax weights, or a larger peak."
        )

    unit = 1 if mask else 100 if peak > 0.2 else 1000
    images: list[dict[str, Any]] = []
    packed = [
        _pack(name, key, found[key], heats[key], select, list(buttons), unit, images)
        for key in keys
    ]
    kinds = {(frame["image"] is None, frame["heat"] is None) for frame in packed}
    if len(kinds) > 1:
        raise ValueError(
            "explorer: all frames must show the same things, got some with image or heat and some "
            "without. Give image and heat to every frame or to none."
        )
    here = packed[keys.index(start)]["grid"]
    count = max(1, len(buttons) + {"cell": here[0] * here[1], "row": here[0], None: 0}[select])
    if not 0 <= query < count:
        raise ValueError(
            f"explorer: query must be one of the {count} queries of the frame {start}, "
            f"got query={query}. Pick a number from 0 to {count - 1}."
        )
    data = {
        "controls": [
            {
                "label": label,
                "options": [str(option) for option in options],
                "slider": all(isinstance(option, int | float) for option in options),
                "start": list(options).index(chosen),
            }
            for (label, options), chosen in zip(controls.items(), start, strict=True)
        ],
        "frames": packed, "images": images, "titles": list(titles), "select": select,
        "buttons": list(buttons), "rows": rows, "columns": columns,
        "label": scale_label or ("may attend" if mask else ""),
        "unit": unit, "peak": peak, "query": query,
    }  # fmt: skip
    from IPython.display import HTML

    # Escaped, no text can end the script early.
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c").replace(">", "\\u003e")
    script = Path(__file__).with_name("explorer.js").read_text(encoding="utf-8").strip()
    return HTML(
        f'<div id="explorer-{name}">Run this cell (or trust the notebook) to click; '
        "the still picture below says the same.</div>\n"
        f'<script>\n({script})("explorer-{name}", {text});\n</script>'
    )


def _pack(
    name: str,
    key: tuple,
    frame: Frame,
    heat: np.ndarray | None,
    select: str | None,
    buttons: list[str],
    unit: int,
    images: list[dict[str, Any]],
) -> dict[str, Any]:
    """Turn a frame into what JSON can hold; add its picture to images unless it is there."""
    where = f"explorer {name!r}, frame {key}"
    if (heat is None and frame.grid is None) or (heat is not None and heat.ndim not in (2, 3)):
        raise ValueError(
            f"{where}: a frame needs heat of 2 or 3 axes or a grid, got "
            f"heat={heat if heat is None else heat.shape} and grid={frame.grid}. Pass one of them."
        )
    if heat is None and frame.image is None:
        raise ValueError(f"{where}: a frame needs a picture, got image=None, heat=None. Pass one.")
    grid = _pair(where, "grid", frame.grid) if heat is None else heat.shape[-2:]
    cells = {"cell": grid[0] * grid[1], "row": grid[0], None: 0}[select]
    queries = max(1, cells + len(buttons))
    if heat is not None and heat.ndim == 3 and len(heat) != queries:
        raise ValueError(
            f"{where}: heat must have one grid for each of {queries} queries, "
            f"got heat={heat.shape}. Buttons come first, then the cells row by row."
        )
    caption = frame.caption if isinstance(frame.caption, str) else list(frame.caption)
    if not isinstance(caption, str) and len(caption) != queries:
        raise ValueError(
            f"{where}: caption must be one text or one for each of {queries} queries, "
            f"got {len(caption)} texts. Buttons come first, then the cells row by row."
        )
    index = None
    if frame.image is not None:
        image = frame.image
        picture = _pictures(where, image[None] if image.ndim == 3 else image)[0]
        if heat is None and (picture.shape[0] % grid[0] or picture.shape[1] % grid[1]):
            raise ValueError(
                f"{where}: the grid must tile the picture, got grid={tuple(grid)} and "
                f"image={_shape(image)}. Use divisors of its height and width."
            )
        pixels = np.round(picture * 255).astype(np.uint8)
        entry = {
            "height": pixels.shape[0], "width": pixels.shape[1], "channels": pixels.shape[2],
            "pixels": base64.b64encode(pixels.tobytes()).decode("ascii"),
        }  # fmt: skip
        if entry not in images:
            images.append(entry)
        index = images.index(entry)
    levels = None
    if heat is not None:
        # The small sum keeps a value that lies on a border of two integers on one side of it.
        whole = np.round(heat.astype(np.float64) * unit + 1e-6).astype(int)
        levels = whole.reshape(-1, grid[0] * grid[1]).tolist()
    return {"grid": [int(g) for g in grid], "image": index, "heat": levels, "caption": caption}


# --- small tools ----------------------------------------------------------------------------


def _show() -> None:
    """Show the current figure and close it, so that none is left over on any backend."""
    figure = plt.gcf()
    plt.show()
    plt.close(figure)


def _array(values: ArrayLike | Tensor) -> np.ndarray:
    """Turn a tensor of any kind, an array or a list into an array of bools, ints or floats."""
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        if values.is_floating_point():
            values = values.to(torch.float64)
        return values.numpy()
    if isinstance(values, list | tuple) and values and isinstance(values[0], Tensor):
        return np.stack([_array(value) for value in values])
    return np.asarray(values)


def _shape(values: ArrayLike | Tensor) -> tuple[int, ...]:
    """Return a shape as a plain tuple, for messages."""
    return tuple(np.shape(values))


def _pictures(where: str, images: Tensor) -> np.ndarray:
    """Check pictures (k, c, H, W) and return them as (k, H, W, c)."""
    pictures = _array(images)
    if pictures.ndim != 4 or pictures.shape[1] not in (1, 3) or pictures.size == 0:
        raise ValueError(
            f"{where}: pictures must be (k, c, H, W) with 1 or 3 channels, "
            f"got shape={pictures.shape}. Use images[:1] for one, rearrange for another order."
        )
    low, high = float(pictures.min()), float(pictures.max())
    if not (low >= -1e-4 and high <= 1 + 1e-4):
        raise ValueError(
            f"{where}: pictures must have values from 0 to 1, got {low:g} to {high:g}. "
            "Divide bytes by 255."
        )
    return np.clip(pictures.transpose(0, 2, 3, 1).astype(np.float64), 0, 1)


def _texts(
    where: str, option: str, texts: Sequence[str] | None, count: int, things: str
) -> list[str]:
    """Check that there is one text for each thing; None gives empty ones."""
    if texts is None:
        return [""] * count
    texts = [str(text) for text in texts]
    if len(texts) != count:
        raise ValueError(
            f"{where}: {option} must have one text for each of {count} {things}, "
            f"got {len(texts)} texts. Add or remove some."
        )
    return texts


def _pair(where: str, option: str, size: int | tuple[int, int]) -> tuple[int, int]:
    """Return (height, width) from an int or a pair."""
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or any(not isinstance(s, int) or s < 1 for s in pair):
        raise ValueError(
            f"{where}: {option} must be a positive int or a pair of them, got {option}={size}. "
            "Write 16 or (16, 8)."
        )
    return pair


def _grid(where: str, pictures: np.ndarray, patch_size: int | tuple[int, int]) -> tuple[int, int]:
    """Return rows and columns of the grid that patches of this size make."""
    ph, pw = _pair(where, "patch_size", patch_size)
    high, wide = pictures.shape[1:3]
    if high % ph or wide % pw:
        raise ValueError(
            f"{where}: patches must tile the picture, got patch_size={(ph, pw)} and "
            f"{high} x {wide} pixels. Use divisors of its height and width."
        )
    return high // ph, wide // pw


def _panels(count: int, columns: int, ratio: float) -> list[Axes]:
    """Make a figure with one panel for each of count pictures of this height / width."""
    rows = math.ceil(count / columns)
    side = min(3.0 * max(1.0, 1 / ratio), WIDTH / columns)  # a wide picture gets a wide panel
    _, axes = plt.subplots(
        rows, columns, squeeze=False, layout="constrained",
        figsize=(columns * side, rows * (side * ratio + 0.3)),
    )  # fmt: skip
    for ax in axes.flat[count:]:
        ax.axis("off")
    return list(axes.flat[:count])


def _picture(
    ax: Axes, picture: np.ndarray, grid: tuple[int, int] | None, thickness: float = 0.9
) -> None:
    """Draw one picture (H, W, c) without axes, with the lines of a grid."""
    ax.imshow(
        picture.squeeze(-1) if picture.shape[-1] == 1 else picture, cmap="gray", vmin=0, vmax=1,
        interpolation="nearest",
    )  # fmt: skip
    ax.set(xticks=[], yticks=[], frame_on=False)
    if grid:
        high, wide = picture.shape[:2]
        # White on black is seen on a bright and on a dark picture.
        for width, color in ((2.2 * thickness, "black"), (thickness, "white")):
            for r in range(1, grid[0]):
                ax.axhline(r * high / grid[0] - 0.5, color=color, linewidth=width)
            for c in range(1, grid[1]):
                ax.axvline(c * wide / grid[1] - 0.5, color=color, linewidth=width)


def _scale(
    tables: Sequence[np.ndarray], symmetric: bool, mask: bool, from_zero: bool = True
) -> Normalize:
    """Return the scale of colours for some matrices; infinities and nan do not count."""
    if mask:
        return Normalize(0, 1)
    flat = np.concatenate([table.ravel().astype(np.float64) for table in tables])
    flat = flat[np.isfinite(flat)]
    low, high = (float(flat.min()), float(flat.max())) if flat.size else (0.0, 1.0)
    if symmetric:
        high = max(abs(low), abs(high))
        low = -high
    elif from_zero and low >= 0:
        low = 0.0
    return Normalize(low, high if high > low else low + 1)


def _heat(
    ax: Axes, table: np.ndarray, norm: Normalize, values: bool, texts: Sequence[str]
) -> AxesImage:
    """Draw one heat map, with texts in the cells where values asks for them."""
    numbers = table.astype(np.float64)
    cmap = plt.get_cmap(HEAT).with_extremes(bad="#d9d9d9")
    shown = np.ma.masked_invalid(numbers)
    image = ax.imshow(
        shown, cmap, norm, interpolation="nearest", aspect="auto" if values else "equal"
    )
    ax.set_frame_on(False)
    ax.tick_params(length=0)
    rows, columns = table.shape
    if values or max(rows, columns) <= 20:
        for r in range(1, rows):
            ax.axhline(r - 0.5, color="white", linewidth=1.0 if values else 0.4)
        for c in range(1, columns):
            ax.axvline(c - 0.5, color="white", linewidth=1.0 if values else 0.4)
    if values:
        colors = cmap(norm(shown))
        for (r, c), text in zip(np.ndindex(rows, columns), texts, strict=True):
            red, green, blue, _ = colors[r, c]
            dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
            ax.text(
                c, r, text, ha="center", va="center", color="white" if dark else "black", size=10
            )
    return image


def _ticks(
    ax: Axes,
    shape: tuple[int, ...],
    row_labels: Sequence[str] | None,
    column_labels: Sequence[str] | None,
) -> None:
    """Number or name rows and columns."""
    for axis, count, texts in (
        (ax.yaxis, shape[0], row_labels),
        (ax.xaxis, shape[1], column_labels),
    ):
        if texts is not None:
            axis.set_ticks(range(count), texts)
        elif count <= 10:
            axis.set_ticks(range(count))
        else:
            axis.set_major_locator(MaxNLocator(6, integer=True))
    longest = max((len(text) for text in column_labels or [""]), default=0)
    if longest > 3:
        ax.tick_params(axis="x", rotation=90 if longest > 5 else 45)


def _name_rows(ax: Axes, text: str) -> None:
    """Write what the rows are; a letter stands upright, for a lying i or n cannot be read."""
    if len(text) > 2:
        ax.set_ylabel(text)
    else:
        ax.set_ylabel(text, rotation=0, ha="right", va="center", labelpad=9)


def _words(tables: Sequence[np.ndarray]) -> list[list[str]]:
    """Write the numbers of some tables: all of them whole, or all with two digits."""
    whole = all(np.all(~np.isfinite(t) | (t == np.round(t))) for t in map(np.float64, tables))

    def word(value: float) -> str:
        if not np.isfinite(value):
            return str(value)
        text = f"{value:.0f}" if whole or abs(value) >= 100 else f"{value:.2f}"
        return text.lstrip("-") if float(text) == 0 else text

    return [[word(float(value)) for value in table.ravel()] for table in tables]
