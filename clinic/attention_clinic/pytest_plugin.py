"""For pytest: a test that fails by `assert diagnose(module)` shows the whole report, fix included.

pytest finds this plugin by itself once the package is installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from attention_clinic.report import ASKED


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: Any, call: Any) -> Iterator[Any]:
    """Add the reports that were false in a condition to a test that failed by an assertion."""
    result = yield
    if call.excinfo is not None and call.excinfo.errisinstance(AssertionError):
        shown = str(call.excinfo.value)
        for report in ASKED:
            if str(report) not in shown:  # `assert_healthy` has shown it already
                result.sections.append(("attention_clinic", str(report)))
    ASKED.clear()
    return result
