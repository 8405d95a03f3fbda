"""What both sides of the wall say to each other: JSON values and bytes, with their length before.

What a check and an answer say is only handed on by those between them. Nothing that arrives is run
or unpickled. Whoever sends something else, or too much, is broken, and the other side stops
listening.

    length of the rest, kind: PLAIN or OF_CHECK
    length of the JSON, the JSON, the bytes that stand in it as {"$bytes": length}, in order
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from typing import Any

HEAD = struct.Struct("!IB")
LENGTH = struct.Struct("!I")
MOST = 100_000_000  # bytes of one message
PLAIN, OF_CHECK = 0, 1
BYTES = "$bytes"


class BrokenFrame(Exception):
    """What arrived is no message; the text says why."""


def packed(message: dict[str, Any]) -> bytes:
    """Return a message as bytes, a frame.

    Args:
        message: JSON values and bytes; {"check": message} for what is said to an answer.
    """
    kind = PLAIN
    if message.keys() == {"check"}:
        kind, message = OF_CHECK, message["check"]
    parts: list[bytes] = []

    def default(value: Any) -> Any:
        if type(value) is not bytes:
            return str(value)
        parts.append(value)
        return {BYTES: len(value)}

    text = json.dumps(message, default=default).encode()
    rest = b"".join((LENGTH.pack(len(text)), text, *parts))
    return HEAD.pack(len(rest), kind) + rest


def is_of_check(frame: bytes | bytearray) -> bool:
    return frame[HEAD.size - 1] == OF_CHECK


def of_kind(frame: bytearray, kind: int) -> bytearray:
    """Return the frame as one of that kind, whatever it was."""
    frame[HEAD.size - 1] = kind
    return frame


def parsed(frame: bytes | bytearray) -> dict[str, Any]:
    """Return the message that a frame holds.

    Raises:
        BrokenFrame: it holds none.
    """
    start = HEAD.size + LENGTH.size
    if len(frame) < start:
        raise BrokenFrame("no message")
    end = start + LENGTH.unpack_from(frame, HEAD.size)[0]
    left = memoryview(frame)[end:]

    def hook(found: dict[str, Any]) -> Any:
        nonlocal left
        if found.keys() != {BYTES}:
            return found
        count = found[BYTES]
        if type(count) is not int or not 0 <= count <= len(left):
            raise BrokenFrame("bytes that are not there")
        part, left = bytes(left[:count]), left[count:]
        return part

    try:
        message = json.loads(frame[start:end], object_hook=hook)
    except (ValueError, RecursionError):
        raise BrokenFrame("no JSON") from None
    if not isinstance(message, dict):
        raise BrokenFrame("no message")
    return {"check": message} if is_of_check(frame) else message


def send(file: int, message: dict[str, Any]) -> None:
    """Write a message to a file descriptor, and wait until all of it is taken.

    Args:
        file: the descriptor.
        message: JSON values and bytes by name.
    """
    write(file, packed(message))


def write(file: int, frame: bytes | bytearray) -> None:
    """Write a frame to a file descriptor, and wait until all of it is taken."""
    left = memoryview(frame)
    while left:
        left = left[os.write(file, left) :]


def receive(file: int) -> dict[str, Any] | None:
    """Read a message from a file descriptor, and wait for it; None when the other side is gone.

    Args:
        file: the descriptor.

    Raises:
        BrokenFrame: no message arrived.
    """
    frame = read(file)
    return None if frame is None else parsed(frame)


def read(file: int) -> bytearray | None:
    """Read a frame from a file descriptor, and wait for it; None when the other side is gone."""
    frame = bytearray()
    if not _filled(frame, file, HEAD.size) or not _filled(frame, file, _whole(frame)):
        return None
    return frame


def _filled(frame: bytearray, file: int, size: int) -> bool:
    """Read until a frame has this size; return whether it came to that."""
    while len(frame) < size:
        part = os.read(file, min(size - len(frame), 1 << 20))
        if not part:
            return False
        frame += part
    return True


class FrameDecoder:
    """Put messages together from the pieces in which they arrive.

    Args:
        read: makes of a frame what is returned.
    """

    def __init__(self, read: Callable[[bytearray], Any] = parsed) -> None:
        self._bytes, self._read = bytearray(), read

    def add(self, piece: bytes) -> list[Any]:
        """Take a piece, and return the messages that are whole now.

        Args:
            piece: the next bytes.

        Raises:
            BrokenFrame: they are no messages.
        """
        self._bytes += piece
        found = []
        while len(self._bytes) >= HEAD.size:
            end = _whole(self._bytes)
            if len(self._bytes) < end:
                break
            found.append(self._read(self._bytes[:end]))
            del self._bytes[:end]
        return found


def _whole(start: bytes | bytearray) -> int:
    """Return how long the frame is that begins so."""
    length, _ = HEAD.unpack_from(start)
    if length > MOST:
        raise BrokenFrame(f"a message of {length} bytes")
    return HEAD.size + length
