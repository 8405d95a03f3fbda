"""What tests of several folders begin with."""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Messages name what was typed. Tests type `python3 -m tools`, also where `make test` started them.
os.environ.pop("MAKELEVEL", None)


@pytest.fixture
def conftest(request: pytest.FixtureRequest) -> ModuleType:
    """Hand over the `conftest.py` of the course, which compares notebooks, as pytest loaded it.

    `import conftest` would bring the one of the folder that was collected last.
    """
    return request.config.pluginmanager.get_plugin(str(ROOT / "conftest.py"))
