"""Take the screenshots of README: an explorer of chapter 04, on a light and on a dark page.

    .venv/bin/python img/make_screenshots.py

It exports the stored chapter, clicks, and needs Chromium and playwright, as `make browser` does.
"""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbconvert import HTMLExporter

from tools.course.chromium import launched

ROOT = Path(__file__).resolve().parents[1]
# Digit 3, layer 0, head 3, the patch in row 1 and column 1 of 4 x 4.
HEAD, ROW, COLUMN, GRID = 3, 1, 1, 4


def main() -> None:
    path = ROOT / "notebooks" / "04_multi_head_attention.ipynb"
    notebook = nbformat.read(path, as_version=4)
    with launched() as browser:
        for theme in ("light", "dark"):
            page, _ = HTMLExporter(theme=theme).from_notebook_node(notebook)
            tab = browser.new_page(viewport={"width": 900, "height": 1200}, offline=True)
            tab.set_content(page, wait_until="domcontentloaded")
            explorer = tab.locator("#explorer-heads")
            slider = explorer.get_by_role("slider", name="head", exact=True)
            for _ in range(HEAD):
                slider.press("ArrowRight")
            grid = explorer.locator('svg[role="application"]').first
            box = grid.bounding_box()
            grid.click(
                position={
                    "x": box["width"] * (COLUMN + 0.5) / GRID,
                    "y": box["height"] * (ROW + 0.5) / GRID,
                }
            )
            cell = tab.locator(".jp-Cell").filter(has=explorer).last
            cell.screenshot(path=ROOT / "img" / f"explorer_{theme}.png")


if __name__ == "__main__":
    main()
