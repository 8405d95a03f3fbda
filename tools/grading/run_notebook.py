"""Run one notebook in a sandbox, with limits, and collect its outputs.

`Run` replaces nbgrader's `Execute`, which waits forever if a student's code does. A cell that takes
too long or prints too much is interrupted, and the next cell runs. A cell that cannot be
interrupted ends the notebook; earlier results count. Check cells are not executed: the check runs
in this process, and only the calls of answers run in the sandbox (judge.py). All seconds are
charged seconds (cpu_time.py), so the load of the machine costs no points.
"""

from __future__ import annotations

import enum
import signal
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from tools.course.cards import grade_id
from tools.course.notebook import source
from tools.grading.grades import CheckResult
from tools.grading.sandbox_process import SandboxEnded, SandboxProcess

# In charged seconds:
PATIENCE = 5.0  # for an interrupted cell to end
INTERRUPTS = 4  # within these seconds
GRACE = 0.5  # for a cell that prints too much to be stopped from inside, see fork_server.py
SETTLING = 2.0  # after the reply of a cell, for its last outputs to arrive
START = 60.0  # for a kernel to start
BATCH = 200  # messages that are read before the next decision
KEPT_TEXT = 20_000  # characters of text kept for a cell
KEPT_PICTURES = 600_000  # characters of pictures kept for a cell


@dataclass(frozen=True)
class Limits:
    """Limits of one notebook.

    Args:
        cell: charged seconds of one cell.
        notebook: charged seconds of all its cells together.
        memory: bytes of all its processes together.
        output: bytes that one cell may print.
    """

    cell: float = 30.0
    notebook: float = 180.0
    memory: int = 3_000_000_000
    output: int = 5_000_000


class Ended(Exception):
    """The kernel has ended; the text says why, in words that follow "stopped: "."""


class Kernel:
    """A kernel in a sandbox; see fork_server.py.

    Args:
        sandbox: the process that forks it.
        order: limits, and the environment of the code.
    """

    def __init__(self, sandbox: SandboxProcess, order: dict[str, Any]):
        self.sandbox = sandbox
        self.charged = 0.0  # seconds of the kernel and its descendants since it began
        self.began = self.ended = False
        self.stopped: str | None = None
        self.log = ""
        self.messages: dict[str, deque] = {"shell": deque(), "iopub": deque(), "check": deque()}
        self._is_closed, self._count = False, 0
        try:
            sandbox.begin()
            sandbox.send({"begin": order})
        except SandboxEnded as ended:
            raise Ended(str(ended)) from None

    def poll(self, wait: float = 0.0) -> None:
        """Read the messages that have arrived.

        Args:
            wait: seconds for the first message.
        """
        try:
            for _ in range(BATCH):
                if self._is_closed or (message := self.sandbox.receive(wait)) is None:
                    break
                wait = 0.0
                self._take(message)
        except SandboxEnded as ended:
            self._is_closed = self.ended = True
            self.stopped = self.stopped or str(ended)

    def _take(self, message: dict[str, Any]) -> None:
        if message.get("channel") in self.messages and isinstance(message.get("content"), dict):
            self.messages[message["channel"]].append(message)
        if isinstance(message.get("check"), dict):
            self.messages["check"].append(message["check"])
        self.began = self.began or "began" in message
        if isinstance(charged := message.get("charged"), int | float):
            self.charged = max(self.charged, charged)
        if "stopped" in message:
            self.stopped = self.stopped or str(message["stopped"])[:200]
        if "ended" in message:
            self.ended = True
            self.stopped = self.stopped or _exit_text(message["ended"])
        if "over" in message:
            self._is_closed = self.ended = True
            self.stopped = self.stopped or "it was stopped"
            self.log = str(message.get("log", ""))

    def execute(self, content: dict[str, Any], metadata: dict[str, Any]) -> int:
        """Start a cell, and return the number of its messages."""
        self._count += 1
        self._send({"execute": content, "metadata": metadata, "number": self._count})
        return self._count

    def ask(self, message: dict[str, Any]) -> None:
        """Send a message of a check to the answers."""
        self._send({"check": message})

    def interrupt(self) -> None:
        self._send({"interrupt": True})

    def _send(self, order: dict[str, Any]) -> None:
        try:
            if not self._is_closed:
                self.sandbox.send(order)
        except SandboxEnded as ended:
            self._is_closed = self.ended = True
            self.stopped = self.stopped or str(ended)

    def next(self, channel: str, wait: float = 0.0) -> dict[str, Any] | None:
        """Return the next message of a channel, None if none arrives in time.

        Args:
            channel: "shell", "iopub" or "check".
            wait: seconds.
        """
        if not self.messages[channel]:
            self.poll(wait)
        return self.messages[channel].popleft() if self.messages[channel] else None

    def close(self) -> None:
        """Have the kernel and its descendants killed, and wait for it."""
        self._send({"stop": True})
        while not self._is_closed:
            self.poll(0.1)


