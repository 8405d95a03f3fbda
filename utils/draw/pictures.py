"""Photographs and digits, their patches, and where attention looks in them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import matplotlib.pyplot as plt
import numpy as np
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle
from torch import Tensor

from utils.draw.matrices import color_bar
from utils.draw.style import HEAT, WIDTH, as_array, as_pictures, as_texts, show_figure, text_width
from utils.validation import as_pair, patch_grid


def show_images(
    images: Tensor,
    titles: Sequence[str] | None = None,
    patch_size: int | tuple[int, int] | None = None,
    columns: int = 6,
    alt: str | None = None,
) -> None:
    """Show pictures side by side, optionally with the lines along which patches are cut.

    Args:
        images: pictures with values from 0 to 1.
        titles: one text above each picture.
        patch_size: draw the grid of patches of this size; an int or (height, width).
        columns: pictures in one row.
        alt: words for who cannot see the picture; by default their number, titles and grid.

    Shape:
        images  (k, c, H, W), c = 1 or 3

    Raises:
        ValueError: pictures of another shape or range; titles or patches that do not fit.
    """
    pictures = as_pictures("show_images", images)
    titles = as_texts("show_images", "titles", titles, len(pictures), "pictures")
    if columns < 1:
        raise ValueError(f"show_images: columns must be at least 1, got columns={columns}. Use 6.")
    count, high, wide = pictures.shape[:3]
    grid = None
    if patch_size is not None:
        patch = as_pair("show_images", "patch_size", patch_size)
        grid = patch_grid("show_images", (high, wide), patch)
    panels = _panels(count, min(columns, count), high / wide)
    for ax, picture, title in zip(panels, pictures, titles, strict=True):
        _picture(ax, picture, grid)
        ax.set_title(title)
    cut = f", cut into {grid[0]} rows and {grid[1]} columns of patches" if grid else ""
    show_figure(alt or f"{_counted(count, titles)} ({high} x {wide} pixels{cut}).")


def show_patches(
    patches: Tensor,
    grid: tuple[int, int],
    titles: Sequence[str] | None = None,
    title: str | None = None,
    alt: str | None = None,
) -> None:
    """Show patches apart from one another, in the grid that they were cut from.

    Args:
        patches: patches with values from 0 to 1, in token order.
        grid: rows and columns of the grid.
        titles: one text in each patch; by default its token number, where it fits.
        title: a text above the picture.
        alt: words for who cannot see the picture; by default the number of patches and their grid.

    Shape:
        patches  (n, c, ph, pw) with n = gh * gw, c = 1 or 3

    Raises:
        ValueError: patches of another shape or range; a grid or titles that do not fit.
    """
    pictures = as_pictures("show_patches", patches)
    n, ph, pw, channels = pictures.shape
    gh, gw = grid = as_pair("show_patches", "grid", grid)
    if gh * gw != n:
        raise ValueError(
            f"show_patches: grid must hold every patch once, got grid={(gh, gw)} and {n} patches. "
            f"Pass a (rows, columns) whose product is {n}."
        )
    labels = titles
    if labels is None:
        labels = [str(i) for i in range(n)] if gw <= 16 else None
    labels = as_texts("show_patches", "titles", labels, n, "patches")
    gap = max(1, round(max(ph, pw) / 6))
    corners = [(r * (ph + gap), c * (pw + gap)) for r, c in product(range(gh), range(gw))]
    sheet = np.ones((gh * (ph + gap) - gap, gw * (pw + gap) - gap, channels))
    for (y, x), picture in zip(corners, pictures, strict=True):
        sheet[y : y + ph, x : x + pw] = picture
    height, width = sheet.shape[:2]
    scale = min(WIDTH * 0.65 / width, 5.0 / height)
    _, ax = plt.subplots(figsize=(max(2.0, width * scale), height * scale), layout="constrained")
    _picture(ax, sheet, None)
    ax.set_title(title or "")
    size = float(np.clip(pw * scale * 72 / 3.2, 7, 12))
    for (y, x), label in zip(corners, labels, strict=True):
        # A frame, because a white patch on white would not be seen.
        ax.add_patch(Rectangle((x - 0.5, y - 0.5), pw, ph, fill=False, ec="#7a7a7a", lw=0.8))
        ax.text(
            x + (pw - 1) / 2, y + (ph - 1) / 2, label, ha="center", va="center", color="white",
            fontsize=size, path_effects=[patheffects.withStroke(linewidth=2.5, foreground="black")],
        )  # fmt: skip
    head = f"{title}: " if title else ""
    named = f": {', '.join(labels)}" if titles else ""
    show_figure(
        alt or f"{head}{n} patches ({ph} x {pw} pixels) in {gh} rows and {gw} columns{named}."
    )


def show_attention(
    images: Tensor,
    maps: Tensor,
    titles: Sequence[str] | None = None,
    query: int | tuple[int, int] | None = None,
    alt: str | None = None,
) -> None:
    """Show pictures and, below each, where attention looks in it: the brighter, the more.

    The scale ends at the largest fraction that is shown.

    Args:
        images: pictures with values from 0 to 1.
        maps: the fraction of the attention on each patch of each picture.
        titles: one text above each picture.
        query: the patch that asks, framed: its number or (row, column); None for a class token.
        alt: words for who cannot see the picture; by default where each map is brightest.

    Shape:
        images  (k, c, H, W), c = 1 or 3
        maps    (k, gh, gw)

    Raises:
        ValueError: pictures, maps, titles or a query that do not fit together.
    """
    name = "show_attention"
    pictures, heats = as_pictures(name, images), as_array(maps)
    if heats.ndim != 3 or len(heats) != len(pictures) or heats.size == 0:
        raise ValueError(
            f"{name}: maps must be (k, gh, gw) with one map for each picture, got "
            f"maps={heats.shape} and images={tuple(images.shape)}. "
            "Rearrange 'k (gh gw) -> k gh gw'."
        )
    titles = as_texts(name, "titles", titles, len(pictures), "pictures")
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
    for ax in axes.flat[len(pictures) :]:
        ax.axis("off")
    norm = Normalize(0, max(float(np.nanmax(heats)), 1e-9))
    # As large as the widest title allows, the same for all.
    size = min(11.0, 11.0 * side / max(0.1, *(text_width(title) for title in titles)))
    for k, (picture, heat) in enumerate(zip(pictures, heats, strict=True)):
        row, column = divmod(k, across)
        upper, lower = axes[2 * row, column], axes[2 * row + 1, column]
        for ax in (upper, lower):
            ax.axis("on")
        _picture(upper, picture, (gh, gw), thickness=0.5)
        upper.set_title(titles[k], fontsize=max(7.0, size))
        shown = _map(lower, heat, norm, high / gh / (wide / gw))
        if query is not None:
            _frame(upper, query, high / gh, wide / gw)
            _frame(lower, query, 1, 1)
    bar = figure.colorbar(shown, ax=axes, shrink=0.7, aspect=25, label="fraction of attention")
    color_bar(bar, 0.7 * figure.get_figheight())
    show_figure(alt or _looks(titles, heats, query))


def show_boxes(
    images: Tensor,
    boxes: Sequence[Tensor],
    words: Sequence[Sequence[str]] | None = None,
    truth: Sequence[Tensor] | None = None,
    titles: Sequence[str] | None = None,
    columns: int = 4,
    alt: str | None = None,
) -> None:
    """Show pictures with boxes around what was found in them, and dashed around what stands there.

    Args:
        images: pictures with values from 0 to 1.
        boxes: the boxes of each picture.
        words: a few letters for each box, written above it, or inside where there is no room.
        truth: boxes to compare with, drawn dashed.
        titles: one text above each picture.
        columns: pictures in one row.
        alt: words for who cannot see the picture; by default what stands at each box, and where.

    Shape:
        images  (k, c, H, W), c = 1 or 3
        boxes   (t, 4) for each picture: x and y of the middle, width and height, from 0 to 1
        truth   as boxes

    Raises:
        ValueError: pictures of another shape or range; boxes, words or titles that do not fit.
    """
    name = "show_boxes"
    pictures = as_pictures(name, images)
    titles = as_texts(name, "titles", titles, len(pictures), "pictures")
    if columns < 1:
        raise ValueError(f"{name}: columns must be at least 1, got columns={columns}. Use 4.")
    solid = _edges(name, "boxes", boxes, pictures)
    dashed = _edges(name, "truth", truth, pictures) if truth is not None else [[]] * len(pictures)
    words = [[""] * len(own) for own in solid] if words is None else [list(own) for own in words]
    if [len(own) for own in words] != [len(own) for own in solid]:
        raise ValueError(
            f"{name}: words must have one text for each box, got {[len(own) for own in words]} for "
            f"{[len(own) for own in solid]} boxes. Add or remove some."
        )
    high, wide = pictures.shape[1:3]
    panels = _panels(len(pictures), min(columns, len(pictures)), high / wide)
    for n, (ax, picture) in enumerate(zip(panels, pictures, strict=True)):
        _picture(ax, picture, None)
        ax.set_title(titles[n])
        for edges in dashed[n]:
            _box(ax, edges, "--")
        for edges, word in zip(solid[n], words[n], strict=True):
            _box(ax, edges, "-")
            room = edges[1] > high / 10  # for a line of letters above the box
            ax.annotate(
                word, edges[:2], xytext=(2, 2 if room else -2),
                textcoords="offset points", va="baseline" if room else "top", color="white",
                fontsize=10, fontweight="bold", annotation_clip=False,
                path_effects=[patheffects.withStroke(linewidth=2.5, foreground="black")],
            )  # fmt: skip
    show_figure(alt or _boxes_said(titles, solid, dashed, words))


def _edges(
    where: str, name: str, boxes: Sequence[Tensor], pictures: np.ndarray
) -> list[list[tuple[float, ...]]]:
    """Turn the boxes of each picture into left, top, width and height in pixels."""
    arrays = [as_array(own) for own in boxes]
    if len(arrays) != len(pictures) or any(a.ndim != 2 or a.shape[1] != 4 for a in arrays):
        raise ValueError(
            f"{where}: {name} must hold one (t, 4) for each of {len(pictures)} pictures, "
            f"got shapes {[a.shape for a in arrays]}. For a picture without boxes pass (0, 4)."
        )
    high, wide = pictures.shape[1:3]
    return [
        [
            ((x - w / 2) * wide - 0.5, (y - h / 2) * high - 0.5, w * wide, h * high)
            for x, y, w, h in own.tolist()
        ]
        for own in arrays
    ]


def _box(ax: Axes, edges: tuple[float, ...], style: str) -> None:
    """Draw a box; white on black is seen on ink and beside it."""
    left, top, width, height = edges
    lines = (
        ((3.6, "black", "-"), (1.6, "white", style)) if style == "-" else ((1.2, "white", style),)
    )
    for thickness, color, kind in lines:
        ax.add_patch(
            Rectangle((left, top), width, height, fill=False, ec=color, lw=thickness, ls=kind)
        )


def _boxes_said(
    titles: Sequence[str],
    boxes: Sequence[Sequence[tuple[float, ...]]],
    truth: Sequence[Sequence[tuple[float, ...]]],
    words: Sequence[Sequence[str]],
) -> str:
    """Say for each picture which boxes are drawn, by their middles."""
    said = []
    for n, (title, own, dashed, texts) in enumerate(zip(titles, boxes, truth, words, strict=True)):
        middles = [
            f"{text + ' ' if text else ''}at ({left + w / 2:.0f}, {top + h / 2:.0f})"
            for (left, top, w, h), text in zip(own, texts, strict=True)
        ]
        also = f"; dashed: {len(dashed)}" if dashed else ""
        said.append(f"{title or f'picture {n}'}: {', '.join(middles) or 'no box'}{also}")
    return f"Pictures with boxes, by column and row of their middles. {'. '.join(said)}."


def _looks(titles: Sequence[str], heats: np.ndarray, query: tuple[int, int] | None) -> str:
    """Say where each map is brightest."""
    who = "the class token looks" if query is None else f"row {query[0]}, column {query[1]} looks"
    said = []
    for k, (title, heat) in enumerate(zip(titles, heats, strict=True)):
        row, column = np.unravel_index(np.nanargmax(heat), heat.shape)
        fraction = f"{heat[row, column]:.0%}"
        said.append(f"{title or f'picture {k}'}: most, {fraction}, at row {row}, column {column}")
    return f"Pictures, and below each a heat map of where {who}. {'; '.join(said)}."


def _counted(count: int, titles: Sequence[str]) -> str:
    """Say how many pictures there are, and what stands above them."""
    head = "A picture" if count == 1 else f"{count} pictures"
    named = [title for title in titles if title]
    return f"{head}: {', '.join(named)}" if named else head


def _map(ax: Axes, heat: np.ndarray, norm: Normalize, ratio: float) -> AxesImage:
    """Draw one map of attention; ratio is the height of a patch divided by its width."""
    image = ax.imshow(heat, HEAT, norm, interpolation="nearest", aspect=ratio)
    ax.set(xticks=[], yticks=[], frame_on=False)
    for r in range(1, heat.shape[0]):
        ax.axhline(r - 0.5, color="white", linewidth=0.5)
    for c in range(1, heat.shape[1]):
        ax.axvline(c - 0.5, color="white", linewidth=0.5)
    return image


def _frame(ax: Axes, cell: tuple[int, int], height: float, width: float) -> None:
    """Frame a cell of the grid; white on black is seen on every colour."""
    corner = (cell[1] * width - 0.5, cell[0] * height - 0.5)
    for line, color in ((4.5, "black"), (2, "white")):
        ax.add_patch(
            Rectangle(corner, width, height, fill=False, ec=color, lw=line, zorder=3, clip_on=False)
        )


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
