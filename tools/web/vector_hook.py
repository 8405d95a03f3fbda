"""Code for a chapter's kernel: store each figure also as lines instead of pixels."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

# Dots per inch of parts that stay pixels: photographs and heat maps.
FINE = 220


def keep(folder: str) -> None:
    """Make show_figure also draw into a folder, named by the hash of the stored pixels.

    Args:
        folder: for the drawings.
    """
    import matplotlib.pyplot as plt

    from utils.draw import style

    def twice(figure: Any) -> bytes:
        png = style.to_png(figure)
        path = Path(folder) / f"{name(png)}.svg"
        with plt.rc_context({"svg.hashsalt": "book", "svg.fonttype": "path"}):
            figure.savefig(
                path, format="svg", dpi=FINE, bbox_inches="tight", metadata={"Date": None}
            )
        return png

    style.render_with(twice)


def name(png: bytes) -> str:
    """Return the name of the drawing of a picture."""
    return hashlib.sha256(png).hexdigest()
