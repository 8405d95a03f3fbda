"""What pages need of others and hold themselves, so that nothing comes from a foreign server."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from tools.commands import CALL


def package(name: str) -> Path:
    """Returns the folder of an installed package, without importing it.

    Args:
        name: of the package, as it lies in site-packages.
    Raises:
        ValueError: it is not installed.
    """
    found = importlib.util.find_spec(name)
    if found is None or not found.submodule_search_locations:
        raise ValueError(f"{name} must be installed, got none. Type: {CALL} install dev")
    return Path(found.submodule_search_locations[0])


def mathjax() -> Path:
    """Returns the folder of MathJax; tex-svg.js in it draws formulas and needs no fonts."""
    return package("sphinx-mathjax-offline") / "static" / "mathjax"