class GivenUp(BaseException):
    """A check that cannot go on. Not an `Exception`: no check may catch it."""


class Action(enum.Enum):
    """A decision about a running cell."""

    WAIT = enum.auto()
    INTERRUPT = enum.auto()
    FINISH = enum.auto()  # it has replied, and no output is expected
    GIVE_UP = enum.auto()  # it cannot be interrupted: end the kernel


class CellMonitor:
    """Decide what to do about one cell, from its charged seconds and its output.

    A cell runs, may be interrupted, and in the end replies or is given up.

    Args:
        limits: of the notebook.
        began: charged seconds of the kernel when the cell began.
        left: charged seconds that the notebook has left.
    """

    def __init__(self, limits: Limits, began: float, left: float):
        self.limits, self.began, self.left = limits, began, left
        self.trouble: str | None = None  # why it was interrupted
        self._flooded: float | None = None  # when its output exceeded the limit
        self._interrupted: float | None = None
        self._interrupts = 0
        self._replied: float | None = None

    @property
    def has_replied(self) -> bool:
        return self._replied is not None

    @property
    def is_interrupted(self) -> bool:
        return self._interrupted is not None

    def replied(self, charged: float) -> None:
        """Note that the kernel has replied; the last outputs may still arrive."""
        if self._replied is None:
            self._replied = charged

    def decide(self, charged: float, printed: int) -> Action:
        """Return what to do now.

        Args:
            charged: seconds of the kernel.
            printed: bytes of output of the cell.
        """
        if self._replied is not None:
            return Action.FINISH if charged - self._replied > SETTLING else Action.WAIT
        if self._interrupted is None:
            self.trouble = self._too_long(charged) or self._too_much(charged, printed)
            if self.trouble is None:
                return Action.WAIT
            self._interrupted = charged
        waited = charged - self._interrupted
        if waited >= PATIENCE:
            self.trouble += " and could not be interrupted"
            return Action.GIVE_UP
        if waited >= self._interrupts * PATIENCE / INTERRUPTS:
            self._interrupts += 1
            return Action.INTERRUPT
        return Action.WAIT

    def _too_long(self, charged: float) -> str | None:
        took = charged - self.began
        if took > self.limits.cell:
            return f"it took longer than {self.limits.cell:g} s"
        if took > self.left:
            return f"the notebook took longer than {self.limits.notebook:g} s"
        return None

    def _too_much(self, charged: float, printed: int) -> str | None:
        if printed < self.limits.output:
            return None
        if self._flooded is None:
            self._flooded = charged
        return printed_too_much(self.limits) if charged - self._flooded > GRACE else None


def printed_too_much(limits: Limits) -> str:
    return f"it printed more than {limits.output / 1e6:g} MB"


def _exit_text(status: Any) -> str:
    if not isinstance(status, int):
        return "it was stopped"
    if status < 0:
        name = signal.Signals(-status).name if -status in set(signal.Signals) else str(-status)
        return f"its process died ({name})"
    return f"its process exited (exit code {status})"


