"""In the sandbox: give a check access to a student's answers, and run the calls it requests."""

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
    """Serve a check until it ends.

    Args:
        names: the namespace of the student's notebook.
        post: sends a message to the check.
        wait: returns the next message of the check.
    """

    def get(request: dict[str, Any]) -> dict[str, Any]:
        return peer.give(eval(request["expression"], names))

    def receive() -> dict[str, Any]:
        with interrupts(False):
            return wait() or {"end": True}

    peer = Peer(post, receive, is_open=True, get=get)
    # Only calls can be interrupted: an interrupted message would be lost.
    peer.serves = {name: interruptible(operation) for name, operation in peer.serves.items()}
    with interrupts(False):
        while "end" not in (message := receive()):
            if "ask" in message:
                with warnings.catch_warnings(action="ignore"):
                    peer.serve(message)


@contextmanager
def interrupts(allowed: bool) -> Iterator[None]:
    """Allow interrupts, or delay them."""
    how = signal.SIG_UNBLOCK if allowed else signal.SIG_BLOCK
    before = signal.pthread_sigmask(how, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def interruptible(operation: Callable) -> Callable:
    """Return the same operation with interrupts allowed."""

    def run(request: dict[str, Any]) -> dict[str, Any]:
        with interrupts(True):
            return operation(request)

    return run
