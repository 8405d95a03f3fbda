"""Curves over one axis, and bars with their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike
from torch import Tensor

from utils.draw.style import COLORS, LINES, MARKERS, WIDTH, as_array, show_figure


def show_lines(
    x: ArrayLike | Tensor,
    series: Mapping[str, ArrayLike | Tensor | tuple[ArrayLike | Tensor, ArrayLike | Tensor]],
    x_label: str,
    y_label: str,
    title: str | None = None,
    log_x: bool = False,
    log_y: bool = False,
    alt: str | None = None,
) -> None:
    """Show curves over one x axis; each has its own colour, line style and marker.

    A curve that a later one runs along is drawn broad, so that both are seen.

    Args:
        x: positions, as many as every curve has values.
        series: name -> values, or name -> (mean, standard deviation), drawn as a band.
        x_label: what x is.
        y_label: what the values are.
        title: a text above the picture.
        log_x: each step to the right multiplies x.
        log_y: each step up multiplies the value.
        alt: words for who cannot see the picture; by default the ends of every curve.

    Raises:
        ValueError: curves of another length than x, none, or more than six.
    """
    places = as_array(x).astype(float)
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
    curves = {name: _curve(name, curve, places) for name, curve in series.items()}
    above = _above([mean for mean, _ in curves.values()], log_y)
    _, ax = plt.subplots(figsize=(WIDTH * 0.85, 3.6), layout="constrained")
    for i, (name, (mean, spread)) in enumerate(curves.items()):
        broad = {"lw": 1.8 + 2.8 * above[i], "ms": 5 + 4 * above[i], "ls": "-", "alpha": 0.55}
        ax.plot(
            places, mean, label=name, color=COLORS[i],
            marker=MARKERS[i] if len(places) <= 200 else None,
            markevery=max(1, len(places) // 12), **(broad if above[i] else {"ls": LINES[i]}),
        )  # fmt: skip
        if spread is not None:
            ax.fill_between(
                places, mean - spread, mean + spread, color=COLORS[i], alpha=0.18, linewidth=0
            )
    ax.set_xscale("log" if log_x else "linear")
    ax.set_yscale("log" if log_y else "linear")
    _ticks(ax, places, log_x)
    ax.set_xlabel(x_label)
    ax.set_ylabel(y_label)
    ax.set_title(title or "")
    ax.grid(color="#dddddd", linewidth=0.6)
    if len(series) > 1:
        # Beside the curves, in the order of their ends: a legend that reads like direct labels.
        handles = sorted(ax.lines, key=lambda line: -np.nan_to_num(line.get_ydata()[-1]))
        ax.legend(handles=handles, loc="center left", bbox_to_anchor=(1.0, 0.5), handlelength=3.2)
    head = f"{title}: " if title else ""
    said = "; ".join(_said(name, mean, log_y) for name, (mean, _) in curves.items())
    ends = f"{places[0]:g} to {places[-1]:g}"
    show_figure(alt or f"{head}Curves of {y_label} over {x_label} from {ends}. {said}.")


def _curve(
    name: str, curve: ArrayLike | Tensor | tuple, places: np.ndarray
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the values of a curve, and its standard deviations if it has some."""
    banded = isinstance(curve, tuple) and len(curve) == 2 and np.ndim(as_array(curve[0])) == 1
    parts = [as_array(part).astype(float) for part in (curve if banded else (curve,))]
    if any(part.shape != places.shape for part in parts):
        raise ValueError(
            f"show_lines: every series must have one value for each x, got {name!r} of shape "
            f"{parts[0].shape} for x of shape {places.shape}. Pass values or (mean, sd)."
        )
    return parts[0], parts[1] if banded else None


def _above(curves: Sequence[np.ndarray], log_y: bool) -> list[int]:
    """Count for each curve the later ones that run along it over 0.3 of the picture."""
    heights = np.stack([np.log10(c.clip(1e-12)) if log_y else c for c in curves])
    near = 0.015 * (np.nanmax(heights) - np.nanmin(heights))
    return [
        sum(np.mean(np.abs(other - own) <= near) > 0.3 for other in heights[i + 1 :])
        for i, own in enumerate(heights)
    ]