@dataclass
class Run:
    """Run the cells of a notebook, and collect the result of each check.

    Args:
        sandbox: where it runs.
        limits: of the notebook.
        salt: seed for cases that no student has seen.
        own: indices of the student's own cells, whose pictures are kept; None for all.
    """

    sandbox: SandboxProcess
    limits: Limits
    salt: str = ""
    own: set[int] | None = None
    results: dict[str, CheckResult] = field(default_factory=dict)  # by grade_id
    troubles: dict[int, str] = field(default_factory=dict)  # by index of the cell
    stopped: str | None = None  # why the notebook did not run to the end
    stopped_at: int | None = None
    seconds: float = 0.0  # charged seconds of all cells together
    log: str = ""  # the end of the kernel's log

    def __call__(self, nb: Any) -> None:
        """Run a notebook, and store its outputs in it."""
        try:
            self._run(nb)
        except Ended as end:
            self.stopped = str(end)
        for cell in nb.cells:
            name = grade_id(cell)
            if cell.cell_type == "code" and name.startswith("check-"):
                cell.outputs = self._check_output(name)

    def _check_output(self, name: str) -> list[Any]:
        """Return the output of a check cell: its result, as an error unless it is right.

        nbgrader gives points to a cell without an error, so a missing result is also an error.
        """
        from nbformat.v4 import new_output

        result = self.results.get(name)
        text = f"{result.state}: {result.reason}" if result else "the check did not run"
        if result and result.state == "right":
            return [new_output("stream", name="stdout", text=f"{text}\n")]
        return [new_output("error", ename="CheckFailed", evalue=text, traceback=[text])]

    def _run(self, nb: Any) -> None:
        order = {
            "environment": self.sandbox.environment,
            "memory": self.limits.memory,
            "output": self.limits.output,
        }
        kernel = Kernel(self.sandbox, order)
        try:
            while not kernel.began:
                kernel.poll(0.1)
                if kernel.ended or kernel.charged > START:
                    raise Ended(kernel.stopped or "its kernel did not start")
            for index, cell in enumerate(nb.cells):
                if cell.cell_type == "code":
                    self.stopped_at = index
                    cell.outputs = []
                    self._cell(kernel, cell, index)
            self.stopped_at = None
        finally:
            kernel.close()
            self.log = kernel.log

    def _cell(self, kernel: Kernel, cell: Any, index: int) -> None:
        """Run a cell or a check to its end, or raise `Ended`."""
        if self.seconds >= self.limits.notebook:
            raise Ended(f"it ran longer than {self.limits.notebook:g} s")
        name = grade_id(cell)
        is_check = name.startswith("check-")
        shown = CellOutput(cell)
        monitor = CellMonitor(self.limits, kernel.charged, self.limits.notebook - self.seconds)
        is_idle = False
        try:
            number = self._send(kernel, cell, index, is_check=is_check)
            if is_check:
                self.results[name] = self._judge(kernel, source(cell), monitor, shown)
            while not (monitor.has_replied and is_idle):
                # The reply and the state "idle" may arrive far apart.
                while reply := kernel.next("shell", 0.05 if is_idle else 0.0):
                    if reply.get("number") == number:
                        monitor.replied(kernel.charged)
                        break
                output = kernel.next("iopub", 0.0 if is_idle else 0.05)
                if output and output.get("number") != number:
                    shown.bytes += _size(output)  # printed by a thread of an earlier cell
                elif output and output.get("kind") == "status":
                    is_idle = output["content"].get("execution_state") == "idle"
                elif output and not monitor.is_interrupted:
                    shown.add(output)
                kernel.poll()
                if kernel.ended and not output:
                    self.troubles[index] = f"stopped: {kernel.stopped}"
                    raise Ended(kernel.stopped)
                action = monitor.decide(kernel.charged, shown.bytes)
                if action is Action.INTERRUPT:
                    kernel.interrupt()
                elif action is Action.FINISH:
                    break  # the state "idle" follows at once, unless too much output hides it
                elif action is Action.GIVE_UP:
                    raise Ended(monitor.trouble)
        finally:
            self.seconds += kernel.charged - monitor.began
            if monitor.trouble:
                self.troubles.setdefault(index, monitor.trouble)
        if shown.bytes >= self.limits.output:
            self.troubles.setdefault(index, printed_too_much(self.limits))

    def _send(self, kernel: Kernel, cell: Any, index: int, *, is_check: bool) -> int:
        """Send a cell to the kernel and return the number of the message."""
        content = {
            "code": "" if is_check else source(cell),
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": False,
        }
        keeps_pictures = self.own is None or index in self.own
        return kernel.execute(
            content, {"answers": True} if is_check else {"pictures": keeps_pictures}
        )

    def _judge(
        self, kernel: Kernel, call: str, monitor: CellMonitor, shown: CellOutput
    ) -> CheckResult:
        """Run a check in this process; its answers run in the sandbox with a cell's limits."""
        from tools.grading.judge import judge

        def wait() -> dict[str, Any]:
            while (message := kernel.next("check", 0.05)) is None:
                while output := kernel.next("iopub"):
                    shown.bytes += _size(output)
                if kernel.ended:
                    raise GivenUp(kernel.stopped)
                action = monitor.decide(kernel.charged, shown.bytes)
                if action is Action.INTERRUPT:
                    kernel.interrupt()
                elif action is Action.GIVE_UP:
                    raise GivenUp(monitor.trouble)
            return message

        try:
            result = judge(call, kernel.ask, wait, self.salt)
        except GivenUp as given_up:
            raise Ended(str(given_up)) from None
        kernel.ask({"end": True})
        return result


