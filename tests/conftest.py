"""What tests of several folders begin with."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def conftest(request: pytest.FixtureRequest) -> ModuleType:
    """Hand over the `conftest.py` of the course, which compares notebooks, as pytest loaded it.

    `import conftest` would bring the one of the folder that was collected last.
    """
    return request.config.pluginmanager.get_plugin(str(ROOT / "conftest.py"))