def _ticks(ax: Axes, places: np.ndarray, log_x: bool) -> None:
    """Write the positions themselves where they are few, and only whole ones if all are whole."""
    if len(places) <= 8 and (log_x or np.ptp(np.diff(places)) < 1e-9 * np.ptp(places)):
        ax.set_xticks([], minor=True)
        ax.set_xticks(places, [f"{place:g}" for place in places])
    elif not log_x and np.all(places == np.round(places)):
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def _said(name: str, values: np.ndarray, log_y: bool) -> str:
    """Say where a curve begins and ends, and its extremes if the words for these differ.

    What cannot be seen is not said, for it may be rounding, which every machine does differently:
    on a linear axis a value below a thousandth of the largest is 0.
    """
    seen = values if log_y else np.where(abs(values) < 1e-3 * np.nanmax(abs(values)), 0.0, values)
    first, last = f"{seen[0]:.2g}", f"{seen[-1]:.2g}"
    between = [
        f"{word} {value:.2g}"
        for word, value in (("lowest", np.nanmin(seen)), ("highest", np.nanmax(seen)))
        if f"{value:.2g}" not in (first, last)
    ]
    inner = f" ({', '.join(between)})" if between else ""
    return f"{name}: {first} to {last}{inner}"


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
    alt: str | None = None,
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
        alt: words for who cannot see the picture; by default every label with its value.

    Raises:
        ValueError: another number of values or errors than labels.
    """
    labels, lengths = list(labels), as_array(values).astype(float)
    spread = np.zeros(lengths.shape) if errors is None else as_array(errors).astype(float)
    if lengths.shape != (len(labels),) or not labels or spread.shape != lengths.shape:
        raise ValueError(
            "show_bars: values and errors must have one number for each label, got "
            f"{len(labels)} labels, values of shape {lengths.shape} and errors of shape "
            f"{None if errors is None else spread.shape}. Make them equally long."
        )
    _, ax = plt.subplots(figsize=(WIDTH * 0.8, 0.36 * len(labels) + 1.0), layout="constrained")
    texts = [
        f"{length:.{digits}f}" + (f" ± {error:.{digits}f}" if error > 0 else "")
        for length, error in zip(lengths, spread, strict=True)
    ]
    _bars(ax, lengths, spread, texts, limits)
    if not limits:
        low, high = min(0.0, lengths.min()), max(0.0, (lengths + spread).max(), reference or 0.0)
        ax.set_xlim(low * 1.15, (high or 1.0) * 1.02)
    if reference is not None:
        ax.axvline(reference, color="black", linestyle="--", linewidth=1.2)
        ax.annotate(
            reference_label, (reference, -0.5), xytext=(0, 2), textcoords="offset points",
            ha="center", va="bottom", fontsize=10, annotation_clip=False,
        )  # fmt: skip
    ax.set_yticks(range(len(labels)), labels)
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(len(labels) - 0.5, -0.5)
    ax.set_xlabel(y_label)
    ax.set_title(title or "", pad=18 if reference_label else 6)
    head = f"{title}: " if title else ""
    pairs = ", ".join(f"{label} {text}" for label, text in zip(labels, texts, strict=True))
    beside = f" Dashed line: {reference_label} {reference:g}." if reference is not None else ""
    show_figure(alt or f"{head}Bars of {y_label}: {pairs}.{beside}")


def _bars(
    ax: Axes,
    lengths: np.ndarray,
    spread: np.ndarray,
    texts: Sequence[str],
    limits: tuple[float, float] | None,
) -> None:
    """Draw bars from top to bottom, with their standard deviations and texts at their ends."""
    places = np.arange(len(lengths))
    start = limits[0] if limits else 0.0
    ax.barh(places, lengths - start, left=start, color="#8fb8d9", edgecolor="black", height=0.66)
    if spread.any():
        some = spread > 0
        ax.errorbar(
            lengths[some], places[some], xerr=spread[some], fmt="none", color="black", capsize=3
        )
    if limits:
        ax.set_xlim(*limits)
    for place, length, error, text in zip(places, lengths, spread, texts, strict=True):
        ax.annotate(
            text, (max(length, 0) + error, place), xytext=(5, 0), textcoords="offset points",
            va="center", annotation_clip=False, bbox={"fc": "white", "ec": "none", "pad": 1},
        )  # fmt: skip
