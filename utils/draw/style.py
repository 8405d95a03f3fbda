"""The look that all pictures share, how a finished one is shown, and how arguments are read."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import lru_cache

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.colors import Colormap, Normalize
from matplotlib.textpath import TextPath
from numpy.typing import ArrayLike
from PIL import Image
from torch import Tensor

WIDTH = 8.0  # inches: what a notebook shows without scrolling
MOST_COLORS = 5000  # of a drawing; photographs have more
# The lightness of both only rises, so a grey printer keeps the order of the numbers.
HEAT = "viridis"
SIGNED = "cividis"  # for a scale with 0 in its middle: blue is negative, grey 0, yellow positive
# Black, blue, orange, sky, green: told apart by every kind of colour blindness, and in grey by
# the line style and the marker that go with each.
COLORS = ("#000000", "#0072b2", "#d55e00", "#56b4e9", "#009e73", "#7a7a7a")
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 3)))
MARKERS = ("o", "s", "^", "D", "v", "x")

# In the data of an output: it holds what a machine measured, and how it is to be compared.
MEASURED = "application/vnd.attention-course.measured+json"
measured_here_only: ContextVar[bool] = ContextVar("measured_here_only", default=False)


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


def show_figure(alt: str) -> None:
    """Show the current figure of matplotlib with words for who cannot see it, and close it.

    Under Jupyter the output is stored three times over: as a PNG, as an HTML image whose `alt`
    holds the words (JupyterLab and exported pages give a PNG none), and as the words alone.

    Args:
        alt: what the picture shows, in a sentence or two.

    Raises:
        ValueError: there are no words.
    """
    if not alt.strip():
        raise ValueError(f"show_figure: alt must hold words, got alt={alt!r}. Say what is drawn.")
    figure = plt.gcf()
    try:
        if "inline" in plt.get_backend():
            _display(figure, " ".join(alt.split()))
        else:
            plt.show()
    finally:
        plt.close(figure)


def _display(figure: plt.Figure, words: str) -> None:
    """Send a figure and its words to the notebook."""
    from IPython.display import display

    png = base64.b64encode(_render(figure)).decode("ascii") if _render else ""
    image = f'<img alt="{html.escape(words)}" src="data:image/png;base64,{png}">'
    data = {"image/png": png, "text/html": image, "text/plain": words}
    if measured_here_only.get():
        data[MEASURED] = {"version": 1, "margin": 0, "numbers": {}}
    display(data, raw=True)


def to_png(figure: plt.Figure) -> bytes:
    """Draw a figure into few bytes: a notebook stores them twice.

    Where 256 colours look the same, as in all but photographs, a pixel takes one byte, not four.
    """
    memory, small = io.BytesIO(), io.BytesIO()
    options = {"metadata": {"Software": None}, "pil_kwargs": {"compress_level": 1}}
    figure.savefig(memory, format="png", bbox_inches="tight", **options)
    drawn = Image.open(memory).convert("RGB")
    (_in_256_colors(drawn) or drawn).save(small, "PNG", optimize=True)
    return small.getvalue()


def _in_256_colors(picture: Image.Image) -> Image.Image | None:
    """Return a picture with one byte for each pixel; None where it would look different."""
    if picture.getcolors(MOST_COLORS) is None:
        return None  # the search for the best 256 would take long, and end so as well
    few = picture.quantize(256, dither=Image.Dither.NONE, kmeans=3)
    error = np.asarray(picture, dtype=float) - np.asarray(few.convert("RGB"), dtype=float)
    return few if np.sqrt((error**2).mean()) < 1 else None


Render = Callable[[plt.Figure], bytes]
_render: Render | None = to_png


def render_with(render: Render | None) -> Render | None:
    """Set the function that makes the PNG of every figure, and return the one before.

    Args:
        render: such as `to_png`; None draws nothing, for runs without readers.
    """
    global _render
    before, _render = _render, render
    return before


def is_rendering() -> bool:
    """Return whether figures are drawn at all."""
    return _render is not None


def as_array(values: ArrayLike | Tensor) -> np.ndarray:
    """Turn a tensor of any kind, an array or a list into an array of bools, ints or floats."""
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        if values.is_floating_point():
            values = values.to(torch.float64)
        return values.numpy()
    if isinstance(values, list | tuple) and values and isinstance(values[0], Tensor):
        return np.stack([as_array(value) for value in values])
    return np.asarray(values)


def as_pictures(where: str, images: Tensor) -> np.ndarray:
    """Check pictures (k, c, H, W) and return them as (k, H, W, c)."""
    pictures = as_array(images)
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


def as_texts(
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


def as_words(tables: Sequence[np.ndarray]) -> list[list[str]]:
    """Write the numbers of some tables: all of them whole, or all with two digits."""
    whole = all(np.all(~np.isfinite(t) | (t == np.round(t))) for t in map(np.float64, tables))

    def word(value: float) -> str:
        if not np.isfinite(value):
            return str(value)
        text = f"{value:.0f}" if whole or abs(value) >= 100 else f"{value:.2f}"
        return text.lstrip("-") if float(text) == 0 else text

    return [[word(float(value)) for value in table.ravel()] for table in tables]


@lru_cache(maxsize=1000)  # it takes a millisecond, and a figure asks for the same text often
def text_width(text: str, size: float = 11) -> float:
    """Return how many inches the ink of a text takes on paper."""
    if not text.strip():
        return 0.0
    path = TextPath((0, 0), text, size=size)
    across = path.vertices[path.codes != TextPath.CLOSEPOLY, 0]  # fonts have points where they turn
    return float(np.ptp(across)) / 72


def color_scale(
    tables: Sequence[np.ndarray], symmetric: bool = False, mask: bool = False, zero: bool = True
) -> Normalize:
    """Return the scale of colours for some tables; infinities and nan do not count.

    Args:
        tables: all that shares the scale.
        symmetric: 0 is in the middle.
        mask: 0 is no and 1 is yes.
        zero: the scale of numbers that are never negative begins at 0.
    """
    if mask:
        return Normalize(0, 1)
    flat = np.concatenate([table.ravel().astype(np.float64) for table in tables])
    flat = flat[np.isfinite(flat)]
    low, high = (float(flat.min()), float(flat.max())) if flat.size else (0.0, 1.0)
    if symmetric:
        high = max(abs(low), abs(high))
        low = -high
    elif zero and low >= 0:
        low = 0.0
    return Normalize(low, high if high > low else low + 1)


def color_map(norm: Normalize) -> Colormap:
    """Return the colours for a scale: those of signed numbers if 0 is in its middle."""
    name = SIGNED if norm.vmin == -norm.vmax else HEAT
    return plt.get_cmap(name).with_extremes(bad="#d9d9d9")


def heat_colors(table: np.ndarray, norm: Normalize) -> np.ndarray:
    """Return the colour (red, green, blue), 0 to 1, of every number; infinities and nan are grey.

    Shape:
        table   (...)
        result  (..., 3)
    """
    return color_map(norm)(norm(np.ma.masked_invalid(table.astype(np.float64))))[..., :3]


def ink_on(color: Sequence[float]) -> str:
    """Return black or white, whichever stands out more on a colour: at least 4.5 to 1 (WCAG 2)."""
    parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in color]
    luminance = 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]
    return "#000" if luminance > 0.179 else "#fff"
