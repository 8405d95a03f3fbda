"""Messages between the grader and the sandbox: frames of JSON and bytes.

Messages between a check and an answer are forwarded unread. Nothing that arrives is executed or
unpickled. A frame that is invalid or too long ends the connection.

    length of the rest, kind: PLAIN or OF_CHECK
    length of the JSON, the JSON, the bytes for each {"$bytes": length} in it, in order
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from typing import Any

HEAD = struct.Struct("!IB")
LENGTH = struct.Struct("!I")
MAX_BYTES = 100_000_000  # of one message
PLAIN, OF_CHECK = 0, 1
BYTES = "$bytes"


class BrokenFrame(Exception):
    """The received bytes are not a valid message; the text says why."""


def encode(message: dict[str, Any]) -> bytes:
    """Return a message as a frame.

    Args:
        message: JSON values and bytes; {"check": message} for a message from a check to an answer.
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


def with_kind(frame: bytearray, kind: int) -> bytearray:
    """Set the kind of a frame, and return it."""
    frame[HEAD.size - 1] = kind
    return frame


def decode(frame: bytes | bytearray) -> dict[str, Any]:
    """Return the message in a frame.

    Raises:
        BrokenFrame: the frame has no valid message.
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
            raise BrokenFrame("missing bytes")
        part, left = bytes(left[:count]), left[count:]
        return part

    try:
        message = json.loads(frame[start:end], object_hook=hook)
    except (ValueError, RecursionError):
        raise BrokenFrame("invalid JSON") from None
    if not isinstance(message, dict):
        raise BrokenFrame("no message")
    return {"check": message} if is_of_check(frame) else message


def send(file: int, message: dict[str, Any]) -> None:
    """Write a whole message to a file descriptor.

    Args:
        file: the descriptor.
        message: JSON values and bytes by name.
    """
    write(file, encode(message))


def write(file: int, frame: bytes | bytearray) -> None:
    """Write a whole frame to a file descriptor."""
    left = memoryview(frame)
    while left:
        left = left[os.write(file, left) :]


def receive(file: int) -> dict[str, Any] | None:
    """Wait for a message on a file descriptor; return None at the end of the file.

    Args:
        file: the descriptor.

    Raises:
        BrokenFrame: the message is invalid.
    """
    frame = read(file)
    return None if frame is None else decode(frame)


def read(file: int) -> bytearray | None:
    """Wait for a frame on a file descriptor; return None at the end of the file."""
    frame = bytearray()
    if not _fill(frame, file, HEAD.size) or not _fill(frame, file, _frame_length(frame)):
        return None
    return frame


def _fill(frame: bytearray, file: int, size: int) -> bool:
    """Read until a frame has `size` bytes; return False at the end of the file."""
    while len(frame) < size:
        part = os.read(file, min(size - len(frame), 1 << 20))
        if not part:
            return False
        frame += part
    return True


class FrameDecoder:
    """Assemble messages from chunks of a byte stream.

    Args:
        read: turns a frame into the returned message.
    """

    def __init__(self, read: Callable[[bytearray], Any] = decode) -> None:
        self._bytes, self._read = bytearray(), read

    def add(self, chunk: bytes) -> list[Any]:
        """Add a chunk, and return the messages that are complete now.

        Args:
            chunk: the next bytes.

        Raises:
            BrokenFrame: the bytes are not valid messages.
        """
        self._bytes += chunk
        found = []
        while len(self._bytes) >= HEAD.size:
            end = _frame_length(self._bytes)
            if len(self._bytes) < end:
                break
            found.append(self._read(self._bytes[:end]))
            del self._bytes[:end]
        return found


def _frame_length(start: bytes | bytearray) -> int:
    """Return the length of the frame with these first bytes."""
    length, _ = HEAD.unpack_from(start)
    if length > MAX_BYTES:
        raise BrokenFrame(f"a message of {length} bytes")
    return HEAD.size + length
