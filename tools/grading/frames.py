"""What both sides of the wall say to each other: JSON values, each with its length before it.

Nothing that arrives is run or unpickled. Whoever sends something else, or too much, is broken, and
the other side stops listening.
"""

from __future__ import annotations

import json
import os
import struct
from typing import Any

LENGTH = struct.Struct("!I")
MOST = 100_000_000  # bytes of one message


class Broken(Exception):
    """What arrived is no message; the text says why."""


def packed(message: dict[str, Any]) -> bytes:
    """Returns a message as bytes."""
    content = json.dumps(message, default=str).encode()
    return LENGTH.pack(len(content)) + content


def send(file: int, message: dict[str, Any]) -> None:
    """Writes a message to a file descriptor, and waits until all of it is taken.

    Args:
        file: the descriptor.
        message: JSON values by name.
    """
    left = memoryview(packed(message))
    while left:
        left = left[os.write(file, left) :]


def receive(file: int) -> dict[str, Any] | None:
    """Reads a message from a file descriptor, and waits for it; None when the other side is gone.

    Args:
        file: the descriptor.

    Raises:
        Broken: no message arrived.
    """
    start = _exactly(file, LENGTH.size)
    if start is None:
        return None
    content = _exactly(file, _length(start))
    return None if content is None else _parsed(content)


def _exactly(file: int, count: int) -> bytes | None:
    parts = []
    while count:
        part = os.read(file, min(count, 1 << 20))
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


class Arriving:
    """Puts messages together from the pieces in which they arrive."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def add(self, piece: bytes) -> list[dict[str, Any]]:
        """Takes a piece, and returns the messages that are whole now.

        Args:
            piece: the next bytes.

        Raises:
            Broken: they are no messages.
        """
        self._bytes += piece
        found = []
        while len(self._bytes) >= LENGTH.size:
            end = LENGTH.size + _length(bytes(self._bytes[: LENGTH.size]))
            if len(self._bytes) < end:
                break
            found.append(_parsed(bytes(self._bytes[LENGTH.size : end])))
            del self._bytes[:end]
        return found


def _length(start: bytes) -> int:
    (length,) = LENGTH.unpack(start)
    if length > MOST:
        raise Broken(f"a message of {length} bytes")
    return length


def _parsed(content: bytes) -> dict[str, Any]:
    try:
        message = json.loads(content)
    except (ValueError, RecursionError):
        raise Broken("no JSON") from None
    if not isinstance(message, dict):
        raise Broken("no message")
    return message
