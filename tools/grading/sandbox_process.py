"""The world behind the wall in which the notebooks of one student run, as it is seen from outside.

What comes from inside may be anything: it is read as JSON and never run. Who sends no messages, or
nothing at all for long, is ended; the next notebook gets a new world.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

from tools.grading.cgroup import Group
from tools.grading.framing import FrameDecoder, BrokenFrame, packed
from tools.grading.sandbox import SandboxPaths, Sandbox

SILENCE = 300.0  # seconds of the clock after which a world that says nothing counts as gone


class Gone(Exception):
    """The world has ended, or nobody understands it; the text says why."""


class SandboxProcess:
    """A world behind a wall, begun when it is first needed.

    Args:
        wall: what keeps it apart.
        outside: where the course, the grader's programs and a new folder lie.
        environment: of the code.
        memory: bytes that a notebook may take.
        log: a file for what the programs inside write.
    """

    def __init__(
        self, wall: Sandbox, outside: SandboxPaths, environment: dict[str, str], memory: int, log: Path
    ):
        self.wall, self.outside, self.memory, self.log = wall, outside, memory, log
        self.places = wall.places(outside)
        paths = map(str, (self.places.grader, self.places.course, self.places.course / "clinic"))
        self.environment = environment | {"PYTHONPATH": os.pathsep.join(paths)}
        self._process: subprocess.Popen | None = None
        self._group: Group | None = None
        self._arriving, self._waiting = FrameDecoder(), deque[dict[str, Any]]()
        self._heard = 0.0

    def begin(self) -> None:
        """Start the world if there is none, and wait until it has imported everything.

        Raises:
            Gone: it does not start.
        """
        if self._process is not None:
            return
        program = str(self.places.grader / "tools" / "grading" / "fork_server.py")
        command = [sys.executable, program, str(self.places.course), str(self.places.scratch)]
        if not self.wall.isolates:
            self.outside.scratch.mkdir(parents=True, exist_ok=True)
        settings = [f"{name}={value}" for name, value in self.environment.items()]
        command = ["/usr/bin/env", "-i", *settings, *command]
        self._group = Group(self.memory)
        with self.log.open("ab") as file:
            self._process = subprocess.Popen(
                self._group.around(self.wall.wrap(command, self.outside, self.memory)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                start_new_session=True,
            )
        for pipe in (self._process.stdin, self._process.stdout):
            os.set_blocking(pipe.fileno(), False)
        self._arriving, self._heard = FrameDecoder(), time.monotonic()
        self._waiting.clear()
        while "ready" not in (self.receive(1.0) or {}):
            pass

    def send(self, message: dict[str, Any]) -> None:
        """Return something to the world; hears it meanwhile, so that none waits for the other.

        Raises:
            Gone: it has ended.
        """
        left = memoryview(packed(message))
        taking, giving = self._process.stdin.fileno(), self._process.stdout.fileno()
        while left:
            heard, ready, _ = select.select([giving], [taking], [], 1.0)
            if heard:
                self._hear()
            if ready:
                try:
                    left = left[os.write(taking, left) :]
                except BlockingIOError:
                    continue
                except OSError:
                    raise self._gone("its watcher was killed") from None
            elif not heard:
                self._silent()

    def receive(self, wait: float = 0.0) -> dict[str, Any] | None:
        """Return the next message of the world, None when there is none in time.

        Args:
            wait: seconds.

        Raises:
            Gone: it has ended, or sends what is no message.
        """
        if not self._waiting:
            if self._process is None:
                raise Gone("its watcher was killed")
            if select.select([self._process.stdout.fileno()], [], [], wait)[0]:
                self._hear()
            else:
                self._silent()
        return self._waiting.popleft() if self._waiting else None

    def _hear(self) -> None:
        try:
            piece = os.read(self._process.stdout.fileno(), 1 << 18)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        if not piece:
            raise self._gone("its watcher was killed")
        self._heard = time.monotonic()
        try:
            self._waiting.extend(self._arriving.add(piece))
        except BrokenFrame as broken:
            raise self._gone(f"what it sent is no answer ({broken})") from None

    def _silent(self) -> None:
        if time.monotonic() - self._heard > SILENCE:
            raise self._gone("its watcher is silent")

    def _gone(self, why: str) -> Gone:
        self.end()
        return Gone(why)

    def end(self) -> None:
        """End the world with all that is in it."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(OSError):
            process.stdin.close()
        # Where it cannot be sure to end with the process that made it: ask it.
        if not self.wall.isolates or self.wall.remove:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)
        if self.wall.remove:
            self.wall.remove(self.outside, process.poll() is not None)
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        self._group.end()
