"""Pictures to click: self-contained HTML and JavaScript that need no network and no kernel."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from utils.draw.style import as_array, as_pictures
from utils.validation import as_pair

if TYPE_CHECKING:
    from IPython.display import HTML

Key = tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class Frame:
    """Hold what an explorer shows for one choice of its controls.

    A query is what can be chosen with a click, see `Click`.

    Args:
        image: the picture beside the heat, values from 0 to 1; None shows the heat alone.
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


@dataclass(frozen=True, kw_only=True)
class Click:
    """Say what can be chosen with a click: the queries of an explorer.

    Args:
        chooses: "cell": the cells of the grid, row by row; "row": its rows.
        buttons: queries outside the grid, such as ["class token"]; they come first.
        first: the number of the query that is chosen before any click.
    """

    chooses: str = "cell"
    buttons: Sequence[str] = ()
    first: int = 0


@dataclass(frozen=True, kw_only=True)
class Labels:
    """Hold the words around the pictures of an explorer.

    Args:
        titles: above the picture and above the heat (or the enlarged patch).
        rows: what the rows are; numbers them.
        columns: what the columns are; numbers them.
        scale: what the heat means.
    """

    titles: tuple[str, str] = ("", "")
    rows: str = ""
    columns: str = ""
    scale: str = ""