class CellOutput:
    """Collect the outputs of a cell; a page needs only their first lines."""

    def __init__(self, cell: Any):
        self.cell = cell
        self.bytes = self.text = self.pictures = 0

    def add(self, message: dict[str, Any]) -> None:
        from nbformat.v4 import new_output

        self.bytes += _size(message)
        kind, content = message.get("kind"), message["content"]
        if kind == "stream":
            text = str(content.get("text"))[: KEPT_TEXT - self.text]
            self.text += len(text)
            name = "stderr" if content.get("name") == "stderr" else "stdout"
            outputs = self.cell.outputs
            if outputs and outputs[-1].get("name") == name:
                outputs[-1].text += text
            elif text:
                outputs.append(new_output("stream", name=name, text=text))
        elif kind in ("display_data", "execute_result"):
            data, given = {}, content.get("data")
            for mime, limit in (
                ("text/plain", KEPT_TEXT - self.text),
                ("image/png", KEPT_PICTURES),
            ):
                value = given.get(mime) if isinstance(given, dict) else None
                if isinstance(value, str) and mime == "text/plain":
                    data[mime] = value[:limit]
                    self.text += len(data[mime])
                elif isinstance(value, str) and self.pictures + len(value) <= limit:
                    data[mime] = value
                    self.pictures += len(value)
            # nbgrader would read a number in an execute_result as points.
            self.cell.outputs.append(new_output("display_data", data=data))
        elif kind == "error":
            lines = content.get("traceback")
            lines = lines[-20:] if isinstance(lines, list) else []
            output = new_output(
                "error",
                ename=str(content.get("ename"))[:200],
                evalue=str(content.get("evalue"))[:2000],
                traceback=[str(line)[:2000] for line in lines],
            )
            self.cell.outputs.append(output)


def _size(message: dict[str, Any]) -> int:
    content = message["content"]
    if isinstance(content.get("text"), str):
        return len(content["text"])
    if isinstance(content.get("data"), dict):
        return sum(
            len(value) if isinstance(value, str) else 1000 for value in content["data"].values()
        )
    return 100
