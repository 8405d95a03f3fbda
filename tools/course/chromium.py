"""The system's Chromium, for PDFs and for tests in a browser."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # `make test` imports this without playwright
    from playwright.sync_api import Browser

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MISSING = (
    "Chromium must be installed, got none. Install it (Debian, Ubuntu: sudo apt install chromium; "
    "anywhere: .venv/bin/python -m playwright install chromium), or set BROWSER_PATH=/path/to/it"
)
OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextmanager
def launched() -> Iterator[Browser]:
    """Start a browser, and end it afterwards.

    Raises:
        ValueError: no browser is installed.
    """
    from playwright.sync_api import Error, sync_playwright

    found = os.environ.get("BROWSER_PATH") or next(filter(None, map(shutil.which, NAMES)), None)
    with sync_playwright() as playwright:
        try:
            chromium = playwright.chromium.launch(executable_path=found, args=OPTIONS)
        except Error as error:
            if found:
                raise
            raise ValueError(f"{MISSING} ({error.message.splitlines()[0]})") from None
        try:
            yield chromium
        finally:
            chromium.close()
