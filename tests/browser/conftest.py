"""A real browser for the explorers: the system's Chromium, driven by playwright.

The files are called try_*.py, so that `make test` leaves them alone; `make browser`, which is
`pytest tests/browser`, collects them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tools.course.chromium import launched

if TYPE_CHECKING:  # `make test` reads this file without playwright
    from playwright.sync_api import Browser, BrowserContext, Page

HERE = Path(__file__).parent


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Collect try_*.py where this folder is asked for by name."""
    config = parent.config
    asked = [(config.invocation_params.dir / arg).resolve() for arg in config.args]
    if file_path.match("try_*.py") and HERE in asked:
        return pytest.Module.from_parent(parent, path=file_path)
    return None


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Start the browser once; without one every test is skipped, with a line that says why."""
    with ExitStack() as stack:
        try:
            chromium = stack.enter_context(launched())
        except ValueError as error:
            pytest.skip(str(error))
        yield chromium


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """Open an empty page; an error of a script of the course fails the test."""
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(f"{error.message}\n{error.stack}"))
    yield page
    page.close()
    ours = [error for error in errors if "explorer" in error or "start(" in error]
    assert not ours, "\n".join(ours)


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    """Return a window of 1280 x 900 points without cookies."""
    with browser.new_context(viewport={"width": 1280, "height": 900}) as context:
        yield context
