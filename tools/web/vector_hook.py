"""Run inside a chapter's kernel: keeps each figure a second time, in lines instead of pixels."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

# Points to an inch of what has pixels in lines, too: photographs and heat maps.
FINE = 220


def keep(folder: str) -> None:
    """Let show_figure draw into a folder as well, under the hash of the pixels that it stores.

    Args:
        folder: for the drawings.
    """
    import matplotlib.pyplot as plt

    from utils.draw import style

    pixels = style._png

    def twice(figure: Any) -> bytes:
        png = pixels(figure)
        path = Path(folder) / f"{name(png)}.svg"
        with plt.rc_context({"svg.hashsalt": "book", "svg.fonttype": "path"}):
            figure.savefig(
                path, format="svg", dpi=FINE, bbox_inches="tight", metadata={"Date": None}
            )
        return png

    style._png = twice


def name(png: bytes) -> str:
    """Return the name under which the drawing of a picture is kept."""
    return hashlib.sha256(png).hexdigest()
