"""The explorer of attention: layers, heads, tokens and features, of texts and of pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from utils.attention import AttentionMaps
from utils.draw.explorer import UNSEEN, check_name, packed_image, page
from utils.draw.style import as_array, as_texts
from utils.validation import as_pair

if TYPE_CHECKING:
    from IPython.display import HTML

Words = Sequence[str]
MASKED = -1  # stands in for a weight of exactly 0


@dataclass(frozen=True, kw_only=True)
class Look:
    """Hold what one model attended to in one text or picture.

    Args:
        maps: the weights of each layer, as `record_attention` collects them; with the queries and
            keys that it keeps beside them the explorer shows what a score is made of.
        words: the tokens. One list for all layers, or for each layer (who looks, who is looked at).
            Of a picture only the tokens in front of its patches, such as ["class token"].
        image: the picture, values from 0 to 1.
        grid: rows and columns of its patches.
        layers: what the layers are called; by default layer 0, layer 1 ...
        index: which text or picture of the batch.

    Shape:
        maps   each (b, h, i, j)
        image  (c, H, W), c = 1 or 3
    """

    maps: Sequence[Tensor]
    words: Words | Sequence[tuple[Words, Words]]
    image: Tensor | None = None
    grid: tuple[int, int] | None = None
    layers: Sequence[str] | None = None
    index: int = 0


def explore_attention(
    name: str,
    looks: Mapping[str, Look],
    *,
    label: str = "text",
    start: tuple[int, int, int, int] = (0, 0, 0, 0),
) -> HTML:
    """Show all that a model attended to: choose layer and head, then who looks and at whom.

    A small map for each head (the model view); the chosen head in large (the head view); and what
    one score is made of, feature by feature (the neuron view). The result is HTML and JavaScript
    that needs no network and no kernel. Weights travel in per mille, queries and keys in
    thousandths: compute them in float64, so that no last digit of a float changes the output.

    >>> with record_attention(model.double()) as maps:
    ...     model(ids)
    >>> explore_attention("cat", {"the cat sees a dog": Look(maps=maps, words=words)})

    Args:
        name: lower-case letters, digits and hyphens; another one for each explorer of a page.
        looks: what can be chosen from a list; all texts, or all pictures.
        label: what stands before that list.
        start: layer, head, who looks and at whom, chosen first.

    Raises:
        ValueError: a bad name, no looks, maps that are no weights, words or a grid that do not fit,
            or a start that is not there.
    """
    check_name("explore_attention", name)
    images: list[dict[str, Any]] = []
    packed = [_look("explore_attention", key, look, images)
              for key, look in looks.items()]  # fmt: skip
    if not packed or len({look["grid"] is None for look in packed}) > 1:
        raise ValueError(
            f"explore_attention: looks must be all texts or all pictures, at least one, got "
            f"{list(looks)}. Make an explorer for each kind."
        )
    _check_start(start, packed[0]["layers"])
    titles = ["each head, small", "who looks", "who is looked at, in %"]
    if packed[0]["grid"]:
        titles[0] = "each head, small: where the chosen token looks"
    data = {
        "looks": packed, "images": images, "label": label, "titles": titles,
        "start": {"look": 0, **dict(zip(("layer", "head", "row", "column"), start, strict=True))},
    }  # fmt: skip
    return page(name, "attention", UNSEEN, data)


def _look(where: str, key: str, look: Look, images: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the page needs of one text or picture."""
    if not len(look.maps):
        raise ValueError(f"{where}: maps must hold at least one layer, got none. Record a run.")
    grid = None if look.grid is None else as_pair(where, "grid", look.grid)
    if (grid is None) != (look.image is None):
        raise ValueError(
            f"{where}: a picture needs image and grid, a text none of them, got "
            f"image={'None' if look.image is None else tuple(look.image.shape)} and grid={grid}. "
            "Pass both or none."
        )
    names = look.layers or [f"layer {place}" for place in range(len(look.maps))]
    names = as_texts(where, "layers", names, len(look.maps), "layers")
    front = 0 if grid is None else len(look.words)
    words = list(look.words)
    if grid:
        words += [
            f"row {row}, column {column}" for row in range(grid[0]) for column in range(grid[1])
        ]
    per_layer = [(words, words)] * len(names) if not words or isinstance(words[0], str) else words
    if len(per_layer) != len(names):
        raise ValueError(
            f"{where}: words must be one list, or a pair of lists for each of {len(names)} "
            f"layers, got {len(per_layer)} pairs. Pass (who looks, who is looked at)."
        )
    return {
        "name": str(key),
        "grid": None if grid is None else list(grid),
        "front": front,
        "image": None if look.image is None else packed_image(where, look.image, images),
        "layers": [
            _layer(where, layer, look, place, *per_layer[place])
            for place, layer in enumerate(names)
        ],
    }


def _layer(
    where: str, name: str, look: Look, place: int, rows: Words, columns: Words
) -> dict[str, Any]:
    """Return what the page needs of one layer."""
    weights = as_array(look.maps[place])
    if weights.ndim != 4 or not 0 <= look.index < len(weights):
        raise ValueError(
            f"{where}: maps of {name} must be (b, h, i, j) with a text or picture number "
            f"{look.index}, got {weights.shape}. Take them from record_attention."
        )
    weights = weights[look.index]
    if weights.shape[1:] != (len(rows), len(columns)):
        raise ValueError(
            f"{where}: there must be one word for each token of {name}, got {len(rows)} and "
            f"{len(columns)} words for maps of {weights.shape[1]} x {weights.shape[2]}. "
            "Give each layer its own (who looks, who is looked at)."
        )
    if not (weights.min() >= 0 and weights.max() <= 1 + 1e-6):  # nan, too
        raise ValueError(
            f"{where}: maps of {name} must be weights from 0 to 1, got {weights.min():g} to "
            f"{weights.max():g}. Pass weights, not scores."
        )
    whole = np.where(weights == 0, MASKED, _whole(weights))
    packed = {
        "name": name, "rows": list(map(str, rows)), "columns": list(map(str, columns)),
        "heat": whole.reshape(len(whole), -1).tolist(), "q": None, "k": None, "width": 0,
    }  # fmt: skip
    if isinstance(look.maps, AttentionMaps):
        q, k = (as_array(side[place])[look.index] for side in (look.maps.queries, look.maps.keys))
        packed["width"] = int(q.shape[-1])
        packed["q"], packed["k"] = (_whole(side).reshape(len(side), -1).tolist() for side in (q, k))
    return packed


def _whole(numbers: np.ndarray) -> np.ndarray:
    """Return thousandths; the small sum keeps a number on a border on one side of it."""
    return np.round(numbers.astype(np.float64) * 1000 + 1e-6).astype(int)


def _check_start(start: Sequence[int], layers: Sequence[Mapping[str, Any]]) -> None:
    """Check that what is chosen first is there."""
    fits = len(start) == 4 and 0 <= start[0] < len(layers)
    if fits:
        layer = layers[start[0]]
        sizes = len(layer["heat"]), len(layer["rows"]), len(layer["columns"])
        fits = all(0 <= at < size for at, size in zip(start[1:], sizes, strict=True))
    if not fits:
        raise ValueError(
            "explore_attention: start must be a layer, a head, who looks and at whom, all of the "
            f"first look, got start={tuple(start)}. Count from 0."
        )
