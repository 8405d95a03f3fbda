"""How Sphinx makes the site of pages that tools/web/sources.py has written: see `make site`."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

project = "Attention, shape by shape"
author = "the authors of Attention, shape by shape"
version = release = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
    "version"
]
language = "en"
html_last_updated_fmt = None  # the same course gives the same pages

extensions = ["myst_nb", "sphinx.ext.mathjax"]
nb_execution_mode = "off"  # what the notebooks store is shown; nothing runs
nb_merge_streams = True
# Of markdown, what JupyterLab knows too, and MyST's own signs where pages are written for it.
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_disable_syntax = ["myst_role", "myst_line_comment", "myst_block_break"]
myst_heading_anchors = 3
myst_dmath_double_inline = True
mathjax_path = "mathjax/tex-svg.js"
mathjax3_config = {"svg": {"fontCache": "global"}, "options": {"enableMenu": False}}
exclude_patterns = ["static"]

templates_path = ["templates"]
html_theme = "sphinx_book_theme"
html_title = project
highlight_language = "none"  # what a fence does not name is no code
smartquotes = False  # code stands in sentences: what is copied from there runs
html_copy_source = False
html_show_sourcelink = False
html_use_index = False
html_css_files = ["explorers.css", "course.css"]
html_js_files = [
    ("explorers.js", {"defer": "defer"}),
    ("course.js", {"defer": "defer"}),
    ("predictions.js", {"defer": "defer"}),
]
html_theme_options = {
    "use_download_button": False,
    "use_fullscreen_button": False,
    "use_source_button": False,
    "show_navbar_depth": 1,
    "show_toc_level": 2,
    "home_page_in_toc": True,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}


def setup(app):
    """Let the scripts, styles and pictures come from where the pages lie."""

    def found(app, config):
        config.html_static_path = [str(Path(app.srcdir) / "static")]

    app.connect("config-inited", found, priority=0)
