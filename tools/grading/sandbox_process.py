"""The sandboxed process that runs the notebooks of one student, seen from the grader.

Its messages are untrusted: they are read as JSON and never executed. A process that sends invalid
messages, or nothing for a long time, is ended; the next notebook starts a new one.
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
from tools.grading.framing import BrokenFrame, FrameDecoder, encode
from tools.grading.sandbox import Sandbox, SandboxPaths

SILENCE = 300.0  # seconds without a message after which a process counts as dead


class SandboxEnded(Exception):
    """The process has ended or sent an invalid message; the text says why."""


class SandboxProcess:
    """A fork server in a sandbox, started when it is first needed.

    Args:
        sandbox: how it is isolated.
        outside: the course, the grader's programs and a new folder, by their paths outside.
        environment: the variables that the code sees.
        memory: bytes that a notebook may take.
        log: a file for the standard error of the process.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        outside: SandboxPaths,
        environment: dict[str, str],
        memory: int,
        log: Path,
    ):
        self.sandbox, self.outside, self.memory, self.log = sandbox, outside, memory, log
        self.paths = sandbox.paths(outside)
        imports = (self.paths.grader, self.paths.course, self.paths.course / "clinic")
        self.environment = environment | {"PYTHONPATH": os.pathsep.join(map(str, imports))}
        self._process: subprocess.Popen | None = None
        self._group: Group | None = None
        self._decoder, self._messages = FrameDecoder(), deque[dict[str, Any]]()
        self._last_message = 0.0

    def begin(self) -> None:
        """Start the process if it does not run, and wait until it has imported everything.

        Raises:
            SandboxEnded: the process does not start.
        """
        if self._process is not None:
            return
        program = str(self.paths.grader / "tools" / "grading" / "fork_server.py")
        command = [sys.executable, program, str(self.paths.course), str(self.paths.scratch)]
        if not self.sandbox.isolates:
            self.outside.scratch.mkdir(parents=True, exist_ok=True)
        settings = [f"{name}={value}" for name, value in self.environment.items()]
        command = ["/usr/bin/env", "-i", *settings, *command]
        self._group = Group(self.memory)
        with self.log.open("ab") as file:
            self._process = subprocess.Popen(
                self._group.wrap(self.sandbox.wrap(command, self.outside, self.memory)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                start_new_session=True,
            )
        for pipe in (self._process.stdin, self._process.stdout):
            os.set_blocking(pipe.fileno(), False)
        self._decoder, self._last_message = FrameDecoder(), time.monotonic()
        self._messages.clear()
        while "ready" not in (self.receive(1.0) or {}):
            pass

    def send(self, message: dict[str, Any]) -> None:
        """Send a message while reading answers, so that neither side blocks the other.

        Raises:
            SandboxEnded: the process has ended.
        """
        left = memoryview(encode(message))
        stdin, stdout = self._process.stdin.fileno(), self._process.stdout.fileno()
        while left:
            readable, writable, _ = select.select([stdout], [stdin], [], 1.0)
            if readable:
                self._read()
            if writable:
                try:
                    left = left[os.write(stdin, left) :]
                except BlockingIOError:
                    continue
                except OSError:
                    raise self._ended("its supervisor was killed") from None
            elif not readable:
                self._check_silence()

    def receive(self, wait: float = 0.0) -> dict[str, Any] | None:
        """Return the next message, None if none arrives in time.

        Args:
            wait: seconds.

        Raises:
            SandboxEnded: the process has ended or sent an invalid message.
        """
        if not self._messages:
            if self._process is None:
                raise SandboxEnded("its supervisor was killed")
            if select.select([self._process.stdout.fileno()], [], [], wait)[0]:
                self._read()
            else:
                self._check_silence()
        return self._messages.popleft() if self._messages else None

    def _read(self) -> None:
        try:
            data = os.read(self._process.stdout.fileno(), 1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            raise self._ended("its supervisor was killed")
        self._last_message = time.monotonic()
        try:
            self._messages.extend(self._decoder.add(data))
        except BrokenFrame as broken:
            raise self._ended(f"it sent an invalid message ({broken})") from None

    def _check_silence(self) -> None:
        if time.monotonic() - self._last_message > SILENCE:
            raise self._ended("its supervisor does not answer")

    def _ended(self, why: str) -> SandboxEnded:
        self.end()
        return SandboxEnded(why)

    def end(self) -> None:
        """End the process with everything that it has started."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(OSError):
            process.stdin.close()
        # Only bubblewrap surely ends with the process that started it; others get time to end.
        if not self.sandbox.isolates or self.sandbox.remove:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)
        if self.sandbox.remove:
            self.sandbox.remove(self.outside, process.poll() is not None)
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        self._group.end()
