"""Assets of pages, so that nothing comes from other servers."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from tools.commands import CALL


def package(name: str) -> Path:
    """Return the folder of an installed package, without importing it.

    Args:
        name: of the package in site-packages.
    Raises:
        ValueError: it is not installed.
    """
    found = importlib.util.find_spec(name)
    if found is None or not found.submodule_search_locations:
        raise ValueError(f"{name} must be installed, got none. Type: {CALL} install dev")
    return Path(found.submodule_search_locations[0])


def mathjax() -> Path:
    """Return the folder of MathJax; its tex-svg.js draws formulas without fonts."""
    return package("sphinx-mathjax-offline") / "static" / "mathjax"
