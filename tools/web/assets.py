"""What pages need of others and hold themselves, so that nothing comes from a foreign server."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def package(name: str, needs: str) -> Path:
    """Return the folder of an installed package, without importing it.

    Args:
        name: of the package, as it lies in site-packages.
        needs: the file of requirements that brings it.
    Raises:
        ValueError: it is not installed.
    """
    found = importlib.util.find_spec(name)
    if found is None or not found.submodule_search_locations:
        raise ValueError(
            f"{name}: it must be installed, got none. Type: "
            f".venv/bin/python -m pip install -r {needs}"
        )
    return Path(found.submodule_search_locations[0])


def mathjax() -> Path:
    """Return the folder of MathJax; tex-svg.js in it draws formulas and needs no fonts."""
    return package("sphinx-mathjax-offline", "requirements-site.txt") / "static" / "mathjax"
