"""How the weights of a module may lie: orders of packed features, axes, pieces, readings."""

from __future__ import annotations

from dataclasses import dataclass

# the order of the features of one packed layer: k of q, k, v; heads h; width of a head d
LAYOUTS = {
    1: ("k h d", "k d h"),
    2: ("k h d", "h k d", "h d k", "k d h", "d k h", "d h k"),
    3: ("k h d", "h k d", "h d k", "k d h", "d k h", "d h k"),
}
# tensors with more axes: (pattern, the layout it gives); e width of a token, f = h * d
IN_AXES = {
    "h e d": ("h d", "k h d"),
    "h d e": ("h d", "k h d"),
    "e h d": ("h d", "k h d"),
    "k e f": ("k f", "k h d"),
    "k f e": ("k f", "k h d"),
    "k h e d": ("k h d", "k h d"),
    "k h d e": ("k h d", "k h d"),
    "k e h d": ("k h d", "k h d"),
    "e k h d": ("k h d", "k h d"),
    "h k e d": ("h k d", "h k d"),
}
# the bugs that a way to share implies
BY_SHARING: dict[str, tuple[str, ...]] = {
    "": (),
    "slices": ("head-shared-projection",),
    "tokens": ("heads-same",),
    "own": ("head-own-slice",),
}
WIDTH_FIRST = ("k d h", "d k h", "d h k")  # layouts in which a head has every h-th number
BACK = (-1, "", "d h")  # no output layer, and the heads joined as such a layout splits them
OUT_AXES = ("h d e", "h e d", "e h d")


@dataclass(frozen=True)
class Piece:
    """One projection to (h * d) as a part of a source.

    Args:
        source: the number of the source.
        form: its orientation, or the pattern of its axes.
        layout: the order of its features.
        part: which of the packed ones.
        parts: how many are packed.
        shared: "slices" when one (d, d) layer serves all heads, "tokens" when one (d, e) layer
            does, "own" when each head has a (d, d) layer for its own slice, "" for none of these.
    """

    source: int
    form: str
    layout: str
    part: int
    parts: int
    shared: str = ""


@dataclass(frozen=True)
class Reading:
    """Which weights are queries, keys, values and output.

    Args:
        q, k, v: the numbers of the pieces.
        out: (number of the source, orientation, layout), None or BACK when there is no such layer.
        ids: the bugs that this way to read implies.
        rank: 0 when it follows all names and orders, more the less it does.
        detail: what it says beyond the words of its bugs.
    """

    q: int
    k: int
    v: int
    out: tuple[int, str, str] | None
    ids: tuple[str, ...]
    rank: int
    detail: str = ""

    @property
    def ended(self) -> bool:
        """Whether there is an output layer."""
        return self.out not in (None, BACK)


SHARED = {(0, 0, 1): "queries and keys", (0, 1, 0): "queries and values", (0, 0, 0): "all three"}
KEYS_TOO = "the other way round: the keys get the layer of the values, and need their own"
