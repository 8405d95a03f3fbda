"""Behind the wall: hands out a student's answers, and makes the calls that a check asks for."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tools.grading.remote_objects import Peer


def serve(
    names: dict[str, Any],
    post: Callable[[dict[str, Any]], None],
    wait: Callable[[], dict[str, Any]],
) -> None:
    """Serve a check until it has ended.

    Args:
        names: those of the student.
        post: sends a message to the check.
        wait: returns the next message of the check.
    """

    def get(question: dict[str, Any]) -> dict[str, Any]:
        return peer.give(eval(question["expression"], names))

    def heard() -> dict[str, Any]:
        with interrupts(False):
            return wait() or {"end": True}

    peer = Peer(post, heard, is_open=True, get=get)
    # Only a call can be interrupted: half a message would be lost.
    peer.serves = {name: interruptible(operation) for name, operation in peer.serves.items()}
    with interrupts(False):
        while "end" not in (said := heard()):
            if "ask" in said:
                with warnings.catch_warnings(action="ignore"):
                    peer.serve(said)


@contextmanager
def interrupts(allowed: bool) -> Iterator[None]:
    """Let an interrupt come now, or wait until later."""
    how = signal.SIG_UNBLOCK if allowed else signal.SIG_BLOCK
    before = signal.pthread_sigmask(how, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def interruptible(operation: Callable) -> Callable:
    """Return what does the same, and can be interrupted."""

    def run(question: dict[str, Any]) -> dict[str, Any]:
        with interrupts(True):
            return operation(question)

    return run
