"""For pytest: a test that fails by `assert diagnose(module)` shows the whole report, fix included.

Installed with the distribution, pytest finds it by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from attention_clinic.engine.report import ASKED


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: Any, call: Any) -> Iterator[Any]:
    """Add the reports that the test asked for their truth, where that was false and it failed."""
    result = yield
    if call.excinfo is not None and call.excinfo.errisinstance(AssertionError):
        said = str(call.excinfo.value)
        for report in ASKED:
            if str(report) not in said:  # `assert_healthy` has said it already
                result.sections.append(("attention_clinic", str(report)))
    ASKED.clear()
    return result
