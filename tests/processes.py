"""What tests need to see which processes are left when one was killed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import psutil


def running(mark: dict[str, str]) -> list[psutil.Process]:
    """Find the processes with a variable of the environment: a marked one, and all it started."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if mark.items() <= process.environ().items() and process.status() != "zombie":
                found.append(process)
    return found


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.2)
