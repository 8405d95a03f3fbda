"""Assets of pages, so that nothing comes from another server."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def package(name: str, needs: str) -> Path:
    """Return the folder of an installed package, without importing it.

    Args:
        name: of the package in site-packages.
        needs: the requirements file that installs it.
    Raises:
        ValueError: it is not installed.
    """
    found = importlib.util.find_spec(name)
    if found is None or not found.submodule_search_locations:
        raise ValueError(
            f"{name} must be installed, got none. Type: .venv/bin/python -m pip install -r {needs}"
        )
    return Path(found.submodule_search_locations[0])


def mathjax() -> Path:
    """Return the folder of MathJax; its tex-svg.js draws formulas without fonts."""
    return package("sphinx-mathjax-offline", "requirements-site.txt") / "static" / "mathjax"