def explorer(
    name: str,
    frames: Mapping[Any, Frame],
    controls: Mapping[str, Sequence[Any]],
    *,
    click: Click | None = Click(),
    labels: Labels = Labels(),
    start: Any = None,
    peak: float | None = None,
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
        click: what can be chosen with a click, or None for nothing.
        labels: the words around the pictures.
        start: the key of the frame that is shown first.
        peak: the brightest value; by default the largest of the map that is shown. The scale below
            the map says it.

    Raises:
        ValueError: a bad name, missing frames, values out of range, or captions that do not fit.
    """
    check_name("explorer", name)
    select, buttons, query = (click.chooses, click.buttons, click.first) if click else (None, (), 0)
    if select not in ("cell", "row", None):
        raise ValueError(
            f"explorer: a click chooses 'cell' or 'row', got chooses={select!r}. Pick one, "
            "or pass click=None."
        )
    keys, found = _keyed(frames, controls)
    start = _start(start, keys, found)
    heats = {key: None if f.heat is None else as_array(f.heat) for key, f in found.items()}
    unit = _unit([heat for heat in heats.values() if heat is not None], peak)
    images: list[dict[str, Any]] = []
    packed = []
    for key in keys:
        frame, where = found[key], f"explorer {name!r}, frame {key}"
        grid = _grid(where, frame, heats[key])
        queries = _queries(grid, select, buttons)
        packed.append(
            {
                "grid": [int(size) for size in grid],
                "image": _image(where, frame, grid, images),
                "heat": _levels(where, heats[key], queries, unit),
                "caption": _caption(where, frame, queries),
            }
        )
    _check_alike(packed)
    _check_query(query, start, _queries(packed[keys.index(start)]["grid"], select, buttons))
    data = {
        "controls": _controls(controls, start), "frames": packed, "images": images,
        "titles": list(labels.titles), "select": select, "buttons": list(buttons),
        "rows": labels.rows, "columns": labels.columns,
        "label": labels.scale or ("may attend" if unit == 1 else ""),
        "unit": unit, "peak": peak, "query": query,
    }  # fmt: skip
    return page(name, "pictures", UNSEEN, data)


def _start(start: Any, keys: list[Key], found: Mapping[Key, Frame]) -> Key:
    """Return the key of the frame that is shown first."""
    start = keys[0] if start is None else start if isinstance(start, tuple) else (start,)
    if start not in found:
        raise ValueError(
            f"explorer: start must be a key of frames, got start={start}. Use {keys[0]}."
        )
    return start


def _check_alike(packed: list[dict[str, Any]]) -> None:
    """Check that all frames show the same things."""
    if len({(frame["image"] is None, frame["heat"] is None) for frame in packed}) > 1:
        raise ValueError(
            "explorer: all frames must show the same things, got some with image or heat and some "
            "without. Give image and heat to every frame or to none."
        )


def _check_query(query: int, start: Key, count: int) -> None:
    """Check that the query chosen first is one of those of the first frame."""
    if not 0 <= query < count:
        raise ValueError(
            f"explorer: the first query must be one of the {count} of the frame {start}, "
            f"got first={query}. Pick a number from 0 to {count - 1}."
        )


def _controls(controls: Mapping[str, Sequence[Any]], start: Key) -> list[dict[str, Any]]:
    """Return what the page needs to know of each control."""
    return [
        {
            "label": label,
            "options": [str(option) for option in options],
            "slider": all(isinstance(option, int | float) for option in options),
            "start": list(options).index(chosen),
        }
        for (label, options), chosen in zip(controls.items(), start, strict=True)
    ]


UNSEEN = "Run this cell (or trust the notebook) to click; the still picture below says the same."


def page(name: str, kind: str, body: str, data: Mapping[str, Any]) -> HTML:
    """Return an explorer: its style, the HTML shown without a script, its data, and its script.

    Args:
        name: of the explorer; the id of its element is explorer-NAME.
        kind: the function that starts it: "pictures" and "product" are in explorer.js, "attention"
            is in a file of its own, added after it.
        body: HTML that is shown until then.
        data: for the script, as JSON.
    """
    from IPython.display import HTML

    class Explorer(HTML):
        def __repr__(self) -> str:  # the words where HTML is not shown
            return f"An explorer to click, called {name}. It needs a page that shows HTML."

    parts = ["explorer", "attention"] if kind == "attention" else ["explorer"]
    script, style = (
        "\n\n".join(
            Path(__file__).with_name(f"{part}.{ending}").read_text(encoding="utf-8").strip()
            for part in parts
        )
        for ending in ("js", "css")
    )
    # Escaped, no text can end the element early; plain ASCII, whatever the encoding of the page.
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c").replace(">", "\\u003e")
    body = body.encode("ascii", "xmlcharrefreplace").decode("ascii")
    return Explorer(
        f'<style>\n{style}\n</style>\n<div id="explorer-{name}" class="sbs-explorer">{body}</div>\n'
        f'<script type="application/json" data-for="explorer-{name}" data-kind="{kind}">{text}'
        f'</script>\n<script>\n(function () {{\n"use strict";\n{script}\n'
        f'start("explorer-{name}");\n}})();\n</script>'
    )


def check_name(where: str, name: str) -> None:
    """Check that a name can be that of an element of a page."""
    if not re.fullmatch(r"[a-z][a-z0-9-]*", name):
        raise ValueError(
            f"{where}: name must be lower-case letters, digits and hyphens, "
            f"got name={name!r}. Write something like 'patch-size'."
        )


def _keyed(
    frames: Mapping[Any, Frame], controls: Mapping[str, Sequence[Any]]
) -> tuple[list[Key], dict[Key, Frame]]:
    """Return the combinations of options in order, and the frame of each."""
    keys = list(product(*controls.values()))
    found = {key if isinstance(key, tuple) else (key,): frame for key, frame in frames.items()}
    if not keys or not controls or set(keys) != set(found):
        odd = sorted(map(repr, set(keys) ^ set(found)))[:3]
        raise ValueError(
            "explorer: frames must hold one frame for each combination of options, got "
            f"{len(found)} frames for {len(keys)} combinations, odd ones={odd}. "
            "Use the options as keys."
        )
    return keys, found


def _unit(heats: Sequence[np.ndarray], peak: float | None) -> int:
    """Return what a heat of 1 is in integers: 1 for masks, 100 for per cent, or 1000."""
    if heats and all(heat.dtype == bool for heat in heats):
        return 1
    numbers = np.concatenate([heat.ravel().astype(np.float64) for heat in heats] or [np.zeros(1)])
    low, high = float(numbers.min()), float(numbers.max())
    if not (low >= 0 and high < np.inf and high <= (peak or np.inf) * (1 + 1e-4)):  # nan, too
        raise ValueError(
            f"explorer: heat must lie from 0 to peak, got {low:g} to {high:g} and "
            f"peak={peak}. Pass shares, such as softmax weights, or a larger peak."
        )
    return 100 if max(high, peak or 0) > 0.2 else 1000


def _grid(where: str, frame: Frame, heat: np.ndarray | None) -> tuple[int, int]:
    """Return rows and columns of the cells of a frame."""
    if (heat is None and frame.grid is None) or (heat is not None and heat.ndim not in (2, 3)):
        raise ValueError(
            f"{where}: a frame needs heat of 2 or 3 axes or a grid, got "
            f"heat={heat if heat is None else heat.shape} and grid={frame.grid}. Pass one of them."
        )
    if heat is None and frame.image is None:
        raise ValueError(f"{where}: a frame needs a picture, got image=None, heat=None. Pass one.")
    return as_pair(where, "grid", frame.grid) if heat is None else heat.shape[-2:]


def _queries(grid: Sequence[int], select: str | None, buttons: Sequence[str]) -> int:
    """Return how many queries can be chosen in a grid; without any, one is shown."""
    return max(1, len(buttons) + {"cell": grid[0] * grid[1], "row": grid[0], None: 0}[select])


def _image(
    where: str, frame: Frame, grid: tuple[int, int], images: list[dict[str, Any]]
) -> int | None:
    """Return the place of a frame's picture in images; add it unless it is there."""
    if frame.image is None:
        return None
    place = packed_image(where, frame.image, images)
    picture = images[place]
    if frame.heat is None and (picture["height"] % grid[0] or picture["width"] % grid[1]):
        raise ValueError(
            f"{where}: the grid must tile the picture, got grid={tuple(grid)} and "
            f"image={tuple(frame.image.shape)}. Use divisors of its height and width."
        )
    return place


def packed_image(where: str, image: Tensor, images: list[dict[str, Any]]) -> int:
    """Return the place of a picture in images; add it, as bytes in text, unless it is there.

    Args:
        where: the public name that an error begins with.
        image: values from 0 to 1.
        images: all pictures of an explorer, for the page.

    Shape:
        image  (c, H, W), c = 1 or 3

    Raises:
        ValueError: a picture of another shape or range.
    """
    picture = as_pictures(where, image[None] if image.ndim == 3 else image)[0]
    pixels = np.round(picture * 255).astype(np.uint8)
    height, width, channels = pixels.shape
    entry = {
        "height": height, "width": width, "channels": channels,
        "pixels": base64.b64encode(pixels.tobytes()).decode("ascii"),
    }  # fmt: skip
    if entry not in images:
        images.append(entry)
    return images.index(entry)


def _levels(where: str, heat: np.ndarray | None, queries: int, unit: int) -> list[list[int]] | None:
    """Return the heat of a frame in integers, one list of cells for each grid."""
    if heat is None:
        return None
    if heat.ndim == 3 and len(heat) != queries:
        raise ValueError(
            f"{where}: heat must have one grid for each of {queries} queries, "
            f"got heat={heat.shape}. Buttons come first, then the cells row by row."
        )
    # The small sum keeps a value that lies on a border of two integers on one side of it.
    whole = np.round(heat.astype(np.float64) * unit + 1e-6).astype(int)
    return whole.reshape(-1, heat.shape[-2] * heat.shape[-1]).tolist()


def _caption(where: str, frame: Frame, queries: int) -> str | list[str]:
    """Return the caption of a frame: one text, or one for each query."""
    if isinstance(frame.caption, str):
        return frame.caption
    if len(frame.caption) != queries:
        raise ValueError(
            f"{where}: caption must be one text or one for each of {queries} queries, "
            f"got {len(frame.caption)} texts. Buttons come first, then the cells row by row."
        )
    return list(frame.caption)
